/*
 * See sum_pass.h.
 *
 * The ring of `sum` (sum_ring.h) without its crew: who announces a piece takes it at once, so the
 * ring only keeps the order and the bound. Zero slots cost nothing but the outer hash.
 */
#include "jobs/sum_pass.h"

#include "core/size.h"
#include "jobs/sum_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Pieces in the ring: those in flight, and as many that are hashed and wait for an older one. The
 * most is what bounds memory where requests are large; more in flight than that gain nothing. */
#define SLOTS_LEAST 16u
#define SLOTS_MOST 1024u
#define DIGESTS_MOST (16u << 20) /* bytes */

struct sum_pass {
    struct sum *sum;
    struct sum_ring ring;
};

int sum_pass_new(const char *digest, uint32_t piece, unsigned in_flight, struct sum_pass **ret,
                 struct error *err)
{
    struct sum_options o = {.digest = digest, .block_size = BLKHASH_BLOCK_DEFAULT, .workers = 1};
    struct sum_pass *p = calloc(1, sizeof(*p));
    if (!p) {
        return error_set(err, ENOMEM, "no memory for a checksum");
    }
    int r = sum_new(&o, &p->sum, err);
    if (r == 0) {
        uint64_t each = (uint64_t)(piece / o.block_size + 1) * BLKHASH_DIGEST_MAX;
        uint64_t slots = min_u64(2ull * in_flight, min_u64(SLOTS_MOST, DIGESTS_MOST / each));
        r = sum_ring_init(&p->ring, p->sum->digest, o.block_size, piece,
                          (unsigned)max_u64(SLOTS_LEAST, slots), 1);
        if (r < 0) {
            error_set(err, -r, "no memory for a checksum");
        }
    }
    if (r < 0) {
        sum_free(p->sum);
        free(p);
        return r;
    }
    *ret = p;
    return 0;
}

void sum_pass_free(struct sum_pass *p)
{
    if (p) {
        sum_ring_done(&p->ring);
        sum_free(p->sum);
        free(p);
    }
}

const struct digest *sum_pass_digest(const struct sum_pass *p)
{
    return sum_digest(p->sum);
}

/* What the ring says is wrong with it; or, when it is nothing, that somebody canceled us. */
static int failure(struct sum_pass *p, struct error *err)
{
    pthread_mutex_lock(&p->ring.lock);
    int r = p->ring.failed < 0 ? p->ring.failed : -ECANCELED;
    pthread_mutex_unlock(&p->ring.lock);
    return r == -ECANCELED ? r : error_set(err, -r, "the digest failed");
}

int sum_pass_announce(struct sum_pass *p, uint64_t offset, uint64_t length, bool zeros,
                      struct sum_slot **ret, struct error *err)
{
    struct sum_slot *slot;
    if (sum_ring_space(&p->ring, &slot) < 0) {
        return failure(p, err);
    }
    bool whole = zeros && length % p->sum->block == 0;
    slot->item = (struct sum_item){
        .offset = offset, .length = length, .kind = whole ? SUM_ZEROS : SUM_DATA};
    slot->odd = false;
    slot->digests = (uint32_t)(length / p->sum->block); /* of data: set when it is hashed */
    sum_ring_publish(&p->ring);
    *ret = sum_ring_take(&p->ring); /* this one: nobody else takes */
    return *ret ? 0 : failure(p, err);
}

int sum_pass_hash(struct sum_pass *p, struct sum_slot *slot, void *data, struct error *err)
{
    int r = slot->item.kind == SUM_DATA ? sum_hash_data(p->sum, data, slot) : 0;
    if (r < 0) {
        sum_ring_stop(&p->ring, r, NULL);
        return error_set(err, -r, "the digest failed");
    }
    sum_ring_finish(&p->ring, slot);
    return 0;
}

int sum_pass_result(struct sum_pass *p, uint64_t size, uint8_t *out, struct error *err)
{
    sum_ring_end(&p->ring);
    int r = sum_ring_complete(&p->ring) ? blkhash_outer_final(p->ring.outer, size, out) : -EIO;
    return r < 0 ? error_set(err, -r, "the digest failed") : 0;
}
