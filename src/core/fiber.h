/*
 * Fibers: a stack that runs on one worker until it must wait. Code reads as if it blocked.
 *
 * Stacks come from the worker's pool, have a guard page below, and ASan, TSan and Valgrind are
 * told of each switch. Fibers of one worker never run at the same time, so what belongs to one
 * worker needs no lock between two waits.
 *
 * Cancellation: fiber_cancel() makes the fiber's present wait, and every later one, return
 * -ECANCELED (waits that say "not canceled" excepted: the kernel still owns their buffers). A
 * canceled fiber is expected to clean up and end; fiber_shield() lets clean-up code wait.
 */
#ifndef CORE_FIBER_H
#define CORE_FIBER_H

#include <stdbool.h>
#include <stdint.h>

struct fiber;
struct worker;

#define FIBER_STACK_SIZE (256 * 1024) /* address space; pages are touched as used */
#define DEADLINE_NONE UINT64_MAX      /* wait for ever */

typedef void fiber_fn(void *arg);

/* Starts fn(arg) on the calling worker; it first runs when the caller next waits. 0 or -ENOMEM. */
int fiber_spawn(fiber_fn *fn, void *arg, struct fiber **ret_or_null);

/* The running fiber, NULL outside of fibers. */
struct fiber *fiber_self(void);

/*
 * The two primitives that everything here that waits is made of. fiber_park() waits until
 * fiber_wake(); a wake that comes first is kept (one of them) and makes the next park return at
 * once. So a park returns spuriously: callers loop on their condition. deadline_ns is absolute on
 * worker_now_ns(). 0, -ETIMEDOUT, -ECANCELED (only where cancelable).
 * fiber_wake(): the fiber's own worker. fiber_wake_from(): any thread; the fiber must be known to
 * stay alive until it has run.
 */
int fiber_park(bool cancelable, uint64_t deadline_ns);
void fiber_wake(struct fiber *f);
void fiber_wake_from(struct fiber *f);

/* Lets the other ready fibers and the event loop have a turn. */
void fiber_yield(void);

/* 0, or -ECANCELED. */
int fiber_sleep_ns(uint64_t ns);
int fiber_sleep_until(uint64_t deadline_ns);

/* Own worker only. Harmless on a fiber that is canceled already. */
void fiber_cancel(struct fiber *f);
bool fiber_canceled(void);
/* While shielded (a count) the running fiber's waits are not canceled. */
void fiber_shield(void);
void fiber_unshield(void);

/*
 * A group of fibers of one worker whose ends can be waited for. fgroup_cancel() cancels all of
 * them. fgroup_wait() is not canceled itself; when the waiting fiber is canceled and
 * cancel_with_me is true the group is canceled along, and the wait goes on to its end.
 */
struct fgroup {
    struct fgroup_member *members;
    struct fiber *waiter;
    unsigned count;
};
void fgroup_init(struct fgroup *g);
int fgroup_spawn(struct fgroup *g, fiber_fn *fn, void *arg); /* 0 or -ENOMEM */
void fgroup_cancel(struct fgroup *g);
void fgroup_wait(struct fgroup *g, bool cancel_with_me);

/*
 * Runs fn(arg) on the process's thread pool and parks until it is done. Not canceled. For what
 * would block a worker: open, name resolution, fsync where there is no ring, waitpid. Returns what
 * fn returned (or -ENOMEM). Outside of fibers it just calls fn(arg).
 */
int offload(int (*fn)(void *arg), void *arg);

#endif
