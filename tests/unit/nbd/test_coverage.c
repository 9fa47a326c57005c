/* The coverage of a READ by chunks, against a plain array of flags. */
#include "nbd/coverage.h"

#include "../tap.h"

#include <errno.h>

static void in_order(void)
{
    struct nbd_coverage c = {0};
    for (uint64_t i = 0; i < 1000; i++) {
        EQ(nbd_coverage_add(&c, i * 10, 10), 0);
        EQ(c.count, 1);
    }
    EQ(c.covered, 10000);
    EQ(nbd_coverage_add(&c, 9999, 1), -EEXIST);
    EQ(nbd_coverage_add(&c, 0, 10000), -EEXIST);
    EQ(c.covered, 10000);
    nbd_coverage_done(&c);
}

static void every_other_then_the_rest(void)
{
    struct nbd_coverage c = {0};
    for (uint64_t i = 0; i < 500; i++) {
        EQ(nbd_coverage_add(&c, i * 20, 10), 0);
    }
    EQ(c.count, 500);
    for (uint64_t i = 500; i > 0; i--) {
        EQ(nbd_coverage_add(&c, (i - 1) * 20 + 5, 10), -EEXIST);
        EQ(nbd_coverage_add(&c, (i - 1) * 20 + 10, 10), 0);
    }
    EQ(c.count, 1);
    EQ(c.covered, 10000);
    nbd_coverage_done(&c);
}

static void too_many_pieces(void)
{
    struct nbd_coverage c = {0};
    for (uint64_t i = 0; i < NBD_COVERAGE_MAX; i++) {
        if (nbd_coverage_add(&c, i * 2, 1) != 0) {
            EQ(i, 0);
        }
    }
    EQ(c.count, NBD_COVERAGE_MAX);
    EQ(nbd_coverage_add(&c, NBD_COVERAGE_MAX * 2, 1), -E2BIG);
    EQ(nbd_coverage_add(&c, 1, 1), 0); /* joins two */
    EQ(nbd_coverage_add(&c, NBD_COVERAGE_MAX * 2, 1), 0);
    nbd_coverage_done(&c);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

static void against_a_model(void)
{
    enum { BYTES = 300 };
    uint32_t seed = 7;
    for (int round = 0; round < 300; round++) {
        struct nbd_coverage c = {0};
        bool model[BYTES] = {false};
        uint64_t covered = 0;
        for (int i = 0; i < 100; i++) {
            uint64_t start = next_random(&seed) % BYTES;
            uint64_t len = 1 + next_random(&seed) % (1 + (unsigned)round / 10);
            len = len > BYTES - start ? BYTES - start : len;
            bool hit = false;
            for (uint64_t b = start; b < start + len; b++) {
                hit = hit || model[b];
            }
            if (!EQ(nbd_coverage_add(&c, start, len), hit ? -EEXIST : 0)) {
                return;
            }
            for (uint64_t b = start; !hit && b < start + len; b++) {
                model[b] = true;
                covered++;
            }
            if (!EQ(c.covered, covered)) {
                return;
            }
        }
        unsigned pieces = 0;
        for (int b = 0; b < BYTES; b++) {
            pieces += model[b] && (b == 0 || !model[b - 1]);
        }
        EQ(c.count, pieces);
        nbd_coverage_done(&c);
    }
}

static void at_the_end_of_numbers(void)
{
    struct nbd_coverage c = {0};
    EQ(nbd_coverage_add(&c, UINT64_MAX - 10, 10), 0);
    EQ(nbd_coverage_add(&c, UINT64_MAX - 20, 10), 0);
    EQ(c.count, 1);
    EQ(nbd_coverage_add(&c, UINT64_MAX - 11, 2), -EEXIST);
    nbd_coverage_done(&c);
}

int main(void)
{
    RUN(in_order);
    RUN(every_other_then_the_rest);
    RUN(too_many_pieces);
    RUN(against_a_model);
    RUN(at_the_end_of_numbers);
    return tap_done();
}
