/*
 * See state_digest.h.
 */
#include "jobs/state_digest.h"

int state_digests(const struct digest *d, const uint8_t *data, size_t len, uint8_t *out)
{
    size_t whole = len / BLKHASH_BLOCK_DEFAULT;
    size_t rest = len % BLKHASH_BLOCK_DEFAULT;
    int r = digest_blocks(d, data, BLKHASH_BLOCK_DEFAULT, whole, out);
    if (r == 0 && rest) {
        r = digest_one(d, data + len - rest, rest, out + whole * digest_length(d));
    }
    return r;
}
