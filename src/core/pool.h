/*
 * The process's thread pool, for what would block a worker. Private to src/core; everybody else
 * calls offload() (fiber.h).
 */
#ifndef CORE_POOL_H
#define CORE_POOL_H

#include <pthread.h>
#include <stdbool.h>

struct pool_job {
    struct pool_job *next;
    void (*run)(struct pool_job *job); /* on a thread of the pool */
};

/* Kinds of jobs have threads of their own, so that waiting for a child does not hold up a disk. */
enum pool_kind { POOL_OFFLOAD, POOL_FILE_IO, POOL_KINDS };

/* Runs job on the pool and parks the calling fiber until it has ended; not canceled. 0, or -ENOMEM
 * (no thread could be made, and there is none). */
int pool_run(enum pool_kind kind, struct pool_job *job);

/* Ends the idle threads and waits for that, unless the pool is used anew meanwhile. */
void pool_quiesce(void);

/* pthread_create() with all signals blocked that no fault raises. 0 or -errno. */
int thread_create(pthread_t *ret, void *(*fn)(void *arg), void *arg);

#endif
