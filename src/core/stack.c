/*
 * Fiber stacks: mapped with a guard below, struct fiber at the top. Freed ones are kept, by
 * the worker that freed them first, then by the process, each with a bound, so that starting a
 * fiber costs no system call. A kept stack keeps the pages it has touched.
 */
#include "config.h"

#include <pthread.h>
#include <sys/mman.h>

#include "core/worker_impl.h"

#if HAVE_VALGRIND
#include <valgrind/valgrind.h>
#endif

/* More than a page, so that a function with a big frame does not step over it; a multiple of every
 * page size. */
#define GUARD_BYTES (64 * 1024)

/* One cache line aligned struct fiber, and what the stack grows down from. */
#define FIBER_ROOM ((sizeof(struct fiber) + sizeof(unsigned long) + 63) / 64 * 64)

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fiber *kept;
static unsigned kept_count;

void *stack_bottom(struct fiber *f)
{
    return (char *)f + FIBER_ROOM - STACK_BYTES;
}

size_t stack_room(void)
{
    return STACK_BYTES - FIBER_ROOM;
}

#if HAVE_VALGRIND
static unsigned long *valgrind_id(struct fiber *f)
{
    return (unsigned long *)(f + 1);
}
#endif

static struct fiber *stack_map(void)
{
    struct fiber *f;
    char *map;

    map = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (map == MAP_FAILED) {
        return NULL;
    }
    if (mprotect(map, GUARD_BYTES, PROT_NONE) < 0) {
        munmap(map, GUARD_BYTES + STACK_BYTES);
        return NULL;
    }
    f = (struct fiber *)(void *)(map + GUARD_BYTES + STACK_BYTES - FIBER_ROOM);
#if HAVE_VALGRIND
    *valgrind_id(f) = VALGRIND_STACK_REGISTER(map + GUARD_BYTES, f);
#endif
    return f;
}

static void stack_unmap(struct fiber *f)
{
    char *map = (char *)stack_bottom(f) - GUARD_BYTES;

#if HAVE_VALGRIND
    VALGRIND_STACK_DEREGISTER(*valgrind_id(f));
#endif
    context_done(&f->context);
    munmap(map, GUARD_BYTES + STACK_BYTES);
}

struct fiber *stack_get(void)
{
    struct worker *w = worker_current;
    struct fiber *f = NULL;

    if (w && w->stacks) {
        f = w->stacks;
        w->stacks = f->next;
        w->stacks_kept--;
        return f;
    }
    pthread_mutex_lock(&kept_lock);
    if (kept) {
        f = kept;
        kept = f->next;
        kept_count--;
    }
    pthread_mutex_unlock(&kept_lock);
    return f ? f : stack_map();
}

static void stack_put_process(struct fiber *f)
{
    bool keep;

    pthread_mutex_lock(&kept_lock);
    keep = kept_count < STACKS_KEPT_PROCESS;
    if (keep) {
        f->next = kept;
        kept = f;
        kept_count++;
    }
    pthread_mutex_unlock(&kept_lock);
    if (!keep) {
        stack_unmap(f);
    }
}

void stack_put(struct fiber *f)
{
    struct worker *w = worker_current;

    if (w && w->stacks_kept < STACKS_KEPT_WORKER) {
        f->next = w->stacks;
        w->stacks = f;
        w->stacks_kept++;
        return;
    }
    stack_put_process(f);
}

void stack_worker_done(struct worker *w)
{
    while (w->stacks) {
        struct fiber *f = w->stacks;

        w->stacks = f->next;
        w->stacks_kept--;
        stack_put_process(f);
    }
}
