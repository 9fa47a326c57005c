/*
 * The wire codec: each message there and back, and each way in which lengths can lie.
 */
#include "nbd/wire.h"

#include "tap.h"

#include <errno.h>

static void errors_map_both_ways(void)
{
    static const struct {
        int code;
        uint32_t error;
    } pairs[] = {{0, 0},       {EPERM, 1},      {EIO, 5},      {ENOMEM, 12},    {EINVAL, 22},
                 {ENOSPC, 28}, {EOVERFLOW, 75}, {ENOTSUP, 95}, {ESHUTDOWN, 108}};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        EQ(nbd_error_from_errno(pairs[i].code), pairs[i].error);
        EQ(nbd_error_to_errno(pairs[i].error), pairs[i].code);
    }
    EQ(nbd_error_from_errno(EROFS), NBD_EPERM);
    EQ(nbd_error_from_errno(EDQUOT), NBD_ENOSPC);
    EQ(nbd_error_from_errno(EFBIG), NBD_ENOSPC);
    EQ(nbd_error_from_errno(ENXIO), NBD_EIO);
    EQ(nbd_error_from_errno(ECANCELED), NBD_EIO);
    EQ(nbd_error_to_errno(3), EINVAL);
    EQ(nbd_error_to_errno(UINT32_MAX), EINVAL);
}

static void greeting(void)
{
    uint8_t p[NBD_GREETING_SIZE];
    uint16_t flags = 0;
    nbd_greeting_encode(p, 3);
    OK(memcmp(p, "NBDMAGICIHAVEOPT\0\3", sizeof(p)) == 0);
    EQ(nbd_greeting_decode(p, &flags), 0);
    EQ(flags, 3);
    nbd_put64(p + 8, NBD_MAGIC_OLDSTYLE);
    EQ(nbd_greeting_decode(p, &flags), -EPROTONOSUPPORT);
    p[15] ^= 1;
    EQ(nbd_greeting_decode(p, &flags), -EPROTO);
    p[0] ^= 1;
    EQ(nbd_greeting_decode(p, &flags), -EPROTO);
}

static void options_and_replies(void)
{
    uint8_t p[NBD_OPTION_REPLY_SIZE];
    uint32_t option, length;
    nbd_option_encode(p, NBD_OPT_GO, 0xfffffffe);
    EQ(nbd_option_decode(p, &option, &length), 0);
    EQ(option, NBD_OPT_GO);
    EQ(length, 0xfffffffe);
    p[7] ^= 1;
    EQ(nbd_option_decode(p, &option, &length), -EPROTO);
    struct nbd_option_reply r;
    nbd_option_reply_encode(p, NBD_OPT_LIST, NBD_REP_ERR_TOO_BIG, 77);
    EQ(nbd_option_reply_decode(p, &r), 0);
    EQ(r.option, NBD_OPT_LIST);
    EQ(r.type, NBD_REP_ERR_TOO_BIG);
    EQ(r.length, 77);
    p[0] ^= 1;
    EQ(nbd_option_reply_decode(p, &r), -EPROTO);
}

static void info_requests(void)
{
    static const uint16_t types[] = {NBD_INFO_NAME, NBD_INFO_BLOCK_SIZE};
    uint8_t p[64];
    struct nbd_info_request r;
    size_t len = nbd_info_request_encode(p, "disk", types, 2);
    EQ(len, nbd_info_request_encode(NULL, "disk", types, 2));
    EQ(len, 14);
    EQ(nbd_info_request_decode(p, len, &r), 0);
    OK(nbd_text_is(&r.name, "disk"));
    EQ(r.count, 2);
    EQ(nbd_info_request_type(&r, 0), NBD_INFO_NAME);
    EQ(nbd_info_request_type(&r, 1), NBD_INFO_BLOCK_SIZE);
    for (size_t cut = 0; cut < len; cut++) {
        EQ(nbd_info_request_decode(p, cut, &r), -EINVAL);
    }
    EQ(nbd_info_request_decode(p, len + 1, &r), -EINVAL);
    nbd_put32(p, 9); /* reaches into the types */
    EQ(nbd_info_request_decode(p, len, &r), -EINVAL);
    nbd_put32(p, UINT32_MAX);
    EQ(nbd_info_request_decode(p, len, &r), -EINVAL);
    nbd_put32(p, 4);
    p[5] = 0;
    EQ(nbd_info_request_decode(p, len, &r), -EINVAL);
    len = nbd_info_request_encode(p, "", NULL, 0);
    EQ(len, 6);
    EQ(nbd_info_request_decode(p, len, &r), 0);
    EQ(r.name.len, 0);
}

static void long_names(void)
{
    static uint8_t p[NBD_STRING_MAX + 16];
    static char name[NBD_STRING_MAX + 2];
    struct nbd_info_request r;
    memset(name, 'n', NBD_STRING_MAX + 1);
    size_t len = nbd_info_request_encode(p, name, NULL, 0);
    EQ(nbd_info_request_decode(p, len, &r), -EINVAL);
    name[NBD_STRING_MAX] = '\0';
    len = nbd_info_request_encode(p, name, NULL, 0);
    EQ(nbd_info_request_decode(p, len, &r), 0);
}

static void meta_requests(void)
{
    static const char *const queries[] = {"base:allocation", "", "x:y"};
    uint8_t p[128];
    struct nbd_meta_request r;
    struct nbd_text query;
    size_t len = nbd_meta_request_encode(p, "disk", queries, 3);
    EQ(nbd_meta_request_decode(p, len, &r), 0);
    for (int i = 0; i < 3; i++) {
        OK(nbd_meta_request_next(&r, &query));
        OK(nbd_text_is(&query, queries[i]));
    }
    OK(!nbd_meta_request_next(&r, &query));
    for (size_t cut = 0; cut < len; cut++) {
        EQ(nbd_meta_request_decode(p, cut, &r), -EINVAL);
    }
    EQ(nbd_meta_request_decode(p, len + 1, &r), -EINVAL);
    nbd_put32(p + 8, UINT32_MAX); /* queries */
    EQ(nbd_meta_request_decode(p, len, &r), -EINVAL);
    nbd_put32(p + 8, 3);
    nbd_put32(p + 12, 200); /* the first one's length */
    EQ(nbd_meta_request_decode(p, len, &r), -EINVAL);
    nbd_put32(p, UINT32_MAX); /* the name's */
    EQ(nbd_meta_request_decode(p, len, &r), -EINVAL);
}

static void infos(void)
{
    uint8_t p[NBD_INFO_BLOCK_SIZE_SIZE];
    struct nbd_info info;
    nbd_info_export_encode(p, UINT64_MAX - 511, 0x1fff);
    EQ(nbd_info_decode(p, NBD_INFO_EXPORT_SIZE, &info), 0);
    OK(info.type == NBD_INFO_EXPORT && info.size == UINT64_MAX - 511 && info.flags == 0x1fff);
    EQ(nbd_info_decode(p, NBD_INFO_EXPORT_SIZE - 1, &info), -EPROTO);
    EQ(nbd_info_decode(p, NBD_INFO_EXPORT_SIZE + 1, &info), -EPROTO);
    nbd_info_block_size_encode(p, 1, 4096, 64 << 20);
    EQ(nbd_info_decode(p, NBD_INFO_BLOCK_SIZE_SIZE, &info), 0);
    OK(info.block_min == 1 && info.block_preferred == 4096 && info.block_max == 64 << 20);
    EQ(nbd_info_decode(p, 4, &info), -EPROTO);
    EQ(nbd_info_decode((const uint8_t *)"\0\1ab", 4, &info), 0);
    OK(nbd_text_is(&info.text, "ab"));
    EQ(nbd_info_decode((const uint8_t *)"\77\1ab", 4, &info), 0);
    EQ(nbd_info_decode(p, 1, &info), -EPROTO);
}

static void exports_and_contexts(void)
{
    struct nbd_text name, description;
    uint32_t id;
    const uint8_t *server = (const uint8_t *)"\0\0\0\2dkabout";
    EQ(nbd_server_reply_decode(server, 11, &name, &description), 0);
    OK(nbd_text_is(&name, "dk") && nbd_text_is(&description, "about"));
    EQ(nbd_server_reply_decode(server, 5, &name, &description), -EPROTO);
    EQ(nbd_server_reply_decode(server, 3, &name, &description), -EPROTO);
    const uint8_t *context = (const uint8_t *)"\0\0\0\1base:allocation";
    EQ(nbd_context_reply_decode(context, 19, &id, &name), 0);
    OK(id == 1 && nbd_text_is(&name, NBD_CONTEXT_BASE_ALLOCATION));
    EQ(nbd_context_reply_decode(context, 3, &id, &name), -EPROTO);
    EQ(nbd_context_reply_decode((const uint8_t *)"\0\0\0\1a\0b", 7, &id, &name), -EPROTO);
}

static void requests(void)
{
    for (int extended = 0; extended < 2; extended++) {
        const struct nbd_request r = {.flags = 0x21,
                                      .command = NBD_CMD_WRITE,
                                      .cookie = 0x0123456789abcdef,
                                      .offset = 1ull << 63,
                                      .length = extended ? UINT64_MAX : UINT32_MAX};
        struct nbd_request back;
        uint8_t p[NBD_HEADER_MAX];
        EQ(nbd_request_encode(p, extended, &r), nbd_request_size(extended));
        EQ(nbd_request_decode(p, extended, &back), 0);
        OK(back.flags == r.flags && back.command == r.command && back.cookie == r.cookie);
        OK(back.offset == r.offset && back.length == r.length);
        EQ(nbd_request_decode(p, !extended, &back), -EPROTO);
    }
}

static void replies(void)
{
    uint8_t p[NBD_HEADER_MAX];
    struct nbd_reply r;
    nbd_reply_simple_encode(p, NBD_ENOSPC, 42);
    EQ(nbd_reply_decode(p, 3, NBD_MODE_SIMPLE, &r), 0);
    EQ(nbd_reply_decode(p, 15, NBD_MODE_SIMPLE, &r), 0);
    EQ(nbd_reply_decode(p, 32, NBD_MODE_SIMPLE, &r), 16);
    OK(r.simple && r.error == NBD_ENOSPC && r.cookie == 42);
    EQ(nbd_reply_decode(p, 32, NBD_MODE_STRUCTURED, &r), 16);
    EQ(nbd_reply_decode(p, 32, NBD_MODE_EXTENDED, &r), -EPROTO);
    const struct nbd_reply chunk = {.flags = NBD_REPLY_FLAG_DONE,
                                    .type = NBD_CHUNK_OFFSET_DATA,
                                    .cookie = UINT64_MAX,
                                    .offset = 1ull << 40,
                                    .length = 99};
    for (int extended = 0; extended < 2; extended++) {
        int size = extended ? 32 : 20;
        enum nbd_reply_mode mode = extended ? NBD_MODE_EXTENDED : NBD_MODE_STRUCTURED;
        EQ(nbd_chunk_encode(p, extended, &chunk), size);
        EQ(nbd_reply_decode(p, (size_t)size - 1, mode, &r), 0);
        EQ(nbd_reply_decode(p, (size_t)size, mode, &r), size);
        OK(!r.simple && r.flags == 1 && r.type == 1 && r.cookie == UINT64_MAX && r.length == 99);
        EQ(r.offset, extended ? 1ull << 40 : 0);
        EQ(nbd_reply_decode(p, 32, NBD_MODE_SIMPLE, &r), -EPROTO);
        EQ(nbd_reply_decode(p, 32, extended ? NBD_MODE_STRUCTURED : NBD_MODE_EXTENDED, &r),
           -EPROTO);
    }
    memset(p, 0, sizeof(p));
    EQ(nbd_reply_decode(p, 32, NBD_MODE_STRUCTURED, &r), -EPROTO);
}

static void holes(void)
{
    uint64_t offset;
    uint32_t size;
    uint8_t p[12];
    nbd_put64(p, 4096);
    nbd_put32(p + 8, UINT32_MAX);
    EQ(nbd_hole_decode(p, 12, &offset, &size), 0);
    OK(offset == 4096 && size == UINT32_MAX);
    EQ(nbd_hole_decode(p, 11, &offset, &size), -EPROTO);
    nbd_put32(p + 8, 0);
    EQ(nbd_hole_decode(p, 12, &offset, &size), -EPROTO);
}

static void error_chunks(void)
{
    uint8_t p[64];
    struct nbd_error_chunk c = {.error = NBD_EIO, .text = {(const uint8_t *)"bad", 3}}, back;
    size_t len = nbd_error_chunk_encode(p, &c);
    EQ(len, 9);
    EQ(nbd_error_chunk_decode(NBD_CHUNK_ERROR, p, len, &back), 0);
    OK(back.error == NBD_EIO && nbd_text_is(&back.text, "bad") && !back.has_offset);
    EQ(nbd_error_chunk_decode(NBD_CHUNK_ERROR, p, len + 1, &back), -EPROTO);
    EQ(nbd_error_chunk_decode(NBD_CHUNK_ERROR_OFFSET, p, len, &back), -EPROTO);
    EQ(nbd_error_chunk_decode(NBD_CHUNK_IS_ERROR | 99, p, len + 5, &back), 0);
    for (size_t cut = 0; cut < len; cut++) {
        EQ(nbd_error_chunk_decode(NBD_CHUNK_ERROR, p, cut, &back), -EPROTO);
    }
    c.has_offset = true;
    c.offset = 1ull << 50;
    c.error = 0;
    len = nbd_error_chunk_encode(p, &c);
    EQ(len, 17);
    EQ(nbd_error_chunk_decode(NBD_CHUNK_ERROR_OFFSET, p, len, &back), 0);
    OK(back.has_offset && back.offset == 1ull << 50 && back.error == NBD_EINVAL);
    c.text = (struct nbd_text){NULL, 0};
    EQ(nbd_error_chunk_encode(p, &c), 14);
}

static void block_status(void)
{
    uint8_t p[64];
    struct nbd_status s;
    uint64_t length, flags;
    nbd_put32(p, 7);
    nbd_status_put(p + 4, false, UINT32_MAX, 3);
    nbd_status_put(p + 12, false, 512, 0);
    EQ(nbd_status_decode(p, 20, false, &s), 0);
    OK(s.id == 7 && s.count == 2);
    nbd_status_get(&s, 0, &length, &flags);
    OK(length == UINT32_MAX && flags == 3);
    for (size_t len = 0; len < 12; len++) {
        EQ(nbd_status_decode(p, len, false, &s), -EPROTO);
    }
    EQ(nbd_status_decode(p, 19, false, &s), -EPROTO);
    nbd_put32(p + 4, 2);
    nbd_status_put(p + 8, true, 1ull << 60, 1);
    nbd_status_put(p + 24, true, 5, 0);
    EQ(nbd_status_decode(p, 40, true, &s), 0);
    EQ(s.count, 2);
    nbd_status_get(&s, 0, &length, &flags);
    OK(length == 1ull << 60 && flags == 1);
    EQ(nbd_status_decode(p, 24, true, &s), -EPROTO);
    EQ(nbd_status_decode(p, 39, true, &s), -EPROTO);
}

static void names(void)
{
    STREQ(nbd_command_name(NBD_CMD_TRIM), "TRIM");
    STREQ(nbd_command_name(8), "unknown command");
    STREQ(nbd_option_name(NBD_OPT_EXTENDED_HEADERS), "EXTENDED_HEADERS");
    STREQ(nbd_option_name(0), "unknown option");
    STREQ(nbd_option_name(UINT32_MAX), "unknown option");
    STREQ(nbd_reply_name(NBD_REP_ERR_UNKNOWN), "ERR_UNKNOWN");
    STREQ(nbd_reply_name(NBD_REP_META_CONTEXT), "META_CONTEXT");
    STREQ(nbd_reply_name(99), "unknown reply");
    STREQ(nbd_reply_name(UINT32_MAX), "unknown error reply");
}

int main(void)
{
    RUN(errors_map_both_ways);
    RUN(greeting);
    RUN(options_and_replies);
    RUN(info_requests);
    RUN(long_names);
    RUN(meta_requests);
    RUN(infos);
    RUN(exports_and_contexts);
    RUN(requests);
    RUN(replies);
    RUN(holes);
    RUN(error_chunks);
    RUN(block_status);
    RUN(names);
    return tap_done();
}
