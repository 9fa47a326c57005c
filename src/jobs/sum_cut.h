/*
 * A disk's extents cut into what `sum` works on: runs of whole blocks that are zeros, and pieces
 * of the rest. Pure: extents in, items out.
 */
#ifndef JOBS_SUM_CUT_H
#define JOBS_SUM_CUT_H

#include <stdbool.h>
#include <stdint.h>

/* Zero (or known) blocks in one item: some milliseconds of the outer hash, so that it can be
 * canceled and its progress seen. */
#define SUM_CUT_RUN_MAX 65536u

enum sum_kind {
    SUM_DATA,
    SUM_ZEROS, /* whole blocks that need not be read */
    SUM_KNOWN, /* whole blocks whose digests are there from before */
};

struct sum_item {
    uint64_t offset;
    uint64_t length; /* > 0; a multiple of the block size but for SUM_DATA */
    enum sum_kind kind;
};

struct sum_cut {
    uint64_t size;
    uint32_t block; /* bytes, a power of two */
    uint32_t piece; /* the most data in an item: a power of two, >= block */
    /* 0 or -errno, which ends the cutting and is returned. */
    int (*emit)(void *arg, const struct sum_item *item);
    void *arg;
    /* its own */
    uint64_t known;      /* extents are known up to here */
    uint64_t emitted;    /* everything before is in items; block-aligned until the end */
    uint64_t zero_since; /* the run of zeros that ends at known began here */
};

void sum_cut_init(struct sum_cut *c, uint64_t size, uint32_t block, uint32_t piece,
                  int (*emit)(void *arg, const struct sum_item *item), void *arg);
/* Begins at offset, a multiple of the block size, instead of 0. Before the first extent. */
void sum_cut_begin(struct sum_cut *c, uint64_t offset);
/* Blocks up to end (a multiple of the block size) have known digests. At such a begin only. */
int sum_cut_known(struct sum_cut *c, uint64_t end);
/* The next extent, length > 0; what reaches beyond the size is cut off. */
int sum_cut_extent(struct sum_cut *c, uint64_t length, bool zeros);
/* What is left, known or not, as data. */
int sum_cut_end(struct sum_cut *c);

#endif
