/*
 * Where the items of `sum` come from: a disk's extents, asked for ahead of the hashing, or a stream
 * that is read into the ring's own buffers.
 */
#include "core/bufpool.h"
#include "core/size.h"
#include "jobs/sum_cut.h"
#include "jobs/sum_private.h"

#include <errno.h>
#include <stdlib.h>
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
    slot->digests = (uint32_t)(item->length /
                               run->s->block); /* of data: set again when it is hashed */
    sum_ring_publish(&run->ring);
    return 0;
}

/* What lies between the cut's position and end, which is block-aligned or the disk's. */
static int put_range(struct sum_run *run, struct sum_cut *cut, uint64_t end, struct error *err)
{
    struct extent extents[EXTENTS_AT_ONCE];

    cut->size = end;
    while (volume_can(run->v, VOLUME_CAN_EXTENTS) && cut->known < end) {
        int n = volume_extents(run->v, cut->known, end - cut->known, extents, EXTENTS_AT_ONCE, err);
        if (n <= 0) {
            error_at(err, cut->known);
            return n < 0 ? n : error_set(err, EIO, "no extents");
        }
        for (int i = 0; i < n; i++) {
            int r = sum_cut_extent(cut, extents[i].length, extents[i].flags & EXTENT_ZERO);
            if (r < 0) {
                return r;
            }
        }
    }
    return sum_cut_end(cut);
}

int sum_put_volume(struct sum_run *run, struct error *err)
{
    struct sum_cut cut;

    sum_cut_init(&cut, run->size, run->s->block, run->s->piece, put_item, run);
    return put_range(run, &cut, run->size, err);
}

static int compare_ranges(const void *a, const void *b)
{
    const struct sum_range *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The ranges to hash in order, of whole blocks within the disk: those that were said to be changed,
 * and what the old leaves can't have: a disk that has grown or shrunk from there on, and the short
 * block at the end (its padded digest is in no leaf). */
static size_t ranges_to_hash(const struct sum_run *run, struct sum_range *out)
{
    const struct sum_leaves *l = run->leaves;
    uint64_t size = run->size, block = run->s->block;
    uint64_t old = leaves_header_of(l->old)->size;
    size_t n = 0;

    for (size_t i = 0; i < l->count; i++) {
        uint64_t offset = min_u64(l->changed[i].offset, size);
        uint64_t end = offset + min_u64(l->changed[i].length, size - offset);
        if (end > offset) {
            out[n++] = (struct sum_range){.offset = offset, .length = end - offset};
        }
    }
    uint64_t sure = old == size ? size : min_u64(old, size);
    sure = align_down(sure, block);
    if (sure < size) {
        out[n++] = (struct sum_range){.offset = sure, .length = size - sure};
    }
    qsort(out, n, sizeof(*out), compare_ranges);
    return n;
}

int sum_put_changed(struct sum_run *run, struct error *err)
{
    struct sum_range *ranges = calloc(run->leaves->count + 1, sizeof(*ranges));
    struct sum_cut cut;
    uint64_t block = run->s->block;
    int r = 0;

    if (!ranges) {
        return error_set(err, ENOMEM, "no memory");
    }
    size_t n = ranges_to_hash(run, ranges);
    sum_cut_init(&cut, run->size, run->s->block, run->s->piece, put_item, run);
    for (size_t i = 0; i < n && r == 0; i++) {
        uint64_t begin = max_u64(align_down(ranges[i].offset, block), cut.emitted);
        uint64_t end = ranges[i].offset + ranges[i].length;
        end = min_u64(align_up(end, block), run->size); /* < 2^63: no overflow */
        if (begin < end) {
            r = sum_cut_known(&cut, begin);
            r = r < 0 ? r : put_range(run, &cut, end, err);
        }
    }
    if (r == 0 && cut.emitted < run->size) {
        r = sum_cut_known(&cut, run->size); /* a multiple of the block size, or it were a range */
    }
    free(ranges);
    return r;
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
