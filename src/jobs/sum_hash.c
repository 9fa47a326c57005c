/*
 * The fibers that hash (sum.h): an item's bytes into a buffer, their digests into the item's slot.
 *
 * A worker reads a piece of 256 KiB into one buffer that stays in its L2 cache, and hashes it
 * there. Runs of zeros, which memory speed finds, have a digest that is known.
 */
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/size.h"
#include "digest/zero.h"
#include "jobs/sum_private.h"

#include <string.h>

/* Pieces between two looks at the worker's other fibers (signals, progress, the one that puts). */
#define PIECES_A_TURN 4u

/* The whole blocks of an item: runs of zeros have a digest that is known. */
static int hash_whole(const struct sum *s, const uint8_t *data, size_t blocks, uint8_t *out)
{
    size_t length = digest_length(s->digest);
    while (blocks > 0) {
        bool zero;
        size_t run = zero_run(data, blocks * s->block, s->block, &zero) / s->block;
        for (size_t i = 0; zero && i < run; i++) {
            memcpy(out + i * length, s->zero, length);
        }
        int r = zero ? 0 : digest_blocks(s->digest, data, s->block, run, out);
        if (r < 0) {
            return r;
        }
        data += run * s->block;
        out += run * length;
        blocks -= run;
    }
    return 0;
}

int sum_hash_data(const struct sum *s, uint8_t *data, struct sum_slot *slot)
{
    size_t length = digest_length(s->digest);
    size_t whole = (size_t)(slot->item.length / s->block);
    size_t rest = (size_t)(slot->item.length % s->block);

    slot->digests = (uint32_t)(whole + (rest > 0));
    slot->odd = rest % 512 != 0;
    int r = hash_whole(s, data, whole, slot->digest);
    if (r < 0 || rest == 0) {
        return r;
    }
    data += whole * s->block;
    r = digest_one(s->digest, data, rest, slot->digest + whole * length);
    if (r == 0 && slot->odd) {
        size_t padded = (size_t)align_up(rest, 512);
        memset(data + rest, 0, padded - rest);
        r = digest_one(s->digest, data, padded, slot->sector);
    }
    return r;
}

static int read_and_hash(struct sum_run *run, struct sum_slot *slot, void **buf, struct error *err)
{
    struct sum *s = run->s;
    void *data = slot->data;
    if (slot->item.kind != SUM_DATA) {
        return 0;
    }
    if (!data) {
        int r = *buf ? 0 : bufpool_get(s->piece, buf);
        if (r < 0) {
            return error_set(err, -r, "no buffer");
        }
        data = *buf;
        r = volume_read(run->v, data, (size_t)slot->item.length, slot->item.offset, err);
        if (r < 0) {
            error_at(err, slot->item.offset);
            return r;
        }
    }
    int r = sum_hash_data(s, data, slot);
    return r < 0 ? error_set(err, -r, "the digest failed") : 0;
}

void sum_hash_fiber(void *arg)
{
    struct sum_run *run = arg;
    struct sum_slot *slot;
    struct error err = {};
    void *buf = NULL;
    unsigned pieces = 0;

    while ((slot = sum_ring_take(&run->ring))) {
        int r = read_and_hash(run, slot, &buf, &err);
        if (r < 0) {
            sum_ring_stop(&run->ring, r, &err);
            crew_stop(run->crew); /* those that wait for data as well */
            break;
        }
        sum_ring_finish(&run->ring, slot);
        if (++pieces % PIECES_A_TURN == 0) {
            fiber_yield();
        }
    }
    bufpool_put(buf, run->s->piece);
}
