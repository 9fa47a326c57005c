/*
 * bench io: random and sequential requests on one or more endpoints at several depths; the
 * iometer of result 2.
 *
 * For each depth, every endpoint gets `depth` fibers, spread over the workers: each fiber has its
 * own buffer, its own random state and its own histogram, so nothing is shared while measuring. A
 * run ends by the clock; requests that were begun before the end are counted.
 */
#include "bench/bench.h"

#include "bench/histogram.h"
#include "bench/published.h"
#include "bench/sample.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/size.h"
#include "core/worker.h"
#include "volume/volume.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct run {
    const struct bench_io_options *o;
    uint64_t end_ns;
    _Atomic int failed;
    struct error err; /* written once, by who made failed non-zero */
};

struct lane {
    struct run *run;
    struct volume *volume;
    uint64_t random; /* xorshift state, never 0 */
    uint64_t next;   /* sequential: the next block */
    uint64_t stride; /* sequential: lanes of one volume take turns */
    uint64_t done;
    struct histogram latency;
};

/* What one worker does in a run: the lanes from first on, every step-th. */
struct share {
    struct lane *lanes;
    unsigned first, step, count;
};

static uint64_t next_random(struct lane *l)
{
    l->random ^= l->random << 13;
    l->random ^= l->random >> 7;
    l->random ^= l->random << 17;
    return l->random;
}

static uint64_t next_offset(struct lane *l, uint32_t block_size, bool random)
{
    uint64_t blocks = l->volume->size / block_size;
    if (random) {
        return next_random(l) % blocks * block_size;
    }
    uint64_t block = l->next;
    l->next = (block + l->stride) % blocks;
    return block * block_size;
}

static bool is_write(struct lane *l)
{
    switch (l->run->o->pattern) {
    case IO_RANDWRITE:
    case IO_WRITE:
        return true;
    case IO_RANDRW:
        return next_random(l) % 100 >= l->run->o->read_percent;
    default:
        return false;
    }
}

static void lane_failed(struct lane *l, int r, const struct error *err)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&l->run->failed, &none, r)) {
        l->run->err = *err;
    }
}

static void run_lane(void *arg)
{
    struct lane *l = arg;
    const struct bench_io_options *o = l->run->o;
    bool random = o->pattern <= IO_RANDRW;
    struct error err;
    void *buf = NULL;
    error_clear(&err);
    int r = bufpool_get(o->block_size, &buf);
    if (r < 0) {
        error_set(&err, -r, "no memory for buffers");
    } else {
        memset(buf, 0x5a, o->block_size);
    }
    uint64_t now = worker_now_ns(worker_self());
    while (r == 0 && now < l->run->end_ns && atomic_load(&l->run->failed) == 0) {
        uint64_t offset = next_offset(l, o->block_size, random);
        r = is_write(l) ? volume_write(l->volume, buf, o->block_size, offset, 0, &err)
                        : volume_read(l->volume, buf, o->block_size, offset, &err);
        uint64_t then = worker_now_ns(worker_self());
        histogram_add(&l->latency, then - now);
        l->done += r == 0;
        now = then;
        if (fiber_canceled()) {
            r = error_set(&err, ECANCELED, "it was stopped");
        }
    }
    if (r < 0) {
        lane_failed(l, r, &err);
    }
    bufpool_put(buf, o->block_size);
}

static void run_share(void *arg)
{
    struct share *s = arg;
    struct fgroup group;
    fgroup_init(&group);
    for (unsigned i = s->first; i < s->count; i += s->step) {
        int r = fgroup_spawn(&group, run_lane, &s->lanes[i]);
        if (r < 0) {
            struct error err;
            error_clear(&err);
            error_set(&err, -r, "no memory for a fiber");
            lane_failed(&s->lanes[i], r, &err);
        }
    }
    fgroup_wait(&group, true);
}

struct remote_share {
    struct worker *worker;
    struct share share;
};

static void call_share(void *arg)
{
    struct remote_share *r = arg;
    worker_call(r->worker, run_share, &r->share);
}

/* All lanes at once, on all workers; back when the last has ended. */
static int run_lanes(const struct bench_io_options *o, struct lane *lanes, unsigned count)
{
    unsigned n = workers_count(o->workers);
    struct remote_share *shares = calloc(n, sizeof(*shares));
    struct fgroup group;
    int r = shares ? 0 : -ENOMEM;
    fgroup_init(&group);
    for (unsigned i = 0; r == 0 && i < n; i++) {
        shares[i] = (struct remote_share){workers_get(o->workers, i), {lanes, i, n, count}};
        r = fgroup_spawn(&group, call_share, &shares[i]);
    }
    fgroup_wait(&group, false);
    free(shares);
    return r;
}

/* ---- measuring ---- */

struct measured {
    struct sample iops;
    struct histogram latency;
};

static void set_up_lanes(const struct bench_io_options *o, struct run *run, struct lane *lanes,
                         unsigned depth, unsigned round)
{
    for (unsigned i = 0; i < o->volumes_count * depth; i++) {
        unsigned drive = i % o->volumes_count, slot = i / o->volumes_count;
        lanes[i] = (struct lane){.run = run,
                                 .volume = o->volumes[drive],
                                 .stride = depth,
                                 .next = slot,
                                 .random = 0x9e3779b97f4a7c15u * (i + 1) + round};
    }
}

static int measure(const struct bench_io_options *o, unsigned depth, unsigned round,
                   struct measured *m, struct error *err)
{
    unsigned count = o->volumes_count * depth;
    assert(count > 0);
    struct lane *lanes = calloc(count, sizeof(*lanes));
    struct run run = {.o = o};
    if (!lanes) {
        return error_set(err, ENOMEM, "out of memory");
    }
    error_clear(&run.err);
    set_up_lanes(o, &run, lanes, depth, round);
    uint64_t start = worker_now_ns(worker_self());
    run.end_ns = start + o->run_ns;
    int r = run_lanes(o, lanes, count);
    double seconds = (double)(worker_now_ns(worker_self()) - start) / 1e9;
    uint64_t done = 0;
    for (unsigned i = 0; i < count; i++) {
        done += lanes[i].done;
        histogram_merge(&m->latency, &lanes[i].latency);
    }
    free(lanes);
    int failed = atomic_load(&run.failed);
    if (failed < 0) {
        *err = run.err;
        return failed;
    }
    sample_add(&m->iops, (double)done / seconds);
    return r < 0 ? error_set(err, -r, "the lanes can't be started") : 0;
}

/* ---- the sheet ---- */

static const struct sheet_column columns[] = {
    {"depth", "depth", -1},  {"IOPS", "iops", 0},        {"spread %", "spread_percent", 0},
    {"MiB/s", "mib_s", 1},   {"p50 us", "p50_us", 1},    {"p90 us", "p90_us", 1},
    {"p99 us", "p99_us", 1}, {"p99.9 us", "p999_us", 1}, {"max us", "max_us", 1},
    {NULL, NULL, 0},
};

static const struct sheet_column published_columns[] = {
    {"depth", "depth", -1},
    {"one thread", "one_thread_iops", 0},
    {"a thread a drive", "thread_a_drive_iops", 0},
    {"ratio", "ratio", 2},
    {NULL, NULL, 0},
};

static const char *const pattern_names[] = {"random reads", "random writes",
                                            "random reads and writes", "sequential reads",
                                            "sequential writes"};

static int fill_measured(const struct bench_io_options *o, struct sheet *s,
                         const struct measured *m)
{
    struct sheet_table *t = sheet_add_table(s, columns);
    char size[SIZE_TEXT_MAX];
    if (!t) {
        return -ENOMEM;
    }
    snprintf(t->title, sizeof(t->title), "%s of %s, %u endpoint%s, %u worker%s",
             pattern_names[o->pattern], size_format(o->block_size, size), o->volumes_count,
             o->volumes_count == 1 ? "" : "s", workers_count(o->workers),
             workers_count(o->workers) == 1 ? "" : "s");
    t->plot_columns[0] = 1;
    for (unsigned i = 0; i < BENCH_IO_DEPTHS_MAX && o->depths[i]; i++) {
        struct sheet_row *row = sheet_add_row(t);
        if (!row) {
            return -ENOMEM;
        }
        double iops = sample_median(&m[i].iops);
        sheet_text(row, 0, "%u", o->depths[i]);
        sheet_number(row, 1, iops);
        sheet_number(row, 2, sample_spread(&m[i].iops));
        sheet_number(row, 3, iops * o->block_size / (1 << 20));
        sheet_number(row, 4, (double)histogram_percentile(&m[i].latency, 50) / 1e3);
        sheet_number(row, 5, (double)histogram_percentile(&m[i].latency, 90) / 1e3);
        sheet_number(row, 6, (double)histogram_percentile(&m[i].latency, 99) / 1e3);
        sheet_number(row, 7, (double)histogram_percentile(&m[i].latency, 99.9) / 1e3);
        sheet_number(row, 8, (double)m[i].latency.max / 1e3);
    }
    return 0;
}

static int fill_published(const struct bench_io_options *o, struct sheet *s)
{
    static const unsigned depths[6] = {1, 2, 4, 8, 16, 32};
    bool write = o->pattern == IO_RANDWRITE;
    struct sheet_table *t = sheet_add_table(s, published_columns);
    if (!t) {
        return -ENOMEM;
    }
    snprintf(t->title, sizeof(t->title),
             "published: 4 KiB random %s, six NFS drives of one VM (2017)",
             write ? "writes" : "reads");
    t->plot_columns[0] = 1;
    t->plot_columns[1] = 2;
    for (unsigned i = 0; i < 6; i++) {
        struct sheet_row *row = sheet_add_row(t);
        if (!row) {
            return -ENOMEM;
        }
        double one = published_nfs[write ? 2 : 0].iops[i],
               many = published_nfs[write ? 3 : 1].iops[i];
        sheet_text(row, 0, "%u", depths[i]);
        sheet_number(row, 1, one);
        sheet_number(row, 2, many);
        sheet_number(row, 3, many / one);
    }
    return 0;
}

static int check_volumes(const struct bench_io_options *o, struct error *err)
{
    for (unsigned i = 0; i < o->volumes_count; i++) {
        const struct volume *v = o->volumes[i];
        if (v->size < o->block_size) {
            error_endpoint(err, v->endpoint);
            return error_set(err, EINVAL, "it is smaller than one block");
        }
    }
    return 0;
}

int bench_io(const struct bench_io_options *o, const struct bench_watch *w, struct sheet *s,
             struct error *err)
{
    struct measured *m = calloc(BENCH_IO_DEPTHS_MAX, sizeof(*m));
    int r = m ? check_volumes(o, err) : error_set(err, ENOMEM, "out of memory");
    unsigned depths = 0, step = 0;
    sheet_init(s, "Requests a second");
    sheet_about_host(s);
    while (depths < BENCH_IO_DEPTHS_MAX && o->depths[depths]) {
        depths++;
    }
    for (unsigned round = 0; r == 0 && round < o->rounds; round++) {
        for (unsigned i = 0; r == 0 && i < depths; i++) {
            r = bench_step(w, step, o->rounds * depths, pattern_names[o->pattern], err);
            step++;
            r = r < 0 ? r : measure(o, o->depths[i], round, &m[i], err);
        }
    }
    if (r == 0) {
        r = fill_measured(o, s, m);
    }
    if (r == 0 && o->beside_published) {
        r = fill_published(o, s);
    }
    free(m);
    return r < 0 ? error_set(err, -r, "out of memory") : 0;
}
