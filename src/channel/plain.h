/*
 * The plain channel's insides, for channel.c and for drivers that put something between the
 * descriptor and the caller (TLS).
 */
#ifndef CHANNEL_PLAIN_H
#define CHANNEL_PLAIN_H

#include "channel/channel.h"

extern const struct channel_ops plain_ops;

/* Makes the descriptors non-blocking, registers and sizes them and fills in ch (zeroed before).
 * On failure the descriptors are still the caller's and nothing is registered. */
int plain_open(struct channel *ch, int rfd, int wfd, uint64_t socket_buffer, struct error *err);

/* Parks until the direction may be ready: 0, -ETIMEDOUT, -ECANCELED, -ECONNRESET (aborted). */
int plain_wait(struct channel *ch, enum fdwait_dir dir);

/* One try that never waits: bytes, 0 at the end, -EAGAIN or -errno. Counts what came and went. */
ssize_t plain_try_read(struct channel *ch, void *buf, size_t len);
ssize_t plain_try_write(struct channel *ch, const struct iovec *iov, int n, bool more);

#endif
