/* compare and map against what an array says, and how they end on errors and cancels. */
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/worker.h"
#include "jobs/compare.h"
#include "jobs/crew.h"
#include "jobs/map.h"
#include "tap.h"
#include "volume/endpoint.h"
#include "volume/fault.h"

#include <errno.h>

#define SIZE 700001u

static uint64_t seed = 1;

static uint64_t below(uint64_t n)
{
    uint64_t x = seed += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (x ^ x >> 31) % n;
}

static int in_worker(void *arg)
{
    void (**body)(void) = arg;
    (*body)();
    return 0;
}

/* A test whose body runs in a fiber. */
#define FIBER_TEST(name)                      \
    static void name##_body(void);            \
    static void name(void)                    \
    {                                         \
        void (*body)(void) = name##_body;     \
        EQ(worker_main(in_worker, &body), 0); \
    }                                         \
    static void name##_body(void)

static struct volume *open_name(const char *name)
{
    struct endpoint_options o;
    struct volume *v = NULL;
    endpoint_options_init(&o);
    o.writable = strncmp(name, "pattern", 7) != 0 && !strstr(name, ":pattern");
    if (!EQ(endpoint_open(name, &o, &v, NULL), 0)) {
        printf("# %s\n", name);
        exit(1);
    }
    return v;
}

static int compare_volumes(struct volume *a, struct volume *b, const struct compare_options *o,
                           struct compare_result *result, struct error *err)
{
    struct crew *crew;
    int r = compare_run(a, b, o, NULL, result, &crew, err);
    volume_close(a);
    volume_close(b);
    crew_free(crew);
    return r;
}

static int compare_names(const char *a, const char *b, const struct compare_options *o,
                         struct compare_result *result, struct error *err)
{
    return compare_volumes(open_name(a), open_name(b), o, result, err);
}

static void scribble(struct volume *a, struct volume *b, uint8_t *ma, uint8_t *mb)
{
    static uint8_t buf[50000];
    for (int i = 0; i < 12; i++) {
        size_t len = 1 + (size_t)below(sizeof(buf));
        uint64_t off = below(SIZE - len + 1);
        memset(buf, below(3) == 0 ? 0 : (int)below(256), len);
        unsigned who = (unsigned)below(12);
        if (who != 0) {
            OK(volume_write(a, buf, len, off, 0, NULL) == 0);
            memcpy(ma + off, buf, len);
        }
        if (who != 1) {
            OK(volume_write(b, buf, len, off, 0, NULL) == 0);
            memcpy(mb + off, buf, len);
        }
    }
}

FIBER_TEST(against_an_array)
{
    static uint8_t ma[SIZE];
    static uint8_t mb[SIZE];
    unsigned same = 0;
    for (unsigned round = 0; round < 60; round++) {
        struct volume *a = open_name("memory:700001");
        struct volume *b = open_name(round % 2 ? "fault:no-extents:memory:700001"
                                               : "fault:min=4096,max=32K:memory:700001");
        memset(ma, 0, SIZE);
        memset(mb, 0, SIZE);
        scribble(a, b, ma, mb);
        if (round % 3 == 0) {
            uint64_t off = below(SIZE);
            ma[off] ^= 1;
            OK(volume_write(a, ma + off, 1, off, 0, NULL) == 0);
        }
        uint64_t first = 0;
        while (first < SIZE && ma[first] == mb[first]) {
            first++;
        }
        struct compare_options o = {
            .workers = 1 + round % 3, .depth = 1 + round % 5, .request_size = 4096u << round % 4};
        struct compare_result result;
        EQ(compare_volumes(a, b, &o, &result, NULL), 0);
        same += first == SIZE;
        EQ(result.verdict, first == SIZE ? COMPARE_SAME : COMPARE_DIFFERENT);
        if (first < SIZE) {
            EQ(result.offset, first);
        }
    }
    OK(same > 5 && same < 55);
}

FIBER_TEST(sizes)
{
    static const struct {
        const char *a, *b;
        bool strict;
        enum compare_verdict verdict;
        uint64_t offset; /* UINT64_MAX: none */
    } rows[] = {
        {"null:0", "null:0", false, COMPARE_SAME, UINT64_MAX},
        {"null:9223372036854775807", "memory:9223372036854775807", true, COMPARE_SAME, UINT64_MAX},
        {"null:9223372036854775807", "memory:5", false, COMPARE_SIZES_DIFFER, UINT64_MAX},
        {"null:1000", "null:1001", true, COMPARE_DIFFERENT, UINT64_MAX},
        {"pattern:1M", "slice:0+1M:pattern:2M", true, COMPARE_SAME, UINT64_MAX},
        {"pattern:1M", "pattern:1048577", false, COMPARE_SIZES_DIFFER, UINT64_MAX},
        {"pattern:1048584", "pattern:1M", false, COMPARE_DIFFERENT, 1048581},
        {"null:1M", "pattern:1M", false, COMPARE_DIFFERENT, 15},
        {"fault:flip-read@700001:pattern:1M", "pattern:1M", false, COMPARE_DIFFERENT, 700001},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct compare_options o = {.workers = 2, .strict = rows[i].strict};
        struct compare_result result = {0};
        EQ(compare_names(rows[i].a, rows[i].b, &o, &result, NULL), 0);
        if (!EQ(result.verdict, rows[i].verdict) ||
            !EQ(result.has_offset, rows[i].offset != UINT64_MAX) ||
            (result.has_offset && !EQ(result.offset, rows[i].offset))) {
            printf("# %s and %s\n", rows[i].a, rows[i].b);
        }
    }
}

FIBER_TEST(holes_are_not_read)
{
    struct volume *a = open_name("memory:1E");
    struct volume *b = open_name("memory:1E");
    struct compare_options o = {.workers = 2, .request_size = 4096};
    struct compare_result result;
    EQ(volume_write(a, "x", 1, 1ull << 50, 0, NULL), 0);
    EQ(volume_write(b, "x", 1, 1ull << 50, 0, NULL), 0);
    EQ(compare_volumes(a, b, &o, &result, NULL), 0);
    EQ(result.verdict, COMPARE_SAME);
    EQ(result.read, 2 * 65536);
    EQ(result.skipped, (1ull << 60) - 65536);
}

/* The lowest event wins, whichever came first. */
FIBER_TEST(errors_and_differences_in_order)
{
    static const struct {
        const char *spec;
        int result;
        uint64_t offset;
    } rows[] = {
        {"fault:read-error=EIO@5M,flip-read@3M:pattern:8M", 0, 3 << 20},
        {"fault:read-error=EIO@5M,flip-read@3M,delay-read=30ms@3M:pattern:8M", 0, 3 << 20},
        {"fault:read-error=EIO@3M,flip-read@5M:pattern:8M", -EIO, 3 << 20},
        {"fault:delay-read=30ms@3M,read-error=EIO@3M,flip-read@5M:pattern:8M", -EIO, 3 << 20},
        {"fault:flip-read@6M,flip-read@2097159,delay-read=30ms@2M:pattern:8M", 0, 2097159},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct compare_options o = {.workers = 2, .depth = 8, .request_size = 65536};
        struct compare_result result = {0};
        struct error err = {0};
        EQ(compare_names("pattern:8M", rows[i].spec, &o, &result, &err), rows[i].result);
        if (rows[i].result < 0) {
            EQ(err.offset, rows[i].offset);
            STREQ(err.endpoint, rows[i].spec);
        } else {
            EQ(result.offset, rows[i].offset);
        }
    }
    struct compare_options o = {.workers = 2};
    struct compare_result result;
    struct error err = {0};
    EQ(compare_names("fault:extents-error=EIO:memory:1M", "memory:1M", &o, &result, &err), -EIO);
    EQ(err.offset, 0);
}

struct canceled {
    struct volume *held;
    int result;
    struct fiber *self;
};

static void compare_held(void *arg)
{
    struct canceled *c = arg;
    struct compare_options o = {.workers = 2, .depth = 2, .request_size = 65536};
    struct compare_result result;
    struct crew *crew;
    struct volume *other = open_name("pattern:8M");
    c->self = fiber_self();
    c->result = compare_run(c->held, other, &o, NULL, &result, &crew, NULL);
    fiber_shield();
    volume_close(other);
    volume_close(c->held);
    crew_free(crew);
    fiber_unshield();
}

FIBER_TEST(a_cancel_ends_it)
{
    struct canceled c = {.held = open_name("fault:hold-read@4M+1M:pattern:8M"), .result = 1};
    struct fgroup g;
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, compare_held, &c), 0);
    while (fault_held(c.held) < 4) {
        fiber_sleep_ns(1000000);
    }
    fiber_cancel(c.self);
    fgroup_wait(&g, false);
    EQ(c.result, -ECANCELED);
}

struct walked {
    uint64_t at;
    uint32_t last;
    unsigned rows;
    unsigned stop_after;
};

static int walk_row(void *arg, const struct map_row *row)
{
    struct walked *w = arg;
    EQ(row->offset, w->at);
    OK(row->length > 0 && (w->rows == 0 || row->flags != w->last));
    w->at += row->length;
    w->last = row->flags;
    w->rows++;
    return w->rows == w->stop_after ? -EPIPE : 0;
}

FIBER_TEST(maps)
{
    struct volume *v = open_name("memory:1E");
    struct map_totals totals;
    struct error err = {0};
    struct walked w = {0};
    for (unsigned i = 0; i < 1000; i++) {
        /* Every third two chunks long. */
        uint64_t off = i * 65536ull * 4;
        OK(volume_write(v, "x", 1, off, 0, NULL) == 0);
        OK(i % 3 != 0 || volume_write(v, "x", 1, off + 65536, 0, NULL) == 0);
    }
    EQ(map_run(v, walk_row, &w, &totals, NULL), 0);
    EQ(w.at, 1ull << 60);
    EQ(w.rows, 2000);
    EQ(totals.rows, 2000);
    EQ(totals.bytes[0], (1000 + 334) * 65536);
    EQ(totals.bytes[EXTENT_HOLE | EXTENT_ZERO], (1ull << 60) - (1000 + 334) * 65536);
    w = (struct walked){.stop_after = 5};
    EQ(map_run(v, walk_row, &w, &totals, NULL), -EPIPE);
    EQ(w.rows, 5);
    volume_close(v);

    v = open_name("fault:extents-error=EIO@512K:memory:1M");
    EQ(map_run(v, NULL, NULL, &totals, &err), -EIO);
    volume_close(v);
    v = open_name("null:0");
    EQ(map_run(v, NULL, NULL, &totals, NULL), 0);
    EQ(totals.rows, 0);
    volume_close(v);
    v = open_name("pattern:1M");
    EQ(map_run(v, NULL, NULL, &totals, NULL), 0);
    EQ(totals.bytes[0], 1 << 20);
    volume_close(v);
}

int main(void)
{
    RUN(against_an_array);
    RUN(sizes);
    RUN(holes_are_not_read);
    RUN(errors_and_differences_in_order);
    RUN(a_cancel_ends_it);
    RUN(maps);
    bufpool_trim();
    return tap_done();
}
