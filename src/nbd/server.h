/*
 * The NBD server: exports, connections, listeners.
 *
 * An nbd_server is set up on one fiber, then serves on any number of workers. A connection lives
 * on one worker; it and all that it has in flight end together.
 */
#ifndef NBD_SERVER_H
#define NBD_SERVER_H

#include "channel/channel.h"
#include "channel/socket.h"
#include "core/error.h"
#include "core/worker.h"
#include "volume/volume.h"

struct nbd_server;

struct nbd_server_options {
    unsigned max_connections;      /* 0: no limit but the descriptors */
    uint64_t handshake_timeout_ns; /* from accept to the end of GO; default 10 s, 0: none */
    uint64_t connection_memory;    /* bytes of payload in flight a connection; default 128 MiB */
    unsigned connection_requests;  /* requests in flight a connection; default 256 */
    uint64_t socket_buffer;        /* SOCKET_BUFFER_AUTO ... */
    bool list;                     /* NBD_OPT_LIST is answered (else POLICY); default true */
    bool no_structured;            /* for tests and bench: structured replies are not offered */
    bool no_extended;              /* extended headers are not offered */
    bool one_shot;                 /* nbd_server_wait() ends when the first client has gone */
    bool persistent;               /* with one_shot false: never ends by itself (default true) */
};

void nbd_server_options_init(struct nbd_server_options *o);

struct nbd_export_options {
    const char *name;        /* at most 4096 bytes, UTF-8; "" is the default export; copied */
    const char *description; /* or NULL; copied */
    bool read_only;
};

int nbd_server_new(const struct nbd_server_options *o, struct nbd_server **ret, struct error *err);
/* v stays the caller's and open until the server is freed. -EEXIST for a name given twice. */
int nbd_server_add_export(struct nbd_server *s, struct volume *v,
                          const struct nbd_export_options *o, struct error *err);

/*
 * Serves one connected channel until it ends, on the calling worker; closes it. For --stdio and
 * tests. 0, or -errno of what ended it other than a clean disconnect.
 */
int nbd_server_connection(struct nbd_server *s, struct channel *ch);

/* Takes over the listener; clients are spread over ws, one after the other. From a fiber; the
 * accepting fiber stays on the calling worker. */
int nbd_server_listen(struct nbd_server *s, struct listener *l, struct workers *ws,
                      struct error *err);

/* Parks until nbd_server_stop(), or, one_shot, until the first client has gone. */
void nbd_server_wait(struct nbd_server *s);
/* Any thread: stop accepting; connections finish what they have accepted, send the replies, and
 * close without ESHUTDOWN; after grace_ns what is left is cut. */
void nbd_server_stop(struct nbd_server *s, uint64_t grace_ns);
/* After wait: closes the listeners (socket files are removed), waits for connections, flushes
 * every export that was written. 0 or the first flush's -errno with err. */
int nbd_server_finish(struct nbd_server *s, struct error *err);
void nbd_server_free(struct nbd_server *s);

struct nbd_server_stats {
    uint64_t connections, connections_now;
    uint64_t requests, errors;
    uint64_t bytes_read, bytes_written, bytes_lent; /* payload */
};
void nbd_server_stats(const struct nbd_server *s, struct nbd_server_stats *ret);

#endif
