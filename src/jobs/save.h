/*
 * Saving and restoring the state of a VM: a stream of bytes into a store, and back.
 *
 * Call from a fiber. SIGPIPE must be ignored by the process.
 */
#ifndef JOBS_SAVE_H
#define JOBS_SAVE_H

#include "core/error.h"
#include "jobs/codec.h"
#include "jobs/store.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SAVE_DIGEST_MAX 64u
#define SAVE_RATE_NONE 0u

struct save_options {
    struct store_options store;
    int in_fd;                 /* where the stream comes from; not owned, not changed */
    const struct codec *codec; /* NULL: the bytes as they are */
    int level;
    bool digest;                /* blkhash-sha256 of the stream */
    bool sparse;                /* blocks of zeros become holes; not with a codec */
    uint64_t rate;              /* bytes a second, 0: as fast as it goes */
    unsigned threads;           /* compressing; 0: one a CPU */
    _Atomic uint64_t *progress; /* bytes read so far, or NULL */
};

struct save_result {
    uint64_t bytes;        /* of the stream */
    uint64_t stored_bytes; /* in the file, without holes */
    uint64_t zero_bytes;   /* left as holes */
    uint64_t elapsed_ns;
    uint64_t producer_wait_ns; /* waiting for the stream */
    uint64_t store_wait_ns;    /* waiting for the disk, when nothing else could be done */
    enum store_way way;
    uint8_t digest[SAVE_DIGEST_MAX];
    size_t digest_len; /* 0: not asked for */
};

/* 0 when every byte of the stream is durable under its name; -errno with err otherwise. */
int save_run(const struct save_options *o, struct save_result *ret, struct error *err);

struct restore_options {
    const char *name; /* path or endpoint */
    int fd;           /* >= 0: an open file instead; not owned */
    int out_fd;       /* not owned, not changed */
    uint64_t offset;  /* where the stream starts in it */
    bool direct;
    const uint8_t *expected; /* blkhash-sha256 that the stream must have, or NULL */
    size_t expected_len;
    bool as_is;          /* do not look for a compressed file's head */
    bool require_digest; /* fail when neither expected nor the file has one */
    uint64_t rate;
    unsigned threads;
    _Atomic uint64_t *progress; /* bytes written so far, or NULL */
    _Atomic uint64_t *total;    /* gets the stream's length once known, or NULL */
};

struct restore_result {
    uint64_t bytes;
    uint64_t elapsed_ns;
    uint64_t consumer_wait_ns;
    const char *way;   /* "splice", "buffered", "o_direct", "volume" */
    const char *codec; /* NULL: as it is */
    bool verified;     /* a digest was known and matched */
    uint8_t digest[SAVE_DIGEST_MAX];
    size_t digest_len;
};

/* 0 when every byte was taken by the reader (and the digest, if known, matched). */
int restore_run(const struct restore_options *o, struct restore_result *ret, struct error *err);

#endif
