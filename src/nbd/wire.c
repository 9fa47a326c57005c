/*
 * The NBD wire codec. Every decoder checks a length before it looks at what the length covers, by
 * subtraction, and keeps pointers into the caller's bytes instead of copies.
 */
#include "nbd/wire.h"

#include <errno.h>

struct error_pair {
    int code; /* errno */
    uint32_t error;
};

/* First match wins in each direction, so the plain pair of a number stands before its aliases. */
static const struct error_pair error_pairs[] = {
    {EPERM, NBD_EPERM},     {EIO, NBD_EIO},
    {ENOMEM, NBD_ENOMEM},   {EINVAL, NBD_EINVAL},
    {ENOSPC, NBD_ENOSPC},   {EOVERFLOW, NBD_EOVERFLOW},
    {ENOTSUP, NBD_ENOTSUP}, {ESHUTDOWN, NBD_ESHUTDOWN},
    {EROFS, NBD_EPERM},     {EACCES, NBD_EPERM},
    {EDQUOT, NBD_ENOSPC},   {EFBIG, NBD_ENOSPC},
    {E2BIG, NBD_EINVAL},
};

#define ERROR_PAIRS (sizeof(error_pairs) / sizeof(error_pairs[0]))

uint32_t nbd_error_from_errno(int code)
{
    if (code == 0) {
        return NBD_OK;
    }
    for (size_t i = 0; i < ERROR_PAIRS; i++) {
        if (error_pairs[i].code == code) {
            return error_pairs[i].error;
        }
    }
    return NBD_EIO;
}

int nbd_error_to_errno(uint32_t error)
{
    if (error == NBD_OK) {
        return 0;
    }
    for (size_t i = 0; i < ERROR_PAIRS; i++) {
        if (error_pairs[i].error == error) {
            return error_pairs[i].code;
        }
    }
    return EINVAL;
}

const char *nbd_command_name(unsigned command)
{
    static const char *const names[] = {
        [NBD_CMD_READ] = "READ",
        [NBD_CMD_WRITE] = "WRITE",
        [NBD_CMD_DISC] = "DISC",
        [NBD_CMD_FLUSH] = "FLUSH",
        [NBD_CMD_TRIM] = "TRIM",
        [NBD_CMD_CACHE] = "CACHE",
        [NBD_CMD_WRITE_ZEROES] = "WRITE_ZEROES",
        [NBD_CMD_BLOCK_STATUS] = "BLOCK_STATUS",
    };
    return command < NBD_CMD_COUNT ? names[command] : "unknown command";
}

const char *nbd_option_name(uint32_t option)
{
    static const char *const names[] = {
        [NBD_OPT_EXPORT_NAME] = "EXPORT_NAME",
        [NBD_OPT_ABORT] = "ABORT",
        [NBD_OPT_LIST] = "LIST",
        [NBD_OPT_PEEK_EXPORT] = "PEEK_EXPORT",
        [NBD_OPT_STARTTLS] = "STARTTLS",
        [NBD_OPT_INFO] = "INFO",
        [NBD_OPT_GO] = "GO",
        [NBD_OPT_STRUCTURED_REPLY] = "STRUCTURED_REPLY",
        [NBD_OPT_LIST_META_CONTEXT] = "LIST_META_CONTEXT",
        [NBD_OPT_SET_META_CONTEXT] = "SET_META_CONTEXT",
        [NBD_OPT_EXTENDED_HEADERS] = "EXTENDED_HEADERS",
    };
    return option >= 1 && option < sizeof(names) / sizeof(names[0]) ? names[option]
                                                                    : "unknown option";
}

const char *nbd_reply_name(uint32_t reply)
{
    static const char *const names[] = {"0", "ACK", "SERVER", "INFO", "META_CONTEXT"};
    static const char *const errors[] = {"ERR_0",       "ERR_UNSUP",          "ERR_POLICY",
                                         "ERR_INVALID", "ERR_PLATFORM",       "ERR_TLS_REQD",
                                         "ERR_UNKNOWN", "ERR_SHUTDOWN",       "ERR_BLOCK_SIZE_REQD",
                                         "ERR_TOO_BIG", "ERR_EXT_HEADER_REQD"};
    uint32_t n = reply & ~NBD_REP_IS_ERROR;
    if (reply & NBD_REP_IS_ERROR) {
        return n < sizeof(errors) / sizeof(errors[0]) ? errors[n] : "unknown error reply";
    }
    return n < sizeof(names) / sizeof(names[0]) ? names[n] : "unknown reply";
}

void nbd_greeting_encode(uint8_t *p, uint16_t flags)
{
    nbd_put64(p, NBD_MAGIC_INIT);
    nbd_put64(p + 8, NBD_MAGIC_OPTION);
    nbd_put16(p + 16, flags);
}

int nbd_greeting_decode(const uint8_t *p, uint16_t *flags)
{
    if (nbd_get64(p) != NBD_MAGIC_INIT) {
        return -EPROTO;
    }
    uint64_t magic = nbd_get64(p + 8);
    if (magic == NBD_MAGIC_OLDSTYLE) {
        return -EPROTONOSUPPORT;
    }
    if (magic != NBD_MAGIC_OPTION) {
        return -EPROTO;
    }
    *flags = nbd_get16(p + 16);
    return 0;
}

void nbd_option_encode(uint8_t *p, uint32_t option, uint32_t length)
{
    nbd_put64(p, NBD_MAGIC_OPTION);
    nbd_put32(p + 8, option);
    nbd_put32(p + 12, length);
}

int nbd_option_decode(const uint8_t *p, uint32_t *option, uint32_t *length)
{
    if (nbd_get64(p) != NBD_MAGIC_OPTION) {
        return -EPROTO;
    }
    *option = nbd_get32(p + 8);
    *length = nbd_get32(p + 12);
    return 0;
}

void nbd_option_reply_encode(uint8_t *p, uint32_t option, uint32_t type, uint32_t length)
{
    nbd_put64(p, NBD_MAGIC_OPTION_REPLY);
    nbd_put32(p + 8, option);
    nbd_put32(p + 12, type);
    nbd_put32(p + 16, length);
}

int nbd_option_reply_decode(const uint8_t *p, struct nbd_option_reply *ret)
{
    if (nbd_get64(p) != NBD_MAGIC_OPTION_REPLY) {
        return -EPROTO;
    }
    ret->option = nbd_get32(p + 8);
    ret->type = nbd_get32(p + 12);
    ret->length = nbd_get32(p + 16);
    return 0;
}

bool nbd_text_is(const struct nbd_text *t, const char *s)
{
    size_t len = strlen(s);
    return t->len == len && (len == 0 || memcmp(t->data, s, len) == 0);
}

static bool text_ok(const struct nbd_text *t)
{
    return t->len <= NBD_STRING_MAX && !memchr(t->data, 0, t->len);
}

int nbd_info_request_decode(const uint8_t *p, size_t len, struct nbd_info_request *ret)
{
    if (len < 6) {
        return -EINVAL;
    }
    struct nbd_text name = {.data = p + 4, .len = nbd_get32(p)};
    if (name.len > len - 6 || !text_ok(&name)) {
        return -EINVAL;
    }
    const uint8_t *q = name.data + name.len;
    size_t left = len - 6 - name.len;
    uint16_t count = nbd_get16(q);
    if (left != (size_t)2 * count) {
        return -EINVAL;
    }
    *ret = (struct nbd_info_request){.name = name, .types = q + 2, .count = count};
    return 0;
}

size_t nbd_info_request_encode(uint8_t *p, const char *name, const uint16_t *types, unsigned count)
{
    size_t name_len = strlen(name);
    if (p) {
        nbd_put32(p, (uint32_t)name_len);
        memcpy(p + 4, name, name_len);
        nbd_put16(p + 4 + name_len, (uint16_t)count);
        for (unsigned i = 0; i < count; i++) {
            nbd_put16(p + 6 + name_len + (size_t)2 * i, types[i]);
        }
    }
    return 6 + name_len + (size_t)2 * count;
}

int nbd_meta_request_decode(const uint8_t *p, size_t len, struct nbd_meta_request *ret)
{
    if (len < 8) {
        return -EINVAL;
    }
    struct nbd_text name = {.data = p + 4, .len = nbd_get32(p)};
    if (name.len > len - 8 || !text_ok(&name)) {
        return -EINVAL;
    }
    const uint8_t *q = name.data + name.len;
    struct nbd_meta_request r = {
        .name = name,
        .count = nbd_get32(q),
        .next = q + 4,
        .left = len - 8 - name.len,
    };
    /* Each query takes at least 4 bytes, so this loop is bounded by len, not by count. */
    size_t left = r.left;
    q = r.next;
    for (uint32_t i = 0; i < r.count; i++) {
        if (left < 4) {
            return -EINVAL;
        }
        uint32_t query_len = nbd_get32(q);
        if (query_len > left - 4 || query_len > NBD_STRING_MAX) {
            return -EINVAL;
        }
        q += 4 + query_len;
        left -= 4 + query_len;
    }
    if (left != 0) {
        return -EINVAL;
    }
    *ret = r;
    return 0;
}

bool nbd_meta_request_next(struct nbd_meta_request *r, struct nbd_text *query)
{
    if (r->taken == r->count) {
        return false;
    }
    query->len = nbd_get32(r->next);
    query->data = r->next + 4;
    r->next += 4 + query->len;
    r->left -= 4 + query->len;
    r->taken++;
    return true;
}

size_t nbd_meta_request_encode(uint8_t *p, const char *name, const char *const *queries,
                               unsigned count)
{
    size_t name_len = strlen(name);
    size_t at = 8 + name_len;
    if (p) {
        nbd_put32(p, (uint32_t)name_len);
        memcpy(p + 4, name, name_len);
        nbd_put32(p + 4 + name_len, count);
    }
    for (unsigned i = 0; i < count; i++) {
        size_t query_len = strlen(queries[i]);
        if (p) {
            nbd_put32(p + at, (uint32_t)query_len);
            memcpy(p + at + 4, queries[i], query_len);
        }
        at += 4 + query_len;
    }
    return at;
}

int nbd_info_decode(const uint8_t *p, size_t len, struct nbd_info *ret)
{
    if (len < 2) {
        return -EPROTO;
    }
    struct nbd_info info = {.type = nbd_get16(p)};
    switch (info.type) {
    case NBD_INFO_EXPORT:
        if (len != NBD_INFO_EXPORT_SIZE) {
            return -EPROTO;
        }
        info.size = nbd_get64(p + 2);
        info.flags = nbd_get16(p + 10);
        break;
    case NBD_INFO_BLOCK_SIZE:
        if (len != NBD_INFO_BLOCK_SIZE_SIZE) {
            return -EPROTO;
        }
        info.block_min = nbd_get32(p + 2);
        info.block_preferred = nbd_get32(p + 6);
        info.block_max = nbd_get32(p + 10);
        break;
    case NBD_INFO_NAME:
    case NBD_INFO_DESCRIPTION:
        if (len - 2 > NBD_STRING_MAX) {
            return -EPROTO;
        }
        info.text = (struct nbd_text){.data = p + 2, .len = (uint32_t)(len - 2)};
        break;
    default: /* proto: unknown information is ignored */
        break;
    }
    *ret = info;
    return 0;
}

void nbd_info_export_encode(uint8_t *p, uint64_t size, uint16_t flags)
{
    nbd_put16(p, NBD_INFO_EXPORT);
    nbd_put64(p + 2, size);
    nbd_put16(p + 10, flags);
}

void nbd_info_block_size_encode(uint8_t *p, uint32_t min, uint32_t preferred, uint32_t max)
{
    nbd_put16(p, NBD_INFO_BLOCK_SIZE);
    nbd_put32(p + 2, min);
    nbd_put32(p + 6, preferred);
    nbd_put32(p + 10, max);
}

int nbd_server_reply_decode(const uint8_t *p, size_t len, struct nbd_text *name,
                            struct nbd_text *description)
{
    if (len < 4) {
        return -EPROTO;
    }
    struct nbd_text n = {.data = p + 4, .len = nbd_get32(p)};
    if (n.len > len - 4 || !text_ok(&n) || len - 4 - n.len > NBD_STRING_MAX) {
        return -EPROTO;
    }
    *name = n;
    *description = (struct nbd_text){.data = n.data + n.len, .len = (uint32_t)(len - 4 - n.len)};
    return 0;
}

int nbd_context_reply_decode(const uint8_t *p, size_t len, uint32_t *id, struct nbd_text *name)
{
    if (len < 4 || len - 4 > NBD_STRING_MAX) {
        return -EPROTO;
    }
    struct nbd_text n = {.data = p + 4, .len = (uint32_t)(len - 4)};
    if (!text_ok(&n)) {
        return -EPROTO;
    }
    *id = nbd_get32(p);
    *name = n;
    return 0;
}

size_t nbd_request_encode(uint8_t *p, bool extended, const struct nbd_request *r)
{
    nbd_put32(p, extended ? NBD_MAGIC_REQUEST_EXT : NBD_MAGIC_REQUEST);
    nbd_put16(p + 4, r->flags);
    nbd_put16(p + 6, r->command);
    nbd_put64(p + 8, r->cookie);
    nbd_put64(p + 16, r->offset);
    if (extended) {
        nbd_put64(p + 24, r->length);
        return NBD_REQUEST_EXT_SIZE;
    }
    nbd_put32(p + 24, (uint32_t)r->length);
    return NBD_REQUEST_SIZE;
}

int nbd_request_decode(const uint8_t *p, bool extended, struct nbd_request *ret)
{
    if (nbd_get32(p) != (extended ? NBD_MAGIC_REQUEST_EXT : NBD_MAGIC_REQUEST)) {
        return -EPROTO;
    }
    ret->flags = nbd_get16(p + 4);
    ret->command = nbd_get16(p + 6);
    ret->cookie = nbd_get64(p + 8);
    ret->offset = nbd_get64(p + 16);
    ret->length = extended ? nbd_get64(p + 24) : nbd_get32(p + 24);
    return 0;
}

void nbd_reply_simple_encode(uint8_t *p, uint32_t error, uint64_t cookie)
{
    nbd_put32(p, NBD_MAGIC_REPLY_SIMPLE);
    nbd_put32(p + 4, error);
    nbd_put64(p + 8, cookie);
}

size_t nbd_chunk_encode(uint8_t *p, bool extended, const struct nbd_reply *r)
{
    nbd_put32(p, extended ? NBD_MAGIC_REPLY_EXT : NBD_MAGIC_REPLY_STRUCTURED);
    nbd_put16(p + 4, r->flags);
    nbd_put16(p + 6, r->type);
    nbd_put64(p + 8, r->cookie);
    if (extended) {
        nbd_put64(p + 16, r->offset);
        nbd_put64(p + 24, r->length);
        return NBD_REPLY_EXT_SIZE;
    }
    nbd_put32(p + 16, (uint32_t)r->length);
    return NBD_REPLY_STRUCTURED_SIZE;
}

static int decode_simple(const uint8_t *p, size_t have, struct nbd_reply *ret)
{
    if (have < NBD_REPLY_SIMPLE_SIZE) {
        return 0;
    }
    *ret = (struct nbd_reply){
        .simple = true, .error = nbd_get32(p + 4), .cookie = nbd_get64(p + 8)};
    return NBD_REPLY_SIMPLE_SIZE;
}

static int decode_chunk(const uint8_t *p, size_t have, bool extended, struct nbd_reply *ret)
{
    size_t size = nbd_chunk_header_size(extended);
    if (have < size) {
        return 0;
    }
    *ret = (struct nbd_reply){
        .flags = nbd_get16(p + 4),
        .type = nbd_get16(p + 6),
        .cookie = nbd_get64(p + 8),
        .offset = extended ? nbd_get64(p + 16) : 0,
        .length = extended ? nbd_get64(p + 24) : nbd_get32(p + 16),
    };
    return (int)size;
}

int nbd_reply_decode(const uint8_t *p, size_t have, enum nbd_reply_mode mode, struct nbd_reply *ret)
{
    if (have < 4) {
        return 0;
    }
    switch (nbd_get32(p)) {
    case NBD_MAGIC_REPLY_SIMPLE:
        return mode == NBD_MODE_EXTENDED ? -EPROTO : decode_simple(p, have, ret);
    case NBD_MAGIC_REPLY_STRUCTURED:
        return mode == NBD_MODE_STRUCTURED ? decode_chunk(p, have, false, ret) : -EPROTO;
    case NBD_MAGIC_REPLY_EXT:
        return mode == NBD_MODE_EXTENDED ? decode_chunk(p, have, true, ret) : -EPROTO;
    default:
        return -EPROTO;
    }
}

int nbd_hole_decode(const uint8_t *p, size_t len, uint64_t *offset, uint32_t *size)
{
    if (len != 12 || nbd_get32(p + 8) == 0) {
        return -EPROTO;
    }
    *offset = nbd_get64(p);
    *size = nbd_get32(p + 8);
    return 0;
}

int nbd_error_chunk_decode(unsigned type, const uint8_t *p, size_t len, struct nbd_error_chunk *ret)
{
    if (len < 6) {
        return -EPROTO;
    }
    struct nbd_error_chunk c = {.error = nbd_get32(p)};
    c.text = (struct nbd_text){.data = p + 6, .len = nbd_get16(p + 4)};
    size_t left = len - 6;
    if (c.text.len > left || c.text.len > NBD_STRING_MAX) {
        return -EPROTO;
    }
    left -= c.text.len;
    if (type == NBD_CHUNK_ERROR_OFFSET) {
        if (left != 8) {
            return -EPROTO;
        }
        c.has_offset = true;
        c.offset = nbd_get64(c.text.data + c.text.len);
    } else if (type == NBD_CHUNK_ERROR && left != 0) {
        return -EPROTO;
    }
    if (c.error ==
        NBD_OK) { /* proto: an error of 0 is a violation; fail the request all the same */
        c.error = NBD_EINVAL;
    }
    *ret = c;
    return 0;
}

size_t nbd_error_chunk_encode(uint8_t *p, const struct nbd_error_chunk *c)
{
    nbd_put32(p, c->error);
    nbd_put16(p + 4, (uint16_t)c->text.len);
    if (c->text.len > 0) {
        memcpy(p + 6, c->text.data, c->text.len);
    }
    if (!c->has_offset) {
        return 6 + c->text.len;
    }
    nbd_put64(p + 6 + c->text.len, c->offset);
    return 14 + c->text.len;
}

int nbd_status_decode(const uint8_t *p, size_t len, bool extended, struct nbd_status *ret)
{
    size_t head = nbd_status_header_size(extended);
    size_t each = nbd_status_descriptor_size(extended);
    if (len < head + each || (len - head) % each != 0 || (len - head) / each > UINT32_MAX) {
        return -EPROTO;
    }
    struct nbd_status s = {
        .id = nbd_get32(p),
        .count = (uint32_t)((len - head) / each),
        .descriptors = p + head,
        .extended = extended,
    };
    if (extended && nbd_get32(p + 4) != s.count) {
        return -EPROTO;
    }
    *ret = s;
    return 0;
}

void nbd_status_get(const struct nbd_status *s, uint32_t i, uint64_t *length, uint64_t *flags)
{
    const uint8_t *p = s->descriptors + nbd_status_descriptor_size(s->extended) * i;
    *length = s->extended ? nbd_get64(p) : nbd_get32(p);
    *flags = s->extended ? nbd_get64(p + 8) : nbd_get32(p + 4);
}

void nbd_status_put(uint8_t *p, bool extended, uint64_t length, uint64_t flags)
{
    if (extended) {
        nbd_put64(p, length);
        nbd_put64(p + 8, flags);
    } else {
        nbd_put32(p, (uint32_t)length);
        nbd_put32(p + 4, (uint32_t)flags);
    }
}
