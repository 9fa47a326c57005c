/*
 * Files and block devices: PATH or file:PATH.
 *
 * Reads and writes go through core/fileio.h (io_uring or threads), positional and exact. Three ways
 * to cache: write-back (the page cache, FUA by RWF_DSYNC), none (O_DIRECT: file_direct.c), and
 * write-through (RWF_DSYNC on each write). Everything else that blocks (open, truncate, SEEK_DATA,
 * discards, close) runs on the thread pool. Its parts: file_open.c opens, file_lock.c keeps others
 * out, file_zero.c zeros and discards, file_map.c finds holes, file_lend.c lends the page cache.
 *
 * The size is what it was when the file was opened: never rounded, never grown by a write. A file
 * that shrinks under us is an I/O error where bytes are missing, and one that grows is not noticed.
 */
#include "volume/file.h"

#include "core/fiber.h"
#include "core/fileio.h"
#include "core/size.h"
#include "volume/drivers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int file_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err)
{
    struct file *f = file_of(v);
    size_t done = 0;
    int r = 0;
    if (f->direct) {
        r = file_read_direct(f, buf, len, off, &done);
    } else {
        ssize_t n = fileio_read(f->fd, buf, len, off);
        r = n < 0 ? (int)n : 0;
        done = n < 0 ? 0 : (size_t)n;
    }
    if (r < 0) {
        return error_set(err, -r, "cannot read %zu bytes", len);
    }
    if (done < len) {
        error_set(err, EIO, "the file ends here: it was %llu bytes long when it was opened",
                  (unsigned long long)v->size);
        error_at(err, off + done);
        return -EIO;
    }
    return 0;
}

static int file_write(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                      struct error *err)
{
    struct file *f = file_of(v);
    int sync = (flags & WRITE_FUA) || f->writethrough ? RWF_DSYNC : 0;
    int r;
    if (f->direct) {
        r = file_write_direct(f, buf, len, off, sync);
    } else {
        r = fileio_write(f->fd, buf, len, off, sync);
    }
    return r < 0 ? error_set(err, -r, "cannot write %zu bytes", len) : 0;
}

static int file_flush(struct volume *v, struct error *err)
{
    int r = fileio_fdatasync(file_of(v)->fd);
    return r < 0 ? error_set(err, -r, "cannot flush the file") : 0;
}

struct range_job {
    int fd;
    uint64_t off;
    uint64_t len;
};

static int cache_blocking(void *arg)
{
    struct range_job *job = arg;
    return -posix_fadvise(job->fd, (off_t)job->off, (off_t)job->len, POSIX_FADV_WILLNEED);
}

static int file_cache(struct volume *v, uint64_t off, uint64_t len, struct error *err)
{
    struct range_job job = {.fd = file_of(v)->fd, .off = off, .len = len};
    int r = offload(cache_blocking, &job);
    return r == -EINVAL || r == -ENOSYS ? -ENOTSUP : r;
}

static int resize_blocking(void *arg)
{
    struct range_job *job = arg;
    return ftruncate(job->fd, (off_t)job->len) < 0 ? -errno : 0;
}

static int file_resize(struct volume *v, uint64_t size, struct error *err)
{
    struct file *f = file_of(v);
    struct range_job job = {.fd = f->fd, .len = size};
    int r = offload(resize_blocking, &job);
    file_map_forget(f);
    if (r < 0) {
        return error_set(err, -r, "cannot set its size to %llu bytes", (unsigned long long)size);
    }
    v->size = size;
    return 0;
}

static int close_blocking(void *arg)
{
    struct file *f = arg;
    if (f->tail_fd >= 0) {
        close(f->tail_fd);
    }
    if (f->fd >= 0) {
        close(f->fd);
    }
    return 0;
}

static void file_close(struct volume *v)
{
    struct file *f = file_of(v);
    offload(close_blocking, f);
    file_map_done(f);
    volume_done(v);
    free(f);
}

static void file_describe(struct volume *v,
                          void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    struct file *f = file_of(v);
    char text[32];
    say(arg, "type", f->block ? "block device" : "file");
    say(arg, "cache", f->direct ? "none" : f->writethrough ? "writethrough" : "writeback");
    if (f->direct) {
        snprintf(text, sizeof(text), "%u", f->memory_align);
        say(arg, "memory alignment", text);
    }
}

static const struct volume_ops file_ops = {
    .name = "file",
    .read = file_read,
    .write = file_write,
    .flush = file_flush,
    .zero = file_zero,
    .discard = file_discard,
    .cache = file_cache,
    .extents = file_extents,
    .resize = file_resize,
    .lend = file_lend,
    .close = file_close,
    .describe = file_describe,
};

struct open_job {
    struct file *file;
    const char *path;
    const struct endpoint_options *options;
    struct error *err;
};

static int open_blocking(void *arg)
{
    struct open_job *job = arg;
    return file_open_blocking(job->file, job->path, job->options, job->err);
}

int file_open(const char *name, const struct endpoint_options *o, struct volume **ret,
              struct error *err)
{
    const char *path = strncmp(name, "file:", 5) == 0 ? name + 5 : name;
    if (path[0] == '\0') {
        return error_set(err, EINVAL, "an empty path");
    }
    struct file *f = calloc(1, sizeof(*f));
    if (!f || volume_init(&f->volume, &file_ops, name) < 0) {
        free(f);
        return error_set(err, ENOMEM, "no memory");
    }
    f->fd = -1;
    f->tail_fd = -1;
    file_map_init(f);
    struct open_job job = {.file = f, .path = path, .options = o, .err = err};
    int r = offload(open_blocking, &job);
    if (r < 0) {
        file_close(&f->volume);
        return r;
    }
    *ret = &f->volume;
    return 0;
}
