/*
 * The volume as callers see it: every volume_...() call passes here before a driver sees it.
 *
 * A call is checked (range by subtraction, right to write), cut to limits.max, and what is not
 * aligned to limits.min is bounced: the aligned middle goes straight to the driver, the ragged
 * blocks at its ends are read into a small buffer, and for a write changed there and written back.
 * On volumes with a limits.min above 1 all writes are kept in a list of ranges in flight
 * (volume_range.c), so that no read-modify-write undoes a neighbour's write.
 *
 * Limits: a ragged write costs one read and one write of limits.min for each ragged end, one after
 * the other. Nothing here allocates but these blocks.
 */
#include "volume/volume.h"

#include "core/size.h"
#include "volume/volume_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* In .bss: the kernel's zero pages until somebody writes, which nobody does. */
static uint8_t zeros[VOLUME_ZEROS] __attribute__((aligned(4096)));

const void *volume_zeros(void)
{
    return zeros;
}

int volume_init(struct volume *v, const struct volume_ops *ops, const char *endpoint)
{
    v->state = calloc(1, sizeof(*v->state));
    v->endpoint = strdup(endpoint);
    if (!v->state || !v->endpoint) {
        free(v->state);
        free(v->endpoint);
        v->state = NULL;
        v->endpoint = NULL;
        return -ENOMEM;
    }
    fmutex_init(&v->state->mutex);
    fcond_init(&v->state->changed);
    atomic_init(&v->state->flush_failed, false);
    const char *no_lend = getenv("PENSTOCK_NO_LEND");
    v->state->no_lend = no_lend && strcmp(no_lend, "1") == 0;
    v->ops = ops;
    v->limits = (struct volume_limits){.min = 1, .preferred = 4096, .max = VOLUME_TRANSFER_MAX};
    return 0;
}

void volume_done(struct volume *v)
{
    if (v->state) {
        fcond_done(&v->state->changed);
        fmutex_done(&v->state->mutex);
        free(v->state);
        v->state = NULL;
    }
    free(v->endpoint);
    v->endpoint = NULL;
}

void volume_close(struct volume *v)
{
    if (v) {
        v->ops->close(v);
    }
}

int volume_failed(struct volume *v, int r, uint64_t off, const char *what, struct error *err)
{
    error_set(err, -r, "%s failed", what);
    error_endpoint(err, v->endpoint);
    error_at(err, off);
    return r;
}

static int refuse(struct volume *v, int code, uint64_t off, struct error *err)
{
    error_endpoint(err, v->endpoint);
    error_at(err, off);
    return -code;
}

static int check_read(struct volume *v, uint64_t off, uint64_t len, const char *what,
                      struct error *err)
{
    if (off <= v->size && len <= v->size - off) {
        return 0;
    }
    error_set(err, EINVAL, "%s of %llu bytes reaches beyond the end (%llu bytes)", what,
              (unsigned long long)len, (unsigned long long)v->size);
    return refuse(v, EINVAL, off, err);
}

int volume_check_write(struct volume *v, uint64_t off, uint64_t len, const char *what,
                       struct error *err)
{
    if (!volume_can(v, VOLUME_CAN_WRITE)) {
        error_set(err, EPERM, "%s on a volume that is open for reading only", what);
        return refuse(v, EPERM, off, err);
    }
    if (off <= v->size && len <= v->size - off) {
        return 0;
    }
    error_set(err, ENOSPC, "%s of %llu bytes reaches beyond the end (%llu bytes)", what,
              (unsigned long long)len, (unsigned long long)v->size);
    return refuse(v, ENOSPC, off, err);
}

bool volume_aligned(const struct volume *v, uint64_t off, uint64_t len)
{
    uint64_t mask = v->limits.min - 1;
    return (off & mask) == 0 && ((len & mask) == 0 || off + len == v->size);
}

/* The block that off lies in, and which part of it off..off+len covers. */
struct ragged {
    uint64_t start; /* of the block */
    size_t block;   /* bytes of it that the volume has */
    size_t skew;    /* where the part starts */
    size_t part;    /* bytes of the part */
};

static struct ragged ragged_at(const struct volume *v, uint64_t off, size_t len)
{
    struct ragged b;
    b.start = align_down(off, v->limits.min);
    b.block = (size_t)min_u64(v->limits.min, v->size - b.start);
    b.skew = (size_t)(off - b.start);
    b.part = (size_t)min_u64(len, b.block - b.skew);
    return b;
}

/* How much of off..off+len can go to the driver as it is: 0 when off is in a ragged block. */
static size_t straight(const struct volume *v, uint64_t off, size_t len)
{
    if ((off & (v->limits.min - 1)) != 0) {
        return 0;
    }
    if (len > v->limits.max) {
        return v->limits.max;
    }
    return off + len == v->size ? len : (size_t)align_down(len, v->limits.min);
}

/* Not from the pool: the caller holds a buffer of it, and who waits for a second while holding one
 * can wait for ever. At most 64 KiB, free()d. */
static void *ragged_block(void)
{
    return aligned_alloc(4096, 65536);
}

static int read_ragged(struct volume *v, void *buf, const struct ragged *b, struct error *err)
{
    void *block = ragged_block();
    if (!block) {
        return -ENOMEM;
    }
    int r = v->ops->read(v, block, b->block, b->start, err);
    if (r >= 0) {
        memcpy(buf, (uint8_t *)block + b->skew, b->part);
    }
    free(block);
    return r;
}

int volume_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err)
{
    int r = check_read(v, off, len, "read", err);
    uint8_t *to = buf;
    while (r >= 0 && len > 0) {
        size_t n = straight(v, off, len);
        if (n > 0) {
            r = v->ops->read(v, to, n, off, err);
        } else {
            struct ragged b = ragged_at(v, off, len);
            n = b.part;
            r = read_ragged(v, to, &b, err);
        }
        if (r < 0) {
            return volume_failed(v, r, off, "read", err);
        }
        to += n;
        off += n;
        len -= n;
    }
    return r < 0 ? r : 0;
}

static int write_ragged(struct volume *v, const void *buf, const struct ragged *b, unsigned flags,
                        struct error *err)
{
    void *block = ragged_block();
    if (!block) {
        return -ENOMEM;
    }
    int r = v->ops->read(v, block, b->block, b->start, err);
    if (r >= 0) {
        memcpy((uint8_t *)block + b->skew, buf, b->part);
        r = v->ops->write(v, block, b->block, b->start, flags, err);
    }
    free(block);
    return r;
}

int volume_write_pieces(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                        struct error *err)
{
    const uint8_t *from = buf;
    while (len > 0) {
        size_t n = straight(v, off, len);
        int r;
        if (n > 0) {
            r = v->ops->write(v, from, n, off, flags, err);
        } else {
            struct ragged b = ragged_at(v, off, len);
            n = b.part;
            r = write_ragged(v, from, &b, flags, err);
        }
        if (r < 0) {
            if ((flags & WRITE_FUA) && r == -EIO) {
                /* It may have been an earlier write's failure, which no flush would report again.
                 */
                atomic_store(&v->state->flush_failed, true);
            }
            return volume_failed(v, r, off, "write", err);
        }
        from += n;
        off += n;
        len -= n;
    }
    return 0;
}

int volume_write(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                 struct error *err)
{
    int r = volume_check_write(v, off, len, "write", err);
    if (r < 0 || len == 0) {
        return r;
    }
    bool flush = (flags & WRITE_FUA) && !volume_can(v, VOLUME_CAN_FUA);
    if (flush) {
        flags &= ~(unsigned)WRITE_FUA;
    }
    struct write_range range;
    r = volume_range_enter(v, &range, off, len);
    if (r < 0) {
        return volume_failed(v, r, off, "write", err);
    }
    r = volume_write_pieces(v, buf, len, off, flags, err);
    volume_range_leave(v, &range);
    return r >= 0 && flush ? volume_flush(v, err) : r;
}

int volume_flush(struct volume *v, struct error *err)
{
    if (!volume_can(v, VOLUME_CAN_FLUSH) || !v->ops->flush) {
        return 0;
    }
    if (atomic_load(&v->state->flush_failed)) {
        error_set(err, EIO, "an earlier flush failed, so what was written may be lost");
        error_endpoint(err, v->endpoint);
        return -EIO;
    }
    int r = v->ops->flush(v, err);
    if (r < 0) {
        if (r != -ECANCELED) {
            atomic_store(&v->state->flush_failed, true);
        }
        error_set(err, -r, "flush failed");
        error_endpoint(err, v->endpoint);
        return r;
    }
    /* A flush that ran beside the failed one may have been told nothing of it. */
    if (atomic_load(&v->state->flush_failed)) {
        error_set(err, EIO, "another flush failed, so what was written may be lost");
        error_endpoint(err, v->endpoint);
        return -EIO;
    }
    return 0;
}

int volume_cache(struct volume *v, uint64_t off, uint64_t len, struct error *err)
{
    int r = check_read(v, off, len, "cache", err);
    if (r < 0 || len == 0 || !volume_can(v, VOLUME_CAN_CACHE) || !v->ops->cache) {
        return r;
    }
    uint64_t start = align_down(off, v->limits.min);
    uint64_t end = min_u64(align_up(off + len, v->limits.min), v->size);
    r = v->ops->cache(v, start, end - start, err);
    if (r == -ENOTSUP) {
        error_clear(err);
        return 0;
    }
    return r < 0 ? volume_failed(v, r, off, "cache", err) : 0;
}

int volume_resize(struct volume *v, uint64_t size, struct error *err)
{
    if (!volume_can(v, VOLUME_CAN_RESIZE) || !v->ops->resize) {
        error_set(err, ENOTSUP, "its size cannot be changed");
        error_endpoint(err, v->endpoint);
        return -ENOTSUP;
    }
    if (size > VOLUME_SIZE_MAX) {
        error_set(err, EFBIG, "no volume can be larger than 8 EiB - 1");
        error_endpoint(err, v->endpoint);
        return -EFBIG;
    }
    int r = v->ops->resize(v, size, err);
    if (r < 0) {
        error_set(err, -r, "cannot resize it to %llu bytes", (unsigned long long)size);
        error_endpoint(err, v->endpoint);
        return r;
    }
    return 0;
}

int volume_lend(struct volume *v, uint64_t off, uint64_t len, struct lent *ret)
{
    if (v->state->no_lend || !v->ops->lend || len == 0 || off > v->size || len > v->size - off) {
        return -EAGAIN;
    }
    return v->ops->lend(v, off, len, ret) < 0 ? -EAGAIN : 0;
}

unsigned volume_lanes(struct volume *v)
{
    return v->ops->lanes ? v->ops->lanes(v) : 0;
}
