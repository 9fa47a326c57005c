/*
 * Listening and accepting.
 *
 * Unix sockets: a file that a dead process left behind answers connect() with ECONNREFUSED; that
 * one is replaced, and nothing else ever is. Between "it is stale", its removal and our listen()
 * another starter may do the same, and each would remove the other's. So starters take turns: all
 * of it happens under flock() on the folder (a lock that needs no file of its own and ends with the
 * process). At the end the file is removed before the descriptor is closed, so that nobody can have
 * found it stale and replaced it, and only while device and inode are still those we made.
 *
 * When descriptors run out accept() fails and the listener stays readable, so waiting for it would
 * spin: we sleep instead, longer each time, and the client stays in the backlog.
 */
#include "channel/socket.h"

#include "channel/sockaddr.h"
#include "core/fiber.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The folder's lock is held for microseconds; who holds it for 5 s does not start a server. */
#define FOLDER_LOCK_TRIES 500
#define FOLDER_LOCK_PAUSE_NS 10000000
#define ACCEPT_PAUSE_FIRST_NS 10000000ull
#define ACCEPT_PAUSE_LAST_NS 1000000000ull
/* Port 0 on two families: how often another port is tried when the second family has it taken. */
#define SAME_PORT_TRIES 20

static int new_socket(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 ? -errno : fd;
}

struct unix_start {
    const struct address *a;
    const struct sockaddr_item *to;
    int backlog;
    int mode;
    struct listener *ret;
    struct error *err;
};

/* The folder of path, locked: a descriptor or -errno. On the thread pool. */
static int lock_folder(const char *path, struct error *err)
{
    char folder[sizeof(((struct address *)0)->path)] = ".";
    const char *slash = strrchr(path, '/');
    if (slash) {
        size_t len = slash == path ? 1 : (size_t)(slash - path);
        memcpy(folder, path, len);
        folder[len] = '\0';
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return error_set(err, errno, "can't open the folder of the socket");
    }
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || i == FOLDER_LOCK_TRIES) {
            int code = errno;
            close(fd);
            return error_set(err, code, "can't lock the folder of the socket");
        }
        nanosleep(&(struct timespec){0, FOLDER_LOCK_PAUSE_NS}, NULL);
    }
    return fd;
}

/* Whether somebody listens: 0 stale; -EADDRINUSE. */
static int probe_listener(const struct sockaddr_item *to, struct error *err)
{
    int fd = new_socket(AF_UNIX);
    if (fd < 0) {
        return error_set(err, -fd, "can't make a socket");
    }
    int r = connect(fd, (const struct sockaddr *)&to->addr, to->len);
    int code = r < 0 ? errno : 0;
    close(fd);
    if (code == ECONNREFUSED) {
        return 0;
    }
    if (code == EACCES || code == EPERM) {
        return error_set(err, code, "can't ask whether somebody listens on the socket");
    }
    return error_set(err, EADDRINUSE, "another process listens on the socket");
}

static int remove_stale(const struct unix_start *s)
{
    struct stat st;
    if (lstat(s->a->path, &st) < 0) {
        return errno == ENOENT ? 0 : error_set(s->err, errno, "can't look at the socket's path");
    }
    if (!S_ISSOCK(st.st_mode)) {
        return error_set(s->err, EEXIST,
                         "the socket's path is taken by something that is no "
                         "socket");
    }
    int r = probe_listener(s->to, s->err);
    if (r == 0 && unlink(s->a->path) < 0 && errno != ENOENT) {
        r = error_set(s->err, errno, "can't remove the stale socket");
    }
    return r;
}

static int bind_unix(const struct unix_start *s, int fd)
{
    struct stat st;
    if (bind(fd, (const struct sockaddr *)&s->to->addr, s->to->len) < 0) {
        return error_set(s->err, errno, "can't bind the socket");
    }
    if (lstat(s->a->path, &st) < 0) {
        return error_set(s->err, errno, "the socket vanished while it was made");
    }
    memcpy(s->ret->unix_path, s->a->path, sizeof(s->ret->unix_path));
    s->ret->unix_dev = st.st_dev;
    s->ret->unix_ino = st.st_ino;
    /* before listen(): until then nobody can have connected with the wrong rights */
    if (s->mode >= 0 && chmod(s->a->path, (mode_t)s->mode) < 0) {
        return error_set(s->err, errno, "can't set the socket's permissions");
    }
    if (listen(fd, s->backlog) < 0) {
        return error_set(s->err, errno, "can't listen");
    }
    return 0;
}

static void remove_ours(struct listener *l)
{
    struct stat st;
    if (l->unix_path[0] && lstat(l->unix_path, &st) == 0 && S_ISSOCK(st.st_mode) &&
        st.st_dev == l->unix_dev && st.st_ino == l->unix_ino) {
        unlink(l->unix_path);
    }
    l->unix_path[0] = '\0';
}

static int start_unix_path(void *arg)
{
    struct unix_start *s = arg;
    int folder = lock_folder(s->a->path, s->err);
    if (folder < 0) {
        return folder;
    }
    int r = remove_stale(s);
    int fd = r == 0 ? new_socket(AF_UNIX) : -1;
    if (r == 0) {
        r = fd < 0 ? error_set(s->err, -fd, "can't make a socket") : bind_unix(s, fd);
    }
    if (r < 0) {
        remove_ours(s->ret);
        if (fd >= 0) {
            close(fd);
        }
    } else {
        s->ret->fd = fd;
    }
    close(folder); /* and so unlocks it */
    return r;
}

/* bind and listen of what has no file: TCP, vsock, abstract. The descriptor or -errno. */
static int listen_on(const struct sockaddr_item *to, int backlog)
{
    int on = 1;
    int fd = new_socket(to->addr.ss_family);
    if (fd < 0) {
        return fd;
    }
    if (to->addr.ss_family == AF_INET || to->addr.ss_family == AF_INET6) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    }
    if (to->addr.ss_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    }
    if (bind(fd, (const struct sockaddr *)&to->addr, to->len) < 0 || listen(fd, backlog) < 0) {
        int r = -errno;
        close(fd);
        return r;
    }
    return fd;
}

static void set_port(struct sockaddr_item *to, uint16_t port)
{
    /* sin6_port lies at the same place (RFC 3493, 3.3) */
    ((struct sockaddr_in *)&to->addr)->sin_port = htons(port);
}

static void close_all(struct listener *l, int n)
{
    for (int i = 0; i < n; i++) {
        close(l[i].fd);
        l[i].fd = -1;
    }
}

/* All families of one name. A family that this machine doesn't have is left out, as long as one
 * remains; every other failure is one. How many, or -errno. */
static int listen_each(struct sockaddr_item *to, int n, int backlog, bool any_port,
                       struct listener *ret)
{
    int opened = 0, failure = -EAFNOSUPPORT;
    for (int i = 0; i < n; i++) {
        int fd = listen_on(&to[i], backlog);
        if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL) {
            failure = fd;
            continue;
        }
        if (fd < 0) {
            close_all(ret, opened);
            return fd;
        }
        ret[opened++].fd = fd;
        if (any_port && opened == 1) {
            struct address bound = {0};
            if (listener_address(&ret[0], &bound) == 0) {
                for (int k = i + 1; k < n; k++) {
                    set_port(&to[k], bound.port);
                }
            }
        }
    }
    return opened > 0 ? opened : failure;
}

static int start_socket(const struct address *a, int backlog, struct listener *ret, int max,
                        struct error *err)
{
    struct sockaddr_item to[SOCKADDRS_MAX];
    int n = sockaddr_resolve(a, true, to, max < SOCKADDRS_MAX ? max : SOCKADDRS_MAX, err);
    if (n < 0) {
        return n;
    }
    bool any_port = a->kind == ADDRESS_TCP && a->port == 0;
    int r = -EADDRINUSE;
    for (int i = 0; i < (any_port ? SAME_PORT_TRIES : 1) && r == -EADDRINUSE; i++) {
        for (int k = 0; any_port && k < n; k++) {
            set_port(&to[k], 0);
        }
        r = listen_each(to, n, backlog, any_port, ret);
    }
    return r < 0 ? error_set(err, -r, "can't listen") : r;
}

static int take_over(const struct address *a, struct listener *ret, struct error *err)
{
    int listening = 0;
    socklen_t len = sizeof(listening);
    if (getsockopt(a->fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) < 0 || !listening) {
        return error_set(err, EINVAL, "descriptor %d is no listening socket", a->fd);
    }
    int flags = fcntl(a->fd, F_GETFL);
    if (flags < 0 || fcntl(a->fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(a->fd, F_SETFD, FD_CLOEXEC) < 0) {
        return error_set(err, errno, "descriptor %d", a->fd);
    }
    ret->fd = a->fd;
    return 1;
}

int listener_open(const struct address *a, int backlog, int unix_mode, uint64_t socket_buffer,
                  struct listener *ret, int max, struct error *err)
{
    char name[sizeof(a->host) + 16];
    address_format(a, name, sizeof(name));
    for (int i = 0; i < max; i++) {
        memset(&ret[i], 0, sizeof(ret[i]));
        ret[i].fd = -1;
        ret[i].socket_buffer = socket_buffer;
    }
    int r;
    if (max < 1) {
        return error_set(err, EINVAL, "no room for a listener");
    }
    if (a->kind == ADDRESS_FD) {
        r = take_over(a, ret, err);
    } else if (a->kind == ADDRESS_UNIX && !a->abstract) {
        struct sockaddr_item to;
        sockaddr_resolve(a, true, &to, 1, err);
        struct unix_start s = {
            .a = a, .to = &to, .backlog = backlog, .mode = unix_mode, .ret = ret, .err = err};
        r = offload(start_unix_path, &s);
        r = r < 0 ? error_set(err, -r, "can't listen") : 1;
    } else {
        r = start_socket(a, backlog, ret, max, err);
    }
    if (r < 0) {
        error_prefix(err, "%s", name);
    }
    return r;
}

int listener_address(const struct listener *l, struct address *ret)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof(addr);
    if (getsockname(l->fd, (struct sockaddr *)&addr, &len) < 0) {
        return -errno;
    }
    sockaddr_to_address(&addr, len, ret);
    return 0;
}

int listener_attach(struct listener *l)
{
    return fdwait_init(&l->wait, l->fd);
}

static bool is_out_of_resources(int code)
{
    return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}

int listener_accept(struct listener *l)
{
    uint64_t pause = ACCEPT_PAUSE_FIRST_NS;
    for (;;) {
        int r = 0;
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            return fd;
        }
        if (errno == EAGAIN) {
            r = fdwait_wait(&l->wait, FDWAIT_READ, DEADLINE_NONE);
        } else if (is_out_of_resources(errno)) {
            if (pause == ACCEPT_PAUSE_FIRST_NS) {
                log_warning("a client waits: %s; it is accepted once there is room again",
                            errno == EMFILE ? "this process has no descriptor left (ulimit -n)"
                                            : "the system has no resources left");
            }
            r = fiber_sleep_ns(pause);
            pause = pause * 2 < ACCEPT_PAUSE_LAST_NS ? pause * 2 : ACCEPT_PAUSE_LAST_NS;
        } else if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == EOPNOTSUPP) {
            return -errno;
        } /* else the client has gone before we got to it: accept(2), "Error handling" */
        if (r == -ECANCELED) {
            return r;
        }
    }
}

void listener_close(struct listener *l)
{
    if (l->fd < 0) {
        return;
    }
    fdwait_done(&l->wait);
    remove_ours(l);
    close(l->fd);
    l->fd = -1;
}
