/*
 * Writing into the page cache is a copy, not a wait: what counts is that the bytes are still in the
 * CPU's cache when they are copied on. So one thread reads a piece that fits there and writes it at
 * once; a second thread for the writes costs more in moved cache lines and wake-ups than it gains
 * (measured: half the CPU time, two thirds of the time).
 *
 * The thread is one of the pool, since the kernel may hold up a writer for the disk. It moves what
 * the stream has, a MiB at most, and comes back; the fiber waits for more.
 */
#include "jobs/save_move.h"

#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/worker.h"
#include "jobs/pace.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/uio.h>

#define PIECE (256u << 10) /* stays in a second-level cache */
#define TURN (1u << 20)    /* between two looks at cancellation and rate */

struct turn {
    struct save_move *m;
    char *buf;
    size_t moved;
    bool at_end;
    bool write_failed;
};

/* Fills the piece with what is there. Bytes, 0 at the end, -EAGAIN when there is nothing. */
static ssize_t fill(struct save_move *m, char *buf)
{
    size_t len = 0;
    while (len < PIECE) {
        ssize_t n = stream_try_read(m->in, buf + len, PIECE - len);
        if (n == -EINTR) {
            continue;
        }
        if (n <= 0) {
            return len ? (ssize_t)len : n;
        }
        len += (size_t)n;
    }
    return (ssize_t)len;
}

static int put(const struct save_move *m, char *buf, size_t len, uint64_t at)
{
    while (len > 0) {
        struct iovec iov = {buf, len};
        ssize_t n = pwritev2(m->out_fd, &iov, 1, (off_t)at, m->write_flags);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            return n == 0 ? -EIO : -errno;
        }
        if (n > 0) {
            buf += n;
            at += (uint64_t)n;
            len -= (size_t)n;
        }
    }
    return 0;
}

/* On the thread pool. 0, -EAGAIN (the stream is empty now) or what failed. */
static int run_turn(void *arg)
{
    struct turn *t = arg;
    while (t->moved < TURN) {
        ssize_t n = fill(t->m, t->buf);
        if (n <= 0) {
            t->at_end = n == 0;
            return (int)n;
        }
        int r = put(t->m, t->buf, (size_t)n, t->m->offset + t->m->moved + t->moved);
        if (r < 0) {
            t->write_failed = true;
            return r;
        }
        t->moved += (size_t)n;
    }
    return 0;
}

static int turn_failed(const struct save_move *m, const struct turn *t, int r, struct error *err)
{
    if (!t->write_failed) {
        return error_set(err, -r, "the stream can't be read");
    }
    error_set(err, -r, "it can't be written");
    error_endpoint(err, m->name);
    error_at(err, m->offset + m->moved);
    return r;
}

static int one_turn(struct save_move *m, char *buf, bool *at_end, struct error *err)
{
    struct turn t = {.m = m, .buf = buf};
    uint64_t start = worker_now_ns(worker_self());
    int r = offload(run_turn, &t);
    m->writing_ns += worker_now_ns(worker_self()) - start;
    m->moved += t.moved;
    *at_end = t.at_end;
    if (m->progress) {
        atomic_fetch_add(m->progress, t.moved);
    }
    if (r < 0 && r != -EAGAIN) {
        return turn_failed(m, &t, r, err);
    }
    int waited = pace_wait(m->pace, t.moved);
    if (waited == 0 && r == -EAGAIN) {
        waited = stream_wait_readable(m->in);
    }
    if (waited == 0 && fiber_canceled()) {
        waited = -ECANCELED;
    }
    return waited < 0 ? error_set(err, -waited, "it was stopped") : 0;
}

int save_move_run(struct save_move *m, struct error *err)
{
    void *buf = NULL;
    bool at_end = false;
    int r = bufpool_get(PIECE, &buf);
    if (r < 0) {
        return error_set(err, -r, "no memory for buffers");
    }
    while (r == 0 && !at_end) {
        r = one_turn(m, buf, &at_end, err);
    }
    bufpool_put(buf, PIECE);
    return r;
}
