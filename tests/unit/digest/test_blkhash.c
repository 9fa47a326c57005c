/*
 * The construction, against digests that blksum printed (tests/data/blkhash-vectors.json holds
 * more of them, which the end-to-end tests use).
 */
#include "digest/blkhash.h"
#include "tap.h"

#include <errno.h>
#include <openssl/evp.h>

#define RANDOM_MAX (10u << 20)

static uint8_t *noise;

/* The vectors' random data: the keystream of AES-128-CTR, key 00 01 .. 0f, IV zero. */
static void make_noise(void)
{
    static const uint8_t key[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const uint8_t iv[16];
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    int len = 0;
    noise = calloc(1, RANDOM_MAX);
    if (!ctx || !noise || EVP_EncryptInit_ex2(ctx, EVP_aes_128_ctr(), key, iv, NULL) != 1 ||
        EVP_EncryptUpdate(ctx, noise, &len, noise, (int)RANDOM_MAX) != 1) {
        printf("Bail out! no AES\n");
        exit(1);
    }
    EVP_CIPHER_CTX_free(ctx);
}

static const char *hex(const uint8_t *bytes, size_t len)
{
    static char text[2 * BLKHASH_DIGEST_MAX + 1];
    text[0] = '\0';
    for (size_t i = 0; i < len; i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
    return text;
}

struct image {
    const char *digest;
    uint32_t block_size;
    const uint8_t *head; /* data at the start, or NULL */
    size_t head_bytes;
    uint64_t size; /* zeros up to here */
    const char *want;
};

static void check(const struct image *im)
{
    static const uint8_t zeros[1u << 20];
    struct digest *d;
    struct blkhash_outer *o;
    uint8_t digests[256 * BLKHASH_DIGEST_MAX], out[BLKHASH_DIGEST_MAX];
    if (!EQ(digest_open(im->digest, &d), 0)) {
        return;
    }
    if (!EQ(blkhash_outer_new(d, im->block_size, &o), 0)) {
        digest_free(d);
        return;
    }
    size_t blocks = im->head_bytes / im->block_size;
    if (!OK(blocks <= 256)) {
        blocks = 0;
    }
    EQ(digest_blocks(d, im->head, im->block_size, blocks, digests), 0);
    EQ(blkhash_outer_digests(o, digests, blocks), 0);
    /* The zeros, but for a short block at the end. */
    uint64_t at = (uint64_t)blocks * im->block_size;
    size_t tail = (size_t)(im->size % im->block_size);
    EQ(blkhash_outer_zeros(o, (im->size - at) / im->block_size), 0);
    if (tail > 0) {
        const uint8_t *from = at + tail == im->head_bytes ? im->head + at : zeros;
        EQ(digest_one(d, from, tail, digests), 0);
        EQ(blkhash_outer_digests(o, digests, 1), 0);
    }
    EQ(blkhash_outer_final(o, im->size, out), 0);
    STREQ(hex(out, digest_length(d)), im->want);
    blkhash_outer_free(o);
    digest_free(d);
}

static void data_vectors(void)
{
    const struct image images[] = {
        {"sha256", 65536, noise, 0, 0,
         "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"},
        {"sha1", 65536, noise, 0, 0, "05fe405753166f125559e7c9ac558654f107c7e9"},
        {"sha256", 65536, noise, 65535, 65535,
         "f645eb59a801279a47da4e2f650d4e133a215f7c75bfffda963e1b7a2ce2054b"},
        {"sha256", 65536, noise, 65536, 65536,
         "b0c74a62aa646f0074f32529a2b9dc4fcc13a48e82c3531615c443bee670d2c9"},
        {"sha256", 65536, noise, 65537, 65537,
         "9b0a199d045927b86ac8d57d2504fb01aa67f9c707ec3ed7919fb97f1e788835"},
        {"sha256", 65536, noise, RANDOM_MAX, RANDOM_MAX,
         "b5f93694e32a3cd816469f11d2cae047747fa96c06275d636fd510ddba06d495"},
    };
    for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++) {
        check(&images[i]);
    }
}

static void hole_vectors(void)
{
    static const struct image images[] = {
        {"sha256", 65536, NULL, 0, 1,
         "3aa275143d0713bc404144a02208ea1ea840d565fa0c19af486cc65b0a10a267"},
        {"sha256", 65536, NULL, 0, 65536,
         "8ab067ab7939a3d4f40cbb118956c07c06aeae2d075d6e0a2ebbb94bd42832af"},
        {"sha256", 65536, NULL, 0, 65537,
         "43702a4ffbe4bdb5c0cf900dd2a899fdd2536b78559f8b55cf0ed7fe1e8195b5"},
        {"sha256", 65536, NULL, 0, 1ull << 26,
         "928319d81c6180a04e527d560211c821155a574ed2fed0853adba55dae20b34c"},
        {"sha256", 65536, NULL, 0, 1ull << 30,
         "c6d6562c3074a2caa0ceea3e1f460f3af678c792ed05e64157eb51e68ae5260d"},
        {"sha256", 65536, NULL, 0, 100ull << 30,
         "300ad1efddb063822fea65ae3174cd35320939d4d0b050613628c6e1e876f8f6"},
    };
    for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++) {
        check(&images[i]);
    }
}

static void zeros_are_blocks(void)
{
    /* However zeros come, counted or hashed, the result is the same; block sizes that do not
     * divide anything included. */
    static const uint32_t sizes[] = {512, 4096, 16384, 65536, 100000};
    static uint8_t zeros[100000];
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct digest *d;
        struct blkhash_outer *counted, *hashed;
        uint8_t a[BLKHASH_DIGEST_MAX] = {0}, b[BLKHASH_DIGEST_MAX] = {1}, one[BLKHASH_DIGEST_MAX];
        EQ(digest_open("sha512", &d), 0);
        EQ(blkhash_outer_new(d, sizes[i], &counted), 0);
        EQ(blkhash_outer_new(d, sizes[i], &hashed), 0);
        EQ(digest_one(d, zeros, sizes[i], one), 0);
        OK(memcmp(one, blkhash_zero_digest(counted), digest_length(d)) == 0);
        for (int n = 0; n < 300; n++) {
            EQ(blkhash_outer_digests(hashed, one, 1), 0);
        }
        EQ(blkhash_outer_zeros(counted, 1), 0);
        EQ(blkhash_outer_zeros(counted, 0), 0);
        EQ(blkhash_outer_zeros(counted, 299), 0);
        EQ(blkhash_outer_final(counted, 7, a), 0);
        EQ(blkhash_outer_final(hashed, 7, b), 0);
        OK(memcmp(a, b, digest_length(d)) == 0);
        blkhash_outer_free(counted);
        blkhash_outer_free(hashed);
        digest_free(d);
    }
}

static void copies_go_on_by_themselves(void)
{
    static const uint8_t block[512] = {1};
    struct digest *d;
    struct blkhash_outer *o, *copy;
    uint8_t one[64], a[64], b[64];
    EQ(digest_open("sha256", &d), 0);
    EQ(blkhash_outer_new(d, 512, &o), 0);
    EQ(digest_one(d, block, sizeof(block), one), 0);
    EQ(blkhash_outer_digests(o, one, 1), 0);
    EQ(blkhash_outer_copy(o, &copy), 0);
    EQ(blkhash_outer_zeros(o, 3), 0);
    EQ(blkhash_outer_final(o, 2048, a), 0);
    for (int i = 0; i < 3; i++) {
        EQ(blkhash_outer_digests(copy, blkhash_zero_digest(copy), 1), 0);
    }
    EQ(blkhash_outer_final(copy, 2048, b), 0);
    OK(memcmp(a, b, 32) == 0);
    blkhash_outer_free(o);
    blkhash_outer_free(copy);
    digest_free(d);
}

static void odd_calls(void)
{
    struct digest *d;
    struct blkhash_outer *o;
    uint8_t out[1] = {9};
    EQ(digest_open("null", &d), 0);
    EQ(blkhash_outer_new(d, 0, &o), -EINVAL);
    EQ(blkhash_outer_new(d, 512, &o), 0);
    EQ(blkhash_outer_zeros(o, UINT64_MAX), 0);
    struct blkhash_outer *copy;
    EQ(blkhash_outer_copy(o, &copy), 0);
    blkhash_outer_free(copy);
    EQ(blkhash_outer_final(o, UINT64_MAX, out), 0);
    EQ(out[0], 9);
    blkhash_outer_free(o);
    blkhash_outer_free(NULL);
    digest_free(d);
    digest_free(NULL);
}

int main(void)
{
    make_noise();
    RUN(data_vectors);
    RUN(hole_vectors);
    RUN(zeros_are_blocks);
    RUN(copies_go_on_by_themselves);
    RUN(odd_calls);
    free(noise);
    return tap_done();
}
