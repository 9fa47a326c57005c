/*
 * Saving: lanes that each take the next block of the stream, transform it, take their turn, and
 * write it.
 *
 *      stream --(one lane at a time reads a block, in order)-->
 *          transform on the thread pool (digest, zero test, compression), side by side -->
 *          turn (in order): place in the file, outer digest, row of the index -->
 *          store_write, side by side
 *
 * So reading, compressing and writing overlap whatever is slowest, memory is bounded by the number
 * of lanes, and there is one loop for all modes. A block is 1 MiB: what the pipe holds, and what
 * disks like. All lanes are fibers of one worker: state between two waits needs no lock.
 */
#include "jobs/save.h"

#include "channel/stream.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/fsync.h"
#include "core/size.h"
#include "core/worker.h"
#include "digest/blkhash.h"
#include "digest/zero.h"
#include "jobs/frames.h"
#include "jobs/pace.h"
#include "jobs/save_move.h"
#include "jobs/state_digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK STORE_BLOCK
#define BLOCK_DIGESTS (BLOCK / BLKHASH_BLOCK_DEFAULT)
#define LANES_MAX 64u

struct save {
    const struct save_options *o;
    struct save_result *result;
    struct stream in;
    struct store *out;
    struct digest *digest;
    struct blkhash_outer *outer;
    struct pace pace;
    struct fgroup lanes;

    struct fmutex reading; /* whoever holds it reads the next block */
    uint64_t next_block;
    bool at_end;

    struct fmutex turn_lock; /* guards what follows */
    struct fcond turn_moved;
    uint64_t turn;
    uint64_t position; /* in the store */
    struct frames_row *rows;
    uint64_t rows_room;

    uint64_t moving_ns; /* run_move() */
    int failed;         /* the first -errno, told in err */
    struct error *err;
};

struct block {
    struct save *save;
    uint64_t number;
    uint8_t *plain;
    size_t len;
    uint8_t *packed;
    size_t packed_room;
    size_t packed_len; /* with padding */
    uint32_t frame_len;
    bool zero;
    uint8_t digests[BLOCK_DIGESTS * BLKHASH_DIGEST_MAX];
};

static void fail(struct save *s, int r)
{
    if (s->failed == 0) {
        s->failed = r;
        fgroup_cancel(&s->lanes);
    }
}

/* ---- the steps of a block ---- */

/* The first block is cut so that all others start at multiples of BLOCK in the file. */
static size_t wanted_length(const struct save *s)
{
    bool whole = s->o->codec || s->digest || s->next_block > 0;
    return whole ? BLOCK : store_first_block(s->out);
}

/* 1: a block was read, 0: the stream has ended, -errno. */
static int read_block(struct save *s, struct block *b)
{
    fmutex_lock(&s->reading);
    int r = 0;
    if (!s->at_end && s->failed == 0) {
        size_t want = wanted_length(s);
        ssize_t n = stream_read(&s->in, b->plain, want);
        if (n < 0) {
            r = error_set(s->err, (int)-n, "the stream can't be read");
        } else {
            s->at_end = (size_t)n < want;
            b->len = (size_t)n;
            b->number = s->next_block;
            s->next_block += n > 0;
            s->result->bytes += (uint64_t)n;
            if (s->o->progress) {
                atomic_fetch_add(s->o->progress, (uint64_t)n);
            }
            r = n > 0;
        }
        if (r > 0 && pace_wait(&s->pace, b->len) < 0) {
            r = -ECANCELED;
        }
    }
    fmutex_unlock(&s->reading);
    return r;
}

static int pack_block(struct block *b)
{
    const struct codec *c = b->save->o->codec;
    int64_t n = c->compress(b->save->o->level, b->plain, b->len, b->packed, b->packed_room);
    if (n < 0) {
        return (int)n;
    }
    b->frame_len = (uint32_t)n;
    b->packed_len = frames_pad(c, b->packed, (size_t)n);
    return 0;
}

/* On the thread pool. */
static int transform(void *arg)
{
    struct block *b = arg;
    const struct save *s = b->save;
    int r = s->digest ? state_digests(s->digest, b->plain, b->len, b->digests) : 0;
    b->zero = r == 0 && s->o->sparse && is_zero(b->plain, b->len);
    return r == 0 && s->o->codec ? pack_block(b) : r;
}

static int grow_rows(struct save *s, uint64_t n)
{
    if (n <= s->rows_room) {
        return 0;
    }
    if (n > FRAMES_BLOCKS_MAX) {
        return -EFBIG;
    }
    uint64_t room = max_u64(1024, s->rows_room * 2);
    struct frames_row *rows = realloc(s->rows, room * sizeof(*rows));
    if (!rows) {
        return -ENOMEM;
    }
    s->rows = rows;
    s->rows_room = room;
    return 0;
}

/* With the turn held: what must happen in the stream's order. */
static int place(struct save *s, const struct block *b, uint64_t *offset)
{
    int r = 0;
    *offset = s->position;
    if (s->o->codec) {
        r = grow_rows(s, b->number + 1);
        if (r == 0) {
            s->rows[b->number] = (struct frames_row){b->frame_len, (uint32_t)b->len};
        }
    }
    if (r == 0 && s->digest) {
        size_t n = state_blocks(b->len);
        r = blkhash_outer_digests(s->outer, b->digests, n);
    }
    s->position += s->o->codec ? b->packed_len : b->len;
    return r < 0 ? error_set(s->err, -r, "the block can't be accounted for") : 0;
}

static int take_turn(struct save *s, const struct block *b, uint64_t *offset)
{
    int r = 0;
    fmutex_lock(&s->turn_lock);
    while (r == 0 && s->turn != b->number) {
        r = fcond_wait(&s->turn_moved, &s->turn_lock, DEADLINE_NONE);
    }
    if (r == 0) {
        r = place(s, b, offset);
        s->turn++;
    }
    fcond_broadcast(&s->turn_moved);
    fmutex_unlock(&s->turn_lock);
    return r;
}

static int put_block(struct save *s, const struct block *b, uint64_t offset)
{
    if (b->zero) {
        s->result->zero_bytes += b->len;
        return store_zero(s->out, b->len, offset, s->err);
    }
    const uint8_t *bytes = s->o->codec ? b->packed : b->plain;
    size_t len = s->o->codec ? b->packed_len : b->len;
    s->result->stored_bytes += len;
    return store_write(s->out, bytes, len, offset, s->err);
}

/* ---- lanes ---- */

static int lane_buffers(struct save *s, struct block *b)
{
    *b = (struct block){.save = s};
    int r = bufpool_get(BLOCK, (void **)&b->plain);
    if (r == 0 && s->o->codec) {
        b->packed_room = frames_room(s->o->codec, BLOCK);
        r = bufpool_get(b->packed_room, (void **)&b->packed);
    }
    return r < 0 ? error_set(s->err, -r, "no memory for buffers") : 0;
}

static int lane_run(struct save *s, struct block *b)
{
    bool transforms = s->digest || s->o->sparse || s->o->codec;
    for (;;) {
        int r = read_block(s, b);
        if (r <= 0) {
            return r;
        }
        r = transforms ? offload(transform, b) : 0;
        if (r < 0) {
            return error_set(s->err, -r, "a block can't be digested or compressed");
        }
        uint64_t offset = 0;
        r = take_turn(s, b, &offset);
        if (r == 0) {
            r = put_block(s, b, offset);
        }
        if (r < 0) {
            return r;
        }
    }
}

static void lane(void *arg)
{
    struct save *s = arg;
    struct block *b = malloc(sizeof(*b));
    int r = b ? lane_buffers(s, b) : error_set(s->err, ENOMEM, "no memory for buffers");
    if (r == 0) {
        r = lane_run(s, b);
    }
    if (r < 0) {
        fail(s, r);
    }
    if (b) {
        bufpool_put(b->plain, BLOCK);
        bufpool_put(b->packed, b->packed_room);
        free(b);
    }
}

static unsigned lanes_wanted(const struct save *s)
{
    unsigned threads = s->o->threads ? s->o->threads : cpus_available();
    unsigned n = store_depth(s->out) + 1;
    if (s->o->codec || s->digest) {
        n += threads;
    }
    return n < LANES_MAX ? n : LANES_MAX;
}

/* Bytes as they are through the page cache: 0 or -errno, 1 when that is not what is wanted. */
static int run_move(struct save *s)
{
    struct save_move m = {.in = &s->in, .offset = s->o->store.offset, .name = s->o->store.name};
    m.out_fd = store_cached_fd(s->out, &m.write_flags);
    if (m.out_fd < 0 || s->o->codec || s->digest || s->o->sparse) {
        return 1;
    }
    m.pace = &s->pace;
    m.progress = s->o->progress;
    int r = save_move_run(&m, s->err);
    s->result->bytes = s->result->stored_bytes = s->position = m.moved;
    s->moving_ns = m.writing_ns;
    return r;
}

static int run_lanes(struct save *s)
{
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

/* ---- head and end of the file ---- */

static int write_head(struct save *s)
{
    if (!s->o->codec) {
        return 0;
    }
    void *head = NULL;
    int r = bufpool_get(FRAMES_ALIGN, &head);
    if (r < 0) {
        return error_set(s->err, -r, "no memory for buffers");
    }
    frames_put_head(s->o->codec, BLOCK, head);
    r = store_write(s->out, head, FRAMES_ALIGN, 0, s->err);
    s->position = FRAMES_ALIGN;
    bufpool_put(head, FRAMES_ALIGN);
    return r;
}

static int write_end(struct save *s)
{
    const struct codec *c = s->o->codec;
    if (!c) {
        return 0;
    }
    struct frames_tail tail = {
        .blocks = s->next_block,
        .index_bytes = frames_index_size(c, s->next_block),
        .plain_length = s->result->bytes,
        .block_size = BLOCK,
        .digest_length = (uint8_t)s->result->digest_len,
    };
    memcpy(tail.digest, s->result->digest, s->result->digest_len);
    size_t len = tail.index_bytes + frames_tail_size(c);
    uint8_t *end = malloc(len);
    if (!end) {
        return error_set(s->err, ENOMEM, "no memory for the index");
    }
    frames_put_index(c, s->rows, s->next_block, end);
    frames_put_tail(c, &tail, end + tail.index_bytes);
    int r = store_write(s->out, end, len, s->position, s->err);
    s->position += len;
    s->result->stored_bytes += len;
    free(end);
    return r;
}

static int finish_digest(struct save *s)
{
    if (!s->digest) {
        return 0;
    }
    s->result->digest_len = digest_length(s->digest);
    int r = blkhash_outer_final(s->outer, s->result->bytes, s->result->digest);
    return r < 0 ? error_set(s->err, -r, "the digest can't be finished") : 0;
}

/* ---- one save ---- */

static int set_up(struct save *s)
{
    int r = stream_open(&s->in, s->o->in_fd);
    if (r < 0) {
        return error_set(s->err, -r, "the stream can't be read");
    }
    if (s->o->digest) {
        r = digest_open("sha256", &s->digest);
        if (r == 0) {
            r = blkhash_outer_new(s->digest, BLKHASH_BLOCK_DEFAULT, &s->outer);
        }
        if (r < 0) {
            return error_set(s->err, -r, "no digest");
        }
    }
    pace_init(&s->pace, s->o->rate);
    return store_open(&s->o->store, &s->out, s->err);
}

static int stream_to_store(struct save *s)
{
    int r = write_head(s);
    if (r == 0) {
        r = run_move(s);
    }
    if (r == 1) {
        r = run_lanes(s);
    }
    if (r == 0) {
        r = finish_digest(s);
    }
    if (r == 0) {
        r = write_end(s);
    }
    return r == 0 ? store_finish(s->out, s->position, s->err) : r;
}

static void tear_down(struct save *s)
{
    store_free(s->out);
    stream_done(&s->in);
    blkhash_outer_free(s->outer);
    digest_free(s->digest);
    free(s->rows);
    fcond_done(&s->turn_moved);
    fmutex_done(&s->turn_lock);
    fmutex_done(&s->reading);
}

int save_run(const struct save_options *o, struct save_result *ret, struct error *err)
{
    struct error own;
    error_clear(&own);
    *ret = (struct save_result){0};
    struct save s = {.o = o, .result = ret, .err = err ? err : &own};
    s.in.fd = -1;
    fmutex_init(&s.reading);
    fmutex_init(&s.turn_lock);
    fcond_init(&s.turn_moved);
    fgroup_init(&s.lanes);
    uint64_t start = worker_now_ns(worker_self());
    int r = set_up(&s);
    if (r == 0) {
        r = stream_to_store(&s);
        ret->way = store_way(s.out);
        ret->producer_wait_ns = s.in.waited_ns;
        ret->store_wait_ns = store_waited_ns(s.out) + s.moving_ns;
    }
    ret->elapsed_ns = worker_now_ns(worker_self()) - start;
    fiber_shield(); /* what is left is to be closed and removed, canceled or not */
    tear_down(&s);
    fiber_unshield();
    return r;
}
