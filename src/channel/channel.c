/*
 * What all channels have in common: exact reads over read_some, vectors, skipping, and sendfile by
 * way of a buffer for drivers that have none.
 *
 * Reads go straight to the caller's buffer: there is no buffer in between that would have to be
 * copied from, so a payload that the caller puts at a page boundary is received at one.
 */
#include "channel/channel.h"

#include "channel/plain.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/fileio.h"
#include "core/size.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define SKIP_BUFFER (64u << 10)
/* What one turn of the sendfile fallback moves: fits L2 beside the socket's own data. */
#define SENDFILE_BUFFER (256u << 10)

int channel_adopt(int rfd, int wfd, uint64_t socket_buffer, struct channel **ret, struct error *err)
{
    struct channel *ch = calloc(1, sizeof(*ch));
    int r = ch ? plain_open(ch, rfd, wfd, socket_buffer, err) : error_set(err, ENOMEM, "channel");
    if (r < 0) {
        free(ch);
        if (rfd >= 0) {
            close(rfd);
        }
        if (wfd >= 0 && wfd != rfd) {
            close(wfd);
        }
        return r;
    }
    *ret = ch;
    return 0;
}

ssize_t channel_read_some(struct channel *ch, void *buf, size_t len)
{
    return ch->ops->read_some(ch, buf, len);
}

int channel_read(struct channel *ch, void *buf, size_t len)
{
    size_t done = 0;
    assert(len > 0);
    while (done < len) {
        ssize_t n = ch->ops->read_some(ch, (char *)buf + done, len - done);
        if (n < 0) {
            return (int)n;
        }
        if (n == 0) {
            return done == 0 ? 1 : -ECONNRESET;
        }
        done += (size_t)n;
    }
    return 0;
}

int channel_write(struct channel *ch, const void *buf, size_t len, bool more)
{
    union {
        const void *in;
        void *out;
    } base = {.in = buf}; /* iovec has no const form */
    struct iovec iov = {.iov_base = base.out, .iov_len = len};
    return ch->ops->write(ch, &iov, 1, more);
}

int channel_writev(struct channel *ch, struct iovec *iov, int n, bool more)
{
    return ch->ops->write(ch, iov, n, more);
}

/* sendfile for channels that can't: each piece is read, then written. */
static int sendfile_by_copy(struct channel *ch, int fd, uint64_t offset, size_t len, size_t *sent)
{
    void *buf;
    int r = bufpool_get(SENDFILE_BUFFER, &buf);
    if (r < 0) {
        return r;
    }
    while (r == 0 && len > 0) {
        ssize_t n = fileio_read(fd, buf, min_u64(len, SENDFILE_BUFFER), offset);
        if (n <= 0) {
            r = n < 0 ? (int)n : -ENODATA;
            break;
        }
        r = channel_write(ch, buf, (size_t)n, (size_t)n < len);
        if (r == 0) {
            *sent += (size_t)n;
            offset += (uint64_t)n;
            len -= (size_t)n;
        }
    }
    bufpool_put(buf, SENDFILE_BUFFER);
    return r;
}

int channel_sendfile(struct channel *ch, int fd, uint64_t offset, size_t len, size_t *sent)
{
    *sent = 0;
    if (ch->ops->sendfile) {
        int r = ch->ops->sendfile(ch, fd, offset, len, sent);
        if (r != -EOPNOTSUPP) {
            return r;
        }
    }
    return sendfile_by_copy(ch, fd, offset + *sent, len - *sent, sent);
}

int channel_skip(struct channel *ch, uint64_t len)
{
    if (len == 0) {
        return 0;
    }
    size_t size = (size_t)min_u64(len, SKIP_BUFFER);
    void *buf;
    int r = bufpool_get(size, &buf);
    if (r < 0) {
        return r;
    }
    r = 0;
    for (uint64_t done = 0; r == 0 && done < len;) {
        size_t n = (size_t)min_u64(len - done, size);
        r = channel_read(ch, buf, n);
        if (r == 1 && done > 0) {
            r = -ECONNRESET;
        }
        done += n;
    }
    bufpool_put(buf, size);
    return r;
}

void channel_set_deadline(struct channel *ch, uint64_t deadline_ns)
{
    ch->read_deadline_ns = deadline_ns;
    ch->write_deadline_ns = deadline_ns;
}

int channel_shutdown_write(struct channel *ch)
{
    return ch->ops->shutdown_write(ch);
}

/* Makes a wait on w return; it may not be waiting, then the next one returns at once. */
static void wake_both(struct fdwait *w)
{
    for (int dir = FDWAIT_READ; dir <= FDWAIT_WRITE; dir++) {
        w->ready[dir] = true;
        if (w->waiter[dir]) {
            fiber_wake(w->waiter[dir]);
        }
    }
}

void channel_abort(struct channel *ch)
{
    if (ch->aborted) {
        return;
    }
    ch->aborted = true;
    if (ch->kind != CHANNEL_PIPE && ch->kind != CHANNEL_OTHER) {
        shutdown(ch->rfd, SHUT_RDWR); /* the peer learns of it now, not when we close */
    }
    if (ch->rfd >= 0) {
        wake_both(&ch->rwait);
    }
    if (ch->wfd != ch->rfd && ch->wfd >= 0) {
        wake_both(&ch->wwait);
    }
}

void channel_close(struct channel *ch)
{
    if (ch) {
        ch->ops->close(ch);
    }
}
