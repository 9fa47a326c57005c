/* Zero detection: one set bit anywhere is found, at every length and alignment. */
#include "digest/engine.h"
#include "digest/zero.h"
#include "tap.h"

static void every_bit_counts(void)
{
    /* On the heap with exactly the bytes named, so that a sanitizer sees a read beyond them. */
    static const size_t lengths[] = {0,  1,  2,   7,   8,   9,   15,  16,  17,  31,  32,
                                     33, 63, 127, 128, 129, 255, 256, 300, 512, 1000};
    bool avx2 = sha256_avx2_supported();
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        for (size_t shift = 0; shift < 3; shift++) {
            size_t len = lengths[i];
            uint8_t *whole = calloc(1, len + shift + (len + shift == 0));
            if (!OK(whole != NULL)) {
                return;
            }
            uint8_t *p = whole + shift;
            OK(is_zero(p, len));
            OK(zero_generic(p, len));
            OK(!avx2 || zero_avx2(p, len));
            for (size_t at = 0; at < len; at++) {
                p[at] = (uint8_t)(1u << (at % 8));
                OK(!is_zero(p, len));
                OK(!zero_generic(p, len));
                OK(!avx2 || !zero_avx2(p, len));
                p[at] = 0;
            }
            free(whole);
        }
    }
}

static void runs(void)
{
    uint8_t buf[10 * 512 + 100] = {0};
    bool zero;

    EQ(zero_run(buf, sizeof(buf), 512, &zero), sizeof(buf));
    OK(zero);
    buf[3 * 512 + 511] = 1;
    EQ(zero_run(buf, sizeof(buf), 512, &zero), 3 * 512);
    OK(zero);
    EQ(zero_run(buf + 3 * 512, sizeof(buf) - 3 * 512, 512, &zero), 512);
    OK(!zero);
    buf[4 * 512] = 1;
    EQ(zero_run(buf + 3 * 512, sizeof(buf) - 3 * 512, 512, &zero), 1024);
    OK(!zero);
    /* the short block at the end counts by itself */
    buf[10 * 512 + 99] = 1;
    EQ(zero_run(buf + 5 * 512, sizeof(buf) - 5 * 512, 512, &zero), 5 * 512);
    OK(zero);
    EQ(zero_run(buf + 10 * 512, 100, 512, &zero), 100);
    OK(!zero);
    EQ(zero_run(buf, 1, 512, &zero), 1);
    OK(zero);
    EQ(zero_run(buf, sizeof(buf), SIZE_MAX, &zero), sizeof(buf));
    OK(!zero);
    EQ(zero_run(buf, 512, 0, &zero), 512);
    OK(zero);
}

int main(void)
{
    RUN(every_bit_counts);
    RUN(runs);
    return tap_done();
}
