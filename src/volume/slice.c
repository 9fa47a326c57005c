/*
 * slice:OFFSET[+SIZE]:ENDPOINT: a part of another volume, from OFFSET on, SIZE bytes or up to its
 * end. A partition by hand. Everything is passed on with OFFSET added; when OFFSET is no multiple
 * of the other's limits.min this volume has a minimum of 1 and the other one's calls bounce.
 */
#include "core/size.h"
#include "volume/drivers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct slice {
    struct volume volume;
    struct volume *below; /* owned */
    uint64_t start;
};

static struct slice *slice_of(struct volume *v)
{
    return (struct slice *)v;
}

static int slice_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err)
{
    struct slice *s = slice_of(v);
    return volume_read(s->below, buf, len, s->start + off, err);
}

static int slice_write(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                       struct error *err)
{
    struct slice *s = slice_of(v);
    return volume_write(s->below, buf, len, s->start + off, flags, err);
}

static int slice_flush(struct volume *v, struct error *err)
{
    return volume_flush(slice_of(v)->below, err);
}

static int slice_zero(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                      struct error *err)
{
    struct slice *s = slice_of(v);
    return volume_zero(s->below, s->start + off, len, flags, err);
}

static int slice_discard(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                         struct error *err)
{
    struct slice *s = slice_of(v);
    return volume_discard(s->below, s->start + off, len, flags, err);
}

static int slice_cache(struct volume *v, uint64_t off, uint64_t len, struct error *err)
{
    struct slice *s = slice_of(v);
    return volume_cache(s->below, s->start + off, len, err);
}

static int slice_extents(struct volume *v, uint64_t off, uint64_t len, struct extent *out,
                         size_t max, struct error *err)
{
    struct slice *s = slice_of(v);
    return volume_extents(s->below, s->start + off, len, out, max, err);
}

static int slice_lend(struct volume *v, uint64_t off, uint64_t len, struct lent *ret)
{
    struct slice *s = slice_of(v);
    return volume_lend(s->below, s->start + off, len, ret);
}

static unsigned slice_lanes(struct volume *v)
{
    return volume_lanes(slice_of(v)->below);
}

static void slice_close(struct volume *v)
{
    struct slice *s = slice_of(v);
    volume_close(s->below);
    volume_done(v);
    free(s);
}

static void slice_describe(struct volume *v,
                           void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    struct slice *s = slice_of(v);
    say(arg, "slice of", s->below->endpoint);
    if (s->below->ops->describe) {
        s->below->ops->describe(s->below, say, arg);
    }
}

static const struct volume_ops slice_ops = {
    .name = "slice",
    .read = slice_read,
    .write = slice_write,
    .flush = slice_flush,
    .zero = slice_zero,
    .discard = slice_discard,
    .cache = slice_cache,
    .extents = slice_extents,
    .lend = slice_lend,
    .lanes = slice_lanes,
    .close = slice_close,
    .describe = slice_describe,
};

const char *slice_parse(const char *spec, uint64_t *start, uint64_t *size, bool *sized)
{
    char text[64];
    const char *colon = strchr(spec, ':');
    if (!colon || (size_t)(colon - spec) >= sizeof(text)) {
        return NULL;
    }
    memcpy(text, spec, (size_t)(colon - spec));
    text[colon - spec] = '\0';
    char *plus = strchr(text, '+');
    *sized = plus != NULL;
    if (plus) {
        *plus = '\0';
        if (size_parse(plus + 1, VOLUME_SIZE_MAX, size) < 0) {
            return NULL;
        }
    }
    return size_parse(text, VOLUME_SIZE_MAX, start) < 0 ? NULL : colon + 1;
}

static int slice_make(const char *name, struct volume *below, uint64_t start, uint64_t size,
                      struct volume **ret)
{
    struct slice *s = calloc(1, sizeof(*s));
    if (!s || volume_init(&s->volume, &slice_ops, name) < 0) {
        free(s);
        return -ENOMEM;
    }
    s->below = below;
    s->start = start;
    s->volume.size = size;
    /* What the volume below is as a whole, not what its bytes are. */
    s->volume.caps = below->caps & ~(unsigned)(VOLUME_TAKES_ANY_SIZE | VOLUME_CAN_RESIZE);
    s->volume.limits = below->limits;
    if ((start & (below->limits.min - 1)) != 0) {
        s->volume.limits.min = 1;
    }
    *ret = &s->volume;
    return 0;
}

int slice_open(const char *name, const struct endpoint_options *o, struct volume **ret,
               struct error *err)
{
    uint64_t start = 0;
    uint64_t size = 0;
    bool sized = false;
    const char *rest = slice_parse(endpoint_rest(name), &start, &size, &sized);
    if (!rest) {
        return error_set(err, EINVAL, "not slice:OFFSET[+SIZE]:ENDPOINT");
    }
    struct volume *below;
    int r = endpoint_open_below(rest, o, &below, err);
    if (r < 0) {
        return r;
    }
    if (start > below->size || (sized && size > below->size - start)) {
        r = error_set(err, EINVAL, "the slice reaches beyond the end (%llu bytes)",
                      (unsigned long long)below->size);
    } else {
        r = slice_make(name, below, start, sized ? size : below->size - start, ret);
    }
    if (r < 0) {
        volume_close(below);
    }
    return r;
}
