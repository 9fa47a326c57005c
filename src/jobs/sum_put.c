/*
 * Where the items of `sum` come from: a disk's extents, asked for ahead of the hashing, or a stream
 * that is read into the ring's own buffers.
 */
#include "core/bufpool.h"
#include "jobs/sum_cut.h"
#include "jobs/sum_private.h"

#include <errno.h>
#include <string.h>

#define EXTENTS_AT_ONCE 256u

static int put_item(void *arg, const struct sum_item *item)
{
    struct sum_run *run = arg;
    struct sum_slot *slot;
    int r = sum_ring_space(&run->ring, &slot);
    if (r < 0) {
        return r;
    }
    slot->item = *item;
    slot->odd = false;
    slot->digests = item->zeros ? (uint32_t)(item->length / run->s->block) : 0;
    sum_ring_publish(&run->ring);
    return 0;
}

int sum_put_volume(struct sum_run *run, struct error *err)
{
    struct extent extents[EXTENTS_AT_ONCE];
    struct sum_cut cut;

    sum_cut_init(&cut, run->size, run->s->block, run->s->piece, put_item, run);
    while (volume_can(run->v, VOLUME_CAN_EXTENTS) && cut.known < run->size) {
        int n = volume_extents(run->v, cut.known, run->size - cut.known, extents, EXTENTS_AT_ONCE,
                               err);
        if (n <= 0) {
            error_at(err, cut.known);
            return n < 0 ? n : error_set(err, EIO, "no extents");
        }
        for (int i = 0; i < n; i++) {
            int r = sum_cut_extent(&cut, extents[i].length, extents[i].flags & EXTENT_ZERO);
            if (r < 0) {
                return r;
            }
        }
    }
    return sum_cut_end(&cut);
}

/* The next piece of the stream into a slot of its own buffer: its bytes, 0 at the end, -errno. */
static ssize_t fill_slot(struct sum_run *run, struct sum_slot *slot)
{
    if (!slot->data) {
        int r = bufpool_get(run->s->piece, &slot->data);
        if (r < 0) {
            return r;
        }
    }
    if (run->first) {
        memcpy(slot->data, run->first, run->first_bytes);
        run->first = NULL;
        return (ssize_t)run->first_bytes;
    }
    return stream_read(run->stream, slot->data, run->s->piece);
}

int sum_put_stream(struct sum_run *run, struct error *err)
{
    for (;;) {
        struct sum_slot *slot;
        int r = sum_ring_space(&run->ring, &slot);
        if (r < 0) {
            return r;
        }
        ssize_t n = fill_slot(run, slot);
        if (n < 0) {
            error_set(err, (int)-n, "read");
            error_at(err, run->size);
            return (int)n;
        }
        if (n == 0) {
            return 0;
        }
        slot->item = (struct sum_item){.offset = run->size, .length = (uint64_t)n};
        run->size += (uint64_t)n;
        sum_ring_publish(&run->ring);
        if ((size_t)n < run->s->piece) {
            return 0; /* stream_read() gives less only at the end */
        }
    }
}
