/*
 * NBD on the wire, for server and client: numbers and pure codecs. Bytes in, structs out; no I/O,
 * no allocation, no trust: what a decoder accepts lies inside the bytes that it was given.
 * "proto" is doc/proto.md of the NBD project with its extension-ext-header branch.
 */
#ifndef NBD_WIRE_H
#define NBD_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Magic numbers. */
#define NBD_MAGIC_INIT 0x4e42444d41474943u   /* "NBDMAGIC" */
#define NBD_MAGIC_OPTION 0x49484156454f5054u /* "IHAVEOPT" */
#define NBD_MAGIC_OLDSTYLE 0x00420281861253u /* second magic of servers before newstyle */
#define NBD_MAGIC_OPTION_REPLY 0x0003e889045565a9u
#define NBD_MAGIC_REQUEST 0x25609513u
#define NBD_MAGIC_REQUEST_EXT 0x21e41c71u
#define NBD_MAGIC_REPLY_SIMPLE 0x67446698u
#define NBD_MAGIC_REPLY_STRUCTURED 0x668e33efu
#define NBD_MAGIC_REPLY_EXT 0x6e8a278cu

/* Bytes of the fixed parts. */
#define NBD_GREETING_SIZE 18
#define NBD_OPTION_SIZE 16
#define NBD_OPTION_REPLY_SIZE 20
#define NBD_EXPORT_NAME_REPLY_SIZE 10 /* and 124 zeros where NO_ZEROES was not agreed */
#define NBD_EXPORT_NAME_PADDING 124
#define NBD_REQUEST_SIZE 28
#define NBD_REQUEST_EXT_SIZE 32
#define NBD_REPLY_SIMPLE_SIZE 16
#define NBD_REPLY_STRUCTURED_SIZE 20
#define NBD_REPLY_EXT_SIZE 32
#define NBD_HEADER_MAX 32

#define NBD_STRING_MAX 4096                 /* proto, "Values": names, queries, texts */
#define NBD_ERROR_TEXT_MAX 900              /* QEMU's client hangs up at more than 1000 bytes */
#define NBD_PAYLOAD_DEFAULT_MAX (32u << 20) /* what every server takes without asking */
#define NBD_DEFAULT_PORT 10809

/* Handshake flags; the client's have the same bits. */
#define NBD_FLAG_FIXED_NEWSTYLE (1u << 0)
#define NBD_FLAG_NO_ZEROES (1u << 1)

/* Transmission flags. */
#define NBD_FLAG_HAS_FLAGS (1u << 0)
#define NBD_FLAG_READ_ONLY (1u << 1)
#define NBD_FLAG_SEND_FLUSH (1u << 2)
#define NBD_FLAG_SEND_FUA (1u << 3)
#define NBD_FLAG_ROTATIONAL (1u << 4)
#define NBD_FLAG_SEND_TRIM (1u << 5)
#define NBD_FLAG_SEND_WRITE_ZEROES (1u << 6)
#define NBD_FLAG_SEND_DF (1u << 7)
#define NBD_FLAG_CAN_MULTI_CONN (1u << 8)
#define NBD_FLAG_SEND_CACHE (1u << 10)
#define NBD_FLAG_SEND_FAST_ZERO (1u << 11)
#define NBD_FLAG_BLOCK_STATUS_PAYLOAD (1u << 12)

enum nbd_option_number {
    NBD_OPT_EXPORT_NAME = 1,
    NBD_OPT_ABORT = 2,
    NBD_OPT_LIST = 3,
    NBD_OPT_PEEK_EXPORT = 4,
    NBD_OPT_STARTTLS = 5,
    NBD_OPT_INFO = 6,
    NBD_OPT_GO = 7,
    NBD_OPT_STRUCTURED_REPLY = 8,
    NBD_OPT_LIST_META_CONTEXT = 9,
    NBD_OPT_SET_META_CONTEXT = 10,
    NBD_OPT_EXTENDED_HEADERS = 11,
};

#define NBD_REP_ACK 1u
#define NBD_REP_SERVER 2u
#define NBD_REP_INFO 3u
#define NBD_REP_META_CONTEXT 4u
#define NBD_REP_IS_ERROR (1u << 31)
#define NBD_REP_ERR_UNSUP (NBD_REP_IS_ERROR | 1)
#define NBD_REP_ERR_POLICY (NBD_REP_IS_ERROR | 2)
#define NBD_REP_ERR_INVALID (NBD_REP_IS_ERROR | 3)
#define NBD_REP_ERR_PLATFORM (NBD_REP_IS_ERROR | 4)
#define NBD_REP_ERR_TLS_REQD (NBD_REP_IS_ERROR | 5)
#define NBD_REP_ERR_UNKNOWN (NBD_REP_IS_ERROR | 6)
#define NBD_REP_ERR_SHUTDOWN (NBD_REP_IS_ERROR | 7)
#define NBD_REP_ERR_BLOCK_SIZE_REQD (NBD_REP_IS_ERROR | 8)
#define NBD_REP_ERR_TOO_BIG (NBD_REP_IS_ERROR | 9)
#define NBD_REP_ERR_EXT_HEADER_REQD (NBD_REP_IS_ERROR | 10)

enum nbd_info_type {
    NBD_INFO_EXPORT = 0,
    NBD_INFO_NAME = 1,
    NBD_INFO_DESCRIPTION = 2,
    NBD_INFO_BLOCK_SIZE = 3,
};

enum nbd_command {
    NBD_CMD_READ = 0,
    NBD_CMD_WRITE = 1,
    NBD_CMD_DISC = 2,
    NBD_CMD_FLUSH = 3,
    NBD_CMD_TRIM = 4,
    NBD_CMD_CACHE = 5,
    NBD_CMD_WRITE_ZEROES = 6,
    NBD_CMD_BLOCK_STATUS = 7,
    NBD_CMD_COUNT
};

#define NBD_CMD_FLAG_FUA (1u << 0)
#define NBD_CMD_FLAG_NO_HOLE (1u << 1)
#define NBD_CMD_FLAG_DF (1u << 2)
#define NBD_CMD_FLAG_REQ_ONE (1u << 3)
#define NBD_CMD_FLAG_FAST_ZERO (1u << 4)
#define NBD_CMD_FLAG_PAYLOAD_LEN (1u << 5) /* extended headers: length counts payload */

#define NBD_REPLY_FLAG_DONE (1u << 0)

#define NBD_CHUNK_NONE 0u
#define NBD_CHUNK_OFFSET_DATA 1u
#define NBD_CHUNK_OFFSET_HOLE 2u
#define NBD_CHUNK_BLOCK_STATUS 5u
#define NBD_CHUNK_BLOCK_STATUS_EXT 6u
#define NBD_CHUNK_IS_ERROR (1u << 15)
#define NBD_CHUNK_ERROR (NBD_CHUNK_IS_ERROR | 1)
#define NBD_CHUNK_ERROR_OFFSET (NBD_CHUNK_IS_ERROR | 2)

/* Error numbers of the protocol; they are Linux's, which not every system shares. */
enum nbd_error {
    NBD_OK = 0,
    NBD_EPERM = 1,
    NBD_EIO = 5,
    NBD_ENOMEM = 12,
    NBD_EINVAL = 22,
    NBD_ENOSPC = 28,
    NBD_EOVERFLOW = 75,
    NBD_ENOTSUP = 95,
    NBD_ESHUTDOWN = 108,
};

#define NBD_CONTEXT_BASE_ALLOCATION "base:allocation"

/* Big endian, any alignment. */
static inline void nbd_put16(uint8_t *p, uint16_t v)
{
    v = __builtin_bswap16(v);
    memcpy(p, &v, sizeof(v));
}

static inline void nbd_put32(uint8_t *p, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(p, &v, sizeof(v));
}

static inline void nbd_put64(uint8_t *p, uint64_t v)
{
    v = __builtin_bswap64(v);
    memcpy(p, &v, sizeof(v));
}

static inline uint16_t nbd_get16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return __builtin_bswap16(v);
}

static inline uint32_t nbd_get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return __builtin_bswap32(v);
}

static inline uint64_t nbd_get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return __builtin_bswap64(v);
}

/* Any positive errno -> the protocol's number (0 -> 0, what has no place there -> NBD_EIO). */
uint32_t nbd_error_from_errno(int code);
/* The protocol's number -> a positive errno; unknown ones are EINVAL (proto, "Error values"). */
int nbd_error_to_errno(uint32_t error);

/* For messages: "READ", "GO", "ERR_UNKNOWN"; never NULL. */
const char *nbd_command_name(unsigned command);
const char *nbd_option_name(uint32_t option);
const char *nbd_reply_name(uint32_t reply);

/* --- handshake --- */

/* NBD_GREETING_SIZE bytes. */
void nbd_greeting_encode(uint8_t *p, uint16_t flags);
/* 0 and *flags; -EPROTONOSUPPORT for an oldstyle server, -EPROTO for anything else. */
int nbd_greeting_decode(const uint8_t *p, uint16_t *flags);

void nbd_option_encode(uint8_t *p, uint32_t option, uint32_t length);
int nbd_option_decode(const uint8_t *p, uint32_t *option, uint32_t *length); /* 0, -EPROTO */

struct nbd_option_reply {
    uint32_t option, type, length;
};
void nbd_option_reply_encode(uint8_t *p, uint32_t option, uint32_t type, uint32_t length);
int nbd_option_reply_decode(const uint8_t *p, struct nbd_option_reply *ret); /* 0, -EPROTO */

/* A string inside the bytes that were decoded; not terminated. */
struct nbd_text {
    const uint8_t *data;
    uint32_t len;
};
bool nbd_text_is(const struct nbd_text *t, const char *s);

/* The data of INFO and GO. */
struct nbd_info_request {
    struct nbd_text name;
    const uint8_t *types; /* count of 16 bits each */
    uint16_t count;
};
/* 0, or -EINVAL: lengths do not fit exactly, a name too long or with a NUL. */
int nbd_info_request_decode(const uint8_t *p, size_t len, struct nbd_info_request *ret);
static inline uint16_t nbd_info_request_type(const struct nbd_info_request *r, unsigned i)
{
    return nbd_get16(r->types + (size_t)2 * i);
}
/* The bytes it takes, written to p when p is not NULL. */
size_t nbd_info_request_encode(uint8_t *p, const char *name, const uint16_t *types, unsigned count);

/* The data of LIST_META_CONTEXT and SET_META_CONTEXT. */
struct nbd_meta_request {
    struct nbd_text name;
    uint32_t count;      /* queries */
    const uint8_t *next; /* of those not taken yet */
    size_t left;
    uint32_t taken;
};
/* 0, or -EINVAL. Checks all queries, so that nbd_meta_request_next() can't fail. */
int nbd_meta_request_decode(const uint8_t *p, size_t len, struct nbd_meta_request *ret);
bool nbd_meta_request_next(struct nbd_meta_request *r, struct nbd_text *query);
/* The bytes it takes, written to p when p is not NULL. */
size_t nbd_meta_request_encode(uint8_t *p, const char *name, const char *const *queries,
                               unsigned count);

/* The payload of an INFO reply. */
struct nbd_info {
    uint16_t type;
    uint64_t size;                                  /* EXPORT */
    uint16_t flags;                                 /* EXPORT: transmission flags */
    uint32_t block_min, block_preferred, block_max; /* BLOCK_SIZE */
    struct nbd_text text;                           /* NAME, DESCRIPTION */
};
/* 0 (unknown types too: only .type is set then), or -EPROTO: a length that is wrong. */
int nbd_info_decode(const uint8_t *p, size_t len, struct nbd_info *ret);
#define NBD_INFO_EXPORT_SIZE 12
#define NBD_INFO_BLOCK_SIZE_SIZE 14
void nbd_info_export_encode(uint8_t *p, uint64_t size, uint16_t flags);
void nbd_info_block_size_encode(uint8_t *p, uint32_t min, uint32_t preferred, uint32_t max);

/* The payload of a SERVER reply: 0 or -EPROTO. */
int nbd_server_reply_decode(const uint8_t *p, size_t len, struct nbd_text *name,
                            struct nbd_text *description);
/* The payload of a META_CONTEXT reply: 0 or -EPROTO. */
int nbd_context_reply_decode(const uint8_t *p, size_t len, uint32_t *id, struct nbd_text *name);

/* --- transmission --- */

struct nbd_request {
    uint16_t flags, command;
    uint64_t cookie, offset, length;
};
static inline size_t nbd_request_size(bool extended)
{
    return extended ? NBD_REQUEST_EXT_SIZE : NBD_REQUEST_SIZE;
}
/* Returns nbd_request_size(extended). Compact: length must fit in 32 bits. */
size_t nbd_request_encode(uint8_t *p, bool extended, const struct nbd_request *r);
int nbd_request_decode(const uint8_t *p, bool extended, struct nbd_request *ret); /* 0, -EPROTO */

enum nbd_reply_mode { NBD_MODE_SIMPLE, NBD_MODE_STRUCTURED, NBD_MODE_EXTENDED };

struct nbd_reply {
    bool simple;          /* else a chunk */
    uint32_t error;       /* simple */
    uint16_t flags, type; /* chunk */
    uint64_t cookie;
    uint64_t offset; /* extended: the request's */
    uint64_t length; /* chunk: bytes of payload */
};
void nbd_reply_simple_encode(uint8_t *p, uint32_t error, uint64_t cookie);
static inline size_t nbd_chunk_header_size(bool extended)
{
    return extended ? NBD_REPLY_EXT_SIZE : NBD_REPLY_STRUCTURED_SIZE;
}
/* simple is not looked at. Returns nbd_chunk_header_size(extended). */
size_t nbd_chunk_encode(uint8_t *p, bool extended, const struct nbd_reply *r);
/*
 * The header at p of which `have` bytes are there. Returns how many bytes it took, 0 when more are
 * needed, or -EPROTO for a magic that the mode does not allow. In structured mode simple replies
 * are decoded too; whether one may be there is for the caller to say.
 */
int nbd_reply_decode(const uint8_t *p, size_t have, enum nbd_reply_mode mode,
                     struct nbd_reply *ret);

/* Payload of OFFSET_HOLE: 0 or -EPROTO (length, size 0). */
int nbd_hole_decode(const uint8_t *p, size_t len, uint64_t *offset, uint32_t *size);

struct nbd_error_chunk {
    uint32_t error; /* as on the wire, never 0: 0 becomes NBD_EINVAL */
    struct nbd_text text;
    bool has_offset;
    uint64_t offset;
};
/* type: NBD_CHUNK_ERROR..., any other error type is read as ERROR with trailing bytes ignored. */
int nbd_error_chunk_decode(unsigned type, const uint8_t *p, size_t len,
                           struct nbd_error_chunk *ret);
/* Payload of ERROR (has_offset false) or ERROR_OFFSET; at most 14 + text.len bytes: their number.
 */
size_t nbd_error_chunk_encode(uint8_t *p, const struct nbd_error_chunk *c);

/* Payload of BLOCK_STATUS (extended false) or BLOCK_STATUS_EXT. */
struct nbd_status {
    uint32_t id;
    uint32_t count; /* of descriptors, >= 1 */
    const uint8_t *descriptors;
    bool extended;
};
int nbd_status_decode(const uint8_t *p, size_t len, bool extended, struct nbd_status *ret);
void nbd_status_get(const struct nbd_status *s, uint32_t i, uint64_t *length, uint64_t *flags);
static inline size_t nbd_status_header_size(bool extended)
{
    return extended ? 8 : 4;
}
static inline size_t nbd_status_descriptor_size(bool extended)
{
    return extended ? 16 : 8;
}
void nbd_status_put(uint8_t *p, bool extended, uint64_t length, uint64_t flags);

#endif
