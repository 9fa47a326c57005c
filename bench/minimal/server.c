/*
 * The least NBD server that qemu-img, nbdcopy and fio talk to: fixed newstyle, GO, simple replies,
 * a thread a connection, each read answered by a header and sendfile. It checks little and can do
 * nothing else: it shows what a client can take at most, and is no server.
 *
 *     server SOCKET FILE
 */
#include <endian.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int disk;
static uint64_t disk_size;

static int get(int fd, void *buf, size_t len)
{
    return recv(fd, buf, len, MSG_WAITALL) == (ssize_t)len ? 0 : -1;
}

static int put(int fd, const void *buf, size_t len, int flags)
{
    return send(fd, buf, len, flags) == (ssize_t)len ? 0 : -1;
}

static int reply(int fd, uint32_t option, uint32_t type, const void *data, uint32_t len)
{
    uint8_t head[20];
    uint64_t magic = htobe64(0x3e889045565a9);
    uint32_t words[3] = {htobe32(option), htobe32(type), htobe32(len)};
    memcpy(head, &magic, 8);
    memcpy(head + 8, words, 12);
    return put(fd, head, 20, 0) || (len && put(fd, data, len, 0));
}

static int go(int fd, uint32_t option)
{
    uint8_t info[12] = {0};
    uint64_t size = htobe64(disk_size);
    uint16_t flags = htobe16(1 | 2 | 256); /* has flags, read-only, multi-conn */
    memcpy(info + 2, &size, 8);
    memcpy(info + 10, &flags, 2);
    return reply(fd, option, 3, info, 12) || reply(fd, option, 1, NULL, 0);
}

static int handshake(int fd)
{
    uint64_t greeting[2] = {htobe64(0x4e42444d41474943), htobe64(0x49484156454f5054)};
    uint16_t flags = htobe16(3);
    uint32_t client;
    static __thread uint8_t data[65536];
    if (put(fd, greeting, 16, 0) || put(fd, &flags, 2, 0) || get(fd, &client, 4)) {
        return -1;
    }
    for (;;) {
        uint8_t head[16];
        uint32_t option, len;
        if (get(fd, head, 16)) {
            return -1;
        }
        memcpy(&option, head + 8, 4);
        memcpy(&len, head + 12, 4);
        option = be32toh(option);
        len = be32toh(len);
        if (len > sizeof(data) || (len && get(fd, data, len))) {
            return -1;
        }
        if (option == 7) {
            return go(fd, option);
        }
        if (reply(fd, option, option == 2 ? 1 : 0x80000001, NULL, 0) || option == 2) {
            return -1;
        }
    }
}

static void *serve(void *arg)
{
    int fd = (int)(intptr_t)arg, size = 2 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    if (handshake(fd) == 0) {
        uint8_t request[28];
        while (get(fd, request, 28) == 0) {
            uint16_t type;
            uint64_t offset;
            uint32_t len;
            uint8_t head[16] = {0x67, 0x44, 0x66, 0x98};
            memcpy(&type, request + 6, 2);
            memcpy(head + 8, request + 8, 8);
            memcpy(&offset, request + 16, 8);
            memcpy(&len, request + 24, 4);
            off_t at = (off_t)be64toh(offset);
            size_t left = be32toh(len);
            if (be16toh(type) == 2) {
                break;
            }
            if (be16toh(type) != 0) {
                head[7] = 22;
                left = 0;
            }
            if (put(fd, head, 16, left ? MSG_MORE : 0)) {
                break;
            }
            while (left > 0) {
                ssize_t n = sendfile(fd, disk, &at, left);
                if (n <= 0) {
                    goto out;
                }
                left -= (size_t)n;
            }
        }
    }
out:
    close(fd);
    return NULL;
}

int main(int argc, char **argv)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct stat st;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    signal(SIGPIPE, SIG_IGN);
    if (argc != 3 || (disk = open(argv[2], O_RDONLY)) < 0 || fstat(disk, &st) != 0) {
        perror("server");
        return 1;
    }
    disk_size = (uint64_t)st.st_size;
    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", argv[1]);
    if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0 || listen(fd, 64) != 0) {
        perror("server");
        return 1;
    }
    for (;;) {
        int client = accept(fd, NULL, NULL);
        pthread_t thread;
        if (client >= 0 && pthread_create(&thread, NULL, serve, (void *)(intptr_t)client) == 0) {
            pthread_detach(thread);
        }
    }
}
