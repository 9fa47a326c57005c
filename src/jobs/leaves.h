/*
 * Leaves: the block digests of a disk, kept in a file beside it. With them two disks are compared
 * without being read, and after a change only what was changed has to be hashed again.
 *
 * The file: a header of LEAVES_HEADER_BYTES, numbers lowest byte first, then the digests one behind
 * the other.
 *
 *      0  "penstock leaves\n"
 *     16  4 bytes   version, 1
 *     20  4 bytes   where the digests begin, LEAVES_HEADER_BYTES
 *     24  4 bytes   bytes of a block
 *     28  4 bytes   bytes of a digest
 *     32  8 bytes   bytes of the disk
 *     40  8 bytes   number of digests
 *     48  64 bytes  the disk's blkhash, and zeros
 *    112  48 bytes  the digest's name, and zeros
 *    160  zeros
 *
 * The blkhash is made of exactly what follows it, so a file proves itself: leaves_open() computes
 * it again. All from a fiber.
 */
#ifndef JOBS_LEAVES_H
#define JOBS_LEAVES_H

#include "core/error.h"
#include "digest/blkhash.h"

#include <stdint.h>

#define LEAVES_HEADER_BYTES 4096u
#define LEAVES_NAME_MAX 48u

struct leaves_header {
    char digest[LEAVES_NAME_MAX];
    uint32_t digest_length; /* bytes */
    uint32_t block_size;    /* bytes */
    uint64_t size;          /* bytes of the disk */
    uint64_t count;         /* of leaves */
    uint8_t blkhash[BLKHASH_DIGEST_MAX];
};

/* Pure. bytes: LEAVES_HEADER_BYTES of them. parse: 0, or -EINVAL for what is none, or makes no
 * sense. */
int leaves_parse(const uint8_t *bytes, struct leaves_header *ret);
void leaves_build(const struct leaves_header *h, uint8_t *bytes);

struct leaves; /* a file of them, open for reading */
/* 0, -EINVAL (it is no such file), -EBADMSG (it is damaged), -errno; err names path. */
int leaves_open(const char *path, struct leaves **ret, struct error *err);
void leaves_close(struct leaves *l); /* NULL is fine */
const struct leaves_header *leaves_header_of(const struct leaves *l);
const char *leaves_path(const struct leaves *l);
/* n digests from number first on. One fiber at a time. */
int leaves_read(struct leaves *l, uint64_t first, uint64_t n, uint8_t *out, struct error *err);

struct leaves_writer; /* a new file of them; nothing is at path before the commit */
int leaves_create(const char *path, size_t digest_length, struct leaves_writer **ret,
                  struct error *err);
/* The next n digests; repeat: n times the same. One fiber at a time. */
int leaves_append(struct leaves_writer *w, const uint8_t *digests, uint64_t n, struct error *err);
int leaves_append_repeat(struct leaves_writer *w, const uint8_t *digest, uint64_t n,
                         struct error *err);
/* Writes the header (its count is filled in), makes it all stable, and puts the file in place of
 * what was at path. The writer is freed only by leaves_writer_free(), which without a commit leaves
 * path as it was. */
int leaves_commit(struct leaves_writer *w, struct leaves_header *h, struct error *err);
void leaves_writer_free(struct leaves_writer *w);

/* A run of blocks that are not the same on two disks. */
typedef int leaves_say_fn(void *arg, uint64_t offset, uint64_t length);
/*
 * Which ranges differ: say() for each, in order; what one disk has beyond the other's end counts as
 * different. say may return -errno to end it. 0, -EINVAL (digests or block sizes differ), -errno.
 */
int leaves_compare(struct leaves *a, struct leaves *b, leaves_say_fn *say, void *arg,
                   struct error *err);

#endif
