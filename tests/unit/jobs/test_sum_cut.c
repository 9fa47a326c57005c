/*
 * Extents to items: together the items are the disk, in order, and a block is zeros exactly when
 * all of it is in extents of zeros.
 */
#include "jobs/sum_cut.h"
#include "tap.h"

#include <errno.h>

#define BLOCK 512u
#define PIECE 2048u
#define MAP_MAX 65536u

struct seen {
    uint64_t end; /* of the last item */
    char text[4096];
    bool zero_block[MAP_MAX / BLOCK + 1];
    int fail_at, items;
};

static int see(void *arg, const struct sum_item *item)
{
    struct seen *s = arg;
    size_t used = strlen(s->text);
    if (s->fail_at > 0 && ++s->items == s->fail_at) {
        return -ENOMEM;
    }
    EQ(item->offset, s->end);
    OK(item->length > 0);
    EQ(item->offset % BLOCK, 0);
    s->end = item->offset + item->length;
    if (item->kind != SUM_DATA) {
        EQ(item->length % BLOCK, 0);
        OK(item->length / BLOCK <= SUM_CUT_RUN_MAX);
    } else {
        OK(item->offset / PIECE == (s->end - 1) / PIECE);
    }
    for (uint64_t at = item->offset; at < s->end && at < MAP_MAX; at += BLOCK) {
        s->zero_block[at / BLOCK] = item->kind == SUM_ZEROS;
    }
    snprintf(s->text + used, sizeof(s->text) - used, "%c%llu+%llu ", "dzk"[item->kind],
             (unsigned long long)item -> offset, (unsigned long long)item -> length);
    return 0;
}

struct step {
    uint64_t length;
    bool zeros;
};

static void check(uint64_t size, const struct step *steps, const char *want)
{
    static struct seen seen;
    struct sum_cut c;
    memset(&seen, 0, sizeof(seen));
    sum_cut_init(&c, size, BLOCK, PIECE, see, &seen);
    for (; steps->length > 0; steps++) {
        EQ(sum_cut_extent(&c, steps->length, steps->zeros), 0);
    }
    EQ(sum_cut_end(&c), 0);
    EQ(seen.end, size);
    STREQ(seen.text, want);
}

static void known_cuts(void)
{
    check(0, (struct step[]){{}}, "");
    check(100, (struct step[]){{}}, "d0+100 ");
    check(100, (struct step[]){{100, true}, {}}, "d0+100 ");
    check(512, (struct step[]){{512, true}, {}}, "z0+512 ");
    check(612, (struct step[]){{612, true}, {}}, "z0+512 d512+100 ");
    check(5000, (struct step[]){{5000, false}, {}}, "d0+2048 d2048+2048 d4096+512 d4608+392 ");
    /* a hole that begins and ends inside of blocks */
    check(4096, (struct step[]){{700, false}, {2000, true}, {1396, false}, {}},
          "d0+512 d512+512 z1024+1536 d2560+1536 ");
    /* zeros told in two halves that meet inside of a block */
    check(2048, (struct step[]){{100, true}, {1948, true}, {}}, "z0+2048 ");
    check(2048, (struct step[]){{600, true}, {1448, true}, {}}, "z0+512 z512+1536 ");
    /* a byte of data in a hole */
    check(2048, (struct step[]){{1000, true}, {1, false}, {1047, true}, {}},
          "z0+512 d512+512 z1024+1024 ");
    check(2048, (struct step[]){{1024, true}, {1, false}, {1023, true}, {}},
          "z0+1024 d1024+512 z1536+512 ");
    /* extents that say more than there is */
    check(1000, (struct step[]){{UINT64_MAX, true}, {}}, "z0+512 d512+488 ");
    /* a run of zeros longer than an item */
    check((SUM_CUT_RUN_MAX + 2ull) * BLOCK,
          (struct step[]){{(SUM_CUT_RUN_MAX + 2ull) * BLOCK, true}, {}},
          "z0+33554432 z33554432+1024 ");
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void random_cuts(void)
{
    static struct seen seen;
    static bool zero[MAP_MAX];
    uint64_t state = 7;
    for (int round = 0; round < 500; round++) {
        uint64_t size = next_random(&state) % MAP_MAX;
        struct sum_cut c;
        memset(&seen, 0, sizeof(seen));
        sum_cut_init(&c, size, BLOCK, PIECE, see, &seen);
        for (uint64_t at = 0; at < size;) {
            uint64_t length = 1 + next_random(&state) % (round % 2 ? 3000 : 700);
            bool zeros = next_random(&state) & 1;
            EQ(sum_cut_extent(&c, length, zeros), 0);
            for (; length > 0 && at < size; length--) {
                zero[at++] = zeros;
            }
        }
        EQ(sum_cut_end(&c), 0);
        EQ(seen.end, size);
        for (uint64_t at = 0; at < size; at += BLOCK) {
            bool all = at + BLOCK <= size;
            for (uint64_t i = at; all && i < at + BLOCK; i++) {
                all = zero[i];
            }
            /* neighbours taken together: never read what is known, never trust what is not */
            if (!OK(!seen.zero_block[at / BLOCK] || all)) {
                return;
            }
        }
    }
}

static void failures_end_it(void)
{
    static struct seen seen;
    struct sum_cut c;
    seen.fail_at = 2;
    sum_cut_init(&c, 8192, BLOCK, PIECE, see, &seen);
    EQ(sum_cut_extent(&c, 8192, false), -ENOMEM);
    EQ(seen.items, 2);
}

int main(void)
{
    RUN(known_cuts);
    RUN(random_cuts);
    RUN(failures_end_it);
    return tap_done();
}
