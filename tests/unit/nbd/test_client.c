/*
 * The client as a volume against mini_server.h: many requests at once and out of order, lanes of
 * several workers, cancellation, a server that goes away, lies, or does not answer.
 */
#include "mini_server.h"
#include "nbd/client.h"
#include "nbd/connection.h"

#include "../tap.h"

#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/worker.h"

#include <errno.h>

#define PIECE 4096u
#define MULTI (NBD_FLAG_SEND_FLUSH | NBD_FLAG_CAN_MULTI_CONN)

/* Waits for what another thread or worker brings about. The limit is only for broken builds. */
#define WAIT_FOR(cond)                                  \
    do {                                                \
        for (int i_ = 0; !(cond) && i_ < 60000; i_++) { \
            fiber_sleep_ns(1000000);                    \
        }                                               \
        OK(cond);                                       \
    } while (0)

static struct volume *open_patient(const struct mini *m, unsigned connections,
                                   uint64_t reconnect_ns)
{
    struct endpoint_options o;
    struct volume *v = NULL;
    struct error err = {0};
    endpoint_options_init(&o);
    o.writable = true;
    o.connections = connections;
    o.reconnect_ns = reconnect_ns;
    if (!EQ(endpoint_open(m->uri, &o, &v, &err), 0)) {
        printf("# %s\n", err.text);
    }
    return v;
}

static struct volume *open_volume(const struct mini *m, unsigned connections)
{
    return open_patient(m, connections, 0);
}

/* Runs fn(arg) as the first fiber of a worker. */
static void in_fiber(int (*fn)(void *arg), struct mini *m)
{
    mini_start(m);
    EQ(worker_main(fn, m), 0);
    mini_stop(m);
    bufpool_trim();
}

struct task {
    struct volume *v;
    uint64_t offset;
    uint8_t buf[PIECE];
    bool write;
    int result;
    atomic_bool done;
    struct fiber *fiber;
    struct error err;
};

static void run_task(void *arg)
{
    struct task *t = arg;
    t->fiber = fiber_self();
    t->result = t->write ? volume_write(t->v, t->buf, PIECE, t->offset, 0, &t->err)
                         : volume_read(t->v, t->buf, PIECE, t->offset, &t->err);
    atomic_store(&t->done, true);
}

static void init_task(struct task *t, struct volume *v, unsigned i, bool write)
{
    memset(t, 0, sizeof *t);
    t->v = v;
    t->offset = (uint64_t)i * PIECE;
    t->write = write;
    if (write) {
        memset(t->buf, (int)(i % 255) + 1, PIECE);
    }
}

#define TASKS 256
static struct task tasks[TASKS];

static void run_all(struct volume *v, unsigned n, bool write)
{
    struct fgroup g;
    fgroup_init(&g);
    for (unsigned i = 0; i < n; i++) {
        init_task(&tasks[i], v, i, write);
        EQ(fgroup_spawn(&g, run_task, &tasks[i]), 0);
    }
    fgroup_wait(&g, false);
}

static bool has_pattern(const struct task *t, unsigned i)
{
    for (unsigned b = 0; b < PIECE; b++) {
        if (t->buf[b] != (uint8_t)(i % 255 + 1)) {
            return false;
        }
    }
    return true;
}

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

struct share {
    struct volume *v;
    unsigned first;
    int result;
    bool pattern;
};

static void worker_share(void *arg)
{
    static struct task own[4][16];
    struct share *s = arg;
    struct task *t = own[s->first / 16];
    for (int write = 1; write >= 0; write--) {
        struct fgroup g;
        fgroup_init(&g);
        for (unsigned i = 0; i < 16; i++) {
            init_task(&t[i], s->v, s->first + i, write);
            fgroup_spawn(&g, run_task, &t[i]);
        }
        fgroup_wait(&g, false);
        for (unsigned i = 0; i < 16; i++) {
            s->result = t[i].result < 0 ? t[i].result : s->result;
        }
    }
    s->pattern = true;
    for (unsigned i = 0; i < 16; i++) {
        s->pattern = s->pattern && has_pattern(&t[i], s->first + i);
    }
}

struct posting {
    struct worker *w;
    struct share share;
};

static void post_share(void *arg)
{
    struct posting *p = arg;
    EQ(worker_call(p->w, worker_share, &p->share), 0);
}

/* Four workers besides this one, at once; each writes and reads its part. Then a flush. */
static void use_from_workers_then(struct volume *v, int flushed)
{
    struct workers *ws;
    struct posting posts[4];
    struct fgroup g;
    EQ(workers_start(4, &ws), 0);
    fgroup_init(&g);
    for (unsigned i = 0; i < 4; i++) {
        posts[i] = (struct posting){workers_get(ws, i), {.v = v, .first = i * 16}};
        EQ(fgroup_spawn(&g, post_share, &posts[i]), 0);
    }
    fgroup_wait(&g, false);
    for (unsigned i = 0; i < 4; i++) {
        EQ(posts[i].share.result, 0);
        OK(posts[i].share.pattern);
    }
    EQ(volume_flush(v, NULL), flushed);
    volume_close(v); /* while its lanes' workers are there */
    workers_stop(ws);
}

static void use_from_workers(struct volume *v)
{
    use_from_workers_then(v, 0);
}

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
    RUN(many_requests_out_of_order);
    RUN(a_lane_for_each_worker);
    RUN(one_lane_without_multi_conn);
    RUN(lanes_as_asked_for);
    RUN(a_server_with_few_places);
    RUN(another_export_on_the_second_lane);
    RUN(a_lane_ends_with_its_worker);
    RUN(flush_comes_after_writes_on_other_lanes);
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
