/*
 * Digests by name: libcrypto's, and for whole blocks of SHA-256 something faster.
 *
 * libcrypto hashes one message at a time, and SHA-256 is one long chain in which each step waits
 * for the one before. blkhash's blocks are independent of each other, so two (SHA-NI) or eight
 * (AVX2) of them are hashed side by side: about 1.8 and 3 times libcrypto's speed. Everything else,
 * odd blocks and other digests included, is libcrypto's EVP.
 *
 * Start-up is kept short: no openssl.cnf is read and each EVP_MD is fetched once, since a fetch
 * takes longer than hashing a small block. Contexts are made per call; a call hashes many blocks
 * with the one it made.
 *
 * PENSTOCK_DIGEST_ENGINE=openssl|avx2|sha-ni picks the way for SHA-256, for tests. What this
 * machine does not have, or does not know, is passed over in silence.
 */
#include "digest/blkhash.h"
#include "digest/engine.h"

#include <ctype.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/objects.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static void load_libcrypto(void)
{
    /* Idempotent and thread-safe. Whatever else would be set up later reads no file either. */
    OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
}

/* "sha256" rather than the provider's "SHA2-256". */
static void name_of(const EVP_MD *md, char *buf, size_t size)
{
    int nid = EVP_MD_get_type(md);
    const char *name = nid != NID_undef ? OBJ_nid2sn(nid) : NULL;
    if (!name) {
        name = EVP_MD_get0_name(md);
    }
    snprintf(buf, size, "%s", name ? name : "unknown");
    for (char *c = buf; *c; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
}

static bool usable(const EVP_MD *md)
{
    int length = EVP_MD_get_size(md);
    return length > 0 && length <= (int)BLKHASH_DIGEST_MAX;
}

static enum digest_kernel choose_kernel(const EVP_MD *md)
{
    if (!EVP_MD_is_a(md, "SHA256")) {
        return KERNEL_OPENSSL;
    }
    const char *forced = getenv("PENSTOCK_DIGEST_ENGINE");
    if (forced) {
        if (strcmp(forced, "openssl") == 0) {
            return KERNEL_OPENSSL;
        }
        if (strcmp(forced, "avx2") == 0 && sha256_avx2_supported()) {
            return KERNEL_AVX2;
        }
    }
    if (sha256_ni_supported()) {
        return KERNEL_SHA_NI;
    }
    return sha256_avx2_supported() ? KERNEL_AVX2 : KERNEL_OPENSSL;
}

int digest_open(const char *name, struct digest **ret)
{
    struct digest *d = calloc(1, sizeof(*d));
    if (!d) {
        return -ENOMEM;
    }
    if (strcasecmp(name, "null") == 0) {
        snprintf(d->name, sizeof(d->name), "null");
        *ret = d;
        return 0;
    }
    load_libcrypto();
    d->md = EVP_MD_fetch(NULL, name, NULL);
    if (!d->md) {
        ERR_clear_error();
        free(d);
        return -ENOENT;
    }
    if (!usable(d->md)) {
        digest_free(d);
        return -ENOTSUP;
    }
    d->length = (size_t)EVP_MD_get_size(d->md);
    d->kernel = choose_kernel(d->md);
    name_of(d->md, d->name, sizeof(d->name));
    *ret = d;
    return 0;
}

void digest_free(struct digest *d)
{
    if (!d) {
        return;
    }
    EVP_MD_free(d->md);
    free(d);
}

const char *digest_name(const struct digest *d)
{
    return d->name;
}

size_t digest_length(const struct digest *d)
{
    return d->length;
}

const char *digest_engine(const struct digest *d)
{
    switch (d->kernel) {
    case KERNEL_SHA_NI:
        return "sha-ni x2";
    case KERNEL_AVX2:
        return "avx2 x8";
    case KERNEL_OPENSSL:
        break;
    }
    return d->md ? "openssl" : "null";
}

unsigned digest_lanes(const struct digest *d)
{
    switch (d->kernel) {
    case KERNEL_SHA_NI:
        return 2;
    case KERNEL_AVX2:
        return SHA256_AVX2_LANES;
    case KERNEL_OPENSSL:
        break;
    }
    return 1;
}

/* More than OpenSSL has ever had; further ones would be left out of the list only. */
#define NAMES_MAX 128

struct names {
    size_t n;
    char name[NAMES_MAX][48];
};

static void collect(EVP_MD *md, void *arg)
{
    struct names *names = arg;
    if (usable(md) && names->n < NAMES_MAX) {
        name_of(md, names->name[names->n], sizeof(names->name[0]));
        names->n++;
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

void digest_list(void (*say)(void *arg, const char *name), void *arg)
{
    struct names *names = calloc(1, sizeof(*names));
    if (!names) {
        return;
    }
    snprintf(names->name[names->n++], sizeof(names->name[0]), "null");
    load_libcrypto();
    EVP_MD_do_all_provided(NULL, collect, names);
    qsort(names->name, names->n, sizeof(names->name[0]), compare_names);
    for (size_t i = 0; i < names->n; i++) {
        /* Two providers may have the same digest. */
        if (i == 0 || strcmp(names->name[i], names->name[i - 1]) != 0) {
            say(arg, names->name[i]);
        }
    }
    free(names);
}

/* ---- one message ---- */

static int libcrypto_failed(void)
{
    ERR_clear_error();
    return -EIO;
}

int digest_stream_init(struct digest_stream *s, const struct digest *d)
{
    s->ctx = NULL;
    if (!d->md) {
        return 0;
    }
    s->ctx = EVP_MD_CTX_new();
    if (!s->ctx) {
        return -ENOMEM;
    }
    if (EVP_DigestInit_ex2(s->ctx, d->md, NULL) != 1) {
        digest_stream_done(s);
        return libcrypto_failed();
    }
    return 0;
}

int digest_stream_copy(const struct digest_stream *s, struct digest_stream *ret)
{
    ret->ctx = NULL;
    if (!s->ctx) {
        return 0;
    }
    ret->ctx = EVP_MD_CTX_new();
    if (!ret->ctx) {
        return -ENOMEM;
    }
    if (EVP_MD_CTX_copy_ex(ret->ctx, s->ctx) != 1) {
        digest_stream_done(ret);
        return libcrypto_failed();
    }
    return 0;
}

int digest_stream_update(struct digest_stream *s, const void *data, size_t len)
{
    if (!s->ctx || EVP_DigestUpdate(s->ctx, data, len) == 1) {
        return 0;
    }
    return libcrypto_failed();
}

int digest_stream_final(struct digest_stream *s, uint8_t *out)
{
    if (!s->ctx || EVP_DigestFinal_ex(s->ctx, out, NULL) == 1) {
        return 0;
    }
    return libcrypto_failed();
}

void digest_stream_done(struct digest_stream *s)
{
    EVP_MD_CTX_free(s->ctx);
    s->ctx = NULL;
}

int digest_one(const struct digest *d, const void *data, size_t len, uint8_t *out)
{
    struct digest_stream s;
    int rc = digest_stream_init(&s, d);
    if (rc == 0) {
        rc = digest_stream_update(&s, data, len);
    }
    if (rc == 0) {
        rc = digest_stream_final(&s, out);
    }
    digest_stream_done(&s);
    return rc;
}

/* ---- many blocks ---- */

static int blocks_openssl(const struct digest *d, const uint8_t *data, size_t block_size, size_t n,
                          uint8_t *out)
{
    if (n == 0 || !d->md) {
        return 0;
    }
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (!ctx) {
        return -ENOMEM;
    }
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (EVP_DigestInit_ex2(ctx, d->md, NULL) != 1 ||
            EVP_DigestUpdate(ctx, data + i * block_size, block_size) != 1 ||
            EVP_DigestFinal_ex(ctx, out + i * d->length, NULL) != 1) {
            rc = libcrypto_failed();
        }
    }
    EVP_MD_CTX_free(ctx);
    return rc;
}

/* Pairs. Returns how many blocks it did. */
static size_t blocks_sha_ni(const uint8_t *data, size_t block_size, size_t n, uint8_t *out)
{
    size_t i = 0;
    for (; n - i >= 2; i += 2) {
        const uint8_t *const in[2] = {data + i * block_size, data + (i + 1) * block_size};
        uint8_t *const to[2] = {out + i * SHA256_LENGTH, out + (i + 1) * SHA256_LENGTH};
        sha256_ni_x2(in, block_size, to);
    }
    return i;
}

/* Eights, and what is left where that still pays: spare lanes repeat the last block into a
 * digest that nobody reads. */
static size_t blocks_avx2(const uint8_t *data, size_t block_size, size_t n, uint8_t *out)
{
    size_t i = 0;
    while (n - i >= SHA256_AVX2_LEAST) {
        const uint8_t *in[SHA256_AVX2_LANES];
        uint8_t *to[SHA256_AVX2_LANES];
        uint8_t spare[SHA256_LENGTH];
        size_t used = n - i < SHA256_AVX2_LANES ? n - i : SHA256_AVX2_LANES;
        for (size_t lane = 0; lane < SHA256_AVX2_LANES; lane++) {
            size_t block = i + (lane < used ? lane : used - 1);
            in[lane] = data + block * block_size;
            to[lane] = lane < used ? out + block * SHA256_LENGTH : spare;
        }
        sha256_avx2_x8(in, block_size, to);
        i += used;
    }
    return i;
}

int digest_blocks(const struct digest *d, const void *data, size_t block_size, size_t n,
                  uint8_t *out)
{
    const uint8_t *bytes = data;
    size_t done = 0;
    if (n == 0) {
        return 0; /* data may be NULL */
    }
    switch (d->kernel) {
    case KERNEL_SHA_NI:
        done = blocks_sha_ni(bytes, block_size, n, out);
        break;
    case KERNEL_AVX2:
        done = blocks_avx2(bytes, block_size, n, out);
        break;
    case KERNEL_OPENSSL:
        break;
    }
    return blocks_openssl(d, bytes + done * block_size, block_size, n - done,
                          out + done * d->length);
}
