/* Waiting for descriptors: readiness, hang-up, deadlines, cancellation, regular files, renewal. */
#include "core/fdwait.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/fiber.h"
#include "core/worker.h"
#include "tap.h"

static uint64_t now;
static struct worker *worker;
static int pair[2];
static struct fdwait wait0;

static void begin(void)
{
    now = 1000;
    EQ(worker_new_stepped(&now, &worker), 0);
    EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    EQ(fdwait_init(&wait0, pair[0]), 0);
    worker_step(worker, false);
}

static void end(void)
{
    fdwait_done(&wait0);
    fdwait_done(&wait0);
    close(pair[0]);
    close(pair[1]);
    worker_free(worker);
}

struct waiting {
    enum fdwait_dir dir;
    uint64_t deadline;
    int result;
    bool done;
};

static void wait_for_it(void *arg)
{
    struct waiting *w = arg;

    w->done = false;
    w->result = fdwait_wait(&wait0, w->dir, w->deadline);
    w->done = true;
}

static void byte_wakes_reader(void)
{
    struct waiting r = {FDWAIT_READ, DEADLINE_NONE, 1, false};
    char c;

    begin();
    fiber_spawn(wait_for_it, &r, NULL);
    worker_step(worker, false);
    OK(!r.done);
    EQ(write(pair[1], "x", 1), 1);
    worker_step(worker, false);
    OK(r.done);
    EQ(r.result, 0);
    /* edge-triggered: the same byte does not wake twice, the next one does */
    fiber_spawn(wait_for_it, &r, NULL);
    worker_step(worker, false);
    OK(!r.done);
    EQ(read(pair[0], &c, 1), 1);
    EQ(write(pair[1], "y", 1), 1);
    worker_step(worker, false);
    OK(r.done);
    end();
}

static void early_edge_is_kept(void)
{
    struct waiting r = {FDWAIT_READ, DEADLINE_NONE, 1, false};

    begin();
    EQ(write(pair[1], "x", 1), 1);
    worker_step(worker, false);
    fiber_spawn(wait_for_it, &r, NULL);
    EQ(worker_step(worker, false), 1);
    OK(r.done);
    end();
}

static void writer_waits_for_room(void)
{
    static char block[65536];
    struct waiting w = {FDWAIT_WRITE, DEADLINE_NONE, 1, false};

    begin();
    wait0.ready[FDWAIT_WRITE] = false;
    while (write(pair[0], block, sizeof block) > 0) {
    }
    EQ(errno, EAGAIN);
    fiber_spawn(wait_for_it, &w, NULL);
    worker_step(worker, false);
    OK(!w.done);
    while (read(pair[1], block, sizeof block) > 0) {
    }
    worker_step(worker, false);
    OK(w.done);
    EQ(w.result, 0);
    end();
}

static void hang_up_wakes_both(void)
{
    static char block[65536];
    struct waiting r = {FDWAIT_READ, DEADLINE_NONE, 1, false};
    struct waiting w = {FDWAIT_WRITE, DEADLINE_NONE, 1, false};

    begin();
    wait0.ready[FDWAIT_WRITE] = false;
    while (write(pair[0], block, sizeof block) > 0) {
    }
    fiber_spawn(wait_for_it, &r, NULL);
    fiber_spawn(wait_for_it, &w, NULL);
    worker_step(worker, false);
    OK(!r.done && !w.done);
    close(pair[1]);
    worker_step(worker, false);
    OK(r.done && w.done);
    EQ(r.result, 0);
    EQ(w.result, 0);
    end();
}

static void deadline_and_cancellation(void)
{
    struct waiting r = {FDWAIT_READ, 2000, 1, false};
    struct fiber *f;

    begin();
    fiber_spawn(wait_for_it, &r, NULL);
    worker_step(worker, false);
    now = 2000;
    worker_step(worker, false);
    EQ(r.result, -ETIMEDOUT);
    r.deadline = DEADLINE_NONE;
    fiber_spawn(wait_for_it, &r, &f);
    worker_step(worker, false);
    fiber_cancel(f);
    worker_step(worker, false);
    OK(r.done);
    EQ(r.result, -ECANCELED);
    end();
}

static void regular_file_is_always_ready(void)
{
    struct waiting r = {FDWAIT_READ, DEADLINE_NONE, 1, false};
    FILE *file = tmpfile();

    begin();
    OK(file);
    fdwait_done(&wait0);
    EQ(fdwait_init(&wait0, fileno(file)), 0);
    OK(!wait0.pollable);
    fiber_spawn(wait_for_it, &r, NULL);
    worker_step(worker, false);
    OK(r.done);
    EQ(r.result, 0);
    end();
    fclose(file);
}

static void bad_fd(void)
{
    struct fdwait w;

    begin();
    EQ(fdwait_init(&w, -1), -EBADF);
    fdwait_done(&w);
    end();
}

static void renewed_under_us(void)
{
    struct waiting r = {FDWAIT_READ, DEADLINE_NONE, 1, false};
    int fresh[2];

    begin();
    EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fresh), 0);
    OK(dup3(fresh[0], pair[0], O_CLOEXEC) == pair[0]); /* another socket, the same number */
    EQ(fdwait_renew(&wait0, pair[0]), 0);
    worker_step(worker, false);
    fiber_spawn(wait_for_it, &r, NULL);
    worker_step(worker, false);
    OK(!r.done);
    EQ(write(fresh[1], "x", 1), 1);
    worker_step(worker, false);
    OK(r.done);
    EQ(fdwait_renew(&wait0, fresh[0]), 0); /* another number */
    close(fresh[1]);
    worker_step(worker, false);
    fiber_spawn(wait_for_it, &r, NULL);
    worker_step(worker, false);
    OK(r.done);
    end();
    close(fresh[0]);
}

static void wait_once(void *arg)
{
    *(int *)arg = fd_wait_once(pair[0], FDWAIT_READ, worker_now_ns(worker_self()) + 1000);
}

static void waits_once(void)
{
    int result = 1;
    struct timespec ts;

    begin();
    fdwait_done(&wait0);
    fiber_spawn(wait_once, &result, NULL);
    worker_step(worker, false);
    worker_step(worker, false);
    EQ(result, 1);
    EQ(write(pair[1], "x", 1), 1);
    worker_step(worker, false);
    EQ(result, 0);
    clock_gettime(CLOCK_MONOTONIC, &ts);
    EQ(fd_wait_once(pair[0], FDWAIT_READ, DEADLINE_NONE), 0); /* outside of fibers: poll() */
    EQ(fd_wait_once(pair[1], FDWAIT_READ, (uint64_t)ts.tv_sec * 1000000000u), -ETIMEDOUT);
    end();
}

/* The same on real workers: data through socket pairs, both directions at once. */
enum { BYTES = 4 << 20, CONNECTIONS = 4 };

struct stream {
    int fd;
    bool write;
    unsigned *done;
};

static void pump(void *arg)
{
    static char zeros[16384];
    struct stream *s = arg;
    struct fdwait w;
    uint64_t total = 0;
    char buf[16384];

    EQ(fdwait_init(&w, s->fd), 0);
    while (total < BYTES) {
        ssize_t n = s->write ? write(s->fd, zeros, sizeof zeros) : read(s->fd, buf, sizeof buf);

        if (n > 0) {
            total += (uint64_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            EQ(fdwait_wait(&w, s->write ? FDWAIT_WRITE : FDWAIT_READ, DEADLINE_NONE), 0);
        } else {
            OK(!"stream ended");
            break;
        }
    }
    EQ(total, BYTES);
    fdwait_done(&w);
}

static void streams_between_workers(void)
{
    struct workers *ws;
    struct stream s[2 * CONNECTIONS];
    int fds[CONNECTIONS][2];

    EQ(workers_start(2, &ws), 0);
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds[i]), 0);
        for (unsigned side = 0; side < 2; side++) {
            s[2 * i + side] = (struct stream){.fd = fds[i][side], .write = side};
            EQ(worker_post(workers_get(ws, (i / 2 + side) % 2), pump, &s[2 * i + side]), 0);
        }
    }
    workers_stop(ws);
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        close(fds[i][0]);
        close(fds[i][1]);
    }
}

int main(void)
{
    RUN(byte_wakes_reader);
    RUN(early_edge_is_kept);
    RUN(writer_waits_for_room);
    RUN(hang_up_wakes_both);
    RUN(deadline_and_cancellation);
    RUN(regular_file_is_always_ready);
    RUN(bad_fd);
    RUN(renewed_under_us);
    RUN(waits_once);
    RUN(streams_between_workers);
    return tap_done();
}
