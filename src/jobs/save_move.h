/*
 * The plain way of saving: bytes as they are, through the page cache.
 */
#ifndef JOBS_SAVE_MOVE_H
#define JOBS_SAVE_MOVE_H

#include "channel/stream.h"
#include "core/error.h"

#include <stdatomic.h>
#include <stdint.h>

struct pace;

struct save_move {
    struct stream *in;
    int out_fd;
    int write_flags;  /* for pwritev2() */
    uint64_t offset;  /* in out_fd, of the stream's start */
    const char *name; /* of the store, for messages */
    struct pace *pace;
    _Atomic uint64_t *progress; /* or NULL */
    uint64_t moved;             /* bytes so far */
    uint64_t writing_ns;        /* spent moving */
};

/* Moves the stream to its end. 0 or -errno with err. */
int save_move_run(struct save_move *m, struct error *err);

#endif
