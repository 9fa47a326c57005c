/*
 * Copying a disk: from one endpoint to another, either of which may be a stream (a pipe).
 *
 * What the source says reads as zeros is never read; what turns out to be zeros is not written as
 * data. After a failure nothing looks complete that isn't: a file that the copy has made is
 * removed, and of a target that was there before the result says that it is incomplete.
 */
#ifndef JOBS_COPY_H
#define JOBS_COPY_H

#include "core/error.h"
#include "digest/blkhash.h"
#include "volume/endpoint.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define COPY_REQUEST_MIN 4096u
#define COPY_REQUEST_MAX (32u << 20) /* VOLUME_TRANSFER_MAX bounds it; larger gains nothing */
#define COPY_DEPTH_MAX 256u          /* requests in flight a worker */

struct copy_options {
    const char *source, *target;
    struct endpoint_options source_options, target_options; /* writable, create ... are set here */
    uint64_t pipe_size;    /* of streams that are pipes: bytes or SOCKET_BUFFER_... */
    uint64_t request_size; /* bytes, rounded up to what both ends take; 0: chosen */
    unsigned depth;        /* requests in flight on each worker; 0: chosen */
    unsigned workers;      /* 0: chosen */
    uint64_t rate;         /* bytes of data a second; 0: no limit */
    uint32_t sparse;       /* look for zeros in blocks of so many bytes; 0: don't */
    const char *sum;       /* digest of the source's checksum (jobs/sum.h); NULL: none wanted */
    bool target_is_zero;   /* what would be zeroed there already is */
    bool allocated;        /* zeros take space in the target */
    bool no_create;        /* the target exists, and keeps its size */
    bool size_mismatch;    /* the target may be larger than the source */
    bool no_flush;
};

/* Moves while the copy runs; any thread may look. total 0: not known (a stream). */
struct copy_progress {
    _Atomic(uint64_t) done, total; /* bytes */
    /* While there is a target file that this copy has made, and has not finished: */
    _Atomic(bool) created;
    uint64_t created_dev, created_ino; /* set before created is */
};

/* What an NBD end had; connections 0: it is none. */
struct copy_sockets {
    unsigned connections;
    uint64_t send_buffer_wanted, send_buffer_granted; /* bytes, of the first connection */
    uint64_t receives;                                /* calls, all connections */
};

struct copy_result {
    uint64_t total, data, zero; /* bytes; data + zero = total when it succeeded */
    uint64_t duration_ns;
    uint64_t request_size;
    unsigned depth, workers;
    struct copy_sockets source_sockets, target_sockets;
    /* What was asked for with `sum`; written when the copy succeeded. */
    char sum_digest[48]; /* its digest's name, lower case; empty: there is no checksum */
    size_t sum_length;   /* bytes of sum */
    uint8_t sum[BLKHASH_DIGEST_MAX];
    bool target_removed;    /* it failed: the target was ours and is gone */
    bool target_incomplete; /* it failed: the target exists and holds a part */
};

/*
 * From a fiber, whose cancel ends it with -ECANCELED. 0 when all of the source is in the target
 * (and flushed); or -errno with err. *ret is always written. progress may be NULL.
 */
int copy_run(const struct copy_options *o, struct copy_progress *progress, struct copy_result *ret,
             struct error *err);

/* Last words of a process that won't wait for copy_run() to return: removes the file that the copy
 * has made. Any thread; blocks for as long as an unlink() does. */
void copy_abandon(const struct copy_options *o, struct copy_progress *progress);

#endif
