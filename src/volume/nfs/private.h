/*
 * What the files of the NFS driver know of each other. Only they include it.
 *
 * Layers, bottom up: dial.c makes sockets; connection.c is one socket with a libnfs context on it;
 * lane.c is a worker's connection, made anew when it is lost; errand.c lets workers share one;
 * procedures.c are the calls of NFSv3, their replies checked; mount.c finds the file; nfs.c is the
 * volume.
 *
 * Names start with nfsc_ (NFS client): libnfs has nfs_... for itself.
 */
#ifndef VOLUME_NFS_PRIVATE_H
#define VOLUME_NFS_PRIVATE_H

#include "channel/sockaddr.h"
#include "core/error.h"
#include "core/fdwait.h"
#include "core/fiber.h"
#include "core/fsync.h"
#include "core/worker.h"
#include "volume/nfs/url.h"
#include "volume/volume.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_context;
struct nfs_context;

#define NFSC_TRANSFER_MAX (1u << 20) /* libnfs takes no larger reply */
#define NFSC_HANDLE_MAX 64           /* RFC 1813, 2.4 */
#define NFSC_CONNECT_TIMEOUT_NS 30000000000ull
#define NFSC_BACKOFF_FIRST_NS 100000000ull
#define NFSC_BACKOFF_LAST_NS 2000000000ull

struct nfsc_handle {
    uint32_t len;
    uint8_t data[NFSC_HANDLE_MAX];
};

/* Where to connect to, and as whom. */
struct nfsc_server {
    struct nfsc_url url;
    struct sockaddr_item addresses[SOCKADDRS_MAX];
    int address_count;
    char shown[280]; /* HOST, escaped, for messages */
};

/* --- dial.c --- */

/* A connected, non-blocking socket with TCP_NODELAY; from a low port where the process may have
 * one. Or -errno with err. */
int nfsc_dial(const struct nfsc_server *s, uint16_t port, uint64_t deadline_ns, struct error *err);

/* --- connection.c --- */

/* How a call is started: fn is given to libnfs with arg. 0, or < 0 when it could not be queued. */
typedef void nfsc_reply_fn(struct rpc_context *rpc, int status, void *data, void *arg);
struct nfsc_procedure {
    const char *name; /* for messages: "READ" */
    int (*start)(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg);
    /* The reply has come: takes what it needs out of data, which is gone afterwards. Does not wait.
     * Not called when nobody waits for the reply any more. */
    void (*take)(void *data, void *job);
};

struct nfsc_connection;

int nfsc_connection_open(const struct nfsc_server *s, uint16_t port, uint64_t deadline_ns,
                         struct nfsc_connection **ret, struct error *err);
bool nfsc_connection_alive(const struct nfsc_connection *c);
/* Why it is not. */
const char *nfsc_connection_fault(const struct nfsc_connection *c);
/* NULL is fine. Calls in flight return as lost. Waits a moment, is not canceled. */
void nfsc_connection_close(struct nfsc_connection *c);

/* One call. 0: the reply was taken. -ENOTCONN: the connection was lost, and whether the server has
 * done it is not known; err is not set. -EPROTO: the server refused the call or its reply makes no
 * sense. -ECANCELED, -ENOMEM. job is not touched once this has returned. */
int nfsc_connection_call(struct nfsc_connection *c, const struct nfsc_procedure *p, void *job,
                         uint64_t timeout_ns, struct error *err);

/* --- lane.c --- */

struct nfsc_lane;
struct nfsc_volume;

/* As nfsc_connection_call(), on the lane of the calling worker. A call whose connection is lost is
 * sent again on a new one until reconnect-delay is over. */
int nfsc_lane_call_here(struct nfsc_lane *lane, const struct nfsc_procedure *p, void *job,
                        struct error *err);
/* The same on the calling worker's own lane, which is made when it is first needed, or on one that
 * it shares. */
int nfsc_lane_call(struct nfsc_volume *n, const struct nfsc_procedure *p, void *job,
                   struct error *err);
/* Takes c as the calling worker's connection. */
int nfsc_lane_adopt(struct nfsc_volume *n, struct nfsc_connection *c, struct error *err);
void nfsc_lanes_close(struct nfsc_volume *n);
unsigned nfsc_lanes_open(struct nfsc_volume *n);

/* --- errand.c --- */

/* nfsc_lane_call_here() on the lane's worker w, which is another one. */
int nfsc_errand(struct worker *w, struct nfsc_lane *lane, const struct nfsc_procedure *p, void *job,
                struct error *err);

/* --- procedures.c --- */

/* How calls reach the server: a connection while the volume is opened, a lane afterwards. */
struct nfsc_path {
    struct nfsc_connection *connection; /* or NULL: by lane */
    struct nfsc_volume *volume;
    uint64_t timeout_ns;
};

struct nfsc_attributes {
    unsigned type; /* enum ftype3 */
    uint64_t size;
};

struct nfsc_facts {
    uint32_t read_max, write_max;
    uint64_t file_max; /* bytes */
};

/* What has been written and not yet committed. One for a volume: COMMIT is about the whole file,
 * whichever connection it comes by (RFC 1813, 3.3.21). */
struct nfsc_stable {
    pthread_mutex_t lock; /* held for a few instructions */
    bool pending;         /* verifier is that of writes that no COMMIT covers */
    bool lost;            /* a verifier changed: what was written may be gone, for good */
    char verifier[8];
    uint64_t writes; /* unstable ones answered */
};

int nfsc_read(struct nfsc_path *p, const struct nfsc_handle *h, void *buf, uint32_t len,
              uint64_t off, bool *eof, struct error *err); /* bytes */
int nfsc_write(struct nfsc_path *p, const struct nfsc_handle *h, const void *buf, uint32_t len,
               uint64_t off, bool stable, struct nfsc_stable *s, struct error *err); /* bytes */
int nfsc_commit(struct nfsc_path *p, const struct nfsc_handle *h, struct nfsc_stable *s,
                struct error *err);
int nfsc_getattr(struct nfsc_path *p, const struct nfsc_handle *h, struct nfsc_attributes *ret,
                 struct error *err);
int nfsc_set_size(struct nfsc_path *p, const struct nfsc_handle *h, uint64_t size,
                  struct error *err);
int nfsc_lookup(struct nfsc_path *p, const struct nfsc_handle *folder, const char *name,
                struct nfsc_handle *ret, struct error *err);
/* *has_handle: the server may leave it out of its reply. */
int nfsc_create(struct nfsc_path *p, const struct nfsc_handle *folder, const char *name,
                bool exclusive, struct nfsc_handle *ret, bool *has_handle, struct error *err);
int nfsc_remove(struct nfsc_path *p, const struct nfsc_handle *folder, const char *name,
                struct error *err);
int nfsc_fsinfo(struct nfsc_path *p, const struct nfsc_handle *h, struct nfsc_facts *ret,
                struct error *err);
int nfsc_mnt(struct nfsc_path *p, const char *folder, struct nfsc_handle *ret, struct error *err);
/* Port of a program by TCP; -ENXIO: it is not registered. */
int nfsc_getport(struct nfsc_path *p, uint32_t program, uint32_t version, struct error *err);

/* --- status.c --- */

/* errno, > 0, of an nfsstat3 or mountstat3 that is not OK; EAGAIN: try again later. */
int nfsc_status_errno(uint32_t status);
/* "NFS3ERR_NOSPC"; NULL for what RFC 1813 does not know. */
const char *nfsc_status_name(uint32_t status);
/* Sets err and returns -errno. */
int nfsc_status_error(uint32_t status, const char *what, struct error *err);

/* --- mount.c --- */

struct endpoint_options;

/* From the URL to the file: handle, size, facts, and the calling worker's lane. */
int nfsc_find(struct nfsc_volume *n, const struct endpoint_options *o, struct error *err);

struct nfsc_volume {
    struct volume v;
    struct nfsc_server server;
    uint16_t port; /* of NFS */
    struct nfsc_handle handle;
    struct nfsc_facts facts;
    struct nfsc_stable stable;
    bool writethrough;     /* every write is FILE_SYNC */
    struct fmutex opening; /* guards changes of lanes */
    _Atomic(struct nfsc_lane *) lanes[WORKERS_MAX];
};

#endif
