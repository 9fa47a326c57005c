/*
 * Inside of the NBD server: what its files share. Not for anybody else.
 *
 *   server.c               exports, listeners, stopping, statistics
 *   server_connection.c    a connection from accept to close; its input buffer
 *   server_handshake.c     greeting and option haggling
 *   server_options.c, server_meta.c    a function an option
 *   server_transmission.c  service fibers: receiving, judging and running requests
 *   server_commands.c, _read.c, _write.c, _status.c    a function a command
 *   server_reply.c         the queue of replies
 */
#ifndef NBD_SERVER_PRIVATE_H
#define NBD_SERVER_PRIVATE_H

#include "core/fiber.h"
#include "core/fsync.h"
#include "nbd/server.h"
#include "nbd/wire.h"

#include <pthread.h>

/* Every limit of a connection, and why. */
#define IN_SIZE (128u << 10) /* input buffer: thousands of headers, or the largest option */
#define OUT_SIZE (64u << 10) /* each of two reply buffers; larger payload goes around them */
#define SMALL_SIZE                                                                                 \
    (16u << 10)                 /* READ up to this is copied into the reply buffer: cheaper than a \
                                   send of its own */
#define PIECE_SIZE (256u << 10) /* of a large WRITE: it stays in a core's L2 cache */
#define PIECES_MAX 8            /* of one WRITE in flight */
#define READ_AHEAD                                                                               \
    (16u << 20)                        /* read and not sent yet: what a client that doesn't read \
                                          its replies may hold of the process's buffers */
#define READ_PIECE_SIZE (1u << 20)     /* of a large READ that is copied, a chunk each */
#define PAYLOAD_MAX (64u << 20)        /* served */
#define PAYLOAD_SKIP_MAX (256u << 20)  /* consumed and refused; more ends the connection */
#define EXTENTS_READ_MIN (64u << 10)   /* READ from this on asks where the holes are */
#define HOLE_MIN (16u << 10)           /* shorter holes are sent as data */
#define EXTENTS_COST_MAX_NS 20000      /* a volume that takes longer isn't asked at each READ */
#define STATUS_EXTENTS_MAX 8000        /* of one BLOCK_STATUS reply: 128 KiB at most */
#define STATUS_CALLS_MAX 1024          /* into the volume for it: a cut answer is an answer */
#define IDLE_SERVICES_MAX 16           /* fibers kept for the next burst */
#define TURN_REQUESTS 64               /* served in a row before other fibers have a turn */
#define OPTION_DATA_MAX (64u << 10)    /* parsed; more is skipped and refused */
#define OPTION_SKIP_MAX (32u << 20)    /* skipped; more ends the connection */
#define OPTIONS_MAX 16384              /* a handshake; management tools ask hundreds of times */
#define HANDSHAKE_STOP_NS 250000000ull /* for ERR_SHUTDOWN to a client that is haggling */
#define LINGER_NS 500000000ull         /* TCP: for the peer to take what was sent */

struct nbd_export {
    struct nbd_server *server;
    struct volume *volume; /* not owned */
    char *name;            /* owned */
    char *description;     /* owned, or NULL */
    bool read_only;
    bool written;    /* atomic: since the last flush of finish */
    int flush_error; /* atomic: positive errno of a failed flush. The kernel reports a lost
                        write once; we go on reporting it (checklist 117). */
};

struct server_listener;

struct nbd_server {
    struct nbd_server_options o;
    struct nbd_export *exports; /* fixed once the first connection is there */
    unsigned exports_count;
    bool stopping; /* atomic */
    uint64_t grace_ns;
    pthread_mutex_t lock; /* guards what follows; held for a few instructions */
    struct connection *connections;
    struct server_listener *listeners;
    unsigned users;   /* connections, listeners and posts under way */
    unsigned clients; /* accepted and not gone */
    unsigned refused; /* of those, served nothing but refusals */
    bool first_gone;
    struct fsem event;            /* for nbd_server_wait() and _finish(): something has changed */
    bool event_pending;           /* it has been given and not taken */
    struct nbd_server_stats gone; /* sums of connections that ended; live ones come on top */
};

/* One side of the conversation's counters; other threads read them (relaxed). */
struct counters {
    uint64_t requests, errors, read, written, lent;
};

/* Replies waiting to be sent. One buffer is filled while the other is on its way. Who holds the
 * lock sends, and looks again for more before it lets go; who finds it held just leaves. */
struct outbox {
    struct fmutex lock;
    uint8_t *buf[2];
    unsigned which; /* being filled */
    size_t fill;
    bool kicked; /* somebody will send after its turn */
};

struct service;

struct connection {
    struct nbd_server *server;
    struct connection *prev, *next; /* in server->connections, under its lock */
    struct worker *worker;
    struct channel *ch;        /* owned */
    struct nbd_export *export; /* once agreed */
    struct volume *volume;
    struct fiber *main;
    bool refused; /* too many clients: options are answered with ERR_POLICY */

    /* handshake */
    bool handshaking, canceled_once;
    bool no_zeroes;
    unsigned options;
    enum nbd_reply_mode mode;
    const struct nbd_export *meta_export; /* that SET_META_CONTEXT was for; NULL: nothing chosen */
    uint16_t flags;                       /* transmission flags of the export, as advertised */

    /* input */
    uint8_t *in;
    size_t in_at, in_end;
    bool bulk; /* large payloads are coming: receive the header alone, so that payload is received
                  at a page boundary */

    /* requests; see server_transmission.c */
    struct fgroup services;
    unsigned services_count;
    struct service *leader;
    struct service *idle;
    unsigned idle_count;
    bool successor;     /* woken or started, and has not run yet */
    bool leader_waits;  /* for a header: stopping may cancel it */
    bool stopping;      /* what is in the input buffer is still served */
    bool ended;         /* no further requests are read */
    struct fsem memory; /* of all payload */
    struct fsem ahead;  /* of READs, within it */
    unsigned turn;

    struct outbox out;
    int error;  /* sticky -errno: nothing can be sent any more */
    int result; /* what nbd_server_connection() returns */

    /* READ: a stretch known to be data; and what asking costs */
    uint64_t data_from, data_to;
    uint64_t extents_cost_ns;
    unsigned extents_skipped;

    struct counters count;
    unsigned warnings; /* said about this connection */
};

struct request {
    struct nbd_request wire;
    uint8_t *small;   /* the fiber's page-aligned buffer of SMALL_SIZE, or NULL */
    uint8_t *payload; /* received with it; owned, or small */
    size_t payload_len;
    int error;        /* positive errno: refused, the payload is consumed */
    const char *text; /* why; or err says it */
    struct error err;
};

/* --- server_connection.c --- */
struct connection *connection_new(struct nbd_server *s, struct channel *ch, bool refused);
int connection_run(struct connection *c); /* to the end; frees c; 0 or -errno of what ended it */
void connection_free(struct connection *c);
/* Nothing can be sent any more: everything in flight is canceled. code is -errno. */
void connection_fail(struct connection *c, int code);
/* On its worker: reads no further; what was accepted is finished. */
void connection_stop(struct connection *c);
/* What is known of the sender in log lines. */
void connection_warn(struct connection *c, const char *what, const struct error *err);

/* n <= IN_SIZE bytes are at c->in + c->in_at. 0; 1: the stream ended before the first of them;
 * -ECONNRESET: inside; -errno. */
int in_need(struct connection *c, size_t n);
/* Copies what is there, receives the rest in place. */
int in_read(struct connection *c, void *dst, size_t n);
int in_skip(struct connection *c, uint64_t n);
static inline size_t in_have(const struct connection *c)
{
    return c->in_end - c->in_at;
}

/* --- server.c --- */
struct nbd_export *server_export(struct nbd_server *s, const struct nbd_text *name);
static inline bool server_stopping(const struct nbd_server *s)
{
    return __atomic_load_n(&s->stopping, __ATOMIC_ACQUIRE);
}
void server_connection_add(struct nbd_server *s, struct connection *c);
void server_connection_gone(struct nbd_server *s, struct connection *c);

/* --- server_handshake.c --- */
/* 0: c->export is set and transmission starts. 1: a clean end. -errno. */
int handshake(struct connection *c);
/* What a chosen export can do, as bits of the transmission flags. */
uint16_t handshake_flags(const struct connection *c, const struct nbd_export *e);

struct option_call {
    struct connection *c;
    uint32_t option;
    const uint8_t *data;
    uint32_t len;
};
/* What happens after an option. */
enum option_next { OPTION_AGAIN, OPTION_TRANSMIT, OPTION_CLOSE, OPTION_HANG_UP };
typedef enum option_next option_fn(const struct option_call *o);
enum option_next option_reply(const struct option_call *o, uint32_t type, const void *data,
                              size_t len);
enum option_next option_error(const struct option_call *o, uint32_t type, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
option_fn option_export_name, option_abort, option_list, option_starttls, option_info, option_go,
    option_structured, option_extended, option_list_meta, option_set_meta;

/* --- server_transmission.c --- */
void transmission(struct connection *c);
/* No more requests are read; fibers that wait for the role end. */
void transmission_end(struct connection *c);
/* Reads no further than what is in the input buffer. */
void transmission_stop(struct connection *c);
/* Replies that wait are sent although the caller is about to wait with the role of the leader. */
void transmission_flush_aside(struct connection *c);

/* Page-aligned memory of the connection's share, -errno when canceled. For request fibers. */
int connection_buffer(struct connection *c, size_t len, void **ret);
void connection_buffer_put(struct connection *c, void *buf, size_t len);

/* --- server_commands.c, _read.c, _status.c, _write.c --- */
struct command {
    const char *name;
    unsigned flags;  /* that may be there, FUA aside */
    int range_error; /* positive errno for what is out of range; 0: there is no range */
    bool writes;     /* refused on a read-only export */
    void (*run)(struct connection *c, struct request *r);
};
const struct command *command_find(unsigned number); /* NULL: unknown */
/* Answers r: ret is 0 or -errno with err. */
void command_end(struct connection *c, struct request *r, int ret, struct error *err);
/* A failed flush is never forgotten. 0 or -errno. */
int export_flush(struct nbd_export *e, struct error *err);
/* WRITE larger than PIECE_SIZE: receives and writes. < 0: the stream is broken. */
int write_pieces(struct connection *c, struct request *r);
void command_write(struct connection *c, struct request *r);
void command_block_status(struct connection *c, struct request *r);
void command_read(struct connection *c, struct request *r);

/* --- server_reply.c --- */
int outbox_init(struct outbox *o); /* 0 or -ENOMEM */
void outbox_done(struct outbox *o);
/* Sends what waits, unless somebody is at it. */
void out_flush(struct connection *c);
/* The same, but other fibers that are ready may add theirs first. */
void out_kick(struct connection *c);
/* n <= OUT_SIZE bytes at the end of the queue, to be filled before the next wait. */
uint8_t *out_add(struct connection *c, size_t n);
/* A header and payload that follows it, past the queue. */
void out_bulk(struct connection *c, const void *header, size_t header_len, const struct lent *parts,
              unsigned count);

void reply_ok(struct connection *c, const struct request *r);
void reply_error(struct connection *c, const struct request *r, int code, const struct error *err);
/* The header of a READ's payload: simple or a data chunk. Returns its size. */
size_t reply_data_header(const struct connection *c, const struct request *r, uint8_t *p,
                         uint64_t offset, uint64_t length, bool last);
void reply_hole(struct connection *c, const struct request *r, uint64_t offset, uint32_t length,
                bool last);
/* For READ after the last content, or without any. */
void reply_none(struct connection *c, const struct request *r);

/* To be flushed at the end. Looked at first: all workers share the line. */
static inline void export_touched(struct nbd_export *e)
{
    if (!__atomic_load_n(&e->written, __ATOMIC_RELAXED)) {
        __atomic_store_n(&e->written, true, __ATOMIC_RELAXED);
    }
}

static inline void count_add(uint64_t *counter, uint64_t n)
{
    /* One thread writes, others read: no locked instruction is needed. */
    __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

#endif
