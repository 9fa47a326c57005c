/*
 * Moving one piece after the other: what each of a worker's fibers does until nothing is left.
 *
 * Zeros in what was read are found in runs of `grain` bytes and become zero requests, or nothing
 * where the target already reads as zeros. A stream gets everything as bytes, in order: its
 * writers wait for their turn, while the reads before them are in flight.
 *
 * With a checksum each piece gets its place in it when it is taken, and is hashed between the read
 * and the write, while the CPU's cache has it. So a piece that waits to be written keeps nobody
 * from hashing those behind it.
 */
#include "core/bufpool.h"
#include "core/size.h"
#include "core/worker.h"
#include "digest/zero.h"
#include "jobs/copy_internal.h"

#include <errno.h>
#include <string.h>

#define RATE_BURST_NS 100000000ull /* a tenth of a second's bytes may go at once */

/* Sleeps while the bytes so far are ahead of the rate. */
static int keep_rate(struct copy *c, uint64_t bytes)
{
    if (c->options->rate == 0) {
        return 0;
    }
    uint64_t now = worker_now_ns(worker_self());
    uint64_t cost = (uint64_t)((double)bytes * 1e9 / (double)c->options->rate);
    fmutex_lock(&c->mutex);
    uint64_t start = max_u64(c->paid_ns, now > RATE_BURST_NS ? now - RATE_BURST_NS : 0);
    c->paid_ns = start + cost;
    fmutex_unlock(&c->mutex);
    return start > now ? fiber_sleep_until(start) : 0;
}

static int stream_failed(const struct copy_end *end, int r, uint64_t offset, const char *what,
                         struct error *err)
{
    if (r == -EPIPE) {
        error_set(err, EPIPE, "the reader of the stream has gone");
    }
    error_set(err, -r, "%s the stream", what);
    copy_name_end(end->name, err);
    error_at(err, offset);
    return r;
}

/* Its place in the checksum, if one is wanted. The source lock is held, in the source's order. */
static int announce(struct copy *c, struct copy_piece *p, struct error *err)
{
    return c->sum ? sum_pass_announce(c->sum, p->offset, p->length, p->zero, &p->slot, err) : 0;
}

/* The next bytes of a stream into buf: 1, 0 at its end. */
static int read_stream(struct copy *c, void *buf, struct copy_piece *ret, struct error *err)
{
    int r = 0;
    fmutex_lock(&c->source_lock);
    if (!c->source_ended) {
        ssize_t n = stream_read(&c->source.stream, buf, c->request_size);
        if (n < 0) {
            r = stream_failed(&c->source, (int)n, c->size, "reading", err);
        } else {
            c->source_ended = (size_t)n < c->request_size;
            *ret = (struct copy_piece){.offset = c->size, .length = (uint64_t)n};
            c->size += (uint64_t)n;
            r = n > 0;
        }
        if (r == 1 && c->target.volume) {
            int grown = copy_grow(c, c->size, err);
            r = grown < 0 ? grown : 1;
        }
        if (r == 1) {
            fmutex_lock(&c->mutex);
            ret->sequence = c->next_sequence++;
            fmutex_unlock(&c->mutex);
            int announced = announce(c, ret, err);
            r = announced < 0 ? announced : 1;
        }
        c->source_ended = c->source_ended || r < 0;
    }
    fmutex_unlock(&c->source_lock);
    return r;
}

/* The next piece of a volume: 1, 0 at its end, -errno. */
static int take_volume(struct copy *c, struct copy_piece *ret, struct error *err)
{
    if (!c->sum) {
        return copy_take(c, ret);
    }
    fmutex_lock(&c->source_lock);
    int r = copy_take(c, ret);
    if (r == 1) {
        int announced = announce(c, ret, err);
        r = announced < 0 ? announced : 1;
    }
    fmutex_unlock(&c->source_lock);
    return r;
}

/* buf holds the piece. Of a short block of zeros it is overwritten with them; others need none. */
static int hash_piece(struct copy *c, uint8_t *buf, const struct copy_piece *p, struct error *err)
{
    if (!p->slot) {
        return 0;
    }
    if (p->zero && p->length < BLKHASH_BLOCK_DEFAULT) {
        memset(buf, 0, (size_t)p->length);
    }
    return sum_pass_hash(c->sum, p->slot, buf, err);
}

static int put_zeros(struct copy *c, uint64_t offset, uint64_t len, struct error *err)
{
    int r = 0;
    if (!c->skip_zeros) {
        r = volume_zero(c->target.volume, offset, len, c->options->allocated ? 0 : ZERO_MAY_UNMAP,
                        err);
    }
    if (r >= 0) {
        copy_count(c, len, true);
    }
    return r;
}

static int put_data(struct copy *c, const uint8_t *buf, uint64_t offset, size_t len,
                    struct error *err)
{
    int r = volume_write(c->target.volume, buf, len, offset, 0, err);
    if (r >= 0) {
        copy_count(c, len, false);
    }
    return r;
}

static int put_volume(struct copy *c, const uint8_t *buf, const struct copy_piece *p,
                      struct error *err)
{
    if (p->zero) {
        return put_zeros(c, p->offset, p->length, err);
    }
    int r = 0;
    for (size_t done = 0; r >= 0 && done < p->length;) {
        bool zero = false;
        size_t n = (size_t)p->length - done;
        if (c->grain) {
            n = zero_run(buf + done, n, c->grain, &zero);
        }
        r = zero ? put_zeros(c, p->offset + done, n, err)
                 : put_data(c, buf + done, p->offset + done, n, err);
        done += n;
    }
    return r;
}

static int wait_turn(struct copy *c, uint64_t sequence)
{
    int r = 0;
    fmutex_lock(&c->mutex);
    while (r == 0 && !c->stopped && c->write_sequence != sequence) {
        r = fcond_wait(&c->turned, &c->mutex, DEADLINE_NONE);
    }
    r = c->stopped ? -ECANCELED : r;
    fmutex_unlock(&c->mutex);
    return r;
}

static void end_turn(struct copy *c)
{
    fmutex_lock(&c->mutex);
    c->write_sequence++;
    fcond_broadcast(&c->turned);
    fmutex_unlock(&c->mutex);
}

/* buf holds the piece; of a piece of zeros it is zeroed here, and written as often as it takes. */
static int put_stream(struct copy *c, uint8_t *buf, const struct copy_piece *p, struct error *err)
{
    int r = wait_turn(c, p->sequence);
    if (r == 0 && p->zero) {
        memset(buf, 0, (size_t)min_u64(p->length, c->request_size));
    }
    for (uint64_t done = 0; r == 0 && done < p->length;) {
        size_t n = (size_t)min_u64(p->length - done, c->request_size);
        r = stream_write(&c->target.stream, buf, n);
        if (r < 0) {
            stream_failed(&c->target, r, p->offset + done, "writing to", err);
        } else {
            copy_count(c, n, p->zero);
        }
        done += n;
    }
    if (r == 0) {
        end_turn(c);
    }
    return r;
}

/* One piece: 1, 0 when there is none, -errno. */
static int move_piece(struct copy *c, uint8_t *buf, struct error *err)
{
    struct copy_piece p = {0};
    struct volume *source = c->source.volume;
    int r = source ? take_volume(c, &p, err) : read_stream(c, buf, &p, err);
    if (r <= 0) {
        return r;
    }
    r = p.zero ? 0 : keep_rate(c, p.length);
    if (r == 0 && source && !p.zero) {
        r = volume_read(source, buf, (size_t)p.length, p.offset, err);
    }
    if (r >= 0) {
        r = hash_piece(c, buf, &p, err);
    }
    if (r >= 0) {
        r = c->target.volume ? put_volume(c, buf, &p, err) : put_stream(c, buf, &p, err);
    }
    return r < 0 ? r : 1;
}

void copy_move(struct copy *c)
{
    struct error err = {0};
    void *buf;
    int r = bufpool_get(c->request_size, &buf);
    if (r == 0) {
        do {
            r = move_piece(c, buf, &err);
            if (c->sum) {
                fiber_yield(); /* hashing keeps the CPU: let signals and the watch have a look */
            }
        } while (r > 0);
        bufpool_put(buf, c->request_size);
    }
    if (r < 0) {
        copy_fail(c, r, &err);
    }
}
