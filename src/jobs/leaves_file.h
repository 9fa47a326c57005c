/*
 * What leaves.c and leaves_writer.c share.
 */
#ifndef JOBS_LEAVES_FILE_H
#define JOBS_LEAVES_FILE_H

#include "core/error.h"

/* Bytes of digests read or written at once. */
#define LEAVES_CHUNK (256u << 10)

/* Sets err, with path as its endpoint. Returns -code. */
int leaves_fail(struct error *err, int code, const char *path, const char *what);

#endif
