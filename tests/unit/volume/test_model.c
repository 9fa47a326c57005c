/*
 * Every driver against an array: random operations, at any alignment and at the driver's own, and
 * after each the answer is compared with what the array says. Then several fibers on two workers at
 * once, each with stripes of its own that share their blocks with its neighbours', which is where a
 * read-modify-write could undo a neighbour's write.
 */
#include "core/fiber.h"
#include "volume_test.h"

#define STEPS 400
#define STEPS_ON_DISK 80 /* a flush takes some milliseconds there */
#define SIZE_MAX_HERE ((size_t)1 << 20)
#define CALL_MAX 70000

struct model {
    struct volume *v;
    uint8_t *bytes; /* what the volume must hold */
    uint8_t *buf;
    uint64_t seed;
    const char *name;
    bool ok;
    /* The part that this caller may use; all of it unless there are several. */
    uint64_t from;
    uint64_t len;
};

static bool expect(struct model *m, bool ok, const char *what, uint64_t off, uint64_t len)
{
    if (!ok && m->ok) {
        m->ok = false;
        printf("# %s: %s at %llu, %llu bytes\n", m->name, what, (unsigned long long)off,
               (unsigned long long)len);
        tap_check(false, __FILE__, __LINE__, what);
    }
    return ok;
}

static void pick(struct model *m, uint64_t *off, size_t *len)
{
    *off = m->from + below(&m->seed, m->len);
    uint64_t most = m->from + m->len - *off;
    *len = (size_t)below(&m->seed, (most < CALL_MAX ? most : CALL_MAX) + 1);
    if (below(&m->seed, 4) == 0) {
        uint64_t a = *off & ~4095ull;
        if (a >= m->from) {
            *len = (*len + (size_t)(*off - a)) & ~(size_t)4095;
            *off = a;
        }
    }
}

static void step_read(struct model *m, uint64_t off, size_t len)
{
    memset(m->buf, 0xee, len);
    expect(m, volume_read(m->v, m->buf, len, off, NULL) == 0, "read", off, len);
    expect(m, memcmp(m->buf, m->bytes + off, len) == 0, "read gave other bytes", off, len);
}

static void step_write(struct model *m, uint64_t off, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        m->buf[i] = (uint8_t)chance(&m->seed);
    }
    unsigned flags = below(&m->seed, 16) == 0 ? WRITE_FUA : 0;
    expect(m, volume_write(m->v, m->buf, len, off, flags, NULL) == 0, "write", off, len);
    memcpy(m->bytes + off, m->buf, len);
}

static void step_zero(struct model *m, uint64_t off, size_t len)
{
    unsigned flags = (unsigned)below(&m->seed, 4);
    flags |= below(&m->seed, 8) == 0 ? ZERO_FUA : 0;
    int r = volume_zero(m->v, off, len, flags, NULL);
    if (r == -ENOTSUP && (flags & ZERO_NO_FALLBACK)) {
        step_read(m, off, len);
        return;
    }
    expect(m, r == 0, "zero", off, len);
    memset(m->bytes + off, 0, len);
}

static void step_discard(struct model *m, uint64_t off, size_t len)
{
    expect(m, volume_discard(m->v, off, len, 0, NULL) == 0, "discard", off, len);
    expect(m, volume_read(m->v, m->buf, len, off, NULL) == 0, "read after discard", off, len);
    for (size_t i = 0; i < len; i++) {
        if (m->buf[i] != m->bytes[off + i] && !expect(m, m->buf[i] == 0, "discarded", off, len)) {
            return;
        }
        m->bytes[off + i] = m->buf[i];
    }
}

static bool all_zero(const uint8_t *p, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++) {
        if (p[i] != 0) {
            return false;
        }
    }
    return true;
}

static void step_extents(struct model *m, uint64_t off, size_t len)
{
    struct extent e[5];
    if (len == 0) {
        return;
    }
    int n = volume_extents(m->v, off, len, e, 1 + below(&m->seed, 5), NULL);
    expect(m, n >= 1, "extents", off, len);
    uint64_t at = off;
    for (int i = 0; i < n; i++) {
        uint64_t left = off + len - at;
        expect(m, e[i].length > 0 && e[i].length <= left, "length of an extent", at, e[i].length);
        expect(m, i == 0 || e[i].flags != e[i - 1].flags, "equal neighbours", at, e[i].length);
        if (!m->ok) {
            return;
        }
        if (e[i].flags & EXTENT_ZERO) {
            expect(m, all_zero(m->bytes + at, e[i].length), "data in a hole", at, e[i].length);
        }
        at += e[i].length;
    }
}

static void step_lend(struct model *m, uint64_t off, size_t len)
{
    struct lent lent;
    if (len == 0 || volume_lend(m->v, off, len, &lent) < 0) {
        return;
    }
    const uint8_t *data = lent.data;
    expect(m, lent.length > 0 && lent.length <= len, "lent length", off, lent.length);
    if (lent.fd >= 0 && m->ok) {
        ssize_t n = pread(lent.fd, m->buf, lent.length, (off_t)lent.offset);
        expect(m, n == (ssize_t)lent.length, "read of what was lent", off, lent.length);
        data = m->buf;
    }
    if (m->ok) {
        expect(m, memcmp(data, m->bytes + off, lent.length) == 0, "lent bytes", off, lent.length);
    }
}

static void step(struct model *m)
{
    uint64_t off;
    size_t len;
    pick(m, &off, &len);
    switch (below(&m->seed, 10)) {
    case 0:
    case 1:
        step_read(m, off, len);
        break;
    case 2:
        step_zero(m, off, len);
        break;
    case 3:
        step_discard(m, off, len);
        break;
    case 4:
        step_extents(m, off, len);
        break;
    case 5:
        step_lend(m, off, len);
        break;
    case 6:
        if (below(&m->seed, 4) == 0) {
            expect(m, volume_flush(m->v, NULL) == 0, "flush", off, 0);
        }
        expect(m, volume_cache(m->v, off, len, NULL) == 0, "cache", off, len);
        break;
    default:
        step_write(m, off, len);
        break;
    }
}

static void edges(struct model *m)
{
    struct volume *v = m->v;
    struct extent e;
    EQ(volume_read(v, m->buf, 1, v->size, NULL), -EINVAL);
    EQ(volume_read(v, m->buf, 0, v->size, NULL), 0);
    EQ(volume_read(v, m->buf, 2, v->size - 1, NULL), -EINVAL);
    EQ(volume_read(v, m->buf, SIZE_MAX, 1, NULL), -EINVAL);
    EQ(volume_write(v, m->buf, 1, v->size, 0, NULL), -ENOSPC);
    EQ(volume_write(v, m->buf, 2, v->size - 1, 0, NULL), -ENOSPC);
    EQ(volume_zero(v, 1, UINT64_MAX, 0, NULL), -ENOSPC);
    EQ(volume_discard(v, UINT64_MAX, 1, 0, NULL), -ENOSPC);
    EQ(volume_zero(v, v->size, 0, 0, NULL), 0);
    EQ(volume_extents(v, 0, v->size + 1, &e, 1, NULL), -EINVAL);
    EQ(volume_extents(v, 0, 0, &e, 1, NULL), -EINVAL);
    step_write(m, v->size - 1, 1);
    step_write(m, v->size - 513, 513);
    step_read(m, 0, (size_t)v->size);
}

static void run_model(const char *name, uint64_t seed, struct volume *v, int steps)
{
    if (!v) {
        return;
    }
    struct model m = {.v = v, .name = name, .seed = seed, .ok = true, .len = v->size};
    void *bulk = NULL;
    EQ(bufpool_get(SIZE_MAX_HERE * 2, &bulk), 0);
    m.buf = bulk;
    m.bytes = calloc(1, v->size);
    EQ(volume_read(v, m.bytes, v->size, 0, NULL), 0);
    for (int i = 0; i < steps && m.ok; i++) {
        /* Buffers that are not aligned, too. */
        m.buf = (uint8_t *)bulk + (below(&m.seed, 3) == 0 ? 13 : 0);
        step(&m);
    }
    m.buf = bulk;
    edges(&m);
    EQ(volume_flush(v, NULL), 0);
    volume_close(v);
    free(m.bytes);
    bufpool_put(bulk, SIZE_MAX_HERE * 2);
}

FIBER_TEST(layers_over_memory)
{
    static const char *const names[] = {
        "memory:1000001",
        "memory:64K",
        "slice:777+500001:memory:1M",
        "slice:65536:memory:1M",
        "fault:min=512,max=8K:memory:1000001",
        "fault:min=4096,max=64K,max-zero=12K:memory:1M",
        "fault:min=65536,no-zero,no-fua,no-discard,no-extents,no-lend,no-cache:memory:1000001",
        "fault:min=512,no-fast-zero:slice:1+300000:fault:min=4096,max=4096:memory:1M",
        "fault:zero-error=ENOTSUP,discard-error=ENOTSUP,extents-error=ENOTSUP:memory:300000",
        "fault:min=4096,zero-error=ENOTSUP,percent=40,seed=3:memory:300000",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        run_model(names[i], 11 + i, open_writable(names[i]), STEPS);
    }
}

static struct volume *open_file(const char *path, enum cache_mode cache)
{
    struct endpoint_options o;
    struct error err = {0};
    struct volume *v = NULL;
    char text[1024];
    endpoint_options_init(&o);
    o.writable = true;
    o.cache = cache;
    if (endpoint_open(path, &o, &v, &err) < 0) {
        if (cache == CACHE_NONE) {
            printf("# no O_DIRECT: %s\n", error_format(&err, text, sizeof(text)));
        } else {
            OK(!"opened");
        }
    }
    return v;
}

FIBER_TEST(files)
{
    static const uint64_t sizes[] = {1000001, 1 << 20, 4095, 4096 * 20 + 512};
    static const enum cache_mode modes[] = {CACHE_WRITEBACK, CACHE_NONE, CACHE_WRITETHROUGH};
    const char *path = in_folder("", "disk");
    for (size_t s = 0; s < 4; s++) {
        for (size_t c = 0; c < 3; c++) {
            make_file(path, "abc", 3, sizes[s]);
            run_model(path, 50 + s * 3 + c, open_file(path, modes[c]), STEPS_ON_DISK);
            struct stat st;
            OK(stat(path, &st) == 0);
            EQ(st.st_size, sizes[s]);
        }
    }
    unlink(path);
}

FIBER_TEST(layers_over_files)
{
    const char *path = in_folder("", "disk");
    static const char *const layers[] = {
        "slice:4097+900000:", "slice:8192:", "fault:min=512:", "fault:min=65536,no-fua:"};
    for (size_t i = 0; i < 4; i++) {
        make_file(path, "abc", 3, 1000001);
        char name[256];
        snprintf(name, sizeof(name), "%s%s", layers[i], path);
        run_model(name, 80 + i, open_file(name, i == 0 ? CACHE_NONE : CACHE_WRITEBACK),
                  STEPS_ON_DISK);
    }
    unlink(path);
}

/* On tmpfs, where that is: no ZERO_RANGE, no O_DIRECT proper. */
FIBER_TEST(file_on_tmpfs)
{
    char path[] = "/dev/shm/penstock-test-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        SKIP("no /dev/shm");
        return;
    }
    OK(ftruncate(fd, 1000001) == 0);
    close(fd);
    run_model(path, 90, open_file(path, CACHE_WRITEBACK), STEPS);
    unlink(path);
}

/* Stripes of 3001 bytes, dealt out to the callers in turn. */
#define CALLERS 6
#define STRIPE 3001u
#define SHARED_SIZE (STRIPE * CALLERS * 12u)

struct caller {
    struct model model;
    unsigned number;
};

static void run_caller(void *arg)
{
    struct caller *c = arg;
    struct model *m = &c->model;
    for (int i = 0; i < 60 && m->ok; i++) {
        m->from = (below(&m->seed, 12) * CALLERS + c->number) * (uint64_t)STRIPE;
        m->len = STRIPE;
        step(m);
    }
    m->from = 0;
    for (unsigned s = c->number; s < CALLERS * 12; s += CALLERS) {
        step_read(m, s * (uint64_t)STRIPE, STRIPE);
    }
}

struct group_job {
    struct caller *callers;
    unsigned first;
    unsigned step;
};

static void run_group(void *arg)
{
    struct group_job *job = arg;
    struct fgroup g;
    fgroup_init(&g);
    for (unsigned i = job->first; i < CALLERS; i += job->step) {
        EQ(fgroup_spawn(&g, run_caller, &job->callers[i]), 0);
    }
    fgroup_wait(&g, false);
}

static void run_together(const char *name, struct volume *v, uint64_t seed)
{
    if (!v) {
        return;
    }
    struct caller callers[CALLERS];
    uint8_t *bytes = calloc(1, SHARED_SIZE);
    for (unsigned i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.number = i};
        callers[i].model = (struct model){
            .v = v, .bytes = bytes, .buf = malloc(CALL_MAX), .seed = seed * 100 + i, .name = name};
        callers[i].model.ok = true;
    }
    struct worker *other;
    EQ(worker_start("other", &other), 0);
    struct group_job there = {callers, 1, 2};
    struct group_job here = {callers, 0, 2};
    EQ(worker_post(other, run_group, &there), 0);
    run_group(&here);
    /* Ends when no fiber is left on it. */
    worker_stop(other);
    volume_close(v);
    for (unsigned i = 0; i < CALLERS; i++) {
        free(callers[i].model.buf);
    }
    free(bytes);
}

FIBER_TEST(neighbours_at_once)
{
    const char *path = in_folder("", "disk");
    char name[256];
    run_together("memory", open_writable("memory:1M"), 1);
    static const char *const layers[] = {"", "fault:min=4096:", "fault:min=512,no-zero,no-fua:"};
    for (size_t i = 0; i < 3; i++) {
        make_file(path, "", 0, SHARED_SIZE);
        snprintf(name, sizeof(name), "%s%s", layers[i], path);
        run_together(name, open_file(name, CACHE_WRITEBACK), 2 + i);
        make_file(path, "", 0, SHARED_SIZE);
        run_together(name, open_file(name, CACHE_NONE), 5 + i);
    }
    unlink(path);
}

int main(void)
{
    folder_make();
    RUN(layers_over_memory);
    RUN(files);
    RUN(layers_over_files);
    RUN(file_on_tmpfs);
    RUN(neighbours_at_once);
    folder_remove();
    bufpool_trim();
    return tap_done();
}
