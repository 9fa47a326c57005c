/* Mutex, condition, semaphore: order and cancellation step by step, then under load from several
 * workers and plain threads at once. */
#include "core/fsync.h"

#include <errno.h>
#include <stdatomic.h>

#include "core/context.h"
#include "core/fiber.h"
#include "core/worker.h"
#include "tap.h"

static uint64_t now;
static struct worker *worker;
static char trace[256];

static void begin(void)
{
    now = 1000;
    trace[0] = '\0';
    EQ(worker_new_stepped(&now, &worker), 0);
}

static void end(void)
{
    worker_free(worker);
}

static void step(void)
{
    while (worker_step(worker, false) > 0) {
    }
}

static void note(char c)
{
    size_t len = strlen(trace);

    if (len + 1 < sizeof trace) {
        trace[len] = c;
        trace[len + 1] = '\0';
    }
}

static struct fmutex mutex;
static struct fcond cond;
static struct fsem sem;

static void lock_note_unlock(void *arg)
{
    fmutex_lock(&mutex);
    fiber_sleep_ns(10); /* -ECANCELED where it is canceled */
    note(*(char *)arg);
    fmutex_unlock(&mutex);
}

static char letters[] = "abcdefgh";

static void mutex_is_fair_and_not_canceled(void)
{
    struct fiber *f[3];

    begin();
    fmutex_init(&mutex);
    for (unsigned i = 0; i < 3; i++) {
        fiber_spawn(lock_note_unlock, &letters[i], &f[i]);
    }
    step();
    OK(!fmutex_trylock(&mutex));
    fiber_cancel(f[1]); /* it waits on */
    step();
    for (unsigned i = 0; i < 4; i++) {
        now += 10;
        step();
    }
    STREQ(trace, "abc");
    OK(fmutex_trylock(&mutex));
    fmutex_unlock(&mutex);
    fmutex_done(&mutex);
    end();
}

static int cond_result[4];

struct cond_waiter {
    unsigned i;
    uint64_t deadline;
};

static void wait_for_cond(void *arg)
{
    struct cond_waiter *c = arg;

    fmutex_lock(&mutex);
    cond_result[c->i] = fcond_wait(&cond, &mutex, c->deadline);
    note(letters[c->i]);
    fmutex_unlock(&mutex);
}

static void cond_wakes_times_out_and_is_canceled(void)
{
    static struct cond_waiter c[4] = {
        {0, DEADLINE_NONE}, {1, 2000}, {2, DEADLINE_NONE}, {3, DEADLINE_NONE}};
    struct fiber *f[4];

    begin();
    fmutex_init(&mutex);
    fcond_init(&cond);
    for (unsigned i = 0; i < 4; i++) {
        cond_result[i] = 1;
        fiber_spawn(wait_for_cond, &c[i], &f[i]);
    }
    step();
    fcond_signal(&cond);
    step();
    STREQ(trace, "a");
    now = 2000;
    step();
    STREQ(trace, "ab");
    fiber_cancel(f[2]);
    step();
    STREQ(trace, "abc");
    fcond_broadcast(&cond);
    fcond_broadcast(&cond);
    step();
    STREQ(trace, "abcd");
    EQ(cond_result[0], 0);
    EQ(cond_result[1], -ETIMEDOUT);
    EQ(cond_result[2], -ECANCELED);
    EQ(cond_result[3], 0);
    fcond_done(&cond);
    fmutex_done(&mutex);
    end();
}

/* A waiter that is signalled and canceled before it runs has got the signal. */
static void signal_is_not_lost_to_cancellation(void)
{
    static struct cond_waiter c = {0, DEADLINE_NONE};
    struct fiber *f;

    begin();
    fmutex_init(&mutex);
    fcond_init(&cond);
    fiber_spawn(wait_for_cond, &c, &f);
    step();
    fiber_cancel(f);
    fcond_signal(&cond);
    step();
    EQ(cond_result[0], 0);
    fcond_done(&cond);
    fmutex_done(&mutex);
    end();
}

struct taker {
    uint64_t n;
    int result;
    char name;
};

static void take(void *arg)
{
    struct taker *t = arg;

    t->result = fsem_take(&sem, t->n);
    note(t->name);
}

static void sem_is_in_order(void)
{
    struct taker big = {10, 1, 'B'};
    struct taker small = {1, 1, 's'};
    struct taker huge = {100, 1, 'H'}; /* above the total: all of it */
    struct fiber *f;

    begin();
    fsem_init(&sem, 10);
    OK(fsem_try_take(&sem, 3));
    fiber_spawn(take, &big, NULL);
    fiber_spawn(take, &small, NULL);
    step();
    STREQ(trace, ""); /* the small one does not pass */
    OK(!fsem_try_take(&sem, 1));
    fsem_give(&sem, 3);
    step();
    STREQ(trace, "B");
    fsem_give(&sem, 10);
    step();
    STREQ(trace, "Bs");
    fiber_spawn(take, &huge, NULL);
    step();
    STREQ(trace, "Bs");
    fsem_give(&sem, 1);
    step();
    STREQ(trace, "BsH");
    fsem_give(&sem, 100);

    /* canceling the big one lets the small one behind it through */
    trace[0] = '\0';
    OK(fsem_try_take(&sem, 3));
    fiber_spawn(take, &big, &f);
    fiber_spawn(take, &small, NULL);
    step();
    fiber_cancel(f);
    step();
    STREQ(trace, "Bs");
    EQ(big.result, -ECANCELED);
    EQ(small.result, 0);
    fsem_give(&sem, 4);
    EQ(sem.free, 10);

    /* granted and canceled before it runs: it has it */
    OK(fsem_try_take(&sem, 10));
    fiber_spawn(take, &big, &f);
    step();
    fiber_cancel(f);
    fsem_give(&sem, 10);
    step();
    EQ(big.result, 0);
    EQ(sem.free, 0);
    fsem_give(&sem, 10);
    fsem_done(&sem);
    end();
}

/* Under load. Everything below runs on several workers and on a plain thread. */
enum {
    WORKERS = 4,
    FIBERS = 16,
    ROUNDS = CONTEXT_TSAN || CONTEXT_ASAN ? 100 : 300,
};

static struct workers *workers;
static uint64_t plain_counter; /* under mutex: TSan says when it is not */
static _Atomic uint64_t expected;

static void on_all_workers(worker_fn *fn)
{
    EQ(workers_start(WORKERS, &workers), 0);
    for (unsigned i = 0; i < WORKERS * FIBERS; i++) {
        EQ(worker_post(workers_get(workers, i % WORKERS), fn, NULL), 0);
    }
    fn(NULL); /* a plain thread joins in */
    workers_stop(workers);
}

static void add_under_mutex(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t before;

        if (i % 3 == 0 && !fmutex_trylock(&mutex)) {
            continue;
        }
        if (i % 3 != 0) {
            fmutex_lock(&mutex);
        }
        before = plain_counter;
        if (i % 16 == 1 && fiber_self()) {
            fiber_yield();
        }
        plain_counter = before + 1;
        fmutex_unlock(&mutex);
        atomic_fetch_add(&expected, 1);
    }
}

static void mutex_under_load(void)
{
    fmutex_init(&mutex);
    plain_counter = 0;
    expected = 0;
    on_all_workers(add_under_mutex);
    EQ(plain_counter, expected);
    fmutex_done(&mutex);
}

/* A bounded queue: producers and consumers meet on one condition. */
static uint64_t queue_len;
static uint64_t produced;
static uint64_t consumed;

static void produce_and_consume(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        fmutex_lock(&mutex);
        while (queue_len >= 8) {
            fcond_wait(&cond, &mutex, DEADLINE_NONE);
        }
        queue_len++;
        produced++;
        fcond_broadcast(&cond);
        fmutex_unlock(&mutex);

        fmutex_lock(&mutex);
        while (queue_len == 0) {
            fcond_wait(&cond, &mutex, DEADLINE_NONE);
        }
        queue_len--;
        consumed++;
        fcond_signal(&cond);
        fmutex_unlock(&mutex);
    }
}

static void cond_under_load(void)
{
    fmutex_init(&mutex);
    fcond_init(&cond);
    queue_len = produced = consumed = 0;
    on_all_workers(produce_and_consume);
    EQ(queue_len, 0);
    EQ(produced, (WORKERS * FIBERS + 1) * ROUNDS);
    EQ(consumed, produced);
    fcond_done(&cond);
    fmutex_done(&mutex);
}

static _Atomic int64_t units_out;
static _Atomic unsigned canceled_takes;

static void take_and_give(void *arg)
{
    uint64_t n = (uintptr_t)&n / 64 % 5 + 1;

    (void)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (fsem_take(&sem, n) < 0) {
            atomic_fetch_add(&canceled_takes, 1);
            return;
        }
        OK(atomic_fetch_add(&units_out, (int64_t)n) + (int64_t)n <= 7);
        if (i % 8 == 0 && fiber_self()) {
            fiber_yield();
        }
        atomic_fetch_sub(&units_out, (int64_t)n);
        fsem_give(&sem, n);
    }
}

/* Cancels its takers in the middle of their waits, again and again. */
static void canceling_owner(void *arg)
{
    if (!fiber_self()) {
        take_and_give(arg);
        return;
    }
    for (unsigned i = 0; i < 10; i++) {
        struct fgroup group;

        fgroup_init(&group);
        for (unsigned j = 0; j < 4; j++) {
            EQ(fgroup_spawn(&group, take_and_give, NULL), 0);
        }
        for (unsigned j = 0; j < i; j++) {
            fiber_yield();
        }
        fgroup_cancel(&group);
        fgroup_wait(&group, false);
    }
}

static void sem_under_load_and_cancellation(void)
{
    fsem_init(&sem, 7);
    on_all_workers(canceling_owner);
    EQ(sem.free, 7);
    fsem_done(&sem);
}

/* Deadlines race with signals: a wait ends either way, and a signal is never counted twice. */
static void timed_wait(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < ROUNDS / 10; i++) {
        uint64_t deadline = 0;

        if (fiber_self()) {
            deadline = worker_now_ns(worker_self()) + 20000;
        }
        fmutex_lock(&mutex);
        int r = fcond_wait(&cond, &mutex, deadline);
        OK(r == 0 || r == -ETIMEDOUT);
        fmutex_unlock(&mutex);
        fcond_signal(&cond);
    }
}

static void deadlines_under_load(void)
{
    fmutex_init(&mutex);
    fcond_init(&cond);
    on_all_workers(timed_wait);
    fcond_done(&cond);
    fmutex_done(&mutex);
}

int main(void)
{
    RUN(mutex_is_fair_and_not_canceled);
    RUN(cond_wakes_times_out_and_is_canceled);
    RUN(signal_is_not_lost_to_cancellation);
    RUN(sem_is_in_order);
    RUN(mutex_under_load);
    RUN(cond_under_load);
    RUN(sem_under_load_and_cancellation);
    RUN(deadlines_under_load);
    return tap_done();
}
