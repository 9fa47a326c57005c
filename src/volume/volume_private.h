/* What the files of volume.c's kind share; drivers do not include this. */
#ifndef VOLUME_VOLUME_PRIVATE_H
#define VOLUME_VOLUME_PRIVATE_H

#include "core/fsync.h"
#include "volume/volume.h"

#include <stdatomic.h>

/*
 * Writes in flight on a volume whose limits.min is above 1. A read-modify-write must not overlap
 * any other write of the same block: it would put back bytes that the other has just replaced.
 * First come, first served; a range waits only for earlier ones that it conflicts with.
 */
struct write_range {
    struct write_range *next;
    uint64_t off;
    uint64_t len;
    bool modify; /* read-modify-write: excludes every other write */
};

struct volume_state {
    struct fmutex mutex; /* guards ranges */
    struct fcond changed;
    struct write_range *first;
    struct write_range *last;
    atomic_bool flush_failed; /* set once, read by every flush */
    bool no_lend;
};

/* 0 or -ECANCELED. The range is widened to limits.min. Nothing to do when min is 1. */
int volume_range_enter(struct volume *v, struct write_range *r, uint64_t off, uint64_t len);
void volume_range_leave(struct volume *v, struct write_range *r);

/* Range and right to write: 0, -EPERM, -ENOSPC. */
int volume_check_write(struct volume *v, uint64_t off, uint64_t len, const char *what,
                       struct error *err);
/* Aligned to limits.min at both ends, or ending at the size. */
bool volume_aligned(const struct volume *v, uint64_t off, uint64_t len);
/* Adds endpoint and offset to what a driver said. */
int volume_failed(struct volume *v, int r, uint64_t off, const char *what, struct error *err);

/* Inside a range that the caller has entered: any alignment. */
int volume_write_pieces(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                        struct error *err);

/* Zeros to write or lend: VOLUME_ZEROS bytes, page-aligned, never written to. */
#define VOLUME_ZEROS (1u << 20)
const void *volume_zeros(void);

#endif
