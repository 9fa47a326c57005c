/*
 * What the files of `sum` share.
 */
#ifndef JOBS_SUM_PRIVATE_H
#define JOBS_SUM_PRIVATE_H

#include "channel/stream.h"
#include "jobs/crew.h"
#include "jobs/sum.h"
#include "jobs/sum_ring.h"

/* Bytes read and hashed in one go: they fit the L2 of any CPU, twice in most. */
#define PIECE_BYTES (256u << 10)
/* Where a kernel hashes many blocks side by side the piece grows for it, up to here. */
#define PIECE_WIDE_BYTES (2u << 20)

struct sum {
    struct digest *digest;
    uint32_t block;
    uint32_t piece;
    unsigned workers;   /* wanted, the calling one included */
    struct crew *alone; /* the calling worker, for what is small */
    struct crew *all;   /* once there is work for them */
    void (*advance)(void *arg, uint64_t bytes);
    void *arg;
    uint8_t zero[BLKHASH_DIGEST_MAX]; /* of a whole block of zeros */
};

/* One disk or stream. */
struct sum_run {
    struct sum *s;
    struct crew *crew;
    struct volume *v;                /* NULL: a stream */
    struct stream *stream;           /* NULL: a volume */
    const struct sum_leaves *leaves; /* or NULL */
    const char *name;
    void *first; /* the stream's first piece, already read */
    size_t first_bytes;
    uint64_t size; /* a stream's is known at its end */
    struct sum_ring ring;
};

/* For a crew; arg is the sum_run. Takes items and hashes them until there are no more. */
void sum_hash_fiber(void *arg);
/* The digests of a slot's bytes into it. data has room for a piece: what lies behind them may be
 * overwritten. */
int sum_hash_data(const struct sum *s, uint8_t *data, struct sum_slot *slot);
/* Put the disk's, or the stream's, items into the ring. 0, or -errno (after sum_ring_stop(): any).
 */
int sum_put_volume(struct sum_run *run, struct error *err);
int sum_put_changed(struct sum_run *run, struct error *err); /* what leaves->old can't tell */
int sum_put_stream(struct sum_run *run, struct error *err);

#endif
