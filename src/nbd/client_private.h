/* What the client's files share: the volume, its lanes, the way to a server. */
#ifndef NBD_CLIENT_PRIVATE_H
#define NBD_CLIENT_PRIVATE_H

#include "core/fsync.h"
#include "core/worker.h"
#include "nbd/client.h"
#include "nbd/connection.h"
#include "nbd/program.h"
#include "nbd/uri.h"

#include <stdatomic.h>

/* From connect() to the last reply of the handshake. */
#define NBD_CONNECT_TIMEOUT_NS 30000000000ull
/* A second and later lane gets ten times what the first one took, and at least this: servers that
 * serve a limited number of clients leave the next one hanging, and there is a lane to use. */
#define NBD_LANE_TIMEOUT_LEAST_NS 2000000000ull
#define NBD_LANE_TIMEOUT_FACTOR 10
#define NBD_LANES_DEFAULT 16
/* Connections lost by one volume before it is given up: each costs some memory to its end. */
#define NBD_GRAVES_MAX 1000

/* How a server is reached. Fixed once it is made. */
struct nbd_target {
    struct address address;
    char *export_name;
    uint64_t socket_buffer;
    struct program *program; /* or NULL: somebody else's server */
    char *title;             /* the endpoint, for messages */
};

/* From an endpoint's name: parses the URI, or starts the program. From a fiber. */
int nbd_target_open(struct nbd_target *t, const char *name, const struct endpoint_options *o,
                    struct error *err);
/* Stops the program, too. */
void nbd_target_done(struct nbd_target *t);
/* Connects and greets. timeout_ns from now, but not after the endpoint's own deadline. *ret and h
 * are the caller's. */
int nbd_target_greet(struct nbd_target *t, uint64_t deadline_ns, struct nbd_handshake *h,
                     struct channel **ret, struct error *err);
/* Now and the timeout, or the deadline that the options have. */
uint64_t nbd_deadline(uint64_t timeout_ns, uint64_t deadline_ns);
/* Closes what nbd_target_greet() opened, after a handshake that went wrong with r, or a list. */
void nbd_target_leave(struct nbd_handshake *h, struct channel *ch, int r);

struct nbd_client {
    struct volume v;
    struct nbd_target target;
    struct nbd_facts facts;

    /* Lanes. Each worker finds the connection that it uses by its index: its own, or another
     * worker's. Written under `opening`, read without: a connection is complete before it is
     * here (release, acquire). */
    struct fmutex opening;
    _Atomic(struct nbd_connection *) lanes[WORKERS_MAX];
    struct worker *hooked[WORKERS_MAX]; /* under opening: has worker_ends() among its exit hooks */
    atomic_uint lanes_max;              /* written under opening; 0: the first is not open yet */
    unsigned lanes_open;                /* under opening */
    uint64_t lane_timeout_ns;           /* for further lanes */

    /* Writes in flight, so that a flush can wait for those before it; only with several lanes. Two
     * epochs: a flush moves new writes to the other one and waits until the old one is empty. */
    struct fmutex flushing;
    struct fcond drained;
    atomic_uint epoch;
    atomic_uint writes[2];
    atomic_bool draining; /* a flush waits */

    /* Connections that were lost and what they took along (client_reconnect.c). */
    uint64_t reconnect_ns;         /* how long a request waits for a new one; 0: not at all */
    struct nbd_connection *graves; /* under opening; freed with the client */
    unsigned graves_count;
    atomic_ullong writes_answered; /* a count; without those that were FUA */
    atomic_ullong writes_flushed;  /* so many of them, from the first on, are on stable storage */
    atomic_bool writes_lost;       /* a connection was lost with writes that were not flushed */
};

/* client_lanes.c */
int nbd_client_open_lane(struct nbd_client *c, uint64_t deadline_ns, struct error *err);
/* Runs the call on this worker's lane, or by way of the worker that has one. */
int nbd_client_call_once(struct nbd_client *c, struct nbd_call *call);

/* client_reconnect.c: the same, and sends it again where that is wanted. */
int nbd_client_call(struct nbd_client *c, struct nbd_call *call);
/* FLUSH, which fails when writes may have been lost with a connection. */
int nbd_client_flush(struct nbd_client *c, struct error *err);
void nbd_client_close_lanes(struct nbd_client *c);
/* say() for each connection; the numbers of other workers' are read while they change. */
void nbd_client_each_lane(struct nbd_client *c, void (*say)(struct nbd_connection *c, void *arg),
                          void *arg);

#endif
