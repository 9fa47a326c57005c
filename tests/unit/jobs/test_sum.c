/*
 * Checksums of volumes and streams against the construction done the plain way, over sizes, block
 * sizes, workers and reads that come in any order; errors and cancellation.
 */
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/worker.h"
#include "jobs/sum.h"
#include "tap.h"
#include "volume/endpoint.h"
#include "volume/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#define IMAGE_MAX (3u << 20)

static uint8_t *image; /* what the disk under test holds */

/* Runs of data, of zeros, and of zeros with a byte in them. */
static void make_image(size_t size, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    memset(image, 0, IMAGE_MAX);
    for (size_t at = 0; at < size;) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        size_t run = (size_t)(x >> 33) % 200000 + 1;
        run = run < size - at ? run : size - at;
        for (size_t i = 0; i < run && (x >> 20) % 3 == 0; i++) {
            image[at + i] = (uint8_t)(i * 31 + (x >> 40));
        }
        image[at] = (x >> 20) % 3 == 1 ? 1 : image[at];
        at += run;
    }
}

static void plain_way(const char *digest, uint32_t block, uint64_t size, uint8_t *out)
{
    struct digest *d;
    struct blkhash_outer *o;
    uint8_t one[BLKHASH_DIGEST_MAX];
    EQ(digest_open(digest, &d), 0);
    EQ(blkhash_outer_new(d, block, &o), 0);
    for (uint64_t at = 0; at < size; at += block) {
        size_t now = size - at < block ? (size_t)(size - at) : block;
        EQ(digest_one(d, image + at, now, one), 0);
        EQ(blkhash_outer_digests(o, one, 1), 0);
    }
    EQ(blkhash_outer_final(o, size, out), 0);
    blkhash_outer_free(o);
    digest_free(d);
}

static void check_result(const struct sum_result *r, const char *digest, uint32_t block,
                         uint64_t size)
{
    uint8_t want[BLKHASH_DIGEST_MAX];
    uint64_t padded = (size + 511) / 512 * 512;
    plain_way(digest, block, size, want);
    EQ(r->size, size);
    OK(memcmp(r->digest, want, r->length) == 0);
    plain_way(digest, block, padded, want); /* image is zeros from size on */
    OK(memcmp(r->sector, want, r->length) == 0);
    EQ(r->odd, padded != size);
}

static void advance(void *arg, uint64_t bytes)
{
    *(uint64_t *)arg += bytes; /* one call at a time */
}

/* kind: an endpoint that lacks its size at the end */
static struct volume *open_image(const char *kind, uint64_t size)
{
    struct endpoint_options o;
    struct volume *v = NULL;
    char name[256];
    endpoint_options_init(&o);
    o.writable = true;
    snprintf(name, sizeof(name), "%s%llu", kind, (unsigned long long)size);
    if (!EQ(endpoint_open(name, &o, &v, NULL), 0)) {
        return NULL;
    }
    /* Only what is data: the rest stays a hole. */
    for (uint64_t at = 0; at < size; at += 4096) {
        size_t now = size - at < 4096 ? (size_t)(size - at) : 4096;
        static const uint8_t zeros[4096];
        if (memcmp(image + at, zeros, now) != 0) {
            EQ(volume_write(v, image + at, now, at, 0, NULL), 0);
        }
    }
    return v;
}

struct setup {
    const char *volume;
    uint64_t size;
    const char *digest;
    uint32_t block;
    unsigned workers;
};

static void one_volume(const struct setup *c)
{
    uint64_t advanced = 0;
    struct sum_options o = {.digest = c->digest,
                            .block_size = c->block,
                            .workers = c->workers,
                            .advance = advance,
                            .arg = &advanced};
    struct sum_result result;
    struct sum *s;
    struct volume *v = open_image(c->volume, c->size);
    if (!v || !EQ(sum_new(&o, &s, NULL), 0)) {
        volume_close(v);
        return;
    }
    for (int again = 0; again < 2; again++) { /* one context, several disks */
        struct error err = {};
        advanced = 0;
        if (!EQ(sum_volume(s, v, NULL, &result, &err), 0)) {
            printf("# %s\n", err.text);
            break;
        }
        check_result(&result, c->digest, c->block, c->size);
        EQ(advanced, c->size);
    }
    volume_close(v);
    sum_free(s);
}

static int volumes_fiber(void *arg)
{
    static const struct setup setups[] = {
        {"memory:", 1, "sha256", 65536, 1},
        {"memory:", 512, "sha256", 512, 2},
        {"memory:", 65536, "sha256", 65536, 1},
        {"memory:", 65537, "sha256", 65536, 3},
        {"memory:", 1000001, "sha256", 65536, 2},
        {"memory:", IMAGE_MAX - 512, "sha256", 65536, 1},
        {"memory:", IMAGE_MAX - 512, "sha256", 65536, 3},
        {"memory:", IMAGE_MAX - 1, "sha512", 512, 2},
        {"memory:", IMAGE_MAX - 100, "sha1", 4096, 3},
        {"memory:", IMAGE_MAX - 1024, "sha256", 1u << 20, 2},
        {"memory:", IMAGE_MAX - 1024, "md5", SUM_BLOCK_MAX, 2},
        {"fault:delay-read=2ms,percent=40,max=64K:memory:", IMAGE_MAX - 77, "sha256", 65536, 3},
        {"fault:delay-extents=1ms,no-extents:memory:", 500000, "sha256", 4096, 2},
    };
    for (size_t i = 0; i < sizeof(setups) / sizeof(setups[0]); i++) {
        make_image((size_t)setups[i].size, i);
        one_volume(&setups[i]);
    }
    return 0;
}

static void volumes(void)
{
    EQ(worker_main(volumes_fiber, NULL), 0);
}

static int holes_fiber(void *arg)
{
    /* 2 TiB that nobody reads: reading fails. */
    struct sum_options o = {.digest = "sha256", .block_size = SUM_BLOCK_MAX, .workers = 2};
    struct sum_result result;
    struct volume *v;
    struct sum *s;
    struct endpoint_options eo;
    endpoint_options_init(&eo);
    EQ(endpoint_open("fault:read-error=EIO:null:2T", &eo, &v, NULL), 0);
    EQ(sum_new(&o, &s, NULL), 0);
    EQ(sum_volume(s, v, NULL, &result, NULL), 0);
    EQ(result.size, 2ull << 40);
    EQ(result.zeros, 2ull << 40);
    sum_free(s);
    volume_close(v);
    return 0;
}

static void holes_are_not_read(void)
{
    EQ(worker_main(holes_fiber, NULL), 0);
}

static void expect_error(const char *volume, unsigned workers, int code, uint64_t offset)
{
    struct sum_options o = {.digest = "sha256", .block_size = 65536, .workers = workers};
    struct sum_result result = {.length = 12345};
    struct error err = {};
    struct sum *s;
    struct volume *v = open_image(volume, IMAGE_MAX);
    if (v && EQ(sum_new(&o, &s, NULL), 0)) {
        EQ(sum_volume(s, v, NULL, &result, &err), -code);
        EQ(err.code, code);
        OK(err.endpoint[0] != '\0');
        OK(err.has_offset);
        EQ(err.offset, offset);
        EQ(result.length, 12345);
        sum_free(s);
    }
    volume_close(v);
}

static int errors_fiber(void *arg)
{
    make_image(IMAGE_MAX, 5);
    memset(image, 7, IMAGE_MAX); /* no holes: every piece is read */
    for (unsigned workers = 1; workers <= 3; workers++) {
        expect_error("fault:read-error=EIO@2M+1:memory:", workers, EIO, 2u << 20);
        expect_error("fault:extents-error=EIO:memory:", workers, EIO, 0);
    }
    return 0;
}

static void errors_have_a_place(void)
{
    EQ(worker_main(errors_fiber, NULL), 0);
}

struct canceling {
    struct sum *s;
    struct volume *v;
    int result;
    bool ended;
};

static void canceled_sum(void *arg)
{
    struct canceling *c = arg;
    struct sum_result result;
    c->result = sum_volume(c->s, c->v, NULL, &result, NULL);
    c->ended = true;
}

static int cancel_fiber(void *arg)
{
    struct sum_options o = {.digest = "sha256", .block_size = 65536, .workers = 3};
    struct canceling c = {};
    struct fgroup group;
    memset(image, 7, IMAGE_MAX);
    c.v = open_image("fault:hold-read:memory:", IMAGE_MAX);
    EQ(sum_new(&o, &c.s, NULL), 0);
    fgroup_init(&group);
    EQ(fgroup_spawn(&group, canceled_sum, &c), 0);
    while (fault_held(c.v) < 8) { /* reads of several workers hang */
        fiber_sleep_ns(1000000);
    }
    fgroup_cancel(&group);
    fgroup_wait(&group, false);
    OK(c.ended);
    EQ(c.result, -ECANCELED);
    EQ(fault_held(c.v), 0);
    sum_free(c.s);
    volume_close(c.v);
    return 0;
}

static void cancel_ends_every_worker(void)
{
    EQ(worker_main(cancel_fiber, NULL), 0);
}

struct feed {
    int fd;
    size_t size, chunk;
};

static void *feed_pipe(void *arg)
{
    struct feed *f = arg;
    for (size_t at = 0; at < f->size;) {
        size_t now = f->size - at < f->chunk ? f->size - at : f->chunk;
        ssize_t n = write(f->fd, image + at, now);
        if (n < 0) {
            break;
        }
        at += (size_t)n;
    }
    close(f->fd);
    return NULL;
}

static void one_stream(size_t size, size_t chunk, unsigned workers)
{
    struct sum_options o = {.digest = "sha256", .block_size = 65536, .workers = workers};
    struct sum_result result;
    struct sum *s;
    int fds[2];
    pthread_t feeder;
    if (!EQ(pipe2(fds, O_CLOEXEC), 0) || !EQ(sum_new(&o, &s, NULL), 0)) {
        return;
    }
    struct feed feed = {fds[1], size, chunk};
    EQ(pthread_create(&feeder, NULL, feed_pipe, &feed), 0);
    if (EQ(sum_stream(s, fds[0], "pipe", NULL, &result, NULL), 0)) {
        check_result(&result, "sha256", 65536, size);
        EQ(result.zeros, 0);
    }
    pthread_join(feeder, NULL);
    close(fds[0]);
    sum_free(s);
}

static int streams_fiber(void *arg)
{
    static const size_t sizes[] = {0, 1, 65536, 262143, 262144, 262145, 1000001, IMAGE_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        make_image(sizes[i], i);
        one_stream(sizes[i], 70001, (unsigned)i % 3 + 1);
    }
    return 0;
}

static void streams(void)
{
    EQ(worker_main(streams_fiber, NULL), 0);
}

static int wrong_stream_fiber(void *arg)
{
    struct sum_options o = {.digest = "sha256", .block_size = 65536, .workers = 1};
    struct sum_result result;
    struct error err = {};
    struct sum *s;
    EQ(sum_new(&o, &s, NULL), 0);
    EQ(sum_stream(s, 12345, "fd:12345", NULL, &result, &err), -EBADF);
    STREQ(err.endpoint, "fd:12345");
    sum_free(s);
    return 0;
}

static void a_stream_that_is_none(void)
{
    EQ(worker_main(wrong_stream_fiber, NULL), 0);
}

static int options_fiber(void *arg)
{
    static const uint32_t wrong[] = {0, 1, 256, 511, 513, 3000, SUM_BLOCK_MAX * 2, UINT32_MAX};
    struct sum *s;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct sum_options o = {.digest = "sha256", .block_size = wrong[i]};
        EQ(sum_new(&o, &s, NULL), -EINVAL);
    }
    struct sum_options o = {.digest = "sha255", .block_size = 512};
    EQ(sum_new(&o, &s, NULL), -ENOENT);
    sum_free(NULL);
    return 0;
}

static void wrong_options(void)
{
    EQ(worker_main(options_fiber, NULL), 0);
}

int main(void)
{
    image = calloc(1, IMAGE_MAX + 512);
    if (!image) {
        return 1;
    }
    RUN(volumes);
    RUN(holes_are_not_read);
    RUN(errors_have_a_place);
    RUN(cancel_ends_every_worker);
    RUN(streams);
    RUN(a_stream_that_is_none);
    RUN(wrong_options);
    bufpool_trim();
    free(image);
    return tap_done();
}
