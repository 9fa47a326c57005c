/*
 * Making and ending workers: on threads of their own, on the calling thread, stepped by a test,
 * several at once; and what reaches a worker from outside, posts and calls.
 *
 * Threads made here block all signals but those that a fault raises: signals belong to the thread
 * that the process started with.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/loop.h"
#include "core/pool.h"
#include "core/worker_impl.h"

static pthread_mutex_t living_lock = PTHREAD_MUTEX_INITIALIZER;
static bool index_taken[WORKERS_MAX];
static unsigned living;

static int take_index(unsigned *ret)
{
    int r = -EAGAIN;

    pthread_mutex_lock(&living_lock);
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        if (!index_taken[i]) {
            index_taken[i] = true;
            living++;
            *ret = i;
            r = 0;
            break;
        }
    }
    pthread_mutex_unlock(&living_lock);
    return r;
}

static void give_index(unsigned index)
{
    bool last;

    pthread_mutex_lock(&living_lock);
    index_taken[index] = false;
    last = --living == 0;
    pthread_mutex_unlock(&living_lock);
    if (last) {
        pool_quiesce();
    }
}

static int worker_new(const char *name, struct worker **ret)
{
    struct worker *w;
    int r;

    w = aligned_alloc(_Alignof(struct worker), sizeof *w);
    if (!w) {
        return -ENOMEM;
    }
    memset(w, 0, sizeof *w);
    snprintf(w->name, sizeof w->name, "%s", name);
    r = take_index(&w->index);
    if (r < 0) {
        free(w);
        return r;
    }
    r = loop_open(w);
    if (r < 0) {
        give_index(w->index);
        free(w);
        return r == -ENFILE ? -EMFILE : r;
    }
    *ret = w;
    return 0;
}

static void worker_delete(struct worker *w)
{
    loop_close(w);
    give_index(w->index);
    free(w);
}

static void *thread_main(void *arg)
{
    struct worker *w = arg;

    pthread_setname_np(pthread_self(), w->name);
    worker_current = w;
    loop_run(w);
    loop_end(w);
    worker_current = NULL;
    return NULL;
}

int worker_start(const char *name, struct worker **ret)
{
    struct worker *w;
    int r;

    r = worker_new(name, &w);
    if (r < 0) {
        return r;
    }
    r = thread_create(&w->thread, thread_main, w);
    if (r < 0) {
        worker_delete(w);
        return r;
    }
    *ret = w;
    return 0;
}

static void deliver_stop(struct worker *w, struct mail *m)
{
    (void)m;
    w->stopping = true;
}

static int join_worker(void *arg)
{
    struct worker *w = arg;

    pthread_join(w->thread, NULL);
    return 0;
}

void worker_stop(struct worker *w)
{
    struct mail stop = {.deliver = deliver_stop};

    if (!w) {
        return;
    }
    assert(w != worker_current && !w->stepped);
    mailbox_send(w, &stop);
    /* From a fiber in the thread pool: w's last fibers may need the caller's worker to end. */
    if (!fiber_self() || offload(join_worker, w) < 0) {
        join_worker(w);
    }
    worker_delete(w);
}

struct main_call {
    int (*fn)(void *arg);
    void *arg;
    int result;
};

static void run_main(void *arg)
{
    struct main_call *call = arg;

    call->result = call->fn(call->arg);
}

int worker_main(int (*fn)(void *arg), void *arg)
{
    struct main_call call = {.fn = fn, .arg = arg};
    struct worker *w;
    int r;

    assert(!worker_current);
    r = worker_new("main", &w);
    if (r < 0) {
        return r;
    }
    w->thread = pthread_self();
    worker_current = w;
    r = fiber_spawn(run_main, &call, NULL);
    w->stopping = true; /* as soon as all fibers have ended */
    if (r == 0) {
        loop_run(w);
        r = call.result;
    }
    loop_end(w);
    worker_current = NULL;
    worker_delete(w);
    return r;
}

int worker_post(struct worker *w, worker_fn *fn, void *arg)
{
    struct fiber *f = fiber_make(fn, arg);

    if (!f) {
        return -ENOMEM;
    }
    if (w == worker_current) {
        fiber_adopt(w, f);
    } else {
        fiber_send(w, f);
    }
    return 0;
}

struct call {
    worker_fn *fn;
    void *arg;
    bool done;
    /* of a fiber that calls */
    struct fiber *fiber;
    struct mail mail;
    /* of a thread that calls */
    pthread_mutex_t lock;
    pthread_cond_t cond;
};

static void deliver_call_done(struct worker *w, struct mail *m)
{
    struct call *call = (struct call *)(void *)((char *)m - offsetof(struct call, mail));

    w->outstanding--;
    call->done = true;
    fiber_wake(call->fiber);
}

static void run_call(void *arg)
{
    struct call *call = arg;

    call->fn(call->arg);
    if (call->fiber) {
        mailbox_send(call->fiber->worker, &call->mail);
        return;
    }
    pthread_mutex_lock(&call->lock);
    call->done = true;
    pthread_cond_signal(&call->cond);
    pthread_mutex_unlock(&call->lock);
}

static int call_from_thread(struct worker *w, struct call *call)
{
    int r;

    assert(w != worker_current);
    pthread_mutex_init(&call->lock, NULL);
    pthread_cond_init(&call->cond, NULL);
    r = worker_post(w, run_call, call);
    if (r == 0) {
        pthread_mutex_lock(&call->lock);
        while (!call->done) {
            pthread_cond_wait(&call->cond, &call->lock);
        }
        pthread_mutex_unlock(&call->lock);
    }
    pthread_cond_destroy(&call->cond);
    pthread_mutex_destroy(&call->lock);
    return r;
}

int worker_call(struct worker *w, worker_fn *fn, void *arg)
{
    struct call call = {.fn = fn, .arg = arg, .fiber = fiber_self()};
    int r;

    if (!call.fiber) {
        return call_from_thread(w, &call);
    }
    call.mail.deliver = deliver_call_done;
    r = worker_post(w, run_call, &call);
    if (r < 0) {
        return r;
    }
    worker_current->outstanding++;
    while (!call.done) {
        fiber_park(false, DEADLINE_NONE);
    }
    return 0;
}

int worker_at_exit(struct worker *w, worker_fn *fn, void *arg)
{
    struct exit_hook *h;

    assert(w == worker_current);
    for (h = w->exit_hooks; h; h = h->next) {
        if (h->fn == fn && h->arg == arg) {
            return 0;
        }
    }
    h = malloc(sizeof *h);
    if (!h) {
        return -ENOMEM;
    }
    *h = (struct exit_hook){.next = w->exit_hooks, .fn = fn, .arg = arg};
    w->exit_hooks = h;
    return 0;
}

void worker_forget(struct worker *w, worker_fn *fn, void *arg)
{
    assert(w == worker_current);
    for (struct exit_hook **at = &w->exit_hooks; *at; at = &(*at)->next) {
        struct exit_hook *h = *at;

        if (h->fn == fn && h->arg == arg) {
            *at = h->next;
            free(h);
            return;
        }
    }
}

int worker_new_stepped(uint64_t *now_ns, struct worker **ret)
{
    struct worker *w;
    int r;

    r = worker_new("stepped", &w);
    if (r < 0) {
        return r;
    }
    w->thread = pthread_self();
    w->stepped = true;
    w->fake_now_ns = now_ns;
    if (!worker_current) {
        worker_current = w;
    }
    *ret = w;
    return 0;
}

void worker_free(struct worker *w)
{
    struct worker *outer = worker_current == w ? NULL : worker_current;

    if (!w) {
        return;
    }
    assert(w->stepped && w->fibers == 0);
    worker_current = w;
    w->stopping = true;
    loop_run(w); /* for what is left to do at exit */
    loop_end(w);
    worker_current = outer;
    worker_delete(w);
}

struct workers {
    unsigned count;
    struct worker *worker[];
};

int workers_start(unsigned n, struct workers **ret)
{
    struct workers *ws;

    if (n == 0) {
        n = cpus_available();
    }
    if (n > WORKERS_MAX) {
        n = WORKERS_MAX;
    }
    ws = calloc(1, sizeof *ws + n * sizeof ws->worker[0]);
    if (!ws) {
        return -ENOMEM;
    }
    for (; ws->count < n; ws->count++) {
        char name[32];
        int r;

        snprintf(name, sizeof name, "worker-%u", ws->count);
        r = worker_start(name, &ws->worker[ws->count]);
        if (r < 0) {
            workers_stop(ws);
            return r;
        }
    }
    *ret = ws;
    return 0;
}

struct look_at {
    unsigned last_count;
    bool changed;
};

/* Waits until no other fiber is left here, and tells whether any was started since last time. */
static void wait_alone(void *arg)
{
    struct worker *w = worker_current;
    struct look_at *look = arg;

    while (w->fibers > 1) {
        w->waits_alone = fiber_self();
        fiber_park(false, DEADLINE_NONE);
    }
    w->waits_alone = NULL;
    look->changed = w->fibers_ever != look->last_count + 1; /* this one */
    look->last_count = w->fibers_ever;
}

/*
 * Fibers of one worker may still give work to another: none may end before none has any left. That
 * is so when in one round all were found without fibers, and no fiber was started since the round
 * before.
 */
static void wait_for_all(struct workers *ws)
{
    struct look_at *look = calloc(ws->count, sizeof *look);
    bool changed = look != NULL;

    while (changed) {
        changed = false;
        for (unsigned i = 0; i < ws->count; i++) {
            if (worker_call(ws->worker[i], wait_alone, &look[i]) < 0) {
                continue;
            }
            changed |= look[i].changed;
        }
    }
    free(look);
}

void workers_stop(struct workers *ws)
{
    if (!ws) {
        return;
    }
    if (ws->count > 1) {
        wait_for_all(ws);
    }
    for (unsigned i = 0; i < ws->count; i++) {
        worker_stop(ws->worker[i]);
    }
    free(ws);
}

unsigned workers_count(const struct workers *ws)
{
    return ws->count;
}

struct worker *workers_get(const struct workers *ws, unsigned i)
{
    assert(i < ws->count);
    return ws->worker[i];
}

unsigned cpus_available(void)
{
    /* A mask for more CPUs than the kernel can have: EINVAL means it was too small. */
    for (unsigned cpus = 1024; cpus <= 65536; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        size_t size = CPU_ALLOC_SIZE(cpus);
        int count = 0;

        if (!set) {
            break;
        }
        if (sched_getaffinity(0, size, set) == 0) {
            count = CPU_COUNT_S(size, set);
        }
        CPU_FREE(set);
        if (count > 0) {
            return (unsigned)count;
        }
    }
    return 1;
}
