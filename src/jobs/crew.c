/*
 * See crew.h. Each worker has a group of its fibers and one more fiber that waits for "stop" or for
 * the last of them; fiber_cancel() works on a fiber's own worker only, so each group is canceled by
 * its own watcher.
 */
#include "jobs/crew.h"

#include "core/fiber.h"
#include "core/fsync.h"
#include "core/worker.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

struct crew {
    unsigned count;
    struct workers *others; /* NULL when count is 1 */
    struct fmutex mutex;    /* guards what follows, and every gang's running */
    struct fcond changed;
    bool stopped;
    int result;
    /* Of the run that is on. */
    unsigned depth;
    void (*fn)(void *arg);
    void *arg;
};

/* The fibers of one worker, on its stack while they run. */
struct gang {
    struct crew *crew;
    struct worker *worker; /* for the fiber that starts one elsewhere */
    struct fgroup group;
    unsigned running;
};

int crew_new(unsigned workers, struct crew **ret, struct error *err)
{
    struct crew *c = calloc(1, sizeof(*c));
    if (!c) {
        return error_set(err, ENOMEM, "no memory");
    }
    c->count = workers;
    if (workers > 1) {
        int r = workers_start(workers - 1, &c->others);
        if (r < 0) {
            free(c);
            return error_set(err, -r, "cannot start %u workers", workers);
        }
    }
    fmutex_init(&c->mutex);
    fcond_init(&c->changed);
    *ret = c;
    return 0;
}

void crew_free(struct crew *c)
{
    if (c) {
        if (c->others) {
            workers_stop(c->others);
        }
        fcond_done(&c->changed);
        fmutex_done(&c->mutex);
        free(c);
    }
}

static void stop(struct crew *c, int result)
{
    fmutex_lock(&c->mutex);
    c->stopped = true;
    if (c->result == 0) {
        c->result = result;
    }
    fcond_broadcast(&c->changed);
    fmutex_unlock(&c->mutex);
}

void crew_stop(struct crew *c)
{
    stop(c, 0);
}

static void watch(void *arg)
{
    struct gang *g = arg;
    struct crew *c = g->crew;
    int r = 0;
    fmutex_lock(&c->mutex);
    while (r == 0 && !c->stopped && g->running > 0) {
        r = fcond_wait(&c->changed, &c->mutex, DEADLINE_NONE);
    }
    bool stopped = c->stopped;
    fmutex_unlock(&c->mutex);
    if (r < 0) {
        stop(c, r);
    }
    if (r < 0 || stopped) {
        fgroup_cancel(&g->group);
    }
}

static void member_ends(struct gang *g)
{
    struct crew *c = g->crew;
    fmutex_lock(&c->mutex);
    if (--g->running == 0) {
        fcond_broadcast(&c->changed);
    }
    fmutex_unlock(&c->mutex);
}

static void add_member(struct gang *g, fiber_fn *fn, void *arg)
{
    fmutex_lock(&g->crew->mutex);
    g->running++;
    fmutex_unlock(&g->crew->mutex);
    int r = fgroup_spawn(&g->group, fn, arg);
    if (r < 0) {
        member_ends(g);
        stop(g->crew, r);
    }
}

static void run_watched(struct gang *g)
{
    int r = fgroup_spawn(&g->group, watch, g);
    if (r < 0) {
        stop(g->crew, r); /* the fibers see it at their next look at the work */
        fgroup_cancel(&g->group);
    }
    fgroup_wait(&g->group, true);
}

static void member(void *arg)
{
    struct gang *g = arg;
    g->crew->fn(g->crew->arg);
    member_ends(g);
}

/* One worker's share, on that worker. */
static void gang_run(void *arg)
{
    struct crew *c = arg;
    struct gang g = {.crew = c};
    fgroup_init(&g.group);
    for (unsigned i = 0; i < c->depth; i++) {
        add_member(&g, member, &g);
    }
    run_watched(&g);
}

struct start {
    struct gang *top;
    struct worker *worker; /* NULL: the caller's own */
};

static void start_gang(void *arg)
{
    struct start *s = arg;
    struct crew *c = s->top->crew;
    int r = 0;
    if (s->worker) {
        r = worker_call(s->worker, gang_run, c);
    } else {
        gang_run(c);
    }
    if (r < 0) {
        stop(c, r);
    }
    member_ends(s->top);
}

int crew_run(struct crew *c, unsigned depth, void (*fn)(void *arg), void *arg)
{
    struct gang top = {.crew = c};
    struct start *starts = calloc(c->count, sizeof(*starts));
    if (!starts) {
        return -ENOMEM;
    }
    c->depth = depth;
    c->fn = fn;
    c->arg = arg;
    c->stopped = false;
    c->result = fiber_canceled() ? -ECANCELED : 0;
    fgroup_init(&top.group);
    for (unsigned i = 0; c->result == 0 && i < c->count; i++) {
        starts[i].top = &top;
        starts[i].worker = i == 0 ? NULL : workers_get(c->others, i - 1);
        add_member(&top, start_gang, &starts[i]);
    }
    if (c->result == 0) {
        run_watched(&top);
    } else {
        fgroup_cancel(&top.group);
        fgroup_wait(&top.group, false);
    }
    free(starts);
    return c->result;
}
