/*
 * The block digests of a piece of saved state, for the blkhash of the whole.
 */
#ifndef JOBS_STATE_DIGEST_H
#define JOBS_STATE_DIGEST_H

#include "digest/blkhash.h"

/* How many blocks len bytes have; the last may be short. */
static inline size_t state_blocks(size_t len)
{
    return (len + BLKHASH_BLOCK_DEFAULT - 1) / BLKHASH_BLOCK_DEFAULT;
}

/* Their digests, one behind the other. Any thread. 0 or -errno. */
int state_digests(const struct digest *d, const uint8_t *data, size_t len, uint8_t *out);

#endif
