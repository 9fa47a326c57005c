/*
 * A store writes with one of three system-level ways, found out when it is opened:
 *
 *   direct asked: pwritev2(RWF_DONTCACHE), where the file system has it; it goes through the page
 *   cache, is written out at once and leaves nothing behind, and it beats O_DIRECT at depth 1 by
 *   half since the write-back has depth and size of its own. Else O_DIRECT, several writes deep.
 *   Else (ramfs) plain writes and a note.
 *
 *   not asked: plain writes.
 *
 * Writes through the page cache take the inode's lock exclusively, so one at a time is as good as
 * many and spares the lock's spinning: a mutex lines them up. What O_DIRECT can't take (an odd
 * tail, an offset off the block) goes through a second, buffered descriptor of the same file.
 */
#include "jobs/store.h"

#include "core/fiber.h"
#include "core/fileio.h"
#include "core/fsync.h"
#include "core/log.h"
#include "core/size.h"
#include "core/worker.h"
#include "jobs/bypass.h"
#include "volume/endpoint.h"
#include "volume/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x00000080
#endif

#define DEPTH_DIRECT 4u /* measured: flat above on a virtio disk, and on memory */
#define DEPTH_CACHED 2u /* one writes while the next is filled; a third only waits for the lock */
#define DEPTH_VOLUME 8u

struct store {
    char *name;
    char *temporary; /* NULL: written in place */
    int fd;          /* buffered descriptor */
    int direct_fd;   /* O_DIRECT descriptor of the same file, or -1 */
    bool owns_fd;
    bool regular;
    bool stream; /* a pipe or character device: strictly in order, no offsets */
    bool fresh;  /* what was never written reads as zeros */
    bool finished;
    bool way_known;
    enum store_way way;
    uint64_t offset;
    uint64_t stream_position;
    uint64_t waited_ns;
    struct volume *volume;
    struct fmutex cached_turn;
    struct fcond stream_moved;
};

const char *store_way_name(enum store_way way)
{
    static const char *const names[] = {"buffered", "dontcache", "o_direct", "volume"};
    return names[way];
}

enum store_way store_way(const struct store *s)
{
    return s->way;
}

unsigned store_depth(const struct store *s)
{
    switch (s->way) {
    case STORE_DIRECT:
        return DEPTH_DIRECT;
    case STORE_VOLUME:
        return DEPTH_VOLUME;
    default:
        return DEPTH_CACHED;
    }
}

size_t store_first_block(const struct store *s)
{
    return STORE_BLOCK - (size_t)(s->offset % STORE_BLOCK);
}

uint64_t store_waited_ns(const struct store *s)
{
    return s->waited_ns;
}

/* ---- opening ---- */

static int open_temporary(struct store *s, const char *path, const struct stat *old,
                          struct error *err)
{
    char folder[PATH_MAX], base[PATH_MAX];
    if (snprintf(folder, sizeof(folder), "%s", path) >= (int)sizeof(folder) ||
        snprintf(base, sizeof(base), "%s", path) >= (int)sizeof(base)) {
        return error_set(err, ENAMETOOLONG, "the path is too long");
    }
    if (asprintf(&s->temporary, "%s/.%s.XXXXXX", dirname(folder), basename(base)) < 0) {
        s->temporary = NULL;
        return error_set(err, ENOMEM, "out of memory");
    }
    s->fd = mkostemp(s->temporary, O_CLOEXEC);
    if (s->fd < 0) {
        int code = errno;
        free(s->temporary);
        s->temporary = NULL;
        return error_set(err, code, "a temporary file can't be made beside it");
    }
    s->fresh = true;
    if (old && (fchmod(s->fd, old->st_mode & 07777) != 0 ||
                fchown(s->fd, old->st_uid, old->st_gid) != 0)) {
        log_warning("%s: owner or mode of the old file can't be kept: %s", path, strerror(errno));
    }
    return 0;
}

/* The final name behind symbolic links, so that the rename replaces the file and not the link. */
static char *resolve(const char *path)
{
    char *real = realpath(path, NULL);
    return real ? real : strdup(path);
}

static int open_path(struct store *s, const struct store_options *o, struct error *err)
{
    struct stat st;
    bool exists = stat(o->name, &st) == 0;
    bool in_place = o->in_place || o->offset > 0 || (exists && !S_ISREG(st.st_mode));
    if (exists && S_ISDIR(st.st_mode)) {
        return error_set(err, EISDIR, "it can't be opened");
    }
    if (exists && access(o->name, W_OK) != 0) {
        return error_set(err, errno, "it can't be written");
    }
    if (!in_place) {
        free(s->name);
        s->name = resolve(o->name);
        return s->name ? open_temporary(s, s->name, exists ? &st : NULL, err)
                       : error_set(err, ENOMEM, "out of memory");
    }
    s->fd = open(o->name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (s->fd < 0) {
        return error_set(err, errno, "it can't be opened for writing");
    }
    s->fresh = !exists;
    return 0;
}

static int look_at_fd(struct store *s, const struct store_options *o, struct error *err)
{
    struct stat st;
    if (fstat(s->fd, &st) != 0) {
        return error_set(err, errno, "it can't be looked at");
    }
    s->regular = S_ISREG(st.st_mode);
    s->stream = !s->regular && !S_ISBLK(st.st_mode);
    if (s->stream && o->offset > 0) {
        return error_set(err, ESPIPE, "an offset makes no sense in a pipe or character device");
    }
    if (s->regular && st.st_size == 0) {
        s->fresh = true;
    }
    if (o->preallocate && s->regular) {
        int r = fileio_fallocate(s->fd, FALLOC_FL_KEEP_SIZE, o->offset, o->preallocate);
        if (r < 0 && r != -EOPNOTSUPP && r != -ENOSYS) {
            return error_set(err, -r, "space for it can't be reserved");
        }
    }
    return 0;
}

/*
 * Whether RWF_DONTCACHE is taken. A write of no bytes returns before the flag is looked at, so a
 * byte is read, through a descriptor of its own (ours may be write-only). Where that can't be
 * opened the answer is no.
 */
static bool dontcache_works(int fd)
{
    char byte;
    struct iovec iov = {&byte, 1};
    int reader = bypass_reopen(fd, O_RDONLY, false);
    bool works = reader >= 0 && preadv2(reader, &iov, 1, 0, RWF_DONTCACHE) >= 0;
    if (reader >= 0) {
        close(reader);
    }
    return works;
}

static void choose_way(struct store *s, bool direct)
{
    s->way = STORE_BUFFERED;
    if (!direct || s->stream) {
        return;
    }
    if (dontcache_works(s->fd)) {
        s->way = STORE_DONTCACHE;
        return;
    }
    s->direct_fd = bypass_reopen(s->fd, O_WRONLY, true);
    if (s->direct_fd >= 0) {
        s->way = STORE_DIRECT;
        return;
    }
    log_warning("%s: the file system can't bypass the page cache: plain writes instead", s->name);
}

static bool is_path(const char *name)
{
    struct stat st;
    return stat(name, &st) == 0 || !strchr(name, ':') || strchr(name, '/') < strchr(name, ':');
}

static int open_volume(struct store *s, const struct store_options *o, struct error *err)
{
    struct endpoint_options eo;
    endpoint_options_init(&eo);
    eo.writable = true;
    eo.raw = true;
    s->way = STORE_VOLUME;
    return endpoint_open(o->name, &eo, &s->volume, err);
}

int store_open(const struct store_options *o, struct store **ret, struct error *err)
{
    struct store *s = calloc(1, sizeof(*s));
    if (!s) {
        return error_set(err, ENOMEM, "out of memory");
    }
    s->fd = s->direct_fd = -1;
    s->offset = o->offset;
    fmutex_init(&s->cached_turn);
    fcond_init(&s->stream_moved);
    s->name = strdup(o->name);
    int r = s->name ? 0 : error_set(err, ENOMEM, "out of memory");
    if (r == 0 && o->fd >= 0) {
        s->fd = bypass_cached(o->fd, O_WRONLY, &s->owns_fd);
        r = s->fd < 0 ? error_set(err, -s->fd, "O_DIRECT can't be switched off") : 0;
    } else if (r == 0 && is_path(o->name)) {
        s->owns_fd = true;
        r = open_path(s, o, err);
    } else if (r == 0) {
        r = open_volume(s, o, err);
    }
    if (r == 0 && s->fd >= 0) {
        r = look_at_fd(s, o, err);
    }
    if (r == 0 && s->fd >= 0) {
        choose_way(s, o->direct || (o->fd >= 0 && bypass_is_set(o->fd)));
    }
    if (r < 0) {
        error_endpoint(err, o->name);
        store_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

/* ---- writing ---- */

static int write_failed(struct store *s, int r, uint64_t offset, struct error *err)
{
    error_set(err, -r, "it can't be written");
    error_endpoint(err, s->name);
    error_at(err, offset);
    return r;
}

/* O_DIRECT takes the aligned middle; head and tail go through the page cache. */
static int write_direct(struct store *s, const char *buf, size_t len, uint64_t at)
{
    if ((uintptr_t)buf % BYPASS_ALIGN || at % BYPASS_ALIGN) {
        return fileio_write(s->fd, buf, len, at, 0);
    }
    size_t aligned = (size_t)align_down(len, BYPASS_ALIGN);
    int r = aligned ? fileio_write(s->direct_fd, buf, aligned, at, 0) : 0;
    if (r == 0 && aligned < len) {
        r = fileio_write(s->fd, buf + aligned, len - aligned, at + aligned, 0);
    }
    return r;
}

static int write_cached(struct store *s, const char *buf, size_t len, uint64_t at)
{
    fmutex_lock(&s->cached_turn);
    int flags = s->way == STORE_DONTCACHE ? RWF_DONTCACHE : 0;
    int r = fileio_write(s->fd, buf, len, at, flags);
    fmutex_unlock(&s->cached_turn);
    return r;
}

struct stream_write {
    int fd;
    const char *buf;
    size_t len;
};

static int run_stream_write(void *arg)
{
    const struct stream_write *w = arg;
    size_t done = 0;
    while (done < w->len) {
        ssize_t n = write(w->fd, w->buf + done, w->len - done);
        if (n < 0 && errno != EINTR) {
            return -errno;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* A pipe or character device: each write waits until all before it are out. */
static int write_stream(struct store *s, const char *buf, size_t len, uint64_t at)
{
    int r = 0;
    fmutex_lock(&s->cached_turn);
    while (r == 0 && s->stream_position != at) {
        r = fcond_wait(&s->stream_moved, &s->cached_turn, DEADLINE_NONE);
    }
    if (r == 0) {
        struct stream_write w = {s->fd, buf, len};
        r = offload(run_stream_write, &w);
        s->stream_position += r == 0 ? len : 0; /* who comes after a failure waits to be canceled */
    }
    fcond_broadcast(&s->stream_moved);
    fmutex_unlock(&s->cached_turn);
    return r;
}

int store_write(struct store *s, const void *buf, size_t len, uint64_t offset, struct error *err)
{
    uint64_t at = s->offset + offset;
    uint64_t start = worker_now_ns(worker_self());
    int r;
    if (s->way == STORE_VOLUME) {
        r = volume_write(s->volume, buf, len, at, 0, err);
    } else if (s->stream) {
        r = write_stream(s, buf, len, at);
    } else if (s->way == STORE_DIRECT) {
        r = write_direct(s, buf, len, at);
    } else {
        r = write_cached(s, buf, len, at);
    }
    s->waited_ns += worker_now_ns(worker_self()) - start;
    return r < 0 ? write_failed(s, r, at, err) : 0;
}

int store_cached_fd(const struct store *s, int *flags)
{
    *flags = s->way == STORE_DONTCACHE ? RWF_DONTCACHE : 0;
    bool cached = !s->stream && (s->way == STORE_BUFFERED || s->way == STORE_DONTCACHE);
    return cached ? s->fd : -1;
}

static int write_zeros(struct store *s, uint64_t length, uint64_t offset, struct error *err)
{
    static const char zeros[STORE_BLOCK] __attribute__((aligned(4096)));
    int r = 0;
    while (r == 0 && length > 0) {
        size_t n = (size_t)min_u64(length, sizeof(zeros));
        r = store_write(s, zeros, n, offset, err);
        offset += n;
        length -= n;
    }
    return r;
}

int store_zero(struct store *s, uint64_t length, uint64_t offset, struct error *err)
{
    uint64_t at = s->offset + offset;
    if (s->way == STORE_VOLUME) {
        return volume_zero(s->volume, at, length, ZERO_MAY_UNMAP, err);
    }
    if (s->regular && s->fresh) {
        return 0;
    }
    if (s->regular) {
        int r = fileio_fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, length);
        if (r == 0) {
            return 0;
        }
        if (r != -EOPNOTSUPP && r != -ENOSYS) {
            return write_failed(s, r, at, err);
        }
    }
    return write_zeros(s, length, offset, err);
}

/* ---- the end ---- */

/* EINVAL and EROFS: something that can't be synced (a pipe, /dev/null) is as safe as it gets. */
static int sync_fd(int fd)
{
    int r = fileio_fdatasync(fd);
    return r == -EINVAL || r == -EROFS ? 0 : r;
}

static int sync_folder(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", path);
    int fd = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return 0; /* a folder that may be written but not read */
    }
    int r = fileio_fsync(fd);
    close(fd);
    return r == -EINVAL || r == -EROFS ? 0 : r;
}

static int check_length(struct store *s, uint64_t end)
{
    struct stat st;
    if (fstat(s->fd, &st) != 0) {
        return -errno;
    }
    return (uint64_t)st.st_size == end ? 0 : -EIO;
}

static int finish_file(struct store *s, uint64_t end, struct error *err)
{
    if (s->regular && ftruncate(s->fd, (off_t)end) != 0) {
        return error_set(err, errno, "its length can't be set to %" PRIu64, end);
    }
    int r = sync_fd(s->fd);
    if (r < 0) {
        return error_set(err, -r, "it can't be made durable");
    }
    if (s->regular && (r = check_length(s, end)) < 0) {
        return error_set(err, -r, "its length is not the %" PRIu64 " bytes written", end);
    }
    if (!s->temporary) {
        return 0;
    }
    if (rename(s->temporary, s->name) != 0) {
        return error_set(err, errno, "it can't be given its name");
    }
    free(s->temporary);
    s->temporary = NULL;
    r = sync_folder(s->name);
    return r < 0 ? error_set(err, -r, "its folder can't be made durable") : 0;
}

int store_finish(struct store *s, uint64_t length, struct error *err)
{
    int r = s->way == STORE_VOLUME ? volume_flush(s->volume, err)
                                   : finish_file(s, s->offset + length, err);
    error_endpoint(err, s->name);
    s->finished = r == 0;
    return r;
}

void store_free(struct store *s)
{
    if (!s) {
        return;
    }
    if (s->temporary) {
        unlink(s->temporary);
        free(s->temporary);
    }
    if (s->direct_fd >= 0) {
        close(s->direct_fd);
    }
    if (s->owns_fd && s->fd >= 0) {
        close(s->fd);
    }
    volume_close(s->volume);
    fcond_done(&s->stream_moved);
    fmutex_done(&s->cached_turn);
    free(s->name);
    free(s);
}
