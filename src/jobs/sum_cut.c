/*
 * See sum_cut.h. Extents begin and end anywhere, blocks do not: a block is zeros only if all of
 * it lies in extents of zeros, neighbours taken together, and the short block at the end never
 * (it is hashed at its own length, as data). All other blocks are data, whose zeros read as such.
 *
 *     extents  |---data---|----------zeros----------|--data--|
 *     blocks   |......|......|......|......|......|......|......|
 *     items    |    data     |       zeros        |    data     |
 */
#include "jobs/sum_cut.h"

#include "core/size.h"

void sum_cut_init(struct sum_cut *c, uint64_t size, uint32_t block, uint32_t piece,
                  int (*emit)(void *arg, const struct sum_item *item), void *arg)
{
    *c = (struct sum_cut){.size = size, .block = block, .piece = piece, .emit = emit, .arg = arg};
}

/* Pieces end at multiples of their size, so that reads are aligned as well as they can be. */
static int emit_data(struct sum_cut *c, uint64_t end)
{
    while (c->emitted < end) {
        uint64_t room = c->piece - (c->emitted & (c->piece - 1));
        struct sum_item item = {.offset = c->emitted, .length = min_u64(room, end - c->emitted)};
        int r = c->emit(c->arg, &item);
        if (r < 0) {
            return r;
        }
        c->emitted += item.length;
    }
    return 0;
}

static int emit_run(struct sum_cut *c, uint64_t end, enum sum_kind kind)
{
    while (c->emitted < end) {
        uint64_t most = (uint64_t)SUM_CUT_RUN_MAX * c->block;
        struct sum_item item = {
            .offset = c->emitted, .length = min_u64(most, end - c->emitted), .kind = kind};
        int r = c->emit(c->arg, &item);
        if (r < 0) {
            return r;
        }
        c->emitted += item.length;
    }
    return 0;
}

void sum_cut_begin(struct sum_cut *c, uint64_t offset)
{
    c->known = offset;
    c->emitted = offset;
    c->zero_since = offset;
}

int sum_cut_known(struct sum_cut *c, uint64_t end)
{
    int r = emit_run(c, end, SUM_KNOWN);
    sum_cut_begin(c, c->emitted);
    return r;
}

int sum_cut_extent(struct sum_cut *c, uint64_t length, bool zeros)
{
    c->known += min_u64(length, c->size - c->known);
    if (!zeros) {
        c->zero_since = c->known;
        return emit_data(c, align_down(c->known, c->block));
    }
    uint64_t end = align_down(c->known, c->block);
    uint64_t since = max_u64(c->zero_since, c->emitted);
    /* since <= known < 2^63, so rounding up does not overflow */
    uint64_t begin = align_up(since, c->block);
    if (begin >= end) {
        return 0;
    }
    int r = emit_data(c, begin);
    return r < 0 ? r : emit_run(c, end, SUM_ZEROS);
}

int sum_cut_end(struct sum_cut *c)
{
    return emit_data(c, c->size);
}
