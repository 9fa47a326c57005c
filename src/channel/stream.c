/*
 * Streams over descriptors that we share with others.
 *
 * The non-blocking try is made per call instead of per descriptor: RWF_NOWAIT for pipes (kernels
 * from 6.4 on), MSG_DONTWAIT for sockets. Where the kernel has no such thing for the descriptor,
 * reads wait for readiness (a pipe that is readable gives what it has without blocking) and writes
 * go to the thread pool, since a blocking pipe takes all of a write before it returns.
 */
#include "channel/stream.h"

#include "core/fiber.h"
#include "core/fileio.h"
#include "core/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* One write through the thread pool: small enough that cancellation is noticed in between. */
#define POOLED_WRITE_MAX (64u << 10)
#define SPLICE_MAX (1u << 20)

static enum stream_kind kind_of(const struct stat *st)
{
    if (S_ISFIFO(st->st_mode)) {
        return STREAM_PIPE;
    }
    if (S_ISSOCK(st->st_mode)) {
        return STREAM_SOCKET;
    }
    return S_ISREG(st->st_mode) || S_ISBLK(st->st_mode) ? STREAM_FILE : STREAM_OTHER;
}

int stream_open(struct stream *s, int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return -errno;
    }
    *s = (struct stream){.fd = fd, .kind = kind_of(&st)};
    if (s->kind == STREAM_FILE) {
        off_t now = lseek(fd, 0, SEEK_CUR);
        if (now < 0) {
            return -errno;
        }
        s->position = (uint64_t)now;
        return 0;
    }
    s->no_nowait = s->kind == STREAM_OTHER;
    return fdwait_init(&s->wait, fd);
}

void stream_done(struct stream *s)
{
    if (s->kind == STREAM_FILE && s->fd >= 0 && s->position > 0) {
        lseek(s->fd, (off_t)s->position, SEEK_SET);
    }
    if (s->wait.worker) {
        fdwait_done(&s->wait);
    }
}

static int wait_for(struct stream *s, enum fdwait_dir dir)
{
    struct worker *w = worker_self();
    uint64_t start = worker_now_ns(w);
    int r = fdwait_wait(&s->wait, dir, DEADLINE_NONE);
    s->waited_ns += worker_now_ns(w) - start;
    return r;
}

/* Level-triggered, unlike fdwait: whether a blocking call on the descriptor would return now. */
static bool ready_now(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, 0) > 0;
}

static ssize_t file_read(struct stream *s, void *buf, size_t len)
{
    ssize_t n = fileio_read(s->fd, buf, len, s->position);
    if (n > 0) {
        s->position += (uint64_t)n;
    }
    return n;
}

ssize_t stream_try_read(struct stream *s, void *buf, size_t len)
{
    if (s->kind == STREAM_FILE) {
        return file_read(s, buf, len);
    }
    if (s->kind == STREAM_SOCKET) {
        ssize_t n = recv(s->fd, buf, len, MSG_DONTWAIT);
        return n < 0 ? -errno : n;
    }
    if (!s->no_nowait) {
        struct iovec iov = {buf, len};
        ssize_t n = preadv2(s->fd, &iov, 1, -1, RWF_NOWAIT);
        if (n >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS)) {
            return n < 0 ? -errno : n;
        }
        s->no_nowait = true;
    }
    if (!ready_now(s->fd, POLLIN)) {
        return -EAGAIN;
    }
    ssize_t n = read(s->fd, buf, len);
    return n < 0 ? -errno : n;
}

int stream_wait_readable(struct stream *s)
{
    return s->kind == STREAM_FILE ? 0 : wait_for(s, FDWAIT_READ);
}

ssize_t stream_read_some(struct stream *s, void *buf, size_t len)
{
    if (s->kind == STREAM_FILE) {
        return file_read(s, buf, len);
    }
    for (;;) {
        if (fiber_canceled()) {
            return -ECANCELED;
        }
        ssize_t n = stream_try_read(s, buf, len);
        if (n == -EINTR) {
            continue;
        }
        if (n != -EAGAIN) {
            return n;
        }
        int r = stream_wait_readable(s);
        if (r < 0) {
            return r;
        }
    }
}

ssize_t stream_read(struct stream *s, void *buf, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = stream_read_some(s, (char *)buf + done, len - done);
        if (n < 0) {
            return n;
        }
        if (n == 0) {
            break;
        }
        done += (size_t)n;
    }
    return (ssize_t)done;
}

struct pooled_write {
    int fd;
    const void *buf;
    size_t len;
};

static int run_pooled_write(void *arg)
{
    const struct pooled_write *w = arg;
    ssize_t n = write(w->fd, w->buf, w->len);
    return n < 0 ? -errno : (int)n;
}

static ssize_t try_write(struct stream *s, const void *buf, size_t len)
{
    if (s->kind == STREAM_SOCKET) {
        ssize_t n = send(s->fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        return n < 0 ? -errno : n;
    }
    if (!s->no_nowait) {
        struct iovec iov = {(void *)(uintptr_t)buf, len};
        ssize_t n = pwritev2(s->fd, &iov, 1, -1, RWF_NOWAIT);
        if (n >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS)) {
            return n < 0 ? -errno : n;
        }
        s->no_nowait = true;
    }
    if (!ready_now(s->fd, POLLOUT)) {
        return -EAGAIN;
    }
    struct pooled_write w = {s->fd, buf, len < POOLED_WRITE_MAX ? len : POOLED_WRITE_MAX};
    return offload(run_pooled_write, &w);
}

static int file_write(struct stream *s, const void *buf, size_t len)
{
    int r = fileio_write(s->fd, buf, len, s->position, 0);
    if (r == 0) {
        s->position += len;
    }
    return r;
}

int stream_write(struct stream *s, const void *buf, size_t len)
{
    if (s->kind == STREAM_FILE) {
        return file_write(s, buf, len);
    }
    size_t done = 0;
    while (done < len) {
        if (fiber_canceled()) {
            return -ECANCELED;
        }
        ssize_t n = try_write(s, (const char *)buf + done, len - done);
        if (n > 0) {
            done += (size_t)n;
        } else if (n == -EAGAIN) {
            int r = wait_for(s, FDWAIT_WRITE);
            if (r < 0) {
                return r;
            }
        } else if (n != -EINTR) {
            return n < 0 ? (int)n : -EIO;
        }
    }
    return 0;
}

struct pooled_splice {
    int from, to;
    loff_t offset;
    size_t len;
};

static int run_pooled_splice(void *arg)
{
    struct pooled_splice *p = arg;
    ssize_t n = splice(p->from, &p->offset, p->to, NULL, p->len,
                       SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE);
    return n < 0 ? -errno : (int)n;
}

ssize_t stream_splice_from(struct stream *s, int file_fd, uint64_t *offset, size_t len)
{
    if (s->kind != STREAM_PIPE) {
        return -EINVAL;
    }
    for (;;) {
        if (fiber_canceled()) {
            return -ECANCELED;
        }
        struct pooled_splice p = {file_fd, s->fd, (loff_t)*offset,
                                  len < SPLICE_MAX ? len : SPLICE_MAX};
        int n = offload(run_pooled_splice, &p);
        if (n >= 0) {
            *offset += (uint64_t)n;
            return n;
        }
        if (n == -EAGAIN) {
            n = wait_for(s, FDWAIT_WRITE);
            if (n < 0) {
                return n;
            }
        } else if (n != -EINTR) {
            return n;
        }
    }
}
