/*
 * The bytes of a READ that have arrived.
 *
 * Servers send chunks in order nearly always, so that one range grows; a binary search finds the
 * place otherwise. Touching ranges are joined, so the number of ranges is that of the gaps.
 */
#include "nbd/coverage.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static struct nbd_range *ranges(struct nbd_coverage *c)
{
    return c->more ? c->more : c->few;
}

/* The first range that ends after at. */
static uint32_t find(struct nbd_coverage *c, uint64_t at)
{
    const struct nbd_range *r = ranges(c);
    uint32_t low = 0, high = c->count;
    if (high > 0 && r[high - 1].end <= at) {
        return high;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (r[middle].end > at) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static int insert(struct nbd_coverage *c, uint32_t i, uint64_t start, uint64_t end)
{
    uint32_t room = c->more ? c->room : NBD_COVERAGE_INLINE;
    if (c->count == NBD_COVERAGE_MAX) {
        return -E2BIG;
    }
    if (c->count == room) {
        assert(room > 0);
        struct nbd_range *more = realloc(c->more, sizeof *more * room * 2);
        if (!more) {
            return -ENOMEM;
        }
        if (!c->more) {
            memcpy(more, c->few, sizeof c->few);
        }
        c->more = more;
        c->room = room * 2;
    }
    struct nbd_range *r = ranges(c);
    memmove(r + i + 1, r + i, sizeof *r * (c->count - i));
    r[i] = (struct nbd_range){start, end};
    c->count++;
    return 0;
}

int nbd_coverage_add(struct nbd_coverage *c, uint64_t start, uint64_t len)
{
    uint64_t end = start + len;
    uint32_t i = find(c, start);
    struct nbd_range *r = ranges(c);
    if (i < c->count && r[i].start < end) {
        return -EEXIST;
    }
    bool joins_left = i > 0 && r[i - 1].end == start;
    bool joins_right = i < c->count && r[i].start == end;
    if (joins_left && joins_right) {
        r[i - 1].end = r[i].end;
        memmove(r + i, r + i + 1, sizeof *r * (c->count - i - 1));
        c->count--;
    } else if (joins_left) {
        r[i - 1].end = end;
    } else if (joins_right) {
        r[i].start = start;
    } else {
        int failed = insert(c, i, start, end);
        if (failed < 0) {
            return failed;
        }
    }
    c->covered += len;
    return 0;
}

void nbd_coverage_done(struct nbd_coverage *c)
{
    free(c->more);
    *c = (struct nbd_coverage){0};
}
