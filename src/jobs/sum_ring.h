/*
 * The order of things in `sum`: items are put in in the disk's order, taken by whoever is free,
 * finished in any order, and their digests reach the outer hash in the disk's order again.
 *
 * One fiber puts; any number of fibers on any workers take and finish. Who finishes the oldest
 * item feeds the outer hash with it and with all that is finished behind it, while the others go
 * on. Nobody spins, and nothing grows: a full ring stops the one who puts.
 */
#ifndef JOBS_SUM_RING_H
#define JOBS_SUM_RING_H

#include "core/error.h"
#include "core/fsync.h"
#include "digest/blkhash.h"
#include "jobs/leaves.h"
#include "jobs/sum_cut.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct sum_slot {
    struct sum_item item;
    uint32_t digests;                   /* how many: whole blocks, and the short one */
    uint8_t *digest;                    /* they lie here; room for a piece's blocks and one more */
    bool odd;                           /* the last block's length is no multiple of 512 */
    uint8_t sector[BLKHASH_DIGEST_MAX]; /* odd: of that block padded with zeros to one */
    void *data;                         /* streams: the item's bytes; else NULL */
    bool done;                          /* under the ring's lock */
};

struct sum_ring {
    const struct digest *digest;
    struct sum_slot *slots;
    unsigned count, takers, batch;
    uint8_t *digests;
    struct blkhash_outer *outer;
    struct blkhash_outer *padded; /* the outer hash of a last block padded to 512 bytes, or NULL */
    void (*advance)(void *arg, uint64_t bytes);
    void *arg;
    uint32_t block;
    struct leaves *old;         /* where items of SUM_KNOWN have their digests; not owned */
    struct leaves_writer *keep; /* gets all digests, or NULL; not owned */
    uint8_t *known;             /* room for some kilobytes of old digests, once there are any */

    uint64_t put;            /* items put in; its one fiber's */
    unsigned credit;         /* free slots that this fiber has taken from space, and not used */
    _Atomic uint64_t taken;  /* tickets given out */
    _Atomic uint64_t ending; /* items there will be; UINT64_MAX until that is known */
    _Atomic bool stopped;
    struct fsem space; /* free slots */
    struct fsem work;  /* items put and not taken */

    pthread_mutex_t lock; /* guards what follows, for a few instructions; never across a wait */
    uint64_t fed;         /* items the outer hash has seen */
    bool feeding;         /* somebody is at it */
    uint64_t zeros;       /* bytes of these that were items of zeros */
    int failed;           /* -errno, the first failure */
    struct error error;
};

/* slots: at least one. takers: how many fibers call sum_ring_take(). 0 or -errno. */
int sum_ring_init(struct sum_ring *r, const struct digest *d, uint32_t block, uint32_t piece,
                  unsigned slots, unsigned takers);
void sum_ring_done(struct sum_ring *r);

/* The slot for the next item, to be filled in and then published. Waits while the ring is full.
 * 0, -ECANCELED (also after sum_ring_stop()). */
int sum_ring_space(struct sum_ring *r, struct sum_slot **ret);
void sum_ring_publish(struct sum_ring *r);
/* No more comes. */
void sum_ring_end(struct sum_ring *r);

/* The oldest item that nobody has; NULL when there is none any more (or it was stopped, or the
 * fiber was canceled). */
struct sum_slot *sum_ring_take(struct sum_ring *r);
/* Its digests are there (an item of zeros needs none). */
void sum_ring_finish(struct sum_ring *r, struct sum_slot *slot);

/* Something failed: nobody waits any longer, take and space give nothing. The first error counts;
 * e may be NULL (canceled). */
void sum_ring_stop(struct sum_ring *r, int code, const struct error *e);
/* Whether all that was announced by sum_ring_end() has been fed. */
bool sum_ring_complete(struct sum_ring *r);

#endif
