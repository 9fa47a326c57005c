/*
 * The client against a server that goes away, comes back, lies, fails, or does not answer, and
 * requests that are canceled.
 */
#include "client_fixture.h"

/* --- loss, lies, errors --- */

static int loss(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    atomic_store(&m->batch, MINI_BATCH_MAX);
    atomic_store(&m->hang_up_after, 16);
    run_all(v, 16, false);
    for (unsigned i = 0; i < 16; i++) {
        EQ(tasks[i].result, -ECONNRESET);
        OK(strstr(tasks[i].err.text, "closed the connection"));
        STREQ(tasks[i].err.text, tasks[0].err.text);
        STREQ(tasks[i].err.endpoint, m->uri);
    }
    run_all(v, 2, true);
    EQ(tasks[1].result, -ECONNRESET);
    STREQ(tasks[1].err.text, tasks[0].err.text);
    volume_close(v);
    return 0;
}

static void a_lost_connection_fails_all(void)
{
    struct mini m = {.batch = 1};
    in_fiber(loss, &m);
}

static int lie(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    atomic_store(&m->batch, MINI_BATCH_MAX);
    atomic_store(&m->lie_after, 8);
    run_all(v, 8, false);
    for (unsigned i = 0; i < 8; i++) {
        EQ(tasks[i].result, -EPROTO);
        OK(strstr(tasks[i].err.text, "no request that waits for one (cookie 0xdead)"));
    }
    run_all(v, 1, false);
    EQ(tasks[0].result, -EPROTO);
    volume_close(v);
    EQ(m->disconnects, 0); /* no farewell for liars */
    return 0;
}

static void a_lie_fails_all(void)
{
    struct mini m = {.batch = 1};
    in_fiber(lie, &m);
}

static int server_error(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    atomic_store(&m->fail_at, 2 * PIECE);
    run_all(v, 4, true);
    EQ(tasks[1].result, 0);
    EQ(tasks[2].result, -EIO);
    STREQ(tasks[2].err.text, "the server failed WRITE: \"oops\"");
    EQ(tasks[2].err.offset, 2 * PIECE);
    EQ(tasks[3].result, 0);
    volume_close(v);
    return 0;
}

static void an_error_fails_one(void)
{
    struct mini m = {.batch = 1};
    in_fiber(server_error, &m);
}

/* --- reconnecting --- */

#define PATIENCE 60000000000ull

static int reconnect(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_patient(m, 0, PATIENCE);
    run_all(v, 64, true);
    EQ(volume_flush(v, NULL), 0);
    for (unsigned round = 0; round < 3; round++) {
        /* 64 reads again, and a loss in their middle */
        atomic_store(&m->hang_up_after, m->requests + 20);
        run_all(v, 64, false);
        for (unsigned i = 0; i < 64; i++) {
            EQ(tasks[i].result, 0);
            OK(tasks[i].err.code == 0 && has_pattern(&tasks[i], i));
        }
        EQ(m->connections, round + 2);
    }
    EQ(volume_flush(v, NULL), 0);
    struct nbd_client_info info;
    nbd_client_info(v, &info);
    EQ(info.connections, 1);
    volume_close(v);
    return 0;
}

static void reads_outlive_connections(void)
{
    struct mini m = {.flags = NBD_FLAG_SEND_FLUSH, .batch = 1};
    in_fiber(reconnect, &m);
}

static int reconnect_lanes(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_patient(m, 0, PATIENCE);
    atomic_store(&m->hang_up_after, 70);
    use_from_workers_then(v, -EIO);
    return 0;
}

static void lanes_outlive_connections(void)
{
    struct mini m = {.flags = MULTI, .batch = 1};
    in_fiber(reconnect_lanes, &m);
    struct mini one = {.flags = NBD_FLAG_SEND_FLUSH, .batch = 1};
    in_fiber(reconnect_lanes, &one);
}

static int flush_of_lost_writes(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_patient(m, 0, PATIENCE);
    struct error err = {0};
    run_all(v, 4, true);
    EQ(volume_flush(v, NULL), 0);
    run_all(v, 4, true);
    atomic_store(&m->hang_up_after, m->requests + 1);
    run_all(v, 4, false);
    EQ(tasks[3].result, 0);
    EQ(m->connections, 2);
    EQ(volume_flush(v, &err), -EIO);
    OK(strstr(err.text, "had not been flushed"));
    volume_close(v);
    return 0;
}

static void a_flush_does_not_cover_up_a_loss(void)
{
    struct mini m = {.flags = NBD_FLAG_SEND_FLUSH, .batch = 1};
    in_fiber(flush_of_lost_writes, &m);
}

static int gone_for_good(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_patient(m, 0, 100000000);
    atomic_store(&m->hang_up_after, 2);
    run_all(v, 4, false);
    for (unsigned i = 1; i < 4; i++) {
        EQ(tasks[i].result, -ECONNRESET);
        OK(strstr(tasks[i].err.text, "given up after 0 seconds: "));
    }
    volume_close(v);
    return 0;
}

static void a_server_that_does_not_come_back(void)
{
    struct mini m = {.batch = 1, .connections_max = 1};
    in_fiber(gone_for_good, &m);
}

static int lies_again(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_patient(m, 0, PATIENCE);
    atomic_store(&m->lie_after, 1);
    run_all(v, 1, false);
    EQ(tasks[0].result, -EPROTO);
    EQ(m->connections, 1);
    volume_close(v);
    v = open_patient(m, 0, PATIENCE);
    atomic_store(&m->size_step, 512);
    atomic_store(&m->hang_up_after, m->requests + 1);
    run_all(v, 1, false);
    EQ(tasks[0].result, -EPROTO);
    OK(strstr(tasks[0].err.text, "on one connection"));
    volume_close(v);
    return 0;
}

static void no_second_chance_for_liars(void)
{
    struct mini m = {.batch = 1};
    in_fiber(lies_again, &m);
}

static int cancel_waiting(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_patient(m, 0, PATIENCE);
    struct fgroup g;
    atomic_store(&m->hang_up_after, 1);
    init_task(&tasks[0], v, 0, false);
    fgroup_init(&g);
    fgroup_spawn(&g, run_task, &tasks[0]);
    WAIT_FOR(m->connections >= 2);
    fgroup_cancel(&g);
    fgroup_wait(&g, false);
    OK(tasks[0].result < 0);
    volume_close(v);
    return 0;
}

static void waiting_for_a_server_can_be_canceled(void)
{
    struct mini m = {.batch = 1, .connections_max = 1};
    in_fiber(cancel_waiting, &m);
}

/* --- cancellation --- */

/* Answered after it was canceled: the connection stays good. */
static int cancel_in_time(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    struct fgroup g;
    nbd_cancel_grace_ns = 60000000000ull;
    atomic_store(&m->batch, 2);
    init_task(&tasks[0], v, 0, false);
    fgroup_init(&g);
    fgroup_spawn(&g, run_task, &tasks[0]);
    WAIT_FOR(m->requests == 1);
    fgroup_cancel(&g);
    fiber_yield();
    OK(!tasks[0].done);
    init_task(&tasks[1], v, 1, false);
    fgroup_spawn(&g, run_task, &tasks[1]);
    fgroup_wait(&g, false);
    OK(tasks[0].done && tasks[1].done);
    EQ(tasks[1].result, 0);
    atomic_store(&m->batch, 1);
    EQ(volume_read(v, tasks[0].buf, PIECE, 0, NULL), 0);
    volume_close(v);
    EQ(m->connections, 1);
    return 0;
}

static void canceled_but_answered(void)
{
    struct mini m = {.batch = 1};
    in_fiber(cancel_in_time, &m);
}

static int cancel_mute(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    struct fgroup g;
    nbd_cancel_grace_ns = 10000000;
    atomic_store(&m->mute, true);
    fgroup_init(&g);
    for (unsigned i = 0; i < 4; i++) {
        init_task(&tasks[i], v, i, i % 2);
        fgroup_spawn(&g, run_task, &tasks[i]);
    }
    WAIT_FOR(m->requests == 4);
    fgroup_cancel(&g);
    fgroup_wait(&g, false);
    for (unsigned i = 0; i < 4; i++) {
        EQ(tasks[i].result, -ECANCELED);
    }
    EQ(volume_read(v, tasks[0].buf, PIECE, 0, &tasks[0].err), -ECONNABORTED);
    volume_close(v);
    return 0;
}

static void canceled_and_never_answered(void)
{
    struct mini m = {.batch = 1};
    in_fiber(cancel_mute, &m);
}

/* The socket is full in the middle of a request. */
static int cancel_deaf(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    struct fgroup g;
    nbd_cancel_grace_ns = 10000000;
    atomic_store(&m->deaf, true);
    fgroup_init(&g);
    /* the server may be inside its recv() already; more than any socket takes besides that */
    for (unsigned i = 0; i < TASKS; i++) {
        init_task(&tasks[i], v, i, true);
        fgroup_spawn(&g, run_task, &tasks[i]);
    }
    for (int i = 0; i < 5; i++) {
        fiber_yield();
    }
    fgroup_cancel(&g);
    fgroup_wait(&g, false);
    for (unsigned i = 0; i < TASKS; i++) {
        OK(tasks[i].done && (tasks[i].result == -ECANCELED || tasks[i].result == 0));
    }
    volume_close(v);
    return 0;
}

static void canceled_while_sending(void)
{
    struct mini m = {.batch = 1};
    in_fiber(cancel_deaf, &m);
}

struct remote_reader {
    struct task *t;
    atomic_int stage;
};

static void remote_part(void *arg)
{
    struct remote_reader *r = arg;
    struct fgroup g;
    fgroup_init(&g);
    fgroup_spawn(&g, run_task, r->t);
    atomic_store(&r->stage, 1);
    while (atomic_load(&r->stage) != 2) {
        fiber_sleep_ns(1000000);
    }
    fgroup_cancel(&g);
    fgroup_wait(&g, false);
}

struct remote_post {
    struct worker *w;
    struct remote_reader *r;
};

static void post_remote(void *arg)
{
    struct remote_post *p = arg;
    EQ(worker_call(p->w, remote_part, p->r), 0);
}

static int cancel_remote(void *arg)
{
    struct mini *m = arg;
    struct volume *v = open_volume(m, 0);
    struct worker *w;
    struct fgroup g;
    nbd_cancel_grace_ns = 10000000;
    atomic_store(&m->mute, true);
    EQ(worker_start("other", &w), 0);
    init_task(&tasks[0], v, 0, false);
    struct remote_reader r = {.t = &tasks[0]};
    struct remote_post p = {w, &r};
    fgroup_init(&g);
    fgroup_spawn(&g, post_remote, &p);
    WAIT_FOR(m->requests == 1);
    atomic_store(&r.stage, 2);
    fgroup_wait(&g, false);
    EQ(tasks[0].result, -ECANCELED);
    EQ(m->connections, 1);
    volume_close(v);
    worker_stop(w);
    return 0;
}

static void canceled_on_another_worker(void)
{
    struct mini m = {.batch = 1};
    in_fiber(cancel_remote, &m);
}

int main(void)
{
    nbd_client_register();
    RUN(a_lost_connection_fails_all);
    RUN(a_lie_fails_all);
    RUN(an_error_fails_one);
    RUN(reads_outlive_connections);
    RUN(lanes_outlive_connections);
    RUN(a_flush_does_not_cover_up_a_loss);
    RUN(a_server_that_does_not_come_back);
    RUN(no_second_chance_for_liars);
    RUN(waiting_for_a_server_can_be_canceled);
    RUN(canceled_but_answered);
    RUN(canceled_and_never_answered);
    RUN(canceled_while_sending);
    RUN(canceled_on_another_worker);
    return tap_done();
}
