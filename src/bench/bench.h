/*
 * The benches. Each runs its rounds interleaved, so that a noisy machine hurts all rows alike, and
 * fills a sheet. Plain thread, blocking (they start processes), but bench_io, which is called
 * from a fiber.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "bench/sheet.h"
#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Told before each measurement: the step of steps, and what it is. Non-zero: stop here. */
struct bench_watch {
    int (*step)(void *arg, unsigned done, unsigned steps, const char *what);
    void *arg;
};

/* 0, or -ECANCELED with err. w may be NULL. */
int bench_step(const struct bench_watch *w, unsigned done, unsigned steps, const char *what,
               struct error *err);

struct bench_nbd_options {
    uint64_t size;       /* bytes of the disk */
    unsigned rounds;     /* 1 .. SAMPLE_ROUNDS_MAX */
    const char *folder;  /* where disk and socket lie; NULL: /dev/shm, else TMPDIR or /tmp */
    const char *against; /* NULL: penstock serve; "qemu-nbd", "nbdkit", "nbd-server", or a shell
                          * command with $socket and $disk in its environment */
};
int bench_nbd(const struct bench_nbd_options *o, const struct bench_watch *w, struct sheet *s,
              struct error *err);

struct bench_pipe_options {
    uint64_t size; /* bytes a measurement */
    unsigned rounds;
    const char *path;  /* the file that is written; NULL: one in /dev/shm */
    uint64_t max_pipe; /* largest pipe tried */
};
int bench_pipe(const struct bench_pipe_options *o, const struct bench_watch *w, struct sheet *s,
               struct error *err);

enum bench_io_pattern { IO_RANDREAD, IO_RANDWRITE, IO_RANDRW, IO_READ, IO_WRITE };

#define BENCH_IO_DEPTHS_MAX 12
#define BENCH_IO_ENDPOINTS_MAX 64

struct volume;
struct workers;

struct bench_io_options {
    enum bench_io_pattern pattern;
    uint32_t block_size;
    unsigned depths[BENCH_IO_DEPTHS_MAX]; /* a drive; 0 ends */
    uint64_t run_ns;                      /* a measurement */
    unsigned rounds;
    unsigned read_percent; /* IO_RANDRW */
    struct volume *volumes[BENCH_IO_ENDPOINTS_MAX];
    unsigned volumes_count;
    struct workers *workers;
    bool beside_published; /* print result 2 too */
};
int bench_io(const struct bench_io_options *o, const struct bench_watch *w, struct sheet *s,
             struct error *err);

#endif
