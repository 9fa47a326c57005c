/*
 * The commands of the transmission phase but READ, WRITE and BLOCK_STATUS. A request that gets
 * here has been judged: its flags are its own, its range lies inside the export, the export may be
 * written.
 */
#include "nbd/server_private.h"

#include "core/log.h"

#include <errno.h>

/* Long requests are cut so that a client that has gone is noticed; each piece is twice the last, so
 * that 8 EiB take a few dozen. */
#define LONG_PIECE (1ull << 30)

static void command_flush(struct connection *c, struct request *r);
static void command_trim(struct connection *c, struct request *r);
static void command_cache(struct connection *c, struct request *r);
static void command_zero(struct connection *c, struct request *r);

static const struct command commands[NBD_CMD_COUNT] = {
    [NBD_CMD_READ] = {"READ", NBD_CMD_FLAG_DF, EINVAL, false, command_read},
    [NBD_CMD_WRITE] = {"WRITE", NBD_CMD_FLAG_PAYLOAD_LEN, ENOSPC, true, command_write},
    [NBD_CMD_FLUSH] = {"FLUSH", 0, 0, false, command_flush},
    [NBD_CMD_TRIM] = {"TRIM", 0, EINVAL, true, command_trim},
    [NBD_CMD_CACHE] = {"CACHE", 0, EINVAL, false, command_cache},
    [NBD_CMD_WRITE_ZEROES] = {"WRITE_ZEROES", NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO, ENOSPC,
                              true, command_zero},
    [NBD_CMD_BLOCK_STATUS] = {"BLOCK_STATUS", NBD_CMD_FLAG_REQ_ONE | NBD_CMD_FLAG_PAYLOAD_LEN,
                              EINVAL, false, command_block_status},
};

const struct command *command_find(unsigned number)
{
    return number < NBD_CMD_COUNT && commands[number].run ? &commands[number] : NULL;
}

/* What the protocol lets us say (checklist 105): "not supported" belongs to fast zeroes alone, and
 * "shutting down" would be about us, not about a volume behind us. */
static int allowed_code(const struct request *r, int code)
{
    bool fast = (r->wire.flags & NBD_CMD_FLAG_FAST_ZERO) != 0;
    if ((code == ENOTSUP && !fast) || code == ESHUTDOWN) {
        return EIO;
    }
    return code;
}

void command_end(struct connection *c, struct request *r, int ret, struct error *err)
{
    if (ret >= 0) {
        reply_ok(c, r);
        return;
    }
    int code = allowed_code(r, -ret);
    if (code == EIO || code == ENOSPC) {
        connection_warn(c, nbd_command_name(r->wire.command), err);
    }
    reply_error(c, r, code, err);
}

/* What a broken disk says is remembered; what says that we did not get to ask is not. */
static bool flush_failure_stays(int code)
{
    return code != ECANCELED && code != ENOMEM && code != ETIMEDOUT;
}

int export_flush(struct nbd_export *e, struct error *err)
{
    if (__atomic_load_n(&e->flush_error, __ATOMIC_ACQUIRE) != 0) {
        return error_set(err, EIO, "a flush has failed before: data may have been lost");
    }
    int ret = volume_flush(e->volume, err);
    if (ret < 0 && flush_failure_stays(-ret)) {
        __atomic_store_n(&e->flush_error, -ret, __ATOMIC_RELEASE);
    }
    return ret;
}

static void command_flush(struct connection *c, struct request *r)
{
    struct error err;
    error_clear(&err);
    int ret = 0;
    if (!c->export->read_only && !volume_can(c->volume, VOLUME_CAN_FLUSH)) {
        /* It was not advertised, and saying yes would be a promise that nobody keeps. */
        ret = error_set(&err, EINVAL, "this export can not be flushed");
    } else {
        ret = export_flush(c->export, &err);
    }
    command_end(c, r, ret, &err);
}

typedef int piece_fn(struct connection *c, uint64_t off, uint64_t len, unsigned flags,
                     struct error *err);

static int in_pieces(struct connection *c, const struct request *r, piece_fn *fn, unsigned flags,
                     struct error *err)
{
    uint64_t off = r->wire.offset, left = r->wire.length;
    for (uint64_t piece = LONG_PIECE; left > 0; piece *= 2) {
        uint64_t len = left < piece ? left : piece;
        int ret = c->error < 0 ? -ECANCELED : fn(c, off, len, flags, err);
        if (ret < 0) {
            return ret;
        }
        off += len;
        left -= len;
    }
    return 0;
}

static int discard_piece(struct connection *c, uint64_t off, uint64_t len, unsigned flags,
                         struct error *err)
{
    return volume_discard(c->volume, off, len, flags, err);
}

static void command_trim(struct connection *c, struct request *r)
{
    struct error err;
    error_clear(&err);
    export_touched(c->export);
    int ret = in_pieces(c, r, discard_piece, 0, &err);
    if (ret >= 0 && (r->wire.flags & NBD_CMD_FLAG_FUA)) {
        ret = export_flush(c->export, &err);
    }
    command_end(c, r, ret, &err);
}

static int cache_piece(struct connection *c, uint64_t off, uint64_t len, unsigned flags,
                       struct error *err)
{
    return volume_cache(c->volume, off, len, err);
}

static void command_cache(struct connection *c, struct request *r)
{
    struct error err;
    error_clear(&err);
    command_end(c, r, in_pieces(c, r, cache_piece, 0, &err), &err);
}

static int zero_piece(struct connection *c, uint64_t off, uint64_t len, unsigned flags,
                      struct error *err)
{
    return volume_zero(c->volume, off, len, flags, err);
}

static void command_zero(struct connection *c, struct request *r)
{
    unsigned flags = r->wire.flags & NBD_CMD_FLAG_NO_HOLE ? 0 : ZERO_MAY_UNMAP;
    struct error err;
    error_clear(&err);
    int ret;
    export_touched(c->export);
    if (r->wire.flags & NBD_CMD_FLAG_FAST_ZERO) {
        /* In one: after the first piece "not supported, nothing changed" would be a lie. */
        ret = volume_zero(c->volume, r->wire.offset, r->wire.length, flags | ZERO_NO_FALLBACK,
                          &err);
    } else {
        ret = in_pieces(c, r, zero_piece, flags, &err);
    }
    if (ret >= 0 && (r->wire.flags & NBD_CMD_FLAG_FUA)) {
        ret = export_flush(c->export, &err);
    }
    command_end(c, r, ret, &err);
}
