/*
 * Comparing two disks: are their bytes the same, and where is the first that differs?
 *
 * What both say reads as zeros is not read. The answer does not depend on timing: it is the lowest
 * offset that differs, or the error at the lowest offset where that is lower still.
 */
#ifndef JOBS_COMPARE_H
#define JOBS_COMPARE_H

#include "core/error.h"
#include "volume/volume.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define COMPARE_REQUEST_MIN 4096u
#define COMPARE_REQUEST_MAX (32u << 20)
#define COMPARE_DEPTH_MAX 256u

struct compare_options {
    unsigned workers;      /* 0: chosen */
    unsigned depth;        /* requests in flight a worker; 0: chosen */
    uint64_t request_size; /* bytes, rounded up to a power of two; 0: chosen */
    bool strict;           /* other sizes are a difference */
};

enum compare_verdict {
    COMPARE_SAME,
    COMPARE_SIZES_DIFFER, /* the longer one has only zeros beyond the other's end */
    COMPARE_DIFFERENT,
};

struct compare_result {
    enum compare_verdict verdict;
    bool has_offset;   /* strict: different sizes have none */
    uint64_t offset;   /* COMPARE_DIFFERENT: of the first byte that differs */
    uint64_t sizes[2]; /* bytes */
    uint64_t read;     /* bytes read, of both together */
    uint64_t skipped;  /* bytes that are zeros on both sides by their own account */
    uint64_t duration_ns;
};

/* Moves while it runs; any thread may look. */
struct compare_progress {
    _Atomic(uint64_t) done, total; /* bytes of the longer disk */
};

/*
 * From a fiber, whose cancel ends it with -ECANCELED. 0 with *ret, or -errno with err. Workers of
 * its own that the volumes may have lanes on live in *crew until the caller, having closed the
 * volumes, frees it (crew.h); *crew is always written. progress may be NULL.
 */
struct crew;
int compare_run(struct volume *a, struct volume *b, const struct compare_options *o,
                struct compare_progress *progress, struct compare_result *ret, struct crew **crew,
                struct error *err);

#endif
