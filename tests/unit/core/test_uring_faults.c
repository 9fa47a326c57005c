/*
 * The ring when the kernel does not play along: requests are refused for a while (EAGAIN, EBUSY,
 * EINTR), or no ring is to be had. Nothing is lost, nothing fails. liburing's calls are replaced by
 * the linker (--wrap).
 */
#include <errno.h>
#include <liburing.h>
#include <stdatomic.h>
#include <unistd.h>

#include "core/fiber.h"
#include "core/fileio.h"
#include "core/worker.h"
#include "tap.h"

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __real_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params);
int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params);

static _Atomic unsigned submits;
static _Atomic unsigned refused;
static _Atomic bool refuse_rings;
static _Atomic bool refuse_flags;

int __wrap_io_uring_submit(struct io_uring *ring)
{
    static const int errors[] = {-EAGAIN, -EBUSY, -EINTR};
    unsigned n = atomic_fetch_add(&submits, 1);

    if (n % 4 != 3) {
        atomic_fetch_add(&refused, 1);
        return errors[n % 4];
    }
    return __real_io_uring_submit(ring);
}

int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params)
{
    /* The probe of the process asks for 2 entries, a worker for more. */
    if (entries > 2 && refuse_rings) {
        return -ENOMEM;
    }
    if (refuse_flags && (params->flags & ~(unsigned)IORING_SETUP_CLAMP)) {
        return -EINVAL; /* as kernels before 5.19 say */
    }
    return __real_io_uring_queue_init_params(entries, ring, params);
}

enum { REQUESTS = 600 };

static FILE *file;
static unsigned good;

static void write_and_read(void *arg)
{
    unsigned i = (unsigned)(uintptr_t)arg;
    unsigned got = 0;

    EQ(fileio_write(fileno(file), &i, sizeof i, (uint64_t)i * sizeof i, 0), 0);
    if (i % 50 == 0) {
        EQ(fileio_fdatasync(fileno(file)), 0);
    }
    EQ(fileio_read(fileno(file), &got, sizeof got, (uint64_t)i * sizeof i), sizeof got);
    good += got == i;
}

static int all_at_once(void *arg)
{
    struct fgroup group;

    STREQ(fileio_engine(), arg);
    good = 0;
    fgroup_init(&group);
    for (uintptr_t i = 0; i < REQUESTS; i++) {
        EQ(fgroup_spawn(&group, write_and_read, (void *)i), 0);
    }
    fgroup_wait(&group, false);
    EQ(good, REQUESTS);
    return 0;
}

static void run(const char *engine)
{
    char name[16];

    snprintf(name, sizeof name, "%s", engine);
    file = tmpfile();
    EQ(worker_main(all_at_once, name), 0);
    fclose(file);
}

static void refused_requests_are_offered_again(void)
{
    if (fileio_uring_probe() < 0) {
        SKIP("no io_uring here");
        return;
    }
    submits = refused = 0;
    run("io_uring");
    OK(refused > 0);
}

static void old_kernels_get_no_flags(void)
{
    if (fileio_uring_probe() < 0) {
        SKIP("no io_uring here");
        return;
    }
    refuse_flags = true;
    run("io_uring");
    refuse_flags = false;
}

static void without_a_ring_threads_do_it(void)
{
    refuse_rings = true;
    run("threads");
    refuse_rings = false;
}

int main(void)
{
    unsetenv("PENSTOCK_IO"); /* whatever the run as a whole is told to use */
    RUN(refused_requests_are_offered_again);
    RUN(old_kernels_get_no_flags);
    RUN(without_a_ring_threads_do_it);
    return tap_done();
}
