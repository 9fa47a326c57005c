/*
 * A descriptor that somebody gave us - stdin, stdout, fd:N - as a stream of bytes, without
 * changing it: O_NONBLOCK belongs to the open file that we share with a shell or a producer, so
 * it is never set or cleared here, and either setting works. Pipes, sockets, terminals, regular
 * files and devices alike.
 *
 * One fiber reads or writes a stream at a time, on the worker that opened it.
 */
#ifndef CHANNEL_STREAM_H
#define CHANNEL_STREAM_H

#include "core/fdwait.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum stream_kind { STREAM_PIPE, STREAM_SOCKET, STREAM_FILE, STREAM_OTHER };

struct stream {
    int fd; /* not owned */
    enum stream_kind kind;
    bool no_nowait;     /* the kernel has no RWF_NOWAIT here: wait for readiness first */
    uint64_t position;  /* STREAM_FILE: where the next transfer is */
    uint64_t waited_ns; /* time spent waiting for the other side */
    struct fdwait wait;
};

/* 0 or -errno (EBADF). A regular file is used from its present offset on. */
int stream_open(struct stream *s, int fd);
/* Leaves a regular file's offset where the stream ended. Harmless on a zeroed struct. */
void stream_done(struct stream *s);

/* At least one byte and at most len, 0 at the end, -errno, -ECANCELED. len > 0. */
ssize_t stream_read_some(struct stream *s, void *buf, size_t len);
/* As stream_read_some(), but -EAGAIN instead of waiting, and no fiber is needed: for a job on the
 * thread pool that reads while the stream has something. */
ssize_t stream_try_read(struct stream *s, void *buf, size_t len);
/* Waits until there may be something to read. 0 or -ECANCELED. */
int stream_wait_readable(struct stream *s);
/* len bytes, or fewer at the end of the stream; -errno. */
ssize_t stream_read(struct stream *s, void *buf, size_t len);
/* 0 when all is written, or -errno (-EPIPE: the reader has gone). */
int stream_write(struct stream *s, const void *buf, size_t len);

/*
 * Up to len bytes of a regular file from *offset into a pipe, by reference where the kernel can
 * (splice). *offset moves on. Returns the bytes moved, 0 at the file's end, -errno; -EINVAL when
 * this pair can't be spliced (nothing was moved: read and write instead).
 */
ssize_t stream_splice_from(struct stream *s, int file_fd, uint64_t *offset, size_t len);

#endif
