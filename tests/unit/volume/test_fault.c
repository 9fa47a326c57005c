/* Faults: the grammar, what each does, and what volume.c makes of a flush that failed. */
#include "core/fiber.h"
#include "volume/fault.h"
#include "volume_test.h"

static int parse(const char *text, struct fault_spec *spec)
{
    return fault_parse(text, strlen(text), spec, NULL);
}

static void grammar(void)
{
    static const char *const good[] = {
        "",
        "read-error=EIO",
        "write-error=ENOSPC@2M",
        "any-error=EPERM@1M+64K,after=3,count=2,percent=50,seed=7",
        "short-write=ENOSPC@0+1G",
        "delay=50ms",
        "delay-read=1.5s@4K",
        "delay-flush=100us",
        "hold",
        "hold-read@4096+512",
        "hold-write=/tmp/some-file@1M",
        "flip-read@77",
        "no-fua,no-zero,no-fast-zero,no-discard,no-cache,no-extents,no-lend,no-flush",
        "min=4096,preferred=64K,max=1M,max-zero=1G",
    };
    static const char *const bad[] = {
        "read",
        "read-error",
        "read-error=",
        "read-error=EWHAT",
        "error=EIO",
        "reads-error=EIO",
        "read-error=EIO@",
        "read-error=EIO@1+0",
        "flip-flush",
        "short-extents=EIO",
        "delay",
        "delay=fast",
        "delay-read=",
        "after=1",
        "read-error=EIO,count=0",
        "hold,percent=0",
        "hold,percent=101",
        "min=3",
        "min=128K",
        "preferred=256",
        "max=65M",
        "no-read",
        ",,",
        "hold-read=",
        "read-error=EIO@9E",
        "seed=x",
    };
    struct fault_spec spec;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        if (!EQ(parse(good[i], &spec), 0)) {
            printf("# %s\n", good[i]);
        }
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (!EQ(parse(bad[i], &spec), -EINVAL)) {
            printf("# %s\n", bad[i]);
        }
    }
}

static void what_is_parsed(void)
{
    struct fault_spec spec;
    EQ(parse("hold-write=/tmp/x@1M+2K,after=3,count=2,delay-read=1.5s,seed=9", &spec), 0);
    EQ(spec.count, 2);
    EQ(spec.rules[0].kind, FAULT_HOLD);
    EQ(spec.rules[0].op, FAULT_WRITE);
    STREQ(spec.rules[0].path, "/tmp/x");
    EQ(spec.rules[0].off, 1 << 20);
    EQ(spec.rules[0].len, 2048);
    EQ(spec.rules[0].after, 3);
    EQ(spec.rules[0].count, 2);
    EQ(spec.rules[1].delay_ns, 1500000000);
    EQ(spec.rules[1].count, -1);
    EQ(spec.seed, 9);
    char many[2000] = "";
    for (size_t i = 0; i <= FAULT_RULES_MAX; i++) {
        memcpy(many + i * 5, "hold,", 5);
    }
    EQ(parse(many, &spec), -EINVAL);
    memset(many, 'x', 1000);
    EQ(parse(many, &spec), -EINVAL);
}

FIBER_TEST(errors_where_they_belong)
{
    struct error err = {0};
    char buf[8192] = "";
    struct volume *v = open_writable("fault:read-error=EIO@1M+64K,write-error=ENOSPC@2M:memory:4M");
    EQ(volume_read(v, buf, 8192, (1 << 20) - 8192, NULL), 0);
    EQ(volume_read(v, buf, 8192, (1 << 20) - 8191, &err), -EIO);
    EQ(err.code, EIO);
    EQ(err.offset, (1 << 20) - 8191);
    OK(strncmp(err.endpoint, "fault:", 6) == 0);
    EQ(volume_read(v, buf, 1, (1 << 20) + 65535, NULL), -EIO);
    EQ(volume_read(v, buf, 1, (1 << 20) + 65536, NULL), 0);
    EQ(volume_write(v, buf, 4096, (2 << 20) - 4096, 0, NULL), 0);
    EQ(volume_write(v, buf, 4096, (2 << 20) - 4095, 0, NULL), -ENOSPC);
    EQ(volume_write(v, buf, 4096, (2 << 20) + 1, 0, NULL), 0);
    EQ(volume_flush(v, NULL), 0);
    volume_close(v);

    v = open_writable("fault:write-error=EIO,after=2,count=1:memory:1M");
    EQ(volume_write(v, buf, 1, 0, 0, NULL), 0);
    EQ(volume_write(v, buf, 1, 0, 0, NULL), 0);
    EQ(volume_write(v, buf, 1, 0, 0, NULL), -EIO);
    EQ(volume_write(v, buf, 1, 0, 0, NULL), 0);
    volume_close(v);
}

FIBER_TEST(half_of_it)
{
    char got[8];
    struct volume *v = open_writable("fault:short-write=ENOSPC,count=1,flip-read@2,"
                                     "after=1:memory:1M");
    EQ(volume_write(v, "12345678", 8, 0, 0, NULL), -ENOSPC);
    EQ(volume_read(v, got, 8, 0, NULL), 0);
    OK(memcmp(got, "1234\0\0\0\0", 8) == 0);
    EQ(volume_read(v, got, 8, 0, NULL), 0);
    OK(memcmp(got,
              "12\xcc"
              "4",
              4) == 0);
    volume_close(v);
}

FIBER_TEST(failed_flush_stays_failed)
{
    struct error err = {0};
    struct volume *v = open_writable("fault:flush-error=ENOSPC,count=1:memory:1M");
    EQ(volume_flush(v, &err), -ENOSPC);
    error_clear(&err);
    EQ(volume_flush(v, &err), -EIO);
    OK(strstr(err.text, "earlier flush") != NULL);
    EQ(volume_write(v, "x", 1, 0, 0, NULL), 0);
    volume_close(v);

    /* FUA without the driver's own is a flush after. */
    v = open_writable("fault:no-fua,flush-error=EIO,count=1:memory:1M");
    EQ(volume_write(v, "x", 1, 0, 0, NULL), 0);
    EQ(volume_write(v, "x", 1, 0, WRITE_FUA, NULL), -EIO);
    EQ(volume_zero(v, 0, 1, ZERO_FUA, NULL), -EIO);
    EQ(volume_flush(v, NULL), -EIO);
    volume_close(v);

    /* A FUA write that failed may have been told what a flush would have been told. */
    v = open_writable("fault:write-error=EIO,count=1:memory:1M");
    EQ(volume_write(v, "x", 1, 0, WRITE_FUA, NULL), -EIO);
    EQ(volume_flush(v, NULL), -EIO);
    volume_close(v);
}

FIBER_TEST(fast_zero_changes_nothing)
{
    char got[3];
    struct volume *v = open_writable("fault:no-fast-zero:memory:1M");
    EQ(volume_write(v, "abc", 3, 5, 0, NULL), 0);
    EQ(volume_zero(v, 0, 100, ZERO_NO_FALLBACK, NULL), -ENOTSUP);
    EQ(volume_read(v, got, 3, 5, NULL), 0);
    OK(memcmp(got, "abc", 3) == 0);
    EQ(volume_zero(v, 0, 100, 0, NULL), 0);
    volume_close(v);
    v = open_writable("fault:min=4096:memory:1M");
    EQ(volume_write(v, "abc", 3, 5, 0, NULL), 0);
    EQ(volume_zero(v, 0, 100, ZERO_NO_FALLBACK, NULL), -ENOTSUP);
    EQ(volume_zero(v, 1, 8192, ZERO_NO_FALLBACK, NULL), 0);
    EQ(volume_read(v, got, 3, 5, NULL), 0);
    OK(memcmp(got, "\0\0\0", 3) == 0);
    volume_close(v);
}

struct held {
    struct volume *v;
    int result;
    bool done;
    struct fiber *self;
};

static void read_held(void *arg)
{
    struct held *h = arg;
    char byte;
    h->self = fiber_self();
    h->result = volume_read(h->v, &byte, 1, 4096, NULL);
    h->done = true;
}

static void until_held(struct volume *v, unsigned n)
{
    while (fault_held(v) != n) {
        fiber_yield();
    }
}

FIBER_TEST(held_until_released_or_canceled)
{
    char byte;
    struct fgroup g;
    struct volume *v = open_writable("fault:hold-read@4096:memory:1M");
    struct held a = {.v = v, .result = 1};
    struct held b = {.v = v, .result = 1};
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, read_held, &a), 0);
    EQ(fgroup_spawn(&g, read_held, &b), 0);
    until_held(v, 2);
    EQ(volume_read(v, &byte, 1, 4095, NULL), 0);
    fiber_cancel(a.self);
    until_held(v, 1);
    OK(!b.done);
    fault_release(v);
    fgroup_wait(&g, false);
    EQ(a.result, -ECANCELED);
    EQ(b.result, 0);
    EQ(volume_read(v, &byte, 1, 4096, NULL), 0);
    volume_close(v);
}

FIBER_TEST(held_until_a_file_exists)
{
    char name[300];
    const char *flag = in_folder("", "flag");
    struct fgroup g;
    snprintf(name, sizeof(name), "fault:hold=%s,delay=1ms:memory:1M", flag);
    struct volume *v = open_writable(name);
    struct held a = {.v = v, .result = 1};
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, read_held, &a), 0);
    until_held(v, 1);
    OK(access(in_folder("", "flag.held"), F_OK) == 0);
    make_file(flag, "", 0, 0);
    fgroup_wait(&g, false);
    EQ(a.result, 0);
    volume_close(v);
    unlink(in_folder("", "flag.held"));
    unlink(flag);
}

static void zero_without_end(void *arg)
{
    struct held *h = arg;
    h->self = fiber_self();
    h->done = true;
    h->result = volume_zero(h->v, 0, h->v->size, 0, NULL);
}

/* Neither the driver nor the fallback ever waits here. */
FIBER_TEST(a_long_zero_is_canceled)
{
    static const char *const names[] = {"fault:no-zero:null:1E", "fault:max-zero=4K:null:1E"};
    for (int i = 0; i < 2; i++) {
        struct volume *v = open_writable(names[i]);
        struct held a = {.v = v, .result = 1};
        struct fgroup g;
        fgroup_init(&g);
        EQ(fgroup_spawn(&g, zero_without_end, &a), 0);
        while (!a.done) {
            fiber_yield();
        }
        fiber_cancel(a.self);
        fgroup_wait(&g, false);
        EQ(a.result, -ECANCELED);
        volume_close(v);
    }
}

/* The same seed, the same calls, the same faults. */
FIBER_TEST(chance_repeats)
{
    bool first[200];
    unsigned failed = 0;
    for (int run = 0; run < 2; run++) {
        struct volume *v = open_writable("fault:read-error=EIO,percent=30,seed=5:memory:1M");
        for (int i = 0; i < 200; i++) {
            char byte;
            bool bad = volume_read(v, &byte, 1, 0, NULL) < 0;
            failed += bad;
            if (run == 0) {
                first[i] = bad;
            } else {
                OK(first[i] == bad);
            }
        }
        volume_close(v);
    }
    OK(failed > 40 && failed < 200);
}

int main(void)
{
    folder_make();
    RUN(grammar);
    RUN(what_is_parsed);
    RUN(errors_where_they_belong);
    RUN(half_of_it);
    RUN(failed_flush_stays_failed);
    RUN(fast_zero_changes_nothing);
    RUN(held_until_released_or_canceled);
    RUN(held_until_a_file_exists);
    RUN(a_long_zero_is_canceled);
    RUN(chance_repeats);
    folder_remove();
    bufpool_trim();
    return tap_done();
}
