/*
 * Connecting. Every address of a name is tried in the resolver's order; with a deadline each gets
 * an equal part of what is left, so that one dead address does not use up all of it. The error is
 * that of the last try.
 */
#include "channel/socket.h"

#include "channel/sockaddr.h"
#include "core/fiber.h"
#include "core/worker.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* connect(2) says EAGAIN when a Unix listener's backlog is full, and nothing tells when it isn't
 * any more: ask again after 1 ms, then half as often each time, down to ten times a second. */
#define BACKLOG_RETRY_FIRST_NS 1000000ull
#define BACKLOG_RETRY_LAST_NS 100000000ull

/* After EINPROGRESS: 0 once it is connected. */
static int wait_connected(int fd, uint64_t deadline_ns)
{
    for (;;) {
        int r = fd_wait_once(fd, FDWAIT_WRITE, deadline_ns);
        if (r < 0) {
            return r;
        }
        int code = 0;
        socklen_t len = sizeof(code);
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &len) < 0) {
            return -errno;
        }
        if (code != 0) {
            return -code;
        }
        struct sockaddr_storage peer;
        len = sizeof(peer);
        if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0) {
            return 0;
        }
        if (errno != ENOTCONN) {
            return -errno;
        }
    }
}

static int connect_fd(int fd, const struct sockaddr_item *to, uint64_t deadline_ns)
{
    uint64_t pause = BACKLOG_RETRY_FIRST_NS;
    for (;;) {
        if (connect(fd, (const struct sockaddr *)&to->addr, to->len) == 0 || errno == EISCONN) {
            return 0;
        }
        if (errno == EINPROGRESS || errno == EALREADY || errno == EINTR) {
            return wait_connected(fd, deadline_ns);
        }
        if (errno != EAGAIN) {
            return -errno;
        }
        uint64_t now = worker_now_ns(worker_self());
        if (deadline_ns <= now) {
            return -ETIMEDOUT;
        }
        int r = fiber_sleep_ns(pause < deadline_ns - now ? pause : deadline_ns - now);
        if (r < 0) {
            return r;
        }
        pause = pause * 2 < BACKLOG_RETRY_LAST_NS ? pause * 2 : BACKLOG_RETRY_LAST_NS;
    }
}

/* The descriptor, or -errno. */
static int connect_one(const struct sockaddr_item *to, uint64_t deadline_ns)
{
    int fd = socket(to->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -errno;
    }
    int r = connect_fd(fd, to, deadline_ns);
    if (r < 0) {
        close(fd);
        return r;
    }
    return fd;
}

static uint64_t share_of(uint64_t deadline_ns, int tries_left)
{
    uint64_t now = worker_now_ns(worker_self());
    if (deadline_ns == DEADLINE_NONE || deadline_ns <= now) {
        return deadline_ns;
    }
    return now + (deadline_ns - now) / (uint64_t)tries_left;
}

int socket_connect(const struct address *a, uint64_t socket_buffer, uint64_t deadline_ns,
                   struct channel **ret, struct error *err)
{
    char name[sizeof(a->host) + 16];
    address_format(a, name, sizeof(name));
    int fd = -1;
    if (a->kind == ADDRESS_FD) {
        fd = a->fd;
    } else {
        struct sockaddr_item to[SOCKADDRS_MAX];
        int n = sockaddr_resolve(a, false, to, SOCKADDRS_MAX, err);
        if (n < 0) {
            return n;
        }
        for (int i = 0; i < n && fd < 0 && fd != -ECANCELED; i++) {
            fd = connect_one(&to[i], share_of(deadline_ns, n - i));
        }
        if (fd < 0) {
            return error_set(err, -fd, "can't connect to %s", name);
        }
    }
    int r = channel_adopt(fd, fd, socket_buffer, ret, err);
    if (r < 0) {
        return r;
    }
    snprintf((*ret)->peer, sizeof((*ret)->peer), "%.*s", (int)sizeof((*ret)->peer) - 1, name);
    return 0;
}
