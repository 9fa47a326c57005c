/*
 * READ: small ones are copied into the reply queue; larger ones are sent by reference where the
 * volume lends its bytes, else through a page-aligned buffer. With structured replies holes are
 * sent as holes, and each stretch is decided on its own.
 *
 * A range that the volume said to be data is remembered and not asked about again. The reverse, a
 * remembered hole, could hide a write, so holes are never remembered.
 */
#include "nbd/server_private.h"

#include <errno.h>
#include <time.h>

#define LENTS_MAX 16 /* pieces of one payload by reference */
#define EXTENTS_AT_ONCE 32
#define DATA_AHEAD (256u << 20) /* how far ahead to look for the end of data */
#define EXTENTS_RETRY 256       /* READs until a volume that was slow to answer is asked again */

static void read_fail(struct connection *c, struct request *r, int ret, struct error *err)
{
    if (ret == -EINVAL) {
        ret = -EIO; /* the request has been judged: this is about the volume */
    }
    command_end(c, r, ret, err);
}

static void read_small(struct connection *c, struct request *r)
{
    size_t len = (size_t)r->wire.length;
    struct error err;
    error_clear(&err);
    int ret = volume_read(c->volume, r->small, len, r->wire.offset, &err);
    if (ret < 0) {
        read_fail(c, r, ret, &err);
        return;
    }
    uint8_t header[NBD_HEADER_MAX + 8];
    size_t header_len = reply_data_header(c, r, header, r->wire.offset, len, true);
    uint8_t *p = out_add(c, header_len + len);
    memcpy(p, header, header_len);
    memcpy(p + header_len, r->small, len);
    count_add(&c->count.read, len);
}

/* Reads the range into a buffer, then sends it. */
static int copy_range(struct connection *c, struct request *r, uint64_t off, uint64_t len,
                      bool last, struct error *err)
{
    void *buf = NULL;
    if (!fsem_try_take(&c->ahead, len)) {
        int ret = fsem_take(&c->ahead, len);
        if (ret < 0) {
            return ret;
        }
    }
    int ret = connection_buffer(c, (size_t)len, &buf);
    if (ret == 0) {
        ret = volume_read(c->volume, buf, (size_t)len, off, err);
    }
    if (ret >= 0) {
        uint8_t header[NBD_HEADER_MAX + 8];
        size_t header_len = reply_data_header(c, r, header, off, len, last);
        const struct lent part = {.fd = -1, .data = buf, .length = len};
        out_bulk(c, header, header_len, &part, 1);
        ret = 0;
    }
    if (buf) {
        connection_buffer_put(c, buf, (size_t)len);
    }
    fsem_give(&c->ahead, len);
    return ret;
}

/* One payload [off, off + len): by reference as a whole, or through a buffer. */
static int send_range(struct connection *c, struct request *r, uint64_t off, uint64_t len,
                      bool last, struct error *err)
{
    struct lent lents[LENTS_MAX];
    uint64_t have = 0;
    unsigned n = 0;
    while (have < len && n < LENTS_MAX &&
           volume_lend(c->volume, off + have, len - have, &lents[n]) == 0) {
        have += lents[n++].length;
    }
    if (have != len) {
        return copy_range(c, r, off, len, last, err);
    }
    uint8_t header[NBD_HEADER_MAX + 8];
    size_t header_len = reply_data_header(c, r, header, off, len, last);
    out_bulk(c, header, header_len, lents, n);
    return 0;
}

/* Data in chunks: what is lent at once is a chunk, what is copied is cut so that a large READ needs
 * no large buffer. */
static int send_data(struct connection *c, struct request *r, uint64_t off, uint64_t len,
                     struct error *err)
{
    uint64_t end = r->wire.offset + r->wire.length;
    while (len > 0 && c->error == 0) {
        struct lent lent;
        uint64_t n = len < READ_PIECE_SIZE ? len : READ_PIECE_SIZE;
        if (volume_lend(c->volume, off, len, &lent) == 0 &&
            (lent.length >= SMALL_SIZE || lent.length == len)) {
            uint8_t header[NBD_HEADER_MAX + 8];
            n = lent.length;
            size_t header_len = reply_data_header(c, r, header, off, n, off + n == end);
            out_bulk(c, header, header_len, &lent, 1);
        } else {
            int ret = copy_range(c, r, off, n, off + n == end, err);
            if (ret < 0) {
                return ret;
            }
        }
        off += n;
        len -= n;
    }
    return 0;
}

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Whether to ask the volume where the holes are. */
static bool worth_asking(struct connection *c, const struct request *r)
{
    uint64_t off = r->wire.offset, len = r->wire.length;
    if (len < EXTENTS_READ_MIN || !volume_can(c->volume, VOLUME_CAN_EXTENTS)) {
        return false;
    }
    if (off >= c->data_from && off < c->data_to && len <= c->data_to - off) {
        return false;
    }
    if (c->extents_cost_ns > EXTENTS_COST_MAX_NS) {
        if (++c->extents_skipped < EXTENTS_RETRY) {
            return false;
        }
        c->extents_skipped = 0;
        c->extents_cost_ns = 0;
    }
    return true;
}

static int ask(struct connection *c, uint64_t off, uint64_t len, struct extent *extents)
{
    uint64_t start = clock_ns();
    int n = volume_extents(c->volume, off, len, extents, EXTENTS_AT_ONCE, NULL);
    uint64_t cost = clock_ns() - start;
    c->extents_cost_ns = (7 * c->extents_cost_ns + cost) / 8;
    if (n == 1 && extents[0].length == len && !(extents[0].flags & EXTENT_ZERO)) {
        /* All data. Where it ends is worth knowing: a disk that is full is asked once for each
         * 256 MiB then. */
        struct extent ahead;
        uint64_t left = c->volume->size - off;
        if (volume_extents(c->volume, off, left < DATA_AHEAD ? left : DATA_AHEAD, &ahead, 1,
                           NULL) == 1 &&
            !(ahead.flags & EXTENT_ZERO)) {
            c->data_from = off;
            c->data_to = off + ahead.length;
        }
    }
    return n;
}

/* A hole that is worth a chunk of its own. */
static bool is_hole(const struct extent *e)
{
    return (e->flags & EXTENT_ZERO) && e->length >= HOLE_MIN;
}

/* The first stretch of extents[*i...] that is one chunk: its length; whether it is a hole. */
static uint64_t next_stretch(const struct extent *extents, int n, int *i, bool *hole)
{
    *hole = is_hole(&extents[*i]);
    uint64_t len = 0;
    do {
        len += extents[(*i)++].length;
    } while (*i < n && is_hole(&extents[*i]) == *hole);
    return len;
}

static int read_chunks(struct connection *c, struct request *r, struct error *err)
{
    uint64_t off = r->wire.offset;
    uint64_t end = off + r->wire.length;
    bool asking = worth_asking(c, r);
    struct extent extents[EXTENTS_AT_ONCE];
    while (off < end && c->error == 0) {
        int n = asking ? ask(c, off, end - off, extents) : 0;
        if (n <= 0) { /* not asked, or no answer: all is sent as data */
            return send_data(c, r, off, end - off, err);
        }
        for (int i = 0; i < n && off < end;) {
            bool hole;
            uint64_t len = next_stretch(extents, n, &i, &hole);
            if (hole) {
                /* At most PAYLOAD_MAX, so it fits in 32 bits. */
                reply_hole(c, r, off, (uint32_t)len, off + len == end);
            } else {
                int ret = send_data(c, r, off, len, err);
                if (ret < 0) {
                    return ret;
                }
            }
            off += len;
        }
    }
    return 0;
}

void command_read(struct connection *c, struct request *r)
{
    uint64_t len = r->wire.length;
    if (len == 0) {
        reply_none(c, r);
        return;
    }
    if (len <= SMALL_SIZE) {
        read_small(c, r);
        return;
    }
    struct error err;
    error_clear(&err);
    int ret;
    if (c->mode == NBD_MODE_SIMPLE || (r->wire.flags & NBD_CMD_FLAG_DF)) {
        ret = send_range(c, r, r->wire.offset, len, true, &err);
    } else {
        ret = read_chunks(c, r, &err);
    }
    if (ret < 0) {
        read_fail(c, r, ret, &err);
    }
}
