/*
 * The wide SHA-256 kernels against libcrypto, and zero_run() against looking at each byte. The
 * first two bytes of the input choose the length of the blocks.
 */
#include "digest/blkhash.h"
#include "digest/zero.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS_MAX 40u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct digest *engine(const char *name)
{
    struct digest *d;
    setenv("PENSTOCK_DIGEST_ENGINE", name, 1);
    if (digest_open("sha256", &d) < 0) {
        abort();
    }
    return d;
}

static void compare_engines(const uint8_t *data, size_t size, size_t block_size)
{
    static struct digest *engines[3];
    uint8_t out[3][BLOCKS_MAX * 32] = {{0}};
    size_t n = size / block_size;

    if (!engines[0]) {
        engines[0] = engine("openssl");
        engines[1] = engine("avx2");
        engines[2] = engine("sha-ni");
    }
    n = n < BLOCKS_MAX ? n : BLOCKS_MAX;
    for (int i = 0; i < 3; i++) {
        if (digest_blocks(engines[i], data, block_size, n, out[i]) < 0 ||
            memcmp(out[0], out[i], sizeof(out[0])) != 0) {
            abort();
        }
    }
}

static bool all_zero(const uint8_t *data, size_t size)
{
    uint8_t any = 0;
    for (size_t i = 0; i < size; i++) {
        any |= data[i];
    }
    return any == 0;
}

static void compare_runs(const uint8_t *data, size_t size, size_t grain)
{
    for (size_t at = 0; at < size;) {
        bool zero;
        size_t run = zero_run(data + at, size - at, grain, &zero);
        if (run == 0 || run > size - at || (run % grain != 0 && at + run != size)) {
            abort();
        }
        for (size_t i = 0; i < run; i += grain) {
            size_t now = run - i < grain ? run - i : grain;
            if (all_zero(data + at + i, now) != zero) {
                abort();
            }
        }
        at += run;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    size_t block_size = (size_t)(data[0] | data[1] << 8) % 2048 + 1;
    compare_engines(data + 2, size - 2, block_size);
    compare_runs(data + 2, size - 2, block_size);
    return 0;
}
