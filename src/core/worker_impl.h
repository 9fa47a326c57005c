/*
 * What the files of src/core that make up a worker know of each other. Private to src/core.
 *
 * Who may touch what: everything of a worker and of its fibers belongs to the worker's thread, but
 * for the fields marked "any thread".
 */
#ifndef CORE_WORKER_IMPL_H
#define CORE_WORKER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/context.h"
#include "core/fiber.h"
#include "core/timers.h"
#include "core/worker.h"

struct uring;
struct bufcache;

/* Stacks kept for reuse by each worker, and by the process: more are unmapped. */
#define STACKS_KEPT_WORKER 128
#define STACKS_KEPT_PROCESS 512

/* Fibers run between two looks at epoll: so many that its system call is lost in the noise, so few
 * that a socket waits tens of microseconds at most. */
#define RUNS_PER_POLL 64

#if CONTEXT_ASAN || CONTEXT_TSAN
#define STACK_BYTES (1024 * 1024) /* frames are several times larger */
#else
#define STACK_BYTES FIBER_STACK_SIZE
#endif

/* A message to a worker. It belongs to the worker from mailbox_send() until deliver() is called. */
struct mail {
    struct mail *next;
    void (*deliver)(struct worker *w, struct mail *m);
};

enum fiber_state {
    FIBER_NEW,   /* ready, has not run yet */
    FIBER_READY, /* its wait is over, or it yielded */
    FIBER_RUNNING,
    FIBER_PARKED,
    FIBER_ENDED,
};

struct fgroup_member {
    struct fgroup *group;
    struct fgroup_member *next;
    struct fgroup_member *prev;
};

/* Lies at the top of its own stack. */
struct fiber {
    struct context context; /* first: the only part that outlives the fiber, with the stack */
    struct worker *worker;
    struct fiber *next; /* in the list of ready ones, or of kept stacks */
    fiber_fn *fn;
    void *arg;
    enum fiber_state state;
    int wait_result;   /* what the wait that is over returns */
    bool yielded;      /* ready without a wait that has ended */
    bool wake_pending; /* a wake that came first */
    bool cancelable;   /* the present wait is */
    bool canceled;
    unsigned shield;
    struct timer timer;
    struct fgroup_member member;

    /* any thread */
    struct mail mail;      /* a wake, or the start, from another thread */
    _Atomic bool mail_out; /* mail is on its way; pairs with fiber_deliver_wake() */
};

struct fiber_list {
    struct fiber *head;
    struct fiber *tail;
};

struct exit_hook {
    struct exit_hook *next;
    worker_fn *fn;
    void *arg;
};

#define FILE_HINTS 64u

/* What fd is; holds for `left` more uses. */
struct file_hint {
    int fd;
    uint8_t left;
    bool memory; /* lies in a file system of memory */
    bool direct; /* open with O_DIRECT */
};

struct worker {
    unsigned index;
    char name[16];
    int epoll_fd;
    int event_fd; /* written to when a message comes while the worker sleeps */
    pthread_t thread;
    struct context loop; /* the loop's own stack, while a fiber runs */
    struct fiber *running;
    struct fiber_list ready;
    struct fiber_list yielded; /* ready, after the next look at epoll */
    unsigned fibers;           /* alive on this worker */
    unsigned fibers_ever;      /* wraps */
    struct fiber *waits_alone; /* woken when it is the only one left */
    unsigned late_mail;        /* ended fibers whose mail is still on its way */
    unsigned outstanding;      /* requests with the kernel, the thread pool or another worker */
    unsigned runs;             /* fibers run since epoll was asked */
    struct timers timers;
    const uint64_t *fake_now_ns; /* of a stepped worker */
    bool stepped;
    bool stopping; /* ends when nothing is left to do */
    struct exit_hook *exit_hooks;
    struct fiber *stacks; /* kept for reuse */
    unsigned stacks_kept;
    struct uring *uring; /* uring.c; NULL: not made yet, or refused */
    bool uring_tried;
    struct bufcache *bufcache;               /* bufpool.c */
    uint8_t nowait_skip[256];                /* fileio.c */
    struct file_hint file_hints[FILE_HINTS]; /* fileio.c */

    /* any thread */
    _Alignas(64) _Atomic(struct mail *) mailbox; /* last first */
    _Atomic bool asleep;      /* about to block, or blocked, in epoll; pairs with mailbox_send() */
    _Atomic unsigned senders; /* in mailbox_send(): the worker is not freed under them */
};

extern __thread struct worker *worker_current __attribute__((tls_model("initial-exec")));

/* worker.c */
void mailbox_send(struct worker *w, struct mail *m); /* any thread */
uint64_t monotonic_ns(void);

/* fiber.c */
struct fiber *fiber_make(fiber_fn *fn, void *arg);   /* any thread; NULL: no memory */
void fiber_adopt(struct worker *w, struct fiber *f); /* it will run on w, the calling worker */
void fiber_send(struct worker *w, struct fiber *f);  /* the same for another worker */
unsigned fiber_run_ready(struct worker *w, unsigned max);
void fiber_fire_timers(struct worker *w);
void fiber_unyield(struct worker *w);
void fiber_wake_any(struct fiber *f); /* fiber_wake() or fiber_wake_from() */

/* stack.c */
struct fiber *stack_get(void); /* a struct fiber on its stack, or NULL */
void stack_put(struct fiber *f);
void *stack_bottom(struct fiber *f);
size_t stack_room(void); /* bytes below it */
void stack_worker_done(struct worker *w);

/* uring.c: see uring.h. bufpool.c: */
void bufpool_worker_done(struct worker *w);

/* fdwait.c */
void fdwait_event(void *fdwait, uint32_t events);

#endif
