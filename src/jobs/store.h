/*
 * Where saved state goes: a file that appears whole or not at all, a device, or any volume.
 *
 * A file is written beside its final name and renamed by store_finish(), so a failed or killed
 * save leaves nothing that looks good. Devices, FIFOs and in_place files are written where they
 * are. All from fibers of one worker.
 */
#ifndef JOBS_STORE_H
#define JOBS_STORE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORE_BLOCK (1u << 20) /* writes are cut at multiples of it in the file */

/* How bytes reach the disk. */
enum store_way {
    STORE_BUFFERED,  /* page cache */
    STORE_DONTCACHE, /* page cache, written out and dropped at once (kernel 6.14 and later) */
    STORE_DIRECT,    /* O_DIRECT */
    STORE_VOLUME,    /* another endpoint: nbd, nfs */
};

struct store_options {
    const char *name; /* path or endpoint */
    int fd;           /* >= 0: an open file instead of name (which is for messages); not owned */
    bool direct;      /* bypass the page cache: DONTCACHE, else O_DIRECT, else a note */
    bool in_place;    /* write the file itself, not a temporary beside it */
    uint64_t offset;  /* bytes before it in the file are kept (implies in_place) */
    uint64_t preallocate; /* bytes; 0: none */
};

struct store;

int store_open(const struct store_options *o, struct store **ret, struct error *err);

/*
 * Writes len bytes at offset (from the store's start, not counting options.offset). Any alignment
 * works; page-aligned buffers that start at multiples of 4096 in the file are fast. Several fibers
 * may write different ranges at a time.
 */
int store_write(struct store *s, const void *buf, size_t len, uint64_t offset, struct error *err);
/* Whether writes go through the page cache, where one thread that reads and writes in turn is best
 * (save_move.c): then its descriptor and the flags for pwritev2(), else -1. */
int store_cached_fd(const struct store *s, int *flags);
/* length bytes of zeros as a hole where the store is fresh, else written or zeroed. */
int store_zero(struct store *s, uint64_t length, uint64_t offset, struct error *err);

/* Sets the exact length, makes everything durable, gives the file its name. After that, or after a
 * failure of it, only store_free(). */
int store_finish(struct store *s, uint64_t length, struct error *err);
/* Frees; without a finish that succeeded the temporary is removed. NULL is fine. */
void store_free(struct store *s);

enum store_way store_way(const struct store *s);
const char *store_way_name(enum store_way way);
/* How many writes at a time gain something. */
unsigned store_depth(const struct store *s);
/* Bytes to the first multiple of STORE_BLOCK in the file: the length of the first write. */
size_t store_first_block(const struct store *s);
uint64_t store_waited_ns(const struct store *s); /* time that writers spent in writes, summed */

#endif
