/*
 * A server's replies as bytes in memory, and a channel that reads them: for the tests and the
 * fuzzer of client_read.c. No worker, no fibers, no descriptors.
 */
#ifndef TESTS_REPLY_SCRIPT_H
#define TESTS_REPLY_SCRIPT_H

#include "nbd/connection.h"

#include <string.h>

struct script {
    struct channel ch; /* first */
    const uint8_t *data;
    size_t len, at;
    size_t piece; /* bytes a read brings at most; 0: all that is asked for */
    uint8_t own[16384];
};

static ssize_t script_read_some(struct channel *ch, void *buf, size_t len)
{
    struct script *s = (struct script *)ch;
    size_t n = s->len - s->at < len ? s->len - s->at : len;
    n = s->piece > 0 && n > s->piece ? s->piece : n;
    if (n > 0) {
        memcpy(buf, s->data + s->at, n);
    }
    s->at += n;
    return (ssize_t)n;
}

static const struct channel_ops script_ops = {.read_some = script_read_some};

static inline void script_init(struct script *s, const uint8_t *data, size_t len, size_t piece)
{
    memset(s, 0, sizeof *s);
    s->ch.ops = &script_ops;
    s->ch.rfd = s->ch.wfd = -1;
    s->data = data ? data : s->own;
    s->len = len;
    s->piece = piece;
}

/* The calls in flight when the script is read, in the order of their cookies 1, 2, 3 ... */
#define SCRIPT_OFFSET 4096u
#define SCRIPT_LENGTH 1024u
#define SCRIPT_EXTENTS 4
#define SCRIPT_CONTEXT 77u
enum script_cookie { C_READ = 1, C_WRITE, C_STATUS, C_FLUSH, C_READ2, C_COUNT };

struct script_run {
    struct nbd_connection c;
    struct nbd_call calls[C_COUNT]; /* by cookie */
    struct error errors[C_COUNT];
    uint8_t buffer[C_COUNT][SCRIPT_LENGTH + 2]; /* a byte of guard at each end */
    struct extent extents[SCRIPT_EXTENTS + 1];
    struct error err;
};

static inline void script_call(struct script_run *t, enum script_cookie cookie, uint16_t command)
{
    struct nbd_call *call = &t->calls[cookie];
    memset(t->buffer[cookie], 0xee, sizeof t->buffer[cookie]);
    *call = (struct nbd_call){
        .command = command,
        .offset = command == NBD_CMD_FLUSH ? 0 : SCRIPT_OFFSET,
        .length = command == NBD_CMD_FLUSH ? 0 : SCRIPT_LENGTH,
        .buffer = t->buffer[cookie] + 1,
        .extents = t->extents,
        .extents_max = SCRIPT_EXTENTS,
        .err = &t->errors[cookie],
    };
    nbd_connection_register(&t->c, call);
}

/* Puts the calls in flight and takes replies to the end of the script, or an error: 0 (all calls
 * done), 1 (the script ended cleanly before that), -errno with t->err. */
static inline int script_go(struct script_run *t, struct script *s, enum nbd_reply_mode mode)
{
    static const uint16_t commands[C_COUNT] = {
        [C_READ] = NBD_CMD_READ,   [C_WRITE] = NBD_CMD_WRITE, [C_STATUS] = NBD_CMD_BLOCK_STATUS,
        [C_FLUSH] = NBD_CMD_FLUSH, [C_READ2] = NBD_CMD_READ,
    };
    memset(t, 0, sizeof *t);
    t->c.ch = &s->ch;
    t->c.mode = mode;
    t->c.has_context = mode != NBD_MODE_SIMPLE;
    t->c.context_id = SCRIPT_CONTEXT;
    for (int cookie = C_READ; cookie < C_COUNT; cookie++) {
        script_call(t, cookie, commands[cookie]);
    }
    int r = 0;
    while (r == 0 && t->c.in_flight > 0) {
        if (s->at == s->len && t->c.start == t->c.end) {
            r = 1;
            break;
        }
        r = nbd_connection_receive(&t->c, &t->err);
    }
    for (int cookie = C_READ; cookie < C_COUNT; cookie++) {
        nbd_coverage_done(&t->calls[cookie].coverage);
    }
    return r;
}

/* --- writing scripts (into s->own) --- */

static inline void put_bytes(struct script *s, const void *p, size_t len)
{
    memcpy(s->own + s->len, p, len);
    s->len += len;
}

static inline void put_fill(struct script *s, int c, size_t len)
{
    memset(s->own + s->len, c, len);
    s->len += len;
}

static inline void put_u16(struct script *s, uint16_t v)
{
    nbd_put16(s->own + s->len, v);
    s->len += 2;
}

static inline void put_u32(struct script *s, uint32_t v)
{
    nbd_put32(s->own + s->len, v);
    s->len += 4;
}

static inline void put_u64(struct script *s, uint64_t v)
{
    nbd_put64(s->own + s->len, v);
    s->len += 8;
}

static inline void put_simple(struct script *s, uint32_t error, uint64_t cookie)
{
    put_u32(s, NBD_MAGIC_REPLY_SIMPLE);
    put_u32(s, error);
    put_u64(s, cookie);
}

static inline void put_chunk(struct script *s, uint16_t flags, unsigned type, uint64_t cookie,
                             uint32_t length)
{
    put_u32(s, NBD_MAGIC_REPLY_STRUCTURED);
    put_u16(s, flags);
    put_u16(s, (uint16_t)type);
    put_u64(s, cookie);
    put_u32(s, length);
}

static inline void put_ext(struct script *s, uint16_t flags, unsigned type, uint64_t cookie,
                           uint64_t offset, uint64_t length)
{
    put_u32(s, NBD_MAGIC_REPLY_EXT);
    put_u16(s, flags);
    put_u16(s, (uint16_t)type);
    put_u64(s, cookie);
    put_u64(s, offset);
    put_u64(s, length);
}

/* A data chunk of one repeated byte, at an offset relative to the request's. */
static inline void put_data(struct script *s, uint16_t flags, uint64_t cookie, uint64_t at,
                            uint32_t len, int byte)
{
    put_chunk(s, flags, NBD_CHUNK_OFFSET_DATA, cookie, 8 + len);
    put_u64(s, SCRIPT_OFFSET + at);
    put_fill(s, byte, len);
}

static inline void put_hole(struct script *s, uint16_t flags, uint64_t cookie, uint64_t at,
                            uint32_t len)
{
    put_chunk(s, flags, NBD_CHUNK_OFFSET_HOLE, cookie, 12);
    put_u64(s, SCRIPT_OFFSET + at);
    put_u32(s, len);
}

static inline void put_error(struct script *s, uint16_t flags, unsigned type, uint64_t cookie,
                             uint32_t error, const char *text, uint64_t at)
{
    bool offset = type == NBD_CHUNK_ERROR_OFFSET;
    put_chunk(s, flags, type, cookie, (uint32_t)(6 + strlen(text) + (offset ? 8 : 0)));
    put_u32(s, error);
    put_u16(s, (uint16_t)strlen(text));
    put_bytes(s, text, strlen(text));
    if (offset) {
        put_u64(s, SCRIPT_OFFSET + at);
    }
}

#endif
