/*
 * Checksums of disks: blkhash (digest/blkhash.h), bit-compatible with blksum, of a volume or of a
 * stream, with all workers reading and hashing and holes not read at all.
 */
#ifndef JOBS_SUM_H
#define JOBS_SUM_H

#include "core/error.h"
#include "digest/blkhash.h"
#include "jobs/leaves.h"
#include "volume/volume.h"

#include <stdbool.h>
#include <stdint.h>

#define SUM_BLOCK_MIN 512u
#define SUM_BLOCK_MAX (16u << 20) /* a block is one message and one buffer */

struct sum;

struct sum_options {
    const char *digest;
    uint32_t block_size; /* power of two, SUM_BLOCK_MIN to SUM_BLOCK_MAX */
    unsigned workers;    /* 0: one a CPU */
    /* May be NULL. How far the hash is, from any worker, one call at a time. */
    void (*advance)(void *arg, uint64_t bytes);
    void *arg;
};

struct sum_result {
    uint64_t size;  /* bytes hashed, holes counted */
    uint64_t zeros; /* bytes of these that were known to be zeros and not read */
    size_t length;  /* bytes of digest */
    uint8_t digest[BLKHASH_DIGEST_MAX];
    /* What blksum prints for a file whose size is no multiple of 512, which qemu-nbd pads with
     * zeros to a sector; the same as digest for all other sizes. */
    uint8_t sector[BLKHASH_DIGEST_MAX];
    bool odd; /* they differ */
};

struct sum_range {
    uint64_t offset, length; /* bytes */
};

/* The block digests of a disk, beside its checksum. */
struct sum_leaves {
    struct leaves_writer *keep; /* gets them; NULL: nobody wants them */
    /* NULL, or what is known from before: only what was changed since is read. Its digest and block
     * size must be those of the sum. A disk may have another size by now. */
    struct leaves *old;
    const struct sum_range *changed; /* in any order; what lies beyond the disk's end is ignored */
    size_t count;
};

/* 0, -ENOENT (no such digest), -EINVAL (block size), -ENOTSUP, -ENOMEM, with err. On a worker; the
 * further workers are started when there is work for them. */
int sum_new(const struct sum_options *o, struct sum **ret, struct error *err);
/* From a fiber of the worker that made it. NULL is fine. */
void sum_free(struct sum *s);
const struct digest *sum_digest(const struct sum *s);

/*
 * From a fiber of the worker that made s, one at a time. Canceled by fiber_cancel(): -ECANCELED
 * once the requests in flight have ended. *ret is written on success only.
 */
int sum_volume(struct sum *s, struct volume *v, const struct sum_leaves *leaves_or_null,
               struct sum_result *ret, struct error *err);
/* fd from where it stands to its end; name is for messages. Of leaves only `keep` is used. */
int sum_stream(struct sum *s, int fd, const char *name, const struct sum_leaves *leaves_or_null,
               struct sum_result *ret, struct error *err);

#endif
