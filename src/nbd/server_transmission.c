/*
 * The transmission phase: service fibers that take turns at being the leader.
 *
 * The leader alone reads from the channel. It receives one request, gives the role up, sees to
 * it that a successor will run if it has to wait, and runs the request itself. A request that
 * memory can answer never waits, so the fiber takes the role back and goes on: thousands of small
 * requests are read from one receive, run, and answered with one send, without a switch between
 * fibers. When a request does wait, for a disk or for a client that does not read, the successor
 * becomes the leader and reads on, so requests overtake each other.
 *
 * Bounds: the number of fibers is the number of requests in flight; payload is counted by
 * c->memory. At either bound nobody reads, which pushes back on the client, and on no one else.
 *
 * Cancellation: stopping cancels a leader that waits for a header, no other wait; a failed
 * connection cancels all.
 */
#include "nbd/server_private.h"

#include "core/bufpool.h"
#include "core/probe.h"
#include "core/worker.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#define SMALL_ALIGN 4096
#define FIRST_REPLIES 3u /* of a batch: each leaves by itself */

struct service {
    struct connection *c;
    struct fiber *fiber;
    struct service *next; /* in c->idle */
    bool idle;
    struct request request;
};

static void service_main(void *arg);

/* Somebody will run, and take the role, if the caller must wait. */
static void prepare_successor(struct connection *c)
{
    if (c->ended || c->successor) {
        return;
    }
    struct service *s = c->idle;
    if (s) {
        c->idle = s->next;
        c->idle_count--;
        s->idle = false;
        c->successor = true;
        fiber_wake(s->fiber);
        return;
    }
    if (c->services_count <= c->server->o.connection_requests &&
        fgroup_spawn(&c->services, service_main, c) == 0) {
        c->services_count++;
        c->successor = true;
        return;
    }
    /* Nobody reads until a request has ended, so nobody else would send these. */
    out_flush(c);
}

void transmission_end(struct connection *c)
{
    c->ended = true;
    while (c->idle) {
        struct service *s = c->idle;
        c->idle = s->next;
        c->idle_count--;
        s->idle = false;
        fiber_wake(s->fiber);
    }
}

static bool take_role(struct service *s)
{
    struct connection *c = s->c;
    while (!c->ended) {
        if (!c->leader) {
            c->leader = s;
            return true;
        }
        if (c->idle_count >= IDLE_SERVICES_MAX) {
            return false;
        }
        s->idle = true;
        s->next = c->idle;
        c->idle = s;
        c->idle_count++;
        while (s->idle) {
            fiber_park(false, DEADLINE_NONE);
        }
        c->successor = false;
    }
    return false;
}

/* The end of reading: result is 0 or -errno. */
static int end_reading(struct connection *c, int result)
{
    if (c->result == 0) {
        c->result = result;
    }
    transmission_end(c);
    return 1;
}

static void flush_aside(void *arg)
{
    out_flush(arg);
}

void transmission_flush_aside(struct connection *c)
{
    if (c->out.fill > 0) {
        /* Without memory for a fiber the replies leave a little later. */
        (void)fgroup_spawn(&c->services, flush_aside, c);
    }
}

int connection_buffer(struct connection *c, size_t len, void **ret)
{
    if (!fsem_try_take(&c->memory, len)) {
        transmission_flush_aside(c);
        int failed = fsem_take(&c->memory, len);
        if (failed < 0) {
            return failed;
        }
    }
    *ret = bufpool_try_get(len);
    if (*ret) {
        return 0;
    }
    transmission_flush_aside(c);
    int failed = bufpool_get(len, ret);
    if (failed < 0) {
        fsem_give(&c->memory, len);
    }
    return failed;
}

void connection_buffer_put(struct connection *c, void *buf, size_t len)
{
    bufpool_put(buf, len);
    fsem_give(&c->memory, len);
}

/* Payload is counted; a connection that has too much of it in flight waits here. */
static int payload_get(struct connection *c, struct request *r, size_t len)
{
    if (len <= SMALL_SIZE) {
        r->payload = r->small;
    } else {
        void *buf = NULL;
        int ret = connection_buffer(c, len, &buf);
        if (ret < 0) {
            return ret;
        }
        r->payload = buf;
    }
    r->payload_len = len;
    return 0;
}

static void payload_put(struct connection *c, struct request *r)
{
    if (r->payload && r->payload != r->small) {
        connection_buffer_put(c, r->payload, r->payload_len);
    }
    r->payload = NULL;
    r->payload_len = 0;
}

static void refuse(struct request *r, int code, const char *text)
{
    if (r->error == 0) {
        r->error = code;
        r->text = text;
    }
}

static void judge_range(const struct connection *c, struct request *r, const struct command *cmd)
{
    uint64_t size = c->volume->size;
    if (cmd->range_error != 0 &&
        (r->wire.length > size || r->wire.offset > size - r->wire.length)) {
        refuse(r, cmd->range_error, "beyond the end of the export");
    }
}

/* What must hold before a request is run. length is that of the effect. */
static void judge(const struct connection *c, struct request *r, const struct command *cmd)
{
    unsigned flags = r->wire.flags;
    if (!cmd) {
        refuse(r, EINVAL, "unknown command");
        return;
    }
    bool extended = c->mode == NBD_MODE_EXTENDED;
    unsigned allowed = cmd->flags & ~NBD_CMD_FLAG_PAYLOAD_LEN;
    if (c->flags & NBD_FLAG_SEND_FUA) {
        allowed |= NBD_CMD_FLAG_FUA;
    }
    if (!(c->flags & NBD_FLAG_SEND_DF)) {
        allowed &= ~NBD_CMD_FLAG_DF;
    }
    if (!(c->flags & NBD_FLAG_SEND_FAST_ZERO)) {
        allowed &= ~NBD_CMD_FLAG_FAST_ZERO;
    }
    if (extended && (cmd->flags & NBD_CMD_FLAG_PAYLOAD_LEN) &&
        (r->wire.command == NBD_CMD_WRITE || (c->flags & NBD_FLAG_BLOCK_STATUS_PAYLOAD))) {
        allowed |= NBD_CMD_FLAG_PAYLOAD_LEN;
    }
    if (flags & ~allowed) {
        refuse(r, EINVAL, "a flag that does not belong to the command or was not advertised");
    }
    if (extended && r->wire.command == NBD_CMD_WRITE && !(flags & NBD_CMD_FLAG_PAYLOAD_LEN)) {
        refuse(r, EINVAL, "WRITE without the PAYLOAD_LEN flag");
    }
    if (cmd->writes && (c->flags & NBD_FLAG_READ_ONLY)) {
        refuse(r, EPERM, "the export is read-only");
    }
    /* With a payload of its own BLOCK_STATUS says its range there. */
    if (r->wire.command != NBD_CMD_BLOCK_STATUS || !(flags & NBD_CMD_FLAG_PAYLOAD_LEN)) {
        judge_range(c, r, cmd);
    }
    if (r->wire.command == NBD_CMD_READ && r->wire.length > PAYLOAD_MAX) {
        refuse(r, c->mode == NBD_MODE_SIMPLE ? EINVAL : EOVERFLOW, "READ of more than 64 MiB");
    }
}

/* The payload of a request that is refused, or too large, is consumed. < 0: it can't be. */
static int skip_payload(struct connection *c, struct request *r, uint64_t len)
{
    /* proto, extension-ext-header: more than the largest payload is a reason to hang up. In
     * compact mode we are patient for longer. */
    if (len > (c->mode == NBD_MODE_EXTENDED ? PAYLOAD_MAX : PAYLOAD_SKIP_MAX)) {
        return -EPROTO;
    }
    refuse(r, EINVAL, "more than 64 MiB of payload");
    if (in_have(c) < len) {
        transmission_flush_aside(c);
    }
    return in_skip(c, len);
}

static int receive_payload(struct connection *c, struct request *r, uint64_t len)
{
    bool write = r->wire.command == NBD_CMD_WRITE;
    c->bulk = write && len > SMALL_SIZE;
    if (r->error != 0 || len > PAYLOAD_MAX || (!write && len > OPTION_DATA_MAX)) {
        return skip_payload(c, r, len);
    }
    if (write && len > PIECE_SIZE) {
        return write_pieces(c, r);
    }
    int ret = payload_get(c, r, (size_t)len);
    if (ret < 0) {
        return ret;
    }
    if (in_have(c) < len) {
        transmission_flush_aside(c);
    }
    return in_read(c, r->payload, (size_t)len);
}

/* Whether a payload follows the header, and how long it is. */
static uint64_t payload_length(const struct connection *c, const struct request *r)
{
    bool follows = c->mode == NBD_MODE_EXTENDED ? (r->wire.flags & NBD_CMD_FLAG_PAYLOAD_LEN) != 0
                                                : r->wire.command == NBD_CMD_WRITE;
    return follows ? r->wire.length : 0;
}

/* When the peer has closed its socket altogether nobody will see the replies of what is in flight.
 * A peer that closed only its sending side still waits for them. */
static void note_end_of_stream(struct connection *c)
{
    unsigned waiting = 1 + c->idle_count + (c->successor ? 1 : 0);
    if (c->services_count <= waiting && c->out.fill == 0) {
        return;
    }
    struct pollfd p = {.fd = c->ch->wfd, .events = 0};
    if (poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR))) {
        connection_fail(c, -EPIPE);
    }
}

/* Until a whole header is there. 0; 1: no more requests. The role may have been lent to another
 * meanwhile: 2. */
static int wait_for_header(struct service *s, size_t size)
{
    struct connection *c = s->c;
    if (in_have(c) >= size) {
        return 0;
    }
    c->turn = 0;
    if (c->out.fill > 0) {
        c->leader = NULL;
        prepare_successor(c);
        out_flush(c);
        if (c->leader || c->ended) {
            return 2;
        }
        c->leader = s;
    }
    if (c->stopping) {
        return end_reading(c, 0);
    }
    c->leader_waits = true;
    int ret = in_need(c, size);
    c->leader_waits = false;
    if (ret == 0) {
        return 0;
    }
    if (ret == -ECANCELED && c->stopping) {
        return end_reading(c, 0);
    }
    note_end_of_stream(c);
    return end_reading(c, ret == 1 ? 0 : ret);
}

/* With the role. 0: s->request is to be run; 1: no more requests; 2: the role is lost. */
static int receive(struct service *s)
{
    struct connection *c = s->c;
    struct request *r = &s->request;
    bool extended = c->mode == NBD_MODE_EXTENDED;
    size_t size = nbd_request_size(extended);
    int ret = wait_for_header(s, size);
    if (ret != 0) {
        return ret;
    }
    r->error = 0;
    r->text = NULL;
    error_clear(&r->err);
    if (nbd_request_decode(c->in + c->in_at, extended, &r->wire) < 0) {
        return end_reading(c, -EPROTO);
    }
    c->in_at += size;
    count_add(&c->count.requests, 1);
    PROBE4(request__start, c, r->wire.command, r->wire.offset, r->wire.length);
    if (r->wire.command == NBD_CMD_DISC) {
        return end_reading(c, 0);
    }
    judge(c, r, command_find(r->wire.command));
    uint64_t len = payload_length(c, r);
    if (len > 0) {
        ret = receive_payload(c, r, len);
        if (ret < 0) {
            payload_put(c, r);
            /* Nothing that follows can be understood. */
            note_end_of_stream(c);
            return end_reading(c, ret);
        }
    } else {
        c->bulk = false;
    }
    return 0;
}

static void run(struct connection *c, struct request *r)
{
    if (r->error != 0) {
        if (r->text) { /* the client's mistake: nothing to be said in our log */
            error_set(&r->err, r->error, "%s", r->text);
            reply_error(c, r, r->error, &r->err);
        } else {
            command_end(c, r, -r->error, &r->err);
        }
    } else {
        command_find(r->wire.command)->run(c, r);
    }
    payload_put(c, r);
}

/*
 * The first replies of a batch leave one by one, the others together: a client with few requests in
 * flight works on them while we work on the rest. With all of them in one send both sides would
 * wait for each other in turn (4 KiB reads at depth 4: half the requests a second).
 */
static void send_first(struct connection *c)
{
    if (c->turn < FIRST_REPLIES && in_have(c) > 0) {
        out_flush(c);
    }
}

static void serve(struct service *s)
{
    struct connection *c = s->c;
    while (take_role(s)) {
        int ret = receive(s);
        if (c->leader == s) {
            c->leader = NULL;
        }
        if (ret == 1) {
            return;
        }
        if (ret == 2) {
            continue;
        }
        prepare_successor(c);
        run(c, &s->request);
        if (c->leader || c->ended) {
            out_kick(c);
            continue;
        }
        send_first(c);
        if (++c->turn >= TURN_REQUESTS) {
            /* A client that always has more must not keep the worker to itself. */
            c->turn = 0;
            fiber_yield();
        }
    }
}

static void service_main(void *arg)
{
    struct connection *c = arg;
    struct service s = {.c = c, .fiber = fiber_self()};
    c->successor = false;
    void *small = NULL;
    if (posix_memalign(&small, SMALL_ALIGN, SMALL_SIZE) == 0) {
        s.request.small = small;
        serve(&s);
    } else if (c->services_count == 1) {
        connection_fail(c, -ENOMEM);
    }
    c->services_count--;
    free(small);
}

void transmission_stop(struct connection *c)
{
    c->stopping = true;
    if (c->leader && c->leader_waits) {
        fiber_cancel(c->leader->fiber);
    }
}

void transmission(struct connection *c)
{
    c->stopping = server_stopping(c->server);
    c->services_count = 1;
    int ret = fgroup_spawn(&c->services, service_main, c);
    if (ret < 0) {
        c->result = ret;
        return;
    }
    fgroup_wait(&c->services, true);
    if (c->result == 0 && c->error < 0) {
        c->result = c->error;
    }
}
