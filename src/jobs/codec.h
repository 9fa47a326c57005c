/*
 * Compression of one block at a time into one standard frame, so that ordinary tools (zstd -dc,
 * lz4 -dc, gzip -dc) can read the file; and the "notes" between frames that those tools skip:
 * skippable frames for zstd (RFC 8878, 3.1.2) and lz4 (frame format, "Skippable Frames"), empty
 * members with an extra field for gzip (RFC 1952, 2.3.1.1).
 *
 * Pure functions over bytes; any thread.
 */
#ifndef JOBS_CODEC_H
#define JOBS_CODEC_H

#include <stddef.h>
#include <stdint.h>

struct codec {
    const char *name;
    uint8_t id; /* in the file */
    int level_default, level_min, level_max;
    size_t note_overhead; /* bytes of a note around its payload */
    size_t note_max;      /* payload bytes of one note */
    size_t (*bound)(size_t plain);
    /* Each returns the bytes written to dst, or -errno (ENOBUFS, EBADMSG, ENOMEM). */
    int64_t (*compress)(int level, const void *src, size_t len, void *dst, size_t room);
    int64_t (*expand)(const void *src, size_t len, void *dst, size_t room);
    /* What stands before and behind a note's payload; each returns the bytes written, which are
     * note_overhead together. */
    size_t (*note_head)(size_t payload_len, void *dst);
    size_t (*note_tail)(void *dst);
    /* Finds the note at src: the whole note's length and where its payload is, or -EBADMSG. */
    int64_t (*get_note)(const void *src, size_t len, const void **payload, size_t *payload_len);
};

/* "zstd", "lz4", "gzip"; NULL when unknown or not built in. */
const struct codec *codec_by_name(const char *name);
const struct codec *codec_by_id(uint8_t id);
/* The i-th codec that is built in, NULL after the last. */
const struct codec *codec_at(unsigned i);

#endif
