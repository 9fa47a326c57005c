/*
 * Which bytes of a READ have arrived: disjoint ranges, so that overlaps and gaps in the chunks of
 * a server are noticed. Pure.
 */
#ifndef NBD_COVERAGE_H
#define NBD_COVERAGE_H

#include <stdint.h>

#define NBD_COVERAGE_INLINE 4
/* Pieces that may be apart from each other at once: 1 MiB of memory, and far more than a server
 * has reason for. */
#define NBD_COVERAGE_MAX 65536

struct nbd_range {
    uint64_t start, end;
};

/* Zeroed: nothing is covered. */
struct nbd_coverage {
    uint64_t covered;       /* bytes */
    uint32_t count, room;   /* ranges, sorted, never touching */
    struct nbd_range *more; /* owned; NULL while the inline ones do */
    struct nbd_range few[NBD_COVERAGE_INLINE];
};

/* Adds start..start+len. 0; -EEXIST when a byte is there already; -E2BIG above NBD_COVERAGE_MAX
 * pieces; -ENOMEM. The caller has checked that the range lies inside the request. len > 0. */
int nbd_coverage_add(struct nbd_coverage *c, uint64_t start, uint64_t len);
void nbd_coverage_done(struct nbd_coverage *c);

#endif
