/*
 * The queue of ranges: what the source says about itself, made into what there is to do.
 *
 * Extents are asked for by one fiber, a few hundred at a time and ahead of the requests. Neighbours
 * of one kind become one range. Zeros that the target already has never enter the queue, so that an
 * empty disk of any size is done in as many steps as it has extents. Where data and zeros meet
 * inside a block of either end, the block counts as data: nobody has to read, modify and write.
 *
 * For a checksum (--sum) the blocks are those of the checksum, and all zeros are in the queue, to
 * get their place in it; a last block of zeros that is short is a piece of its own.
 */
#include "core/size.h"
#include "jobs/copy_internal.h"

#include <errno.h>
#include <stdlib.h>

#define EXTENTS_ASKED 512u

void copy_count(struct copy *c, uint64_t bytes, bool zero)
{
    atomic_fetch_add_explicit(zero ? &c->zero : &c->data, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->progress->done, bytes, memory_order_relaxed);
}

static int push(struct copy *c, const struct copy_range *range)
{
    if (range->length == 0) {
        return 0;
    }
    if (range->zero && c->skip_zeros && !c->sum) {
        copy_count(c, range->length, true);
        return 0;
    }
    int r = 0;
    fmutex_lock(&c->mutex);
    while (r == 0 && !c->stopped && c->count == COPY_QUEUE_MAX) {
        r = fcond_wait(&c->emptied, &c->mutex, DEADLINE_NONE);
    }
    if (c->stopped) {
        r = -ECANCELED;
    }
    if (r == 0) {
        c->queue[(c->first + c->count++) % COPY_QUEUE_MAX] = *range;
        fcond_broadcast(&c->filled);
    }
    fmutex_unlock(&c->mutex);
    return r;
}

/* Adds what follows to the range that grows; pushes that when the kind changes. */
static int append(struct copy *c, struct copy_range *growing, uint64_t end, bool zero)
{
    uint64_t at = growing->offset + growing->length;
    if (end <= at) {
        return 0;
    }
    int r = 0;
    if (growing->length > 0 && growing->zero != zero) {
        r = push(c, growing);
        *growing = (struct copy_range){.offset = at};
    }
    growing->zero = zero;
    growing->length += end - at;
    return r;
}

/* One extent up to end; the zeros of it that are whole blocks are zeros. */
static int append_extent(struct copy *c, struct copy_range *growing, uint64_t start, uint64_t end,
                         bool zero)
{
    if (!zero) {
        return append(c, growing, end, false);
    }
    uint64_t first = min_u64(align_up(start, c->align), end);
    uint64_t last = end == c->size ? end : align_down(end, c->align);
    int r = append(c, growing, first, false);
    if (r == 0) {
        r = append(c, growing, last, true);
    }
    return r == 0 ? append(c, growing, end, false) : r;
}

static int scan(struct copy *c, struct extent *extents, struct error *err)
{
    struct volume *v = c->source.volume;
    struct copy_range growing = {0};
    int r = 0;
    for (uint64_t at = 0; r >= 0 && at < c->size;) {
        int n = volume_extents(v, at, c->size - at, extents, EXTENTS_ASKED, err);
        r = n < 0 ? n : 0;
        for (int i = 0; r == 0 && i < n; i++) {
            uint64_t end = at + min_u64(extents[i].length, c->size - at);
            r = append_extent(c, &growing, at, end, extents[i].flags & EXTENT_ZERO);
            at = end;
        }
    }
    return r == 0 ? push(c, &growing) : r;
}

void copy_scan(struct copy *c)
{
    struct error err = {0};
    struct extent *extents = malloc(EXTENTS_ASKED * sizeof(*extents));
    int r = extents ? scan(c, extents, &err) : -ENOMEM;
    free(extents);
    if (r < 0) {
        copy_fail(c, r, &err);
    }
    fmutex_lock(&c->mutex);
    c->ended = true;
    fcond_broadcast(&c->filled);
    fmutex_unlock(&c->mutex);
}

/* Cuts a piece off the first range. The mutex is held. */
static void cut(struct copy *c, struct copy_piece *ret)
{
    struct copy_range *range = &c->queue[c->first];
    /* on a grid, so that all but the first piece of a range start aligned */
    uint64_t most = range->zero ? c->zero_max
                                : c->request_size - (range->offset & (c->request_size - 1));
    if (c->sum && range->zero && range->length >= BLKHASH_BLOCK_DEFAULT) {
        most = align_down(min_u64(most, range->length), BLKHASH_BLOCK_DEFAULT);
    }
    *ret = (struct copy_piece){.offset = range->offset,
                               .length = min_u64(range->length, most),
                               .sequence = c->next_sequence++,
                               .zero = range->zero};
    range->offset += ret->length;
    range->length -= ret->length;
    if (range->length == 0) {
        c->first = (c->first + 1) % COPY_QUEUE_MAX;
        c->count--;
        fcond_signal(&c->emptied);
    }
}

int copy_take(struct copy *c, struct copy_piece *ret)
{
    int r = 0;
    fmutex_lock(&c->mutex);
    while (r == 0 && !c->stopped && c->count == 0 && !c->ended) {
        r = fcond_wait(&c->filled, &c->mutex, DEADLINE_NONE);
    }
    if (c->stopped) {
        r = -ECANCELED;
    }
    if (r == 0 && c->count > 0) {
        cut(c, ret);
        r = 1;
    }
    fmutex_unlock(&c->mutex);
    return r;
}
