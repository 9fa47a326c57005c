/*
 * See sum.h.
 *
 * What limits a checksum is moving bytes, not hashing them. So each worker reads and hashes by
 * itself, over its own lane; the bytes are touched once and no other thread has to be told. Only
 * digests travel.
 *
 *   sum_put.c    one fiber puts items into the ring, in the disk's order
 *   sum_hash.c   a crew takes them, some fibers on each worker: while one waits for the disk or
 *                the network, the next hashes
 *   sum_ring.c   the outer hash is fed, in order, by whoever finishes the oldest item
 *
 * The calling worker hashes too, so that small disks start no thread.
 */
#include "channel/sizing.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/size.h"
#include "core/worker.h"
#include "jobs/sum_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Hashing fibers a worker: one hashes while others wait. */
#define FIBERS_A_WORKER 4u
/* ... of a stream, which never wait for data. */
#define FIBERS_FOR_STREAM 1u
/* Pieces in the ring for each worker: enough that nobody waits for who is late. */
#define SLOTS_A_WORKER 64u
/* Buffers of a stream in the ring, for each worker. */
#define STREAM_SLOTS_A_WORKER 4u

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
    s->workers = o->workers ? o->workers : cpus_available();
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
    crew_free(s->alone);
    crew_free(s->all);
    digest_free(s->digest);
    free(s);
}

const struct digest *sum_digest(const struct sum *s)
{
    return s->digest;
}

/* Those who hash so many pieces. */
static int find_crew(struct sum *s, uint64_t pieces, struct crew **ret, struct error *err)
{
    bool small = pieces < 4 || s->workers == 1;
    struct crew **crew = small ? &s->alone : &s->all;
    int r = *crew ? 0 : crew_new(small ? 1 : s->workers, crew, err);
    *ret = *crew;
    return r;
}

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

struct put {
    struct sum_run *run;
    int (*fn)(struct sum_run *run, struct error *err);
    struct fgroup group;
};

static void put_fiber(void *arg)
{
    struct put *put = arg;
    struct sum_run *run = put->run;
    struct error err = {};
    int r = put->fn(run, &err);
    if (r < 0) {
        sum_ring_stop(&run->ring, r, &err);
        crew_stop(run->crew);
    } else {
        sum_ring_end(&run->ring);
    }
}

static int run_ring(struct sum_run *run, unsigned fibers,
                    int (*fn)(struct sum_run *run, struct error *err), struct sum_result *ret,
                    struct error *err)
{
    struct put put = {.run = run, .fn = fn};

    run->ring.advance = run->s->advance;
    run->ring.arg = run->s->arg;
    run->ring.keep = run->leaves ? run->leaves->keep : NULL;
    run->ring.old = run->leaves ? run->leaves->old : NULL;
    fgroup_init(&put.group);
    int r = fgroup_spawn(&put.group, put_fiber, &put);
    if (r == 0) {
        r = crew_run(run->crew, fibers, sum_hash_fiber, run);
    }
    if (r < 0) {
        sum_ring_stop(&run->ring, r, NULL);
    }
    if (!sum_ring_complete(&run->ring)) {
        fgroup_cancel(&put.group);
    }
    fgroup_wait(&put.group, false);
    if (!sum_ring_complete(&run->ring)) {
        return fail(run, err);
    }
    r = result_of(run, ret);
    return r < 0 ? error_set(err, -r, "the digest failed") : 0;
}

static int run_start(struct sum_run *run, uint64_t pieces, unsigned fibers, unsigned slots,
                     struct error *err)
{
    struct sum *s = run->s;
    int r = find_crew(s, pieces, &run->crew, err);
    if (r < 0) {
        return r;
    }
    unsigned workers = run->crew == s->all ? s->workers : 1;
    r = sum_ring_init(&run->ring, s->digest, s->block, s->piece, slots * workers, fibers * workers);
    return r < 0 ? error_set(err, -r, "no memory for a checksum") : 0;
}

static void run_done(struct sum_run *run)
{
    for (unsigned i = 0; i < run->ring.count; i++) {
        bufpool_put(run->ring.slots[i].data, run->s->piece);
    }
    sum_ring_done(&run->ring);
}

int sum_volume(struct sum *s, struct volume *v, const struct sum_leaves *leaves,
               struct sum_result *ret, struct error *err)
{
    struct sum_run run = {.s = s, .v = v, .leaves = leaves, .name = v->endpoint, .size = v->size};
    bool changed = leaves && leaves->old;
    uint64_t pieces = v->size / s->piece + (v->size % s->piece != 0);
    unsigned fibers = (unsigned)max_u64(1, min_u64(pieces, FIBERS_A_WORKER));

    int r = run_start(&run, pieces, fibers, SLOTS_A_WORKER, err);
    if (r < 0) {
        return r;
    }
    r = run_ring(&run, fibers, changed ? sum_put_changed : sum_put_volume, ret, err);
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
        r = run_ring(run, FIBERS_FOR_STREAM, sum_put_stream, ret, err);
        run_done(run);
    }
    bufpool_put(first, run->s->piece);
    return r;
}

int sum_stream(struct sum *s, int fd, const char *name, const struct sum_leaves *leaves,
               struct sum_result *ret, struct error *err)
{
    struct stream stream;
    struct sizing sizing;
    struct sum_run run = {.s = s, .stream = &stream, .leaves = leaves, .name = name};

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
