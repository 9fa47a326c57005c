/* Workers on threads: start and stop, posts and calls in every direction, exit hooks, and many
 * fibers that wake each other across workers. */
#include "core/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/context.h"
#include "core/fiber.h"
#include "tap.h"

static int seven(void *arg)
{
    *(bool *)arg = fiber_self() && worker_self();
    return 7;
}

static void main_returns(void)
{
    bool inside = false;

    EQ(worker_main(seven, &inside), 7);
    OK(inside);
    OK(!worker_self() && !fiber_self());
}

static void set_true(void *arg)
{
    fiber_sleep_ns(1000000);
    *(bool *)arg = true;
}

static int leave_a_fiber(void *arg)
{
    return fiber_spawn(set_true, arg, NULL);
}

static void main_waits_for_all_fibers(void)
{
    bool ran = false;

    EQ(worker_main(leave_a_fiber, &ran), 0);
    OK(ran);
}

static void count(void *arg)
{
    atomic_fetch_add((_Atomic unsigned *)arg, 1);
}

static void posts_are_run_before_the_end(void)
{
    _Atomic unsigned n = 0;
    struct worker *w;

    EQ(worker_start("test", &w), 0);
    for (unsigned i = 0; i < 1000; i++) {
        EQ(worker_post(w, count, &n), 0);
    }
    worker_stop(w);
    EQ(n, 1000);
}

static void calls_from_a_thread(void)
{
    _Atomic unsigned n = 0;
    struct worker *w;

    EQ(worker_start("test", &w), 0);
    for (unsigned i = 0; i < 100; i++) {
        EQ(worker_call(w, count, &n), 0);
        EQ(n, i + 1);
    }
    worker_stop(w);
}

static struct worker *other;
static struct worker *home;

static void call_back(void *arg)
{
    OK(worker_self() == other);
    EQ(worker_call(home, count, arg), 0);
}

static int call_there_and_back(void *arg)
{
    home = worker_self();
    EQ(worker_start("other", &other), 0);
    for (unsigned i = 0; i < 100; i++) {
        EQ(worker_call(other, call_back, arg), 0);
        EQ(*(_Atomic unsigned *)arg, 2 * i + 1);
        EQ(worker_call(home, count, arg), 0); /* to itself */
    }
    EQ(worker_post(other, call_back, arg), 0); /* needs this worker while it is stopped */
    worker_stop(other);
    return 0;
}

static void calls_between_workers(void)
{
    _Atomic unsigned n = 0;

    EQ(worker_main(call_there_and_back, &n), 0);
    EQ(n, 201);
}

static char order[16];

static void hook(void *arg)
{
    size_t len = strlen(order);

    OK(fiber_self());
    fiber_yield(); /* hooks may wait */
    order[len] = *(char *)arg;
    order[len + 1] = '\0';
}

static int register_hooks(void *arg)
{
    static char names[] = "abcd";
    struct worker *w = worker_self();

    (void)arg;
    for (unsigned i = 0; i < 4; i++) {
        EQ(worker_at_exit(w, hook, &names[i]), 0);
        EQ(worker_at_exit(w, hook, &names[i]), 0);
    }
    worker_forget(w, hook, &names[1]);
    worker_forget(w, hook, &names[1]);
    return 0;
}

static void exit_hooks_run_last_first(void)
{
    order[0] = '\0';
    EQ(worker_main(register_hooks, NULL), 0);
    STREQ(order, "dca");
}

static void indices_are_unique(void)
{
    bool seen[WORKERS_MAX] = {false};
    struct workers *ws;

    EQ(workers_start(8, &ws), 0);
    EQ(workers_count(ws), 8);
    for (unsigned i = 0; i < 8; i++) {
        unsigned index = worker_index(workers_get(ws, i));

        OK(index < WORKERS_MAX && !seen[index]);
        seen[index] = true;
    }
    workers_stop(ws);
    EQ(workers_start(0, &ws), 0);
    EQ(workers_count(ws), cpus_available());
    workers_stop(ws);
    workers_stop(NULL);
    worker_stop(NULL);
}

/* Workers that live for a moment, with posts on their way while they are told to stop. */
static void short_lives(void)
{
    _Atomic unsigned n = 0;

    for (unsigned i = 0; i < (CONTEXT_TSAN ? 30 : 200); i++) {
        struct worker *w;

        EQ(worker_start("short", &w), 0);
        for (unsigned j = 0; j < i % 4; j++) {
            EQ(worker_post(w, count, &n), 0);
        }
        worker_stop(w);
    }
    EQ(n, (CONTEXT_TSAN ? 7 * 6 + 0 + 1 : 50 * 6));
}

/* A message that goes from worker to worker while they are being stopped. */
static struct workers *ring_workers;
static _Atomic unsigned hops_left;

static void hop(void *arg)
{
    unsigned left = atomic_load(&hops_left);

    (void)arg;
    if (left == 0) {
        return;
    }
    if (left % 3 == 0) {
        fiber_sleep_ns(10000);
    }
    atomic_fetch_sub(&hops_left, 1);
    EQ(worker_post(workers_get(ring_workers, left % workers_count(ring_workers)), hop, NULL), 0);
}

static void stopped_together(void)
{
    for (unsigned i = 0; i < 5; i++) {
        EQ(workers_start(4, &ring_workers), 0);
        hops_left = 100;
        EQ(worker_post(workers_get(ring_workers, 3), hop, NULL), 0);
        workers_stop(ring_workers);
        EQ(hops_left, 0);
    }
}

static int start_and_stop(void *arg)
{
    struct worker *w;

    EQ(worker_start("inner", &w), 0);
    EQ(worker_call(w, count, arg), 0);
    worker_stop(w);
    return 0;
}

static void stop_each(void *arg)
{
    start_and_stop(arg);
}

/* Fibers of one worker that each make a worker and end it, all at once. */
static int stop_many(void *arg)
{
    struct fgroup group;

    fgroup_init(&group);
    for (unsigned i = 0; i < 20; i++) {
        EQ(fgroup_spawn(&group, stop_each, arg), 0);
    }
    fgroup_wait(&group, false);
    return 0;
}

static void stopped_from_fibers(void)
{
    _Atomic unsigned n = 0;

    EQ(worker_main(stop_many, &n), 0);
    EQ(n, 20);
}

static void too_many_workers(void)
{
    static struct worker *w[WORKERS_MAX];
    unsigned n = 0;
    int r = 0;

    while (n < WORKERS_MAX && r == 0) {
        r = worker_start("many", &w[n]);
        n += r == 0;
    }
    if (r == 0) {
        struct worker *one_more = NULL;

        EQ(worker_start("more", &one_more), -EAGAIN);
    } else {
        OK(r == -EAGAIN || r == -EMFILE || r == -ENOMEM); /* the limits of this place are lower */
    }
    while (n > 0) {
        worker_stop(w[--n]);
    }
}

/* Pairs of fibers on different workers wake each other in turn. */
struct pair {
    _Atomic unsigned turn;
    struct fiber *_Atomic fiber[2];
    _Atomic unsigned finished;
};

struct player {
    struct pair *pair;
    unsigned side;
    unsigned rounds;
};

static _Atomic unsigned players_done;

static void play(void *arg)
{
    struct player *p = arg;
    struct pair *pair = p->pair;
    unsigned other_side = 1 - p->side;

    atomic_store(&pair->fiber[p->side], fiber_self());
    for (unsigned i = 0; i < p->rounds; i++) {
        while (atomic_load(&pair->turn) != 2 * i + p->side) {
            fiber_park(false, DEADLINE_NONE);
        }
        while (!atomic_load(&pair->fiber[other_side])) {
            fiber_sleep_ns(500000);
        }
        atomic_fetch_add(&pair->turn, 1);
        fiber_wake_from(atomic_load(&pair->fiber[other_side]));
    }
    /* Neither may end while the other may still wake it. */
    atomic_fetch_add(&pair->finished, 1);
    while (atomic_load(&pair->finished) < 2) {
        fiber_sleep_ns(500000);
    }
    atomic_fetch_add(&players_done, 1);
}

static void ping_pong_at_scale(void)
{
    enum { WORKERS = 8, PAIRS = CONTEXT_TSAN ? 300 : CONTEXT_ASAN ? 2000 : 10000, ROUNDS = 4 };
    struct workers *ws;
    struct pair *pairs = calloc(PAIRS, sizeof *pairs);
    struct player *players = calloc((size_t)2 * PAIRS, sizeof *players);

    players_done = 0;
    EQ(workers_start(WORKERS, &ws), 0);
    for (unsigned i = 0; i < 2 * PAIRS; i++) {
        players[i] = (struct player){&pairs[i / 2], i % 2, ROUNDS};
        /* the two of a pair on different workers */
        EQ(worker_post(workers_get(ws, (i / 2 + i % 2 * (1 + i % 7)) % WORKERS), play, &players[i]),
           0);
    }
    workers_stop(ws);
    EQ(players_done, 2 * PAIRS);
    free(players);
    free(pairs);
}

int main(void)
{
    RUN(main_returns);
    RUN(main_waits_for_all_fibers);
    RUN(posts_are_run_before_the_end);
    RUN(calls_from_a_thread);
    RUN(calls_between_workers);
    RUN(exit_hooks_run_last_first);
    RUN(indices_are_unique);
    RUN(short_lives);
    RUN(stopped_together);
    RUN(stopped_from_fibers);
    RUN(too_many_workers);
    RUN(ping_pong_at_scale);
    return tap_done();
}
