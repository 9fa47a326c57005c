/*
 * Is it all zeros? At memory speed (AVX2 where the CPU has it), and at once "no" on data.
 */
#ifndef DIGEST_ZERO_H
#define DIGEST_ZERO_H

#include <stdbool.h>
#include <stddef.h>

bool is_zero(const void *buf, size_t len);

/*
 * Finds the run at the start of buf whose blocks of `grain` bytes are all zero, or all not:
 * returns its length in bytes (the last block may be short) and says which in *zero. len > 0.
 */
size_t zero_run(const void *buf, size_t len, size_t grain, bool *zero);

#endif
