/*
 * What the tests of the client share: a volume over mini_server.h, and tasks that read and write it
 * from many fibers and several workers.
 */
#ifndef TESTS_CLIENT_FIXTURE_H
#define TESTS_CLIENT_FIXTURE_H

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

static inline struct volume *open_patient(const struct mini *m, unsigned connections,
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

static inline struct volume *open_volume(const struct mini *m, unsigned connections)
{
    return open_patient(m, connections, 0);
}

/* Runs fn(arg) as the first fiber of a worker. */
static inline void in_fiber(int (*fn)(void *arg), struct mini *m)
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

static inline void run_task(void *arg)
{
    struct task *t = arg;
    t->fiber = fiber_self();
    t->result = t->write ? volume_write(t->v, t->buf, PIECE, t->offset, 0, &t->err)
                         : volume_read(t->v, t->buf, PIECE, t->offset, &t->err);
    atomic_store(&t->done, true);
}

static inline void init_task(struct task *t, struct volume *v, unsigned i, bool write)
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

static inline void run_all(struct volume *v, unsigned n, bool write)
{
    struct fgroup g;
    fgroup_init(&g);
    for (unsigned i = 0; i < n; i++) {
        init_task(&tasks[i], v, i, write);
        EQ(fgroup_spawn(&g, run_task, &tasks[i]), 0);
    }
    fgroup_wait(&g, false);
}

static inline bool has_pattern(const struct task *t, unsigned i)
{
    for (unsigned b = 0; b < PIECE; b++) {
        if (t->buf[b] != (uint8_t)(i % 255 + 1)) {
            return false;
        }
    }
    return true;
}

struct share {
    struct volume *v;
    unsigned first;
    int result;
    bool pattern;
};

static inline void worker_share(void *arg)
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

static inline void post_share(void *arg)
{
    struct posting *p = arg;
    EQ(worker_call(p->w, worker_share, &p->share), 0);
}

/* Four workers besides this one, at once; each writes and reads its part. Then a flush. */
static inline void use_from_workers_then(struct volume *v, int flushed)
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

static inline void use_from_workers(struct volume *v)
{
    use_from_workers_then(v, 0);
}

#endif
