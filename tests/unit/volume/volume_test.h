/* What the tests of this room share: fibers as tests, a folder of their own, a repeatable chance.
 */
#ifndef TESTS_UNIT_VOLUME_VOLUME_TEST_H
#define TESTS_UNIT_VOLUME_VOLUME_TEST_H

#include "core/bufpool.h"
#include "core/worker.h"
#include "tap.h"
#include "volume/endpoint.h"
#include "volume/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

struct fiber_body {
    void (*fn)(void);
};

static inline int run_fiber_body(void *arg)
{
    struct fiber_body *body = arg;
    body->fn();
    return 0;
}

/* FIBER_TEST(name) { ... }: a test whose body runs in a fiber of a worker. */
#define FIBER_TEST(name)                           \
    static void name##_body(void);                 \
    static void name(void)                         \
    {                                              \
        struct fiber_body body = {name##_body};    \
        EQ(worker_main(run_fiber_body, &body), 0); \
    }                                              \
    static void name##_body(void)

static inline uint64_t chance(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static inline uint64_t below(uint64_t *state, uint64_t n)
{
    return n == 0 ? 0 : chance(state) % n;
}

static char test_folder[64];

static inline void folder_make(void)
{
    snprintf(test_folder, sizeof(test_folder), "/tmp/penstock-test-XXXXXX");
    if (!mkdtemp(test_folder)) {
        perror("mkdtemp");
        exit(1);
    }
}

static inline void folder_remove(void)
{
    rmdir(test_folder);
}

/* "PREFIX" and the path of `file` in the folder; four texts live at a time. */
static inline const char *in_folder(const char *prefix, const char *file)
{
    static char text[4][256];
    static unsigned turn;
    char *to = text[turn++ % 4];
    snprintf(to, sizeof(text[0]), "%s%s/%s", prefix, test_folder, file);
    return to;
}

static inline void make_file(const char *path, const void *data, size_t len, uint64_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    OK(fd >= 0 && (len == 0 || pwrite(fd, data, len, 0) == (ssize_t)len) &&
       ftruncate(fd, (off_t)size) == 0);
    close(fd);
}

/* Opens for writing; a failure is the test's. */
static inline struct volume *open_writable(const char *name)
{
    struct endpoint_options o;
    struct error err = {0};
    char text[1024];
    struct volume *v = NULL;
    endpoint_options_init(&o);
    o.writable = true;
    if (endpoint_open(name, &o, &v, &err) < 0) {
        printf("# %s\n", error_format(&err, text, sizeof(text)));
        tap_check(false, __FILE__, __LINE__, name);
        return NULL;
    }
    return v;
}

#endif
