/*
 * What the files of this room share and nobody else needs: the digest itself, the stream over
 * OpenSSL that the outer hash is made of, and the wide SHA-256 kernels.
 */
#ifndef DIGEST_ENGINE_H
#define DIGEST_ENGINE_H

#include "digest/blkhash.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHA256_LENGTH 32u
#define SHA256_AVX2_LANES 8u
/* Eight lanes take as long for three blocks as libcrypto takes one by one; below that it wins. */
#define SHA256_AVX2_LEAST 3u

enum digest_kernel { KERNEL_OPENSSL, KERNEL_SHA_NI, KERNEL_AVX2 };

struct digest {
    EVP_MD *md; /* NULL: the null digest, whose output is empty */
    size_t length;
    enum digest_kernel kernel;
    char name[48];
};

/* One running digest. ctx is NULL for the null digest. */
struct digest_stream {
    EVP_MD_CTX *ctx;
};

int digest_stream_init(struct digest_stream *s, const struct digest *d);
int digest_stream_copy(const struct digest_stream *s, struct digest_stream *ret);
int digest_stream_update(struct digest_stream *s, const void *data, size_t len);
int digest_stream_final(struct digest_stream *s, uint8_t *out);
void digest_stream_done(struct digest_stream *s);

/* Whether this CPU (and this build) has them. */
bool sha256_ni_supported(void);
bool sha256_avx2_supported(void);

/* Two messages of the same length. Only where sha256_ni_supported(). */
void sha256_ni_x2(const uint8_t *const data[2], size_t len, uint8_t *const out[2]);
/* Eight messages of the same length; lanes may name the same message twice. */
void sha256_avx2_x8(const uint8_t *const data[SHA256_AVX2_LANES], size_t len,
                    uint8_t *const out[SHA256_AVX2_LANES]);

/* FIPS 180-4, 4.2.2, each word once. */
extern const uint32_t sha256_k[64];
/* FIPS 180-4, 5.1.1: the rest of a message behind its last whole 64-byte block, with its padding,
 * in out. Returns how many 64-byte blocks that makes, 1 or 2. */
size_t sha256_pad(const uint8_t *data, size_t len, uint8_t out[128]);

/* For tests: the two ways of is_zero(). */
bool zero_generic(const void *buf, size_t len);
bool zero_avx2(const void *buf, size_t len); /* only where sha256_avx2_supported() */

#endif
