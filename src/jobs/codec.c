/*
 * The codecs of saved state. Each block becomes one complete frame (zstd, lz4) or member (gzip):
 * frames can be decoded in any order and by any number of threads.
 *
 * A compressor's context is made for each block: a zstd context of level 1 costs some
 * microseconds against a millisecond for a 1 MiB block.
 */
#include "jobs/codec.h"

#include "config.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <zlib.h>
#if HAVE_ZSTD
#include <zstd.h>
#endif
#if HAVE_LZ4
#include <lz4frame.h>
#endif

static void put_le32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

static uint32_t get_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---- skippable frames: zstd and lz4 share the magic numbers 0x184D2A50 to 5F ---- */

#if HAVE_ZSTD || HAVE_LZ4
#define SKIPPABLE_MAGIC 0x184D2A5Eu
#define SKIPPABLE_HEADER 8u

static size_t skippable_head(size_t payload_len, void *dst)
{
    uint8_t *p = dst;
    put_le32(p, SKIPPABLE_MAGIC);
    put_le32(p + 4, (uint32_t)payload_len);
    return SKIPPABLE_HEADER;
}

static size_t skippable_tail(void *dst)
{
    return 0;
}

static int64_t skippable_get(const void *src, size_t len, const void **payload, size_t *payload_len)
{
    const uint8_t *p = src;
    if (len < SKIPPABLE_HEADER || get_le32(p) != SKIPPABLE_MAGIC ||
        get_le32(p + 4) > len - SKIPPABLE_HEADER) {
        return -EBADMSG;
    }
    *payload = p + SKIPPABLE_HEADER;
    *payload_len = get_le32(p + 4);
    return (int64_t)(*payload_len + SKIPPABLE_HEADER);
}
#endif

/* ---- zstd ---- */

#if HAVE_ZSTD
static size_t zstd_bound(size_t plain)
{
    return ZSTD_compressBound(plain);
}

static int64_t zstd_compress(int level, const void *src, size_t len, void *dst, size_t room)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    if (!c) {
        return -ENOMEM;
    }
    ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    size_t n = ZSTD_compress2(c, dst, room, src, len);
    ZSTD_freeCCtx(c);
    return ZSTD_isError(n) ? -ENOBUFS : (int64_t)n;
}

static int64_t zstd_expand(const void *src, size_t len, void *dst, size_t room)
{
    size_t n = ZSTD_decompress(dst, room, src, len);
    return ZSTD_isError(n) ? -EBADMSG : (int64_t)n;
}
#endif

/* ---- lz4 ---- */

#if HAVE_LZ4
static LZ4F_preferences_t lz4_preferences(int level)
{
    LZ4F_preferences_t p = LZ4F_INIT_PREFERENCES;
    p.frameInfo.blockSizeID = LZ4F_max4MB;
    p.frameInfo.contentChecksumFlag = LZ4F_contentChecksumEnabled;
    p.compressionLevel = level;
    return p;
}

static size_t lz4_bound(size_t plain)
{
    LZ4F_preferences_t p = lz4_preferences(0);
    return LZ4F_compressFrameBound(plain, &p);
}

static int64_t lz4_compress(int level, const void *src, size_t len, void *dst, size_t room)
{
    LZ4F_preferences_t p = lz4_preferences(level);
    p.frameInfo.contentSize = len;
    size_t n = LZ4F_compressFrame(dst, room, src, len, &p);
    return LZ4F_isError(n) ? -ENOBUFS : (int64_t)n;
}

static int64_t lz4_expand(const void *src, size_t len, void *dst, size_t room)
{
    LZ4F_dctx *d = NULL;
    if (LZ4F_isError(LZ4F_createDecompressionContext(&d, LZ4F_VERSION))) {
        return -ENOMEM;
    }
    size_t in = 0, out = 0, hint = 1;
    while (hint != 0) {
        size_t n_out = room - out, n_in = len - in;
        hint = LZ4F_decompress(d, (char *)dst + out, &n_out, (const char *)src + in, &n_in, NULL);
        if (LZ4F_isError(hint) || (n_out == 0 && n_in == 0)) {
            break;
        }
        out += n_out;
        in += n_in;
    }
    LZ4F_freeDecompressionContext(d);
    return hint == 0 && in == len ? (int64_t)out : -EBADMSG;
}
#endif

/* ---- gzip ---- */

#define GZIP_WINDOW (15 + 16) /* zlib: gzip wrapper */
#define GZIP_HEADER 10u
#define GZIP_EXTRA 6u    /* XLEN, subfield id and length */
#define GZIP_TRAILER 10u /* an empty deflate block, CRC32, ISIZE */
#define GZIP_FEXTRA 4u

static size_t gzip_bound(size_t plain)
{
    return compressBound((uLong)plain) + 32;
}

static int64_t gzip_compress(int level, const void *src, size_t len, void *dst, size_t room)
{
    z_stream z = {0};
    if (deflateInit2(&z, level, Z_DEFLATED, GZIP_WINDOW, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
        return -ENOMEM;
    }
    z.next_in = (Bytef *)(uintptr_t)src;
    z.avail_in = (uInt)len;
    z.next_out = dst;
    z.avail_out = (uInt)room;
    int r = deflate(&z, Z_FINISH);
    int64_t n = (int64_t)z.total_out;
    deflateEnd(&z);
    return r == Z_STREAM_END ? n : -ENOBUFS;
}

static int64_t gzip_expand(const void *src, size_t len, void *dst, size_t room)
{
    z_stream z = {0};
    if (inflateInit2(&z, GZIP_WINDOW) != Z_OK) {
        return -ENOMEM;
    }
    z.next_in = (Bytef *)(uintptr_t)src;
    z.avail_in = (uInt)len;
    z.next_out = dst;
    z.avail_out = (uInt)room;
    int r = inflate(&z, Z_FINISH);
    int64_t n = (int64_t)z.total_out;
    bool whole = r == Z_STREAM_END && z.avail_in == 0;
    inflateEnd(&z);
    return whole ? n : -EBADMSG;
}

/* RFC 1952: ID1 ID2 CM FLG MTIME XFL OS, XLEN, SI1 SI2 LEN. */
static size_t gzip_note_head(size_t payload_len, void *dst)
{
    static const uint8_t head[GZIP_HEADER] = {0x1f, 0x8b, 8, GZIP_FEXTRA, 0, 0, 0, 0, 0, 255};
    uint8_t *p = dst;
    memcpy(p, head, sizeof(head));
    size_t xlen = payload_len + 4;
    p[10] = (uint8_t)xlen;
    p[11] = (uint8_t)(xlen >> 8);
    p[12] = 'P';
    p[13] = 'S';
    p[14] = (uint8_t)payload_len;
    p[15] = (uint8_t)(payload_len >> 8);
    return GZIP_HEADER + GZIP_EXTRA;
}

/* Nothing, compressed: an empty final block, its CRC and length. */
static size_t gzip_note_tail(void *dst)
{
    static const uint8_t tail[GZIP_TRAILER] = {3, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    memcpy(dst, tail, sizeof(tail));
    return sizeof(tail);
}

static int64_t gzip_get_note(const void *src, size_t len, const void **payload, size_t *payload_len)
{
    const uint8_t *p = src;
    if (len < GZIP_HEADER + GZIP_EXTRA + GZIP_TRAILER || p[0] != 0x1f || p[1] != 0x8b ||
        p[3] != GZIP_FEXTRA || p[12] != 'P' || p[13] != 'S') {
        return -EBADMSG;
    }
    size_t n = (size_t)p[14] | (size_t)p[15] << 8;
    size_t xlen = (size_t)p[10] | (size_t)p[11] << 8;
    if (xlen != n + 4 || n > len - (GZIP_HEADER + GZIP_EXTRA + GZIP_TRAILER)) {
        return -EBADMSG;
    }
    *payload = p + GZIP_HEADER + GZIP_EXTRA;
    *payload_len = n;
    return (int64_t)(GZIP_HEADER + GZIP_EXTRA + n + GZIP_TRAILER);
}

/* ---- the table ---- */

static const struct codec codecs[] = {
#if HAVE_ZSTD
    {"zstd", 1, 1, 1, 19, SKIPPABLE_HEADER, 1u << 30, zstd_bound, zstd_compress, zstd_expand,
     skippable_head, skippable_tail, skippable_get},
#endif
#if HAVE_LZ4
    {"lz4", 2, 0, 0, 12, SKIPPABLE_HEADER, 1u << 30, lz4_bound, lz4_compress, lz4_expand,
     skippable_head, skippable_tail, skippable_get},
#endif
    {"gzip", 3, 1, 1, 9, GZIP_HEADER + GZIP_EXTRA + GZIP_TRAILER, 65000, gzip_bound, gzip_compress,
     gzip_expand, gzip_note_head, gzip_note_tail, gzip_get_note},
};

#define CODECS (sizeof(codecs) / sizeof(codecs[0]))

const struct codec *codec_at(unsigned i)
{
    return i < CODECS ? &codecs[i] : NULL;
}

const struct codec *codec_by_name(const char *name)
{
    for (unsigned i = 0; i < CODECS; i++) {
        if (strcmp(codecs[i].name, name) == 0) {
            return &codecs[i];
        }
    }
    return NULL;
}

const struct codec *codec_by_id(uint8_t id)
{
    for (unsigned i = 0; i < CODECS; i++) {
        if (codecs[i].id == id) {
            return &codecs[i];
        }
    }
    return NULL;
}
