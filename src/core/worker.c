/*
 * The loop of a worker and its mailbox.
 *
 * A turn of the loop: run the fibers that are ready (at most RUNS_PER_POLL), then look for new
 * work where it is cheap (the ring's completion queue, the mailbox, timers: plain memory), and ask
 * epoll only when nothing is ready or enough fibers have run. Requests for the ring are handed in
 * together, once a turn.
 *
 * The mailbox is a stack that senders push to and the worker takes whole. The eventfd is written
 * only when the worker says that it sleeps: it stores `asleep`, then looks at the mailbox; a sender
 * pushes, then looks at `asleep`. All four are sequentially consistent, so one of the two sees the
 * other. Both eventfds are registered edge-triggered and never read: each write is a new edge.
 */
#include "core/worker.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/loop.h"
#include "core/uring.h"
#include "core/worker_impl.h"

#define EVENTS_PER_POLL 128
#define NS_PER_S 1000000000u
#define NS_PER_MS 1000000u
/* How long the loop sleeps at most when the kernel could not take all requests for the ring. */
#define RETRY_NS NS_PER_MS
#define FIBERS_PER_STEP_MAX 1000000u

__thread struct worker *worker_current;

struct worker *worker_self(void)
{
    return worker_current;
}

unsigned worker_index(const struct worker *w)
{
    return w->index;
}

uint64_t monotonic_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t worker_now_ns(const struct worker *w)
{
    return w->fake_now_ns ? *w->fake_now_ns : monotonic_ns();
}

void mailbox_send(struct worker *w, struct mail *m)
{
    struct mail *head;

    /* Pairs with loop_quiet(): once m is pushed, the worker may find its last work done. */
    atomic_fetch_add_explicit(&w->senders, 1, memory_order_acquire);
    head = atomic_load_explicit(&w->mailbox, memory_order_relaxed);
    do {
        m->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&w->mailbox, &head, m, memory_order_seq_cst,
                                                    memory_order_relaxed));
    if (atomic_exchange(&w->asleep, false)) {
        uint64_t one = 1;
        ssize_t n;

        do {
            n = write(w->event_fd, &one, sizeof one);
        } while (n < 0 && errno == EINTR);
    }
    atomic_fetch_sub_explicit(&w->senders, 1, memory_order_release);
}

static void mailbox_deliver(struct worker *w)
{
    struct mail *fifo = NULL;
    struct mail *m;

    if (!atomic_load_explicit(&w->mailbox, memory_order_relaxed)) {
        return;
    }
    m = atomic_exchange_explicit(&w->mailbox, NULL, memory_order_acquire);
    while (m) {
        struct mail *next = m->next;

        m->next = fifo;
        fifo = m;
        m = next;
    }
    while (fifo) {
        m = fifo;
        fifo = m->next;
        m->deliver(w, m);
    }
}

/* What costs no system call but the one that hands in requests. */
static void look_cheaply(struct worker *w)
{
    if (w->uring) {
        uring_submit(w->uring);
        uring_reap(w->uring);
    }
    mailbox_deliver(w);
    fiber_fire_timers(w);
}

static uint64_t sleep_limit_ns(const struct worker *w)
{
    uint64_t limit = UINT64_MAX;

    if (w->timers.first && !w->stepped) {
        uint64_t now = worker_now_ns(w);
        uint64_t due = w->timers.first->deadline_ns;

        limit = due > now ? due - now : 0;
    }
    if (w->uring && uring_unsubmitted(w->uring) && limit > RETRY_NS) {
        limit = RETRY_NS;
    }
    return limit;
}

static int epoll_wait_ns(int fd, struct epoll_event *events, int max, uint64_t ns)
{
    static _Atomic bool no_pwait2; /* before Linux 5.11, and where seccomp does not know it */
    uint64_t ms;

    if (ns == 0 || ns == UINT64_MAX) {
        return epoll_wait(fd, events, max, ns == 0 ? 0 : -1);
    }
    if (!atomic_load_explicit(&no_pwait2, memory_order_relaxed)) {
        struct timespec ts = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
        int n = epoll_pwait2(fd, events, max, &ts, NULL);

        if (n >= 0 || (errno != ENOSYS && errno != EPERM)) {
            return n;
        }
        atomic_store_explicit(&no_pwait2, true, memory_order_relaxed);
    }
    ms = ns / NS_PER_MS + 1;
    return epoll_wait(fd, events, max, ms > 3600000 ? 3600000 : (int)ms);
}

static void ask_epoll(struct worker *w, bool block)
{
    struct epoll_event events[EVENTS_PER_POLL];
    uint64_t limit_ns = 0;
    int n;

    if (block) {
        atomic_store(&w->asleep, true);
        if (!atomic_load(&w->mailbox)) {
            limit_ns = sleep_limit_ns(w);
        }
    }
    n = epoll_wait_ns(w->epoll_fd, events, EVENTS_PER_POLL, limit_ns);
    if (block) {
        atomic_store_explicit(&w->asleep, false, memory_order_relaxed);
    }
    w->runs = 0;
    /* EINTR is as good as a timeout: the loop looks again. No fiber runs before all are handled,
     * so none of the pointers can have become stale. */
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr) {
            fdwait_event(events[i].data.ptr, events[i].events);
        }
    }
}

static bool nothing_left(const struct worker *w)
{
    return w->stopping && w->fibers == 0 && w->late_mail == 0;
}

static void look(struct worker *w, bool may_block)
{
    look_cheaply(w);
    if (!w->ready.head || w->runs >= RUNS_PER_POLL || w->yielded.head) {
        /* a message may just have said that it is over */
        ask_epoll(w, may_block && !nothing_left(w) && !w->ready.head && !w->yielded.head);
        look_cheaply(w);
    }
    fiber_unyield(w);
}

/* No message is there, and none is being sent. */
static bool loop_quiet(struct worker *w)
{
    while (atomic_load_explicit(&w->senders, memory_order_acquire) > 0) {
        sched_yield();
    }
    return !atomic_load(&w->mailbox);
}

static void run_exit_hooks(void *arg)
{
    struct worker *w = arg;

    while (w->exit_hooks) {
        struct exit_hook *h = w->exit_hooks;
        worker_fn *fn = h->fn;
        void *hook_arg = h->arg;

        w->exit_hooks = h->next;
        free(h);
        fn(hook_arg);
    }
}

static bool loop_ended(struct worker *w)
{
    if (!nothing_left(w) || !loop_quiet(w)) {
        return false;
    }
    if (w->exit_hooks) {
        if (fiber_spawn(run_exit_hooks, w, NULL) < 0) {
            run_exit_hooks(w); /* no memory for a stack: those that do not wait still work */
        }
        return false;
    }
    return true;
}

void loop_run(struct worker *w)
{
    for (;;) {
        w->runs += fiber_run_ready(w, RUNS_PER_POLL);
        if (loop_ended(w)) {
            return;
        }
        look(w, true);
    }
}

unsigned worker_step(struct worker *w, bool wait)
{
    struct worker *outer = worker_current;
    unsigned ran;

    assert(w->stepped && !w->running);
    worker_current = w;
    w->runs = RUNS_PER_POLL; /* so that epoll is asked */
    look(w, false);
    for (;;) {
        unsigned n;

        ran = 0;
        while ((n = fiber_run_ready(w, RUNS_PER_POLL)) > 0 && ran < FIBERS_PER_STEP_MAX) {
            ran += n;
        }
        if (ran > 0 || !wait || w->outstanding == 0) {
            break;
        }
        look(w, true);
    }
    if (w->uring) {
        uring_submit(w->uring);
    }
    worker_current = outer;
    return ran;
}

int loop_open(struct worker *w)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int r;

    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (w->epoll_fd < 0) {
        return -errno;
    }
    w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->event_fd < 0) {
        r = -errno;
        close(w->epoll_fd);
        return r;
    }
    if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->event_fd, &event) < 0) {
        r = -errno;
        loop_close(w);
        return r;
    }
    return 0;
}

void loop_end(struct worker *w)
{
    uring_free(w->uring);
    w->uring = NULL;
    bufpool_worker_done(w);
    stack_worker_done(w);
}

void loop_close(struct worker *w)
{
    close(w->event_fd);
    close(w->epoll_fd);
}
