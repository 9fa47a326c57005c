/*
 * LD_PRELOAD: Unix sockets that a program accepts or connects get a send buffer of 2 MiB, as
 * newer QEMU sets it itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>

static void enlarge(int fd)
{
    int size = 2 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    int (*next)(int, struct sockaddr *, socklen_t *, int) =
        (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");
    int client = next(fd, addr, len, flags);
    enlarge(client);
    return client;
}

int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    int (*next)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    int r = next(fd, addr, len);
    enlarge(fd);
    return r;
}
