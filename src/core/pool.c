/*
 * Thread pool behind offload() and behind file I/O without a ring.
 *
 * Threads are made when a job finds none idle, up to a bound for each kind of job; beyond it jobs
 * queue, first come, first served. Idle threads end after some seconds, and when the process's
 * last worker ends. They are detached; pool_quiesce() waits for their number to become 0.
 *
 * The end of a job goes to its worker as mail, and only there it counts as done: the fiber, and
 * with it the worker, cannot be gone while the pool's thread still speaks to them.
 */
#include "core/pool.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

#include "core/worker_impl.h"

#define IDLE_SECONDS 5
/* Offloaded work mostly waits (for a child, a name server, a mount): more threads than CPUs. */
#define OFFLOAD_THREADS_MAX 64
#define FILE_IO_THREADS_MIN 8
#define FILE_IO_THREADS_MAX 64

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work;  /* a job came, or idle threads shall end */
    pthread_cond_t ended; /* a thread ended, or a job came */
    struct pool_job *head;
    struct pool_job **tail;
    unsigned queued;
    unsigned threads;
    unsigned idle;
    unsigned threads_max;
    unsigned jobs_ever; /* wraps */
    bool closing;       /* idle threads end at once */
};

static struct pool pools[POOL_KINDS];
static pthread_once_t pools_once = PTHREAD_ONCE_INIT;

static void pools_init(void)
{
    unsigned for_files = 4 * cpus_available();
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    for (unsigned i = 0; i < POOL_KINDS; i++) {
        struct pool *p = &pools[i];

        pthread_mutex_init(&p->lock, NULL);
        pthread_cond_init(&p->work, &attr);
        pthread_cond_init(&p->ended, NULL);
        p->tail = &p->head;
    }
    pthread_condattr_destroy(&attr);
    if (for_files < FILE_IO_THREADS_MIN) {
        for_files = FILE_IO_THREADS_MIN;
    }
    pools[POOL_FILE_IO].threads_max = for_files < FILE_IO_THREADS_MAX ? for_files
                                                                      : FILE_IO_THREADS_MAX;
    pools[POOL_OFFLOAD].threads_max = OFFLOAD_THREADS_MAX;
}

int thread_create(pthread_t *ret, void *(*fn)(void *arg), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE,  SIGILL,
                                 SIGTRAP, SIGSYS, SIGABRT, SIGPROF};
    sigset_t blocked;
    sigset_t before;
    int r;

    sigfillset(&blocked);
    for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&blocked, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    r = pthread_create(ret, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

/* Called and returns with the lock held. false: nothing to do, the thread ends. */
static bool wait_for_job(struct pool *p)
{
    struct timespec until;
    int r = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += IDLE_SECONDS;
    p->idle++;
    while (!p->head && !p->closing && r != ETIMEDOUT) {
        r = pthread_cond_timedwait(&p->work, &p->lock, &until);
    }
    p->idle--;
    return p->head != NULL;
}

static void *pool_thread(void *arg)
{
    struct pool *p = arg;

    pthread_setname_np(pthread_self(), "pool");
    pthread_mutex_lock(&p->lock);
    while (p->head || wait_for_job(p)) {
        struct pool_job *job = p->head;

        p->head = job->next;
        if (!p->head) {
            p->tail = &p->head;
        }
        p->queued--;
        pthread_mutex_unlock(&p->lock);
        job->run(job);
        pthread_mutex_lock(&p->lock);
    }
    p->threads--;
    pthread_cond_broadcast(&p->ended);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* With the lock held. */
static void add_thread(struct pool *p)
{
    pthread_t thread;

    if (p->threads < p->threads_max && thread_create(&thread, pool_thread, p) == 0) {
        pthread_detach(thread);
        p->threads++;
    }
}

static int pool_submit(enum pool_kind kind, struct pool_job *job)
{
    struct pool *p = &pools[kind];
    int r = 0;

    pthread_once(&pools_once, pools_init);
    pthread_mutex_lock(&p->lock);
    p->closing = false;
    if (p->queued >= p->idle) {
        add_thread(p);
    }
    if (p->threads == 0) {
        r = -ENOMEM;
    } else {
        job->next = NULL;
        *p->tail = job;
        p->tail = &job->next;
        p->queued++;
        p->jobs_ever++;
        pthread_cond_signal(&p->work);
        pthread_cond_broadcast(&p->ended);
    }
    pthread_mutex_unlock(&p->lock);
    return r;
}

void pool_quiesce(void)
{
    pthread_once(&pools_once, pools_init);
    for (unsigned i = 0; i < POOL_KINDS; i++) {
        struct pool *p = &pools[i];
        unsigned jobs;

        pthread_mutex_lock(&p->lock);
        jobs = p->jobs_ever;
        p->closing = true;
        pthread_cond_broadcast(&p->work);
        while (p->threads > 0 && p->jobs_ever == jobs) {
            pthread_cond_wait(&p->ended, &p->lock);
        }
        pthread_mutex_unlock(&p->lock);
    }
}

/* A job that a fiber waits for. */
struct awaited {
    struct pool_job job; /* first: pool threads know this */
    struct pool_job *inner;
    struct fiber *fiber;
    struct mail mail;
    bool done;
};

static void deliver_done(struct worker *w, struct mail *m)
{
    struct awaited *a = (struct awaited *)(void *)((char *)m - offsetof(struct awaited, mail));

    w->outstanding--;
    a->done = true;
    fiber_wake(a->fiber);
}

static void run_awaited(struct pool_job *job)
{
    struct awaited *a = (struct awaited *)(void *)job;

    a->inner->run(a->inner);
    mailbox_send(a->fiber->worker, &a->mail);
}

int pool_run(enum pool_kind kind, struct pool_job *job)
{
    struct awaited a = {
        .job.run = run_awaited, .inner = job, .fiber = fiber_self(), .mail.deliver = deliver_done};
    int r;

    assert(a.fiber);
    r = pool_submit(kind, &a.job);
    if (r < 0) {
        return r;
    }
    a.fiber->worker->outstanding++;
    while (!a.done) {
        fiber_park(false, DEADLINE_NONE);
    }
    return 0;
}

struct offload_job {
    struct pool_job job;
    int (*fn)(void *arg);
    void *arg;
    int result;
};

static void run_offload(struct pool_job *job)
{
    struct offload_job *o = (struct offload_job *)(void *)job;

    o->result = o->fn(o->arg);
}

int offload(int (*fn)(void *arg), void *arg)
{
    struct offload_job o = {.job.run = run_offload, .fn = fn, .arg = arg};
    int r;

    if (!fiber_self()) {
        return fn(arg);
    }
    r = pool_run(POOL_OFFLOAD, &o.job);
    return r < 0 ? r : o.result;
}
