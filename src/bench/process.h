/*
 * Running programs and measuring them: wall time, user and system CPU. Plain threads, blocking.
 */
#ifndef BENCH_PROCESS_H
#define BENCH_PROCESS_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PROCESS_ARGS_MAX 32
#define PROCESS_OUTPUT_MAX (64u << 10)

struct cost {
    double wall_s, user_s, sys_s;
    long switches; /* context switches, voluntary and not */
};

struct process {
    pid_t pid;
    const char *name; /* argv[0], for messages; not owned */
    int out_fd;       /* its standard output, or -1; owned */
    double started_s;
};

/* The program that is running. */
extern const char process_self[];

/* Starts argv[0] (looked up in PATH). in_fd, out_fd: descriptors for 0 and 1, or -1 for /dev/null;
 * keep_fd: one more that it inherits under the same number, or -1. Its error output goes to ours.
 */
int process_start(char *const argv[], int in_fd, int out_fd, int keep_fd, struct process *ret,
                  struct error *err);
/* Waits for its end. 0, or -EIO with err when it failed. cost may be NULL. */
int process_wait(struct process *p, struct cost *cost, struct error *err);
/* SIGTERM, then process_wait(); for servers, whose end by SIGTERM is no failure. Harmless when pid
 * is 0. */
int process_stop(struct process *p, struct cost *cost);

/* Without waiting for it. */
bool process_has_ended(const struct process *p);

/* Runs to the end; output (malloc'ed, terminated) is the caller's, or NULL: dropped. */
int process_run(char *const argv[], char **output, struct cost *cost, struct error *err);

double process_now_s(void);

#endif
