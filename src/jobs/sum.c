/*
 * See sum.h.
 *
 * What limits a checksum is moving bytes, not hashing them. So a worker reads a piece of 256 KiB
 * into one buffer that stays in its L2 cache, and hashes it there, its blocks side by side; the
 * bytes are touched once and no other thread has to be told. Only digests travel (sum_ring.c).
 *
 *   the calling fiber   asks for extents ahead and puts items into the ring (sum_cut.c), or reads
 *                       the stream into the ring's own buffers
 *   hashing fibers      some on each worker: while one waits for the disk or the network, the next
 *                       hashes; each reads over its own worker's lane
 *   the outer hash      is fed by whichever fiber finishes the oldest item
 *
 * The calling worker hashes too, so that small disks start no thread.
 */
#include "jobs/sum.h"

#include "channel/sizing.h"
#include "channel/stream.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/size.h"
#include "core/worker.h"
#include "digest/zero.h"
#include "jobs/sum_cut.h"
#include "jobs/sum_ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes read and hashed in one go: they fit the L2 of any CPU, twice in most. */
#define PIECE_BYTES (256u << 10)
/* Where a kernel hashes many blocks side by side the piece grows for it, up to here. */
#define PIECE_WIDE_BYTES (2u << 20)
/* Hashing fibers a worker: one hashes while others wait. */
#define FIBERS_A_WORKER 4u
/* ... of a stream, which never wait for data. */
#define FIBERS_FOR_STREAM 1u
/* Pieces in the ring for each fiber that takes them: enough that nobody waits for who is late. */
#define SLOTS_A_FIBER 8u
#define SLOTS_MIN 64u
/* Buffers of a stream in the ring, for each worker. */
#define STREAM_SLOTS_A_WORKER 4u
/* Pieces between two looks at the worker's other fibers (signals, progress, the one that scans). */
#define PIECES_A_TURN 4u
#define EXTENTS_AT_ONCE 256u

struct sum {
    struct digest *digest;
    uint32_t block;
    uint32_t piece;
    unsigned workers_wanted; /* the calling one included */
    struct workers *more;    /* the others, once they are needed */
    void (*advance)(void *arg, uint64_t bytes);
    void *arg;
    uint8_t zero[BLKHASH_DIGEST_MAX]; /* of a whole block of zeros */
};

struct sum_run;

/* The hashing fibers of one worker other than the calling one. */
struct lane {
    struct sum_run *run;
    struct worker *worker;
    unsigned fibers;
    struct fgroup group; /* its worker's, like what follows */
    bool running, canceled;
};

struct sum_run {
    struct sum *s;
    struct volume *v;      /* NULL: a stream */
    struct stream *stream; /* NULL: a volume */
    const char *name;
    void *first; /* the stream's first piece, already read */
    size_t first_bytes;
    uint64_t size; /* a stream's is known at its end */
    struct sum_ring ring;
    struct lane *lanes;
    unsigned lane_count;
    struct fiber *caller;
    struct fgroup group; /* on the calling worker: its hashing fibers, and one for each lane */
    unsigned living;     /* how many of these have not ended */
};

/* ---- the context ---- */

static uint32_t choose_piece(const struct sum_options *o, const struct digest *d)
{
    uint64_t wide = (uint64_t)o->block_size * digest_lanes(d);
    uint64_t piece = max_u64(PIECE_BYTES, o->block_size);
    if (wide > piece && wide <= PIECE_WIDE_BYTES) {
        piece = wide;
    }
    return (uint32_t)piece;
}

static int find_zero_digest(struct sum *s)
{
    struct blkhash_outer *o;
    int r = blkhash_outer_new(s->digest, s->block, &o);
    if (r == 0) {
        memcpy(s->zero, blkhash_zero_digest(o), sizeof(s->zero));
        blkhash_outer_free(o);
    }
    return r;
}

int sum_new(const struct sum_options *o, struct sum **ret, struct error *err)
{
    if (o->block_size < SUM_BLOCK_MIN || o->block_size > SUM_BLOCK_MAX ||
        (o->block_size & (o->block_size - 1)) != 0) {
        return error_set(err, EINVAL, "the block size must be a power of two from 512 to 16M");
    }
    struct sum *s = calloc(1, sizeof(*s));
    if (!s) {
        return error_set(err, ENOMEM, "no memory for a checksum");
    }
    int r = digest_open(o->digest, &s->digest);
    if (r < 0) {
        free(s);
        return error_set(err, -r, "digest \"%s\"", o->digest);
    }
    s->block = o->block_size;
    s->piece = choose_piece(o, s->digest);
    s->workers_wanted = o->workers ? o->workers : cpus_available();
    s->advance = o->advance;
    s->arg = o->arg;
    r = find_zero_digest(s);
    if (r < 0) {
        sum_free(s);
        return error_set(err, -r, "digest \"%s\"", o->digest);
    }
    *ret = s;
    return 0;
}

void sum_free(struct sum *s)
{
    if (!s) {
        return;
    }
    if (s->more) {
        workers_stop(s->more);
    }
    digest_free(s->digest);
    free(s);
}

const struct digest *sum_digest(const struct sum *s)
{
    return s->digest;
}

/* How many workers besides the calling one, for so many pieces. */
static int start_workers(struct sum *s, uint64_t pieces, unsigned *ret)
{
    unsigned more = s->workers_wanted - 1;
    if (pieces < 4 || more == 0) {
        *ret = 0;
        return 0;
    }
    if (!s->more) {
        int r = workers_start(more, &s->more);
        if (r < 0) {
            return r;
        }
    }
    *ret = (unsigned)min_u64(workers_count(s->more), pieces - 1);
    return 0;
}

/* ---- hashing ---- */

/* The whole blocks of an item: runs of zeros have a digest that is known. */
static int hash_whole(const struct sum *s, const uint8_t *data, size_t blocks, uint8_t *out)
{
    size_t length = digest_length(s->digest);
    while (blocks > 0) {
        bool zero;
        size_t run = zero_run(data, blocks * s->block, s->block, &zero) / s->block;
        for (size_t i = 0; zero && i < run; i++) {
            memcpy(out + i * length, s->zero, length);
        }
        int r = zero ? 0 : digest_blocks(s->digest, data, s->block, run, out);
        if (r < 0) {
            return r;
        }
        data += run * s->block;
        out += run * length;
        blocks -= run;
    }
    return 0;
}

/* data has room for a piece, of which slot->item.length bytes count. */
static int hash_item(const struct sum *s, uint8_t *data, struct sum_slot *slot)
{
    size_t length = digest_length(s->digest);
    size_t whole = (size_t)(slot->item.length / s->block);
    size_t rest = (size_t)(slot->item.length % s->block);

    slot->digests = (uint32_t)(whole + (rest > 0));
    slot->odd = rest % 512 != 0;
    int r = hash_whole(s, data, whole, slot->digest);
    if (r < 0 || rest == 0) {
        return r;
    }
    data += whole * s->block;
    r = digest_one(s->digest, data, rest, slot->digest + whole * length);
    if (r == 0 && slot->odd) {
        size_t padded = (size_t)align_up(rest, 512);
        memset(data + rest, 0, padded - rest);
        r = digest_one(s->digest, data, padded, slot->sector);
    }
    return r;
}

static int read_and_hash(struct sum_run *run, struct sum_slot *slot, void **buf, struct error *err)
{
    struct sum *s = run->s;
    void *data = slot->data;
    if (slot->item.zeros) {
        return 0;
    }
    if (!data) {
        int r = *buf ? 0 : bufpool_get(s->piece, buf);
        if (r < 0) {
            return error_set(err, -r, "no buffer");
        }
        data = *buf;
        r = volume_read(run->v, data, (size_t)slot->item.length, slot->item.offset, err);
        if (r < 0) {
            error_at(err, slot->item.offset);
            return r;
        }
    }
    int r = hash_item(s, data, slot);
    return r < 0 ? error_set(err, -r, "the digest failed") : 0;
}

static void hash_fiber(void *arg)
{
    struct sum_run *run = arg;
    struct sum_slot *slot;
    struct error err = {};
    void *buf = NULL;
    unsigned pieces = 0;

    while ((slot = sum_ring_take(&run->ring))) {
        int r = read_and_hash(run, slot, &buf, &err);
        if (r < 0) {
            sum_ring_stop(&run->ring, r, &err);
            fiber_wake_from(run->caller); /* it waits for us all, so it is there */
            break;
        }
        sum_ring_finish(&run->ring, slot);
        if (++pieces % PIECES_A_TURN == 0) {
            fiber_yield();
        }
    }
    bufpool_put(buf, run->s->piece);
}

/* ---- lanes ---- */

static void lane_main(void *arg)
{
    struct lane *lane = arg;
    fgroup_init(&lane->group);
    lane->running = true;
    for (unsigned i = 0; i < lane->fibers; i++) {
        int r = lane->canceled ? -ECANCELED : fgroup_spawn(&lane->group, hash_fiber, lane->run);
        if (r < 0) {
            sum_ring_stop(&lane->run->ring, r, NULL);
            break;
        }
    }
    fgroup_wait(&lane->group, false);
    lane->running = false;
}

static void lane_cancel(void *arg)
{
    struct lane *lane = arg;
    lane->canceled = true;
    if (lane->running) {
        fgroup_cancel(&lane->group);
    }
}

static void member_ended(struct sum_run *run)
{
    run->living--;
    fiber_wake(run->caller);
}

static void own_fiber(void *arg)
{
    struct sum_run *run = arg;
    hash_fiber(run);
    member_ended(run);
}

static void lane_fiber(void *arg)
{
    struct lane *lane = arg;
    int r = worker_call(lane->worker, lane_main, lane);
    if (r < 0) {
        sum_ring_stop(&lane->run->ring, r, NULL);
    }
    member_ended(lane->run);
}

static int start_member(struct sum_run *run, fiber_fn *fn, void *arg)
{
    int r = fgroup_spawn(&run->group, fn, arg);
    run->living += r == 0;
    return r;
}

static int start_lanes(struct sum_run *run, unsigned fibers)
{
    for (unsigned i = 0; i < fibers; i++) {
        int r = start_member(run, own_fiber, run);
        if (r < 0) {
            return r;
        }
    }
    for (unsigned i = 0; i < run->lane_count; i++) {
        struct lane *lane = &run->lanes[i];
        *lane = (struct lane){.run = run, .worker = workers_get(run->s->more, i), .fibers = fibers};
        int r = start_member(run, lane_fiber, lane);
        if (r < 0) {
            run->lane_count = i;
            return r;
        }
    }
    return 0;
}

/* Until all have ended. When this fiber is canceled, or something failed, they are canceled. */
static void wait_lanes(struct sum_run *run)
{
    int r = 0;
    while (run->living > 0 && r == 0 && !atomic_load(&run->ring.stopped)) {
        r = fiber_park(true, DEADLINE_NONE);
    }
    if (r < 0) {
        sum_ring_stop(&run->ring, r, NULL);
    }
    fiber_shield();
    if (run->living > 0) {
        fgroup_cancel(&run->group);
        for (unsigned i = 0; i < run->lane_count; i++) {
            worker_call(run->lanes[i].worker, lane_cancel, &run->lanes[i]);
        }
    }
    fgroup_wait(&run->group, false);
    fiber_unshield();
}

/* ---- putting items ---- */

static int put_item(void *arg, const struct sum_item *item)
{
    struct sum_run *run = arg;
    struct sum_slot *slot;
    int r = sum_ring_space(&run->ring, &slot);
    if (r < 0) {
        return r;
    }
    slot->item = *item;
    slot->odd = false;
    slot->digests = item->zeros ? (uint32_t)(item->length / run->s->block) : 0;
    sum_ring_publish(&run->ring);
    return 0;
}

static int put_volume(struct sum_run *run, struct error *err)
{
    struct extent extents[EXTENTS_AT_ONCE];
    struct sum_cut cut;

    sum_cut_init(&cut, run->size, run->s->block, run->s->piece, put_item, run);
    while (volume_can(run->v, VOLUME_CAN_EXTENTS) && cut.known < run->size) {
        int n = volume_extents(run->v, cut.known, run->size - cut.known, extents, EXTENTS_AT_ONCE,
                               err);
        if (n <= 0) {
            error_at(err, cut.known);
            return n < 0 ? n : error_set(err, EIO, "no extents");
        }
        for (int i = 0; i < n; i++) {
            int r = sum_cut_extent(&cut, extents[i].length, extents[i].flags & EXTENT_ZERO);
            if (r < 0) {
                return r;
            }
        }
    }
    return sum_cut_end(&cut);
}

/* The next piece of the stream into a slot of its own buffer: its bytes, 0 at the end, -errno. */
static ssize_t fill_slot(struct sum_run *run, struct sum_slot *slot)
{
    if (!slot->data) {
        int r = bufpool_get(run->s->piece, &slot->data);
        if (r < 0) {
            return r;
        }
    }
    if (run->first) {
        memcpy(slot->data, run->first, run->first_bytes);
        run->first = NULL;
        return (ssize_t)run->first_bytes;
    }
    return stream_read(run->stream, slot->data, run->s->piece);
}

static int put_stream(struct sum_run *run, struct error *err)
{
    for (;;) {
        struct sum_slot *slot;
        int r = sum_ring_space(&run->ring, &slot);
        if (r < 0) {
            return r;
        }
        ssize_t n = fill_slot(run, slot);
        if (n < 0) {
            error_set(err, (int)-n, "read");
            error_at(err, run->size);
            return (int)n;
        }
        if (n == 0) {
            return 0;
        }
        slot->item = (struct sum_item){.offset = run->size, .length = (uint64_t)n};
        run->size += (uint64_t)n;
        sum_ring_publish(&run->ring);
        if ((size_t)n < run->s->piece) {
            return 0; /* stream_read() gives less only at the end */
        }
    }
}

/* ---- a run ---- */

static int result_of(struct sum_run *run, struct sum_result *ret)
{
    struct sum_result result = {.size = run->size,
                                .zeros = run->ring.zeros,
                                .length = digest_length(run->s->digest),
                                .odd = run->ring.padded != NULL};
    int r = blkhash_outer_final(run->ring.outer, run->size, result.digest);
    if (r == 0 && result.odd) {
        r = blkhash_outer_final(run->ring.padded, align_up(run->size, 512), result.sector);
    } else {
        memcpy(result.sector, result.digest, sizeof(result.sector));
    }
    if (r == 0) {
        *ret = result;
    }
    return r;
}

static int fail(struct sum_run *run, struct error *err)
{
    int code = run->ring.failed < 0 ? -run->ring.failed : EIO;
    if (run->ring.error.code != 0 && err && err->code == 0) {
        *err = run->ring.error;
    } else {
        error_set(err, code, code == ECANCELED ? "interrupted" : "checksum");
    }
    error_endpoint(err, run->name);
    return -code;
}

static int run_ring(struct sum_run *run, unsigned fibers,
                    int (*put)(struct sum_run *run, struct error *err), struct sum_result *ret,
                    struct error *err)
{
    struct error put_error = {};

    run->ring.advance = run->s->advance;
    run->ring.arg = run->s->arg;
    run->caller = fiber_self();
    fgroup_init(&run->group);
    int r = start_lanes(run, fibers);
    if (r == 0) {
        r = put(run, &put_error);
    }
    if (r < 0) {
        sum_ring_stop(&run->ring, r, &put_error);
    } else {
        sum_ring_end(&run->ring);
    }
    wait_lanes(run);
    if (!sum_ring_complete(&run->ring)) {
        return fail(run, err);
    }
    r = result_of(run, ret);
    return r < 0 ? error_set(err, -r, "the digest failed") : 0;
}

static int run_start(struct sum_run *run, uint64_t pieces, unsigned fibers, unsigned slots,
                     struct error *err)
{
    int r = start_workers(run->s, pieces, &run->lane_count);
    if (r < 0) {
        return error_set(err, -r, "no worker could be started");
    }
    unsigned takers = (run->lane_count + 1) * fibers;
    run->lanes = calloc(run->lane_count + 1, sizeof(*run->lanes));
    r = run->lanes ? sum_ring_init(&run->ring, run->s->digest, run->s->block, run->s->piece,
                                   slots * (run->lane_count + 1), takers)
                   : -ENOMEM;
    if (r < 0) {
        free(run->lanes);
        return error_set(err, -r, "no memory for a checksum");
    }
    return 0;
}

static void run_done(struct sum_run *run)
{
    for (unsigned i = 0; i < run->ring.count; i++) {
        bufpool_put(run->ring.slots[i].data, run->s->piece);
    }
    sum_ring_done(&run->ring);
    free(run->lanes);
}

int sum_volume(struct sum *s, struct volume *v, struct sum_result *ret, struct error *err)
{
    struct sum_run run = {.s = s, .v = v, .name = v->endpoint, .size = v->size};
    uint64_t pieces = v->size / s->piece + (v->size % s->piece != 0);
    unsigned fibers = (unsigned)max_u64(1, min_u64(pieces, FIBERS_A_WORKER));
    unsigned slots = (unsigned)max_u64(SLOTS_MIN, SLOTS_A_FIBER * fibers);

    int r = run_start(&run, pieces, fibers, slots, err);
    if (r < 0) {
        return r;
    }
    r = run_ring(&run, fibers, put_volume, ret, err);
    run_done(&run);
    return r;
}

static int sum_opened_stream(struct sum_run *run, struct sum_result *ret, struct error *err)
{
    /* Other workers are started only for what does not fit one piece. */
    void *first;
    int r = bufpool_get(run->s->piece, &first);
    if (r < 0) {
        return error_set(err, -r, "no buffer");
    }
    ssize_t n = stream_read(run->stream, first, run->s->piece);
    if (n < 0) {
        bufpool_put(first, run->s->piece);
        error_endpoint(err, run->name);
        return error_set(err, (int)-n, "read");
    }
    run->first = first;
    run->first_bytes = (size_t)n;
    r = run_start(run, (size_t)n < run->s->piece ? 1 : UINT64_MAX, FIBERS_FOR_STREAM,
                  STREAM_SLOTS_A_WORKER, err);
    if (r == 0) {
        r = run_ring(run, FIBERS_FOR_STREAM, put_stream, ret, err);
        run_done(run);
    }
    bufpool_put(first, run->s->piece);
    return r;
}

int sum_stream(struct sum *s, int fd, const char *name, struct sum_result *ret, struct error *err)
{
    struct stream stream;
    struct sizing sizing;
    struct sum_run run = {.s = s, .stream = &stream, .name = name};

    int r = stream_open(&stream, fd);
    if (r < 0) {
        error_set(err, -r, "not open for reading");
        error_endpoint(err, name);
        return r;
    }
    if (stream.kind == STREAM_PIPE) {
        sizing_pipe(fd, SOCKET_BUFFER_AUTO, &sizing);
    }
    r = sum_opened_stream(&run, ret, err);
    stream_done(&stream);
    return r;
}
