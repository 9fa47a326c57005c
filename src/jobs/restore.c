/*
 * Restoring: from a file (or any volume) to a reader, in order.
 *
 * Three ways, chosen from what both ends are:
 *
 *   splice    plain bytes of a regular file into a pipe, with no digest to check: the pages go by
 *             reference, twice as fast as reading and writing them
 *   lanes     everything else: fibers take the next block each, read it (several in flight, so
 *             that a disk has depth), expand and digest it on the thread pool, and write it when
 *             its turn comes
 *
 * The digest in a compressed file is always checked; bytes that were passed on before a mismatch
 * showed can't be taken back, so the error says that the reader must not use them.
 */
#include "jobs/save.h"

#include "channel/stream.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/fileio.h"
#include "core/fsync.h"
#include "core/size.h"
#include "core/worker.h"
#include "digest/blkhash.h"
#include "jobs/frames.h"
#include "jobs/pace.h"
#include "jobs/source.h"
#include "jobs/state_digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK STORE_BLOCK
#define LANES_FILE 3u
#define LANES_DEEP 6u /* O_DIRECT and remote ends gain from depth */
#define LANES_MAX 64u
#define SPLICE_STEP (1u << 20)

struct restore {
    const struct restore_options *o;
    struct restore_result *result;
    struct source *in;
    struct stream out;
    struct digest *digest;
    struct blkhash_outer *outer;
    struct pace pace;
    struct fgroup lanes;

    const struct codec *codec; /* NULL: as it is */
    uint32_t block_size;
    uint64_t blocks;
    uint64_t plain_length;
    struct frames_row *rows;
    uint64_t *offsets; /* of each frame in the source */
    struct frames_tail tail;

    uint64_t next_block;
    struct fmutex turn_lock;
    struct fcond turn_moved;
    uint64_t turn;

    int failed;
    struct error *err;
};

struct block {
    struct restore *restore;
    uint64_t number;
    uint8_t *plain;
    size_t len;
    uint8_t *packed;
    size_t packed_room;
    uint8_t *digests;
};

static void fail(struct restore *s, int r)
{
    if (s->failed == 0) {
        s->failed = r;
        fgroup_cancel(&s->lanes);
    }
}

/* ---- what is in the file ---- */

static int broken(struct restore *s, const char *what)
{
    error_set(s->err, EBADMSG, "%s", what);
    error_endpoint(s->err, s->o->name);
    return -EBADMSG;
}

static int read_tail(struct restore *s, uint64_t length)
{
    uint8_t tail[FRAMES_TAIL_PAYLOAD + 64];
    size_t n = frames_tail_size(s->codec);
    if (length < FRAMES_ALIGN + n) {
        return broken(s, "the file is cut off: it has no end");
    }
    int r = source_read(s->in, tail, n, length - n, s->err);
    if (r < 0) {
        return r;
    }
    if (frames_get_tail(s->codec, tail, n, &s->tail) < 0 || s->tail.block_size != s->block_size) {
        return broken(s, "the file is cut off or damaged: its last note is not there");
    }
    if (s->tail.index_bytes > length - n - FRAMES_ALIGN) {
        return broken(s, "the index is larger than the file");
    }
    return 0;
}

static int place_frames(struct restore *s, uint64_t end)
{
    uint64_t at = FRAMES_ALIGN;
    for (uint64_t i = 0; i < s->blocks; i++) {
        s->offsets[i] = at;
        uint64_t step = frames_step(s->rows[i].packed, s->codec);
        if (step > end - at) {
            return broken(s, "the index and the file's length disagree");
        }
        at += step;
    }
    return at == end ? 0 : broken(s, "the index and the file's length disagree");
}

static int read_index(struct restore *s, uint64_t length)
{
    uint64_t end = length - frames_tail_size(s->codec) - s->tail.index_bytes;
    s->blocks = s->tail.blocks;
    s->plain_length = s->tail.plain_length;
    s->rows = calloc(s->blocks + 1, sizeof(*s->rows));
    s->offsets = calloc(s->blocks + 1, sizeof(*s->offsets));
    uint8_t *index = malloc(s->tail.index_bytes + 1);
    int r = s->rows && s->offsets && index
                ? source_read(s->in, index, s->tail.index_bytes, end, s->err)
                : error_set(s->err, ENOMEM, "no memory for the index");
    if (r == 0 && frames_get_index(s->codec, index, s->tail.index_bytes, s->block_size, s->rows,
                                   s->blocks) < 0) {
        r = broken(s, "the index is damaged");
    }
    free(index);
    return r == 0 ? place_frames(s, end) : r;
}

static int look_inside(struct restore *s)
{
    uint64_t length = source_size(s->in);
    uint8_t head[64] = {0};
    if (length > 0 && !s->o->as_is) {
        size_t n = (size_t)min_u64(sizeof(head), length);
        int r = source_read(s->in, head, n, 0, s->err);
        if (r < 0) {
            return r;
        }
        s->codec = length < FRAMES_ALIGN ? NULL : frames_get_head(head, n, &s->block_size);
        if (!s->codec && frames_is_claimed(head, n)) {
            return broken(s, "it is compressed, but cut off or damaged at its beginning, or made "
                             "by a newer penstock (--as-is gives its bytes)");
        }
    }
    if (!s->codec) {
        s->block_size = BLOCK;
        s->plain_length = length;
        s->blocks = length / BLOCK + (length % BLOCK != 0);
        return 0;
    }
    s->result->codec = s->codec->name;
    int r = read_tail(s, length);
    return r == 0 ? read_index(s, length) : r;
}

static int open_digest(struct restore *s)
{
    if (!s->o->expected && !(s->codec && s->tail.digest_length)) {
        return s->o->require_digest ? broken(s, "there is no digest to check it against") : 0;
    }
    int r = digest_open("sha256", &s->digest);
    if (r == 0) {
        r = blkhash_outer_new(s->digest, BLKHASH_BLOCK_DEFAULT, &s->outer);
    }
    return r < 0 ? error_set(s->err, -r, "no digest") : 0;
}

/* ---- the steps of a block ---- */

static int read_block(struct restore *s, struct block *b)
{
    if (!s->codec) {
        uint64_t at = b->number * BLOCK;
        b->len = (size_t)min_u64(BLOCK, s->plain_length - at);
        return source_read(s->in, b->plain, b->len, at, s->err);
    }
    const struct frames_row *row = &s->rows[b->number];
    b->len = row->plain;
    return source_read(s->in, b->packed, row->packed, s->offsets[b->number], s->err);
}

/* On the thread pool. */
static int transform(void *arg)
{
    struct block *b = arg;
    const struct restore *s = b->restore;
    if (s->codec) {
        const struct frames_row *row = &s->rows[b->number];
        int64_t n = s->codec->expand(b->packed, row->packed, b->plain, s->block_size);
        if (n != (int64_t)row->plain) {
            return n < 0 ? (int)n : -EBADMSG;
        }
    }
    return s->digest ? state_digests(s->digest, b->plain, b->len, b->digests) : 0;
}

static int pass_on(struct restore *s, struct block *b)
{
    int r = 0;
    if (s->digest) {
        size_t n = state_blocks(b->len);
        r = blkhash_outer_digests(s->outer, b->digests, n);
    }
    if (r == 0) {
        r = pace_wait(&s->pace, b->len);
    }
    if (r == 0) {
        r = stream_write(&s->out, b->plain, b->len);
    }
    if (r < 0) {
        return error_set(s->err, -r, "the reader can't be given byte %" PRIu64 " of the stream",
                         b->number * s->block_size);
    }
    s->result->bytes += b->len;
    if (s->o->progress) {
        atomic_fetch_add(s->o->progress, b->len);
    }
    return 0;
}

/* The turn is held while the block is written: the stream is one. */
static int write_in_turn(struct restore *s, struct block *b)
{
    int r = 0;
    fmutex_lock(&s->turn_lock);
    while (r == 0 && s->turn != b->number) {
        r = fcond_wait(&s->turn_moved, &s->turn_lock, DEADLINE_NONE);
    }
    fmutex_unlock(&s->turn_lock);
    if (r == 0) {
        r = pass_on(s, b);
    }
    if (r == 0) {
        fmutex_lock(&s->turn_lock);
        s->turn++;
        fcond_broadcast(&s->turn_moved);
        fmutex_unlock(&s->turn_lock);
    }
    return r;
}

/* ---- lanes ---- */

static int lane_buffers(struct restore *s, struct block *b)
{
    *b = (struct block){.restore = s};
    int r = bufpool_get(s->block_size, (void **)&b->plain);
    if (r == 0 && s->codec) {
        b->packed_room = s->codec->bound(s->block_size);
        r = bufpool_get(b->packed_room, (void **)&b->packed);
    }
    if (r == 0 && s->digest) {
        size_t n = s->block_size / BLKHASH_BLOCK_DEFAULT + 1;
        b->digests = malloc(n * BLKHASH_DIGEST_MAX);
        r = b->digests ? 0 : -ENOMEM;
    }
    return r < 0 ? error_set(s->err, -r, "no memory for buffers") : 0;
}

static int lane_run(struct restore *s, struct block *b)
{
    while (s->next_block < s->blocks && s->failed == 0) {
        b->number = s->next_block++;
        int r = read_block(s, b);
        if (r < 0) {
            return r;
        }
        r = s->digest || s->codec ? offload(transform, b) : 0;
        if (r < 0) {
            error_set(s->err, -r, "block %" PRIu64 " can't be expanded: it is damaged", b->number);
            error_endpoint(s->err, s->o->name);
            return r;
        }
        r = write_in_turn(s, b);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static void lane(void *arg)
{
    struct restore *s = arg;
    struct block b = {0};
    int r = lane_buffers(s, &b);
    if (r == 0) {
        r = lane_run(s, &b);
    }
    if (r < 0) {
        fail(s, r);
    }
    bufpool_put(b.plain, s->block_size);
    bufpool_put(b.packed, b.packed_room);
    free(b.digests);
}

static unsigned lanes_wanted(const struct restore *s)
{
    unsigned n = source_is_deep(s->in) ? LANES_DEEP : LANES_FILE;
    if (s->codec || s->digest) {
        n += s->o->threads ? s->o->threads : cpus_available();
    }
    return n < LANES_MAX ? n : LANES_MAX;
}

static int run_lanes(struct restore *s)
{
    s->result->way = source_way(s->in);
    for (unsigned i = 0; i < lanes_wanted(s); i++) {
        int r = fgroup_spawn(&s->lanes, lane, s);
        if (r < 0 && i == 0) {
            fail(s, error_set(s->err, -r, "no memory for a fiber"));
        }
    }
    fgroup_wait(&s->lanes, true);
    if (s->failed == 0 && fiber_canceled()) {
        s->failed = error_set(s->err, ECANCELED, "it was stopped");
    }
    return s->failed;
}

/* ---- splice ---- */

static int splice_failed(struct restore *s, ssize_t n, uint64_t done)
{
    if (n == 0) {
        error_set(s->err, EIO, "the file became shorter while it was read");
        error_endpoint(s->err, s->o->name);
        error_at(s->err, s->o->offset + done);
        return -EIO;
    }
    return error_set(s->err, (int)-n, "the reader can't be given byte %" PRIu64 " of the stream",
                     done);
}

/* 0, -errno; 1: this pair of descriptors can't, and nothing was moved. */
static int run_splice(struct restore *s)
{
    uint64_t at = s->o->offset, end = s->o->offset + s->plain_length;
    while (at < end) {
        size_t step = (size_t)min_u64(SPLICE_STEP, end - at);
        ssize_t n = stream_splice_from(&s->out, source_fd(s->in), &at, step);
        if (n == -EINVAL && s->result->bytes == 0) {
            return 1;
        }
        if (n <= 0) {
            return splice_failed(s, n, s->result->bytes);
        }
        s->result->bytes += (uint64_t)n;
        if (s->o->progress) {
            atomic_fetch_add(s->o->progress, (uint64_t)n);
        }
        if (pace_wait(&s->pace, (uint64_t)n) < 0) {
            return error_set(s->err, ECANCELED, "it was stopped");
        }
    }
    s->result->way = "splice";
    return 0;
}

static bool can_splice(const struct restore *s)
{
    return !s->codec && !s->digest && s->out.kind == STREAM_PIPE && source_fd(s->in) >= 0 &&
           !source_is_direct(s->in);
}

/* ---- one restore ---- */

static int check_digest(struct restore *s)
{
    if (!s->digest) {
        return 0;
    }
    struct restore_result *result = s->result;
    result->digest_len = digest_length(s->digest);
    int r = blkhash_outer_final(s->outer, result->bytes, result->digest);
    if (r < 0) {
        return error_set(s->err, -r, "the digest can't be finished");
    }
    const uint8_t *want = s->o->expected ? s->o->expected : s->tail.digest;
    size_t len = s->o->expected ? s->o->expected_len : s->tail.digest_length;
    if (len != result->digest_len || memcmp(want, result->digest, len) != 0) {
        return broken(s, "the digest of what was restored is not the one that was saved: "
                         "the bytes must not be used");
    }
    result->verified = true;
    return 0;
}

static int set_up(struct restore *s)
{
    int r = stream_open(&s->out, s->o->out_fd);
    if (r < 0) {
        return error_set(s->err, -r, "the reader's descriptor can't be used");
    }
    pace_init(&s->pace, s->o->rate);
    const struct source_options so = {s->o->name, s->o->fd, s->o->offset, s->o->direct};
    r = source_open(&so, &s->in, s->err);
    if (r == 0) {
        r = look_inside(s);
    }
    if (r == 0) {
        r = open_digest(s);
    }
    if (r == 0 && s->o->total) {
        atomic_store(s->o->total, s->plain_length);
    }
    return r;
}

static void tear_down(struct restore *s)
{
    source_close(s->in);
    stream_done(&s->out);
    blkhash_outer_free(s->outer);
    digest_free(s->digest);
    free(s->rows);
    free(s->offsets);
    fcond_done(&s->turn_moved);
    fmutex_done(&s->turn_lock);
}

int restore_run(const struct restore_options *o, struct restore_result *ret, struct error *err)
{
    struct error own;
    error_clear(&own);
    *ret = (struct restore_result){0};
    struct restore s = {.o = o, .result = ret, .err = err ? err : &own};
    s.out.fd = -1;
    fmutex_init(&s.turn_lock);
    fcond_init(&s.turn_moved);
    fgroup_init(&s.lanes);
    uint64_t start = worker_now_ns(worker_self());
    int r = set_up(&s);
    if (r == 0) {
        r = can_splice(&s) ? run_splice(&s) : 1;
    }
    if (r == 1) {
        r = run_lanes(&s);
    }
    if (r == 0) {
        r = check_digest(&s);
    }
    ret->consumer_wait_ns = s.out.waited_ns;
    ret->elapsed_ns = worker_now_ns(worker_self()) - start;
    fiber_shield();
    tear_down(&s);
    fiber_unshield();
    return r;
}
