/*
 * The blkhash construction: H( H(block 0) || ... || H(block n-1) || le64(length) ), bit-compatible
 * with blksum (nirs/blkhash 0.10 and later). Pure computation: any thread; one blkhash_outer is
 * used by one thread at a time. No I/O.
 */
#ifndef DIGEST_BLKHASH_H
#define DIGEST_BLKHASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLKHASH_BLOCK_DEFAULT 65536u
#define BLKHASH_DIGEST_MAX 64u

/* A digest algorithm, fetched once. Shared by all threads; immutable. */
struct digest;
/* Every OpenSSL name (any case) and "null". 0, -ENOENT (unknown), -ENOTSUP (longer than
 * BLKHASH_DIGEST_MAX or without a fixed length), -ENOMEM. */
int digest_open(const char *name, struct digest **ret);
void digest_free(struct digest *d);
const char *digest_name(const struct digest *d); /* as OpenSSL spells it, lower case */
size_t digest_length(const struct digest *d);    /* bytes, 0 for null */
/* "sha-ni x2", "avx2 x8", "openssl": how whole blocks are hashed here. */
const char *digest_engine(const struct digest *d);
/* How many blocks digest_blocks() hashes side by side: give it a multiple of that. */
unsigned digest_lanes(const struct digest *d);
/* Calls say() for each available name, sorted. */
void digest_list(void (*say)(void *arg, const char *name), void *arg);

/* H(data). 0 or -errno (-EIO when OpenSSL fails). */
int digest_one(const struct digest *d, const void *data, size_t len, uint8_t *out);
/*
 * n blocks of block_size bytes each that lie one behind the other; their digests one behind the
 * other in out. Whole blocks are hashed two (or more) at a time where the CPU gains by it.
 */
int digest_blocks(const struct digest *d, const void *data, size_t block_size, size_t n,
                  uint8_t *out);

/* The outer hash. */
struct blkhash_outer;
int blkhash_outer_new(const struct digest *d, uint32_t block_size, struct blkhash_outer **ret);
/* A second one that has seen what the first has. */
int blkhash_outer_copy(const struct blkhash_outer *o, struct blkhash_outer **ret);
void blkhash_outer_free(struct blkhash_outer *o);
/* n block digests in order. */
int blkhash_outer_digests(struct blkhash_outer *o, const uint8_t *digests, size_t n);
/* n full blocks of zeros. */
int blkhash_outer_zeros(struct blkhash_outer *o, uint64_t n);
int blkhash_outer_final(struct blkhash_outer *o, uint64_t length, uint8_t *out);
/* The digest of one full block of zeros. */
const uint8_t *blkhash_zero_digest(const struct blkhash_outer *o);

#endif
