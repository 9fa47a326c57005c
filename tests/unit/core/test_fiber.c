/* Fibers on one worker, stepped by hand with a fake clock: order, parking, timers, cancellation,
 * groups; offload(). */
#include "core/fiber.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/context.h"
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
    OK(worker_self() == worker);
}

static void end(void)
{
    worker_free(worker);
    OK(worker_self() == NULL);
}

static void note(const char *what)
{
    size_t len = strlen(trace);

    snprintf(trace + len, sizeof trace - len, "%s ", what);
}

static void say(void *arg)
{
    note(arg);
}

static char *text(const char *s)
{
    union {
        const char *in;
        char *out;
    } u = {.in = s};

    return u.out;
}

static void say_yield_say(void *arg)
{
    char *s = arg;

    note(s);
    fiber_yield();
    note(s);
}

static void runs_in_order(void)
{
    begin();
    EQ(fiber_spawn(say, text("a"), NULL), 0);
    EQ(fiber_spawn(say_yield_say, text("b"), NULL), 0);
    EQ(fiber_spawn(say, text("c"), NULL), 0);
    STREQ(trace, "");
    EQ(worker_step(worker, false), 3);
    STREQ(trace, "a b c ");
    EQ(worker_step(worker, false), 1);
    STREQ(trace, "a b c b ");
    EQ(worker_step(worker, false), 0);
    end();
}

struct parked {
    bool cancelable;
    uint64_t deadline;
    int result;
    int runs;
};

static void park_once(void *arg)
{
    struct parked *p = arg;

    p->runs++;
    p->result = fiber_park(p->cancelable, p->deadline);
    p->runs++;
}

static void parks_and_wakes(void)
{
    struct parked p = {.deadline = DEADLINE_NONE, .result = 1};
    struct fiber *f;

    begin();
    fiber_spawn(park_once, &p, &f);
    EQ(worker_step(worker, false), 1);
    EQ(worker_step(worker, false), 0);
    EQ(p.runs, 1);
    fiber_wake(f);
    fiber_wake(f); /* has not run since: the same wake */
    EQ(worker_step(worker, false), 1);
    EQ(p.runs, 2);
    EQ(p.result, 0);
    end();
}

static void early_wake_is_kept(void)
{
    struct parked p = {.deadline = DEADLINE_NONE, .result = 1};
    struct fiber *f;

    begin();
    fiber_spawn(park_once, &p, &f);
    fiber_wake(f);
    EQ(worker_step(worker, false), 1);
    EQ(p.runs, 2);
    EQ(p.result, 0);
    end();
}

static void deadlines(void)
{
    struct parked late = {.deadline = 3000};
    struct parked early = {.deadline = 2000};
    struct parked past = {.deadline = 999};
    struct parked woken = {.deadline = 2500, .result = 1};
    struct fiber *f;

    begin();
    fiber_spawn(park_once, &late, NULL);
    fiber_spawn(park_once, &early, NULL);
    fiber_spawn(park_once, &past, NULL);
    fiber_spawn(park_once, &woken, &f);
    EQ(worker_step(worker, false), 4);
    EQ(past.result, -ETIMEDOUT);
    now = 1999;
    EQ(worker_step(worker, false), 0);
    now = 2000;
    EQ(worker_step(worker, false), 1);
    EQ(early.result, -ETIMEDOUT);
    fiber_wake(f);
    now = 2600;
    EQ(worker_step(worker, false), 1);
    EQ(woken.result, 0);
    now = 5000;
    EQ(worker_step(worker, false), 1);
    EQ(late.result, -ETIMEDOUT);
    end();
}

static void wake_after_timeout_is_kept(void)
{
    struct parked p = {.deadline = 2000};
    struct fiber *f;

    begin();
    fiber_spawn(park_once, &p, &f);
    worker_step(worker, false);
    now = 2000;
    fiber_cancel(f); /* not cancelable: nothing */
    EQ(worker_step(worker, false), 1);
    EQ(p.result, -ETIMEDOUT);
    end();
}

/* Many timers in a fixed pseudo-random order, some taken back, fire by deadline. */
struct sleeper {
    uint64_t deadline;
    struct fiber *fiber;
    bool woken;
};
static uint64_t last_deadline;
static unsigned fired;

static void sleeper_main(void *arg)
{
    struct sleeper *s = arg;
    int r = fiber_park(false, s->deadline);

    if (s->woken) {
        EQ(r, 0);
        return;
    }
    EQ(r, -ETIMEDOUT);
    OK(s->deadline >= last_deadline && s->deadline <= now);
    last_deadline = s->deadline;
    fired++;
}

static void many_timers(void)
{
    enum { COUNT = CONTEXT_TSAN ? 300 : 2000 };
    static struct sleeper s[COUNT];
    uint32_t seed = 12345;
    unsigned woken = 0;

    begin();
    last_deadline = fired = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        seed = seed * 1664525 + 1013904223;
        s[i] = (struct sleeper){.deadline = 2000 + (seed >> 8) % 5000};
        fiber_spawn(sleeper_main, &s[i], &s[i].fiber);
    }
    worker_step(worker, false);
    for (unsigned i = 0; i < COUNT; i += 3) {
        s[i].woken = true;
        woken++;
        fiber_wake(s[i].fiber);
    }
    EQ(worker_step(worker, false), woken);
    for (now = 2000; now <= 7000; now += 250) {
        worker_step(worker, false);
    }
    EQ(fired, COUNT - woken);
    end();
}

static int sleep_result;

static void sleep_a_while(void *arg)
{
    (void)arg;
    sleep_result = fiber_sleep_ns(500);
    note("slept");
    EQ(fiber_sleep_ns(0), 0);
    note("again");
}

static void sleeps(void)
{
    begin();
    fiber_spawn(sleep_a_while, NULL, NULL);
    EQ(worker_step(worker, false), 1);
    now += 499;
    EQ(worker_step(worker, false), 0);
    now += 1;
    EQ(worker_step(worker, false), 1);
    STREQ(trace, "slept ");
    EQ(sleep_result, 0);
    EQ(worker_step(worker, false), 1);
    STREQ(trace, "slept again ");
    end();
}

static void cancel_me_later(void *arg)
{
    (void)arg;
    EQ(fiber_sleep_ns(1000000), -ECANCELED);
    OK(fiber_canceled());
    EQ(fiber_sleep_ns(1), -ECANCELED);
    EQ(fiber_park(true, DEADLINE_NONE), -ECANCELED);
    fiber_shield();
    fiber_shield();
    OK(!fiber_canceled());
    note("shielded");
    EQ(fiber_sleep_ns(100), 0);
    fiber_unshield();
    EQ(fiber_sleep_ns(100), 0);
    fiber_unshield();
    EQ(fiber_sleep_ns(100), -ECANCELED);
    note("done");
}

static void cancels(void)
{
    struct fiber *f;

    begin();
    fiber_spawn(cancel_me_later, NULL, &f);
    worker_step(worker, false);
    fiber_cancel(f);
    fiber_cancel(f);
    worker_step(worker, false);
    worker_step(worker, false); /* the sleep of 1 ns yields when it is canceled */
    STREQ(trace, "shielded ");
    now += 100;
    worker_step(worker, false);
    fiber_cancel(f); /* again, while it is shielded */
    worker_step(worker, false);
    now += 100;
    worker_step(worker, false);
    worker_step(worker, false);
    STREQ(trace, "shielded done ");
    end();
}

static void uncancelable_wait(void)
{
    struct parked p = {.cancelable = false, .deadline = DEADLINE_NONE, .result = 1};
    struct fiber *f;

    begin();
    fiber_spawn(park_once, &p, &f);
    worker_step(worker, false);
    fiber_cancel(f);
    EQ(worker_step(worker, false), 0);
    fiber_wake(f);
    EQ(worker_step(worker, false), 1);
    EQ(p.result, 0);
    end();
}

static struct fgroup group;
static struct fiber *group_fiber;

static void member(void *arg)
{
    if (fiber_sleep_ns(*(uint64_t *)arg) == -ECANCELED) {
        note("canceled");
    } else {
        note("ended");
    }
}

static void group_owner(void *arg)
{
    static uint64_t sleeps_ns[] = {100, 200, 300};

    fgroup_init(&group);
    for (unsigned i = 0; i < 3; i++) {
        EQ(fgroup_spawn(&group, member, &sleeps_ns[i]), 0);
    }
    fgroup_wait(&group, *(bool *)arg);
    EQ(group.count, 0);
    note("all");
}

static void group_ends(void)
{
    bool along = false;

    begin();
    fiber_spawn(group_owner, &along, &group_fiber);
    for (unsigned i = 0; i < 5; i++) {
        worker_step(worker, false);
        now += 100;
    }
    STREQ(trace, "ended ended ended all ");
    end();
}

static void group_is_canceled(void)
{
    bool along = false;

    begin();
    fiber_spawn(group_owner, &along, &group_fiber);
    worker_step(worker, false);
    now += 100;
    worker_step(worker, false);
    fgroup_cancel(&group);
    worker_step(worker, false);
    worker_step(worker, false);
    STREQ(trace, "ended canceled canceled all ");
    end();
}

static void group_is_canceled_along(void)
{
    bool along = true;

    begin();
    fiber_spawn(group_owner, &along, &group_fiber);
    worker_step(worker, false);
    fiber_cancel(group_fiber);
    worker_step(worker, false);
    worker_step(worker, false);
    STREQ(trace, "canceled canceled canceled all ");
    end();

    along = false;
    begin();
    fiber_spawn(group_owner, &along, &group_fiber);
    worker_step(worker, false);
    fiber_cancel(group_fiber);
    worker_step(worker, false);
    STREQ(trace, "");
    now += 1000;
    worker_step(worker, false);
    worker_step(worker, false);
    STREQ(trace, "ended ended ended all ");
    end();
}

static int double_it(void *arg)
{
    return *(int *)arg * 2;
}

static void offload_it(void *arg)
{
    int *n = arg;

    *n = offload(double_it, n);
    note("offloaded");
}

static void offloads(void)
{
    int n = 21;

    begin();
    fiber_spawn(offload_it, &n, NULL);
    EQ(worker_step(worker, false), 1);
    while (trace[0] == '\0') {
        EQ(worker_step(worker, true), 1);
    }
    EQ(n, 42);
    EQ(worker_step(worker, true), 0);
    end();
    EQ(offload(double_it, &n), 84);
}

static pthread_t waker_thread;

static void *wake_from_thread(void *arg)
{
    fiber_wake_from(arg);
    fiber_wake_from(arg);
    return NULL;
}

static void wakes_from_threads(void)
{
    struct parked p = {.deadline = DEADLINE_NONE, .result = 1};
    struct fiber *f;

    begin();
    fiber_spawn(park_once, &p, &f);
    worker_step(worker, false);
    EQ(pthread_create(&waker_thread, NULL, wake_from_thread, f), 0);
    EQ(pthread_join(waker_thread, NULL), 0);
    EQ(worker_step(worker, false), 1);
    EQ(p.runs, 2);
    end();
}

static struct fiber *to_be_woken;

static void wake_the_other(void *arg)
{
    (void)arg;
    fiber_wake_from(to_be_woken); /* its mail is looked at when both have ended */
}

static void ends_quietly(void *arg)
{
    note(arg);
}

/* The mail that wakes a fiber arrives after its end: its stack is not used anew before. */
static void late_wake_of_an_ended_fiber(void)
{
    struct fiber *f;

    begin();
    fiber_spawn(wake_the_other, NULL, NULL);
    fiber_spawn(ends_quietly, text("a"), &to_be_woken);
    EQ(worker_step(worker, false), 2);
    fiber_spawn(ends_quietly, text("b"), &f);
    OK(f != to_be_woken);
    EQ(worker_step(worker, false), 1);
    STREQ(trace, "a b ");
    end();

    begin();
    fiber_spawn(wake_the_other, NULL, NULL);
    fiber_spawn(ends_quietly, text("c"), &to_be_woken);
    EQ(worker_step(worker, false), 2);
    end(); /* takes it out of the mail */
}

static unsigned depth_reached;

/* The compiler may not turn this into a loop. */
__attribute__((noinline)) static unsigned recurse(unsigned depth)
{
    volatile char frame[256];

    frame[0] = (char)depth;
    if (depth == 0) {
        return 0;
    }
    return recurse(depth - 1) + 1 + (unsigned)(frame[0] - (char)depth);
}

static void use_stack(void *arg)
{
    (void)arg;
    depth_reached = recurse(400);
}

static void deep_stacks(void)
{
    begin();
    for (unsigned i = 0; i < 3; i++) {
        depth_reached = 0;
        fiber_spawn(use_stack, NULL, NULL);
        worker_step(worker, false);
        EQ(depth_reached, 400);
    }
    end();
}

static void overflow_stack(void *arg)
{
    (void)arg;
    depth_reached = recurse(10000000);
}

static void overflow_hits_the_guard(void)
{
    static const struct rlimit no_core;
    int status = 0;
    pid_t pid;

    if (CONTEXT_ASAN || CONTEXT_TSAN) {
        SKIP("sanitizers take the fault for themselves");
        return;
    }
    pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &no_core);
        begin();
        fiber_spawn(overflow_stack, NULL, NULL);
        worker_step(worker, false);
        _exit(0);
    }
    EQ(waitpid(pid, &status, 0), pid);
    OK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static double sum;

static void float_sum(void *arg)
{
    double x = *(double *)arg;

    for (unsigned i = 0; i < 100; i++) {
        double y = x * 2;

        fiber_yield();
        sum += y;
    }
}

static void floats_survive(void)
{
    double x[] = {1.5, 2.5, 3.5};

    begin();
    sum = 0;
    for (unsigned i = 0; i < 3; i++) {
        fiber_spawn(float_sum, &x[i], NULL);
    }
    while (worker_step(worker, false) > 0) {
    }
    OK(sum > 1499.9 && sum < 1500.1);
    end();
}

int main(void)
{
    RUN(runs_in_order);
    RUN(parks_and_wakes);
    RUN(early_wake_is_kept);
    RUN(deadlines);
    RUN(wake_after_timeout_is_kept);
    RUN(many_timers);
    RUN(sleeps);
    RUN(cancels);
    RUN(uncancelable_wait);
    RUN(group_ends);
    RUN(group_is_canceled);
    RUN(group_is_canceled_along);
    RUN(offloads);
    RUN(wakes_from_threads);
    RUN(late_wake_of_an_ended_fiber);
    RUN(deep_stacks);
    RUN(floats_survive);
    RUN(overflow_hits_the_guard);
    return tap_done();
}
