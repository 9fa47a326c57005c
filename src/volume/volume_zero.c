/*
 * volume_zero(), volume_discard() and volume_extents(): what a driver may lack.
 *
 * Zero: the aligned middle goes to the driver in pieces of limits.max_zero, the ragged ends are
 * written. A driver that has no zero, or answers -ENOTSUP, gets a shared buffer of zeros written;
 * with ZERO_NO_FALLBACK that is the caller's answer instead, as long as nothing was changed (so the
 * middle goes first). Discard is advice: the aligned inside is passed on, -ENOTSUP is no error.
 * Extents: asked for aligned, cut to what was asked, equal neighbours made one.
 */
#include "core/fiber.h"
#include "core/size.h"
#include "volume/volume.h"
#include "volume/volume_private.h"

#include <errno.h>

/* Between the pieces of a long call: others get their turn, and a cancel is heard. */
static int breathe(void)
{
    fiber_yield();
    return fiber_canceled() ? -ECANCELED : 0;
}

static int write_zeros(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                       struct error *err)
{
    unsigned write_flags = flags & ZERO_FUA ? WRITE_FUA : 0;
    while (len > 0) {
        size_t n = (size_t)min_u64(len, VOLUME_ZEROS);
        int r = volume_write_pieces(v, volume_zeros(), n, off, write_flags, err);
        off += n;
        len -= n;
        if (r == 0 && len > 0) {
            r = breathe();
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

/* Aligned. *changed: whether the driver has zeroed a piece. */
static int zero_middle(struct volume *v, uint64_t off, uint64_t len, unsigned flags, bool *changed,
                       struct error *err)
{
    bool driver = volume_can(v, VOLUME_CAN_ZERO) && v->ops->zero;
    bool fast = (flags & ZERO_NO_FALLBACK) != 0;
    if (fast && (!driver || !volume_can(v, VOLUME_CAN_FAST_ZERO))) {
        return -ENOTSUP;
    }
    while (len > 0) {
        uint64_t n = len;
        if (driver && v->limits.max_zero > 0) {
            n = min_u64(n, align_down(v->limits.max_zero, v->limits.min));
        }
        int r = -ENOTSUP;
        if (driver) {
            r = v->ops->zero(v, off, n, flags, err);
        }
        if (r == -ENOTSUP) {
            if (fast && !*changed) {
                return r;
            }
            error_clear(err);
            driver = false;
            n = len;
            r = write_zeros(v, off, n, flags, err);
        }
        if (r < 0) {
            return volume_failed(v, r, off, "zero", err);
        }
        *changed = true;
        off += n;
        len -= n;
        if (len > 0 && breathe() < 0) {
            return volume_failed(v, -ECANCELED, off, "zero", err);
        }
    }
    return 0;
}

static int zero_in_range(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                         struct error *err)
{
    uint64_t end = off + len;
    uint64_t first = min_u64(align_up(off, v->limits.min), end);
    uint64_t last = end == v->size ? end : max_u64(align_down(end, v->limits.min), first);
    bool changed = false;
    if (first == last && (flags & ZERO_NO_FALLBACK)) {
        return -ENOTSUP;
    }
    int r = zero_middle(v, first, last - first, flags, &changed, err);
    if (r >= 0) {
        r = write_zeros(v, off, first - off, flags, err);
    }
    if (r >= 0) {
        r = write_zeros(v, last, end - last, flags, err);
    }
    return r;
}

int volume_zero(struct volume *v, uint64_t off, uint64_t len, unsigned flags, struct error *err)
{
    int r = volume_check_write(v, off, len, "zero", err);
    if (r < 0 || len == 0) {
        return r;
    }
    bool flush = (flags & ZERO_FUA) && !volume_can(v, VOLUME_CAN_FUA);
    if (flush) {
        flags &= ~(unsigned)ZERO_FUA;
    }
    struct write_range range;
    r = volume_range_enter(v, &range, off, len);
    if (r < 0) {
        return volume_failed(v, r, off, "zero", err);
    }
    r = zero_in_range(v, off, len, flags, err);
    volume_range_leave(v, &range);
    if (r < 0) {
        error_set(err, -r, "zeroing here is no faster than writing");
        error_endpoint(err, v->endpoint);
        error_at(err, off);
        return r;
    }
    return flush ? volume_flush(v, err) : 0;
}

static int discard_in_range(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                            struct error *err)
{
    while (len > 0) {
        uint64_t n = len;
        if (v->limits.max_zero > 0) {
            n = min_u64(n, align_down(v->limits.max_zero, v->limits.min));
        }
        int r = v->ops->discard(v, off, n, flags, err);
        if (r == -ENOTSUP) {
            error_clear(err);
            return 0;
        }
        if (r < 0) {
            return volume_failed(v, r, off, "discard", err);
        }
        off += n;
        len -= n;
        if (len > 0 && breathe() < 0) {
            return volume_failed(v, -ECANCELED, off, "discard", err);
        }
    }
    return 0;
}

int volume_discard(struct volume *v, uint64_t off, uint64_t len, unsigned flags, struct error *err)
{
    int r = volume_check_write(v, off, len, "discard", err);
    if (r < 0 || len == 0 || !volume_can(v, VOLUME_CAN_DISCARD) || !v->ops->discard) {
        return r;
    }
    uint64_t end = off + len;
    uint64_t first = align_up(off, v->limits.min);
    uint64_t last = end == v->size ? end : align_down(end, v->limits.min);
    if (first >= last) {
        return 0;
    }
    struct write_range range;
    r = volume_range_enter(v, &range, first, last - first);
    if (r < 0) {
        return volume_failed(v, r, off, "discard", err);
    }
    r = discard_in_range(v, first, last - first, flags, err);
    volume_range_leave(v, &range);
    return r;
}

/* Drops `skew` bytes from the front, cuts to len, makes equal neighbours one. Returns how many. */
static int tidy_extents(struct extent *e, int n, uint64_t skew, uint64_t len)
{
    int out = 0;
    for (int i = 0; i < n && len > 0; i++) {
        struct extent x = e[i];
        uint64_t drop = min_u64(skew, x.length);
        skew -= drop;
        x.length = min_u64(x.length - drop, len);
        if (x.length == 0) {
            continue;
        }
        len -= x.length;
        if (out > 0 && e[out - 1].flags == x.flags) {
            e[out - 1].length += x.length;
        } else {
            e[out++] = x;
        }
    }
    return out;
}

int volume_extents(struct volume *v, uint64_t off, uint64_t len, struct extent *out, size_t max,
                   struct error *err)
{
    if (off > v->size || len > v->size - off || len == 0 || max == 0) {
        error_set(err, EINVAL, "extents of %llu bytes: nothing, or beyond the end (%llu bytes)",
                  (unsigned long long)len, (unsigned long long)v->size);
        error_endpoint(err, v->endpoint);
        error_at(err, off);
        return -EINVAL;
    }
    int n = -ENOTSUP;
    uint64_t start = align_down(off, v->limits.min);
    uint64_t end = min_u64(align_up(off + len, v->limits.min), v->size);
    if (volume_can(v, VOLUME_CAN_EXTENTS) && v->ops->extents) {
        n = v->ops->extents(v, start, end - start, out, max, err);
        if (n < 0 && n != -ENOTSUP) {
            return volume_failed(v, n, off, "extents", err);
        }
    }
    if (n > 0) {
        n = tidy_extents(out, n, off - start, len);
    }
    if (n <= 0) {
        error_clear(err);
        out[0] = (struct extent){.length = len};
        n = 1;
    }
    return n;
}
