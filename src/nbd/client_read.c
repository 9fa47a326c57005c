/*
 * Replies as the client takes them: one chunk or simple reply a call of nbd_connection_receive().
 *
 * Every word of a reply is checked before it is acted on: magic, cookie, mode, type against the
 * command, length against the request, range, overlap, coverage, order. What breaks the protocol
 * ends the connection, since nothing that follows could be trusted; an error chunk or an error
 * number only fails its call.
 *
 * Where bytes go: headers and small payload pass through c->received; bulk payload is received
 * into the caller's own (page-aligned) buffer. While READs are in flight the buffer is filled only
 * as far as a header with a data chunk's offset reaches, 28 or 40 bytes, so it never swallows bulk
 * payload; when none are, replies are small and are taken many at a time.
 *
 * What a server may send is bounded by what was asked for: data by the READ's length, descriptors
 * by 2^20 of 16 bytes that are looked at in passing, error texts by 4096 bytes.
 */
#include "core/log.h"
#include "core/size.h"
#include "nbd/connection.h"

#include <errno.h>
#include <string.h>

#define SHOWN_MAX 256 /* of a server's text in one of our messages */
#define ERROR_CHUNK_MAX (6 + NBD_STRING_MAX + 8 + 64)

/* --- bytes --- */

static size_t buffered(const struct nbd_connection *c)
{
    return c->end - c->start;
}

/* A read's failure, in words. */
static int lost(struct nbd_connection *c, int r, struct error *err)
{
    if (r == 0 || r == -ECONNRESET) {
        return error_set(err, ECONNRESET,
                         "the server closed the connection while %u request%s "
                         "waited for a reply",
                         c->in_flight, c->in_flight == 1 ? "" : "s");
    }
    return error_set(err, -r, "receiving a reply");
}

/* Makes at least `least` bytes be in the buffer, and more only where `most` allows it. */
static int fill(struct nbd_connection *c, size_t least, size_t most, struct error *err)
{
    if (c->start > 0) {
        memmove(c->received, c->received + c->start, buffered(c));
        c->end -= c->start;
        c->start = 0;
    }
    while (c->end < least) {
        ssize_t n = channel_read_some(c->ch, c->received + c->end, most - c->end);
        if (n <= 0) {
            return lost(c, (int)n, err);
        }
        c->end += (size_t)n;
    }
    return 0;
}

/* len bytes to dst: what is in the buffer, then from the channel itself. */
static int take_bytes(struct nbd_connection *c, void *dst, size_t len, struct error *err)
{
    size_t n = (size_t)min_u64(len, buffered(c));
    memcpy(dst, c->received + c->start, n);
    c->start += n;
    if (n == len) {
        return 0;
    }
    int r = channel_read(c->ch, (uint8_t *)dst + n, len - n);
    return r == 0 ? 0 : lost(c, r < 0 ? r : 0, err);
}

/* --- headers --- */

static int wrong_magic(struct nbd_connection *c, struct error *err)
{
    static const char *const modes[] = {"simple", "structured", "extended"};
    uint32_t magic = nbd_get32(c->received + c->start);
    const char *what = magic == NBD_MAGIC_REPLY_SIMPLE       ? "a simple reply"
                       : magic == NBD_MAGIC_REPLY_STRUCTURED ? "a structured reply"
                       : magic == NBD_MAGIC_REPLY_EXT        ? "an extended reply"
                                                             : NULL;
    if (what) {
        return error_set(err, EPROTO, "the server sent %s where %s replies were agreed on", what,
                         modes[c->mode]);
    }
    return error_set(err, EPROTO, "the server sent a reply with a wrong magic number (%#x)", magic);
}

static int take_header(struct nbd_connection *c, struct nbd_reply *reply, struct error *err)
{
    static const size_t reach[] = {
        [NBD_MODE_SIMPLE] = NBD_REPLY_SIMPLE_SIZE,
        [NBD_MODE_STRUCTURED] = NBD_REPLY_STRUCTURED_SIZE + 8,
        [NBD_MODE_EXTENDED] = NBD_REPLY_EXT_SIZE + 8,
    };
    size_t most = c->reads_in_flight > 0 ? reach[c->mode] : sizeof c->received;
    for (;;) {
        int r = nbd_reply_decode(c->received + c->start, buffered(c), c->mode, reply);
        if (r < 0) {
            return wrong_magic(c, err);
        }
        if (r > 0) {
            c->start += (size_t)r;
            return 0;
        }
        size_t least = buffered(c) + 1;
        r = fill(c, least, max_u64(most, least), err);
        if (r < 0) {
            return r;
        }
    }
}

static struct nbd_call *find_call(struct nbd_connection *c, uint64_t cookie)
{
    struct nbd_call *call = c->calls[cookie % NBD_CALLS_MAX];
    return call && call->cookie == cookie ? call : NULL;
}

/* --- a call's own end --- */

/* The first error of a call is its error. The server's text is shown where it has one. */
static void note_failure(struct nbd_call *call, uint32_t error, const struct nbd_text *text,
                         uint64_t offset)
{
    int code = nbd_error_to_errno(error);
    if (call->failure != 0) {
        return;
    }
    call->failure = code;
    char shown[SHOWN_MAX];
    if (text && text->len > 0) {
        error_set(call->err, code, "the server failed %s: \"%s\"", nbd_command_name(call->command),
                  log_escape(shown, sizeof shown, text->data, text->len));
    } else {
        error_set(call->err, code, "the server failed %s", nbd_command_name(call->command));
    }
    if (call->command != NBD_CMD_FLUSH) {
        error_at(call->err, offset);
    }
}

/* The last chunk has come: is the answer whole? */
static int finish(struct nbd_connection *c, struct nbd_call *call, struct error *err)
{
    if (call->failure != 0) {
        nbd_connection_complete(c, call, -call->failure);
        return 0;
    }
    if (call->command == NBD_CMD_READ && call->coverage.covered != call->length) {
        return error_set(err, EPROTO,
                         "the server ended its reply to a READ of %llu bytes after "
                         "sending only %llu of them",
                         (unsigned long long)call->length,
                         (unsigned long long)call->coverage.covered);
    }
    if (call->command == NBD_CMD_BLOCK_STATUS && !call->has_status) {
        return error_set(err, EPROTO,
                         "the server ended its reply to BLOCK_STATUS without any "
                         "extents");
    }
    nbd_connection_complete(c, call, 0);
    return 0;
}

/* --- simple replies --- */

static int take_simple(struct nbd_connection *c, struct nbd_call *call,
                       const struct nbd_reply *reply, struct error *err)
{
    const char *name = nbd_command_name(call->command);
    if (call->chunked) {
        return error_set(err, EPROTO,
                         "the server sent a simple reply in the middle of a "
                         "structured one (%s)",
                         name);
    }
    if (reply->error != 0) { /* nbd-server answers READ so in structured mode, too */
        note_failure(call, reply->error, NULL, call->offset);
        nbd_connection_complete(c, call, -call->failure);
        return 0;
    }
    if (call->command == NBD_CMD_BLOCK_STATUS ||
        (call->command == NBD_CMD_READ && c->mode != NBD_MODE_SIMPLE)) {
        return error_set(err, EPROTO,
                         "the server sent a simple reply to %s, which takes a "
                         "structured one",
                         name);
    }
    int r = 0;
    if (call->command == NBD_CMD_READ) {
        c->current = call;
        r = take_bytes(c, call->buffer, (size_t)call->length, err);
        c->current = NULL;
    }
    if (r == 0) {
        nbd_connection_complete(c, call, 0);
    }
    return r;
}

/* --- chunks --- */

static int wrong_length(const struct nbd_reply *reply, const char *type, struct error *err)
{
    return error_set(err, EPROTO, "the server sent %s chunk with a length of %llu", type,
                     (unsigned long long)reply->length);
}

/* A range that a content chunk claims: inside the request, and new. */
static int claim(struct nbd_call *call, uint64_t offset, uint64_t len, struct error *err)
{
    if (call->command != NBD_CMD_READ) {
        return error_set(err, EPROTO, "the server sent data as the reply to %s",
                         nbd_command_name(call->command));
    }
    if (offset < call->offset || offset - call->offset > call->length ||
        len > call->length - (offset - call->offset)) {
        return error_set(err, EPROTO,
                         "the server sent %llu bytes at offset %llu for a READ of "
                         "%llu bytes at offset %llu",
                         (unsigned long long)len, (unsigned long long)offset,
                         (unsigned long long)call->length, (unsigned long long)call->offset);
    }
    switch (nbd_coverage_add(&call->coverage, offset - call->offset, len)) {
    case 0:
        return 0;
    case -EEXIST:
        return error_set(err, EPROTO,
                         "the server sent the bytes at offset %llu twice in one reply "
                         "(overlapping chunks)",
                         (unsigned long long)offset);
    case -E2BIG:
        return error_set(err, EPROTO, "the server sent a reply in more than %d scattered pieces",
                         NBD_COVERAGE_MAX);
    default:
        return error_set(err, ENOMEM, "no memory for a reply in pieces");
    }
}

static int take_data(struct nbd_connection *c, struct nbd_call *call, const struct nbd_reply *reply,
                     struct error *err)
{
    uint8_t at[8];
    if (reply->length < sizeof at + 1) {
        return wrong_length(reply, "an OFFSET_DATA", err);
    }
    int r = take_bytes(c, at, sizeof at, err);
    uint64_t offset = nbd_get64(at), len = reply->length - sizeof at;
    if (r == 0) {
        r = claim(call, offset, len, err);
    }
    return r < 0 ? r : take_bytes(c, call->buffer + (offset - call->offset), (size_t)len, err);
}

static int take_hole(struct nbd_connection *c, struct nbd_call *call, const struct nbd_reply *reply,
                     struct error *err)
{
    uint8_t payload[12];
    uint64_t offset;
    uint32_t size;
    if (reply->length != sizeof payload) {
        return wrong_length(reply, "an OFFSET_HOLE", err);
    }
    int r = take_bytes(c, payload, sizeof payload, err);
    if (r < 0) {
        return r;
    }
    if (nbd_hole_decode(payload, sizeof payload, &offset, &size) < 0) {
        return error_set(err, EPROTO, "the server sent a hole of no bytes");
    }
    r = claim(call, offset, size, err);
    if (r == 0) {
        memset(call->buffer + (offset - call->offset), 0, size);
    }
    return r;
}

/* One descriptor: cut to the request, joined with an equal neighbour. What goes beyond the request
 * or the caller's array is dropped. */
static void note_extent(struct nbd_call *call, uint64_t length, uint64_t flags)
{
    uint64_t n = min_u64(length, call->length - call->extents_sum);
    uint32_t kept = (uint32_t)flags & (EXTENT_HOLE | EXTENT_ZERO);
    struct extent *last = call->extents_count > 0 ? &call->extents[call->extents_count - 1] : NULL;
    if (n == 0) {
        return;
    }
    if (last && last->flags == kept) {
        last->length += n;
    } else if (call->extents && call->extents_count < call->extents_max) {
        call->extents[call->extents_count++] = (struct extent){.length = n, .flags = kept};
    } else {
        call->extents_sum = call->length; /* full: the rest has no place after a gap */
        return;
    }
    call->extents_sum += n;
}

static int take_descriptors(struct nbd_connection *c, struct nbd_call *call, uint64_t count,
                            struct error *err)
{
    bool extended = c->mode == NBD_MODE_EXTENDED;
    size_t each = nbd_status_descriptor_size(extended);
    uint8_t piece[4096];
    while (count > 0) {
        uint32_t n = (uint32_t)min_u64(count, sizeof piece / each);
        int r = take_bytes(c, piece, n * each, err);
        if (r < 0) {
            return r;
        }
        struct nbd_status s = {.count = n, .descriptors = piece, .extended = extended};
        for (uint32_t i = 0; i < n; i++) {
            uint64_t length, flags;
            nbd_status_get(&s, i, &length, &flags);
            if (length == 0) {
                return error_set(err, EPROTO, "the server sent an extent of no bytes");
            }
            note_extent(call, length, flags);
        }
        count -= n;
    }
    return 0;
}

static int take_status(struct nbd_connection *c, struct nbd_call *call,
                       const struct nbd_reply *reply, struct error *err)
{
    bool extended = c->mode == NBD_MODE_EXTENDED;
    size_t head = nbd_status_header_size(extended), each = nbd_status_descriptor_size(extended);
    uint8_t header[8];
    if (call->command != NBD_CMD_BLOCK_STATUS) {
        return error_set(err, EPROTO, "the server sent extents as the reply to %s",
                         nbd_command_name(call->command));
    }
    if ((reply->type == NBD_CHUNK_BLOCK_STATUS_EXT) != extended) {
        return error_set(err, EPROTO,
                         "the server sent the kind of BLOCK_STATUS chunk that was not "
                         "agreed on");
    }
    if (reply->length < head + each || (reply->length - head) % each != 0 ||
        (reply->length - head) / each > NBD_DESCRIPTORS_MAX) {
        return wrong_length(reply, "a BLOCK_STATUS", err);
    }
    uint64_t count = (reply->length - head) / each;
    int r = take_bytes(c, header, head, err);
    if (r < 0) {
        return r;
    }
    if (extended && nbd_get32(header + 4) != count) {
        return error_set(err, EPROTO,
                         "the server sent a BLOCK_STATUS chunk with %llu extents and "
                         "a count of %u",
                         (unsigned long long)count, nbd_get32(header + 4));
    }
    if (!c->has_context || nbd_get32(header) != c->context_id) {
        return error_set(err, EPROTO,
                         "the server sent extents of the metadata context %u, which "
                         "was not selected",
                         nbd_get32(header));
    }
    if (call->has_status) {
        return error_set(err, EPROTO, "the server sent the extents of one metadata context twice");
    }
    call->has_status = true;
    return take_descriptors(c, call, count, err);
}

static int take_error(struct nbd_connection *c, struct nbd_call *call,
                      const struct nbd_reply *reply, struct error *err)
{
    uint8_t payload[ERROR_CHUNK_MAX];
    struct nbd_error_chunk chunk;
    if (reply->length < 6 || reply->length > sizeof payload) {
        return wrong_length(reply, "an error", err);
    }
    if (++call->error_chunks > NBD_ERROR_CHUNKS_MAX) {
        return error_set(err, EPROTO, "the server sent more than %d error chunks for one request",
                         NBD_ERROR_CHUNKS_MAX);
    }
    int r = take_bytes(c, payload, (size_t)reply->length, err);
    if (r < 0) {
        return r;
    }
    if (nbd_error_chunk_decode(reply->type, payload, (size_t)reply->length, &chunk) < 0) {
        return error_set(err, EPROTO,
                         "the server sent an error chunk whose text does not fit its "
                         "length");
    }
    uint64_t offset = chunk.has_offset ? chunk.offset : call->offset;
    if (offset < call->offset || (chunk.has_offset && offset - call->offset >= call->length)) {
        return error_set(err, EPROTO,
                         "the server reported an error at offset %llu for a %s of "
                         "%llu bytes at offset %llu",
                         (unsigned long long)offset, nbd_command_name(call->command),
                         (unsigned long long)call->length, (unsigned long long)call->offset);
    }
    note_failure(call, chunk.error, &chunk.text, offset);
    return 0;
}

static int take_chunk_payload(struct nbd_connection *c, struct nbd_call *call,
                              const struct nbd_reply *reply, struct error *err)
{
    switch (reply->type) {
    case NBD_CHUNK_NONE:
        if (reply->length != 0) {
            return wrong_length(reply, "a NONE", err);
        }
        return reply->flags & NBD_REPLY_FLAG_DONE
                   ? 0
                   : error_set(err, EPROTO, "the server sent a NONE chunk without the DONE flag");
    case NBD_CHUNK_OFFSET_DATA:
        return take_data(c, call, reply, err);
    case NBD_CHUNK_OFFSET_HOLE:
        return take_hole(c, call, reply, err);
    case NBD_CHUNK_BLOCK_STATUS:
    case NBD_CHUNK_BLOCK_STATUS_EXT:
        return take_status(c, call, reply, err);
    default:
        if (reply->type & NBD_CHUNK_IS_ERROR) {
            return take_error(c, call, reply, err);
        }
        return error_set(err, EPROTO, "the server sent a chunk of the unknown type %u",
                         reply->type);
    }
}

static int take_chunk(struct nbd_connection *c, struct nbd_call *call,
                      const struct nbd_reply *reply, struct error *err)
{
    call->chunked = true;
    if (c->mode == NBD_MODE_EXTENDED && reply->offset != call->offset) {
        return error_set(err, EPROTO,
                         "the server's reply names offset %llu, its request was for "
                         "offset %llu",
                         (unsigned long long)reply->offset, (unsigned long long)call->offset);
    }
    c->current = call;
    int r = take_chunk_payload(c, call, reply, err);
    c->current = NULL;
    if (r == 0 && (reply->flags & NBD_REPLY_FLAG_DONE)) {
        r = finish(c, call, err);
    }
    return r;
}

int nbd_connection_receive(struct nbd_connection *c, struct error *err)
{
    struct nbd_reply reply;
    int r = take_header(c, &reply, err);
    if (r < 0) {
        return r;
    }
    struct nbd_call *call = find_call(c, reply.cookie);
    if (!call) {
        return error_set(err, EPROTO,
                         "the server sent a reply to no request that waits for one "
                         "(cookie %#llx)",
                         (unsigned long long)reply.cookie);
    }
    return reply.simple ? take_simple(c, call, &reply, err) : take_chunk(c, call, &reply, err);
}
