/*
 * A byte stream: a socket, a pair of pipes, later TLS. Calls park the fiber; one fiber may read
 * while another writes. Transfers are exact: short counts, EINTR and EAGAIN stay inside.
 *
 * A channel belongs to the worker that opened or adopted it.
 */
#ifndef CHANNEL_CHANNEL_H
#define CHANNEL_CHANNEL_H

#include "core/error.h"
#include "core/fdwait.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct channel;

enum channel_kind { CHANNEL_UNIX, CHANNEL_TCP, CHANNEL_VSOCK, CHANNEL_PIPE, CHANNEL_OTHER };

/* What a driver of channels provides (plain.c; TLS has its own). Each returns -errno on failure
 * and never transfers less than it says. */
struct channel_ops {
    /* at least 1 byte, at most len; 0: end of the stream. */
    ssize_t (*read_some)(struct channel *ch, void *buf, size_t len);
    /* all of iov; iov is scratch space afterwards. more: further bytes follow at once. */
    int (*write)(struct channel *ch, struct iovec *iov, int n, bool more);
    /* len bytes of fd from offset, by reference where it can; *sent says how many went out (also on
     * failure). NULL: read and write. -ENODATA: the file ended early. */
    int (*sendfile)(struct channel *ch, int fd, uint64_t offset, size_t len, size_t *sent);
    int (*shutdown_write)(struct channel *ch);
    void (*close)(struct channel *ch);
};

struct channel {
    const struct channel_ops *ops;
    enum channel_kind kind;
    int rfd, wfd;               /* the same for sockets; owned */
    struct fdwait rwait, wwait; /* wwait is unused where wfd == rfd */
    uint64_t read_deadline_ns;  /* DEADLINE_NONE unless set */
    uint64_t write_deadline_ns;
    uint64_t send_buffer_wanted;  /* bytes; 0 where it is left to the kernel */
    uint64_t send_buffer_granted; /* bytes usable as payload accounting (half of what Linux says) */
    uint64_t receives;            /* recv calls that brought bytes: bench counts them a payload */
    uint64_t bytes_in, bytes_out;
    bool was_blocking[2]; /* of rfd and wfd, where close gives that back */
    bool aborted;         /* channel_abort() was called: every call gives -ECONNRESET */
    unsigned unparked;    /* calls since the last wait: nobody keeps a worker for ever */
    char peer[128];       /* for messages: "unix:/run/x.sock", "[::1]:10809" */
};

/*
 * Takes over a connected descriptor (both may be the same; of pipes one may be -1), makes it
 * non-blocking, sizes its buffers (sizing.c). On failure the descriptors are closed.
 * socket_buffer: bytes, SOCKET_BUFFER_AUTO or SOCKET_BUFFER_DEFAULT (sizing.h); the size of pipes
 * as well. Pipes, terminals and files that were blocking are so again after channel_close(): others
 * may share them.
 */
int channel_adopt(int rfd, int wfd, uint64_t socket_buffer, struct channel **ret,
                  struct error *err);

/* Exactly len bytes. 0; 1 when the stream ended before the first byte (a clean end);
 * -ECONNRESET when it ended inside; or -errno, -ETIMEDOUT, -ECANCELED. len > 0. */
int channel_read(struct channel *ch, void *buf, size_t len);
/* Up to len bytes, at least one; 0 at the end of the stream. */
ssize_t channel_read_some(struct channel *ch, void *buf, size_t len);
/* 0 or -errno (-EPIPE when the peer has gone). */
int channel_write(struct channel *ch, const void *buf, size_t len, bool more);
/* iov is changed by the call. */
int channel_writev(struct channel *ch, struct iovec *iov, int n, bool more);
/* As in channel_ops; falls back to read and write through a buffer. */
int channel_sendfile(struct channel *ch, int fd, uint64_t offset, size_t len, size_t *sent);
/* Reads and drops len bytes. Returns as channel_read(). */
int channel_skip(struct channel *ch, uint64_t len);

/* Absolute deadline for each following call of that direction. */
void channel_set_deadline(struct channel *ch, uint64_t deadline_ns);
/* Tells the peer that no more comes (shutdown(SHUT_WR)). */
int channel_shutdown_write(struct channel *ch);
/* Ends both directions at once, any fiber of the worker: waits return -ECONNRESET. */
void channel_abort(struct channel *ch);
/* NULL is fine. No fiber may be inside a call. */
void channel_close(struct channel *ch);

#endif
