/* The header of a file of leaves, and ranges as people write them. */
#include "jobs/leaves.h"
#include "jobs/sum.h"
#include "jobs/sum_list.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[LEAVES_HEADER_BYTES] = {0}, again[LEAVES_HEADER_BYTES];
    struct leaves_header h, h2;
    struct sum_range range;

    if (sum_range_parse((const char *)data, size, &range) == 0 &&
        (range.offset > VOLUME_SIZE_MAX || range.length > VOLUME_SIZE_MAX)) {
        abort();
    }
    memcpy(bytes, data, size < sizeof(bytes) ? size : sizeof(bytes));
    if (leaves_parse(bytes, &h) < 0) {
        return 0;
    }
    if (h.digest_length == 0 || h.digest_length > BLKHASH_DIGEST_MAX ||
        h.count > UINT64_MAX / BLKHASH_DIGEST_MAX - LEAVES_HEADER_BYTES) {
        abort();
    }
    leaves_build(&h, again);
    if (leaves_parse(again, &h2) < 0 || h2.size != h.size || strcmp(h2.digest, h.digest) != 0) {
        abort();
    }
    return 0;
}
