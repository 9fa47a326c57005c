/*
 * One TCP connection to a server, with a libnfs context on it that makes requests and takes
 * replies apart. Everything here happens on the worker that opened it.
 *
 * A call is queued with libnfs and its fiber parks. Two short-lived fibers move bytes: the sender
 * starts with the first call that is queued and ends when the queue is out, so that calls of many
 * fibers leave in one go; the reader lives while a call waits for its reply, so that an idle
 * connection keeps no worker from ending. libnfs answers by a callback out of the reader, which
 * takes what it needs from the reply and wakes the caller.
 *
 * libnfs has a duplicate of the socket's descriptor. The original is registered with the worker's
 * epoll and outlives the context, so that a number that libnfs closes is never taken for another
 * file. libnfs never connects: a connection that is lost stays lost, its calls return -ENOTCONN,
 * and who wants another one opens it (lane.c).
 *
 * Memory safety: a caller that does not wait any longer (canceled, timed out) leaves its call
 * behind without its job: a late reply is dropped. Where libnfs still needs the bytes of a WRITE
 * after it was queued (5.0.3 and later) the connection is given up with the call.
 *
 * libnfs answers a call with an error both when the server refuses it and when the connection is
 * gone. Which one it is shows when rpc_service() has returned, so the answer waits until then.
 */
#include "core/log.h"
#include "volume/nfs/private.h"

#include "config.h"

#include <nfsc/libnfs.h> /* before the next, which needs its types */

#include <nfsc/libnfs-raw.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define FAULT_MAX 192
#define READS_PER_TURN 16 /* replies taken before other fibers get their turn */

struct nfsc_call {
    struct nfsc_call *next, *prev; /* in the connection's list, until it is done */
    struct nfsc_connection *connection;
    const struct nfsc_procedure *procedure;
    void *job;
    struct fiber *owner; /* NULL: nobody waits; it is freed when libnfs is through with it */
    bool refused;        /* libnfs said "error", which rpc_service() will tell more about */
    bool done;
    int result;
    char text[FAULT_MAX];
};

struct nfsc_connection {
    struct worker *worker;
    struct nfs_context *nfs; /* NULL: lost */
    struct rpc_context *rpc; /* of nfs */
    int fd;
    struct fdwait wait;
    struct nfsc_call *calls;
    unsigned waiting; /* calls with an owner that are not done */
    unsigned queued;  /* since the sender last ran */
    unsigned refused; /* calls to look at when rpc_service() has returned */
    struct fiber *reader, *sender, *closer;
    bool reading, sending; /* these fibers exist */
    char fault[FAULT_MAX];
};

/* libnfs picks the first transaction numbers of its contexts from a variable of all threads. */
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;

/* --- calls --- */

static void unlink_call(struct nfsc_connection *c, struct nfsc_call *call)
{
    if (call->prev) {
        call->prev->next = call->next;
    } else {
        c->calls = call->next;
    }
    if (call->next) {
        call->next->prev = call->prev;
    }
}

/* libnfs knows the call no more, and it is in no list. */
static void complete(struct nfsc_connection *c, struct nfsc_call *call, int result)
{
    if (call->refused) {
        c->refused--;
    }
    if (!call->owner) {
        free(call);
        return;
    }
    c->waiting--;
    call->result = result;
    call->done = true;
    fiber_wake(call->owner);
}

static void replied(struct rpc_context *rpc, int status, void *data, void *arg)
{
    struct nfsc_call *call = arg;
    struct nfsc_connection *c = call->connection;
    if (status == RPC_STATUS_SUCCESS) {
        if (call->owner) {
            call->procedure->take(data, call->job);
        }
        unlink_call(c, call);
        complete(c, call, 0);
        return;
    }
    if (!call->refused) {
        call->refused = true;
        c->refused++;
    }
    const char *text = status == RPC_STATUS_ERROR && data ? data : "";
    log_escape(call->text, sizeof call->text, text, strnlen(text, sizeof call->text));
}

static void finish_refused(struct nfsc_connection *c)
{
    struct nfsc_call *next;
    for (struct nfsc_call *call = c->calls; call && c->refused > 0; call = next) {
        next = call->next;
        if (call->refused) {
            unlink_call(c, call);
            complete(c, call, -EPROTO);
        }
    }
}

/* Never from a callback of libnfs. */
static void lose(struct nfsc_connection *c, const char *why)
{
    if (!c->nfs) {
        return;
    }
    snprintf(c->fault, sizeof c->fault, "%s", why);
    shutdown(c->fd, SHUT_RDWR); /* also wakes the fibers that wait for it */
    nfs_destroy_context(c->nfs);
    c->nfs = NULL;
    c->rpc = NULL;
    struct nfsc_call *next;
    for (struct nfsc_call *call = c->calls; call; call = next) {
        next = call->next;
        complete(c, call, -ENOTCONN);
    }
    c->calls = NULL;
}

/* --- bytes --- */

static bool service(struct nfsc_connection *c, int events)
{
    int r = rpc_service(c->rpc, events);
    if (r < 0 || rpc_get_fd(c->rpc) < 0) {
        char why[FAULT_MAX];
        const char *text = rpc_get_error(c->rpc);
        text = text ? text : "the connection was closed";
        lose(c, log_escape(why, sizeof why, text, strnlen(text, sizeof why)));
        return false;
    }
    finish_refused(c);
    return c->nfs != NULL;
}

static bool has_unsent(const struct nfsc_connection *c)
{
    return c->rpc && (rpc_which_events(c->rpc) & POLLOUT);
}

/* Whether there is something to read now: bytes, or the stream's end. */
static bool has_unread(const struct nfsc_connection *c)
{
    char byte;
    return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 ||
           (errno != EAGAIN && errno != EINTR);
}

static void start_fibers(struct nfsc_connection *c);

static void fiber_ends(struct nfsc_connection *c)
{
    start_fibers(c); /* canceled for want of work, and work has come since */
    if (c->closer && !c->reading && !c->sending) {
        fiber_wake(c->closer);
    }
}

static void read_replies(void *arg)
{
    struct nfsc_connection *c = arg;
    unsigned turns = 0;
    while (c->nfs && c->waiting > 0 && fdwait_wait(&c->wait, FDWAIT_READ, DEADLINE_NONE) == 0) {
        while (c->nfs && has_unread(c) && service(c, POLLIN)) {
            if (++turns % READS_PER_TURN == 0) {
                fiber_yield();
            }
        }
    }
    c->reading = false;
    c->reader = NULL;
    fiber_ends(c);
}

/* Small requests that leave together go into as few packets as they fit. */
static bool send_queue(struct nfsc_connection *c)
{
    int on = c->queued > 1;
    c->queued = 0;
    if (on) {
        (void)setsockopt(c->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
    }
    bool alive = service(c, POLLOUT);
    if (on) {
        on = 0;
        (void)setsockopt(c->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
    }
    return alive;
}

static void send_calls(void *arg)
{
    struct nfsc_connection *c = arg;
    while (has_unsent(c) && send_queue(c) && has_unsent(c)) {
        if (fdwait_wait(&c->wait, FDWAIT_WRITE, DEADLINE_NONE) < 0) {
            break;
        }
    }
    c->sending = false;
    c->sender = NULL;
    fiber_ends(c);
}

static void start_fibers(struct nfsc_connection *c)
{
    int r = 0;
    if (!c->nfs || c->waiting == 0) {
        return;
    }
    if (!c->sending && has_unsent(c)) {
        r = fiber_spawn(send_calls, c, &c->sender);
        c->sending = r == 0;
    }
    if (!c->reading && r == 0) {
        r = fiber_spawn(read_replies, c, &c->reader);
        c->reading = r == 0;
    }
    if (r < 0) {
        lose(c, "no memory for a fiber");
    }
}

/* --- one call --- */

static struct nfsc_call *queue_call(struct nfsc_connection *c, const struct nfsc_procedure *p,
                                    void *job)
{
    struct nfsc_call *call = calloc(1, sizeof *call);
    if (!call) {
        return NULL;
    }
    call->connection = c;
    call->procedure = p;
    call->job = job;
    call->owner = fiber_self();
    call->next = c->calls;
    if (c->calls) {
        c->calls->prev = call;
    }
    c->calls = call;
    c->waiting++;
    if (p->start(c->rpc, replied, job, call) < 0) {
        unlink_call(c, call);
        c->waiting--;
        c->refused -= call->refused;
        free(call);
        return NULL;
    }
    c->queued++;
    return call;
}

/* The caller goes before its reply has come. */
static int leave(struct nfsc_connection *c, struct nfsc_call *call, int r, uint64_t timeout_ns)
{
    call->owner = NULL;
    call->job = NULL;
    c->waiting--;
    if (r == -ETIMEDOUT) {
        char why[FAULT_MAX];
        snprintf(why, sizeof why, "no answer to a %s within %.3g s", call->procedure->name,
                 (double)timeout_ns / 1e9);
        lose(c, why);
        return -ENOTCONN;
    }
    if (LIBNFS_BORROWS) {
        lose(c, "a request was canceled");
    } else if (c->waiting == 0) {
        if (c->reader) {
            fiber_cancel(c->reader);
        }
        if (c->sender) {
            fiber_cancel(c->sender);
        }
    }
    return r;
}

int nfsc_connection_call(struct nfsc_connection *c, const struct nfsc_procedure *p, void *job,
                         uint64_t timeout_ns, struct error *err)
{
    if (!c->nfs) {
        return -ENOTCONN;
    }
    if (fiber_canceled()) {
        return error_set(err, ECANCELED, "canceled before it was sent");
    }
    uint64_t deadline_ns = worker_now_ns(c->worker) + timeout_ns;
    struct nfsc_call *call = queue_call(c, p, job);
    if (!call) {
        return error_set(err, ENOMEM, "no memory for a request");
    }
    start_fibers(c);
    while (!call->done) {
        int r = fiber_park(true, deadline_ns);
        if (r < 0 && !call->done) {
            r = leave(c, call, r, timeout_ns);
            return r == -ENOTCONN ? r : error_set(err, -r, "%s was canceled", p->name);
        }
    }
    int r = call->result;
    if (r == -EPROTO) {
        error_set(err, EPROTO, "%s: the server refuses the call, or its reply makes no sense%s%s",
                  p->name, call->text[0] ? ": " : "", call->text);
    }
    free(call);
    return r;
}

/* --- life --- */

static int make_context(struct nfsc_connection *c, const struct nfsc_url *u)
{
    uint32_t first;
    pthread_mutex_lock(&context_lock);
    c->nfs = nfs_init_context();
    pthread_mutex_unlock(&context_lock);
    if (!c->nfs) {
        return -ENOMEM;
    }
    c->rpc = nfs_get_rpc_context(c->nfs);
    nfs_set_autoreconnect(c->nfs, 0);
    if (u->has_uid) {
        nfs_set_uid(c->nfs, (int)u->uid);
    }
    if (u->has_gid) {
        nfs_set_gid(c->nfs, (int)u->gid);
    }
    if (u->debug > 0) {
        nfs_set_debug(c->nfs, (int)u->debug);
    }
    /* Servers keep answers by transaction number, so two contexts must not have the same ones. */
    if (getrandom(&first, sizeof first, GRND_NONBLOCK) == (ssize_t)sizeof first) {
        rpc_set_next_xid(c->rpc, first);
    }
    int fd = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    rpc_set_fd(c->rpc, fd);
    return 0;
}

int nfsc_connection_open(const struct nfsc_server *s, uint16_t port, uint64_t deadline_ns,
                         struct nfsc_connection **ret, struct error *err)
{
    struct nfsc_connection *c = calloc(1, sizeof *c);
    if (!c) {
        return error_set(err, ENOMEM, "no memory for a connection");
    }
    c->worker = worker_self();
    c->fd = nfsc_dial(s, port, deadline_ns, err);
    if (c->fd < 0) {
        int r = c->fd;
        free(c);
        return r;
    }
    int r = fdwait_init(&c->wait, c->fd);
    if (r == 0) {
        r = make_context(c, &s->url);
    }
    if (r == 0 && !service(c, POLLOUT)) { /* libnfs notes that it is connected */
        error_set(err, ECONNRESET, "%s", c->fault);
        r = -ECONNRESET;
    }
    if (r < 0) {
        nfsc_connection_close(c);
        return error_set(err, -r, "no context for a connection");
    }
    *ret = c;
    return 0;
}

bool nfsc_connection_alive(const struct nfsc_connection *c)
{
    return c && c->nfs;
}

const char *nfsc_connection_fault(const struct nfsc_connection *c)
{
    return c->fault;
}

void nfsc_connection_close(struct nfsc_connection *c)
{
    if (!c) {
        return;
    }
    lose(c, "closed");
    c->closer = fiber_self();
    while (c->reading || c->sending) {
        fiber_park(false, DEADLINE_NONE);
    }
    fdwait_done(&c->wait);
    close(c->fd);
    free(c);
}
