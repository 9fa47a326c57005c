/*
 * For the server's unit tests: a server and byte-level clients on one worker, over socketpairs.
 */
#ifndef TESTS_RAW_CLIENT_H
#define TESTS_RAW_CLIENT_H

#include "channel/channel.h"
#include "channel/sizing.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/log.h"
#include "core/sigwait.h"
#include "core/worker.h"
#include "nbd/server.h"
#include "nbd/wire.h"
#include "volume/endpoint.h"
#include "volume/fault.h"

#include "tap.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#define RAW_DEADLINE_NS 60000000000ull

struct raw {
    struct channel *ch;
    bool extended, structured;
    int result; /* of nbd_server_connection() */
    struct nbd_server *server;
    struct channel *server_end;
    struct fgroup group;
};

/* One server with one export "disk" over an endpoint. */
struct site {
    struct nbd_server *server;
    struct volume *volume;
};

static inline void raw_serve(void *arg)
{
    struct raw *r = arg;
    r->result = nbd_server_connection(r->server, r->server_end);
}

static inline void site_open(struct site *s, const char *endpoint,
                             const struct nbd_server_options *options, bool read_only)
{
    struct nbd_server_options o;
    struct endpoint_options e;
    struct error err;
    error_clear(&err);
    endpoint_options_init(&e);
    e.writable = !read_only;
    if (!options) {
        nbd_server_options_init(&o);
        options = &o;
    }
    int ret = endpoint_open(endpoint, &e, &s->volume, &err);
    if (ret < 0) {
        printf("# %s: %s\n", endpoint, err.text);
        exit(1);
    }
    const struct nbd_export_options x = {
        .name = "disk", .description = "a disk", .read_only = read_only};
    EQ(nbd_server_new(options, &s->server, NULL), 0);
    EQ(nbd_server_add_export(s->server, s->volume, &x, NULL), 0);
    EQ(nbd_server_add_export(s->server, s->volume, &x, NULL), -EEXIST);
}

static inline void site_close(struct site *s)
{
    EQ(nbd_server_finish(s->server, NULL), 0);
    nbd_server_free(s->server);
    volume_close(s->volume);
}

static inline void raw_open(struct raw *r, struct nbd_server *server)
{
    int sv[2];
    *r = (struct raw){.server = server};
    EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    EQ(channel_adopt(sv[0], sv[0], SOCKET_BUFFER_AUTO, &r->ch, NULL), 0);
    EQ(channel_adopt(sv[1], sv[1], SOCKET_BUFFER_AUTO, &r->server_end, NULL), 0);
    channel_set_deadline(r->ch, worker_now_ns(worker_self()) + RAW_DEADLINE_NS);
    fgroup_init(&r->group);
    EQ(fgroup_spawn(&r->group, raw_serve, r), 0);
}

/* Closes our end and waits for the server's. */
static inline int raw_close(struct raw *r)
{
    channel_close(r->ch);
    fgroup_wait(&r->group, false);
    return r->result;
}

static inline void raw_send(struct raw *r, const void *p, size_t len)
{
    EQ(channel_write(r->ch, p, len, false), 0);
}

static inline bool raw_get(struct raw *r, void *p, size_t len)
{
    memset(p, 0, len);
    return EQ(channel_read(r->ch, p, len), 0);
}

/* Nothing more comes. */
static inline void raw_ends(struct raw *r)
{
    uint8_t byte;
    ssize_t n = channel_read_some(r->ch, &byte, 1);
    OK(n == 0 || n == -ECONNRESET);
}

static inline void raw_option(struct raw *r, uint32_t option, const void *data, size_t len)
{
    uint8_t p[NBD_OPTION_SIZE];
    nbd_option_encode(p, option, (uint32_t)len);
    raw_send(r, p, sizeof(p));
    if (len > 0) {
        raw_send(r, data, len);
    }
}

/* The next reply's type; its data in buf (size bytes), its length in *len when not NULL. */
static inline uint32_t raw_option_reply(struct raw *r, uint32_t option, void *buf, size_t size,
                                        size_t *len)
{
    uint8_t p[NBD_OPTION_REPLY_SIZE], drop[4096];
    struct nbd_option_reply reply = {0};
    raw_get(r, p, sizeof(p));
    EQ(nbd_option_reply_decode(p, &reply), 0);
    EQ(reply.option, option);
    void *to = buf && reply.length <= size ? buf : drop;
    OK(reply.length <= (to == buf ? size : sizeof(drop)));
    if (reply.length > 0) {
        raw_get(r, to, reply.length);
    }
    if (len) {
        *len = reply.length;
    }
    return reply.type;
}

/* The final reply to an option, all before it dropped. */
static inline uint32_t raw_final(struct raw *r, uint32_t option)
{
    uint32_t type;
    do {
        type = raw_option_reply(r, option, NULL, 0, NULL);
    } while (type != NBD_REP_ACK && !(type & NBD_REP_IS_ERROR) && !tap_failed);
    return type;
}

static inline void raw_greet(struct raw *r)
{
    uint8_t p[NBD_GREETING_SIZE];
    uint16_t flags = 0;
    raw_get(r, p, sizeof(p));
    EQ(nbd_greeting_decode(p, &flags), 0);
    EQ(flags, 3);
    nbd_put32(p, 3);
    raw_send(r, p, 4);
}

static inline void raw_go(struct raw *r, const char *name)
{
    uint8_t p[256];
    size_t len = nbd_info_request_encode(p, name, NULL, 0);
    raw_option(r, NBD_OPT_GO, p, len);
    EQ(raw_final(r, NBD_OPT_GO), NBD_REP_ACK);
}

static inline uint32_t raw_set_base(struct raw *r, const char *name)
{
    static const char *const queries[] = {NBD_CONTEXT_BASE_ALLOCATION};
    uint8_t p[256];
    size_t len = nbd_meta_request_encode(p, name, queries, 1);
    raw_option(r, NBD_OPT_SET_META_CONTEXT, p, len);
    return raw_final(r, NBD_OPT_SET_META_CONTEXT);
}

/* Up to the transmission phase. */
static inline void raw_connect(struct raw *r, struct nbd_server *server, enum nbd_reply_mode mode)
{
    raw_open(r, server);
    raw_greet(r);
    if (mode != NBD_MODE_SIMPLE) {
        uint32_t option = mode == NBD_MODE_EXTENDED ? NBD_OPT_EXTENDED_HEADERS
                                                    : NBD_OPT_STRUCTURED_REPLY;
        raw_option(r, option, NULL, 0);
        EQ(raw_final(r, option), NBD_REP_ACK);
        EQ(raw_set_base(r, "disk"), NBD_REP_ACK);
    }
    r->structured = mode == NBD_MODE_STRUCTURED;
    r->extended = mode == NBD_MODE_EXTENDED;
    raw_go(r, "disk");
}

static inline void raw_request(struct raw *r, unsigned command, unsigned flags, uint64_t cookie,
                               uint64_t offset, uint64_t length)
{
    uint8_t p[NBD_HEADER_MAX];
    const struct nbd_request q = {.flags = (uint16_t)flags,
                                  .command = (uint16_t)command,
                                  .cookie = cookie,
                                  .offset = offset,
                                  .length = length};
    raw_send(r, p, nbd_request_encode(p, r->extended, &q));
}

static inline void raw_write(struct raw *r, unsigned flags, uint64_t cookie, uint64_t offset,
                             const void *data, size_t len)
{
    if (r->extended) {
        flags |= NBD_CMD_FLAG_PAYLOAD_LEN;
    }
    raw_request(r, NBD_CMD_WRITE, flags, cookie, offset, len);
    if (len > 0) {
        raw_send(r, data, len);
    }
}

static inline struct nbd_reply raw_header(struct raw *r)
{
    uint8_t p[NBD_HEADER_MAX];
    struct nbd_reply reply = {0};
    size_t have = NBD_REPLY_SIMPLE_SIZE;
    enum nbd_reply_mode mode = r->extended     ? NBD_MODE_EXTENDED
                               : r->structured ? NBD_MODE_STRUCTURED
                                               : NBD_MODE_SIMPLE;
    raw_get(r, p, have);
    while (nbd_reply_decode(p, have, mode, &reply) == 0 && !tap_failed) {
        size_t size = nbd_chunk_header_size(r->extended);
        raw_get(r, p + have, size - have);
        have = size;
    }
    EQ(nbd_reply_decode(p, have, mode, &reply), (int)have);
    return reply;
}

/* The answer to a request without data: its error (the protocol's number). */
static inline uint32_t raw_result(struct raw *r, uint64_t *cookie)
{
    uint8_t p[1024];
    struct nbd_reply reply = raw_header(r);
    if (cookie) {
        *cookie = reply.cookie;
    }
    if (reply.simple) {
        return reply.error;
    }
    OK(reply.flags & NBD_REPLY_FLAG_DONE);
    if (reply.type == NBD_CHUNK_NONE) {
        EQ(reply.length, 0);
        return 0;
    }
    struct nbd_error_chunk c = {0};
    OK(reply.type & NBD_CHUNK_IS_ERROR);
    if (!OK(reply.length <= sizeof(p)) || !raw_get(r, p, reply.length)) {
        return UINT32_MAX;
    }
    EQ(nbd_error_chunk_decode(reply.type, p, reply.length, &c), 0);
    return c.error;
}

/* The answer to a READ of len bytes at offset, in any number of chunks. Its error. */
static inline uint32_t raw_read_result(struct raw *r, void *buf, uint64_t offset, size_t len)
{
    uint8_t p[1024];
    uint32_t error = 0, size;
    uint64_t covered = 0, at;
    if (!r->structured && !r->extended) {
        struct nbd_reply reply = raw_header(r);
        if (reply.error == 0) {
            raw_get(r, buf, len);
        }
        return reply.error;
    }
    for (bool done = false; !done && !tap_failed;) {
        struct nbd_reply reply = raw_header(r);
        OK(!reply.simple);
        done = reply.flags & NBD_REPLY_FLAG_DONE;
        if (reply.type == NBD_CHUNK_OFFSET_DATA && OK(reply.length > 8)) {
            raw_get(r, p, 8);
            at = nbd_get64(p) - offset;
            if (OK(at <= len && reply.length - 8 <= len - at)) {
                raw_get(r, (uint8_t *)buf + at, reply.length - 8);
                covered += reply.length - 8;
            }
        } else if (reply.type == NBD_CHUNK_OFFSET_HOLE && EQ(reply.length, 12)) {
            raw_get(r, p, 12);
            EQ(nbd_hole_decode(p, 12, &at, &size), 0);
            at -= offset;
            if (OK(at <= len && size <= len - at)) {
                memset((uint8_t *)buf + at, 0, size);
                covered += size;
            }
        } else if ((reply.type & NBD_CHUNK_IS_ERROR) && OK(reply.length <= sizeof(p))) {
            struct nbd_error_chunk c = {0};
            raw_get(r, p, reply.length);
            EQ(nbd_error_chunk_decode(reply.type, p, reply.length, &c), 0);
            error = c.error;
        } else {
            EQ(reply.type, NBD_CHUNK_NONE);
        }
    }
    if (error == 0) {
        EQ(covered, len);
    }
    return error;
}

static inline uint32_t raw_read(struct raw *r, unsigned flags, void *buf, uint64_t offset,
                                size_t len)
{
    raw_request(r, NBD_CMD_READ, flags, 7, offset, len);
    return raw_read_result(r, buf, offset, len);
}

static inline void raw_disc(struct raw *r)
{
    raw_request(r, NBD_CMD_DISC, 0, 0, 0, 0);
}

/* Bytes that differ at each offset. */
static inline void raw_fill(uint8_t *p, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        p[i] = (uint8_t)(seed >> 56);
    }
}

/* Runs one test body in a fiber of a worker of its own. */
static inline int raw_main(void (*fn)(void))
{
    signal(SIGPIPE, SIG_IGN);
    fn();
    return 0;
}

#define RAW_TEST(name)                         \
    static void name##_body(void);             \
    static int name##_main(void *arg)          \
    {                                          \
        (void)arg;                             \
        return raw_main(name##_body);          \
    }                                          \
    static void name(void)                     \
    {                                          \
        EQ(worker_main(name##_main, NULL), 0); \
        bufpool_trim();                        \
    }                                          \
    static void name##_body(void)

#endif
