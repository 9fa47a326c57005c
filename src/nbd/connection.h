/*
 * One lane of the client: a connection in its transmission phase, on one worker.
 *
 * Any number of fibers of that worker call nbd_connection_call(); each sends its request under the
 * send lock and parks. A reader fiber, there only while requests are in flight, takes the replies
 * and puts payload straight into the callers' buffers. When the connection is lost or the server
 * breaks the protocol, all calls in flight and all later ones fail with the same words.
 *
 * Unless said otherwise functions are called on the connection's worker, from a fiber.
 */
#ifndef NBD_CONNECTION_H
#define NBD_CONNECTION_H

#include "channel/channel.h"
#include "core/error.h"
#include "core/fiber.h"
#include "core/fsync.h"
#include "core/worker.h"
#include "nbd/client_handshake.h"
#include "nbd/coverage.h"
#include "nbd/wire.h"
#include "volume/volume.h"

#include <stdatomic.h>

/* Requests in flight on a connection: servers take 16 to 256 at a time, more only wait there. */
#define NBD_CALLS_MAX 128
/* Error chunks in one reply: a text each is fair, a stream without end is not. */
#define NBD_ERROR_CHUNKS_MAX 64
/* Replies without bulk payload are received many at a time. */
#define NBD_RECEIVE_BUFFER 2048
/* Descriptors in one BLOCK_STATUS chunk; the protocol's own limit. */
#define NBD_DESCRIPTORS_MAX (1u << 20)

/* One request and its reply. Zero it, fill in the first part; it lives on the caller's stack. */
struct nbd_call {
    uint16_t command, flags;
    uint64_t offset, length;
    const void *payload;    /* WRITE: length bytes */
    uint8_t *buffer;        /* READ: length bytes */
    struct extent *extents; /* BLOCK_STATUS */
    size_t extents_max;
    struct error *err;       /* or NULL */
    atomic_ullong *answered; /* or NULL: goes up by one with a success, before anybody is told */

    size_t extents_count; /* BLOCK_STATUS: how many were filled in */

    /* The connection's. */
    uint64_t cookie;
    struct fiber *fiber;
    int failure; /* errno of the first error chunk, 0: none yet */
    int result;  /* when done: 0 or -errno */
    bool done;
    bool lost;    /* failed because the connection was lost: it may be sent again on another */
    bool chunked; /* a chunk has come: no simple reply may follow */
    bool has_status;
    unsigned error_chunks;
    uint64_t extents_sum; /* bytes that extents cover */
    struct nbd_coverage coverage;
};

struct nbd_connection {
    struct channel *ch;
    struct worker *worker;
    enum nbd_reply_mode mode;
    bool has_context;
    uint32_t context_id;

    struct fmutex send_lock;               /* one request goes out at a time */
    struct fsem slots;                     /* of calls[] */
    struct nbd_call *calls[NBD_CALLS_MAX]; /* by cookie % NBD_CALLS_MAX */
    uint64_t serial;                       /* makes each cookie new */
    unsigned in_flight;
    unsigned reads_in_flight;          /* those whose replies have bulk payload */
    struct nbd_call *current;          /* the reader may write to its buffers now */
    bool reading;                      /* the reader fiber is there */
    struct fiber *closer;              /* waits for the reader's end */
    unsigned users;                    /* fibers inside nbd_connection_call() */
    atomic_bool dead;                  /* written by its worker */
    struct error fault;                /* why it is dead */
    atomic_bool buried;                /* dead, idle, and ch is closed */
    struct nbd_connection *next_grave; /* the client's */
    uint64_t receives, send_buffer_wanted, send_buffer_granted; /* ch's, once it is closed */

    uint8_t received[NBD_RECEIVE_BUFFER]; /* headers and small payload not yet looked at */
    size_t start, end;
};

/* Takes ch over (also on failure), after the handshake that found these facts. */
int nbd_connection_new(struct channel *ch, const struct nbd_facts *facts,
                       struct nbd_connection **ret, struct error *err);
/* 0 or -errno with call->err. Canceled, it still waits a short time for the reply, so that the
 * connection stays good, and gives the connection up after that. */
int nbd_connection_call(struct nbd_connection *c, struct nbd_call *call);
/* How long that is; a variable for tests. */
extern uint64_t nbd_cancel_grace_ns;
/* Fails all calls. The first reason given is the reason. */
void nbd_connection_kill(struct nbd_connection *c, const struct error *why);
/* DISC (if it is alive), then closes and frees. No call may be in flight. NULL is fine. A buried
 * one may be closed on any worker. */
void nbd_connection_close(struct nbd_connection *c);

/* --- client_read.c, for connection.c, tests and the fuzzer --- */

/* Takes one reply or chunk, whichever call it belongs to; calls that it completes are marked done
 * and woken. 0, or -errno with err: the connection can't be used any more. */
int nbd_connection_receive(struct nbd_connection *c, struct error *err);
/* The end of a call: result is 0 or -errno. Takes it out of the table and wakes its fiber. */
void nbd_connection_complete(struct nbd_connection *c, struct nbd_call *call, int result);
/* Puts it into the table and gives it its cookie. There is room. */
void nbd_connection_register(struct nbd_connection *c, struct nbd_call *call);

#endif
