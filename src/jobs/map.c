/*
 * See map.h. One row is kept back until the next one turns out to be of another kind, so rows do
 * not depend on how the driver cut its answers.
 */
#include "jobs/map.h"

#include "core/fiber.h"

#include <errno.h>

#define EXTENTS_AT_ONCE 256

struct map {
    int (*row)(void *arg, const struct map_row *row);
    void *arg;
    struct map_row pending; /* length 0: none */
    struct map_totals *totals;
};

const char *map_kind(uint32_t flags)
{
    static const char *const kinds[MAP_KINDS] = {"data", "hole", "zero", "hole,zero"};
    return kinds[flags % MAP_KINDS];
}

static int give(struct map *m)
{
    if (m->pending.length == 0) {
        return 0;
    }
    m->totals->rows++;
    m->totals->bytes[m->pending.flags] += m->pending.length;
    return m->row ? m->row(m->arg, &m->pending) : 0;
}

static int add(struct map *m, uint64_t offset, const struct extent *e)
{
    uint32_t flags = e->flags % MAP_KINDS;
    if (m->pending.length > 0 && m->pending.flags == flags) {
        m->pending.length += e->length;
        return 0;
    }
    int r = give(m);
    m->pending = (struct map_row){.offset = offset, .length = e->length, .flags = flags};
    return r;
}

int map_run(struct volume *v, int (*row)(void *arg, const struct map_row *row), void *arg,
            struct map_totals *ret, struct error *err)
{
    struct extent extents[EXTENTS_AT_ONCE];
    struct map m = {.row = row, .arg = arg, .totals = ret};
    uint64_t at = 0;
    *ret = (struct map_totals){0};
    while (at < v->size) {
        fiber_yield(); /* where extents never wait, a cancel must come through all the same */
        if (fiber_canceled()) {
            return error_set(err, ECANCELED, "interrupted");
        }
        int n = volume_extents(v, at, v->size - at, extents, EXTENTS_AT_ONCE, err);
        if (n < 0) {
            return n;
        }
        for (int i = 0; i < n; i++) {
            int r = add(&m, at, &extents[i]);
            if (r < 0) {
                return r;
            }
            at += extents[i].length;
        }
    }
    return give(&m);
}
