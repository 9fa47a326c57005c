/*
 * Mutex, condition and semaphore for fibers of any worker.
 *
 * Each has a list of waiters that lie on the stacks of those who wait. Whatever ends a wait is
 * decided under the guard: the giver takes the waiter off the list, marks it granted and wakes it,
 * all before it lets go of the guard; a waiter whose park ended otherwise (deadline, cancellation)
 * takes the guard and looks whether it was granted meanwhile, and only if not takes itself off.
 * So a grant is never lost, and the waiter's memory is there as long as the giver needs it.
 *
 * Waiters are fibers, or plain threads outside of any fiber, which sleep on a condition variable:
 * set-up and clean-up code of main programs uses the same objects.
 */
#include "core/fsync.h"

#include <assert.h>
#include <errno.h>
#include <time.h>

#include "core/worker_impl.h"

struct fwaiter {
    struct fwaiter *next;
    struct fwaiter *prev;
    struct fiber *fiber; /* NULL: a thread, which sleeps on cond */
    pthread_cond_t cond;
    struct fiber *owner; /* what a mutex that is handed over is to be owned by */
    uint64_t units;      /* of a semaphore */
    bool granted;
};

static void waiter_init(struct fwaiter *w)
{
    w->next = w->prev = NULL;
    w->granted = false;
    w->fiber = fiber_self();
    if (!w->fiber) {
        pthread_condattr_t attr;

        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&w->cond, &attr);
        pthread_condattr_destroy(&attr);
    }
}

static void waiter_done(struct fwaiter *w)
{
    if (!w->fiber) {
        pthread_cond_destroy(&w->cond);
    }
}

/* With the guard held, before and after. 0 (perhaps for nothing), -ETIMEDOUT, -ECANCELED. */
static int waiter_sleep(struct fwaiter *w, pthread_mutex_t *guard, bool cancelable,
                        uint64_t deadline_ns)
{
    struct timespec until;
    int r;

    if (w->fiber) {
        pthread_mutex_unlock(guard);
        r = fiber_park(cancelable, deadline_ns);
        pthread_mutex_lock(guard);
        return r;
    }
    if (deadline_ns == DEADLINE_NONE) {
        return -pthread_cond_wait(&w->cond, guard);
    }
    until.tv_sec = (time_t)(deadline_ns / 1000000000);
    until.tv_nsec = (long)(deadline_ns % 1000000000);
    return -pthread_cond_timedwait(&w->cond, guard, &until);
}

static void list_add(struct fwaitlist *l, struct fwaiter *w)
{
    w->prev = l->tail;
    if (l->tail) {
        l->tail->next = w;
    } else {
        l->head = w;
    }
    l->tail = w;
}

static void list_remove(struct fwaitlist *l, struct fwaiter *w)
{
    if (w->prev) {
        w->prev->next = w->next;
    } else {
        l->head = w->next;
    }
    if (w->next) {
        w->next->prev = w->prev;
    } else {
        l->tail = w->prev;
    }
}

/* With the guard held: w's wait is over. */
static void grant(struct fwaitlist *l, struct fwaiter *w)
{
    list_remove(l, w);
    w->granted = true;
    if (w->fiber) {
        fiber_wake_any(w->fiber);
    } else {
        pthread_cond_signal(&w->cond);
    }
}

/* Who owns a mutex: the fiber, or something of its own for each thread outside of fibers. */
static struct fiber *myself(void)
{
    static __thread char thread_mark;
    struct fiber *f = fiber_self();

    return f ? f : (struct fiber *)(void *)&thread_mark;
}

void fmutex_init(struct fmutex *m)
{
    *m = (struct fmutex){.owner = NULL};
    pthread_mutex_init(&m->guard, NULL);
}

void fmutex_done(struct fmutex *m)
{
    assert(!m->owner && !m->waiters.head);
    pthread_mutex_destroy(&m->guard);
}

void fmutex_lock(struct fmutex *m)
{
    struct fiber *me = myself();
    struct fwaiter w;

    pthread_mutex_lock(&m->guard);
    assert(m->owner != me);
    if (!m->owner) {
        m->owner = me;
        pthread_mutex_unlock(&m->guard);
        return;
    }
    waiter_init(&w);
    w.owner = me;
    list_add(&m->waiters, &w);
    while (!w.granted) {
        waiter_sleep(&w, &m->guard, false, DEADLINE_NONE);
    }
    pthread_mutex_unlock(&m->guard);
    waiter_done(&w);
}

bool fmutex_trylock(struct fmutex *m)
{
    bool got;

    pthread_mutex_lock(&m->guard);
    got = !m->owner;
    if (got) {
        m->owner = myself();
    }
    pthread_mutex_unlock(&m->guard);
    return got;
}

void fmutex_unlock(struct fmutex *m)
{
    struct fwaiter *first;

    pthread_mutex_lock(&m->guard);
    assert(m->owner == myself());
    first = m->waiters.head;
    m->owner = first ? first->owner : NULL;
    if (first) {
        grant(&m->waiters, first);
    }
    pthread_mutex_unlock(&m->guard);
}

void fcond_init(struct fcond *c)
{
    *c = (struct fcond){.waiters = {NULL, NULL}};
    pthread_mutex_init(&c->guard, NULL);
}

void fcond_done(struct fcond *c)
{
    assert(!c->waiters.head);
    pthread_mutex_destroy(&c->guard);
}

int fcond_wait(struct fcond *c, struct fmutex *m, uint64_t deadline_ns)
{
    struct fwaiter w;
    int r = 0;

    waiter_init(&w);
    pthread_mutex_lock(&c->guard);
    list_add(&c->waiters, &w);
    pthread_mutex_unlock(&c->guard);
    fmutex_unlock(m);

    pthread_mutex_lock(&c->guard);
    while (!w.granted && r == 0) {
        r = waiter_sleep(&w, &c->guard, true, deadline_ns);
    }
    if (w.granted) {
        r = 0; /* a signal that was meant for one is not lost to a cancellation */
    } else {
        list_remove(&c->waiters, &w);
    }
    pthread_mutex_unlock(&c->guard);
    waiter_done(&w);
    fmutex_lock(m);
    return r;
}

void fcond_signal(struct fcond *c)
{
    pthread_mutex_lock(&c->guard);
    if (c->waiters.head) {
        grant(&c->waiters, c->waiters.head);
    }
    pthread_mutex_unlock(&c->guard);
}

void fcond_broadcast(struct fcond *c)
{
    pthread_mutex_lock(&c->guard);
    while (c->waiters.head) {
        grant(&c->waiters, c->waiters.head);
    }
    pthread_mutex_unlock(&c->guard);
}

void fsem_init(struct fsem *s, uint64_t total)
{
    *s = (struct fsem){.total = total, .free = total};
    pthread_mutex_init(&s->guard, NULL);
}

void fsem_done(struct fsem *s)
{
    assert(!s->waiters.head);
    pthread_mutex_destroy(&s->guard);
}

static uint64_t clamp(const struct fsem *s, uint64_t n)
{
    return n < s->total ? n : s->total;
}

static void grant_what_fits(struct fsem *s)
{
    struct fwaiter *first;

    while ((first = s->waiters.head) != NULL && first->units <= s->free) {
        s->free -= first->units;
        grant(&s->waiters, first);
    }
}

int fsem_take(struct fsem *s, uint64_t n)
{
    struct fwaiter w;
    int r = 0;

    pthread_mutex_lock(&s->guard);
    n = clamp(s, n);
    if (!s->waiters.head && n <= s->free) {
        s->free -= n;
        pthread_mutex_unlock(&s->guard);
        return 0;
    }
    waiter_init(&w);
    w.units = n;
    list_add(&s->waiters, &w);
    while (!w.granted && r == 0) {
        r = waiter_sleep(&w, &s->guard, true, DEADLINE_NONE);
    }
    if (w.granted) {
        r = 0;
    } else {
        list_remove(&s->waiters, &w);
        grant_what_fits(s); /* smaller ones may have waited behind */
    }
    pthread_mutex_unlock(&s->guard);
    waiter_done(&w);
    return r;
}

bool fsem_try_take(struct fsem *s, uint64_t n)
{
    bool got;

    pthread_mutex_lock(&s->guard);
    n = clamp(s, n);
    got = !s->waiters.head && n <= s->free;
    if (got) {
        s->free -= n;
    }
    pthread_mutex_unlock(&s->guard);
    return got;
}

void fsem_give(struct fsem *s, uint64_t n)
{
    pthread_mutex_lock(&s->guard);
    n = clamp(s, n);
    assert(n <= s->total - s->free);
    s->free += n;
    grant_what_fits(s);
    pthread_mutex_unlock(&s->guard);
}
