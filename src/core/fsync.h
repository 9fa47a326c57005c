/*
 * Mutex, condition and semaphore that park fibers. All work across workers; a plain pthread lock
 * inside is held only for a few instructions and never across a wait. Order is first come, first
 * served. A mutex belongs to the fiber that locked it.
 */
#ifndef CORE_FSYNC_H
#define CORE_FSYNC_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct fwaiter; /* on the stack of the waiting fiber */

struct fwaitlist {
    struct fwaiter *head;
    struct fwaiter *tail;
};

struct fmutex {
    pthread_mutex_t guard;
    struct fiber *owner;
    struct fwaitlist waiters;
};

void fmutex_init(struct fmutex *m);
void fmutex_done(struct fmutex *m);
/* Not canceled: returns only with the lock held. */
void fmutex_lock(struct fmutex *m);
bool fmutex_trylock(struct fmutex *m);
void fmutex_unlock(struct fmutex *m);

struct fcond {
    pthread_mutex_t guard;
    struct fwaitlist waiters;
};

void fcond_init(struct fcond *c);
void fcond_done(struct fcond *c);
/* Unlocks m, waits, locks m again. Spurious returns happen. 0, -ETIMEDOUT, -ECANCELED: in every
 * case m is held again. deadline_ns as in fiber_park(). */
int fcond_wait(struct fcond *c, struct fmutex *m, uint64_t deadline_ns);
void fcond_signal(struct fcond *c);    /* any thread */
void fcond_broadcast(struct fcond *c); /* any thread */

/* Counts units (bytes, slots). fsem_take() waits for n of them, in order, so that a big taker is
 * not starved by small ones; n above the semaphore's total waits for all of it. */
struct fsem {
    pthread_mutex_t guard;
    uint64_t total;
    uint64_t free;
    struct fwaitlist waiters;
};

void fsem_init(struct fsem *s, uint64_t total);
void fsem_done(struct fsem *s);
int fsem_take(struct fsem *s, uint64_t n); /* 0 or -ECANCELED */
bool fsem_try_take(struct fsem *s, uint64_t n);
void fsem_give(struct fsem *s, uint64_t n); /* any thread */

#endif
