/*
 * Lanes: which connection a worker uses.
 *
 * With MULTI_CONN each worker opens a connection of its own when it first uses the volume, up to
 * the limit. All others share: their call runs as a fiber on the worker that has the connection,
 * and the calling fiber parks until it is done. So a connection is only ever touched by its own
 * worker, and payload goes straight to the caller's buffer in either case.
 *
 * A further lane that can't be had (a server with a limit of clients) is no error: the lanes that
 * are there are shared and no more are tried. A lane whose export is another than the first one's
 * is an error: half of the requests would go to another disk.
 *
 * A lane that is lost stays where it is, and fails what comes, unless the endpoint is to be
 * reconnected to: then the next call of its workers opens another one in its place.
 *
 * A connection ends with its worker. Unless the server is MULTI_CONN what it has written is flushed
 * then, because it is beyond reach of a flush on another connection.
 */
#include "nbd/client_private.h"

#include "core/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- opening --- */

static int same_export(const struct nbd_facts *a, const struct nbd_facts *b, struct error *err)
{
    if (a->size != b->size) {
        return error_set(err, EPROTO,
                         "the export has %llu bytes on one connection and %llu on the "
                         "next",
                         (unsigned long long)a->size, (unsigned long long)b->size);
    }
    if (a->flags != b->flags || a->block_min != b->block_min || a->block_max != b->block_max ||
        a->structured != b->structured || a->extended != b->extended ||
        a->base_allocation != b->base_allocation) {
        return error_set(err, EPROTO, "the export has other properties on a second connection");
    }
    return 0;
}

/* Connects and goes into the transmission phase; facts as found. */
static int connect_lane(struct nbd_client *c, uint64_t deadline_ns, struct nbd_facts *facts,
                        struct nbd_connection **ret, struct error *err)
{
    struct nbd_handshake *h = malloc(sizeof *h);
    struct channel *ch;
    if (!h) {
        return error_set(err, ENOMEM, "no memory for a handshake");
    }
    int r = nbd_target_greet(&c->target, deadline_ns, h, &ch, err);
    if (r == 0) {
        r = nbd_handshake_go(h, c->target.export_name, facts, err);
        if (r < 0) {
            nbd_target_leave(h, ch, r);
        } else {
            r = nbd_connection_new(ch, facts, ret, err);
            if (r < 0) {
                nbd_facts_done(facts);
            }
        }
    }
    free(h);
    return r;
}

/* Under `opening`. */
static void forget_lane(struct nbd_client *c, const struct nbd_connection *lane)
{
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        if (atomic_load(&c->lanes[i]) == lane) {
            atomic_store(&c->lanes[i], NULL);
        }
    }
    c->lanes_open--;
}

/* Under `opening`. A dead lane makes room for a new one; others may still look at it, so it is kept
 * to the end. */
static int bury_lane(struct nbd_client *c, struct nbd_connection *lane, struct error *err)
{
    if (c->graves_count == NBD_GRAVES_MAX) {
        return error_set(err, EPROTO, "the connection was lost %u times", c->graves_count);
    }
    forget_lane(c, lane);
    lane->next_grave = c->graves;
    c->graves = lane;
    c->graves_count++;
    return 0;
}

/* The calling worker is about to end; this runs in a fiber of it, when no other is left. */
static void worker_ends(void *arg)
{
    struct nbd_client *c = arg;
    fmutex_lock(&c->opening);
    c->hooked[worker_index(worker_self())] = NULL;
    struct nbd_connection *lane = atomic_load(&c->lanes[worker_index(worker_self())]);
    lane = lane && lane->worker == worker_self() ? lane : NULL;
    if (lane) {
        forget_lane(c, lane);
    }
    fmutex_unlock(&c->opening);
    /* A flush on a later connection would not cover what was written on this one. */
    if (lane && !(c->facts.flags & NBD_FLAG_CAN_MULTI_CONN) &&
        volume_can(&c->v, VOLUME_CAN_WRITE) && c->writes_answered != c->writes_flushed) {
        struct nbd_call flush = {.command = NBD_CMD_FLUSH};
        bool can = c->facts.flags & NBD_FLAG_SEND_FLUSH;
        if (can && nbd_connection_call(lane, &flush) < 0) {
            atomic_store(&c->writes_lost, true);
        }
    }
    nbd_connection_close(lane);
}

/* The calling worker's own. */
static void add_lane(struct nbd_client *c, struct nbd_connection *lane)
{
    c->lanes_open++;
    atomic_store(&c->lanes[worker_index(worker_self())], lane);
}

int nbd_client_open_lane(struct nbd_client *c, uint64_t deadline_ns, struct error *err)
{
    struct nbd_connection *lane = NULL;
    struct nbd_facts facts = {0};
    bool first = c->lanes_max == 0;
    int r = connect_lane(c, deadline_ns, &facts, &lane, err);
    if (r < 0) {
        return r;
    }
    if (first) {
        c->facts = facts;
        memset(&facts, 0, sizeof facts);
        c->lanes_max = 1;
    } else {
        r = same_export(&c->facts, &facts, err);
    }
    nbd_facts_done(&facts);
    if (r == 0) {
        r = worker_at_exit(worker_self(), worker_ends, c);
    }
    if (r == 0) {
        c->hooked[worker_index(worker_self())] = worker_self();
    }
    if (r < 0) {
        nbd_connection_close(lane);
        return error_set(err, -r, "opening a connection");
    }
    add_lane(c, lane);
    return 0;
}

/* Any lane that is there, spread by worker. */
static struct nbd_connection *share_lane(struct nbd_client *c)
{
    unsigned self = worker_index(worker_self());
    unsigned skip = c->lanes_open > 0 ? self % c->lanes_open : 0;
    struct nbd_connection *found = NULL;
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        struct nbd_connection *lane = atomic_load(&c->lanes[i]);
        if (lane && worker_index(lane->worker) == i) {
            found = lane;
            if (skip-- == 0) {
                break;
            }
        }
    }
    if (found) {
        atomic_store(&c->lanes[self], found);
    }
    return found;
}

/* Under `opening`. */
static int find_or_open(struct nbd_client *c, struct nbd_connection **ret, struct error *err)
{
    unsigned self = worker_index(worker_self());
    *ret = atomic_load(&c->lanes[self]);
    if (*ret) {
        return 0;
    }
    if (c->lanes_open == 0) {
        uint64_t timeout = c->reconnect_ns > 0 ? c->lane_timeout_ns : NBD_CONNECT_TIMEOUT_NS;
        int r = nbd_client_open_lane(c, nbd_deadline(timeout, DEADLINE_NONE), err);
        *ret = atomic_load(&c->lanes[self]);
        return r;
    }
    if (c->lanes_open < c->lanes_max) {
        struct error failure = {0};
        int r = nbd_client_open_lane(c, nbd_deadline(c->lane_timeout_ns, DEADLINE_NONE), &failure);
        *ret = atomic_load(&c->lanes[self]);
        if (r == 0) {
            return 0;
        }
        if (r == -EPROTO || r == -ECANCELED) {
            return error_set(err, -r, "%s", failure.text);
        }
        log_info("%s: %u connections, no more: %s", c->target.title, c->lanes_open, failure.text);
        c->lanes_max = c->lanes_open;
    }
    *ret = share_lane(c);
    return 0;
}

/* There, and of use: a dead one is, too, where none is opened in its place. */
static bool usable(const struct nbd_client *c, const struct nbd_connection *lane)
{
    return lane && (c->reconnect_ns == 0 || !atomic_load(&lane->dead));
}

static int lane_of_worker(struct nbd_client *c, struct nbd_connection **ret, struct error *err)
{
    unsigned self = worker_index(worker_self());
    int r = 0;
    *ret = atomic_load_explicit(&c->lanes[self], memory_order_acquire);
    if (usable(c, *ret)) {
        return 0;
    }
    fmutex_lock(&c->opening);
    struct nbd_connection *lane = atomic_load(&c->lanes[self]);
    if (lane && !usable(c, lane)) {
        r = bury_lane(c, lane, err);
    }
    if (r == 0) {
        r = find_or_open(c, ret, err);
    }
    fmutex_unlock(&c->opening);
    return r;
}

/* --- calls by way of another worker --- */

/* Lives until both sides have let go of it. */
struct remote {
    atomic_uint holders;
    struct nbd_connection *lane;
    struct nbd_call *call;
    struct fmutex lock; /* guards done, and is what the caller waits with */
    struct fcond ended;
    bool done;
    int result;
    /* On the lane's worker only: */
    struct fiber *runner;
    bool canceled;
};

static void remote_release(struct remote *r)
{
    if (atomic_fetch_sub(&r->holders, 1) == 1) {
        fcond_done(&r->ended);
        fmutex_done(&r->lock);
        free(r);
    }
}

static void remote_run(void *arg)
{
    struct remote *r = arg;
    int result = -ECANCELED;
    if (!r->canceled) {
        r->runner = fiber_self();
        result = nbd_connection_call(r->lane, r->call);
        r->runner = NULL;
    } else {
        error_set(r->call->err, ECANCELED, "canceled before it was sent");
    }
    fmutex_lock(&r->lock);
    r->done = true;
    r->result = result;
    fcond_signal(&r->ended);
    fmutex_unlock(&r->lock);
    remote_release(r);
}

static void remote_cancel(void *arg)
{
    struct remote *r = arg;
    r->canceled = true;
    if (r->runner) {
        fiber_cancel(r->runner);
    }
    remote_release(r);
}

/* The call's buffers are the caller's: it returns when the call is done, also when canceled. */
static int remote_wait(struct remote *r)
{
    bool told = false;
    fmutex_lock(&r->lock);
    while (!r->done) {
        if (fcond_wait(&r->ended, &r->lock, DEADLINE_NONE) == -ECANCELED && !told) {
            told = true;
            fiber_shield();
            atomic_fetch_add(&r->holders, 1);
            if (worker_post(r->lane->worker, remote_cancel, r) < 0) {
                atomic_fetch_sub(&r->holders, 1);
            }
        }
    }
    if (told) {
        fiber_unshield();
    }
    int result = r->result;
    fmutex_unlock(&r->lock);
    return result;
}

static int call_remotely(struct nbd_connection *lane, struct nbd_call *call)
{
    struct remote *r = calloc(1, sizeof *r);
    if (!r) {
        return error_set(call->err, ENOMEM, "no memory for a request");
    }
    r->lane = lane;
    r->call = call;
    atomic_init(&r->holders, 2);
    fmutex_init(&r->lock);
    fcond_init(&r->ended);
    int result = worker_post(lane->worker, remote_run, r);
    if (result < 0) {
        error_set(call->err, -result, "no memory for a request");
        atomic_store(&r->holders, 1);
    } else {
        result = remote_wait(r);
    }
    remote_release(r);
    return result;
}

int nbd_client_call_once(struct nbd_client *c, struct nbd_call *call)
{
    struct nbd_connection *lane;
    int r = lane_of_worker(c, &lane, call->err);
    if (r < 0) {
        call->lost = r != -EPROTO && r != -ENOMEM && r != -ECANCELED;
        return r;
    }
    return lane->worker == worker_self() ? nbd_connection_call(lane, call)
                                         : call_remotely(lane, call);
}

/* --- the end --- */

/* Closes all that the calling worker has of the client. */
static void close_here(void *arg)
{
    struct nbd_client *c = arg;
    unsigned self = worker_index(worker_self());
    worker_forget(worker_self(), worker_ends, c);
    fmutex_lock(&c->opening);
    struct nbd_connection *lane = atomic_load(&c->lanes[self]), *own = NULL;
    c->hooked[self] = NULL;
    if (lane && lane->worker == worker_self()) {
        forget_lane(c, lane);
        lane->next_grave = own;
        own = lane;
    }
    for (struct nbd_connection **g = &c->graves; *g;) {
        struct nbd_connection *grave = *g;
        if (grave->worker == worker_self() && !atomic_load(&grave->buried)) {
            *g = grave->next_grave;
            grave->next_grave = own;
            own = grave;
        } else {
            g = &grave->next_grave;
        }
    }
    fmutex_unlock(&c->opening);
    while (own) {
        lane = own;
        own = lane->next_grave;
        nbd_connection_close(lane);
    }
}

void nbd_client_close_lanes(struct nbd_client *c)
{
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        fmutex_lock(&c->opening);
        struct worker *w = c->hooked[i];
        fmutex_unlock(&c->opening);
        if (w == worker_self()) {
            close_here(c);
        } else if (w) {
            while (worker_call(w, close_here, c) == -ENOMEM) {
                fiber_yield(); /* there is no other way to end it */
            }
        }
    }
    while (c->graves) { /* buried: their workers may have ended long ago */
        struct nbd_connection *lane = c->graves;
        c->graves = lane->next_grave;
        nbd_connection_close(lane);
    }
}

void nbd_client_each_lane(struct nbd_client *c, void (*say)(struct nbd_connection *c, void *arg),
                          void *arg)
{
    fmutex_lock(&c->opening);
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        struct nbd_connection *lane = atomic_load(&c->lanes[i]);
        if (lane && worker_index(lane->worker) == i) {
            say(lane, arg);
        }
    }
    fmutex_unlock(&c->opening);
}
