/*
 * Page-aligned bulk buffers with a bound for the whole process. A buffer that starts 16 bytes off
 * a page makes the kernel's copies 3 to 4 times slower, so nothing bulky comes from malloc.
 *
 * Sizes are rounded up to a power of two from 4 KiB to 64 MiB and recycled per worker (small ones)
 * or process-wide; a recycled buffer holds old bytes: callers never send what they did not fill.
 */
#ifndef CORE_BUFPOOL_H
#define CORE_BUFPOOL_H

#include <stddef.h>
#include <stdint.h>

#define BUFPOOL_BUFFER_MAX (64u << 20)

/* Bytes that may be out at once; the default is 1 GiB or a quarter of the memory, whichever is
 * less. At least BUFPOOL_BUFFER_MAX. Before the first buffer is taken. */
void bufpool_set_limit(uint64_t bytes);

/* Waits while the limit is reached. 0, -ECANCELED, -ENOMEM, -EINVAL (len 0 or above the max). */
int bufpool_get(size_t len, void **ret);
/* Never waits: NULL when the limit is reached. */
void *bufpool_try_get(size_t len);
/* len: the same as was asked for. buf may be NULL. Any worker, any thread. */
void bufpool_put(void *buf, size_t len);

uint64_t bufpool_in_use(void); /* bytes out now */
/* Frees what is kept for reuse (tests: so that leak checkers are quiet). */
void bufpool_trim(void);

#endif
