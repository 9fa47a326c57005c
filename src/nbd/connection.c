/*
 * One lane of the client: sending, the table of calls in flight, the reader fiber, the end.
 *
 * Sending: header and payload leave in one sendmsg under send_lock, an fmutex, because the sender
 * parks when the socket is full. The call is in the table before its first byte is out.
 *
 * No deadlock between full sockets: a server that does not read because its replies are not read
 * has replies for calls whose request is out, and for those the reader runs.
 *
 * The reader fiber is started by the first call in flight and ends with the last, so that an idle
 * connection keeps no worker from ending. That the server hung up is found by the next call.
 *
 * Memory safety: a call's buffers may be written to by the reader until the call is done; so a
 * canceled caller does not return before. It waits nbd_cancel_grace_ns for the reply, then the
 * connection is given up, which makes the reader return at once. nbd_connection_kill() leaves the
 * call that the reader is working for to the reader itself.
 */
#include "nbd/connection.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

uint64_t nbd_cancel_grace_ns = 2000000000ull;

/* DISC goes out when the socket takes it; a server that has stopped reading does not hold us up. */
#define CLOSE_GRACE_NS 2000000000ull

int nbd_connection_new(struct channel *ch, const struct nbd_facts *facts,
                       struct nbd_connection **ret, struct error *err)
{
    struct nbd_connection *c = calloc(1, sizeof *c);
    if (!c) {
        channel_close(ch);
        return error_set(err, ENOMEM, "no memory for a connection");
    }
    c->ch = ch;
    c->worker = worker_self();
    c->mode = facts->extended     ? NBD_MODE_EXTENDED
              : facts->structured ? NBD_MODE_STRUCTURED
                                  : NBD_MODE_SIMPLE;
    c->has_context = facts->base_allocation;
    c->context_id = facts->context_id;
    fmutex_init(&c->send_lock);
    fsem_init(&c->slots, NBD_CALLS_MAX);
    channel_set_deadline(ch, DEADLINE_NONE);
    *ret = c;
    return 0;
}

/* An error is an answer, too: which words a call fails with. */
static void tell_fault(struct nbd_connection *c, struct nbd_call *call)
{
    error_set(call->err, c->fault.code, "%s", c->fault.text);
    call->lost = c->fault.code != EPROTO && c->fault.code != ECONNABORTED &&
                 c->fault.code != ENOMEM;
}

static void fail_all(struct nbd_connection *c)
{
    for (unsigned i = 0; i < NBD_CALLS_MAX && c->in_flight > 0; i++) {
        struct nbd_call *call = c->calls[i];
        if (call && call != c->current) {
            tell_fault(c, call);
            nbd_connection_complete(c, call, -c->fault.code);
        }
    }
}

void nbd_connection_kill(struct nbd_connection *c, const struct error *why)
{
    if (!c->dead) {
        c->dead = true;
        c->fault = *why;
        if (c->fault.code == 0) {
            c->fault.code = EIO;
        }
        channel_abort(c->ch);
    }
    fail_all(c);
}

/* A dead connection keeps no descriptor longer than somebody is inside of it. */
static void bury_if_idle(struct nbd_connection *c)
{
    if (c->dead && c->users == 0 && !c->reading && !c->closer && c->ch) {
        c->receives = c->ch->receives;
        c->send_buffer_wanted = c->ch->send_buffer_wanted;
        c->send_buffer_granted = c->ch->send_buffer_granted;
        channel_close(c->ch);
        c->ch = NULL;
        atomic_store(&c->buried, true);
    }
}

static void read_replies(void *arg)
{
    struct nbd_connection *c = arg;
    while (c->in_flight > 0 && !c->dead) {
        struct error err = {0};
        int r = nbd_connection_receive(c, &err);
        c->current = NULL;
        if (r < 0) {
            error_set(&err, -r, "receiving a reply");
            nbd_connection_kill(c, &err);
        }
    }
    if (c->dead) {
        fail_all(c);
    }
    c->reading = false;
    if (c->closer) {
        fiber_wake(c->closer);
    }
    bury_if_idle(c);
}

static int start_reader(struct nbd_connection *c)
{
    if (c->reading) {
        return 0;
    }
    int r = fiber_spawn(read_replies, c, NULL);
    c->reading = r == 0;
    return r;
}

void nbd_connection_register(struct nbd_connection *c, struct nbd_call *call)
{
    assert(c->in_flight < NBD_CALLS_MAX);
    do {
        call->cookie = ++c->serial;
    } while (c->calls[call->cookie % NBD_CALLS_MAX]);
    c->calls[call->cookie % NBD_CALLS_MAX] = call;
    c->in_flight++;
    c->reads_in_flight += call->command == NBD_CMD_READ;
    call->fiber = fiber_self();
}

void nbd_connection_complete(struct nbd_connection *c, struct nbd_call *call, int result)
{
    c->calls[call->cookie % NBD_CALLS_MAX] = NULL;
    c->in_flight--;
    c->reads_in_flight -= call->command == NBD_CMD_READ;
    nbd_coverage_done(&call->coverage);
    if (result == 0 && call->answered) {
        atomic_fetch_add(call->answered, 1);
    }
    call->result = result;
    call->done = true;
    if (call->fiber && call->fiber != fiber_self()) {
        fiber_wake(call->fiber);
    }
}

static int send_request(struct nbd_connection *c, const struct nbd_call *call)
{
    bool extended = c->mode == NBD_MODE_EXTENDED;
    uint8_t header[NBD_HEADER_MAX];
    union {
        const void *in;
        void *out;
    } payload = {.in = call->payload}; /* iovec has no const form */
    struct nbd_request request = {
        .flags = call->flags,
        .command = call->command,
        .cookie = call->cookie,
        .offset = call->offset,
        .length = call->length,
    };
    if (extended && call->payload) {
        request.flags |= NBD_CMD_FLAG_PAYLOAD_LEN;
    }
    size_t len = nbd_request_encode(header, extended, &request);
    struct iovec iov[2] = {{header, len}, {payload.out, call->payload ? call->length : 0}};
    return channel_writev(c->ch, iov, call->payload ? 2 : 1, false);
}

/* What was sent in part can't be taken back: the connection is lost with it. */
static void lost_in_sending(struct nbd_connection *c, const struct nbd_call *call, int r)
{
    struct error err = {0};
    const char *name = nbd_command_name(call->command);
    if (r == -ECANCELED) {
        error_set(call->err, ECANCELED, "canceled while it was being sent");
        error_set(&err, ECONNABORTED,
                  "given up, because a %s request was canceled while it was "
                  "being sent",
                  name);
    } else if (r == -EPIPE || r == -ECONNRESET) {
        error_set(&err, ECONNRESET, "the server closed the connection (noticed when sending %s)",
                  name);
    } else {
        error_set(&err, -r, "sending a %s request", name);
    }
    nbd_connection_kill(c, &err);
}

/* Sends under the lock. 0 when the call is in the table or done; -errno when it never got there. */
static int start_call(struct nbd_connection *c, struct nbd_call *call)
{
    if (c->dead) {
        tell_fault(c, call);
        return -c->fault.code;
    }
    if (fiber_canceled()) {
        return error_set(call->err, ECANCELED, "canceled before it was sent");
    }
    int r = start_reader(c);
    if (r < 0) {
        return error_set(call->err, -r, "no memory for a fiber");
    }
    nbd_connection_register(c, call);
    r = send_request(c, call);
    if (r < 0) {
        lost_in_sending(c, call, r);
    }
    return 0;
}

static void wait_canceled(struct nbd_connection *c, struct nbd_call *call)
{
    uint64_t deadline = worker_now_ns(c->worker) + nbd_cancel_grace_ns;
    fiber_shield();
    while (!call->done && fiber_park(false, deadline) != -ETIMEDOUT) {
    }
    if (!call->done) {
        struct error err = {0};
        error_set(call->err, ECANCELED, "canceled while it waited for the server");
        error_set(&err, ECONNABORTED,
                  "given up, because the server did not answer a request that "
                  "was canceled");
        nbd_connection_kill(c, &err);
    }
    while (!call->done) {
        fiber_park(false, DEADLINE_NONE);
    }
    fiber_unshield();
}

static int call_in_slot(struct nbd_connection *c, struct nbd_call *call)
{
    int r = fsem_take(&c->slots, 1);
    if (r < 0) {
        return error_set(call->err, -r, "canceled before it was sent");
    }
    fmutex_lock(&c->send_lock);
    r = start_call(c, call);
    fmutex_unlock(&c->send_lock);
    while (r == 0 && !call->done) {
        if (fiber_park(true, DEADLINE_NONE) == -ECANCELED && !call->done) {
            wait_canceled(c, call);
        }
    }
    fsem_give(&c->slots, 1);
    r = r < 0 ? r : call->result;
    return r == -ECONNABORTED && fiber_canceled() ? -ECANCELED : r;
}

int nbd_connection_call(struct nbd_connection *c, struct nbd_call *call)
{
    assert(worker_self() == c->worker);
    c->users++;
    int r = call_in_slot(c, call);
    c->users--;
    bury_if_idle(c);
    return r;
}

static void say_goodbye(struct nbd_connection *c)
{
    channel_set_deadline(c->ch, worker_now_ns(c->worker) + CLOSE_GRACE_NS);
    send_request(c, &(struct nbd_call){.command = NBD_CMD_DISC, .cookie = c->serial + 1});
    channel_shutdown_write(c->ch);
}

void nbd_connection_close(struct nbd_connection *c)
{
    if (!c) {
        return;
    }
    if (!atomic_load(&c->buried)) {
        assert(worker_self() == c->worker && c->in_flight == 0);
        fiber_shield();
        if (!c->dead) {
            say_goodbye(c);
        }
        channel_abort(c->ch);
        c->closer = fiber_self();
        while (c->reading) {
            fiber_park(false, DEADLINE_NONE);
        }
        channel_close(c->ch);
        fiber_unshield();
    }
    fsem_done(&c->slots);
    fmutex_done(&c->send_lock);
    free(c);
}
