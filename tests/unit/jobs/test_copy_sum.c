/*
 * The checksum of a copy: the same as sum_volume() of the source, whatever is copied and however;
 * what is not read for it, how far it lets anybody go ahead, and that a failure has none.
 */
#include "channel/sizing.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/worker.h"
#include "jobs/copy.h"
#include "jobs/sum.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1u << 20)
#define BLOCK 65536u

static char folder[] = "/tmp/penstock-test-XXXXXX";
static char a_path[64], b_path[64];
static void (*test_body)(void);

static int run_body(void *arg)
{
    test_body();
    return 0;
}

static void in_worker(void (*body)(void))
{
    test_body = body;
    EQ(worker_main(run_body, NULL), 0);
}

static void defaults(struct copy_options *o, const char *source, const char *target)
{
    *o = (struct copy_options){.source = source,
                               .target = target,
                               .sum = "sha256",
                               .sparse = 4096,
                               .pipe_size = SOCKET_BUFFER_AUTO};
    endpoint_options_init(&o->source_options);
    endpoint_options_init(&o->target_options);
}

/* A file of size bytes with data in [from, to), holes elsewhere. */
static void make_file(const char *path, uint64_t size, uint64_t from, uint64_t to)
{
    static uint8_t buf[BLOCK];
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    OK(fd >= 0);
    while (from < to) {
        size_t n = to - from < sizeof(buf) ? (size_t)(to - from) : sizeof(buf);
        for (size_t i = 0; i < n; i++) {
            buf[i] = (uint8_t)(((from + i) * 2654435761u) >> 17) | 1;
        }
        OK(pwrite(fd, buf, n, (off_t)from) == (ssize_t)n);
        from += n;
    }
    OK(ftruncate(fd, (off_t)size) == 0);
    close(fd);
}

static void sum_of(const char *name, const char *digest, struct sum_result *ret)
{
    struct sum_options o = {.digest = digest, .block_size = BLOCK, .workers = 1};
    struct endpoint_options e;
    struct sum *s;
    struct volume *v;
    endpoint_options_init(&e);
    if (EQ(sum_new(&o, &s, NULL), 0) && EQ(endpoint_open(name, &e, &v, NULL), 0)) {
        EQ(sum_volume(s, v, NULL, ret, NULL), 0);
        volume_close(v);
        sum_free(s);
    }
}

/* Copies, and compares checksums with that of `same`. */
static void check(const struct copy_options *o, const char *same)
{
    struct copy_result result;
    struct sum_result want = {0};
    struct error err = {0};
    sum_of(same, o->sum, &want);
    if (!EQ(copy_run(o, NULL, &result, &err), 0)) {
        printf("#   %s -> %s: %s\n", o->source, o->target, err.text);
    }
    EQ(result.data + result.zero, result.total);
    STREQ(result.sum_digest, o->sum);
    EQ(result.sum_length, want.length);
    OK(memcmp(result.sum, want.digest, want.length) == 0);
}

static const struct shape {
    uint64_t size, from, to;
} shapes[] = {
    {0, 0, 0},
    {1, 0, 1},
    {1, 0, 0},
    {1000, 0, 0},
    {BLOCK, 0, BLOCK},
    {BLOCK, 0, 0},
    {BLOCK + 1, 0, BLOCK + 1},
    {BLOCK + 1, 0, 0},
    {3 * MIB + 12345, 0, 3 * MIB + 12345},
    {5 * MIB + 1, MIB + 100, 2 * MIB + 5},
    {4 * MIB + 5000, 3 * MIB + 4096, 3 * MIB + 8192},
    {4 * MIB, 0, 0},
};

static void shapes_body(void)
{
    struct copy_options o;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        make_file(a_path, shapes[i].size, shapes[i].from, shapes[i].to);
        unlink(b_path);
        for (unsigned workers = 1; workers <= 3; workers += 2) {
            defaults(&o, a_path, b_path);
            o.workers = workers;
            o.depth = 3;
            check(&o, a_path);
            struct sum_result copied = {0}, want = {0};
            sum_of(a_path, "sha256", &want);
            sum_of(b_path, "sha256", &copied);
            OK(memcmp(copied.digest, want.digest, want.length) == 0);
            o.sparse = 0;
            o.request_size = 4096; /* becomes a block */
            o.allocated = true;
            check(&o, a_path);
        }
    }
}

static void every_shape(void)
{
    in_worker(shapes_body);
}

static void options_body(void)
{
    struct copy_options o;
    make_file(a_path, 3 * MIB + 777, MIB, 2 * MIB + 3);
    defaults(&o, a_path, "memory:8M"); /* a larger target, which keeps its size */
    o.size_mismatch = true;
    o.sum = "sha512";
    check(&o, a_path);
    o.target_is_zero = true;
    o.request_size = MIB;
    check(&o, a_path);
    /* ends with limits and alignments of their own */
    defaults(&o, a_path, "fault:min=4096,max=8192:memory:8M");
    o.size_mismatch = true;
    o.sum = "sha1";
    check(&o, a_path);
    defaults(&o, "fault:min=512,max=16384:pattern:1000000", "null:");
    check(&o, "pattern:1000000");
    /* more in flight than the ring has room for */
    defaults(&o, "pattern:9M", "null:");
    o.depth = COPY_DEPTH_MAX;
    o.request_size = COPY_REQUEST_MAX;
    o.workers = 2;
    check(&o, "pattern:9M");
}

static void options_do_not_change_it(void)
{
    in_worker(options_body);
}

static void unread_body(void)
{
    struct copy_options o;
    char name[128];
    make_file(a_path, 2 * MIB + 100, 0, MIB); /* even the short block at its end is not read */
    snprintf(name, sizeof(name), "fault:read-error=EIO@1M+2M:%s", a_path);
    defaults(&o, name, "null:");
    check(&o, a_path);
    unlink(b_path);
    defaults(&o, name, b_path);
    o.sparse = 0;
    check(&o, a_path);
}

static void holes_are_not_read(void)
{
    in_worker(unread_body);
}

static void failing_body(void)
{
    static const struct {
        const char *source, *target;
        int r;
    } cases[] = {
        {"fault:read-error=EIO@2M:pattern:8M", "null:", -EIO},
        {"pattern:8M", "fault:write-error=ENOSPC@3M:memory:8M", -ENOSPC},
        {"fault:extents-error=EIO:memory:8M", "null:", -EIO},
        {"pattern:8M", "fault:flush-error=EIO:memory:8M", -EIO},
    };
    struct copy_options o;
    struct copy_result result;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (unsigned workers = 1; workers <= 2; workers++) {
            defaults(&o, cases[i].source, cases[i].target);
            o.workers = workers;
            o.request_size = BLOCK;
            EQ(copy_run(&o, NULL, &result, NULL), cases[i].r);
            OK(!result.sum_digest[0] && result.sum_length == 0);
        }
    }
    /* no such digest: nothing is touched */
    struct stat st;
    make_file(b_path, 100, 0, 100);
    defaults(&o, "pattern:1M", b_path);
    o.sum = "no-such-digest";
    EQ(copy_run(&o, NULL, &result, NULL), -ENOENT);
    OK(!result.target_incomplete && stat(b_path, &st) == 0 && st.st_size == 100);
}

static void failures_have_none(void)
{
    in_worker(failing_body);
}

struct copier {
    struct copy_options options;
    struct copy_result result;
    struct copy_progress progress;
    struct error err;
    int r;
};

static void copier(void *arg)
{
    struct copier *c = arg;
    c->r = copy_run(&c->options, &c->progress, &c->result, &c->err);
}

/* One piece hangs; the others go on until the ring is full, no farther, and a cancel ends it. */
static void ahead_body(void)
{
    struct copier c = {0};
    struct fgroup g;
    const uint64_t slots = 2 * 4 * 2; /* twice what is in flight */
    defaults(&c.options, "fault:hold-read@1M+64K:pattern:64M", "null:");
    c.options.request_size = BLOCK;
    c.options.workers = 2;
    c.options.depth = 4;
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, copier, &c), 0);
    while (c.progress.done < MIB + (slots - 1) * BLOCK) {
        fiber_yield();
    }
    for (unsigned i = 0; i < 1000; i++) {
        fiber_yield();
    }
    EQ(c.progress.done, MIB + (slots - 1) * BLOCK);
    fgroup_cancel(&g);
    fgroup_wait(&g, false);
    EQ(c.r, -ECANCELED);
    OK(!c.result.sum_digest[0]);
}

static void nobody_is_far_ahead(void)
{
    in_worker(ahead_body);
}

/* From a volume through a pipe into a file: both copies have the source's checksum. */
static void stream_once(const char *source)
{
    struct copier out = {0}, in = {0};
    struct sum_result want = {0};
    struct fgroup g;
    char out_name[32], in_name[32];
    int p[2];
    OK(pipe2(p, O_CLOEXEC) == 0);
    snprintf(out_name, sizeof(out_name), "fd:%d", p[1]);
    snprintf(in_name, sizeof(in_name), "fd:%d", p[0]);
    unlink(b_path);
    defaults(&out.options, source, out_name);
    defaults(&in.options, in_name, b_path);
    in.options.request_size = BLOCK;
    in.options.depth = 5;
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, copier, &out), 0);
    EQ(fgroup_spawn(&g, copier, &in), 0);
    while (!out.result.depth) {
        fiber_sleep_ns(100000);
    }
    close(p[1]);
    fgroup_wait(&g, false);
    close(p[0]);
    EQ(out.r, 0);
    EQ(in.r, 0);
    sum_of(source, "sha256", &want);
    OK(memcmp(out.result.sum, want.digest, want.length) == 0);
    OK(memcmp(in.result.sum, want.digest, want.length) == 0);
    EQ(in.result.sum_length, want.length);
}

static void stream_body(void)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        make_file(a_path, shapes[i].size, shapes[i].from, shapes[i].to);
        stream_once(a_path);
    }
}

static void streams(void)
{
    in_worker(stream_body);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    OK(mkdtemp(folder) != NULL);
    snprintf(a_path, sizeof(a_path), "%s/a", folder);
    snprintf(b_path, sizeof(b_path), "%s/b", folder);
    RUN(every_shape);
    RUN(options_do_not_change_it);
    RUN(holes_are_not_read);
    RUN(failures_have_none);
    RUN(nobody_is_far_ahead);
    RUN(streams);
    unlink(a_path);
    unlink(b_path);
    rmdir(folder);
    bufpool_trim();
    return tap_done();
}
