/*
 * A file of N extents: 4 KiB of data, 4 KiB of hole, and so on.   extents FILE N
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char buf[4096];
    long n = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    int fd = n > 0 ? open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    memset(buf, 0x5a, sizeof(buf));
    for (long i = 0; fd >= 0 && i < n; i++) {
        if (pwrite(fd, buf, sizeof(buf), i * 8192) != sizeof(buf)) {
            return 1;
        }
    }
    return fd < 0 || ftruncate(fd, n * 8192) != 0;
}
