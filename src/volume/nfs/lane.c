/*
 * Lanes: the connection of each worker, made when the worker first needs it, and made anew when it
 * is lost.
 *
 * NFSv3 has no state but the file's handle, which outlives a server's restart. So a call whose
 * connection is lost is simply sent again on the next one: a READ or COMMIT twice does no harm, and
 * a WRITE of the same bytes neither, as its range is the caller's until the call is answered.
 *
 * The first new connection is tried at once, then after 0.1 s, twice that each time, up to 2 s. One
 * fiber connects and the others wait for it. The time that a server may be away is counted for each
 * call from its first loss to its answer, not to the next connection: a server that takes calls and
 * drops them is away, too. When the connecting fiber's time is over all that wait for it fail
 * along, and the next call begins anew.
 *
 * With connections=N the first N workers have a lane, and the others use theirs (errand.c). A lane
 * ends with its worker; by contract volumes are closed before their workers end.
 */
#include "core/log.h"
#include "core/size.h"
#include "volume/nfs/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_LEAST_NS 2000000000ull /* also the last try gets that long */

struct nfsc_lane {
    struct nfsc_volume *n;
    struct worker *worker;
    struct nfsc_connection *connection; /* NULL: none, or none any more */
    struct fmutex lock;                 /* guards connecting; for the wait */
    struct fcond changed;
    bool connecting;
    uint64_t pause_ns; /* before the next try */
    unsigned given_up; /* times */
    char fault[256];   /* why it was lost, or cannot be had */
};

/* What a call has seen. */
struct patience {
    unsigned given_up;      /* the lane's, when it began */
    uint64_t first_loss_ns; /* 0: none */
};

/* --- connecting --- */

static uint64_t now_ns(void)
{
    return worker_now_ns(worker_self());
}

static int gave_up(const struct nfsc_lane *lane, struct error *err)
{
    return error_set(err, ETIMEDOUT, "the server was away for longer than %.3g s: %s",
                     (double)lane->n->server.url.reconnect_delay_ns / 1e9, lane->fault);
}

static int give_up(struct nfsc_lane *lane, struct error *err)
{
    lane->given_up++;
    lane->pause_ns = 0;
    return gave_up(lane, err);
}

static int try_once(struct nfsc_lane *lane, uint64_t until_ns)
{
    struct error failure = {0};
    uint64_t deadline_ns = max_u64(until_ns, now_ns() + CONNECT_LEAST_NS);
    int r = nfsc_connection_open(&lane->n->server, lane->n->port, deadline_ns, &lane->connection,
                                 &failure);
    if (r < 0) {
        lane->connection = NULL;
        error_format(&failure, lane->fault, sizeof lane->fault);
    }
    return r;
}

/* By one fiber at a time. */
static int reconnect(struct nfsc_lane *lane, const struct patience *p, struct error *err)
{
    uint64_t delay_ns = lane->n->server.url.reconnect_delay_ns;
    if (lane->connection) {
        snprintf(lane->fault, sizeof lane->fault, "%s", nfsc_connection_fault(lane->connection));
        log_info("%s: the connection was lost: %s", lane->n->v.endpoint, lane->fault);
    }
    nfsc_connection_close(lane->connection);
    lane->connection = NULL;
    if (p->first_loss_ns == 0) {
        lane->pause_ns = 0;
    } else if (now_ns() - p->first_loss_ns >= delay_ns) {
        return give_up(lane, err);
    }
    uint64_t until_ns = (p->first_loss_ns > 0 ? p->first_loss_ns : now_ns()) + delay_ns;
    for (;;) {
        if (lane->pause_ns > 0 && fiber_sleep_ns(lane->pause_ns) < 0) {
            return error_set(err, ECANCELED, "canceled while connecting again");
        }
        lane->pause_ns = min_u64(max_u64(2 * lane->pause_ns, NFSC_BACKOFF_FIRST_NS),
                                 NFSC_BACKOFF_LAST_NS);
        int r = try_once(lane, until_ns);
        if (r == 0) {
            return 0;
        }
        if (r == -ECANCELED) {
            return error_set(err, ECANCELED, "canceled while connecting again");
        }
        if (now_ns() >= until_ns) {
            return give_up(lane, err);
        }
    }
}

/* Who waits for a connecting fiber fails along with it. */
static int make_sure(struct nfsc_lane *lane, const struct patience *p, struct error *err)
{
    int r = 0;
    if (nfsc_connection_alive(lane->connection) && !lane->connecting) {
        return 0;
    }
    fmutex_lock(&lane->lock);
    while (lane->connecting && r == 0) {
        r = fcond_wait(&lane->changed, &lane->lock, DEADLINE_NONE);
    }
    if (r < 0) {
        error_set(err, -r, "canceled while connecting again");
    } else if (!nfsc_connection_alive(lane->connection)) {
        if (lane->given_up != p->given_up) {
            r = gave_up(lane, err);
        } else {
            lane->connecting = true;
            fmutex_unlock(&lane->lock);
            r = reconnect(lane, p, err);
            fmutex_lock(&lane->lock);
            lane->connecting = false;
            fcond_broadcast(&lane->changed);
        }
    }
    fmutex_unlock(&lane->lock);
    return r;
}

int nfsc_lane_call_here(struct nfsc_lane *lane, const struct nfsc_procedure *proc, void *job,
                        struct error *err)
{
    struct patience p = {.given_up = lane->given_up};
    for (;;) {
        int r = make_sure(lane, &p, err);
        if (r < 0) {
            return r;
        }
        r = nfsc_connection_call(lane->connection, proc, job,
                                 lane->n->server.url.request_timeout_ns, err);
        if (r == 0 || r == -EPROTO) {
            lane->pause_ns = 0;
        }
        if (r != -ENOTCONN) {
            return r;
        }
        if (p.first_loss_ns == 0) {
            p.first_loss_ns = now_ns();
        }
    }
}

/* --- lanes of workers --- */

static void free_lane(struct nfsc_lane *lane)
{
    if (lane) {
        nfsc_connection_close(lane->connection);
        fcond_done(&lane->changed);
        fmutex_done(&lane->lock);
        free(lane);
    }
}

/* In a fiber of the worker, when no other is left. */
static void worker_ends(void *arg)
{
    struct nfsc_volume *n = arg;
    fmutex_lock(&n->opening);
    struct nfsc_lane *lane = atomic_exchange(&n->lanes[worker_index(worker_self())], NULL);
    fmutex_unlock(&n->opening);
    free_lane(lane);
}

/* Under `opening`: another worker's lane where there must not be one more. Spread by worker. */
static struct nfsc_lane *shared_lane(struct nfsc_volume *n)
{
    unsigned count = nfsc_lanes_open(n);
    unsigned limit = n->server.url.connections;
    struct nfsc_lane *lane = NULL;
    if (limit == 0 || count < limit) {
        return NULL;
    }
    unsigned skip = worker_index(worker_self()) % count;
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        lane = atomic_load(&n->lanes[i]);
        if (lane && skip-- == 0) {
            break;
        }
    }
    return lane;
}

/* Under `opening`. */
static int new_lane(struct nfsc_volume *n, struct nfsc_lane **ret, struct error *err)
{
    struct nfsc_lane *lane = calloc(1, sizeof *lane);
    if (!lane || worker_at_exit(worker_self(), worker_ends, n) < 0) {
        free(lane);
        return error_set(err, ENOMEM, "no memory for a connection");
    }
    lane->n = n;
    lane->worker = worker_self();
    fmutex_init(&lane->lock);
    fcond_init(&lane->changed);
    atomic_store(&n->lanes[worker_index(lane->worker)], lane);
    *ret = lane;
    return 0;
}

int nfsc_lane_adopt(struct nfsc_volume *n, struct nfsc_connection *c, struct error *err)
{
    struct nfsc_lane *lane;
    fmutex_lock(&n->opening);
    int r = new_lane(n, &lane, err);
    fmutex_unlock(&n->opening);
    if (r == 0) {
        lane->connection = c;
    }
    return r;
}

/* The lane to use: the calling worker's own, or where connections= says so another's. */
static int find_lane(struct nfsc_volume *n, struct nfsc_lane **ret, struct error *err)
{
    unsigned self = worker_index(worker_self());
    int r = 0;
    *ret = atomic_load(&n->lanes[self]); /* only this worker puts one there */
    if (*ret) {
        return 0;
    }
    fmutex_lock(&n->opening);
    *ret = atomic_load(&n->lanes[self]); /* by another fiber, meanwhile */
    if (!*ret) {
        *ret = shared_lane(n);
    }
    if (!*ret) {
        r = new_lane(n, ret, err);
    }
    fmutex_unlock(&n->opening);
    return r;
}

int nfsc_lane_call(struct nfsc_volume *n, const struct nfsc_procedure *p, void *job,
                   struct error *err)
{
    struct nfsc_lane *lane;
    int r = find_lane(n, &lane, err);
    if (r < 0) {
        return r;
    }
    return lane->worker == worker_self() ? nfsc_lane_call_here(lane, p, job, err)
                                         : nfsc_errand(lane->worker, lane, p, job, err);
}

static void close_here(void *arg)
{
    struct nfsc_lane *lane = arg;
    worker_forget(worker_self(), worker_ends, lane->n);
    free_lane(lane);
}

void nfsc_lanes_close(struct nfsc_volume *n)
{
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        fmutex_lock(&n->opening);
        struct nfsc_lane *lane = atomic_exchange(&n->lanes[i], NULL);
        fmutex_unlock(&n->opening);
        if (!lane) {
            continue;
        }
        if (lane->worker == worker_self()) {
            close_here(lane);
        } else {
            while (worker_call(lane->worker, close_here, lane) == -ENOMEM) {
                fiber_yield(); /* there is no other way to end it */
            }
        }
    }
}

unsigned nfsc_lanes_open(struct nfsc_volume *n)
{
    unsigned count = 0;
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        count += atomic_load(&n->lanes[i]) != NULL;
    }
    return count;
}
