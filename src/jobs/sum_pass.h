/*
 * The checksum of bytes that pass by on their way elsewhere: what `sum` computes, of pieces that
 * another job reads. It announces each piece in the disk's order (one caller at a time), has it
 * hashed on whatever worker it is on, and goes on with it.
 *
 * Memory is bounded: announcing waits while the oldest piece that is not hashed is a ring behind.
 */
#ifndef JOBS_SUM_PASS_H
#define JOBS_SUM_PASS_H

#include "core/error.h"
#include "digest/blkhash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sum_pass;
struct sum_slot;

/*
 * Pieces of data have at most `piece` bytes (a power of two, a multiple of the block size) and all
 * but the disk's last are whole blocks; in_flight: how many are being read at a time. From a fiber
 * of a worker. 0 or -errno with err: -ENOENT, -ENOTSUP: no such digest.
 */
int sum_pass_new(const char *digest, uint32_t piece, unsigned in_flight, struct sum_pass **ret,
                 struct error *err);
/* From the worker that made it. NULL is fine. */
void sum_pass_free(struct sum_pass *p);
const struct digest *sum_pass_digest(const struct sum_pass *p);

/*
 * The next piece. Zeros are whole blocks, any number of bytes, or less than one block: the disk's
 * last. Waits; 0, -ECANCELED, or -errno with err when the checksum has failed. After 0 the piece
 * must be given to sum_pass_hash(), or the job must fail.
 */
int sum_pass_announce(struct sum_pass *p, uint64_t offset, uint64_t length, bool zeros,
                      struct sum_slot **ret, struct error *err);
/* data: the piece's bytes, with room for `piece`; what lies behind them may be overwritten. Of
 * zeros: any buffer with room for a block, which is overwritten. 0 or -errno with err. */
int sum_pass_hash(struct sum_pass *p, struct sum_slot *slot, void *data, struct error *err);
/* All pieces, size bytes, were hashed. out holds BLKHASH_DIGEST_MAX bytes. 0 or -errno with err. */
int sum_pass_result(struct sum_pass *p, uint64_t size, uint8_t *out, struct error *err);

#endif
