/*
 * The drivers of this room, for endpoint.c's table, and what they share. Each open function gets
 * the whole endpoint name; endpoint_rest() is what follows its scheme.
 */
#ifndef VOLUME_DRIVERS_H
#define VOLUME_DRIVERS_H

#include "volume/endpoint.h"

typedef int endpoint_open_fn(const char *name, const struct endpoint_options *o,
                             struct volume **ret, struct error *err);

endpoint_open_fn file_open;
endpoint_open_fn memory_open;
endpoint_open_fn null_open;
endpoint_open_fn pattern_open;
endpoint_open_fn slice_open;
endpoint_open_fn fault_open;
endpoint_open_fn nfsc_open;

/* What an image starts with, n bytes of it: -EINVAL when it is a known format's, which is never
 * written to as if it were raw. Pure. */
int image_refuse(const void *head, size_t n, struct error *err);

/* "OFFSET[+SIZE]:ENDPOINT": where ENDPOINT starts in spec, or NULL. *size is written when *sized.
 * Pure. */
const char *slice_parse(const char *spec, uint64_t *start, uint64_t *size, bool *sized);

/* Layers in layers: slice:..:slice:..: no deeper than this. */
#define ENDPOINT_DEPTH_MAX 8

/* What follows "SCHEME:". */
const char *endpoint_rest(const char *name);

/* The endpoint that a layer stands on: as o says, but never made nor resized through a layer. */
int endpoint_open_below(const char *name, const struct endpoint_options *o, struct volume **ret,
                        struct error *err);

#endif
