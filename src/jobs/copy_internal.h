/* What the files of the copy job share. */
#ifndef JOBS_COPY_INTERNAL_H
#define JOBS_COPY_INTERNAL_H

#include "channel/stream.h"
#include "core/fiber.h"
#include "core/fsync.h"
#include "jobs/copy.h"
#include "jobs/sum_pass.h"
#include "volume/volume.h"

#include <sys/stat.h>

/* Ranges that the extents are ahead of the requests: enough to hide one slow answer. */
#define COPY_QUEUE_MAX 256u

struct copy_range {
    uint64_t offset, length;
    bool zero;
};

/* What one request moves. */
struct copy_piece {
    uint64_t offset;
    uint64_t length;
    uint64_t sequence; /* pieces in the order of the source, from 0; streams are written by it */
    bool zero;
    struct sum_slot *slot; /* where its digests go; NULL: no checksum is wanted */
};

/* One end: a volume or a stream. */
struct copy_end {
    const char *name;
    struct volume *volume; /* NULL: a stream */
    struct stream stream;
};

struct copy {
    const struct copy_options *options;
    struct copy_progress *progress; /* never NULL */
    struct copy_end source, target;
    uint64_t size;         /* of the source; streams: what has come */
    uint32_t request_size; /* a power of two */
    uint32_t grain;        /* of zero detection, 0: off */
    uint32_t align;        /* where data and zeros are told apart */
    uint64_t zero_max;     /* the largest zero request */
    bool skip_zeros;       /* the target has them */
    bool grow;             /* the target becomes as long as the stream */
    unsigned depth, workers;
    struct sum_pass *sum; /* NULL: no checksum is wanted */

    bool created; /* the target, by us */
    bool touched; /* the target has changed */

    struct fmutex mutex; /* the fields below, and every worker */
    struct fcond filled, emptied, turned, changed;
    struct copy_range queue[COPY_QUEUE_MAX];
    unsigned first, count;
    bool ended;              /* no range comes after those in the queue */
    uint64_t next_sequence;  /* of pieces that are taken */
    uint64_t write_sequence; /* of the piece that a stream is at */
    uint64_t paid_ns;        /* up to when the rate is used up */
    bool stopped;            /* failed or canceled; everybody ends */
    int result;
    struct error error;

    /* A stream is read, and pieces get their place in the checksum, by one at a time, in order. */
    struct fmutex source_lock;
    bool source_ended;

    _Atomic(uint64_t) data, zero; /* bytes, for the result */
};

/* copy_open.c: both ends, the rules about sizes, what becomes of the target in the end. */
int copy_open(struct copy *c, struct error *err);
void copy_close(struct copy *c);
/* Grows the target of a stream to at least size bytes. */
int copy_grow(struct copy *c, uint64_t size, struct error *err);
/* The last length of a target that grew; its shortness where it could not. */
int copy_settle(struct copy *c, struct error *err);
/* After a failure; the target is closed. */
void copy_clean_up(struct copy *c, struct copy_result *ret);

/* copy_range.c */
/* The fiber that asks for extents and fills the queue. */
void copy_scan(struct copy *c);
/* The next piece of a volume: 1, 0 at the end, -ECANCELED. */
int copy_take(struct copy *c, struct copy_piece *ret);
/* Done: bytes that were or need not be moved. */
void copy_count(struct copy *c, uint64_t bytes, bool zero);

/* copy_move.c: takes pieces until there are none. */
void copy_move(struct copy *c);

/* Names the end in err, as people know it. */
void copy_name_end(const char *name, struct error *err);

/* copy.c: the first failure is the result; everybody is told. err may be NULL. */
void copy_fail(struct copy *c, int r, const struct error *err);

#endif
