/* Every way of hashing blocks gives what libcrypto gives, whatever the block's length and number.
 */
#include "digest/blkhash.h"
#include "digest/engine.h"
#include "tap.h"

#include <errno.h>

#define DATA_BYTES (300u * 1024)
#define BLOCKS_MAX 20u

static uint8_t data[DATA_BYTES];

static void fill(void)
{
    uint32_t x = 2463534242u;
    for (size_t i = 0; i < sizeof(data); i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        data[i] = (uint8_t)(x >> 11);
    }
}

/* All digests of n blocks by digest_blocks() against one call each. */
static void check_blocks(const struct digest *d, size_t block_size, size_t n, size_t shift)
{
    uint8_t got[BLOCKS_MAX * BLKHASH_DIGEST_MAX + 1], want[BLKHASH_DIGEST_MAX];
    size_t len = digest_length(d);

    memset(got, 0x5a, sizeof(got));
    if (!EQ(digest_blocks(d, data + shift, block_size, n, got), 0)) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        OK(digest_one(d, data + shift + i * block_size, block_size, want) == 0);
        if (!OK(memcmp(got + i * len, want, len) == 0)) {
            printf("# %s, block %zu of %zu, %zu bytes\n", digest_engine(d), i, n, block_size);
            return;
        }
    }
    OK(got[n * len] == 0x5a);
}

static void check_engine(const char *engine, const char *says)
{
    struct digest *d;
    setenv("PENSTOCK_DIGEST_ENGINE", engine, 1);
    if (!EQ(digest_open("sha256", &d), 0)) {
        return;
    }
    if (says) {
        STREQ(digest_engine(d), says);
    }
    for (size_t len = 0; len <= 260; len++) {
        check_blocks(d, len, 2, len % 7);
        check_blocks(d, len, 9, 1);
    }
    for (size_t n = 0; n <= BLOCKS_MAX; n++) {
        check_blocks(d, 512, n, 0);
        check_blocks(d, 1000, n, 3);
    }
    check_blocks(d, 65536, 4, 0);
    check_blocks(d, 65535, 4, 5);
    digest_free(d);
    unsetenv("PENSTOCK_DIGEST_ENGINE");
}

static void openssl_engine(void)
{
    check_engine("openssl", "openssl");
}

static void avx2_engine(void)
{
    if (!sha256_avx2_supported()) {
        SKIP("no AVX2");
        return;
    }
    check_engine("avx2", "avx2 x8");
}

static void sha_ni_engine(void)
{
    if (!sha256_ni_supported()) {
        SKIP("no SHA-NI");
        return;
    }
    check_engine("sha-ni", "sha-ni x2");
}

static void unknown_engine_falls_back(void)
{
    check_engine("abacus", NULL);
}

static void known_answers(void)
{
    /* FIPS 180-2, appendix B.1: "abc", through whatever kernel this machine has. */
    static const uint8_t want[32] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea,
                                     0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
                                     0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c,
                                     0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};
    struct digest *d;
    uint8_t out[4 * 32];
    if (!EQ(digest_open("SHA-256", &d), 0)) {
        return;
    }
    STREQ(digest_name(d), "sha256");
    EQ(digest_length(d), 32);
    EQ(digest_blocks(d, "abcabcabcabc", 3, 4, out), 0);
    for (int i = 0; i < 4; i++) {
        OK(memcmp(out + i * 32, want, 32) == 0);
    }
    digest_free(d);
}

static void other_digests(void)
{
    static const struct {
        const char *name, *lower;
        size_t length;
    } cases[] = {
        {"SHA1", "sha1", 20},
        {"sha512", "sha512", 64},
        {"SHA2-512/256", "sha512-256", 32},
        {"sha3-224", "sha3-224", 28},
        {"BLAKE2b512", "blake2b512", 64},
        {"md5", "md5", 16},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct digest *d;
        if (!EQ(digest_open(cases[i].name, &d), 0)) {
            continue;
        }
        STREQ(digest_name(d), cases[i].lower);
        EQ(digest_length(d), cases[i].length);
        STREQ(digest_engine(d), "openssl");
        check_blocks(d, 512, 5, 0);
        digest_free(d);
    }
}

static void null_digest(void)
{
    struct digest *d;
    uint8_t out[1] = {7};
    if (!EQ(digest_open("null", &d), 0)) {
        return;
    }
    EQ(digest_length(d), 0);
    STREQ(digest_name(d), "null");
    EQ(digest_blocks(d, data, 512, 9, out), 0);
    EQ(digest_one(d, data, 512, out), 0);
    EQ(out[0], 7);
    digest_free(d);
}

static void unknown_digest(void)
{
    struct digest *d;
    EQ(digest_open("sha257", &d), -ENOENT);
    EQ(digest_open("", &d), -ENOENT);
}

static char listed[4096];

static void remember(void *arg, const char *name)
{
    size_t used = strlen(listed);
    struct digest *d;
    snprintf(listed + used, sizeof(listed) - used, "%s\n", name);
    /* What is listed can be opened. */
    if (EQ(digest_open(name, &d), 0)) {
        digest_free(d);
    }
    OK(strcmp(arg, name) < 0);
    snprintf(arg, 64, "%s", name);
}

static void lists_sorted(void)
{
    char last[64] = "";
    digest_list(remember, last);
    OK(strstr(listed, "sha256\n"));
    OK(strstr(listed, "null\n"));
    OK(strstr(listed, "sha3-512\n"));
    OK(strstr(listed, "blake2s256\n"));
}

int main(void)
{
    fill();
    RUN(openssl_engine);
    RUN(avx2_engine);
    RUN(sha_ni_engine);
    RUN(unknown_engine_falls_back);
    RUN(known_answers);
    RUN(other_digests);
    RUN(null_digest);
    RUN(unknown_digest);
    RUN(lists_sorted);
    return tap_done();
}
