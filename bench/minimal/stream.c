/*
 * The least that can move a file through a Unix socket: a child sends it with sendfile, the parent
 * receives it into a page-aligned buffer. What a copy from a server to nowhere is measured against.
 *
 *     stream FILE
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BUFFER (256 << 10)

static int send_all(int fd, int to, off_t size)
{
    off_t at = 0;
    while (at < size) {
        if (sendfile(to, fd, &at, (size_t)(size - at)) <= 0) {
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    int ends[2], size = 2 << 20, status = 1;
    struct stat st;
    int fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    char *buf = aligned_alloc(4096, BUFFER);
    if (fd < 0 || fstat(fd, &st) != 0 || !buf || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        perror("stream");
        return 1;
    }
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    if (fork() == 0) {
        close(ends[1]);
        _exit(send_all(fd, ends[0], st.st_size));
    }
    close(ends[0]);
    off_t got = 0;
    ssize_t n;
    while ((n = recv(ends[1], buf, BUFFER, 0)) > 0) {
        got += n;
    }
    wait(&status);
    return got == st.st_size && status == 0 ? 0 : 1;
}
