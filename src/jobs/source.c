/*
 * A source is a descriptor or a volume.
 *
 * O_DIRECT reads need buffer, offset and length aligned: the aligned part of a read goes through
 * the O_DIRECT descriptor, what is left (an odd offset, the tail of the file) through a buffered
 * one, whose pages are dropped at the end.
 */
#include "jobs/source.h"

#include "core/fiber.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/size.h"
#include "jobs/bypass.h"
#include "volume/endpoint.h"
#include "volume/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/fs.h>

struct source {
    char *name;
    int fd;
    int direct_fd; /* -1: not bypassed */
    bool owns_fd;
    uint64_t offset;
    uint64_t size; /* from offset on */
    struct volume *volume;
};

static bool is_path(const char *name)
{
    struct stat st;
    return stat(name, &st) == 0 || !strchr(name, ':');
}

static int size_of_fd(int fd, uint64_t *ret)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return -errno;
    }
    if (S_ISREG(st.st_mode)) {
        *ret = (uint64_t)st.st_size;
        return 0;
    }
    if (S_ISBLK(st.st_mode)) {
        return ioctl(fd, BLKGETSIZE64, ret) == 0 ? 0 : -errno;
    }
    return S_ISDIR(st.st_mode) ? -EISDIR : -ESPIPE;
}

static void open_direct(struct source *s)
{
    s->direct_fd = bypass_reopen(s->fd, O_RDONLY, true);
    if (s->direct_fd < 0) {
        log_warning("%s: the file system can't bypass the page cache: plain reads instead",
                    s->name);
    }
}

static int open_file(struct source *s, const struct source_options *o, struct error *err)
{
    if (o->fd >= 0) {
        s->fd = bypass_cached(o->fd, O_RDONLY, &s->owns_fd);
        if (s->fd < 0) {
            return error_set(err, -s->fd, "O_DIRECT can't be switched off");
        }
    } else {
        s->fd = open(o->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (s->fd < 0) {
            return error_set(err, errno, "it can't be opened");
        }
        s->owns_fd = true;
    }
    int r = size_of_fd(s->fd, &s->size);
    if (r < 0) {
        return error_set(err, -r, "it is no file or block device");
    }
    if (o->direct || (o->fd >= 0 && bypass_is_set(o->fd))) {
        open_direct(s);
    }
    return 0;
}

static int open_volume(struct source *s, const struct source_options *o, struct error *err)
{
    struct endpoint_options eo;
    endpoint_options_init(&eo);
    int r = endpoint_open(o->name, &eo, &s->volume, err);
    s->size = r == 0 ? s->volume->size : 0;
    return r;
}

int source_open(const struct source_options *o, struct source **ret, struct error *err)
{
    struct source *s = calloc(1, sizeof(*s));
    if (!s) {
        return error_set(err, ENOMEM, "out of memory");
    }
    s->fd = s->direct_fd = -1;
    s->offset = o->offset;
    s->name = strdup(o->name);
    int r = s->name ? 0 : error_set(err, ENOMEM, "out of memory");
    if (r == 0) {
        r = o->fd >= 0 || is_path(o->name) ? open_file(s, o, err) : open_volume(s, o, err);
    }
    if (r == 0 && o->offset > s->size) {
        r = error_set(err, EINVAL, "it has only %" PRIu64 " bytes, less than the offset", s->size);
    }
    if (r < 0) {
        error_endpoint(err, o->name);
        source_close(s);
        return r;
    }
    s->size -= o->offset;
    *ret = s;
    return 0;
}

void source_close(struct source *s)
{
    if (!s) {
        return;
    }
    if (s->direct_fd >= 0) {
        posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
        close(s->direct_fd);
    }
    if (s->owns_fd) {
        close(s->fd);
    }
    volume_close(s->volume);
    free(s->name);
    free(s);
}

uint64_t source_size(const struct source *s)
{
    return s->size;
}

int source_fd(const struct source *s)
{
    return s->fd;
}

bool source_is_direct(const struct source *s)
{
    return s->direct_fd >= 0;
}

bool source_is_deep(const struct source *s)
{
    return s->volume || s->direct_fd >= 0;
}

const char *source_way(const struct source *s)
{
    return s->volume ? "volume" : s->direct_fd >= 0 ? "o_direct" : "buffered";
}

static ssize_t read_file(const struct source *s, uint8_t *buf, size_t len, uint64_t at)
{
    bool aligned = s->direct_fd >= 0 && at % BYPASS_ALIGN == 0 &&
                   (uintptr_t)buf % BYPASS_ALIGN == 0;
    size_t direct = aligned ? (size_t)align_down(len, BYPASS_ALIGN) : 0;
    ssize_t n = direct ? fileio_read(s->direct_fd, buf, direct, at) : 0;
    if (n < 0 || (size_t)n < direct || direct == len) {
        return n;
    }
    ssize_t rest = fileio_read(s->fd, buf + direct, len - direct, at + direct);
    return rest < 0 ? rest : n + rest;
}

int source_read(struct source *s, void *buf, size_t len, uint64_t offset, struct error *err)
{
    uint64_t at = s->offset + offset;
    if (s->volume) {
        return volume_read(s->volume, buf, len, at, err);
    }
    ssize_t n = read_file(s, buf, len, at);
    if (n == (ssize_t)len) {
        return 0;
    }
    error_set(err, n < 0 ? (int)-n : EIO,
              n < 0 ? "it can't be read" : "it became shorter while it was read");
    error_endpoint(err, s->name);
    error_at(err, at);
    return n < 0 ? (int)n : -EIO;
}
