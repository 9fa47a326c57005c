/*
 * Where saved state is restored from: a file read with or without the page cache, or any volume.
 */
#ifndef JOBS_SOURCE_H
#define JOBS_SOURCE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct source_options {
    const char *name; /* path or endpoint */
    int fd;           /* >= 0: an open file instead of name; not owned */
    uint64_t offset;  /* where the source starts in it */
    bool direct;
};

struct source;

int source_open(const struct source_options *o, struct source **ret, struct error *err);
void source_close(struct source *s);

uint64_t source_size(const struct source *s); /* bytes from the offset on */
int source_fd(const struct source *s);        /* of a file, else -1 */
bool source_is_direct(const struct source *s);
bool source_is_deep(const struct source *s); /* several reads at a time gain something */
const char *source_way(const struct source *s);

/* Exactly len bytes at offset (counted from the source's start). 0 or -errno. */
int source_read(struct source *s, void *buf, size_t len, uint64_t offset, struct error *err);

#endif
