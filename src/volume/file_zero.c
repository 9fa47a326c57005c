/*
 * Zeros and discards of files and block devices, by fallocate(2) and BLKDISCARD.
 *
 * May the range become a hole: PUNCH_HOLE; else ZERO_RANGE, which keeps the space. Both are fast
 * on a file system that has them. On a block device PUNCH_HOLE is the hardware's own zeroing, and
 * fails where it has none, while ZERO_RANGE writes zeros if it must, so it is no fast zero. What a
 * file system has refused once with EOPNOTSUPP is not asked of it again, and -ENOTSUP sends the
 * caller to his fallback. volume.c cuts long ranges to limits.max_zero.
 */
#include "core/fiber.h"
#include "core/fileio.h"
#include "volume/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

/* Every "not here" that kernels and FUSE servers answer, as -ENOTSUP, remembered. */
static int remember(int r, atomic_bool *refused)
{
    if (r == -EOPNOTSUPP || r == -ENOSYS || r == -ENOTTY || r == -ENODEV) {
        atomic_store_explicit(refused, true, memory_order_relaxed);
        return -ENOTSUP;
    }
    return r;
}

static bool refuses(atomic_bool *refused)
{
    return atomic_load_explicit(refused, memory_order_relaxed);
}

static int punch(struct file *f, uint64_t off, uint64_t len)
{
    if (refuses(&f->no_punch)) {
        return -ENOTSUP;
    }
    return remember(fileio_fallocate(f->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len),
                    &f->no_punch);
}

static int zero_range(struct file *f, uint64_t off, uint64_t len)
{
    if (refuses(&f->no_zero_range)) {
        return -ENOTSUP;
    }
    return remember(fileio_fallocate(f->fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, off, len),
                    &f->no_zero_range);
}

int file_zero(struct volume *v, uint64_t off, uint64_t len, unsigned flags, struct error *err)
{
    struct file *f = file_of(v);
    int r = -ENOTSUP;
    if (flags & ZERO_MAY_UNMAP) {
        r = punch(f, off, len);
    }
    if (r == -ENOTSUP && !(f->block && (flags & ZERO_NO_FALLBACK))) {
        r = zero_range(f, off, len);
    }
    file_map_forget(f);
    if (r == -ENOTSUP) {
        return r;
    }
    if (r < 0) {
        return error_set(err, -r, "cannot zero %llu bytes", (unsigned long long)len);
    }
    if ((flags & ZERO_FUA) || f->writethrough) {
        return volume_flush(v, err);
    }
    return 0;
}

struct discard_job {
    int fd;
    uint64_t range[2];
};

static int discard_blocking(void *arg)
{
    struct discard_job *job = arg;
    return ioctl(job->fd, BLKDISCARD, job->range) < 0 ? -errno : 0;
}

int file_discard(struct volume *v, uint64_t off, uint64_t len, unsigned flags, struct error *err)
{
    struct file *f = file_of(v);
    int r;
    if (!f->block) {
        r = punch(f, off, len);
    } else if (refuses(&f->no_discard)) {
        r = -ENOTSUP;
    } else {
        struct discard_job job = {.fd = f->fd, .range = {off, len}};
        r = remember(offload(discard_blocking, &job), &f->no_discard);
    }
    file_map_forget(f);
    if (r < 0 && r != -ENOTSUP) {
        return error_set(err, -r, "cannot discard %llu bytes", (unsigned long long)len);
    }
    return r;
}
