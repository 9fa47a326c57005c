/* File I/O, run once with each engine (PENSTOCK_IO in meson.build): exact transfers, the end of
 * the file, errors, O_DIRECT, more requests than the ring holds, two workers at once. */
#include "core/fileio.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/context.h"
#include "core/fiber.h"
#include "core/worker.h"
#include "tap.h"

static char path[256];
static int fd;

static int open_temp(int flags)
{
    const char *dir = getenv("TMPDIR");
    int f;

    snprintf(path, sizeof path, "%s/penstock-fileio-XXXXXX", dir && *dir ? dir : "/tmp");
    f = mkostemp(path, O_CLOEXEC);
    if (f >= 0 && flags) {
        close(f);
        f = open(path, O_RDWR | O_CLOEXEC | flags);
    }
    return f;
}

static void close_temp(void)
{
    close(fd);
    unlink(path);
}

static char *page_buffer(size_t size)
{
    void *p = NULL;

    if (posix_memalign(&p, 4096, size) != 0) {
        abort();
    }
    return p;
}

static void fill(char *buf, size_t len, uint64_t offset)
{
    for (size_t i = 0; i < len; i++) {
        buf[i] = (char)((offset + i) * 7 + (offset + i) / 4096);
    }
}

static bool check(const char *buf, size_t len, uint64_t offset)
{
    for (size_t i = 0; i < len; i++) {
        if (buf[i] != (char)((offset + i) * 7 + (offset + i) / 4096)) {
            return false;
        }
    }
    return true;
}

static int exact_transfers(void *arg)
{
    enum { SIZE = 3 * 1048576 + 5000 };
    char *buf = page_buffer(SIZE);
    char *got = page_buffer(SIZE);

    (void)arg;
    fill(buf, SIZE, 0);
    EQ(fileio_write(fd, buf, SIZE, 0, 0), 0);
    EQ(fileio_write(fd, buf, 0, 0, 0), 0);
    memset(got, 0, SIZE);
    EQ(fileio_read(fd, got, SIZE, 0), SIZE);
    OK(memcmp(buf, got, SIZE) == 0);
    EQ(fileio_read(fd, got, 0, 0), 0);
    EQ(fileio_read(fd, got, 100, SIZE - 40), 40); /* over the end */
    OK(check(got, 40, SIZE - 40));
    EQ(fileio_read(fd, got, 100, SIZE), 0);
    EQ(fileio_read(fd, got, 100, (uint64_t)SIZE * 100), 0);
    EQ(fileio_write(fd, buf, 4096, 0, RWF_DSYNC), 0);
    EQ(fileio_fdatasync(fd), 0);
    EQ(fileio_fsync(fd), 0);
    free(buf);
    free(got);
    return 0;
}

static int errors(void *arg)
{
    char buf[16] = {0};
    int full;

    (void)arg;
    EQ(fileio_read(-1, buf, sizeof buf, 0), -EBADF);
    EQ(fileio_write(-1, buf, sizeof buf, 0, 0), -EBADF);
    EQ(fileio_fsync(-1), -EBADF);
    EQ(fileio_read(fd, buf, sizeof buf, (uint64_t)INT64_MAX + 1), -EINVAL);
    EQ(fileio_read(fd, buf, sizeof buf, UINT64_MAX), -EINVAL);
    EQ(fileio_read(fd, buf, sizeof buf, INT64_MAX - 3), -EINVAL);
    EQ(fileio_write(fd, buf, sizeof buf, UINT64_MAX, 0), -EINVAL);
    EQ(fileio_fallocate(fd, 0, UINT64_MAX, 1), -EINVAL);
    EQ(fileio_fallocate(fd, 0, 0, 0), -EINVAL);
    full = open("/dev/full", O_RDWR | O_CLOEXEC);
    if (full >= 0) {
        EQ(fileio_write(full, buf, sizeof buf, 0, 0), -ENOSPC);
        close(full);
    }
    return 0;
}

static int allocation(void *arg)
{
    struct stat st;
    char buf[4096];
    int r;

    (void)arg;
    r = fileio_fallocate(fd, 0, 0, 1 << 20);
    if (r == -EOPNOTSUPP) {
        return 0;
    }
    EQ(r, 0);
    EQ(fstat(fd, &st), 0);
    EQ(st.st_size, 1 << 20);
    fill(buf, sizeof buf, 4096);
    EQ(fileio_write(fd, buf, sizeof buf, 4096, 0), 0);
    r = fileio_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096);
    OK(r == 0 || r == -EOPNOTSUPP);
    if (r == 0) {
        EQ(fileio_read(fd, buf, sizeof buf, 4096), sizeof buf);
        for (size_t i = 0; i < sizeof buf; i++) {
            if (buf[i] != 0) {
                OK(!"the hole is not zero");
                break;
            }
        }
    }
    return 0;
}

static int direct(void *arg)
{
    char *buf = page_buffer(65536);
    int buffered;

    (void)arg;
    fill(buf, 65536, 0);
    EQ(fileio_write(fd, buf, 65536, 0, 0), 0);
    memset(buf, 0, 65536);
    EQ(fileio_read(fd, buf, 65536, 0), 65536);
    OK(check(buf, 65536, 0));
    /* an end that is not aligned */
    buffered = open(path, O_RDWR | O_CLOEXEC);
    OK(buffered >= 0);
    EQ(ftruncate(buffered, 5000), 0);
    close(buffered);
    memset(buf, 0, 65536);
    EQ(fileio_read(fd, buf, 65536, 0), 5000);
    OK(check(buf, 5000, 0));
    EQ(fileio_read(fd, buf, 4096, 8192), 0);
    free(buf);
    return 0;
}

/* A descriptor that is O_NONBLOCK is read and written as any other. */
static int nonblock(void *arg)
{
    char *buf = page_buffer(65536);

    (void)arg;
    EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    fill(buf, 65536, 0);
    EQ(fileio_write(fd, buf, 65536, 0, 0), 0);
    EQ(fileio_fdatasync(fd), 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    memset(buf, 0, 65536);
    EQ(fileio_read(fd, buf, 65536, 0), 65536);
    OK(check(buf, 65536, 0));
    free(buf);
    return 0;
}

enum { REQUESTS = CONTEXT_TSAN ? 300 : 1500, PIECE = 4096 };

struct piece {
    unsigned i;
};

static void write_then_read(void *arg)
{
    uint64_t offset = (uint64_t)((struct piece *)arg)->i * PIECE;
    char *buf = page_buffer(PIECE);

    fill(buf, PIECE, offset);
    EQ(fileio_write(fd, buf, PIECE, offset, 0), 0);
    if (offset / PIECE % 64 == 0) {
        EQ(fileio_fdatasync(fd), 0);
    }
    if (offset / PIECE % 8 == 0) {
        posix_fadvise(fd, (off_t)offset, PIECE, POSIX_FADV_DONTNEED);
    }
    memset(buf, 0, PIECE);
    EQ(fileio_read(fd, buf, PIECE, offset), PIECE);
    OK(check(buf, PIECE, offset));
    free(buf);
}

/* Several times what the ring holds, all at once. */
static int many_at_once(void *arg)
{
    struct piece *pieces = calloc(REQUESTS, sizeof *pieces);
    struct fgroup group;

    (void)arg;
    fgroup_init(&group);
    for (unsigned i = 0; i < REQUESTS; i++) {
        pieces[i].i = i;
        EQ(fgroup_spawn(&group, write_then_read, &pieces[i]), 0);
    }
    fgroup_wait(&group, false);
    free(pieces);
    return 0;
}

static void canceled_io(void *arg)
{
    char *buf = page_buffer(PIECE);

    OK(fiber_canceled());
    fill(buf, PIECE, 0);
    EQ(fileio_write(fd, buf, PIECE, 0, 0), 0);
    EQ(fileio_read(fd, buf, PIECE, 0), PIECE);
    *(bool *)arg = true;
    free(buf);
}

static int not_canceled(void *arg)
{
    struct fgroup group;
    bool done = false;

    (void)arg;
    fgroup_init(&group);
    EQ(fgroup_spawn(&group, canceled_io, &done), 0);
    fgroup_cancel(&group);
    fgroup_wait(&group, false);
    OK(done);
    return 0;
}

static int engine_is_what_was_asked(void *arg)
{
    const char *want = getenv("PENSTOCK_IO");

    (void)arg;
    if (want && strcmp(want, "threads") == 0) {
        STREQ(fileio_engine(), "threads");
    } else {
        STREQ(fileio_engine(), fileio_uring_probe() == 0 ? "io_uring" : "threads");
    }
    printf("# engine: %s\n", fileio_engine());
    return 0;
}

static void in_worker(int (*fn)(void *arg))
{
    fd = open_temp(0);
    OK(fd >= 0);
    EQ(worker_main(fn, NULL), 0);
    close_temp();
}

static void engine(void)
{
    in_worker(engine_is_what_was_asked);
}

static void transfers(void)
{
    in_worker(exact_transfers);
}

static void transfers_outside_of_workers(void)
{
    fd = open_temp(0);
    allocation(NULL);
    exact_transfers(NULL);
    errors(NULL);
    close_temp();
}

static void reports_errors(void)
{
    in_worker(errors);
}

static void allocates(void)
{
    in_worker(allocation);
}

static void reads_direct(void)
{
    fd = open_temp(O_DIRECT);
    if (fd < 0) {
        unlink(path);
        SKIP("no O_DIRECT in the temporary folder");
        return;
    }
    EQ(worker_main(direct, NULL), 0);
    close_temp();
}

static void nonblocking_descriptor(void)
{
    in_worker(nonblock);
}

static void more_than_the_ring_holds(void)
{
    in_worker(many_at_once);
}

static void is_not_canceled(void)
{
    in_worker(not_canceled);
}

static void many_on_worker(void *arg)
{
    many_at_once(arg);
}

static void two_workers(void)
{
    struct workers *ws;

    fd = open_temp(0);
    EQ(workers_start(2, &ws), 0);
    worker_post(workers_get(ws, 0), many_on_worker, NULL);
    worker_post(workers_get(ws, 1), many_on_worker, NULL);
    workers_stop(ws);
    close_temp();
}

static void stepped_read(void *arg)
{
    char *buf = page_buffer(PIECE);

    fill(buf, PIECE, 0);
    EQ(fileio_write(fd, buf, PIECE, 0, 0), 0);
    free(buf);
    *(bool *)arg = true;
}

static void stepped_worker_waits_for_the_kernel(void)
{
    uint64_t now = 1;
    struct worker *w;
    bool done = false;

    fd = open_temp(0);
    EQ(worker_new_stepped(&now, &w), 0);
    fiber_spawn(stepped_read, &done, NULL);
    EQ(worker_step(w, false), 1);
    while (!done) {
        EQ(worker_step(w, true), 1);
    }
    worker_free(w);
    close_temp();
}

int main(void)
{
    RUN(engine);
    RUN(transfers);
    RUN(transfers_outside_of_workers);
    RUN(reports_errors);
    RUN(allocates);
    RUN(reads_direct);
    RUN(nonblocking_descriptor);
    RUN(more_than_the_ring_holds);
    RUN(is_not_canceled);
    RUN(two_workers);
    RUN(stepped_worker_waits_for_the_kernel);
    return tap_done();
}
