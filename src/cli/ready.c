/*
 * See ready.h. The calls here are short and local, so they are made on the worker itself.
 */
#include "cli/ready.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int write_all(int fd, const char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        ssize_t n = write(fd, text, left);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n < 0 ? -errno : -EIO;
        }
        text += n;
        left -= (size_t)n;
    }
    return 0;
}

/* Fills fd, the new file at temporary, and moves it to path. */
static int fill_and_rename(struct pid_file *p, int fd, const char *temporary, const char *path)
{
    char text[32];
    struct stat st = {};

    snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    int r = write_all(fd, text);
    if (r == 0 && (fchmod(fd, 0644) < 0 || fstat(fd, &st) < 0)) {
        r = -errno;
    }
    if (close(fd) < 0 && r == 0) { /* network file systems tell of a full disk here */
        r = -errno;
    }
    if (r == 0 && rename(temporary, path) < 0) {
        r = -errno;
    }
    if (r < 0) {
        unlink(temporary);
        return r;
    }
    p->dev = st.st_dev;
    p->ino = st.st_ino;
    p->path = path;
    return 0;
}

int pid_file_write(struct pid_file *p, const char *path, struct error *err)
{
    char temporary[PATH_MAX];
    struct stat st;

    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        /* A rename would replace a device or a pipe that somebody meant to be written to. */
        return error_set(err, EEXIST, "--pid-file %s is there and is no regular file", path);
    }
    int n = snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path);
    if (n >= (int)sizeof(temporary)) {
        return error_set(err, ENAMETOOLONG, "--pid-file %s", path);
    }
    int fd = mkostemp(temporary, O_CLOEXEC);
    int r = fd < 0 ? -errno : fill_and_rename(p, fd, temporary, path);
    return r < 0 ? error_set(err, -r, "--pid-file %s can't be written", path) : 0;
}

void pid_file_remove(struct pid_file *p)
{
    struct stat st;

    if (p->path && stat(p->path, &st) == 0 && st.st_dev == p->dev && st.st_ino == p->ino) {
        unlink(p->path);
    }
    p->path = NULL;
}

int ready_fd_check(int fd, struct error *err)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) {
        return error_set(err, EBADF, "--ready-fd %d can't be written to", fd);
    }
    /* Programs that we start must not keep it open. */
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return 0;
}

int ready_fd_say(int fd, const char *text, struct error *err)
{
    int r = write_all(fd, text);

    if (fd > STDERR_FILENO) {
        close(fd);
    }
    return r < 0 ? error_set(err, -r, "--ready-fd %d", fd) : 0;
}

/* sd_notify(3)'s protocol: one datagram; '@' begins an abstract name. */
void ready_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t len = path ? strlen(path) : 0;

    if (len < 2 || len >= sizeof(to.sun_path) || (path[0] != '/' && path[0] != '@')) {
        return;
    }
    memcpy(to.sun_path, path, len);
    if (path[0] == '@') {
        to.sun_path[0] = '\0';
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
        (void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to, size);
        close(fd);
    }
}
