/*
 * The client as a volume against mini_server.h: many requests at once and out of order, lanes of
 * several workers, flush. What goes wrong is test_client_loss.c's.
 */
#include "client_fixture.h"

/* --- many at once, answered backwards; more of them than a connection has slots --- */

static int many(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    atomic_store(&m->batch, MINI_BATCH_MAX); /* divides TASKS: nobody is left waiting */
    run_all(v, TASKS, true);
    run_all(v, TASKS, false);
    for (unsigned i = 0; i < TASKS; i++) {
        EQ(tasks[i].result, 0);
        OK(has_pattern(&tasks[i], i));
    }
    atomic_store(&m->batch, 1);
    EQ(volume_flush(v, NULL), 0);
    EQ(m->flushes, 1);
    struct nbd_client_info info;
    OK(nbd_client_is(v));
    nbd_client_info(v, &info);
    EQ(info.connections, 1);
    OK(info.structured && !info.extended && info.receives > 0);
    volume_close(v);
    WAIT_FOR(m->disconnects == 1);
    return 0;
}

static void many_requests_out_of_order(void)
{
    struct mini m = {.flags = NBD_FLAG_SEND_FLUSH, .batch = 1};
    in_fiber(many, &m);
}

/* --- workers and lanes --- */

static int lane_each(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    use_from_workers(v);
    EQ(m->connections, 5);
    WAIT_FOR(m->disconnects == 5);
    return 0;
}

static void a_lane_for_each_worker(void)
{
    struct mini m = {.flags = MULTI, .batch = 1};
    in_fiber(lane_each, &m);
}

static int lane_shared(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    EQ(volume_lanes(v), 1);
    use_from_workers(v);
    EQ(m->connections, 1);
    return 0;
}

static void one_lane_without_multi_conn(void)
{
    struct mini m = {.flags = NBD_FLAG_SEND_FLUSH, .batch = 1};
    in_fiber(lane_shared, &m);
}

static int lanes_limited(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 2);
    use_from_workers(v);
    EQ(m->connections, 2);
    return 0;
}

static void lanes_as_asked_for(void)
{
    struct mini m = {.flags = MULTI, .batch = 1};
    in_fiber(lanes_limited, &m);
}

static int lanes_refused(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    use_from_workers(v);
    WAIT_FOR(m->disconnects == 2);
    return 0;
}

static void a_server_with_few_places(void)
{
    struct mini m = {.flags = MULTI, .batch = 1, .connections_max = 2};
    in_fiber(lanes_refused, &m);
}

static int lanes_differ(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    struct worker *w;
    atomic_store(&m->size_step, 512);
    EQ(worker_start("other", &w), 0);
    init_task(&tasks[0], v, 0, false);
    EQ(worker_call(w, run_task, &tasks[0]), 0);
    EQ(tasks[0].result, -EPROTO);
    OK(strstr(tasks[0].err.text, "4194304 bytes on one connection and 4193792 on the next"));
    volume_close(v);
    worker_stop(w);
    return 0;
}

static void another_export_on_the_second_lane(void)
{
    struct mini m = {.flags = MULTI, .batch = 1};
    in_fiber(lanes_differ, &m);
}

/* A worker that ends takes its lane along; the volume lives on. */
static int lane_ends(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    struct worker *w;
    for (unsigned i = 0; i < 2; i++) {
        EQ(worker_start("other", &w), 0);
        init_task(&tasks[0], v, 0, false);
        EQ(worker_call(w, run_task, &tasks[0]), 0);
        EQ(tasks[0].result, 0);
        worker_stop(w);
        WAIT_FOR(m->disconnects == i + 1);
    }
    EQ(volume_read(v, tasks[0].buf, PIECE, 0, NULL), 0);
    volume_close(v);
    EQ(m->connections, 3);
    return 0;
}

static void a_lane_ends_with_its_worker(void)
{
    struct mini m = {.flags = MULTI, .batch = 1};
    in_fiber(lane_ends, &m);
}

/* --- flush and writes in flight on another lane --- */

static void run_flush(void *arg)
{
    struct task *t = arg;
    t->result = volume_flush(t->v, &t->err);
    atomic_store(&t->done, true);
}

static int flush_after_writes(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    struct worker *w;
    struct fgroup g;
    EQ(worker_start("other", &w), 0);
    atomic_store(&m->hold_writes, true);
    init_task(&tasks[0], v, 0, true);
    init_task(&tasks[1], v, 1, false);
    EQ(worker_post(w, run_task, &tasks[0]), 0);
    WAIT_FOR(m->held == 1);
    EQ(volume_read(v, tasks[2].buf, PIECE, 0, NULL), 0); /* a read is not held up */
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, run_flush, &tasks[1]), 0);
    for (int i = 0; i < 20; i++) {
        fiber_sleep_ns(1000000); /* a wrong flush has time to show; a right one does not mind */
    }
    EQ(m->flushes, 0);
    atomic_store(&m->hold_writes, false);
    fgroup_wait(&g, false);
    WAIT_FOR(tasks[0].done);
    EQ(tasks[1].result, 0);
    EQ(tasks[0].result, 0);
    EQ(m->flushes, 1);
    EQ(m->flushes_while_held, 0);
    volume_close(v);
    worker_stop(w);
    return 0;
}

static void flush_comes_after_writes_on_other_lanes(void)
{
    struct mini m = {.flags = MULTI, .batch = 1};
    in_fiber(flush_after_writes, &m);
}

int main(void)
{
    nbd_client_register();
    RUN(many_requests_out_of_order);
    RUN(a_lane_for_each_worker);
    RUN(one_lane_without_multi_conn);
    RUN(lanes_as_asked_for);
    RUN(a_server_with_few_places);
    RUN(another_export_on_the_second_lane);
    RUN(a_lane_ends_with_its_worker);
    RUN(flush_comes_after_writes_on_other_lanes);
    return tap_done();
}
