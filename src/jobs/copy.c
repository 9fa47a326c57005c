/*
 * The copy job: what runs where, and how it ends.
 *
 * One fiber asks the source for its extents and puts ranges into a bounded queue. On each of N
 * workers `depth` fibers take pieces of request_size bytes from the front of the queue, read them,
 * look for zeros, and write them, so that both ends always have requests in flight and no fiber
 * waits for another. A piece's buffer goes from the read to the write on one CPU.
 *
 * The first failure stops everybody: it is kept with its endpoint and offset, and a watching fiber
 * on every worker cancels what is in flight there. A cancel of the caller is such a failure.
 *
 * Streams have an order, so with a stream at either end there is one worker: reads take their turn
 * at the source, writes at the target, and what is a volume is still used in parallel.
 */
#include "jobs/copy.h"

#include "core/size.h"
#include "core/worker.h"
#include "jobs/copy_internal.h"
#include "nbd/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUEST_LEAST (256u << 10) /* below it the calls cost more than the bytes */
#define REQUEST_MOST (1u << 20)    /* above it nothing is gained; only for ends that prefer it */
/* 4, 8 and 16 measure alike against local servers; the rest is for those that are farther away. */
#define DEPTH_DEFAULT 8u
#define RATE_REQUESTS 16u      /* a second: a slow copy is no sequence of bursts */
#define WORKERS_DEFAULT_MAX 4u /* more saturate memory, not the copy */
#define ZERO_MAX (1ull << 30)  /* a request of zeros: so that a cancel has something to cancel */
#define ZERO_WRITTEN_MAX (16ull << 20)

void copy_fail(struct copy *c, int r, const struct error *err)
{
    fmutex_lock(&c->mutex);
    if (!c->stopped) {
        c->stopped = true;
        c->result = r;
        if (err && err->code && r != -ECANCELED) { /* which request was canceled is no news */
            c->error = *err;
        }
    }
    fcond_broadcast(&c->changed);
    fcond_broadcast(&c->filled);
    fcond_broadcast(&c->emptied);
    fcond_broadcast(&c->turned);
    fmutex_unlock(&c->mutex);
}

/* Cancels a group when the copy stops, and stops the copy when the group is canceled. */
struct watch {
    struct copy *copy;
    struct fgroup group; /* all members, this fiber among them */
    unsigned running;    /* members that this fiber waits for; copy->mutex */
};

static void watch(void *arg)
{
    struct watch *w = arg;
    struct copy *c = w->copy;
    int r = 0;
    fmutex_lock(&c->mutex);
    while (r == 0 && !c->stopped && w->running > 0) {
        r = fcond_wait(&c->changed, &c->mutex, DEADLINE_NONE);
    }
    bool stopped = c->stopped;
    fmutex_unlock(&c->mutex);
    if (r < 0) {
        copy_fail(c, r, NULL);
    }
    if (r < 0 || stopped) {
        fgroup_cancel(&w->group);
    }
}

static void member_ends(struct watch *w)
{
    fmutex_lock(&w->copy->mutex);
    w->running--;
    fcond_broadcast(&w->copy->changed);
    fmutex_unlock(&w->copy->mutex);
}

static void move_fiber(void *arg)
{
    struct watch *w = arg;
    copy_move(w->copy);
    member_ends(w);
}

static void scan_fiber(void *arg)
{
    struct watch *w = arg;
    copy_scan(w->copy);
    member_ends(w);
}

/* Starts fn as a member. What can't be started is the copy's failure. */
static void add_member(struct watch *w, fiber_fn *fn, void *arg)
{
    w->running++;
    int r = fgroup_spawn(&w->group, fn, arg);
    if (r < 0) {
        w->running--;
        copy_fail(w->copy, r, NULL);
    }
}

/* One worker's share, on that worker. */
static void lane(void *arg)
{
    struct copy *c = arg;
    struct watch w = {.copy = c};
    fgroup_init(&w.group);
    for (unsigned i = 0; i < c->depth; i++) {
        add_member(&w, move_fiber, &w);
    }
    int r = fgroup_spawn(&w.group, watch, &w);
    if (r < 0) {
        copy_fail(c, r, NULL);
    }
    fgroup_wait(&w.group, true);
}

struct lane_start {
    struct watch *watch;
    struct worker *worker; /* NULL: the caller's own */
};

static void lane_fiber(void *arg)
{
    struct lane_start *s = arg;
    struct copy *c = s->watch->copy;
    int r = 0;
    if (s->worker) {
        r = worker_call(s->worker, lane, c);
    } else {
        lane(c);
    }
    if (r < 0) {
        copy_fail(c, r, NULL);
    }
    member_ends(s->watch);
}

static void run_lanes(struct copy *c, struct workers *others)
{
    struct watch w = {.copy = c};
    struct lane_start *starts = calloc(c->workers, sizeof(*starts));
    if (!starts) {
        copy_fail(c, -ENOMEM, NULL);
        return;
    }
    fgroup_init(&w.group);
    if (c->source.volume) {
        add_member(&w, scan_fiber, &w);
    }
    for (unsigned i = 0; i < c->workers; i++) {
        starts[i].watch = &w;
        starts[i].worker = i == 0 ? NULL : workers_get(others, i - 1);
        add_member(&w, lane_fiber, &starts[i]);
    }
    int r = fgroup_spawn(&w.group, watch, &w);
    if (r < 0) {
        copy_fail(c, r, NULL);
    }
    fgroup_wait(&w.group, true);
    free(starts);
}

static unsigned limit_lanes(struct volume *v, unsigned workers)
{
    unsigned lanes = v ? volume_lanes(v) : 1;
    return lanes > 0 && lanes < workers ? lanes : workers;
}

static uint32_t limit_request(const struct volume *v, uint32_t size)
{
    while (v && size > v->limits.max && size > COPY_REQUEST_MIN) {
        size /= 2;
    }
    return size;
}

static uint32_t power_of_two_above(uint64_t n, uint32_t from)
{
    while (from < n) {
        from *= 2;
    }
    return from;
}

/* Request size, depth and workers, from what was asked for and what the ends say. */
static void choose(struct copy *c)
{
    const struct copy_options *o = c->options;
    const struct volume *s = c->source.volume, *t = c->target.volume;
    uint32_t preferred = REQUEST_LEAST, min = COPY_REQUEST_MIN;
    if (o->sum) {
        min = BLKHASH_BLOCK_DEFAULT; /* no block is in two pieces */
    }
    for (int i = 0; i < 2; i++) {
        const struct volume *v = i == 0 ? s : t;
        if (v) {
            preferred = (uint32_t)max_u64(preferred, v->limits.preferred);
            min = (uint32_t)max_u64(min, v->limits.min);
        }
    }
    if (o->request_size) {
        c->request_size = power_of_two_above(min_u64(o->request_size, COPY_REQUEST_MAX), min);
    } else {
        c->request_size = power_of_two_above(min_u64(preferred, REQUEST_MOST), min);
        c->request_size = limit_request(t, limit_request(s, c->request_size));
        while (o->rate && c->request_size > min && c->request_size > o->rate / RATE_REQUESTS) {
            c->request_size /= 2;
        }
    }
    c->request_size = (uint32_t)max_u64(c->request_size, min);
    c->align = min;
    c->grain = o->sparse && t ? power_of_two_above(o->sparse, t->limits.min) : 0;
    c->grain = (uint32_t)min_u64(c->grain, c->request_size);
    bool cheap = t && (c->skip_zeros || volume_can(t, VOLUME_CAN_ZERO));
    c->zero_max = cheap ? ZERO_MAX : ZERO_WRITTEN_MAX;
    c->depth = o->depth ? (unsigned)min_u64(o->depth, COPY_DEPTH_MAX) : DEPTH_DEFAULT;
    c->workers = 1;
    if (s && t) {
        unsigned most = (unsigned)min_u64(cpus_available(), WORKERS_DEFAULT_MAX);
        c->workers = o->workers
                         ? (unsigned)min_u64(o->workers, WORKERS_MAX)
                         : limit_lanes(c->source.volume, limit_lanes(c->target.volume, most));
        /* no worker without a piece to move */
        uint64_t pieces = (c->size + c->request_size - 1) / c->request_size;
        c->workers = (unsigned)max_u64(1, min_u64(c->workers, pieces));
    }
}

/* Before anything is touched: is there such a digest? */
static int check_digest(const struct copy_options *o, struct error *err)
{
    struct digest *d = NULL;
    int r = o->sum ? digest_open(o->sum, &d) : 0;
    digest_free(d);
    return r < 0 ? error_set(err, -r, "digest \"%.60s\"", o->sum) : 0;
}

static int start_sum(struct copy *c)
{
    if (!c->options->sum) {
        return 0;
    }
    return sum_pass_new(c->options->sum, c->request_size, c->depth * c->workers, &c->sum,
                        &c->error);
}

/* Everything was moved: so everything was hashed. */
static int finish_sum(struct copy *c, struct copy_result *ret)
{
    uint8_t sum[BLKHASH_DIGEST_MAX];
    if (!c->sum) {
        return 0;
    }
    int r = sum_pass_result(c->sum, c->size, sum, &c->error);
    if (r == 0) {
        const struct digest *d = sum_pass_digest(c->sum);
        snprintf(ret->sum_digest, sizeof(ret->sum_digest), "%s", digest_name(d));
        ret->sum_length = digest_length(d);
        memcpy(ret->sum, sum, ret->sum_length);
    }
    return r;
}

static void note_sockets(struct volume *v, struct copy_sockets *ret)
{
    if (v && nbd_client_is(v)) {
        struct nbd_client_info info;
        nbd_client_info(v, &info);
        *ret = (struct copy_sockets){.connections = info.connections,
                                     .send_buffer_wanted = info.send_buffer_wanted,
                                     .send_buffer_granted = info.send_buffer_granted,
                                     .receives = info.receives};
    }
}

/* From open ends to a flushed target. */
static int transfer(struct copy *c, struct copy_result *ret)
{
    struct workers *others = NULL;
    if (c->workers > 1) {
        int r = workers_start(c->workers - 1, &others);
        if (r < 0) {
            fiber_shield();
            copy_close(c);
            fiber_unshield();
            return error_set(&c->error, -r, "can't start %u workers", c->workers);
        }
    }
    c->touched = true;
    int r = start_sum(c);
    if (r < 0) {
        copy_fail(c, r, &c->error);
    }
    if (fiber_canceled()) {
        copy_fail(c, -ECANCELED, NULL);
    }
    run_lanes(c, others);
    r = c->result;
    if (r == 0) {
        r = copy_settle(c, &c->error);
    }
    if (r == 0 && !c->options->no_flush && c->target.volume) {
        r = volume_flush(c->target.volume, &c->error);
    }
    if (r == 0) {
        r = finish_sum(c, ret);
    }
    note_sockets(c->source.volume, &ret->source_sockets);
    note_sockets(c->target.volume, &ret->target_sockets);
    fiber_shield(); /* closing has to be done whatever comes */
    copy_close(c);
    sum_pass_free(c->sum);
    workers_stop(others);
    fiber_unshield();
    return r;
}

static void init(struct copy *c, const struct copy_options *o, struct copy_progress *progress)
{
    c->options = o;
    c->progress = progress;
    c->source.name = o->source;
    c->target.name = o->target;
    fmutex_init(&c->mutex);
    fmutex_init(&c->source_lock);
    fcond_init(&c->filled);
    fcond_init(&c->emptied);
    fcond_init(&c->turned);
    fcond_init(&c->changed);
}

static void done(struct copy *c)
{
    fcond_done(&c->changed);
    fcond_done(&c->turned);
    fcond_done(&c->emptied);
    fcond_done(&c->filled);
    fmutex_done(&c->source_lock);
    fmutex_done(&c->mutex);
}

int copy_run(const struct copy_options *o, struct copy_progress *progress, struct copy_result *ret,
             struct error *err)
{
    struct copy_progress own = {0};
    struct copy *c = calloc(1, sizeof(*c));
    *ret = (struct copy_result){0};
    if (!c) {
        return error_set(err, ENOMEM, "copy");
    }
    init(c, o, progress ? progress : &own);
    uint64_t start_ns = worker_now_ns(worker_self());
    int r = check_digest(o, &c->error);
    if (r == 0) {
        r = copy_open(c, &c->error);
    }
    if (r == 0) {
        choose(c);
        c->progress->total = c->source.volume ? c->size : 0;
        r = transfer(c, ret);
    }
    if (r < 0) {
        fiber_shield();
        copy_clean_up(c, ret);
        fiber_unshield();
        if (r == -ECANCELED) {
            error_set(&c->error, ECANCELED, "the copy was interrupted");
        }
        error_set(err, c->error.code ? c->error.code : -r, "%s",
                  c->error.code ? c->error.text : "the copy failed");
        copy_name_end(c->error.endpoint[0] ? c->error.endpoint : o->target, err);
        if (c->error.has_offset) {
            error_at(err, c->error.offset);
        }
    }
    c->progress->created = false; /* it is complete, or gone */
    ret->total = c->size;
    ret->data = c->data;
    ret->zero = c->zero;
    ret->duration_ns = worker_now_ns(worker_self()) - start_ns;
    ret->request_size = c->request_size;
    ret->depth = c->depth;
    ret->workers = c->workers;
    done(c);
    free(c);
    return r;
}
