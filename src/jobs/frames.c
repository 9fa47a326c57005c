/*
 * Reading and writing the notes around compressed blocks (frames.h has the layout).
 */
#include "jobs/frames.h"

#include "core/size.h"

#include <errno.h>
#include <string.h>

static const char HEAD_MAGIC[8] = "PNSTKSV1";
static const char TAIL_MAGIC[8] = "PNSTKIX1";
#define VERSION 1u
#define HEAD_PAYLOAD 16u
#define ROW_BYTES 8u

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get64(const uint8_t *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static size_t put_note(const struct codec *c, const void *payload, size_t len, uint8_t *dst)
{
    size_t n = c->note_head(len, dst);
    memcpy(dst + n, payload, len);
    return n + len + c->note_tail(dst + n + len);
}

/* ---- head ---- */

void frames_put_head(const struct codec *c, uint32_t block_size, void *dst)
{
    uint8_t payload[HEAD_PAYLOAD] = {0};
    memcpy(payload, HEAD_MAGIC, sizeof(HEAD_MAGIC));
    payload[8] = VERSION;
    payload[9] = c->id;
    put32(payload + 12, block_size);
    size_t n = put_note(c, payload, sizeof(payload), dst);
    frames_pad(c, dst, n);
}

const struct codec *frames_get_head(const void *src, size_t len, uint32_t *block_size)
{
    const struct codec *c;
    for (unsigned i = 0; (c = codec_at(i)); i++) {
        const void *payload = NULL;
        size_t n = 0;
        if (c->get_note(src, len, &payload, &n) < 0 || n != HEAD_PAYLOAD) {
            continue;
        }
        const uint8_t *p = payload;
        uint32_t size = get32(p + 12);
        if (memcmp(p, HEAD_MAGIC, sizeof(HEAD_MAGIC)) == 0 && p[8] == VERSION && p[9] == c->id &&
            size >= FRAMES_ALIGN && size <= FRAMES_BLOCK_MAX) {
            *block_size = size;
            return c;
        }
    }
    return NULL;
}

bool frames_is_claimed(const void *src, size_t len)
{
    const struct codec *c;
    for (unsigned i = 0; (c = codec_at(i)); i++) {
        uint8_t head[64];
        size_t n = c->note_head(HEAD_PAYLOAD, head);
        memcpy(head + n, HEAD_MAGIC, sizeof(HEAD_MAGIC));
        /* Half of the magic tells it from another file of the same compression. */
        if (len >= n + sizeof(HEAD_MAGIC) / 2 &&
            memcmp(src, head, min_u64(len, n + sizeof(HEAD_MAGIC))) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- blocks ---- */

size_t frames_room(const struct codec *c, size_t plain)
{
    return (size_t)align_up(c->bound(plain) + c->note_overhead, FRAMES_ALIGN) + FRAMES_ALIGN;
}

uint64_t frames_step(uint32_t packed, const struct codec *c)
{
    uint64_t end = align_up(packed, FRAMES_ALIGN);
    uint64_t gap = end - packed;
    /* A note has a least size: where the gap can't hold one, it runs over the next page. */
    return gap == 0 || gap >= c->note_overhead ? end : end + FRAMES_ALIGN;
}

size_t frames_pad(const struct codec *c, void *dst, size_t packed)
{
    size_t end = (size_t)frames_step((uint32_t)packed, c);
    if (end > packed) {
        uint8_t *p = (uint8_t *)dst + packed;
        size_t len = end - packed - c->note_overhead;
        p += c->note_head(len, p);
        memset(p, 0, len);
        c->note_tail(p + len);
    }
    return end;
}

/* ---- index ---- */

static uint64_t rows_a_note(const struct codec *c)
{
    return c->note_max / ROW_BYTES;
}

size_t frames_index_size(const struct codec *c, uint64_t n)
{
    uint64_t notes = (n + rows_a_note(c) - 1) / rows_a_note(c);
    return (size_t)(n * ROW_BYTES + notes * c->note_overhead);
}

void frames_put_index(const struct codec *c, const struct frames_row *rows, uint64_t n, void *dst)
{
    uint8_t *out = dst;
    while (n > 0) {
        uint64_t now = min_u64(n, rows_a_note(c));
        out += c->note_head((size_t)(now * ROW_BYTES), out);
        for (uint64_t i = 0; i < now; i++) {
            put32(out, rows[i].packed);
            put32(out + 4, rows[i].plain);
            out += ROW_BYTES;
        }
        out += c->note_tail(out);
        rows += now;
        n -= now;
    }
}

/* Only the last block may be short, and no frame is larger than its worst case. */
static bool row_is_sound(const struct codec *c, const struct frames_row *row, uint32_t block_size,
                         bool last)
{
    bool plain_ok = last ? row->plain > 0 && row->plain <= block_size : row->plain == block_size;
    return plain_ok && row->packed > 0 && row->packed <= c->bound(row->plain);
}

int frames_get_index(const struct codec *c, const void *src, size_t len, uint32_t block_size,
                     struct frames_row *rows, uint64_t n)
{
    const uint8_t *in = src;
    uint64_t got = 0;
    while (len > 0) {
        const void *payload = NULL;
        size_t payload_len = 0;
        int64_t whole = c->get_note(in, len, &payload, &payload_len);
        if (whole < 0 || payload_len % ROW_BYTES || payload_len / ROW_BYTES > n - got) {
            return -EBADMSG;
        }
        const uint8_t *p = payload;
        for (size_t i = 0; i < payload_len / ROW_BYTES; i++, got++, p += ROW_BYTES) {
            rows[got] = (struct frames_row){get32(p), get32(p + 4)};
            if (!row_is_sound(c, &rows[got], block_size, got + 1 == n)) {
                return -EBADMSG;
            }
        }
        in += whole;
        len -= (size_t)whole;
    }
    return got == n ? 0 : -EBADMSG;
}

/* ---- tail ---- */

size_t frames_tail_size(const struct codec *c)
{
    return FRAMES_TAIL_PAYLOAD + c->note_overhead;
}

void frames_put_tail(const struct codec *c, const struct frames_tail *t, void *dst)
{
    uint8_t p[FRAMES_TAIL_PAYLOAD] = {0};
    memcpy(p, TAIL_MAGIC, sizeof(TAIL_MAGIC));
    put64(p + 8, t->blocks);
    put64(p + 16, t->index_bytes);
    put64(p + 24, t->plain_length);
    put32(p + 32, t->block_size);
    p[36] = t->digest_length;
    memcpy(p + 40, t->digest, t->digest_length);
    put_note(c, p, sizeof(p), dst);
}

int frames_get_tail(const struct codec *c, const void *src, size_t len, struct frames_tail *t)
{
    const void *payload = NULL;
    size_t n = 0;
    if (c->get_note(src, len, &payload, &n) != (int64_t)len || n != FRAMES_TAIL_PAYLOAD) {
        return -EBADMSG;
    }
    const uint8_t *p = payload;
    *t = (struct frames_tail){
        .blocks = get64(p + 8),
        .index_bytes = get64(p + 16),
        .plain_length = get64(p + 24),
        .block_size = get32(p + 32),
        .digest_length = p[36],
    };
    uint64_t blocks = t->block_size
                          ? t->plain_length / t->block_size + (t->plain_length % t->block_size != 0)
                          : 0;
    if (memcmp(p, TAIL_MAGIC, sizeof(TAIL_MAGIC)) != 0 || t->digest_length > FRAMES_DIGEST_MAX ||
        t->block_size < FRAMES_ALIGN || t->block_size > FRAMES_BLOCK_MAX || t->blocks != blocks ||
        blocks > FRAMES_BLOCKS_MAX || t->index_bytes != frames_index_size(c, blocks)) {
        return -EBADMSG;
    }
    memcpy(t->digest, p + 40, t->digest_length);
    return 0;
}
