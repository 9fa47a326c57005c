/*
 * Bulk buffers: powers of two from 4 KiB to 64 MiB, page-aligned, bounded for the process by a
 * semaphore that counts their bytes.
 *
 * What is given back is kept: buffers up to SMALL_MAX by the worker that gives them back, then
 * all sizes by the process, each with a bound in bytes. Buffers from MAP_MIN on are mapped, those
 * of 2 MiB and more at a huge page boundary; smaller ones come from malloc's aligned allocator,
 * which spares the kernel a mapping for each. Under ASan what is kept is poisoned, and a buffer is
 * addressable only as far as was asked for.
 */
#include "core/bufpool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/fsync.h"
#include "core/worker_impl.h"

#if CONTEXT_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define SHIFT_MIN 12u /* 4 KiB */
#define SHIFT_MAX 26u /* BUFPOOL_BUFFER_MAX */
#define RANKS (SHIFT_MAX - SHIFT_MIN + 1)
#define MAP_MIN (256u << 10)
#define HUGE_PAGE (2u << 20)
#define SMALL_MAX (2u << 20)              /* a worker keeps these */
#define KEPT_WORKER_BYTES (16u << 20)     /* by each worker */
#define KEPT_PROCESS_BYTES (128u << 20)   /* by the process */
#define LIMIT_DEFAULT ((uint64_t)1 << 30) /* or a quarter of the memory */

/* A kept buffer's first bytes. */
struct kept {
    struct kept *next;
};

struct bufcache {
    struct kept *list[RANKS];
    size_t bytes;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t limit; /* 0: the default */
static struct fsem budget;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bufcache process; /* under lock */

static void init(void)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t bytes = limit;

    if (bytes == 0) {
        bytes = memory / 4 < LIMIT_DEFAULT ? memory / 4 : LIMIT_DEFAULT;
    }
    if (bytes < BUFPOOL_BUFFER_MAX) {
        bytes = BUFPOOL_BUFFER_MAX;
    }
    fsem_init(&budget, bytes);
}

void bufpool_set_limit(uint64_t bytes)
{
    limit = bytes;
}

static unsigned rank_of(size_t len)
{
    unsigned rank = 0;

    while ((size_t)1 << (rank + SHIFT_MIN) < len) {
        rank++;
    }
    return rank;
}

static size_t rank_bytes(unsigned rank)
{
    return (size_t)1 << (rank + SHIFT_MIN);
}

static void *map(size_t size)
{
    size_t slack = size >= HUGE_PAGE ? HUGE_PAGE : 0;
    char *p = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t before;

    if (p == MAP_FAILED) {
        return NULL;
    }
    if (slack > 0) {
        before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
        if (before > 0) {
            munmap(p, before);
        }
        if (slack > before) {
            munmap(p + before + size, slack - before);
        }
        p += before;
    }
    return p;
}

static void *allocate(size_t size)
{
    void *p;

    if (size >= MAP_MIN) {
        return map(size);
    }
    return posix_memalign(&p, (size_t)sysconf(_SC_PAGESIZE), size) == 0 ? p : NULL;
}

static void release(void *p, size_t size)
{
    UNPOISON(p, size);
    if (size >= MAP_MIN) {
        munmap(p, size);
    } else {
        free(p);
    }
}

static void *cache_take(struct bufcache *c, unsigned rank)
{
    struct kept *k = c->list[rank];

    if (k) {
        UNPOISON(k, sizeof *k);
        c->list[rank] = k->next;
        c->bytes -= rank_bytes(rank);
    }
    return k;
}

static bool cache_put(struct bufcache *c, unsigned rank, void *p, size_t bytes_max)
{
    size_t size = rank_bytes(rank);
    struct kept *k = p;

    if (size > bytes_max - c->bytes) {
        return false;
    }
    UNPOISON(p, sizeof *k);
    k->next = c->list[rank];
    c->list[rank] = k;
    c->bytes += size;
    POISON(p, size);
    return true;
}

static void cache_drop(struct bufcache *c)
{
    for (unsigned rank = 0; rank < RANKS; rank++) {
        void *p;

        while ((p = cache_take(c, rank)) != NULL) {
            release(p, rank_bytes(rank));
        }
    }
}

/* The budget is taken already. */
static void *take(size_t len)
{
    unsigned rank = rank_of(len);
    struct worker *w = worker_current;
    void *p = NULL;

    if (w && w->bufcache) {
        p = cache_take(w->bufcache, rank);
    }
    if (!p) {
        pthread_mutex_lock(&lock);
        p = cache_take(&process, rank);
        pthread_mutex_unlock(&lock);
    }
    if (!p) {
        p = allocate(rank_bytes(rank));
    }
    if (p) {
        POISON(p, rank_bytes(rank));
        UNPOISON(p, len);
    }
    return p;
}

int bufpool_get(size_t len, void **ret)
{
    size_t size;
    void *p;
    int r;

    if (len == 0 || len > BUFPOOL_BUFFER_MAX) {
        return -EINVAL;
    }
    pthread_once(&once, init);
    size = rank_bytes(rank_of(len));
    r = fsem_take(&budget, size);
    if (r < 0) {
        return r;
    }
    p = take(len);
    if (!p) {
        fsem_give(&budget, size);
        return -ENOMEM;
    }
    *ret = p;
    return 0;
}

void *bufpool_try_get(size_t len)
{
    size_t size;
    void *p;

    if (len == 0 || len > BUFPOOL_BUFFER_MAX) {
        return NULL;
    }
    pthread_once(&once, init);
    size = rank_bytes(rank_of(len));
    if (!fsem_try_take(&budget, size)) {
        return NULL;
    }
    p = take(len);
    if (!p) {
        fsem_give(&budget, size);
    }
    return p;
}

void bufpool_put(void *buf, size_t len)
{
    struct worker *w = worker_current;
    unsigned rank;
    bool kept = false;

    if (!buf) {
        return;
    }
    assert(len > 0 && len <= BUFPOOL_BUFFER_MAX);
    rank = rank_of(len);
    if (w && rank_bytes(rank) <= SMALL_MAX) {
        if (!w->bufcache) {
            w->bufcache = calloc(1, sizeof *w->bufcache);
        }
        kept = w->bufcache && cache_put(w->bufcache, rank, buf, KEPT_WORKER_BYTES);
    }
    if (!kept) {
        pthread_mutex_lock(&lock);
        kept = cache_put(&process, rank, buf, KEPT_PROCESS_BYTES);
        pthread_mutex_unlock(&lock);
    }
    if (!kept) {
        release(buf, rank_bytes(rank));
    }
    fsem_give(&budget, rank_bytes(rank));
}

uint64_t bufpool_in_use(void)
{
    uint64_t bytes;

    pthread_once(&once, init);
    pthread_mutex_lock(&budget.guard);
    bytes = budget.total - budget.free;
    pthread_mutex_unlock(&budget.guard);
    return bytes;
}

void bufpool_trim(void)
{
    struct worker *w = worker_current;

    if (w && w->bufcache) {
        cache_drop(w->bufcache);
    }
    pthread_mutex_lock(&lock);
    cache_drop(&process);
    pthread_mutex_unlock(&lock);
}

void bufpool_worker_done(struct worker *w)
{
    if (w->bufcache) {
        cache_drop(w->bufcache);
        free(w->bufcache);
        w->bufcache = NULL;
    }
}
