/*
 * Waiting for descriptors. Each struct fdwait is registered once, edge-triggered, for both
 * directions; the events of one look at epoll are all handled before any fiber runs, so that the
 * pointer in the event cannot be stale.
 */
#include "core/fdwait.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

#include "core/worker_impl.h"

static int add(struct fdwait *w)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = w};

    w->pollable = true;
    if (epoll_ctl(w->worker->epoll_fd, EPOLL_CTL_ADD, w->fd, &event) < 0) {
        if (errno != EPERM) {
            return -errno;
        }
        w->pollable = false;
    }
    return 0;
}

int fdwait_init(struct fdwait *w, int fd)
{
    int r;

    assert(worker_current);
    *w = (struct fdwait){.worker = worker_current, .fd = fd};
    r = add(w);
    if (r < 0) {
        *w = (struct fdwait){.fd = -1};
    }
    return r;
}

void fdwait_done(struct fdwait *w)
{
    if (!w->worker) {
        return;
    }
    assert(w->worker == worker_current && !w->waiter[0] && !w->waiter[1]);
    if (w->pollable) {
        epoll_ctl(w->worker->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
    }
    *w = (struct fdwait){.fd = -1};
}

int fdwait_renew(struct fdwait *w, int fd)
{
    assert(w->worker == worker_current);
    if (w->pollable) {
        /* ENOENT, EBADF: the file behind the number is another one, which took the old
         * registration along. */
        epoll_ctl(w->worker->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
    }
    w->fd = fd;
    w->ready[FDWAIT_READ] = w->ready[FDWAIT_WRITE] = false;
    return add(w);
}

void fdwait_event(void *fdwait, uint32_t events)
{
    static const uint32_t wanted[] = {
        [FDWAIT_READ] = EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR,
        [FDWAIT_WRITE] = EPOLLOUT | EPOLLHUP | EPOLLERR,
    };
    struct fdwait *w = fdwait;

    for (unsigned dir = 0; dir < 2; dir++) {
        if (events & wanted[dir]) {
            w->ready[dir] = true;
            if (w->waiter[dir]) {
                fiber_wake(w->waiter[dir]);
            }
        }
    }
}

int fdwait_wait(struct fdwait *w, enum fdwait_dir dir, uint64_t deadline_ns)
{
    int r = 0;

    assert(w->worker == worker_current && fiber_self() && !w->waiter[dir]);
    if (fiber_canceled()) {
        return -ECANCELED;
    }
    if (!w->pollable) {
        return 0;
    }
    while (r == 0 && !w->ready[dir]) {
        w->waiter[dir] = fiber_self();
        r = fiber_park(true, deadline_ns);
        w->waiter[dir] = NULL;
    }
    if (w->ready[dir]) {
        w->ready[dir] = false;
        r = 0;
    }
    return r;
}

static int poll_once(int fd, enum fdwait_dir dir, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = dir == FDWAIT_READ ? POLLIN : POLLOUT};
    int n;

    do {
        int ms = -1;

        if (deadline_ns != DEADLINE_NONE) {
            uint64_t now = monotonic_ns();
            uint64_t left_ms = deadline_ns > now ? (deadline_ns - now) / 1000000 + 1 : 0;

            ms = left_ms > 3600000 ? 3600000 : (int)left_ms;
        }
        n = poll(&p, 1, ms);
    } while ((n < 0 && errno == EINTR) ||
             (n == 0 && (deadline_ns == DEADLINE_NONE || monotonic_ns() < deadline_ns)));
    return n < 0 ? -errno : n == 0 ? -ETIMEDOUT : 0;
}

int fd_wait_once(int fd, enum fdwait_dir dir, uint64_t deadline_ns)
{
    struct fdwait w;
    int r;

    if (!fiber_self()) {
        return poll_once(fd, dir, deadline_ns);
    }
    r = fdwait_init(&w, fd);
    if (r < 0) {
        return r;
    }
    r = fdwait_wait(&w, dir, deadline_ns);
    fdwait_done(&w);
    return r;
}
