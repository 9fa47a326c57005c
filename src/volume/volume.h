/*
 * A block device as everyone above sees it: size, limits, capabilities, operations. A driver is
 * one file that fills in struct volume_ops; a layer is a driver over another volume.
 *
 * Any fiber on any worker may call the volume_...() functions at any time between open and close;
 * a driver opens its lane on a worker when it is first used there. The functions here check ranges
 * and rights, cut requests to the driver's limits, bounce or read-modify-write what is not aligned
 * to limits.min, and fall back (zero -> write, discard -> nothing, cache -> nothing, extents ->
 * one data extent), so drivers see only what they said they can do.
 *
 * What a driver is handed is aligned to limits.min, except that it may end at the volume's size
 * when that is no multiple of it. A driver's zero may answer -ENOTSUP with nothing changed, and so
 * may its discard and cache: the fallback is taken.
 *
 * All return 0 or -errno unless said otherwise, and fill err (which may be NULL) with endpoint and
 * offset. Out of range: -EINVAL for reads, -ENOSPC for writes. len 0 is fine and does nothing.
 * A volume that is open for reading only answers -EPERM to writes. After a failed flush every later
 * one fails with -EIO: a kernel reports a failed write-back once, and what was lost stays lost.
 */
#ifndef VOLUME_VOLUME_H
#define VOLUME_VOLUME_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct volume;
struct volume_state;

#define VOLUME_SIZE_MAX ((uint64_t)INT64_MAX) /* 8 EiB - 1: what off_t can name */
#define VOLUME_TRANSFER_MAX (64u << 20)       /* the largest read or write passed to a driver */

enum volume_cap {
    VOLUME_CAN_WRITE = 1 << 0,
    VOLUME_CAN_FLUSH = 1 << 1,     /* flush means something */
    VOLUME_CAN_FUA = 1 << 2,       /* the driver does FUA itself; else flush is called after */
    VOLUME_CAN_ZERO = 1 << 3,      /* efficient zero */
    VOLUME_CAN_FAST_ZERO = 1 << 4, /* no_fallback is understood */
    VOLUME_CAN_DISCARD = 1 << 5,
    VOLUME_CAN_CACHE = 1 << 6,
    VOLUME_CAN_EXTENTS = 1 << 7,
    VOLUME_IS_COHERENT = 1 << 8, /* lanes see all writes, a flush covers all: MULTI_CONN */
    VOLUME_IS_ROTATIONAL = 1 << 9,
    VOLUME_TAKES_ANY_SIZE = 1 << 10, /* null: as a target it becomes as large as needed */
    VOLUME_READS_ZERO = 1 << 11,     /* freshly made: everything reads as zeros */
    VOLUME_CAN_RESIZE = 1 << 12,
    VOLUME_NO_DATA = 1 << 13, /* null: what is written is not kept */
};

struct volume_limits {
    uint32_t min;       /* power of two, 1..65536: alignment of offset and length */
    uint32_t preferred; /* power of two >= 512 */
    uint32_t max;       /* largest read or write, multiple of min, <= VOLUME_TRANSFER_MAX */
    uint64_t max_zero;  /* largest zero or discard; 0: no limit */
};

/* The bits are those of NBD's base:allocation. */
enum extent_flag { EXTENT_HOLE = 1, EXTENT_ZERO = 2 };

struct extent {
    uint64_t length; /* bytes, > 0 */
    uint32_t flags;  /* EXTENT_... */
};

enum zero_flag {
    ZERO_MAY_UNMAP = 1,   /* holes are welcome */
    ZERO_NO_FALLBACK = 2, /* -ENOTSUP, with nothing changed, unless it is faster than writing */
    ZERO_FUA = 4,
};

enum write_flag { WRITE_FUA = 1 };

/* Where bytes already are. The range may be shorter than asked for. */
struct lent {
    int fd;           /* -1: memory */
    uint64_t offset;  /* in fd */
    const void *data; /* memory */
    uint64_t length;  /* bytes lent, > 0 */
};

struct volume_ops {
    const char *name; /* "file", "nbd", ... */
    int (*read)(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err);
    int (*write)(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                 struct error *err);
    int (*flush)(struct volume *v, struct error *err);
    int (*zero)(struct volume *v, uint64_t off, uint64_t len, unsigned flags, struct error *err);
    int (*discard)(struct volume *v, uint64_t off, uint64_t len, unsigned flags, struct error *err);
    int (*cache)(struct volume *v, uint64_t off, uint64_t len, struct error *err);
    /* extents from off on, consecutive, covering at most len: how many (>= 1), or -errno */
    int (*extents)(struct volume *v, uint64_t off, uint64_t len, struct extent *out, size_t max,
                   struct error *err);
    int (*resize)(struct volume *v, uint64_t size, struct error *err);
    /* what is ready to be sent without waiting for a disk: 0, or -EAGAIN (read it instead) */
    int (*lend)(struct volume *v, uint64_t off, uint64_t len, struct lent *ret);
    /* The lane of this worker, ahead of use; how many lanes can work at once (0: any). */
    unsigned (*lanes)(struct volume *v);
    void (*close)(struct volume *v);
    /* More about it for `info`, as name and value pairs; may be NULL. */
    void (*describe)(struct volume *v, void (*say)(void *arg, const char *key, const char *value),
                     void *arg);
};

/* Drivers put this first in their own struct. All fields are fixed once open has returned, but
 * size (resize). */
struct volume {
    const struct volume_ops *ops;
    char *endpoint;             /* for messages; owned (malloc) */
    struct volume_state *state; /* volume.c's own */
    uint64_t size;              /* bytes */
    unsigned caps;              /* enum volume_cap */
    struct volume_limits limits;
};

int volume_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err);
int volume_write(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                 struct error *err);
int volume_flush(struct volume *v, struct error *err);
int volume_zero(struct volume *v, uint64_t off, uint64_t len, unsigned flags, struct error *err);
int volume_discard(struct volume *v, uint64_t off, uint64_t len, unsigned flags, struct error *err);
int volume_cache(struct volume *v, uint64_t off, uint64_t len, struct error *err);
/* How many extents were written to out: at least one, together at most len, neighbours differ.
 * max >= 1, len > 0. May cover less than len: ask again from where it ended. */
int volume_extents(struct volume *v, uint64_t off, uint64_t len, struct extent *out, size_t max,
                   struct error *err);
int volume_resize(struct volume *v, uint64_t size, struct error *err);
/* 0, or -EAGAIN when there is nothing to lend. The range stays valid while the volume is open; its
 * bytes may show later writes. PENSTOCK_NO_LEND=1 in the environment makes it -EAGAIN always. */
int volume_lend(struct volume *v, uint64_t off, uint64_t len, struct lent *ret);
unsigned volume_lanes(struct volume *v);
/* NULL is fine. Waits for nothing: no call may be in flight. From a fiber. */
void volume_close(struct volume *v);

static inline bool volume_can(const struct volume *v, unsigned cap)
{
    return (v->caps & cap) != 0;
}

/* For drivers. Sets ops and endpoint (copied) and default limits (1, 4096, VOLUME_TRANSFER_MAX). */
int volume_init(struct volume *v, const struct volume_ops *ops, const char *endpoint);
void volume_done(struct volume *v);

#endif
