/*
 * WRITE. Payload of up to PIECE_SIZE is received whole, then written by the fiber that received
 * it, after it has given up the role of the leader.
 *
 * Larger payload is received and written piece by piece, each piece by a fiber of its own, several
 * at a time. Where the write is a copy into the page cache the piece's fiber ends at once, and
 * the next piece goes through the same buffer while it is still in the core's L2 cache; where it
 * waits for a disk, the pieces overlap. Once a piece has failed the rest of the payload is dropped.
 */
#include "nbd/server_private.h"

#include <errno.h>
#include <stdlib.h>

struct pieces {
    struct connection *c;
    struct fgroup group;
    struct fsem slots;
    unsigned flags;
    int ret; /* of the first that failed */
    struct error err;
};

struct piece {
    struct pieces *all;
    void *buf;
    size_t len;
    uint64_t off;
};

static int fua_end(struct connection *c, const struct request *r, int ret, struct error *err)
{
    if (ret < 0 || !(r->wire.flags & NBD_CMD_FLAG_FUA)) {
        return ret;
    }
    if (__atomic_load_n(&c->export->flush_error, __ATOMIC_ACQUIRE) != 0) {
        return error_set(err, EIO, "a flush has failed before: data may have been lost");
    }
    return 0;
}

void command_write(struct connection *c, struct request *r)
{
    if (r->wire.length > PIECE_SIZE) {
        reply_ok(c, r); /* write_pieces() has done it */
        return;
    }
    struct error err;
    error_clear(&err);
    export_touched(c->export);
    unsigned flags = r->wire.flags & NBD_CMD_FLAG_FUA ? WRITE_FUA : 0;
    int ret = volume_write(c->volume, r->payload, r->payload_len, r->wire.offset, flags, &err);
    ret = fua_end(c, r, ret, &err);
    count_add(&c->count.written, ret < 0 ? 0 : r->payload_len);
    command_end(c, r, ret, &err);
}

static void write_piece(void *arg)
{
    struct piece *p = arg;
    struct pieces *all = p->all;
    struct connection *c = all->c;
    struct error err;
    error_clear(&err);
    int ret = all->ret < 0 ? 0 : volume_write(c->volume, p->buf, p->len, p->off, all->flags, &err);
    if (ret < 0 && all->ret == 0) {
        all->ret = ret;
        all->err = err;
    }
    connection_buffer_put(c, p->buf, p->len);
    fsem_give(&all->slots, 1);
    free(p);
}

/* Receives and starts one piece. < 0: the stream is broken. */
static int next_piece(struct pieces *all, uint64_t off, size_t len)
{
    struct connection *c = all->c;
    struct piece *p = malloc(sizeof(*p));
    if (!p) {
        all->ret = all->ret < 0 ? all->ret : error_set(&all->err, ENOMEM, "no memory");
        return in_skip(c, len);
    }
    *p = (struct piece){.all = all, .len = len, .off = off};
    int ret = connection_buffer(c, len, &p->buf);
    if (ret < 0) {
        free(p);
        return ret;
    }
    ret = in_read(c, p->buf, len);
    if (ret == 0) {
        ret = fsem_take(&all->slots, 1);
    }
    if (ret < 0) {
        connection_buffer_put(c, p->buf, len);
        free(p);
        return ret;
    }
    if (fgroup_spawn(&all->group, write_piece, p) < 0) {
        write_piece(p); /* no memory for a fiber: here, then */
        return 0;
    }
    fiber_yield(); /* a piece that doesn't have to wait is done after this */
    return 0;
}

static int receive_pieces(struct pieces *all, const struct request *r)
{
    uint64_t off = r->wire.offset, left = r->wire.length;
    while (left > 0) {
        if (all->ret < 0) {
            return in_skip(all->c, left);
        }
        size_t len = left < PIECE_SIZE ? (size_t)left : PIECE_SIZE;
        int ret = next_piece(all, off, len);
        if (ret < 0) {
            return ret;
        }
        off += len;
        left -= len;
    }
    return 0;
}

int write_pieces(struct connection *c, struct request *r)
{
    struct pieces all = {.c = c};
    error_clear(&all.err);
    fgroup_init(&all.group);
    fsem_init(&all.slots, PIECES_MAX);
    bool fua = (r->wire.flags & NBD_CMD_FLAG_FUA) != 0;
    /* One flush at the end is cheaper than each piece on its own. */
    bool flush = fua && volume_can(c->volume, VOLUME_CAN_FLUSH);
    all.flags = fua && !flush ? WRITE_FUA : 0;
    export_touched(c->export);
    transmission_flush_aside(c);
    int broken = receive_pieces(&all, r);
    fgroup_wait(&all.group, true);
    fsem_done(&all.slots);
    if (broken < 0) {
        return broken;
    }
    if (all.ret == 0 && flush) {
        all.ret = export_flush(c->export, &all.err);
    }
    all.ret = fua_end(c, r, all.ret, &all.err);
    if (all.ret < 0) {
        r->error = -all.ret;
        r->err = all.err;
    } else {
        count_add(&c->count.written, r->wire.length);
    }
    return 0;
}
