/*
 * The server's sending side.
 *
 * Replies without payload, and READs of up to SMALL_SIZE, are put one behind the other into a
 * buffer and leave together in one send. A fiber that finds the lock free sends, and looks for
 * more before it lets go, so replies that come while a send is under way need no wake-up of
 * anybody. Larger payload goes around the buffer: what waits and the header first, then the
 * bytes by reference or from memory.
 *
 * When a send has failed nothing that follows would make sense to the peer: the connection is
 * failed and everything added later is dropped.
 */
#include "nbd/server_private.h"

#include "core/log.h"
#include "core/probe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define OUT_ALIGN 4096

int outbox_init(struct outbox *o)
{
    for (unsigned i = 0; i < 2; i++) {
        void *buf = NULL;
        if (posix_memalign(&buf, OUT_ALIGN, OUT_SIZE) != 0) {
            free(o->buf[0]);
            o->buf[0] = NULL;
            return -ENOMEM;
        }
        o->buf[i] = buf;
    }
    fmutex_init(&o->lock);
    return 0;
}

void outbox_done(struct outbox *o)
{
    if (!o->buf[1]) {
        return;
    }
    fmutex_done(&o->lock);
    free(o->buf[0]);
    free(o->buf[1]);
    o->buf[0] = o->buf[1] = NULL;
}

/* Takes what was filled away; new replies go to the other buffer meanwhile. */
static uint8_t *take_filled(struct outbox *o, size_t *len)
{
    uint8_t *buf = o->buf[o->which];
    *len = o->fill;
    o->which ^= 1;
    o->fill = 0;
    return buf;
}

/* With the lock held. After it, and until the next wait, the queue is empty. */
static void send_queue(struct connection *c)
{
    while (c->out.fill > 0) {
        size_t len;
        uint8_t *buf = take_filled(&c->out, &len);
        if (c->error < 0) {
            return;
        }
        int ret = channel_write(c->ch, buf, len, false);
        if (ret < 0) {
            connection_fail(c, ret);
        }
    }
}

void out_flush(struct connection *c)
{
    if (c->out.fill > 0 && fmutex_trylock(&c->out.lock)) {
        send_queue(c);
        fmutex_unlock(&c->out.lock);
    }
}

void out_kick(struct connection *c)
{
    if (c->out.fill == 0 || c->out.kicked) {
        return;
    }
    c->out.kicked = true;
    fiber_yield();
    c->out.kicked = false;
    out_flush(c);
}

uint8_t *out_add(struct connection *c, size_t n)
{
    while (OUT_SIZE - c->out.fill < n) {
        fmutex_lock(&c->out.lock);
        send_queue(c);
        fmutex_unlock(&c->out.lock);
    }
    uint8_t *p = c->out.buf[c->out.which] + c->out.fill;
    c->out.fill += n;
    return p;
}

static int send_part(struct connection *c, const struct lent *part, bool more)
{
    if (part->fd < 0) {
        return channel_write(c->ch, part->data, part->length, more);
    }
    size_t sent = 0;
    int ret = channel_sendfile(c->ch, part->fd, part->offset, part->length, &sent);
    count_add(&c->count.lent, sent);
    /* The header has promised the length: a file that has become shorter leaves us no way but to
     * hang up. */
    return ret < 0 ? ret : sent < part->length ? -ENODATA : 0;
}

void out_bulk(struct connection *c, const void *header, size_t header_len, const struct lent *parts,
              unsigned count)
{
    fmutex_lock(&c->out.lock);
    if (OUT_SIZE - c->out.fill < header_len) {
        send_queue(c);
    }
    memcpy(c->out.buf[c->out.which] + c->out.fill, header, header_len);
    c->out.fill += header_len;
    size_t len;
    uint8_t *buf = take_filled(&c->out, &len);
    int ret = c->error;
    if (ret == 0) {
        ret = channel_write(c->ch, buf, len, true);
    }
    for (unsigned i = 0; ret == 0 && i < count; i++) {
        ret = send_part(c, &parts[i], i + 1 < count);
        count_add(&c->count.read, parts[i].length);
    }
    if (ret < 0) {
        connection_fail(c, ret);
    }
    send_queue(c);
    fmutex_unlock(&c->out.lock);
}

static size_t put_chunk(const struct connection *c, const struct request *r, uint8_t *p,
                        unsigned type, uint64_t length, bool last)
{
    const struct nbd_reply reply = {
        .flags = last ? NBD_REPLY_FLAG_DONE : 0,
        .type = (uint16_t)type,
        .cookie = r->wire.cookie,
        .offset = r->wire.offset,
        .length = length,
    };
    return nbd_chunk_encode(p, c->mode == NBD_MODE_EXTENDED, &reply);
}

static void end_probe(const struct connection *c, const struct request *r, int code)
{
    PROBE5(request__end, c, r->wire.command, r->wire.offset, r->wire.length, code);
}

void reply_none(struct connection *c, const struct request *r)
{
    if (c->mode == NBD_MODE_SIMPLE) {
        nbd_reply_simple_encode(out_add(c, NBD_REPLY_SIMPLE_SIZE), NBD_OK, r->wire.cookie);
    } else {
        size_t len = nbd_chunk_header_size(c->mode == NBD_MODE_EXTENDED);
        put_chunk(c, r, out_add(c, len), NBD_CHUNK_NONE, 0, true);
    }
    end_probe(c, r, 0);
}

void reply_ok(struct connection *c, const struct request *r)
{
    if (c->mode == NBD_MODE_EXTENDED) {
        reply_none(c, r);
        return;
    }
    nbd_reply_simple_encode(out_add(c, NBD_REPLY_SIMPLE_SIZE), NBD_OK, r->wire.cookie);
    end_probe(c, r, 0);
}

/* What a client may read about an error: our words, but no paths of this host. */
static uint32_t error_words(char *buf, size_t size, int code, const struct error *err)
{
    const char *words = err && err->text[0] != '\0' ? err->text : strerrordesc_np(code);
    if (!words) {
        words = "failed";
    }
    log_escape(buf, size, words, strlen(words));
    return (uint32_t)strlen(buf);
}

void reply_error(struct connection *c, const struct request *r, int code, const struct error *err)
{
    count_add(&c->count.errors, 1);
    uint32_t error = nbd_error_from_errno(code);
    if (c->mode == NBD_MODE_SIMPLE) {
        nbd_reply_simple_encode(out_add(c, NBD_REPLY_SIMPLE_SIZE), error, r->wire.cookie);
        end_probe(c, r, code);
        return;
    }
    char words[NBD_ERROR_TEXT_MAX - 100];
    struct nbd_error_chunk chunk = {.error = error};
    chunk.text.len = error_words(words, sizeof(words), code, err);
    chunk.text.data = (const uint8_t *)words;
    if (r->wire.command == NBD_CMD_READ && err && err->has_offset &&
        err->offset >= r->wire.offset && err->offset - r->wire.offset < r->wire.length) {
        chunk.has_offset = true;
        chunk.offset = err->offset;
    }
    uint8_t payload[NBD_ERROR_TEXT_MAX];
    size_t len = nbd_error_chunk_encode(payload, &chunk);
    size_t header = nbd_chunk_header_size(c->mode == NBD_MODE_EXTENDED);
    uint8_t *p = out_add(c, header + len);
    put_chunk(c, r, p, chunk.has_offset ? NBD_CHUNK_ERROR_OFFSET : NBD_CHUNK_ERROR, len, true);
    memcpy(p + header, payload, len);
    end_probe(c, r, code);
}

size_t reply_data_header(const struct connection *c, const struct request *r, uint8_t *p,
                         uint64_t offset, uint64_t length, bool last)
{
    if (last) {
        end_probe(c, r, 0);
    }
    if (c->mode == NBD_MODE_SIMPLE) {
        nbd_reply_simple_encode(p, NBD_OK, r->wire.cookie);
        return NBD_REPLY_SIMPLE_SIZE;
    }
    size_t len = put_chunk(c, r, p, NBD_CHUNK_OFFSET_DATA, 8 + length, last);
    nbd_put64(p + len, offset);
    return len + 8;
}

void reply_hole(struct connection *c, const struct request *r, uint64_t offset, uint32_t length,
                bool last)
{
    size_t header = nbd_chunk_header_size(c->mode == NBD_MODE_EXTENDED);
    uint8_t *p = out_add(c, header + 12);
    put_chunk(c, r, p, NBD_CHUNK_OFFSET_HOLE, 12, last);
    nbd_put64(p + header, offset);
    nbd_put32(p + header + 8, length);
    if (last) {
        end_probe(c, r, 0);
    }
}
