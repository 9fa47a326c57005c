/*
 * pattern:SIZE: every 8 bytes hold their own offset, big-endian, so that a byte read from the
 * wrong place shows. Read-only. Up to 8 EiB - 512, the largest size whose sectors off_t can name.
 */
#include "core/size.h"
#include "volume/drivers.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN_SIZE_MAX ((1ull << 63) - 512)

/* The bytes of the word that off lies in, from off on; returns how many. */
static size_t ragged_word(uint8_t *to, size_t len, uint64_t off)
{
    uint64_t word = htobe64(align_down(off, 8));
    size_t skew = (size_t)(off & 7);
    size_t n = (size_t)min_u64(8 - skew, len);
    memcpy(to, (const uint8_t *)&word + skew, n);
    return n;
}

static int pattern_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err)
{
    uint8_t *to = buf;
    if ((off & 7) != 0 && len > 0) {
        size_t n = ragged_word(to, len, off);
        to += n;
        off += n;
        len -= n;
    }
    for (; len >= 8; len -= 8, off += 8, to += 8) {
        uint64_t word = htobe64(off);
        memcpy(to, &word, 8);
    }
    if (len > 0) {
        ragged_word(to, len, off);
    }
    return 0;
}

static void pattern_close(struct volume *v)
{
    volume_done(v);
    free(v);
}

static const struct volume_ops pattern_ops = {
    .name = "pattern",
    .read = pattern_read,
    .close = pattern_close,
};

int pattern_open(const char *name, const struct endpoint_options *o, struct volume **ret,
                 struct error *err)
{
    uint64_t size;
    if (size_parse(endpoint_rest(name), PATTERN_SIZE_MAX, &size) < 0) {
        return error_set(err, EINVAL, "pattern:SIZE: not a size up to 8 EiB - 512");
    }
    if (o->writable) {
        return error_set(err, EROFS, "a pattern cannot be written");
    }
    struct volume *v = calloc(1, sizeof(*v));
    if (!v || volume_init(v, &pattern_ops, name) < 0) {
        free(v);
        return error_set(err, ENOMEM, "no memory");
    }
    v->size = size;
    v->caps = VOLUME_IS_COHERENT;
    v->limits.preferred = 65536;
    *ret = v;
    return 0;
}
