/*
 * The layout of compressed saved state: what is written is read back, and nothing that is cut or
 * changed passes for whole.
 */
#include "jobs/frames.h"

#include "core/size.h"
#include "tap.h"

#include <errno.h>

static uint8_t plain[1 << 20];

static void fill(size_t len)
{
    uint32_t x = 1;
    for (size_t i = 0; i < len; i++) {
        x = x * 1664525 + 1013904223;
        plain[i] = i % 3 ? (uint8_t)(x >> 24) : 0;
    }
}

static void each_codec(void (*fn)(const struct codec *c))
{
    const struct codec *c;
    for (unsigned i = 0; (c = codec_at(i)); i++) {
        OK(codec_by_name(c->name) == c);
        OK(codec_by_id(c->id) == c);
        fn(c);
    }
}

static void block_survives(const struct codec *c)
{
    static uint8_t back[sizeof(plain)];
    const size_t lengths[] = {1, 2, 511, 4096, 65535, sizeof(plain)};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        size_t len = lengths[i], room = frames_room(c, len);
        uint8_t *packed = malloc(room);
        int64_t n = c->compress(c->level_default, plain, len, packed, room);
        OK(n > 0);
        size_t whole = frames_pad(c, packed, (size_t)n);
        OK(whole <= room);
        EQ(whole % FRAMES_ALIGN, 0);
        EQ(whole, frames_step((uint32_t)n, c));
        EQ(c->expand(packed, (size_t)n, back, len), len);
        OK(memcmp(plain, back, len) == 0);
        EQ(c->expand(packed, (size_t)n - 1, back, len), -EBADMSG);
        packed[n / 2] ^= 0x10;
        OK(c->expand(packed, (size_t)n, back, len) != (int64_t)len ||
           memcmp(plain, back, len) == 0);
        free(packed);
    }
}

static void blocks_survive(void)
{
    fill(sizeof(plain));
    each_codec(block_survives);
}

/* Every gap up to the next page, the ones too small for a note included. */
static void padding_of(const struct codec *c)
{
    static uint8_t buf[3 * FRAMES_ALIGN];
    for (size_t packed = 1; packed <= FRAMES_ALIGN; packed++) {
        size_t whole = frames_pad(c, buf, packed);
        EQ(whole % FRAMES_ALIGN, 0);
        if (whole > packed) {
            const void *payload = NULL;
            size_t n = 0;
            EQ(c->get_note(buf + packed, whole - packed, &payload, &n), whole - packed);
        }
    }
}

static void padding_is_a_note(void)
{
    each_codec(padding_of);
}

static void head_of(const struct codec *c)
{
    uint8_t head[FRAMES_ALIGN];
    uint32_t block_size = 0;
    frames_put_head(c, 1 << 20, head);
    OK(frames_get_head(head, 64, &block_size) == c);
    EQ(block_size, 1 << 20);
    for (size_t i = 0; i < c->note_overhead + 8 && i < 24; i++) {
        head[i] ^= 0xff;
        const struct codec *other = frames_get_head(head, 64, &block_size);
        OK(other == NULL || i < 16); /* bytes of gzip's header that mean nothing */
        head[i] ^= 0xff;
    }
    OK(frames_get_head(plain, 64, &block_size) == NULL);
}

static void heads_are_known(void)
{
    each_codec(head_of);
}

static void index_of(const struct codec *c)
{
    const uint64_t counts[] = {0, 1, 2, 8125, 8126, 20000};
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        uint64_t n = counts[k];
        struct frames_row *rows = calloc(n + 1, sizeof(*rows)),
                          *back = calloc(n + 1, sizeof(*rows));
        for (uint64_t i = 0; i < n; i++) {
            rows[i] = (struct frames_row){(uint32_t)(1 + i % 5000), 65536};
        }
        if (n) {
            rows[n - 1].plain = 17;
            rows[n - 1].packed = 3;
        }
        size_t len = frames_index_size(c, n);
        uint8_t *index = malloc(len + 1);
        frames_put_index(c, rows, n, index);
        EQ(frames_get_index(c, index, len, 65536, back, n), 0);
        OK(memcmp(rows, back, n * sizeof(*rows)) == 0);
        if (n) {
            EQ(frames_get_index(c, index, len - 1, 65536, back, n), -EBADMSG);
            EQ(frames_get_index(c, index, len, 65536, back, n - 1), -EBADMSG);
            OK(n == 1 || frames_get_index(c, index, len, 4096, back, n) == -EBADMSG);
        }
        free(index);
        free(rows);
        free(back);
    }
}

static void indexes_survive(void)
{
    each_codec(index_of);
}

static void tail_of(const struct codec *c)
{
    struct frames_tail t = {.blocks = 3,
                            .index_bytes = frames_index_size(c, 3),
                            .plain_length = 2 * 65536 + 1,
                            .block_size = 65536,
                            .digest_length = 32};
    memset(t.digest, 0x5a, 32);
    uint8_t buf[256];
    size_t len = frames_tail_size(c);
    frames_put_tail(c, &t, buf);
    struct frames_tail back;
    EQ(frames_get_tail(c, buf, len, &back), 0);
    OK(memcmp(&t, &back, sizeof(t)) == 0);
    EQ(frames_get_tail(c, buf, len - 1, &back), -EBADMSG);

    const uint64_t lies[] = {0, 1, 4, UINT64_MAX};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct frames_tail lie = t;
        lie.blocks = lies[i];
        frames_put_tail(c, &lie, buf);
        EQ(frames_get_tail(c, buf, len, &back), -EBADMSG);
        lie = t;
        lie.plain_length = UINT64_MAX - lies[i];
        frames_put_tail(c, &lie, buf);
        EQ(frames_get_tail(c, buf, len, &back), -EBADMSG);
    }
}

static void tails_are_checked(void)
{
    each_codec(tail_of);
}

int main(void)
{
    RUN(blocks_survive);
    RUN(padding_is_a_note);
    RUN(heads_are_known);
    RUN(indexes_survive);
    RUN(tails_are_checked);
    return tap_done();
}
