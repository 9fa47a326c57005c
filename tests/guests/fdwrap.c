/*
 * fdwrap save|restore thread|process cached|direct FILE SOCKET: wraps FILE by penstock_fdwrap_*,
 * sends the pipe's end over the socket of that descriptor number, and waits for the transfer's end.
 *
 * Exit code 0, or 1 with the error's text on standard error.
 */
#include "penstock.h"

#include "core/size.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int send_fd(int sock, int fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char byte = 0;
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    return sendmsg(sock, &msg, 0) == 1 ? 0 : -1;
}

static int transfer(const char *path, bool save, unsigned flags, int sock)
{
    struct penstock_fdwrap *w;
    char text[1024];
    int fd = save ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)
                  : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        perror(path);
        return 1;
    }
    int r = penstock_fdwrap_open(&fd, path, flags, &w);
    if (r < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(-r));
        close(fd);
        return 1;
    }
    r = send_fd(sock, fd);
    close(fd);
    if (r < 0) {
        perror("sendmsg");
    }
    if (penstock_fdwrap_close(w, text, sizeof(text)) < 0) {
        fprintf(stderr, "%s\n", text);
        r = -1;
    }
    penstock_fdwrap_free(w);
    return r < 0;
}

int main(int argc, char **argv)
{
    uint64_t sock;
    if (argc != 6 || number_parse(argv[5], 0, INT32_MAX, &sock) < 0) {
        fprintf(stderr, "fdwrap save|restore thread|process cached|direct FILE SOCKET\n");
        return 2;
    }
    unsigned flags = 0;
    if (strcmp(argv[2], "process") == 0) {
        flags |= PENSTOCK_FDWRAP_PROCESS;
    }
    if (strcmp(argv[3], "direct") == 0) {
        flags |= PENSTOCK_FDWRAP_DIRECT;
    }
    return transfer(argv[4], strcmp(argv[1], "save") == 0, flags, (int)sock);
}
