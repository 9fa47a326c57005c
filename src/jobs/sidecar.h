/*
 * NAME.blkhash: the digest of saved state that is kept as plain bytes, in the format that
 * `penstock sum --check` and its likes read ("HEX  NAME").
 */
#ifndef JOBS_SIDECAR_H
#define JOBS_SIDECAR_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

/* Writes it beside path, atomically. 0 or -errno. */
int sidecar_write(const char *path, const uint8_t *digest, size_t len, struct error *err);
/* Reads it: up to room bytes of digest. The digest's length, -ENOENT, -EBADMSG, -errno. */
int sidecar_read(const char *path, uint8_t *digest, size_t room, struct error *err);

#endif
