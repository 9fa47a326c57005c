/*
 * One client's connection: handshake, transmission, a tidy end. It lives on one worker; all of
 * its fibers run there, so what is in struct connection needs no lock but where others look at it.
 *
 * The main fiber runs the handshake, then waits until all service fibers (server_transmission.c)
 * have ended, sends what is left, and closes.
 */
#include "nbd/server_private.h"

#include "core/bufpool.h"
#include "core/log.h"
#include "core/probe.h"
#include "core/size.h"
#include "core/worker.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>

#define IN_ALIGN 4096
#define WARNINGS_MAX 10

struct connection *connection_new(struct nbd_server *s, struct channel *ch, bool refused)
{
    struct connection *c = calloc(1, sizeof(*c));
    if (!c) {
        return NULL;
    }
    void *in = NULL;
    if (posix_memalign(&in, IN_ALIGN, IN_SIZE) != 0) {
        free(c);
        return NULL;
    }
    if (outbox_init(&c->out) < 0) {
        free(in);
        free(c);
        return NULL;
    }
    c->server = s;
    c->ch = ch;
    c->in = in;
    c->refused = refused;
    c->handshaking = true;
    c->worker = worker_self();
    fgroup_init(&c->services);
    fsem_init(&c->memory, s->o.connection_memory);
    fsem_init(&c->ahead, READ_AHEAD);
    return c;
}

void connection_free(struct connection *c)
{
    channel_close(c->ch);
    outbox_done(&c->out);
    fsem_done(&c->memory);
    fsem_done(&c->ahead);
    free(c->in);
    free(c);
}

void connection_fail(struct connection *c, int code)
{
    if (c->error < 0) {
        return;
    }
    c->error = code;
    transmission_end(c);
    channel_abort(c->ch);
    fgroup_cancel(&c->services);
}

void connection_stop(struct connection *c)
{
    if (c->handshaking) {
        fiber_cancel(c->main);
        return;
    }
    transmission_stop(c);
}

void connection_warn(struct connection *c, const char *what, const struct error *err)
{
    if (c->warnings >= WARNINGS_MAX) {
        return;
    }
    c->warnings++;
    char text[ERROR_TEXT_MAX + ERROR_ENDPOINT_MAX + 128];
    log_warning("client %s: %s: %s%s", c->ch->peer, what, error_format(err, text, sizeof(text)),
                c->warnings == WARNINGS_MAX ? " (no more is said about this client)" : "");
}

static int in_receive(struct connection *c, size_t need)
{
    if (c->in_at == c->in_end) {
        c->in_at = c->in_end = 0;
    } else if (c->in_at > 0) {
        /* Less than what is needed: a part of a header, or of an option. */
        memmove(c->in, c->in + c->in_at, in_have(c));
        c->in_end -= c->in_at;
        c->in_at = 0;
    }
    size_t want = c->bulk ? need - in_have(c) : IN_SIZE - c->in_end;
    ssize_t n = channel_read_some(c->ch, c->in + c->in_end, want);
    if (n <= 0) {
        return n < 0 ? (int)n : in_have(c) > 0 ? -ECONNRESET : 1;
    }
    c->in_end += (size_t)n;
    return 0;
}

int in_need(struct connection *c, size_t n)
{
    while (in_have(c) < n) {
        int ret = in_receive(c, n);
        if (ret != 0) {
            return ret;
        }
    }
    return 0;
}

int in_read(struct connection *c, void *dst, size_t n)
{
    size_t there = in_have(c) < n ? in_have(c) : n;
    memcpy(dst, c->in + c->in_at, there);
    c->in_at += there;
    if (there == n) {
        return 0;
    }
    int ret = channel_read(c->ch, (uint8_t *)dst + there, n - there);
    return ret == 1 ? -ECONNRESET : ret;
}

int in_skip(struct connection *c, uint64_t n)
{
    size_t there = in_have(c) < n ? in_have(c) : (size_t)n;
    c->in_at += there;
    if (there == n) {
        return 0;
    }
    int ret = channel_skip(c->ch, n - there);
    return ret == 1 ? -ECONNRESET : ret;
}

/* On TCP a close with unread input makes the kernel reset the connection, and what we sent last is
 * lost on its way. So say that no more comes and let the peer close first, for a while. */
static void linger(struct connection *c)
{
    if (c->ch->kind != CHANNEL_TCP || c->error < 0 || channel_shutdown_write(c->ch) < 0) {
        return;
    }
    channel_set_deadline(c->ch, worker_now_ns(c->worker) + LINGER_NS);
    fiber_shield();
    while (channel_read_some(c->ch, c->in, IN_SIZE) > 0) {
    }
    fiber_unshield();
}

/* What the client is, and what its socket's buffer asked and got: for support and for tuning. */
static void say_hello(const struct channel *ch)
{
    char wanted[SIZE_TEXT_MAX], granted[SIZE_TEXT_MAX];

    if (ch->send_buffer_wanted) {
        log_info("client %s has come: send buffer %s wanted, %s granted", ch->peer,
                 size_format(ch->send_buffer_wanted, wanted),
                 size_format(ch->send_buffer_granted, granted));
    } else {
        log_info("client %s has come: send buffer left to the kernel", ch->peer);
    }
}

int connection_run(struct connection *c)
{
    say_hello(c->ch);
    c->main = fiber_self();
    PROBE2(connection__open, c, c->ch->rfd);
    server_connection_add(c->server, c);
    if (server_stopping(c->server)) {
        connection_stop(c); /* whoever stopped the server has not seen us */
    }
    int ret = handshake(c);
    c->handshaking = false;
    if (ret == 0) {
        channel_set_deadline(c->ch, DEADLINE_NONE);
        transmission(c);
        ret = c->result;
    }
    fiber_shield();
    out_flush(c);
    fiber_unshield();
    linger(c);
    log_info("client %s has gone: %" PRIu64 " bytes in, %" PRIu64 " out%s%s", c->ch->peer,
             c->ch->bytes_in, c->ch->bytes_out, ret < 0 ? ": " : "",
             ret < 0 ? strerrordesc_np(-ret) : "");
    PROBE2(connection__close, c, ret < 0 ? -ret : 0);
    struct nbd_server *s = c->server;
    server_connection_gone(s, c);
    connection_free(c);
    return ret < 0 ? ret : 0;
}
