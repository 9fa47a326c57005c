/*
 * See sum_ring.h.
 *
 * An item's number is its place in the disk's order and, modulo the ring's size, its slot. Two
 * counting semaphores stand for free slots and for items that wait to be taken; a taker that got
 * one of the latter draws its number from a counter, so that takers never meet. The lock is taken
 * once for each item (256 KiB) to say that it is done.
 *
 * Free slots are given back and taken in batches of a quarter of the ring: who puts items sleeps
 * and wakes once for a batch, not once for each.
 */
#include "jobs/sum_ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of known digests that are read at once. */
#define KNOWN_BYTES (64u << 10)
/* More than is ever in a semaphore: slots, and a unit for each taker and waiter at the end. */
#define SEM_TOTAL (1u << 30)

static void sem_init_at(struct fsem *s, uint64_t value)
{
    fsem_init(s, SEM_TOTAL);
    /* It is new: what is taken is there. */
    bool taken = fsem_try_take(s, SEM_TOTAL - value);
    (void)taken;
}

int sum_ring_init(struct sum_ring *r, const struct digest *d, uint32_t block, uint32_t piece,
                  unsigned slots, unsigned takers)
{
    size_t each = ((size_t)piece / block + 1) * digest_length(d);

    memset(r, 0, sizeof(*r));
    r->slots = calloc(slots, sizeof(*r->slots));
    r->digests = malloc(each * slots + 1);
    int rc = r->slots && r->digests ? blkhash_outer_new(d, block, &r->outer) : -ENOMEM;
    if (rc < 0) {
        free(r->slots);
        free(r->digests);
        return rc;
    }
    for (unsigned i = 0; i < slots; i++) {
        r->slots[i].digest = r->digests + i * each;
    }
    r->digest = d;
    r->block = block;
    r->count = slots;
    r->takers = takers;
    r->batch = slots >= 4 ? slots / 4 : 1;
    atomic_init(&r->ending, UINT64_MAX);
    sem_init_at(&r->space, slots);
    sem_init_at(&r->work, 0);
    pthread_mutex_init(&r->lock, NULL);
    return 0;
}

void sum_ring_done(struct sum_ring *r)
{
    fsem_done(&r->space);
    fsem_done(&r->work);
    pthread_mutex_destroy(&r->lock);
    blkhash_outer_free(r->outer);
    blkhash_outer_free(r->padded);
    free(r->known);
    free(r->digests);
    free(r->slots);
}

int sum_ring_space(struct sum_ring *r, struct sum_slot **ret)
{
    if (r->credit == 0) {
        int rc = fsem_take(&r->space, r->batch);
        if (rc < 0) {
            return rc;
        }
        r->credit = r->batch;
    }
    if (atomic_load(&r->stopped)) {
        return -ECANCELED;
    }
    *ret = &r->slots[r->put % r->count];
    return 0;
}

void sum_ring_publish(struct sum_ring *r)
{
    r->credit--;
    r->put++;
    fsem_give(&r->work, 1); /* its lock makes the slot's contents visible to the taker */
}

void sum_ring_end(struct sum_ring *r)
{
    atomic_store(&r->ending, r->put);
    fsem_give(&r->work, r->takers);
}

struct sum_slot *sum_ring_take(struct sum_ring *r)
{
    if (fsem_take(&r->work, 1) < 0 || atomic_load(&r->stopped)) {
        return NULL;
    }
    /* A unit was there, so item `ticket` has been put, unless the unit was one of those that
     * sum_ring_end() gave; it set ending before. */
    uint64_t ticket = atomic_fetch_add(&r->taken, 1);
    if (ticket >= atomic_load(&r->ending)) {
        return NULL;
    }
    return &r->slots[ticket % r->count];
}

static int feed_odd(struct sum_ring *r, const struct sum_slot *slot)
{
    const uint8_t *last = slot->digest + (slot->digests - 1) * digest_length(r->digest);
    int rc = blkhash_outer_copy(r->outer, &r->padded);
    if (rc == 0) {
        rc = blkhash_outer_digests(r->padded, slot->sector, 1);
    }
    return rc < 0 ? rc : blkhash_outer_digests(r->outer, last, 1);
}

static int feed_data(struct sum_ring *r, const struct sum_slot *slot, struct error *err)
{
    int rc = blkhash_outer_digests(r->outer, slot->digest, slot->digests - (slot->odd ? 1 : 0));
    if (rc == 0 && slot->odd) {
        rc = feed_odd(r, slot);
    }
    return rc < 0 || !r->keep ? rc : leaves_append(r->keep, slot->digest, slot->digests, err);
}

static int feed_zeros(struct sum_ring *r, const struct sum_slot *slot, struct error *err)
{
    int rc = blkhash_outer_zeros(r->outer, slot->digests);
    if (rc < 0 || !r->keep) {
        return rc;
    }
    return leaves_append_repeat(r->keep, blkhash_zero_digest(r->outer), slot->digests, err);
}

static int feed_known(struct sum_ring *r, const struct sum_slot *slot, struct error *err)
{
    uint64_t at = slot->item.offset / r->block, end = at + slot->digests;
    uint64_t most = KNOWN_BYTES / digest_length(r->digest);
    int rc = r->known || (r->known = malloc(KNOWN_BYTES)) ? 0 : -ENOMEM;
    while (rc == 0 && at < end) {
        uint64_t n = most < end - at ? most : end - at;
        rc = leaves_read(r->old, at, n, r->known, err);
        if (rc == 0) {
            rc = blkhash_outer_digests(r->outer, r->known, (size_t)n);
        }
        if (rc == 0 && r->keep) {
            rc = leaves_append(r->keep, r->known, n, err);
        }
        at += n;
    }
    return rc;
}

static int feed(struct sum_ring *r, const struct sum_slot *slot, struct error *err)
{
    switch (slot->item.kind) {
    case SUM_ZEROS:
        return feed_zeros(r, slot, err);
    case SUM_KNOWN:
        return feed_known(r, slot, err);
    case SUM_DATA:
        break;
    }
    return feed_data(r, slot, err);
}

/* Called with the lock held and `feeding` ours. Feeds the oldest item without the lock, and gives
 * back what slots are free by now once they are worth somebody's waking up. */
static void feed_oldest(struct sum_ring *r, struct sum_slot *slot, unsigned *freed)
{
    pthread_mutex_unlock(&r->lock);
    if (*freed >= r->batch) {
        fsem_give(&r->space, *freed);
        *freed = 0;
    }
    struct error err = {};
    int rc = feed(r, slot, &err);
    if (rc == 0 && r->advance) {
        r->advance(r->arg, slot->item.length);
    }
    pthread_mutex_lock(&r->lock);
    slot->done = false;
    r->fed++;
    r->zeros += slot->item.kind == SUM_ZEROS ? slot->item.length : 0;
    ++*freed;
    if (rc < 0 && r->failed == 0) {
        r->failed = rc;
        error_set(&err, -rc, "the digest failed");
        r->error = err;
    }
}

void sum_ring_finish(struct sum_ring *r, struct sum_slot *slot)
{
    unsigned freed = 0;

    pthread_mutex_lock(&r->lock);
    slot->done = true;
    if (!r->feeding) {
        r->feeding = true;
        struct sum_slot *oldest = &r->slots[r->fed % r->count];
        while (oldest->done && r->failed == 0) {
            feed_oldest(r, oldest, &freed);
            oldest = &r->slots[r->fed % r->count];
        }
        r->feeding = false;
    }
    int failed = r->failed;
    pthread_mutex_unlock(&r->lock);
    if (freed > 0) {
        fsem_give(&r->space, freed);
    }
    if (failed < 0) {
        sum_ring_stop(r, failed, NULL);
    }
}

void sum_ring_stop(struct sum_ring *r, int code, const struct error *e)
{
    pthread_mutex_lock(&r->lock);
    if (r->failed == 0) {
        r->failed = code;
        if (e) {
            r->error = *e;
        }
    }
    pthread_mutex_unlock(&r->lock);
    if (!atomic_exchange(&r->stopped, true)) {
        fsem_give(&r->work, r->takers);
        fsem_give(&r->space, r->count);
    }
}

bool sum_ring_complete(struct sum_ring *r)
{
    pthread_mutex_lock(&r->lock);
    bool complete = r->failed == 0 && r->fed == atomic_load(&r->ending);
    pthread_mutex_unlock(&r->lock);
    return complete;
}
