/*
 * Channels over plain descriptors: sockets and pipes, and whatever else reads and writes (a
 * terminal, /dev/null, a regular file given as standard input).
 *
 * Every call is tried first and waited for only on EAGAIN, so what is ready costs one system call.
 * recv() goes into the caller's own buffer. A descriptor that epoll refuses (files) is read and
 * written on the thread pool, because it may block.
 *
 * A channel whose peer always has something ready would never wait, and so would starve the other
 * fibers of its worker: after UNPARKED_MAX calls in a row it lets them have a turn.
 *
 * No SIGPIPE comes of sockets (MSG_NOSIGNAL); for pipes and sendfile(2), which have no such flag,
 * the signal is ignored by the whole process (core/sigwait.h).
 */
#include "channel/plain.h"

#include "channel/sizing.h"
#include "core/fiber.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNPARKED_MAX 64
/* One sendfile call: a multiple of the page, small enough that others get their turn. */
#define SENDFILE_MAX (4u << 20)
/* iovecs a call; far below IOV_MAX, since nothing here builds longer vectors. */
#define IOV_CALL_MAX 256

static bool is_socket(const struct channel *ch)
{
    return ch->kind != CHANNEL_PIPE && ch->kind != CHANNEL_OTHER;
}

static struct fdwait *wait_of(struct channel *ch, enum fdwait_dir dir)
{
    return dir == FDWAIT_WRITE && ch->wfd != ch->rfd ? &ch->wwait : &ch->rwait;
}

int plain_wait(struct channel *ch, enum fdwait_dir dir)
{
    if (ch->aborted) {
        return -ECONNRESET;
    }
    ch->unparked = 0;
    int r = fdwait_wait(wait_of(ch, dir), dir,
                        dir == FDWAIT_READ ? ch->read_deadline_ns : ch->write_deadline_ns);
    return ch->aborted ? -ECONNRESET : r;
}

/* Before each call that may not wait by itself. */
static int take_turn(struct channel *ch)
{
    if (++ch->unparked >= UNPARKED_MAX) {
        ch->unparked = 0;
        fiber_yield();
    }
    return ch->aborted ? -ECONNRESET : 0;
}

struct file_call {
    int fd;
    bool write;
    const struct iovec *iov;
    int n;
    ssize_t done;
};

static int file_call(void *arg)
{
    struct file_call *c = arg;
    c->done = c->write ? writev(c->fd, c->iov, c->n) : readv(c->fd, c->iov, c->n);
    return c->done < 0 ? -errno : 0;
}

/* On the thread pool: for what is always "ready" and then blocks. */
static ssize_t call_offloaded(int fd, bool write, const struct iovec *iov, int n)
{
    struct file_call c = {.fd = fd, .write = write, .iov = iov, .n = n};
    int r = offload(file_call, &c);
    return r < 0 ? r : c.done;
}

static int stream_errno(int code)
{
    return code == ENOTCONN ? -ECONNRESET : -code; /* shut down or reset before we got to it */
}

ssize_t plain_try_read(struct channel *ch, void *buf, size_t len)
{
    ssize_t n;
    if (ch->rfd < 0) {
        return -EBADF;
    }
    do {
        if (is_socket(ch)) {
            n = recv(ch->rfd, buf, len, MSG_DONTWAIT);
            n = n < 0 ? stream_errno(errno) : n;
        } else if (ch->rwait.pollable) {
            n = read(ch->rfd, buf, len);
            n = n < 0 ? stream_errno(errno) : n;
        } else {
            n = call_offloaded(ch->rfd, false, &(struct iovec){buf, len}, 1);
        }
    } while (n == -EINTR);
    if (n > 0) {
        ch->receives++;
        ch->bytes_in += (uint64_t)n;
    }
    return n;
}

ssize_t plain_try_write(struct channel *ch, const struct iovec *iov, int n_iov, bool more)
{
    union {
        const struct iovec *in;
        struct iovec *out;
    } vec = {.in = iov}; /* msghdr has no const form */
    ssize_t n;
    int n_call = n_iov < IOV_CALL_MAX ? n_iov : IOV_CALL_MAX;
    if (ch->wfd < 0) {
        return -EBADF;
    }
    do {
        if (is_socket(ch)) {
            struct msghdr m = {.msg_iov = vec.out, .msg_iovlen = (size_t)n_call};
            int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more || n_call < n_iov ? MSG_MORE : 0);
            n = sendmsg(ch->wfd, &m, flags);
            n = n < 0 ? stream_errno(errno) : n;
        } else if (wait_of(ch, FDWAIT_WRITE)->pollable) {
            n = writev(ch->wfd, iov, n_call);
            n = n < 0 ? stream_errno(errno) : n;
        } else {
            n = call_offloaded(ch->wfd, true, iov, n_call);
        }
    } while (n == -EINTR);
    if (n > 0) {
        ch->bytes_out += (uint64_t)n;
    }
    return n;
}

static ssize_t plain_read_some(struct channel *ch, void *buf, size_t len)
{
    int r = take_turn(ch);
    while (r == 0) {
        ssize_t n = plain_try_read(ch, buf, len);
        if (n != -EAGAIN) {
            return ch->aborted ? -ECONNRESET : n;
        }
        r = plain_wait(ch, FDWAIT_READ);
    }
    return r;
}

/* Drops what is written, and empty vectors, from the front. */
static void advance(struct iovec **iov, int *n, size_t done)
{
    while (*n > 0 && done >= (*iov)->iov_len) {
        done -= (*iov)->iov_len;
        (*iov)++;
        (*n)--;
    }
    if (*n > 0) {
        (*iov)->iov_base = (char *)(*iov)->iov_base + done;
        (*iov)->iov_len -= done;
    }
}

static int plain_write(struct channel *ch, struct iovec *iov, int n, bool more)
{
    advance(&iov, &n, 0);
    int r = n > 0 ? take_turn(ch) : 0;
    while (r == 0 && n > 0) {
        ssize_t done = plain_try_write(ch, iov, n, more);
        if (done >= 0) {
            advance(&iov, &n, (size_t)done);
        } else if (done == -EAGAIN) {
            r = plain_wait(ch, FDWAIT_WRITE);
        } else {
            r = ch->aborted ? -ECONNRESET : (int)done;
        }
    }
    return r;
}

/* What sendfile(2) can't do (this pair of descriptors) is -EOPNOTSUPP: channel.c copies then. */
static int plain_sendfile(struct channel *ch, int fd, uint64_t offset, size_t len, size_t *sent)
{
    if (!wait_of(ch, FDWAIT_WRITE)->pollable || ch->wfd < 0) {
        return -EOPNOTSUPP;
    }
    if (offset > INT64_MAX || len > (uint64_t)INT64_MAX - offset) {
        return -EINVAL;
    }
    int r = 0;
    while (r == 0 && *sent < len) {
        r = take_turn(ch);
        if (r < 0) {
            break;
        }
        off_t at = (off_t)(offset + *sent);
        size_t want = len - *sent < SENDFILE_MAX ? len - *sent : SENDFILE_MAX;
        ssize_t n = sendfile(ch->wfd, fd, &at, want);
        if (n > 0) {
            *sent += (size_t)n;
            ch->bytes_out += (uint64_t)n;
        } else if (n == 0) {
            r = -ENODATA;
        } else if (errno == EAGAIN) {
            r = plain_wait(ch, FDWAIT_WRITE);
        } else if (errno == EINVAL || errno == ENOSYS) {
            r = -EOPNOTSUPP;
        } else if (errno != EINTR) {
            r = ch->aborted ? -ECONNRESET : stream_errno(errno);
        }
    }
    return r;
}

static int plain_shutdown_write(struct channel *ch)
{
    if (is_socket(ch)) {
        return shutdown(ch->wfd, SHUT_WR) < 0 ? stream_errno(errno) : 0;
    }
    if (ch->wfd >= 0 && ch->wfd != ch->rfd) { /* the end of a pipe is its close */
        fdwait_done(&ch->wwait);
        close(ch->wfd);
        ch->wfd = -1;
    }
    return 0;
}

static void give_back(int fd, bool was_blocking)
{
    int flags = was_blocking ? fcntl(fd, F_GETFL) : -1;
    if (flags >= 0) {
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    }
    close(fd);
}

static void plain_close(struct channel *ch)
{
    if (ch->rfd >= 0) {
        fdwait_done(&ch->rwait);
    }
    if (ch->wfd >= 0 && ch->wfd != ch->rfd) {
        fdwait_done(&ch->wwait);
        give_back(ch->wfd, ch->was_blocking[1]);
    }
    if (ch->rfd >= 0) {
        give_back(ch->rfd, ch->was_blocking[0]);
    }
    free(ch);
}

const struct channel_ops plain_ops = {
    .read_some = plain_read_some,
    .write = plain_write,
    .sendfile = plain_sendfile,
    .shutdown_write = plain_shutdown_write,
    .close = plain_close,
};

static enum channel_kind kind_of(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode)) {
        return CHANNEL_PIPE;
    }
    int domain = 0;
    socklen_t len = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0) {
        return CHANNEL_OTHER;
    }
    switch (domain) {
    case AF_UNIX:
        return CHANNEL_UNIX;
    case AF_VSOCK:
        return CHANNEL_VSOCK;
    default:
        return CHANNEL_TCP;
    }
}

static int set_nonblocking(int fd, bool *was_blocking)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0) {
        return -errno;
    }
    *was_blocking = !(flags & O_NONBLOCK);
    if (*was_blocking && fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        return -errno;
    }
    return fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ? -errno : 0;
}

static void size_buffers(struct channel *ch, uint64_t socket_buffer)
{
    struct sizing s = {0};
    if (is_socket(ch)) {
        sizing_socket(ch->wfd, socket_buffer, &s);
    } else if (ch->kind == CHANNEL_PIPE) {
        struct sizing in;
        if (ch->rfd >= 0) {
            sizing_pipe(ch->rfd, socket_buffer, &in);
            s = in;
        }
        if (ch->wfd >= 0 && ch->wfd != ch->rfd) {
            sizing_pipe(ch->wfd, socket_buffer, &s);
        }
    }
    ch->send_buffer_wanted = s.wanted;
    ch->send_buffer_granted = s.granted;
}

static const char *kind_name(enum channel_kind kind)
{
    static const char *const names[] = {"unix", "tcp", "vsock", "pipe", "file"};
    return names[kind];
}

int plain_open(struct channel *ch, int rfd, int wfd, uint64_t socket_buffer, struct error *err)
{
    ch->ops = &plain_ops;
    ch->rfd = rfd;
    ch->wfd = wfd;
    ch->kind = kind_of(rfd >= 0 ? rfd : wfd);
    ch->read_deadline_ns = ch->write_deadline_ns = DEADLINE_NONE;
    snprintf(ch->peer, sizeof(ch->peer), "%s:%d", kind_name(ch->kind), rfd >= 0 ? rfd : wfd);
    int r = 0;
    if (rfd >= 0) {
        r = set_nonblocking(rfd, &ch->was_blocking[0]);
    }
    if (r == 0 && wfd >= 0 && wfd != rfd) {
        r = set_nonblocking(wfd, &ch->was_blocking[1]);
    }
    if (is_socket(ch)) {
        ch->was_blocking[0] = ch->was_blocking[1] = false;
    }
    if (r == 0 && rfd >= 0) {
        r = fdwait_init(&ch->rwait, rfd);
    }
    if (r == 0 && wfd >= 0 && wfd != rfd) {
        r = fdwait_init(&ch->wwait, wfd);
        if (r < 0 && rfd >= 0) {
            fdwait_done(&ch->rwait);
        }
    }
    if (r < 0) {
        return error_set(err, -r, "descriptor %d can't be used as a channel", rfd >= 0 ? rfd : wfd);
    }
    size_buffers(ch, socket_buffer);
    return 0;
}
