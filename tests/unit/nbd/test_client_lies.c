/*
 * A table of lies that a server can tell in its replies, each with the words that it must be
 * answered with. Everything is fed whole, in 7-byte pieces and byte by byte.
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

#define LIE(name) static void name(struct script *s)

LIE(wrong_magic)
{
    put_u32(s, 0x12345678);
    put_fill(s, 0, 40);
}

LIE(request_magic)
{
    put_u32(s, NBD_MAGIC_REQUEST);
    put_fill(s, 0, 40);
}

LIE(a_simple_reply)
{
    put_simple(s, 0, C_FLUSH);
}

LIE(a_chunk)
{
    put_chunk(s, DONE, NBD_CHUNK_NONE, C_FLUSH, 0);
}

LIE(an_extended_reply)
{
    put_ext(s, DONE, NBD_CHUNK_NONE, C_FLUSH, 0, 0);
}

LIE(unknown_cookie)
{
    put_simple(s, 0, 0xdead);
}

LIE(cookie_of_the_same_slot)
{
    put_simple(s, 0, C_READ + NBD_CALLS_MAX);
}

LIE(answered_twice)
{
    put_simple(s, 0, C_FLUSH);
    put_simple(s, 0, C_FLUSH);
}

LIE(chunk_after_done)
{
    put_data(s, DONE, C_READ, 0, SCRIPT_LENGTH, 1);
    put_data(s, DONE, C_READ, 0, SCRIPT_LENGTH, 1);
}

LIE(simple_to_read)
{
    put_simple(s, 0, C_READ);
    put_fill(s, 1, SCRIPT_LENGTH);
}

LIE(simple_to_status)
{
    put_simple(s, 0, C_STATUS);
}

LIE(simple_after_chunk)
{
    put_data(s, 0, C_READ, 0, 1, 1);
    put_simple(s, NBD_EIO, C_READ);
}

LIE(data_too_long)
{
    put_data(s, DONE, C_READ, 0, SCRIPT_LENGTH + 1, 1);
}

LIE(data_of_4_gib)
{
    put_chunk(s, DONE, NBD_CHUNK_OFFSET_DATA, C_READ, UINT32_MAX);
    put_u64(s, SCRIPT_OFFSET);
}

LIE(data_before_the_request)
{
    put_chunk(s, DONE, NBD_CHUNK_OFFSET_DATA, C_READ, 8 + 512);
    put_u64(s, SCRIPT_OFFSET - 1);
    put_fill(s, 1, 512);
}

LIE(data_behind_the_request)
{
    put_data(s, DONE, C_READ, SCRIPT_LENGTH, 1, 1);
}

LIE(data_that_wraps)
{
    put_chunk(s, DONE, NBD_CHUNK_OFFSET_DATA, C_READ, 8 + 512);
    put_u64(s, UINT64_MAX - 100);
    put_fill(s, 1, 512);
}

LIE(data_of_no_bytes)
{
    put_chunk(s, 0, NBD_CHUNK_OFFSET_DATA, C_READ, 8);
    put_u64(s, SCRIPT_OFFSET);
}

LIE(data_without_offset)
{
    put_chunk(s, 0, NBD_CHUNK_OFFSET_DATA, C_READ, 3);
    put_fill(s, 0, 3);
}

LIE(data_overlaps_data)
{
    put_data(s, 0, C_READ, 0, 512, 1);
    put_data(s, DONE, C_READ, 511, 513, 1);
}

LIE(hole_overlaps_data)
{
    put_data(s, 0, C_READ, 512, 512, 1);
    put_hole(s, DONE, C_READ, 0, 513);
}

LIE(data_overlaps_hole)
{
    put_hole(s, 0, C_READ, 0, SCRIPT_LENGTH);
    put_data(s, DONE, C_READ, 1000, 1, 1);
}

LIE(a_gap)
{
    put_data(s, 0, C_READ, 0, 512, 1);
    put_data(s, DONE, C_READ, 513, 511, 1);
}

LIE(nothing_at_all)
{
    put_chunk(s, DONE, NBD_CHUNK_NONE, C_READ, 0);
}

LIE(hole_of_no_bytes)
{
    put_hole(s, DONE, C_READ, 0, 0);
}

LIE(hole_too_long)
{
    put_hole(s, DONE, C_READ, 0, UINT32_MAX);
}

LIE(hole_of_wrong_length)
{
    put_chunk(s, DONE, NBD_CHUNK_OFFSET_HOLE, C_READ, 16);
    put_fill(s, 0, 16);
}

LIE(data_to_write)
{
    put_data(s, DONE, C_WRITE, 0, SCRIPT_LENGTH, 1);
}

LIE(hole_to_flush)
{
    put_hole(s, DONE, C_FLUSH, 0, 1);
}

LIE(none_with_payload)
{
    put_chunk(s, DONE, NBD_CHUNK_NONE, C_WRITE, 1);
    put_fill(s, 0, 1);
}

LIE(none_without_done)
{
    put_chunk(s, 0, NBD_CHUNK_NONE, C_WRITE, 0);
}

LIE(unknown_type)
{
    put_chunk(s, DONE, 99, C_WRITE, 0);
}

LIE(error_too_short)
{
    put_chunk(s, DONE, NBD_CHUNK_ERROR, C_WRITE, 5);
    put_fill(s, 0, 5);
}

LIE(error_of_a_mib)
{
    put_chunk(s, DONE, NBD_CHUNK_ERROR, C_WRITE, 1 << 20);
    put_fill(s, 0, 5);
}

LIE(error_text_beyond_the_chunk)
{
    put_chunk(s, DONE, NBD_CHUNK_ERROR, C_WRITE, 6 + 4);
    put_u32(s, NBD_EIO);
    put_u16(s, 5);
    put_fill(s, 'x', 4);
}

LIE(error_text_too_long)
{
    put_chunk(s, DONE, NBD_CHUNK_ERROR, C_WRITE, 6 + 4097);
    put_u32(s, NBD_EIO);
    put_u16(s, 4097);
    put_fill(s, 'x', 4097);
}

LIE(error_with_surplus)
{
    put_chunk(s, DONE, NBD_CHUNK_ERROR, C_WRITE, 6 + 1);
    put_u32(s, NBD_EIO);
    put_u16(s, 0);
    put_fill(s, 'x', 1);
}

LIE(error_offset_outside)
{
    put_error(s, DONE, NBD_CHUNK_ERROR_OFFSET, C_READ, NBD_EIO, "", SCRIPT_LENGTH);
}

LIE(errors_without_end)
{
    for (int i = 0; i <= NBD_ERROR_CHUNKS_MAX; i++) {
        put_error(s, 0, NBD_CHUNK_ERROR, C_READ, NBD_EIO, "", 0);
    }
}

static void status_head(struct script *s, uint16_t flags, uint32_t context, uint32_t length)
{
    put_chunk(s, flags, NBD_CHUNK_BLOCK_STATUS, C_STATUS, length);
    put_u32(s, context);
}

LIE(status_of_another_context)
{
    status_head(s, DONE, SCRIPT_CONTEXT + 1, 4 + 8);
    put_u64(s, 1ull << 32);
}

LIE(status_twice)
{
    for (int i = 0; i < 2; i++) {
        status_head(s, 0, SCRIPT_CONTEXT, 4 + 8);
        put_u64(s, 1ull << 32);
    }
}

LIE(status_without_extents)
{
    status_head(s, DONE, SCRIPT_CONTEXT, 4);
}

LIE(status_of_odd_length)
{
    status_head(s, DONE, SCRIPT_CONTEXT, 4 + 9);
    put_fill(s, 0, 9);
}

LIE(status_too_long)
{
    status_head(s, DONE, SCRIPT_CONTEXT, 4 + 8 * (NBD_DESCRIPTORS_MAX + 1));
}

LIE(extent_of_no_bytes)
{
    status_head(s, DONE, SCRIPT_CONTEXT, 4 + 16);
    put_u64(s, 512ull << 32);
    put_u64(s, 0);
}

LIE(no_status)
{
    put_chunk(s, DONE, NBD_CHUNK_NONE, C_STATUS, 0);
}

LIE(status_to_read)
{
    put_chunk(s, DONE, NBD_CHUNK_BLOCK_STATUS, C_READ, 4 + 8);
    put_u32(s, SCRIPT_CONTEXT);
    put_u64(s, 1ull << 32);
}

LIE(extended_status_in_compact_mode)
{
    put_chunk(s, DONE, NBD_CHUNK_BLOCK_STATUS_EXT, C_STATUS, 8 + 16);
    put_fill(s, 0, 24);
}

LIE(compact_status_in_extended_mode)
{
    put_ext(s, DONE, NBD_CHUNK_BLOCK_STATUS, C_STATUS, SCRIPT_OFFSET, 4 + 8);
    put_fill(s, 0, 12);
}

LIE(extended_status_with_wrong_count)
{
    put_ext(s, DONE, NBD_CHUNK_BLOCK_STATUS_EXT, C_STATUS, SCRIPT_OFFSET, 8 + 16);
    put_u32(s, SCRIPT_CONTEXT);
    put_u32(s, 2);
    put_fill(s, 1, 16);
}

LIE(extended_offset_is_no_echo)
{
    put_ext(s, DONE, NBD_CHUNK_NONE, C_WRITE, SCRIPT_OFFSET + 1, 0);
}

LIE(extended_data_of_8_eib)
{
    put_ext(s, DONE, NBD_CHUNK_OFFSET_DATA, C_READ, SCRIPT_OFFSET, INT64_MAX);
    put_u64(s, SCRIPT_OFFSET);
}

LIE(extended_error_of_8_eib)
{
    put_ext(s, DONE, NBD_CHUNK_ERROR, C_READ, SCRIPT_OFFSET, INT64_MAX);
    put_fill(s, 0, 64);
}

LIE(ends_in_a_header)
{
    put_u32(s, NBD_MAGIC_REPLY_SIMPLE);
    put_fill(s, 0, 7);
}

LIE(ends_in_data)
{
    put_chunk(s, DONE, NBD_CHUNK_OFFSET_DATA, C_READ, 8 + 1024);
    put_u64(s, SCRIPT_OFFSET);
    put_fill(s, 1, 1023);
}

LIE(ends_in_simple_data)
{
    put_simple(s, 0, C_READ);
    put_fill(s, 1, 1023);
}

LIE(ends_in_extents)
{
    status_head(s, DONE, SCRIPT_CONTEXT, 4 + 16);
    put_u64(s, 512ull << 32);
}

struct lie {
    const char *name;
    build_fn *build;
    enum nbd_reply_mode mode;
    const char *says;
};

#define L(build, mode, says)      \
    {                             \
#build, build, mode, says \
    }
static const struct lie lies[] = {
    L(wrong_magic, SIMPLE, "wrong magic number (0x12345678)"),
    L(wrong_magic, STRUCTURED, "wrong magic number"),
    L(wrong_magic, EXTENDED, "wrong magic number"),
    L(request_magic, STRUCTURED, "wrong magic number"),
    L(a_simple_reply, EXTENDED, "a simple reply where extended replies were agreed on"),
    L(a_chunk, SIMPLE, "a structured reply where simple replies were agreed on"),
    L(a_chunk, EXTENDED, "a structured reply where extended replies were agreed on"),
    L(an_extended_reply, STRUCTURED, "an extended reply where structured"),
    L(unknown_cookie, SIMPLE, "no request that waits for one (cookie 0xdead)"),
    L(unknown_cookie, STRUCTURED, "no request that waits for one"),
    L(cookie_of_the_same_slot, STRUCTURED, "no request that waits for one"),
    L(answered_twice, STRUCTURED, "no request that waits for one (cookie 0x4)"),
    L(chunk_after_done, STRUCTURED, "no request that waits for one (cookie 0x1)"),
    L(simple_to_read, STRUCTURED, "a simple reply to READ"),
    L(simple_to_status, STRUCTURED, "a simple reply to BLOCK_STATUS"),
    L(simple_after_chunk, STRUCTURED, "in the middle of a structured one"),
    L(data_too_long, STRUCTURED, "1025 bytes at offset 4096 for a READ of 1024 bytes"),
    L(data_of_4_gib, STRUCTURED, "4294967287 bytes at offset 4096 for a READ of 1024"),
    L(data_before_the_request, STRUCTURED, "at offset 4095 for a READ"),
    L(data_behind_the_request, STRUCTURED, "at offset 5120 for a READ"),
    L(data_that_wraps, STRUCTURED, "for a READ of 1024 bytes at offset 4096"),
    L(data_of_no_bytes, STRUCTURED, "an OFFSET_DATA chunk with a length of 8"),
    L(data_without_offset, STRUCTURED, "an OFFSET_DATA chunk with a length of 3"),
    L(data_overlaps_data, STRUCTURED, "overlapping chunks"),
    L(hole_overlaps_data, STRUCTURED, "overlapping chunks"),
    L(data_overlaps_hole, STRUCTURED, "overlapping chunks"),
    L(a_gap, STRUCTURED, "after sending only 1023 of them"),
    L(nothing_at_all, STRUCTURED, "after sending only 0 of them"),
    L(hole_of_no_bytes, STRUCTURED, "a hole of no bytes"),
    L(hole_too_long, STRUCTURED, "4294967295 bytes at offset 4096"),
    L(hole_of_wrong_length, STRUCTURED, "an OFFSET_HOLE chunk with a length of 16"),
    L(data_to_write, STRUCTURED, "data as the reply to WRITE"),
    L(hole_to_flush, STRUCTURED, "data as the reply to FLUSH"),
    L(none_with_payload, STRUCTURED, "a NONE chunk with a length of 1"),
    L(none_without_done, STRUCTURED, "without the DONE flag"),
    L(unknown_type, STRUCTURED, "unknown type 99"),
    L(error_too_short, STRUCTURED, "an error chunk with a length of 5"),
    L(error_of_a_mib, STRUCTURED, "an error chunk with a length of 1048576"),
    L(error_text_beyond_the_chunk, STRUCTURED, "does not fit its length"),
    L(error_text_too_long, STRUCTURED, "does not fit its length"),
    L(error_with_surplus, STRUCTURED, "does not fit its length"),
    L(error_offset_outside, STRUCTURED, "an error at offset 5120 for a READ"),
    L(errors_without_end, STRUCTURED, "more than 64 error chunks"),
    L(status_of_another_context, STRUCTURED, "context 78, which was not selected"),
    L(status_twice, STRUCTURED, "one metadata context twice"),
    L(status_without_extents, STRUCTURED, "a BLOCK_STATUS chunk with a length of 4"),
    L(status_of_odd_length, STRUCTURED, "a BLOCK_STATUS chunk with a length of 13"),
    L(status_too_long, STRUCTURED, "a BLOCK_STATUS chunk with a length of 8388620"),
    L(extent_of_no_bytes, STRUCTURED, "an extent of no bytes"),
    L(no_status, STRUCTURED, "without any extents"),
    L(status_to_read, STRUCTURED, "extents as the reply to READ"),
    L(extended_status_in_compact_mode, STRUCTURED, "was not agreed on"),
    L(compact_status_in_extended_mode, EXTENDED, "was not agreed on"),
    L(extended_status_with_wrong_count, EXTENDED, "with 1 extents and a count of 2"),
    L(extended_offset_is_no_echo, EXTENDED, "names offset 4097"),
    L(extended_data_of_8_eib, EXTENDED, "for a READ of 1024 bytes"),
    L(extended_error_of_8_eib, EXTENDED, "an error chunk with a length of"),
    L(ends_in_a_header, SIMPLE, "closed the connection while 5 requests waited"),
    L(ends_in_a_header, STRUCTURED, "closed the connection while 5 requests waited"),
    L(ends_in_data, STRUCTURED, "closed the connection"),
    L(ends_in_simple_data, SIMPLE, "closed the connection"),
    L(ends_in_extents, STRUCTURED, "closed the connection"),
};

static void every_lie_is_named(void)
{
    static struct script_run t;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        for (size_t p = 0; p < PIECES; p++) {
            int r = play(&t, lies[i].mode, lies[i].build, pieces[p]);
            int code = strstr(lies[i].says, "closed") ? ECONNRESET : EPROTO;
            if (!EQ(r, -code) || !OK(strstr(t.err.text, lies[i].says))) {
                printf("# %s (mode %d, pieces of %zu): \"%s\"\n", lies[i].name, lies[i].mode,
                       pieces[p], t.err.text);
            }
        }
    }
}

int main(void)
{
    RUN(every_lie_is_named);
    return tap_done();
}
