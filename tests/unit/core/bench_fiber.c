/*
 * How long a switch, a start, a post and a lock take. Not a test: nothing is asserted, it is run
 * by hand (build/tests/unit/core/bench_fiber) when src/core changes.
 */
#include <stdio.h>
#include <time.h>

#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/fsync.h"
#include "core/worker.h"

#define ROUNDS 1000000u

static double begin_ns;

static double clock_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static void begin(void)
{
    begin_ns = clock_ns();
}

static void end(const char *what, unsigned count)
{
    printf("%-40s %8.1f ns\n", what, (clock_ns() - begin_ns) / count);
}

static struct fiber *partner[2];

static void ping_pong(void *arg)
{
    unsigned other = *(unsigned *)arg ^ 1;

    for (unsigned i = 0; i < ROUNDS; i++) {
        fiber_wake(partner[other]);
        fiber_park(false, DEADLINE_NONE);
    }
    if (partner[other]) {
        fiber_wake(partner[other]);
        partner[other ^ 1] = NULL;
    }
}

static void nothing(void *arg)
{
    (void)arg;
}

static void switches(void)
{
    static unsigned sides[] = {0, 1};

    fiber_spawn(ping_pong, &sides[0], &partner[0]);
    fiber_spawn(ping_pong, &sides[1], &partner[1]);
    begin();
    while (partner[0] && partner[1]) {
        fiber_sleep_ns(100000);
    }
    end("wake, park and switch", 2 * ROUNDS);
    begin();
    for (unsigned i = 0; i < ROUNDS; i++) {
        fiber_yield();
    }
    end("yield alone (one look at epoll)", ROUNDS);
}

static void starts(void)
{
    struct fgroup group;

    fgroup_init(&group);
    begin();
    for (unsigned i = 0; i < ROUNDS; i++) {
        fgroup_spawn(&group, nothing, NULL);
        if (i % 64 == 63) {
            fgroup_wait(&group, false);
        }
    }
    fgroup_wait(&group, false);
    end("start, run and end of a fiber", ROUNDS);
}

static void locks(void)
{
    struct fmutex mutex;
    struct fsem sem;
    void *buf;

    fmutex_init(&mutex);
    begin();
    for (unsigned i = 0; i < ROUNDS; i++) {
        fmutex_lock(&mutex);
        fmutex_unlock(&mutex);
    }
    end("free mutex, lock and unlock", ROUNDS);
    fmutex_done(&mutex);
    fsem_init(&sem, 10);
    begin();
    for (unsigned i = 0; i < ROUNDS; i++) {
        fsem_take(&sem, 1);
        fsem_give(&sem, 1);
    }
    end("free semaphore, take and give", ROUNDS);
    fsem_done(&sem);
    begin();
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (bufpool_get(65536, &buf) == 0) {
            bufpool_put(buf, 65536);
        }
    }
    end("buffer of 64 KiB, get and put", ROUNDS);
}

static void between_workers(void)
{
    struct worker *w;

    if (worker_start("other", &w) < 0) {
        return;
    }
    begin();
    for (unsigned i = 0; i < ROUNDS / 20; i++) {
        worker_call(w, nothing, NULL);
    }
    end("call to another worker and back", ROUNDS / 20);
    worker_stop(w);
}

static int bench(void *arg)
{
    (void)arg;
    switches();
    starts();
    locks();
    between_workers();
    return 0;
}

int main(void)
{
    return worker_main(bench, NULL);
}
