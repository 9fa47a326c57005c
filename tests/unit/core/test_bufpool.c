/* Buffers: sizes and alignment, the bound and who waits at it, reuse. */
#include "core/bufpool.h"

#include <errno.h>

#include "core/fiber.h"
#include "core/worker.h"
#include "tap.h"

static void sizes_and_alignment(void)
{
    static const size_t sizes[] = {1, 4095, 4096, 4097, 65536, 262144, 262145, 2097152, 67108864};
    void *p;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *c;

        EQ(bufpool_get(sizes[i], &p), 0);
        c = p;
        EQ((uintptr_t)p % 4096, 0);
        c[0] = 1;
        c[sizes[i] - 1] = 2;
        OK(bufpool_in_use() >= sizes[i]);
        bufpool_put(p, sizes[i]);
        EQ(bufpool_in_use(), 0);
    }
    EQ(bufpool_get(0, &p), -EINVAL);
    EQ(bufpool_get((size_t)BUFPOOL_BUFFER_MAX + 1, &p), -EINVAL);
    OK(!bufpool_try_get(0));
    bufpool_put(NULL, 4096);
}

static void limit_refuses_who_cannot_wait(void)
{
    void *p;

    EQ(bufpool_get(BUFPOOL_BUFFER_MAX, &p), 0);
    OK(!bufpool_try_get(4096));
    bufpool_put(p, BUFPOOL_BUFFER_MAX);
    p = bufpool_try_get(4096);
    OK(p);
    bufpool_put(p, 4096);
}

static uint64_t now = 1;
static bool got;
static int result;

static void take_small(void *arg)
{
    void *p;

    (void)arg;
    result = bufpool_get(4096, &p);
    got = true;
    if (result == 0) {
        bufpool_put(p, 4096);
    }
}

static void limit_makes_wait(void)
{
    struct worker *w;
    struct fiber *f;
    void *p;

    EQ(worker_new_stepped(&now, &w), 0);
    EQ(bufpool_get(BUFPOOL_BUFFER_MAX, &p), 0);
    fiber_spawn(take_small, NULL, &f);
    worker_step(w, false);
    OK(!got);
    fiber_cancel(f);
    worker_step(w, false);
    OK(got);
    EQ(result, -ECANCELED);
    got = false;
    fiber_spawn(take_small, NULL, NULL);
    worker_step(w, false);
    OK(!got);
    bufpool_put(p, BUFPOOL_BUFFER_MAX);
    worker_step(w, false);
    OK(got);
    EQ(result, 0);
    EQ(bufpool_in_use(), 0);
    worker_free(w);
}

static void reuse_on_a_worker(void)
{
    struct worker *w;
    void *p;
    void *q;

    EQ(worker_new_stepped(&now, &w), 0);
    EQ(bufpool_get(5000, &p), 0);
    bufpool_put(p, 5000);
    EQ(bufpool_get(8192, &q), 0);
    OK(p == q);
    memset(q, 0xff, 8192);
    bufpool_put(q, 8192);
    bufpool_trim();
    worker_free(w);
}

/* Buffers travel: taken on one worker, given back on another. */
enum { WORKERS = 4, ROUNDS = 500 };

static struct workers *workers;

struct travel {
    void *buf;
    size_t len;
};

static void put_elsewhere(void *arg)
{
    struct travel *t = arg;

    bufpool_put(t->buf, t->len);
}

static void travel(void *arg)
{
    unsigned me = worker_index(worker_self());

    (void)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct travel t = {.len = (size_t)4096 << (i + me) % 8};

        EQ(bufpool_get(t.len, &t.buf), 0);
        memset(t.buf, (int)i, 64);
        if (i % 16 == 0) {
            EQ(worker_call(workers_get(workers, (i / 16 + me) % WORKERS), put_elsewhere, &t), 0);
        } else {
            bufpool_put(t.buf, t.len);
        }
    }
}

static void travel_there(void *arg)
{
    EQ(worker_call(arg, travel, NULL), 0);
}

static int travel_everywhere(void *arg)
{
    struct fgroup group;

    (void)arg;
    EQ(workers_start(WORKERS, &workers), 0);
    fgroup_init(&group);
    for (unsigned i = 0; i < 2 * WORKERS; i++) {
        EQ(fgroup_spawn(&group, travel_there, workers_get(workers, i % WORKERS)), 0);
    }
    fgroup_wait(&group, false); /* they speak to each other: none is stopped before all are done */
    workers_stop(workers);
    return 0;
}

static void buffers_travel(void)
{
    EQ(worker_main(travel_everywhere, NULL), 0);
    EQ(bufpool_in_use(), 0);
}

int main(void)
{
    bufpool_set_limit(1); /* the smallest there is: one buffer of the largest size */
    RUN(sizes_and_alignment);
    RUN(limit_refuses_who_cannot_wait);
    RUN(limit_makes_wait);
    RUN(reuse_on_a_worker);
    RUN(buffers_travel);
    bufpool_trim();
    return tap_done();
}
