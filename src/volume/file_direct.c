/*
 * O_DIRECT (cache none): what must be aligned to what, and how requests are made so.
 *
 * volume.c aligns offsets and lengths to limits.min, all but the end of a file whose size is no
 * multiple of it: that tail goes through a buffered descriptor of the same file (an O_DIRECT write
 * of a whole block would make the file longer), which the kernel keeps coherent with the other.
 * Buffers that are not aligned as the device wants are copied through one that is, in pieces (not
 * from the pool: who holds a buffer of it and waits for another can wait for ever).
 */
#include "core/fileio.h"
#include "core/size.h"
#include "volume/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOUNCE_MAX ((size_t)256 << 10)
#define ALIGN_MAX 65536u

static bool sound(uint32_t align)
{
    return align >= 1 && align <= ALIGN_MAX && (align & (align - 1)) == 0;
}

/* STATX_DIOALIGN, Linux 6.1. False where the file system does not say. */
static bool ask_statx(struct file *f)
{
    struct statx st;
    if (statx(f->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) < 0 ||
        !(st.stx_mask & STATX_DIOALIGN) || !sound(st.stx_dio_offset_align) ||
        !sound(st.stx_dio_mem_align)) {
        return false;
    }
    f->volume.limits.min = st.stx_dio_offset_align;
    f->memory_align = st.stx_dio_mem_align;
    return true;
}

/* The smallest length that can be read at its own offset. A file shorter than that tells nothing,
 * and 4096 is right for all but devices with larger sectors. */
static int probe(struct file *f, struct error *err)
{
    void *buf;
    if (posix_memalign(&buf, ALIGN_MAX, ALIGN_MAX) != 0) {
        return error_set(err, ENOMEM, "no memory");
    }
    uint32_t found = 0;
    for (uint32_t align = 512; found == 0 && align <= ALIGN_MAX; align *= 2) {
        ssize_t n = pread(f->fd, buf, align, f->volume.size > 2 * (uint64_t)align ? align : 0);
        if (n >= 0) {
            found = align;
        } else if (errno != EINVAL) {
            free(buf);
            return error_set(err, errno, "cannot read from it with O_DIRECT");
        }
    }
    free(buf);
    if (found == 0) {
        return error_set(err, EINVAL, "cannot find out how O_DIRECT is to be aligned");
    }
    f->volume.limits.min = found;
    /* What a length needs is also enough for memory, wherever it is known to differ. */
    f->memory_align = (uint32_t)max_u64(found, 4096);
    if (f->volume.size <= 2 * (uint64_t)ALIGN_MAX) {
        f->volume.limits.min = f->memory_align;
    }
    return 0;
}

int file_find_alignment(struct file *f, struct error *err)
{
    uint32_t at_least = f->block ? f->volume.limits.min : 1;
    if (!ask_statx(f)) {
        int sector = 0;
        if (f->block && ioctl(f->fd, BLKSSZGET, &sector) == 0 && sound((uint32_t)sector)) {
            f->volume.limits.min = (uint32_t)sector;
            f->memory_align = (uint32_t)sector;
        } else {
            int r = probe(f, err);
            if (r < 0) {
                return r;
            }
        }
    }
    struct volume_limits *l = &f->volume.limits;
    l->min = (uint32_t)max_u64(l->min, at_least);
    l->preferred = (uint32_t)max_u64(l->preferred, l->min);
    return 0;
}

static bool aligned_buffer(const struct file *f, const void *buf)
{
    return ((uintptr_t)buf & (f->memory_align - 1)) == 0;
}

static int read_middle(struct file *f, uint8_t *to, size_t len, uint64_t off, size_t *done)
{
    if (aligned_buffer(f, to)) {
        ssize_t n = fileio_read(f->fd, to, len, off);
        *done += n < 0 ? 0 : (size_t)n;
        return n < 0 ? (int)n : 0;
    }
    size_t piece = min_u64(len, BOUNCE_MAX);
    int r = 0;
    void *bounce = aligned_alloc(ALIGN_MAX, BOUNCE_MAX);
    if (!bounce) {
        return -ENOMEM;
    }
    while (len > 0) {
        size_t n = min_u64(len, piece);
        ssize_t got = fileio_read(f->fd, bounce, n, off);
        if (got < 0) {
            r = (int)got;
            break;
        }
        memcpy(to, bounce, (size_t)got);
        *done += (size_t)got;
        if ((size_t)got < n) {
            break;
        }
        to += n;
        off += n;
        len -= n;
    }
    free(bounce);
    return r;
}

int file_read_direct(struct file *f, void *buf, size_t len, uint64_t off, size_t *done)
{
    size_t middle = (size_t)align_down(len, f->volume.limits.min);
    int r = middle > 0 ? read_middle(f, buf, middle, off, done) : 0;
    if (r < 0 || *done < middle || middle == len) {
        return r;
    }
    ssize_t n = fileio_read(f->tail_fd, (uint8_t *)buf + middle, len - middle, off + middle);
    *done += n < 0 ? 0 : (size_t)n;
    return n < 0 ? (int)n : 0;
}

static int write_middle(struct file *f, const uint8_t *from, size_t len, uint64_t off, int sync)
{
    if (aligned_buffer(f, from)) {
        return fileio_write(f->fd, from, len, off, sync);
    }
    size_t piece = min_u64(len, BOUNCE_MAX);
    int r = 0;
    void *bounce = aligned_alloc(ALIGN_MAX, BOUNCE_MAX);
    if (!bounce) {
        return -ENOMEM;
    }
    while (r >= 0 && len > 0) {
        size_t n = min_u64(len, piece);
        memcpy(bounce, from, n);
        r = fileio_write(f->fd, bounce, n, off, sync);
        from += n;
        off += n;
        len -= n;
    }
    free(bounce);
    return r;
}

int file_write_direct(struct file *f, const void *buf, size_t len, uint64_t off, int sync)
{
    size_t middle = (size_t)align_down(len, f->volume.limits.min);
    int r = middle > 0 ? write_middle(f, buf, middle, off, sync) : 0;
    if (r < 0 || middle == len) {
        return r;
    }
    return fileio_write(f->tail_fd, (const uint8_t *)buf + middle, len - middle, off + middle,
                        sync);
}
