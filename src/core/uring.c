/*
 * io_uring for file I/O.
 *
 * Bounded so that nothing can overflow: at most RING_DEPTH requests are in the ring, handed in or
 * not, which is the size of the submission queue, and the completion queue is twice that. More
 * requests wait in a list, first come, first served. What the kernel does not take at once
 * (EAGAIN, EBUSY, EINTR, fewer than offered) stays in the submission queue and is offered again.
 *
 * The set-up is tried with the flags that save interrupts and locks (SINGLE_ISSUER of Linux 6.0,
 * COOP_TASKRUN of 5.19), then without. Completions are signalled through an eventfd in the
 * worker's epoll and otherwise read from memory.
 */
#include "core/uring.h"

#include "config.h"

#include <errno.h>
#include <stdlib.h>

#if HAVE_LIBURING

#include <assert.h>
#include <liburing.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/worker_impl.h"

#define RING_DEPTH 256

struct uring {
    struct io_uring ring;
    struct worker *worker;
    int event_fd;
    unsigned in_ring; /* at most RING_DEPTH */
    unsigned queued;  /* of these, not handed in */
    struct io_request *waiting;
    struct io_request **waiting_tail;
};

static int ring_setup(struct io_uring *ring, unsigned depth)
{
    static const unsigned flags[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_COOP_TASKRUN,
        0,
    };
    int r = -EINVAL;

    for (unsigned i = 0; i < sizeof flags / sizeof flags[0] && r == -EINVAL; i++) {
        struct io_uring_params params = {.flags = flags[i] | IORING_SETUP_CLAMP};

        r = io_uring_queue_init_params(depth, ring, &params);
    }
    return r;
}

/* The operations that fileio.c needs came with Linux 5.6. */
static int ring_check(struct io_uring *ring)
{
    static const int needed[] = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC,
                                 IORING_OP_FALLOCATE};
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    int r = 0;

    if (!probe) {
        return -EOPNOTSUPP;
    }
    for (unsigned i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (!io_uring_opcode_supported(probe, needed[i])) {
            r = -EOPNOTSUPP;
        }
    }
    io_uring_free_probe(probe);
    return r;
}

int uring_probe(void)
{
    struct io_uring ring;
    int r = ring_setup(&ring, 2);

    if (r < 0) {
        return r;
    }
    r = ring_check(&ring);
    io_uring_queue_exit(&ring);
    return r;
}

static int watch(struct uring *u)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int r;

    u->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->event_fd < 0) {
        return -errno;
    }
    r = io_uring_register_eventfd(&u->ring, u->event_fd);
    if (r == 0 && epoll_ctl(u->worker->epoll_fd, EPOLL_CTL_ADD, u->event_fd, &event) < 0) {
        r = -errno;
    }
    if (r < 0) {
        close(u->event_fd);
    }
    return r;
}

int uring_new(struct worker *w, struct uring **ret)
{
    struct uring *u = calloc(1, sizeof *u);
    int r;

    if (!u) {
        return -ENOMEM;
    }
    u->worker = w;
    u->waiting_tail = &u->waiting;
    r = ring_setup(&u->ring, RING_DEPTH);
    if (r < 0) {
        free(u);
        return r;
    }
    r = ring_check(&u->ring);
    if (r == 0) {
        r = watch(u);
    }
    if (r < 0) {
        io_uring_queue_exit(&u->ring);
        free(u);
        return r;
    }
    *ret = u;
    return 0;
}

void uring_free(struct uring *u)
{
    if (!u) {
        return;
    }
    assert(u->in_ring == 0 && !u->waiting);
    io_uring_queue_exit(&u->ring);
    close(u->event_fd);
    free(u);
}

static void fill(struct io_uring_sqe *sqe, struct io_request *r)
{
    switch (r->op) {
    case IO_READ:
        io_uring_prep_read(sqe, r->fd, r->buf, (unsigned)r->length, r->offset);
        break;
    case IO_WRITE:
        io_uring_prep_write(sqe, r->fd, r->buf, (unsigned)r->length, r->offset);
        sqe->rw_flags = r->flags;
        break;
    case IO_FDATASYNC:
        io_uring_prep_fsync(sqe, r->fd, IORING_FSYNC_DATASYNC);
        break;
    case IO_FSYNC:
        io_uring_prep_fsync(sqe, r->fd, 0);
        break;
    case IO_FALLOCATE:
        io_uring_prep_fallocate(sqe, r->fd, r->flags, (off_t)r->offset, (off_t)r->length);
        break;
    }
    io_uring_sqe_set_data(sqe, r);
}

static bool enqueue(struct uring *u, struct io_request *r)
{
    struct io_uring_sqe *sqe;

    if (u->in_ring >= RING_DEPTH) {
        return false;
    }
    sqe = io_uring_get_sqe(&u->ring);
    if (!sqe) {
        return false; /* a kernel that clamped the ring to less */
    }
    fill(sqe, r);
    u->in_ring++;
    u->queued++;
    return true;
}

void uring_run(struct uring *u, struct io_request *r)
{
    r->fiber = fiber_self();
    r->done = false;
    r->next = NULL;
    if (u->waiting || !enqueue(u, r)) {
        *u->waiting_tail = r;
        u->waiting_tail = &r->next;
    }
    u->worker->outstanding++;
    while (!r->done) {
        fiber_park(false, DEADLINE_NONE);
    }
}

static void enqueue_waiting(struct uring *u)
{
    while (u->waiting && enqueue(u, u->waiting)) {
        u->waiting = u->waiting->next;
        if (!u->waiting) {
            u->waiting_tail = &u->waiting;
        }
    }
}

void uring_submit(struct uring *u)
{
    while (u->queued > 0) {
        int n = io_uring_submit(&u->ring);

        if (n <= 0) {
            return; /* all of them stay queued; the loop does not sleep for long meanwhile */
        }
        /* A bad request ends a batch before Linux 5.18: the rest is offered at once. */
        u->queued -= (unsigned)n < u->queued ? (unsigned)n : u->queued;
    }
}

bool uring_unsubmitted(const struct uring *u)
{
    return u->queued > 0;
}

void uring_reap(struct uring *u)
{
    struct io_uring_cqe *cqe;
    unsigned head;
    unsigned n = 0;

    if (u->in_ring == 0) {
        return;
    }
    io_uring_for_each_cqe(&u->ring, head, cqe)
    {
        struct io_request *r = io_uring_cqe_get_data(cqe);

        r->result = cqe->res;
        r->done = true;
        u->worker->outstanding--;
        fiber_wake(r->fiber);
        n++;
    }
    if (n > 0) {
        io_uring_cq_advance(&u->ring, n);
        u->in_ring -= n;
        enqueue_waiting(u);
    }
}

#else

int uring_probe(void)
{
    return -ENOSYS;
}

int uring_new(struct worker *w, struct uring **ret)
{
    (void)w;
    (void)ret;
    return -ENOSYS;
}

void uring_free(struct uring *u)
{
    (void)u;
}

void uring_run(struct uring *u, struct io_request *r)
{
    (void)u;
    (void)r;
    abort();
}

void uring_submit(struct uring *u)
{
    (void)u;
}

void uring_reap(struct uring *u)
{
    (void)u;
}

bool uring_unsubmitted(const struct uring *u)
{
    (void)u;
    return false;
}

#endif
