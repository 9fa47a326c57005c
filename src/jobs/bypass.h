/*
 * Two views of one open file: one through the page cache, one past it (O_DIRECT).
 */
#ifndef JOBS_BYPASS_H
#define JOBS_BYPASS_H

#include <stdbool.h>

#define BYPASS_ALIGN 4096u /* what every file system and disk of today takes */

/* Whether O_DIRECT is set on fd. */
bool bypass_is_set(int fd);

/* The same file opened once more: with O_DIRECT, or through the page cache. access: O_RDONLY or
 * O_WRONLY. The new descriptor (owned by the caller), or -errno. Block devices and files whose
 * path we may no longer open included: it goes through /proc/self/fd. */
int bypass_reopen(int fd, int access, bool direct);

/* A descriptor that goes through the page cache: fd itself, or one that the caller owns
 * (*owned). -errno when O_DIRECT can't be got rid of. */
int bypass_cached(int fd, int access, bool *owned);

#endif
