/*
 * Replies as the client takes them: good ones in every shape, fed whole, in pieces and byte by
 * byte. The wrong ones are test_client_lies.c's.
 */
#include "reply_script.h"

#include "../tap.h"

#include <errno.h>

#define DONE NBD_REPLY_FLAG_DONE
#define SIMPLE NBD_MODE_SIMPLE
#define STRUCTURED NBD_MODE_STRUCTURED
#define EXTENDED NBD_MODE_EXTENDED

static const size_t pieces[] = {0, 1, 7, 64};
#define PIECES (sizeof pieces / sizeof *pieces)

typedef void build_fn(struct script *s);

static int play(struct script_run *t, enum nbd_reply_mode mode, build_fn *build, size_t piece)
{
    static struct script s;
    script_init(&s, NULL, 0, piece);
    build(&s);
    int r = script_go(t, &s, mode);
    for (int cookie = C_READ; cookie < C_COUNT; cookie++) {
        EQ(t->buffer[cookie][0], 0xee);
        EQ(t->buffer[cookie][SCRIPT_LENGTH + 1], 0xee);
    }
    return r;
}

static bool all(const uint8_t *p, size_t len, int byte)
{
    for (size_t i = 0; i < len; i++) {
        if (p[i] != byte) {
            return false;
        }
    }
    return true;
}

static void build_simple(struct script *s)
{
    put_simple(s, 0, C_FLUSH);
    put_simple(s, 0, C_READ2);
    put_fill(s, 2, SCRIPT_LENGTH);
    put_simple(s, NBD_ENOSPC, C_WRITE);
    put_simple(s, 0, C_READ);
    put_fill(s, 1, SCRIPT_LENGTH);
    put_simple(s, NBD_EINVAL, C_STATUS);
}

static void simple_replies(void)
{
    static struct script_run t;
    for (size_t i = 0; i < PIECES; i++) {
        EQ(play(&t, SIMPLE, build_simple, pieces[i]), 0);
        OK(all(t.calls[C_READ].buffer, SCRIPT_LENGTH, 1));
        OK(all(t.calls[C_READ2].buffer, SCRIPT_LENGTH, 2));
        EQ(t.calls[C_READ].result, 0);
        EQ(t.calls[C_WRITE].result, -ENOSPC);
        STREQ(t.errors[C_WRITE].text, "the server failed WRITE");
        OK(t.errors[C_WRITE].has_offset && t.errors[C_WRITE].offset == SCRIPT_OFFSET);
        EQ(t.calls[C_STATUS].result, -EINVAL);
        EQ(t.calls[C_FLUSH].result, 0);
        OK(t.calls[C_READ].done && t.calls[C_WRITE].done && t.calls[C_FLUSH].done);
    }
}

static void build_structured(struct script *s)
{
    put_data(s, 0, C_READ, 512, 256, 3); /* chunks out of order, of two requests in turn */
    put_data(s, 0, C_READ2, 0, 1, 9);
    put_chunk(s, DONE, NBD_CHUNK_NONE, C_WRITE, 0);
    put_hole(s, 0, C_READ, 768, 256);
    put_simple(s, 0, C_FLUSH);
    put_hole(s, DONE, C_READ2, 1, SCRIPT_LENGTH - 1);
    put_chunk(s, 0, NBD_CHUNK_BLOCK_STATUS, C_STATUS, 4 + 6 * 8);
    put_u32(s, SCRIPT_CONTEXT);
    uint32_t lengths[] = {100, 100, 100, 200, 500, 4096}, flags[] = {3, 7, 0, 2, 1, 0};
    for (int i = 0; i < 6; i++) {
        put_u32(s, lengths[i]);
        put_u32(s, flags[i]);
    }
    put_data(s, DONE, C_READ, 0, 512, 4);
    put_chunk(s, DONE, NBD_CHUNK_NONE, C_STATUS, 0);
}

static void structured_replies(void)
{
    static struct script_run t;
    for (size_t i = 0; i < PIECES; i++) {
        if (!EQ(play(&t, STRUCTURED, build_structured, pieces[i]), 0)) {
            printf("# %s\n", t.err.text);
        }
        const uint8_t *b = t.calls[C_READ].buffer;
        OK(all(b, 512, 4) && all(b + 512, 256, 3) && all(b + 768, 256, 0));
        OK(t.calls[C_READ2].buffer[0] == 9 && all(t.calls[C_READ2].buffer + 1, 1023, 0));
        EQ(t.calls[C_WRITE].result, 0);
        EQ(t.calls[C_FLUSH].result, 0);
        /* the first two are one, unknown bits dropped; what lies beyond the request is cut */
        EQ(t.calls[C_STATUS].extents_count, 4);
        OK(t.extents[0].length == 200 && t.extents[0].flags == 3);
        OK(t.extents[1].length == 100 && t.extents[1].flags == 0);
        OK(t.extents[2].length == 200 && t.extents[2].flags == 2);
        OK(t.extents[3].length == 500 && t.extents[3].flags == 1);
        EQ(t.extents[4].length, 0);
    }
}

static void build_extended(struct script *s)
{
    put_ext(s, 0, NBD_CHUNK_OFFSET_DATA, C_READ, SCRIPT_OFFSET, 8 + SCRIPT_LENGTH);
    put_u64(s, SCRIPT_OFFSET);
    put_fill(s, 5, SCRIPT_LENGTH);
    put_ext(s, DONE, NBD_CHUNK_NONE, C_FLUSH, 0, 0);
    put_ext(s, DONE, NBD_CHUNK_OFFSET_HOLE, C_READ2, SCRIPT_OFFSET, 12);
    put_u64(s, SCRIPT_OFFSET);
    put_u32(s, SCRIPT_LENGTH);
    put_ext(s, DONE, NBD_CHUNK_NONE, C_READ, SCRIPT_OFFSET, 0);
    put_ext(s, DONE, NBD_CHUNK_BLOCK_STATUS_EXT, C_STATUS, SCRIPT_OFFSET, 8 + 16);
    put_u32(s, SCRIPT_CONTEXT);
    put_u32(s, 1);
    put_u64(s, UINT64_MAX);
    put_u64(s, 2);
    put_ext(s, DONE, NBD_CHUNK_NONE, C_WRITE, SCRIPT_OFFSET, 0);
}

static void extended_replies(void)
{
    static struct script_run t;
    for (size_t i = 0; i < PIECES; i++) {
        if (!EQ(play(&t, EXTENDED, build_extended, pieces[i]), 0)) {
            printf("# %s\n", t.err.text);
        }
        OK(all(t.calls[C_READ].buffer, SCRIPT_LENGTH, 5));
        OK(all(t.calls[C_READ2].buffer, SCRIPT_LENGTH, 0));
        EQ(t.calls[C_STATUS].extents_count, 1);
        OK(t.extents[0].length == SCRIPT_LENGTH && t.extents[0].flags == 2);
    }
}

static void build_errors(struct script *s)
{
    put_error(s, 0, NBD_CHUNK_ERROR_OFFSET, C_READ, NBD_EIO, "bad \x1b[1m sector", 512);
    put_error(s, 0, NBD_CHUNK_ERROR, C_READ, NBD_EPERM, "a second one", 0);
    put_data(s, 0, C_READ, 0, 512, 1); /* content after an error is allowed */
    put_chunk(s, DONE, NBD_CHUNK_NONE, C_READ, 0);
    put_error(s, DONE, NBD_CHUNK_ERROR, C_WRITE, 4711, "", 0);
    put_error(s, DONE, NBD_CHUNK_ERROR, C_FLUSH, 0, "error zero", 0);
    put_error(s, DONE, 0x8123, C_STATUS, NBD_ESHUTDOWN, "of an unknown type", 0);
    put_simple(s, NBD_ENOMEM, C_READ2); /* nbd-server does that; the error is believed */
}

static void error_replies(void)
{
    static struct script_run t;
    for (size_t i = 0; i < PIECES; i++) {
        if (!EQ(play(&t, STRUCTURED, build_errors, pieces[i]), 0)) {
            printf("# %s\n", t.err.text);
        }
        EQ(t.calls[C_READ].result, -EIO);
        STREQ(t.errors[C_READ].text, "the server failed READ: \"bad \\x1b[1m sector\"");
        EQ(t.errors[C_READ].offset, SCRIPT_OFFSET + 512);
        EQ(t.calls[C_WRITE].result, -EINVAL);
        EQ(t.calls[C_FLUSH].result, -EINVAL);
        STREQ(t.errors[C_FLUSH].text, "the server failed FLUSH: \"error zero\"");
        OK(!t.errors[C_FLUSH].has_offset);
        EQ(t.calls[C_STATUS].result, -ESHUTDOWN);
        EQ(t.calls[C_READ2].result, -ENOMEM);
    }
}

/* While READs wait, what is received never reaches beyond a header: payload goes straight to its
 * place in one receive. */
static void build_two_reads(struct script *s)
{
    put_data(s, DONE, C_READ, 0, SCRIPT_LENGTH, 1);
    put_data(s, DONE, C_READ2, 0, SCRIPT_LENGTH, 2);
}

static void payload_is_not_buffered(void)
{
    static struct script_run t;
    EQ(play(&t, STRUCTURED, build_two_reads, 0), 1);
    OK(all(t.calls[C_READ].buffer, SCRIPT_LENGTH, 1));
    OK(all(t.calls[C_READ2].buffer, SCRIPT_LENGTH, 2));
    EQ(t.c.start, t.c.end);
    /* nothing but the headers and offsets has ever been in the buffer */
    OK(t.c.received[28] == 0 && t.c.received[29] == 0);
}

int main(void)
{
    RUN(simple_replies);
    RUN(structured_replies);
    RUN(extended_replies);
    RUN(error_replies);
    RUN(payload_is_not_buffered);
    return tap_done();
}
