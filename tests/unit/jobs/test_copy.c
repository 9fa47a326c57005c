/*
 * The copy job over real files, memory, faults and pipes: what arrives, what is counted, what is
 * refused, and what is left behind when it fails.
 */
#include "channel/sizing.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/worker.h"
#include "jobs/copy.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1u << 20)

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

static struct copy_result result;
static struct error err;

static void defaults(struct copy_options *o, const char *source, const char *target)
{
    *o = (struct copy_options){
        .source = source, .target = target, .sparse = 4096, .pipe_size = SOCKET_BUFFER_AUTO};
    endpoint_options_init(&o->source_options);
    endpoint_options_init(&o->target_options);
}

static int copy(const struct copy_options *o)
{
    struct copy_progress progress = {0};
    error_clear(&err);
    int r = copy_run(o, &progress, &result, &err);
    if (r == 0) {
        EQ(progress.done, result.total);
        EQ(result.data + result.zero, result.total);
    }
    return r;
}

static int copy_names(const char *source, const char *target)
{
    struct copy_options o;
    defaults(&o, source, target);
    return copy(&o);
}

static uint8_t byte_at(uint64_t i)
{
    return (uint8_t)((i * 2654435761u) >> 17) | 1;
}

static void write_data(int fd, uint64_t from, uint64_t to)
{
    static uint8_t buf[65536];
    while (from < to) {
        size_t n = to - from < sizeof(buf) ? (size_t)(to - from) : sizeof(buf);
        for (size_t i = 0; i < n; i++) {
            buf[i] = byte_at(from + i);
        }
        OK(pwrite(fd, buf, n, (off_t)from) == (ssize_t)n);
        from += n;
    }
}

/* A file of size bytes with data in [from, to), and holes elsewhere. */
static void make_file(const char *path, uint64_t size, uint64_t from, uint64_t to)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    OK(fd >= 0);
    write_data(fd, from, to);
    OK(ftruncate(fd, (off_t)size) == 0);
    close(fd);
}

static bool same(const char *one, const char *two)
{
    static uint8_t x[65536], y[65536];
    int a = open(one, O_RDONLY | O_CLOEXEC), b = open(two, O_RDONLY | O_CLOEXEC);
    bool equal = a >= 0 && b >= 0;
    while (equal) {
        ssize_t n = read(a, x, sizeof(x)), m = read(b, y, sizeof(y));
        equal = n == m && n >= 0 && memcmp(x, y, (size_t)n) == 0;
        if (n <= 0) {
            break;
        }
    }
    close(a);
    close(b);
    return equal;
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static uint64_t allocated_bytes(const char *path)
{
    struct stat st;
    OK(stat(path, &st) == 0);
    return (uint64_t)st.st_blocks * 512;
}

static void sizes_body(void)
{
    static const struct {
        uint64_t size, from, to;
    } cases[] = {
        {0, 0, 0},
        {1, 0, 1},
        {513, 0, 513},
        {3 * MIB + 12345, 0, 3 * MIB + 12345},
        {5 * MIB + 1, MIB + 100, 2 * MIB + 5},
        {4 * MIB, 0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make_file(a_path, cases[i].size, cases[i].from, cases[i].to);
        unlink(b_path);
        EQ(copy_names(a_path, b_path), 0);
        OK(same(a_path, b_path));
        EQ(result.total, cases[i].size);
        OK(result.data <= cases[i].to - cases[i].from + 2 * 65536);
        /* over what is there already, longer and full of other things */
        make_file(b_path, cases[i].size + 70000, 0, cases[i].size + 70000);
        EQ(copy_names(a_path, b_path), 0);
        OK(same(a_path, b_path));
    }
}

static void files_of_many_sizes(void)
{
    in_worker(sizes_body);
}

static void sparse_body(void)
{
    struct copy_options o;
    static const uint8_t zeros[MIB];
    /* data, written zeros, data: found by looking */
    make_file(a_path, 3 * MIB, 0, 3 * MIB);
    int fd = open(a_path, O_WRONLY | O_CLOEXEC);
    OK(pwrite(fd, zeros, MIB, MIB) == MIB);
    close(fd);
    unlink(b_path);
    defaults(&o, a_path, b_path);
    EQ(copy(&o), 0);
    OK(same(a_path, b_path));
    EQ(result.data, 2 * MIB);
    EQ(result.zero, MIB);
    OK(allocated_bytes(b_path) < 3 * MIB);
    o.sparse = 0;
    EQ(copy(&o), 0);
    EQ(result.data, 3 * MIB);
    OK(same(a_path, b_path));
    o.sparse = 4096;
    o.allocated = true;
    EQ(copy(&o), 0);
    OK(same(a_path, b_path));
    OK(allocated_bytes(b_path) >= 3 * MIB);
    /* an existing target that keeps its size has its zeros made */
    make_file(b_path, 3 * MIB, 0, 3 * MIB);
    o.allocated = false;
    o.no_create = true;
    EQ(copy(&o), 0);
    OK(same(a_path, b_path));
    /* unless somebody swears that it has them */
    make_file(b_path, 3 * MIB, 0, 3 * MIB);
    o.target_is_zero = true;
    EQ(copy(&o), 0);
    EQ(result.zero, MIB);
    OK(!same(a_path, b_path));
}

static void zeros_are_found_and_made(void)
{
    in_worker(sparse_body);
}

static void huge_body(void)
{
    const uint64_t huge = 2ull << 40, at = 1ull << 40;
    int fd = open(a_path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    OK(fd >= 0);
    if (ftruncate(fd, (off_t)huge) < 0) {
        close(fd);
        return; /* a file system of small files */
    }
    OK(pwrite(fd, "x", 1, (off_t)at) == 1);
    close(fd);
    unlink(b_path);
    EQ(copy_names(a_path, b_path), 0);
    EQ(result.total, huge);
    OK(result.data <= 65536);
    fd = open(b_path, O_RDONLY | O_CLOEXEC);
    char c = 0;
    OK(pread(fd, &c, 1, (off_t)at) == 1 && c == 'x');
    EQ(lseek(fd, 0, SEEK_END), (off_t)huge);
    close(fd);
    EQ(copy_names("null:8E", "null:"), -EINVAL); /* no such size: refused by the endpoint */
    EQ(copy_names("null:7E", "null:"), 0);
    EQ(result.zero, 7ull << 60);
}

static void two_tib_with_one_byte(void)
{
    in_worker(huge_body);
}

static void request_body(void)
{
    struct copy_options o;
    static const struct {
        uint64_t request;
        unsigned depth, workers;
    } cases[] = {{4096, 1, 1}, {65536, 64, 2}, {12345, 3, 3}, {MIB, 2, 2}, {32 * MIB, 1, 1}};
    make_file(a_path, 6 * MIB + 7, 0, 6 * MIB + 7);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unlink(b_path);
        defaults(&o, a_path, b_path);
        o.request_size = cases[i].request;
        o.depth = cases[i].depth;
        o.workers = cases[i].workers;
        EQ(copy(&o), 0);
        OK(same(a_path, b_path));
        OK(result.request_size >= cases[i].request);
        EQ(result.depth, cases[i].depth);
        OK(result.workers <= cases[i].workers);
    }
    /* alignments that the ends ask for */
    defaults(&o, "fault:min=4096:pattern:1000000", b_path);
    unlink(b_path);
    EQ(copy(&o), 0);
    EQ(copy_names("pattern:1000000", a_path), 0);
    OK(same(a_path, b_path));
    make_file(a_path, 100000, 1000, 50001);
    make_file(b_path, 100000, 0, 100000);
    char target[128];
    snprintf(target, sizeof(target), "fault:min=4096,max=8192:%s", b_path);
    EQ(copy_names(a_path, target), 0);
    OK(same(a_path, b_path));
}

static void request_sizes_depths_workers(void)
{
    in_worker(request_body);
}

static void failing_body(void)
{
    static const struct {
        const char *source, *target; /* %s: a file that is there, a file that isn't */
        int result;
        const char *endpoint;
        uint64_t offset;
    } cases[] = {
        {"fault:read-error=EIO@2M:pattern:8M", "null:", -EIO, "fault:read-error", 2 * MIB},
        {"pattern:8M", "fault:write-error=ENOSPC@3M:memory:8M", -ENOSPC, "fault:write", 3 * MIB},
        {"null:8M", "fault:zero-error=EIO,no-fast-zero:memory:8M", 0, NULL, 0},
        {"fault:extents-error=EIO:memory:8M", "null:", -EIO, "fault:extents", 0},
        {"pattern:8M", "fault:flush-error=EIO:memory:8M", -EIO, "fault:flush", 0},
        {"fault:short-read=EIO@1M:pattern:8M", "null:", -EIO, "fault:short", MIB},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (unsigned workers = 1; workers <= 2; workers++) {
            struct copy_options o;
            defaults(&o, cases[i].source, cases[i].target);
            o.workers = workers;
            o.request_size = 65536;
            int r = copy(&o);
            if (!EQ(r, cases[i].result)) {
                printf("#   %s -> %s: %s\n", o.source, o.target, err.text);
            }
            if (cases[i].endpoint) {
                OK(strstr(err.endpoint, cases[i].endpoint) == err.endpoint);
                EQ(err.code, -cases[i].result);
                OK(!cases[i].offset || err.offset / 65536 == cases[i].offset / 65536);
            }
        }
    }
    /* our own file is removed, with whatever was in it; somebody else's stays */
    unlink(b_path);
    EQ(copy_names("fault:read-error=EIO@2M:pattern:8M", b_path), -EIO);
    OK(!exists(b_path));
    OK(result.target_removed && !result.target_incomplete);
    make_file(b_path, 8 * MIB, 0, 0);
    EQ(copy_names("fault:read-error=EIO@2M:pattern:8M", b_path), -EIO);
    OK(exists(b_path));
    OK(!result.target_removed && result.target_incomplete);
    unlink(b_path);
    EQ(copy_names("/nonexistent/a", b_path), -ENOENT);
    OK(!exists(b_path));
    OK(!result.target_removed && !result.target_incomplete);
}

static void failures_name_endpoint_and_offset(void)
{
    in_worker(failing_body);
}

static void refusal_body(void)
{
    struct copy_options o;
    char name[128], before[64] = "";
    make_file(a_path, MIB, 0, MIB);
    unlink(b_path);
    OK(link(a_path, b_path) == 0);
    EQ(copy_names(a_path, a_path), -EINVAL);
    EQ(copy_names(a_path, b_path), -EINVAL); /* by another name */
    snprintf(name, sizeof(name), "slice:0+64K:%s", a_path);
    EQ(copy_names(name, a_path), -EINVAL);
    EQ(copy_names(b_path, name), -EINVAL);
    snprintf(name, sizeof(name), "file:%s", a_path);
    EQ(copy_names(name, b_path), -EINVAL);
    OK(strstr(err.text, "same"));
    int fd = open(a_path, O_RDWR | O_CLOEXEC);
    snprintf(name, sizeof(name), "fd:%d", fd);
    EQ(copy_names(a_path, name), -EINVAL);
    EQ(copy_names(name, b_path), -EINVAL);
    close(fd);
    unlink(b_path);

    /* sizes */
    EQ(copy_names(a_path, "memory:512K"), -ENOSPC);
    EQ(copy_names(a_path, "memory:2M"), -EINVAL);
    EQ(copy_names(a_path, "memory:1M"), 0);
    defaults(&o, a_path, "memory:2M");
    o.size_mismatch = true;
    EQ(copy(&o), 0);
    o.target = "memory:512K";
    EQ(copy(&o), -ENOSPC);

    /* --no-create: nothing is made, nothing is resized */
    defaults(&o, a_path, b_path);
    o.no_create = true;
    EQ(copy(&o), -ENOENT);
    OK(!exists(b_path));
    make_file(b_path, 2 * MIB, 0, 100);
    EQ(copy(&o), -EINVAL);
    OK(result.target_incomplete == false);
    o.size_mismatch = true;
    EQ(copy(&o), 0);
    struct stat st;
    OK(stat(b_path, &st) == 0 && st.st_size == 2 * MIB);

    /* what can't be written, and what is refused before anything is touched */
    fd = open(b_path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    OK(write(fd, "QFI\xfb precious", 13) == 13);
    close(fd);
    EQ(copy_names(a_path, b_path), -EINVAL);
    fd = open(b_path, O_RDONLY | O_CLOEXEC);
    OK(read(fd, before, 13) == 13);
    OK(memcmp(before, "QFI\xfb precious", 13) == 0);
    close(fd);
    EQ(copy_names(a_path, folder), -EISDIR);
}

static void refusals(void)
{
    in_worker(refusal_body);
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

static void cancel_one(const char *source, const char *target)
{
    struct copier c = {0};
    struct fgroup g;
    defaults(&c.options, source, target);
    c.options.request_size = 65536;
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, copier, &c), 0);
    while (c.progress.done < MIB) {
        fiber_yield();
    }
    fgroup_cancel(&g);
    fgroup_wait(&g, false);
    EQ(c.r, -ECANCELED);
    OK(strstr(c.err.text, "interrupted"));
    OK(exists(target) == false);
}

static void cancel_body(void)
{
    unlink(b_path);
    cancel_one("fault:hold-read@4M+1M:pattern:8M", b_path);
    /* every fiber hangs in the same place, on both workers */
    unlink(b_path);
    cancel_one("fault:hold-read@1M+7M:pattern:8M", b_path);
    OK(!exists(b_path));
}

static void abandon_body(void)
{
    struct copier c = {0};
    struct fgroup g;
    unlink(b_path);
    defaults(&c.options, "fault:hold-read@4M+1M:pattern:8M", b_path);
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, copier, &c), 0);
    while (c.progress.done < MIB) {
        fiber_yield();
    }
    OK(exists(b_path));
    copy_abandon(&c.options, &c.progress);
    OK(!exists(b_path));
    /* what is there by now is somebody else's */
    make_file(b_path, 1, 0, 1);
    copy_abandon(&c.options, &c.progress);
    fgroup_cancel(&g);
    fgroup_wait(&g, false);
    EQ(c.r, -ECANCELED);
    OK(exists(b_path));
    /* and what is complete stays */
    unlink(b_path);
    defaults(&c.options, "pattern:1M", b_path);
    copier(&c);
    EQ(c.r, 0);
    copy_abandon(&c.options, &c.progress);
    OK(exists(b_path));
}

static void abandon_removes_what_was_made(void)
{
    in_worker(abandon_body);
}

static void cancel_removes_what_it_made(void)
{
    in_worker(cancel_body);
}

/* From a volume through one pipe into a second copy, which writes a file. */
static void stream_once(const char *source, uint64_t size)
{
    struct copier out = {0}, in = {0};
    struct fgroup g;
    char out_name[32], in_name[32];
    int p[2];
    OK(pipe2(p, O_CLOEXEC) == 0);
    snprintf(out_name, sizeof(out_name), "fd:%d", p[1]);
    snprintf(in_name, sizeof(in_name), "fd:%d", p[0]);
    unlink(b_path);
    defaults(&out.options, source, out_name);
    defaults(&in.options, in_name, b_path);
    in.options.request_size = 65536;
    in.options.depth = 5;
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, copier, &out), 0);
    EQ(fgroup_spawn(&g, copier, &in), 0);
    while (!out.result.depth) {
        fiber_sleep_ns(100000);
    }
    close(p[1]); /* the descriptors stay ours; this is the end of the stream */
    fgroup_wait(&g, false);
    close(p[0]);
    EQ(out.r, 0);
    EQ(in.r, 0);
    EQ(in.result.total, size);
    EQ(in.progress.done, size);
    EQ(out.result.data + out.result.zero, size);
    OK(same(source, b_path));
}

static void stream_body(void)
{
    static const uint64_t sizes[] = {0, 1, 65536, 3 * MIB + 17};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        make_file(a_path, sizes[i], sizes[i] / 3, sizes[i]);
        stream_once(a_path, sizes[i]);
    }
    OK(allocated_bytes(b_path) < 3 * MIB); /* zeros of a stream are found */
    /* a reader that goes away */
    struct copy_options o;
    char name[32];
    int p[2];
    OK(pipe2(p, O_CLOEXEC) == 0);
    close(p[0]);
    snprintf(name, sizeof(name), "fd:%d", p[1]);
    EQ(copy_names("pattern:4M", name), -EPIPE);
    STREQ(err.endpoint, name);
    close(p[1]);
    /* a stream into a disk of another size */
    for (unsigned round = 0; round < 3; round++) {
        static const struct {
            const char *target;
            bool ok;
            int r;
        } rounds[] = {
            {"memory:4K", false, -ENOSPC}, {"memory:1M", false, -EINVAL}, {"memory:1M", true, 0}};
        OK(pipe2(p, O_CLOEXEC) == 0);
        OK(write(p[1], name, 16) == 16);
        static char bytes[5000];
        OK(write(p[1], bytes, sizeof(bytes)) == sizeof(bytes));
        close(p[1]);
        snprintf(name, sizeof(name), "fd:%d", p[0]);
        defaults(&o, name, rounds[round].target);
        o.size_mismatch = rounds[round].ok;
        EQ(copy(&o), rounds[round].r);
        close(p[0]);
    }
}

static void streams(void)
{
    in_worker(stream_body);
}

/* A volume of `extents` extents of 4 KiB, data and holes in turn, that counts what it is asked. */
static struct {
    uint64_t extents, asked, reads;
} striped;

static int striped_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *e)
{
    striped.reads++;
    memset(buf, 1 + (int)(off >> 12) % 255, len);
    return off % 8192 == 0 && len == 4096 ? 0 : -EIO; /* never a hole */
}

static int striped_extents(struct volume *v, uint64_t off, uint64_t len, struct extent *out,
                           size_t max, struct error *e)
{
    size_t n = 0;
    striped.asked++;
    for (; n < max && len > 0; n++) {
        out[n] = (struct extent){.length = 4096, .flags = off & 4096 ? EXTENT_ZERO : 0};
        off += 4096;
        len -= 4096;
    }
    return (int)n;
}

static void striped_close(struct volume *v)
{
    volume_done(v);
    free(v);
}

static const struct volume_ops striped_ops = {
    .name = "striped", .read = striped_read, .extents = striped_extents, .close = striped_close};

static int striped_open(const char *name, const struct endpoint_options *o, struct volume **ret,
                        struct error *e)
{
    struct volume *v = calloc(1, sizeof(*v));
    if (!v || volume_init(v, &striped_ops, name) < 0) {
        free(v);
        return -ENOMEM;
    }
    v->size = striped.extents * 4096;
    v->caps = VOLUME_CAN_EXTENTS;
    *ret = v;
    return 0;
}

static void extents_body(void)
{
    struct copy_options o;
    for (striped.extents = 2500; striped.extents <= 20000; striped.extents *= 8) {
        striped.asked = striped.reads = 0;
        defaults(&o, "striped:", "null:");
        o.workers = 1;
        EQ(copy(&o), 0);
        EQ(striped.reads, striped.extents / 2);
        OK(striped.asked <= striped.extents / 256 + 1); /* many at a time, none twice */
        EQ(result.data, result.total / 2);
    }
}

static void extents_are_linear(void)
{
    in_worker(extents_body);
}

static void rate_body(void)
{
    struct copy_options o;
    defaults(&o, "pattern:256K", "null:");
    o.request_size = 4096;
    o.rate = 1ull << 30;
    EQ(copy(&o), 0);
    o.rate = 2 * MIB;
    EQ(copy(&o), 0);
    OK(result.duration_ns > 10000000); /* 125 ms less the burst; slower is fine */
}

static void rate_is_kept(void)
{
    in_worker(rate_body);
}

int main(void)
{
    static const char *const schemes[] = {"striped", NULL};
    static const struct endpoint_driver driver = {schemes, striped_open};
    signal(SIGPIPE, SIG_IGN);
    endpoint_register(&driver);
    OK(mkdtemp(folder) != NULL);
    snprintf(a_path, sizeof(a_path), "%s/a", folder);
    snprintf(b_path, sizeof(b_path), "%s/b", folder);
    RUN(files_of_many_sizes);
    RUN(zeros_are_found_and_made);
    RUN(two_tib_with_one_byte);
    RUN(request_sizes_depths_workers);
    RUN(failures_name_endpoint_and_offset);
    RUN(refusals);
    RUN(cancel_removes_what_it_made);
    RUN(abandon_removes_what_was_made);
    RUN(streams);
    RUN(extents_are_linear);
    RUN(rate_is_kept);
    unlink(a_path);
    unlink(b_path);
    rmdir(folder);
    bufpool_trim();
    return tap_done();
}
