/*
 * A writer thread sends 2 MiB payloads, the caller receives them into an aligned buffer; the same
 * for pipes. Rounds of all buffer sizes are interleaved, and the median is told, since machines
 * are noisy.
 */
#include "tune/measure.h"

#include "channel/sizing.h"
#include "core/size.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PAYLOAD (2u << 20)
#define ROUND_BYTES (256u << 20)
#define ROUNDS 5u
#define ALIGN 4096u

#define SIZES_COUNT 4u
static const uint64_t SOCKET_SIZES[SIZES_COUNT] = {SOCKET_BUFFER_DEFAULT, 512u << 10, 1u << 20,
                                                   SIZING_UNIX_STREAM_WANTED};
static const uint64_t PIPE_SIZES[SIZES_COUNT] = {SOCKET_BUFFER_DEFAULT, 256u << 10, 512u << 10,
                                                 SIZING_PIPE_WANTED};

struct transfer {
    int fd;
    const char *buf;
    int result;
};

static void *writer(void *arg)
{
    struct transfer *t = arg;
    sigset_t pipe_only;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_only, NULL);
    for (size_t sent = 0; sent < ROUND_BYTES && t->result == 0;) {
        size_t at = sent % PAYLOAD;
        ssize_t n = write(t->fd, t->buf + at, PAYLOAD - at);
        if (n > 0) {
            sent += (size_t)n;
        } else if (errno != EINTR) {
            t->result = -errno;
        }
    }
    close(t->fd);
    return NULL;
}

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int open_pair(bool pipes, uint64_t size, int ends[2])
{
    struct sizing ignored;
    int r = pipes ? pipe2(ends, O_CLOEXEC)
                  : socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
    if (r != 0) {
        return -errno;
    }
    if (pipes) {
        sizing_pipe(ends[1], size, &ignored);
    } else {
        sizing_socket(ends[1], size, &ignored);
    }
    return 0;
}

/* One round: GiB/s, or -errno. */
static double one_round(bool pipes, uint64_t size, char *in, const char *out)
{
    int ends[2];
    int r = open_pair(pipes, size, ends);
    if (r < 0) {
        return r;
    }
    struct transfer t = {.fd = ends[1], .buf = out};
    pthread_t thread;
    double start = now_s();
    r = pthread_create(&thread, NULL, writer, &t);
    if (r != 0) {
        close(ends[0]);
        close(ends[1]);
        return -r;
    }
    size_t got = 0;
    ssize_t n;
    while ((n = read(ends[0], in, PAYLOAD)) != 0) {
        if (n < 0 && errno != EINTR) {
            break;
        }
        got += n > 0 ? (size_t)n : 0;
    }
    close(ends[0]);
    pthread_join(thread, NULL);
    double seconds = now_s() - start;
    if (t.result < 0 || got != ROUND_BYTES) {
        return t.result < 0 ? t.result : -EIO;
    }
    return (double)ROUND_BYTES / (1u << 30) / seconds;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int measure_kind(bool pipes, char *in, const char *out, struct tune_measure *ret)
{
    const uint64_t *sizes = pipes ? PIPE_SIZES : SOCKET_SIZES;
    double rates[SIZES_COUNT][ROUNDS];
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < SIZES_COUNT; i++) {
            rates[i][round] = one_round(pipes, sizes[i], in, out);
            if (rates[i][round] < 0) {
                return (int)rates[i][round];
            }
        }
    }
    for (size_t i = 0; i < SIZES_COUNT; i++) {
        qsort(rates[i], ROUNDS, sizeof(double), compare_doubles);
        ret[i].what = pipes ? "pipe" : "unix socket";
        if (sizes[i] == SOCKET_BUFFER_DEFAULT) {
            snprintf(ret[i].buffer, sizeof(ret[i].buffer), "default");
        } else {
            size_format(sizes[i], ret[i].buffer);
        }
        ret[i].gib_s = rates[i][ROUNDS / 2];
        ret[i].ratio = ret[i].gib_s / ret[0].gib_s;
    }
    return 0;
}

_Static_assert(2 * SIZES_COUNT <= TUNE_MEASURES_MAX, "room for both kinds");

int tune_measure(struct tune_measure *ret, size_t *n, struct error *err)
{
    char *in = aligned_alloc(ALIGN, PAYLOAD), *out = aligned_alloc(ALIGN, PAYLOAD);
    int r = -ENOMEM;
    if (in && out) {
        memset(in, 0, PAYLOAD);
        memset(out, 0x5a, PAYLOAD);
        r = measure_kind(false, in, out, ret);
    }
    if (r == 0) {
        r = measure_kind(true, in, out, ret + SIZES_COUNT);
    }
    free(in);
    free(out);
    *n = r == 0 ? 2 * SIZES_COUNT : 0;
    return r < 0 ? error_set(err, -r, "the transports can't be measured") : 0;
}
