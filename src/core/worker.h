/*
 * A worker: one thread with one event loop, on which fibers run (fiber.h).
 *
 * The loop is epoll; an eventfd brings posts from other threads (the mailbox), and the worker's
 * io_uring, where there is one, has its completion eventfd in the same epoll. Nothing migrates:
 * a fiber runs on the worker that started it until it ends.
 *
 * Unless said otherwise a function is called on the worker's own thread, and asserts it.
 */
#ifndef CORE_WORKER_H
#define CORE_WORKER_H

#include <stdbool.h>
#include <stdint.h>

struct worker;

#define WORKERS_MAX 256 /* more threads than any machine gains from */

typedef void worker_fn(void *arg);

/* The worker of the calling thread, or NULL on a thread that is none. */
struct worker *worker_self(void);

/* 0 .. WORKERS_MAX-1, unique among living workers; lanes are kept in arrays by it. */
unsigned worker_index(const struct worker *w);

/* The loop's clock: CLOCK_MONOTONIC in nanoseconds, or the fake one of a test. */
uint64_t worker_now_ns(const struct worker *w);

/*
 * A worker on a thread of its own, running until worker_stop(). Any thread. 0, -ENOMEM, -EAGAIN,
 * -EMFILE. name (at most 15 characters) is the thread's.
 */
int worker_start(const char *name, struct worker **ret);

/* Ends the loop once no fiber is left on it, joins the thread and frees w. Any thread but w's. */
void worker_stop(struct worker *w);

/*
 * Makes the calling thread a worker, runs fn(arg) on its first fiber, runs the loop until that
 * and every other fiber has ended, and takes it down again. Returns what fn returned, or -errno
 * when no worker could be made.
 */
int worker_main(int (*fn)(void *arg), void *arg);

/* Runs fn(arg) in a new fiber of w; does not wait. Any thread. 0 or -ENOMEM. */
int worker_post(struct worker *w, worker_fn *fn, void *arg);

/* Runs fn(arg) in a new fiber of w and waits for its end: parks when called from a fiber, blocks
 * when called from a plain thread. Not canceled by fiber_cancel(). 0 or -ENOMEM. */
int worker_call(struct worker *w, worker_fn *fn, void *arg);

/*
 * fn(arg) when w is about to end, on w, last registered first: where lanes are closed. At most
 * once for each (fn, arg). 0 or -ENOMEM. worker_forget() takes it back.
 */
int worker_at_exit(struct worker *w, worker_fn *fn, void *arg);
void worker_forget(struct worker *w, worker_fn *fn, void *arg);

/*
 * For tests: a worker of the calling thread that is stepped by hand. now_ns is its clock, moved
 * by the test. worker_step() runs what is ready (fibers, timers due, posts, fds ready now) and
 * returns how many fibers it ran; it never blocks but while a request is with the kernel or the
 * thread pool and `wait` is true. worker_free() frees it; no fiber may be left.
 */
int worker_new_stepped(uint64_t *now_ns, struct worker **ret);
unsigned worker_step(struct worker *w, bool wait);
void worker_free(struct worker *w);

/* Several workers as one: what --workers makes. n is 1..WORKERS_MAX; 0: one a CPU of the
 * affinity mask. */
struct workers;
int workers_start(unsigned n, struct workers **ret);
/* Waits until none of them has a fiber left: until then they may post to each other. NULL is
 * fine. */
void workers_stop(struct workers *ws);
unsigned workers_count(const struct workers *ws);
struct worker *workers_get(const struct workers *ws, unsigned i);

/* CPUs of the affinity mask, at least 1. Any thread. */
unsigned cpus_available(void);

#endif
