/*
 * BLOCK_STATUS: base:allocation, in compact and in extended form, with or without a payload that
 * picks contexts. The answer covers as much of the request as its bounds allow: a fragmented disk
 * is answered in parts, and the client asks on.
 */
#include "nbd/server_private.h"

#include <errno.h>

#define BASE_ALLOCATION_ID 1
#define STATUS_BUFFER ((size_t)(NBD_REPLY_EXT_SIZE + 8 + 16 * STATUS_EXTENTS_MAX))
#define EXTENTS_AT_ONCE 64

struct status {
    bool extended;
    uint8_t *to; /* descriptors */
    uint32_t count, max;
    struct extent last; /* not written yet; length 0: none */
};

/* false: there is no room for another. */
static bool status_add(struct status *s, const struct extent *e)
{
    if (s->last.length > 0 && s->last.flags == e->flags) {
        s->last.length += e->length;
        return true;
    }
    if (s->last.length > 0) {
        nbd_status_put(s->to + nbd_status_descriptor_size(s->extended) * s->count, s->extended,
                       s->last.length, s->last.flags);
        s->count++;
        s->last.length = 0;
    }
    if (s->count == s->max) {
        return false;
    }
    s->last = *e;
    return true;
}

static int status_collect(struct connection *c, struct status *s, uint64_t off, uint64_t len,
                          struct error *err)
{
    struct extent extents[EXTENTS_AT_ONCE];
    for (unsigned calls = 0; len > 0 && calls < STATUS_CALLS_MAX; calls++) {
        int n = volume_extents(c->volume, off, len, extents, EXTENTS_AT_ONCE, err);
        if (n < 0) {
            /* What is known already is an answer. */
            return s->last.length > 0 || s->count > 0 ? 0 : n;
        }
        for (int i = 0; i < n; i++) {
            if (!status_add(s, &extents[i])) {
                return 0;
            }
            off += extents[i].length;
            len -= extents[i].length;
        }
    }
    return 0;
}

/* extension-ext-header: the payload is the length to look at and the contexts wanted. */
static const char *status_payload(struct request *r, uint64_t *length)
{
    if (r->payload_len < 12 || (r->payload_len - 8) % 4 != 0) {
        return "the payload must be a length and context IDs";
    }
    *length = nbd_get64(r->payload);
    /* There is one context, so a second ID is unknown or a duplicate. */
    if (r->payload_len != 12 || nbd_get32(r->payload + 8) != BASE_ALLOCATION_ID) {
        return "a context ID that is unknown or given twice";
    }
    return NULL;
}

static void status_send(struct connection *c, struct request *r, struct status *s, uint8_t *buf)
{
    size_t header = nbd_chunk_header_size(s->extended);
    size_t len = nbd_status_header_size(s->extended) +
                 nbd_status_descriptor_size(s->extended) * s->count;
    const struct nbd_reply chunk = {
        .flags = NBD_REPLY_FLAG_DONE,
        .type = s->extended ? NBD_CHUNK_BLOCK_STATUS_EXT : NBD_CHUNK_BLOCK_STATUS,
        .cookie = r->wire.cookie,
        .offset = r->wire.offset,
        .length = len,
    };
    nbd_chunk_encode(buf, s->extended, &chunk);
    nbd_put32(buf + header, BASE_ALLOCATION_ID);
    if (s->extended) {
        nbd_put32(buf + header + 4, s->count);
    }
    if (header + len <= OUT_SIZE) {
        memcpy(out_add(c, header + len), buf, header + len);
    } else {
        const struct lent rest = {.fd = -1, .data = buf + header, .length = len};
        out_bulk(c, buf, header, &rest, 1);
    }
}

static int status_judge(const struct connection *c, struct request *r, uint64_t *length,
                        struct error *err)
{
    if (!c->meta_export) {
        return error_set(err, EINVAL, "no metadata context was chosen for this export");
    }
    if (r->wire.flags & NBD_CMD_FLAG_PAYLOAD_LEN) {
        const char *wrong = status_payload(r, length);
        if (wrong) {
            return error_set(err, EINVAL, "%s", wrong);
        }
    }
    uint64_t size = c->volume->size;
    if (*length == 0 || *length > size || r->wire.offset > size - *length) {
        return error_set(err, EINVAL, "an empty range, or beyond the end of the export");
    }
    return 0;
}

void command_block_status(struct connection *c, struct request *r)
{
    struct error err;
    error_clear(&err);
    uint64_t length = r->wire.length;
    int ret = status_judge(c, r, &length, &err);
    void *buf = NULL;
    if (ret == 0) {
        ret = connection_buffer(c, STATUS_BUFFER, &buf);
    }
    if (ret == 0) {
        struct status s = {.extended = c->mode == NBD_MODE_EXTENDED};
        s.to = (uint8_t *)buf + nbd_chunk_header_size(s.extended) +
               nbd_status_header_size(s.extended);
        s.max = r->wire.flags & NBD_CMD_FLAG_REQ_ONE ? 1 : STATUS_EXTENTS_MAX;
        ret = status_collect(c, &s, r->wire.offset, length, &err);
        if (ret == 0) {
            const struct extent none = {.length = 0, .flags = ~s.last.flags};
            status_add(&s, &none); /* writes the last */
            status_send(c, r, &s, buf);
        }
    }
    if (buf) {
        connection_buffer_put(c, buf, STATUS_BUFFER);
    }
    if (ret < 0) {
        command_end(c, r, ret, &err);
    }
}
