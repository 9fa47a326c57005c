/* What the file driver's own files share. Others open files with endpoint_open(). */
#ifndef VOLUME_FILE_H
#define VOLUME_FILE_H

#include "core/fsync.h"
#include "volume/volume.h"

#include <stdatomic.h>

/* The data extent that was found last (file_map.c). */
struct file_map {
    struct fmutex mutex; /* one SEEK at a time; guards the rest but generation */
    uint64_t start;      /* of the extent; empty when start == end */
    uint64_t end;
    uint64_t found_ns;      /* when, on CLOCK_MONOTONIC */
    unsigned seen;          /* the generation it was found in */
    atomic_uint generation; /* grows with every zero and discard */
};

struct file {
    struct volume volume;
    int fd;
    int tail_fd;           /* O_DIRECT and a size that is no multiple of limits.min: buffered */
    bool block;            /* a block device */
    bool direct;           /* fd is O_DIRECT */
    bool memory;           /* on tmpfs and the like: what is cached is ready */
    bool writethrough;     /* every write is on stable storage before it is answered */
    uint32_t memory_align; /* direct: of buffers */
    /* What the file system has refused once: set once, read by all. */
    atomic_bool no_punch;
    atomic_bool no_zero_range;
    atomic_bool no_discard;
    atomic_bool no_seek;
    atomic_bool no_cachestat;
    struct file_map map;
};

static inline struct file *file_of(struct volume *v)
{
    return (struct file *)v;
}

/* The largest hole or zero range asked of the kernel at once, so that none takes very long. */
#define FILE_ZERO_MAX (1ull << 30)
#define FILE_ZERO_MAX_BLOCK (128ull << 20) /* may be written out by the kernel */

/* file_zero.c */
int file_zero(struct volume *v, uint64_t off, uint64_t len, unsigned flags, struct error *err);
int file_discard(struct volume *v, uint64_t off, uint64_t len, unsigned flags, struct error *err);

/* file_map.c */
void file_map_init(struct file *f);
void file_map_done(struct file *f);
void file_map_forget(struct file *f); /* a hole may have come into being */
int file_extents(struct volume *v, uint64_t off, uint64_t len, struct extent *out, size_t max,
                 struct error *err);

/* file_lend.c */
int file_lend(struct volume *v, uint64_t off, uint64_t len, struct lent *ret);

/* file_lock.c. Blocks for a moment (network file systems): not on a worker. 0, -EBUSY when somebody
 * else's use of the file forbids ours; a file system without locks is no error. */
int file_lock(int fd, bool write, bool resize, struct error *err);

/* file_open.c: everything that blocks about opening: f's fds, flags, size, limits, caps. */
struct endpoint_options;
int file_open_blocking(struct file *f, const char *path, const struct endpoint_options *o,
                       struct error *err);

/* file_direct.c. Blocks. Sets limits.min and memory_align of an O_DIRECT fd. */
int file_find_alignment(struct file *f, struct error *err);
int file_read_direct(struct file *f, void *buf, size_t len, uint64_t off, size_t *done);
int file_write_direct(struct file *f, const void *buf, size_t len, uint64_t off, int sync);

#endif
