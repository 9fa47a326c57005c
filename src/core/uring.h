/*
 * A worker's io_uring. Private to src/core. Where liburing is not built in, no worker gets one.
 */
#ifndef CORE_URING_H
#define CORE_URING_H

#include <stdbool.h>
#include <stdint.h>

struct fiber;
struct uring;
struct worker;

enum io_op { IO_READ, IO_WRITE, IO_FDATASYNC, IO_FSYNC, IO_FALLOCATE };

struct io_request {
    enum io_op op;
    int fd;
    void *buf;       /* of IO_READ; IO_WRITE only reads it */
    uint64_t length; /* at most IO_LENGTH_MAX but for IO_FALLOCATE */
    uint64_t offset;
    int flags;      /* RWF_..., or the mode of IO_FALLOCATE */
    int64_t result; /* >= 0 or -errno */

    /* of uring.c */
    struct fiber *fiber;
    struct io_request *next;
    bool done;
};

/* A transfer's length for one system call; a multiple of any block size. */
#define IO_LENGTH_MAX (1u << 30)

/* 0 and *ret, or -errno: none is to be had here. On the worker's thread. */
int uring_new(struct worker *w, struct uring **ret);
void uring_free(struct uring *u); /* nothing may be in flight */

/* Parks until r is done; not canceled. */
void uring_run(struct uring *u, struct io_request *r);

/* For the loop: hands in what is queued, if anything is; wakes whose requests are done. */
void uring_submit(struct uring *u);
void uring_reap(struct uring *u);
/* The kernel did not take all requests: try again soon. */
bool uring_unsubmitted(const struct uring *u);

/* 0, or -errno of the set-up. */
int uring_probe(void);

#endif
