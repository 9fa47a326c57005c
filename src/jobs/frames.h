/*
 * The layout of compressed saved state: standard frames with notes between them.
 *
 *   head note    "PNSTKSV1", version, codec, block size
 *   block 0      one frame of up to block size plain bytes, then padding (a note) to 4096
 *   block 1 ...
 *   index        one or more notes of rows (u32 packed bytes, u32 plain bytes), then
 *   tail note    "PNSTKIX1", blocks, bytes of all index notes, plain length, flags, digest length,
 *                digest; it is TAIL_NOTE bytes long and ends the file
 *
 * Every number is little endian. Rows' offsets follow from the packed sizes, each rounded up to
 * 4096. A file without its tail note was cut off. Pure functions over bytes; what is read is
 * hostile until checked.
 */
#ifndef JOBS_FRAMES_H
#define JOBS_FRAMES_H

#include "jobs/codec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAMES_ALIGN 4096u
#define FRAMES_BLOCK_MAX (16u << 20)
#define FRAMES_DIGEST_MAX 64u
#define FRAMES_TAIL_PAYLOAD 128u
#define FRAMES_BLOCKS_MAX (1u << 26) /* 64 TiB at 1 MiB: the index stays below 512 MiB */

struct frames_row {
    uint32_t packed; /* bytes of the frame, without padding */
    uint32_t plain;
};

struct frames_tail {
    uint64_t blocks;
    uint64_t index_bytes; /* of all index notes together */
    uint64_t plain_length;
    uint32_t block_size;
    uint8_t digest_length; /* 0: none */
    uint8_t digest[FRAMES_DIGEST_MAX];
};

/* Fills dst (FRAMES_ALIGN bytes): the head note, padded. */
void frames_put_head(const struct codec *c, uint32_t block_size, void *dst);
/* Which codec made the file whose first bytes these are: NULL when it is none of ours. len is at
 * least 64. *block_size gets the block size. */
const struct codec *frames_get_head(const void *src, size_t len, uint32_t *block_size);
/* Whether these first bytes, 1 or more, say that the file is one of ours: also when it is cut off
 * in its head, damaged there, or of another version, so that frames_get_head() knows nothing of it.
 */
bool frames_is_claimed(const void *src, size_t len);

/* Room for a packed block of plain bytes with its padding. */
size_t frames_room(const struct codec *c, size_t plain);
/* Writes the padding behind packed bytes at dst up to the next multiple of FRAMES_ALIGN; returns
 * the whole length. */
size_t frames_pad(const struct codec *c, void *dst, size_t packed);
uint64_t frames_step(uint32_t packed, const struct codec *c); /* packed and padded */

/* Bytes of the index notes of n rows, and the notes themselves. */
size_t frames_index_size(const struct codec *c, uint64_t n);
void frames_put_index(const struct codec *c, const struct frames_row *rows, uint64_t n, void *dst);
/* 0 or -EBADMSG: exactly n rows, each within its bounds. */
int frames_get_index(const struct codec *c, const void *src, size_t len, uint32_t block_size,
                     struct frames_row *rows, uint64_t n);

size_t frames_tail_size(const struct codec *c);
void frames_put_tail(const struct codec *c, const struct frames_tail *t, void *dst);
/* 0 or -EBADMSG. */
int frames_get_tail(const struct codec *c, const void *src, size_t len, struct frames_tail *t);

#endif
