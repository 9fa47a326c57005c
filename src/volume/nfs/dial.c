/*
 * Sockets to an NFS server.
 *
 * libnfs could connect by itself, but it looks names up without asking anybody's event loop, keeps
 * its choice of a local port in a variable that all threads share, and leaves Nagle's algorithm on,
 * which halves what many small requests get through. So the socket is made here and handed over.
 *
 * Servers that are set to "secure", the default of many, serve ports below 1024 only. A process
 * that may bind one does so; one that may not tries without.
 */
#include "core/worker.h"
#include "volume/nfs/private.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <unistd.h>

#define LOW_PORT_FIRST 512
#define LOW_PORTS 512

static void set_port(struct sockaddr_storage *addr, uint16_t port)
{
    if (addr->ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
    } else {
        ((struct sockaddr_in *)addr)->sin_port = htons(port);
    }
}

/* Best effort: a server that insists will say so. */
static void bind_low_port(int fd, sa_family_t family)
{
    struct sockaddr_storage any = {.ss_family = family};
    socklen_t len = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    unsigned start = 0;
    if (getrandom(&start, sizeof start, GRND_NONBLOCK) < 0) {
        start = (unsigned)fd;
    }
    for (unsigned i = 0; i < LOW_PORTS; i++) {
        set_port(&any, (uint16_t)(LOW_PORT_FIRST + (start + i) % LOW_PORTS));
        if (bind(fd, (struct sockaddr *)&any, len) == 0 || errno != EADDRINUSE) {
            return;
        }
    }
}

static int wait_connected(int fd, uint64_t deadline_ns)
{
    for (;;) {
        int r = fd_wait_once(fd, FDWAIT_WRITE, deadline_ns);
        if (r < 0) {
            return r;
        }
        int code = 0;
        socklen_t len = sizeof code;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &len) < 0) {
            return -errno;
        }
        if (code != 0) {
            return -code;
        }
        struct sockaddr_storage peer;
        len = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0) {
            return 0;
        }
        if (errno != ENOTCONN) {
            return -errno;
        }
    }
}

static int dial_one(const struct nfsc_server *s, const struct sockaddr_item *to, uint16_t port,
                    uint64_t deadline_ns)
{
    struct sockaddr_storage addr = to->addr;
    int on = 1;
    int tries = (int)s->url.tcp_syncnt;
    int fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -errno;
    }
    set_port(&addr, port);
    bind_low_port(fd, addr.ss_family);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    if (tries > 0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &tries, sizeof tries);
    }
    int r = 0;
    if (connect(fd, (struct sockaddr *)&addr, to->len) < 0) {
        r = errno == EINPROGRESS || errno == EINTR ? wait_connected(fd, deadline_ns) : -errno;
    }
    if (r < 0) {
        close(fd);
        return r;
    }
    return fd;
}

int nfsc_dial(const struct nfsc_server *s, uint16_t port, uint64_t deadline_ns, struct error *err)
{
    int fd = -ENXIO;
    for (int i = 0; i < s->address_count && fd < 0 && fd != -ECANCELED; i++) {
        uint64_t now = worker_now_ns(worker_self());
        uint64_t until = deadline_ns;
        if (deadline_ns != DEADLINE_NONE && deadline_ns > now) {
            until = now + (deadline_ns - now) / (uint64_t)(s->address_count - i);
        }
        fd = dial_one(s, &s->addresses[i], port, until);
    }
    if (fd < 0) {
        return error_set(err, -fd, "cannot connect to port %u of %s", port, s->shown);
    }
    return fd;
}
