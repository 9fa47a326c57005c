/*
 * The map of a disk: its extents from front to back, neighbours that are alike made one.
 */
#ifndef JOBS_MAP_H
#define JOBS_MAP_H

#include "core/error.h"
#include "volume/volume.h"

#include <stdint.h>

#define MAP_KINDS 4 /* the values of extent flags: data, hole, zero, both */

struct map_row {
    uint64_t offset;
    uint64_t length;
    uint32_t flags; /* EXTENT_... */
};

struct map_totals {
    uint64_t bytes[MAP_KINDS]; /* by flags */
    uint64_t rows;
};

/* "data", "hole", "zero", "hole,zero": the words that nbdinfo has. */
const char *map_kind(uint32_t flags);

/*
 * Calls row(arg) for each row in order (row may be NULL); memory does not grow with their number. 0
 * when all was walked, what row returned if that is below 0, or -errno with err. *ret is always
 * written: what was counted up to then. From a fiber, whose cancel ends it.
 */
int map_run(struct volume *v, int (*row)(void *arg, const struct map_row *row), void *arg,
            struct map_totals *ret, struct error *err);

#endif
