/*
 * Sockets that systemd (or a test, or podman) made for us: sd_listen_fds(3)'s protocol. The
 * variables are for one process only, so they are removed for the children we start.
 */
#include "channel/socket.h"

#include "core/size.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */

static int check_fd(int fd, struct error *err)
{
    int type = 0, listening = 0;
    socklen_t len = sizeof(type);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0) {
        return error_set(err, errno, "inherited descriptor %d is no socket", fd);
    }
    len = sizeof(listening);
    if (type != SOCK_STREAM || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) < 0 ||
        !listening) {
        return error_set(err, EINVAL, "inherited descriptor %d is no listening stream socket", fd);
    }
    return fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ? error_set(err, errno, "descriptor %d", fd) : 0;
}

static int collect(uint64_t count, int *fds, int max, struct error *err)
{
    if (count > (uint64_t)max) {
        return error_set(err, E2BIG, "LISTEN_FDS names more than %d sockets", max);
    }
    for (int i = 0; i < (int)count; i++) {
        int r = check_fd(FIRST_FD + i, err);
        if (r < 0) {
            return r;
        }
        fds[i] = FIRST_FD + i;
    }
    return (int)count;
}

int socket_inherited(int *fds, int max, struct error *err)
{
    const char *pid_text = getenv("LISTEN_PID");
    const char *fds_text = getenv("LISTEN_FDS");
    uint64_t pid = 0, count = 0;
    int r = 0;
    if (pid_text && fds_text) {
        if (number_parse(pid_text, 1, INT_MAX, &pid) < 0) {
            r = error_set(err, EINVAL, "LISTEN_PID is no process id");
        } else if (pid == (uint64_t)getpid()) {
            r = number_parse(fds_text, 0, INT_MAX - FIRST_FD, &count) < 0
                    ? error_set(err, EINVAL, "LISTEN_FDS is no count")
                    : collect(count, fds, max, err);
        }
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return r;
}
