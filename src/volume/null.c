/*
 * null:[SIZE]: reads zeros, keeps nothing. As a target it becomes as large as it is asked to be.
 * Without SIZE it has none of its own: 0 bytes until it is resized.
 */
#include "core/size.h"
#include "volume/drivers.h"
#include "volume/volume_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int null_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err)
{
    memset(buf, 0, len);
    return 0;
}

static int null_write(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                      struct error *err)
{
    return 0;
}

static int null_flush(struct volume *v, struct error *err)
{
    return 0;
}

static int null_zero(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                     struct error *err)
{
    return 0;
}

static int null_cache(struct volume *v, uint64_t off, uint64_t len, struct error *err)
{
    return 0;
}

static int null_extents(struct volume *v, uint64_t off, uint64_t len, struct extent *out,
                        size_t max, struct error *err)
{
    out[0] = (struct extent){.length = len, .flags = EXTENT_HOLE | EXTENT_ZERO};
    return 1;
}

static int null_resize(struct volume *v, uint64_t size, struct error *err)
{
    v->size = size;
    return 0;
}

static int null_lend(struct volume *v, uint64_t off, uint64_t len, struct lent *ret)
{
    *ret = (struct lent){.fd = -1, .data = volume_zeros(), .length = min_u64(len, VOLUME_ZEROS)};
    return 0;
}

static void null_close(struct volume *v)
{
    volume_done(v);
    free(v);
}

static const struct volume_ops null_ops = {
    .name = "null",
    .read = null_read,
    .write = null_write,
    .flush = null_flush,
    .zero = null_zero,
    .discard = null_zero,
    .cache = null_cache,
    .extents = null_extents,
    .resize = null_resize,
    .lend = null_lend,
    .close = null_close,
};

int null_open(const char *name, const struct endpoint_options *o, struct volume **ret,
              struct error *err)
{
    uint64_t size = 0;
    const char *rest = endpoint_rest(name);
    if (rest[0] != '\0' && size_parse(rest, VOLUME_SIZE_MAX, &size) < 0) {
        return error_set(err, EINVAL, "null:SIZE: not a size up to 8 EiB - 1");
    }
    if (o->create || o->set_size) {
        size = o->create_size;
    }
    struct volume *v = calloc(1, sizeof(*v));
    if (!v || volume_init(v, &null_ops, name) < 0) {
        free(v);
        return error_set(err, ENOMEM, "no memory");
    }
    v->size = size;
    v->caps = VOLUME_CAN_FLUSH | VOLUME_CAN_FUA | VOLUME_CAN_CACHE | VOLUME_CAN_EXTENTS |
              VOLUME_IS_COHERENT | VOLUME_TAKES_ANY_SIZE | VOLUME_READS_ZERO | VOLUME_CAN_RESIZE |
              VOLUME_NO_DATA;
    if (o->writable) {
        v->caps |= VOLUME_CAN_WRITE | VOLUME_CAN_ZERO | VOLUME_CAN_FAST_ZERO | VOLUME_CAN_DISCARD;
    }
    v->limits.preferred = 65536;
    *ret = v;
    return 0;
}
