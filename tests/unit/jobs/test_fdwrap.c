/*
 * penstock_fdwrap_*: threads and processes, both directions, and what goes wrong.
 */
#include "penstock.h"

#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

static uint8_t data[(3 << 20) + 777];
static uint8_t back[sizeof(data)];
static char folder[] = "/tmp/ps.XXXXXX";
static char path[64];

static bool write_all(int fd, const uint8_t *p, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n <= 0) {
            return false;
        }
        p += n;
        len -= (size_t)n;
    }
    return true;
}

static size_t read_all(int fd, uint8_t *p, size_t room)
{
    size_t len = 0;
    ssize_t n;
    while (len < room && (n = read(fd, p + len, room - len)) > 0) {
        len += (size_t)n;
    }
    return len;
}

static void there_and_back(unsigned flags)
{
    struct penstock_fdwrap *w = NULL;
    char text[256];
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EQ(penstock_fdwrap_open(&fd, path, flags, &w), 0);
    OK(penstock_fdwrap_pipe_size(w) >= 4096);
    OK(write_all(fd, data, sizeof(data)));
    close(fd);
    EQ(penstock_fdwrap_close(w, text, sizeof(text)), 0);
    STREQ(text, "");
    EQ(penstock_fdwrap_close(w, NULL, 0), 0);
    penstock_fdwrap_free(w);

    fd = open(path, O_RDONLY | O_CLOEXEC);
    memset(back, 0, sizeof(back));
    EQ(penstock_fdwrap_open(&fd, path, flags, &w), 0);
    EQ(read_all(fd, back, sizeof(back)), sizeof(data));
    close(fd);
    EQ(penstock_fdwrap_close(w, NULL, 0), 0);
    penstock_fdwrap_free(w);
    OK(memcmp(data, back, sizeof(data)) == 0);
}

static void by_thread(void)
{
    there_and_back(0);
}

static void by_thread_direct(void)
{
    there_and_back(PENSTOCK_FDWRAP_DIRECT);
}

static void by_process(void)
{
    if (!getenv("PENSTOCK_PROGRAM")) {
        SKIP("PENSTOCK_PROGRAM is not set");
        return;
    }
    there_and_back(PENSTOCK_FDWRAP_PROCESS);
    there_and_back(PENSTOCK_FDWRAP_PROCESS | PENSTOCK_FDWRAP_DIRECT);
}

static void full_device(unsigned flags)
{
    struct penstock_fdwrap *w = NULL;
    char text[256];
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    EQ(penstock_fdwrap_open(&fd, "the-name", flags, &w), 0);
    write_all(fd, data, sizeof(data)); /* may or may not see EPIPE */
    close(fd);
    OK(penstock_fdwrap_close(w, text, sizeof(text)) < 0);
    OK(strstr(text, "the-name") != NULL);
    OK(strstr(text, "No space left on device") != NULL);
    penstock_fdwrap_free(w);
}

static void full_disk(void)
{
    full_device(0);
    if (getenv("PENSTOCK_PROGRAM")) {
        full_device(PENSTOCK_FDWRAP_PROCESS);
    }
}

static void reader_goes(void)
{
    struct penstock_fdwrap *w = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    EQ(penstock_fdwrap_open(&fd, path, 0, &w), 0);
    close(fd);
    EQ(penstock_fdwrap_close(w, NULL, 0), -EPIPE);
    penstock_fdwrap_free(w);
}

static void misuse(void)
{
    struct penstock_fdwrap *w = NULL;
    int fd = open(path, O_RDWR | O_CLOEXEC), same = fd;
    EQ(penstock_fdwrap_open(&fd, path, 0, &w), -EINVAL);
    EQ(fd, same);
    close(fd);
    fd = -1;
    EQ(penstock_fdwrap_open(&fd, path, 0, &w), -EBADF);
    penstock_fdwrap_free(NULL);
    OK(strlen(penstock_version()) > 0);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    if (!mkdtemp(folder)) {
        return 1;
    }
    snprintf(path, sizeof(path), "%s/f", folder);
    RUN(by_thread);
    RUN(by_thread_direct);
    RUN(by_process);
    RUN(full_disk);
    RUN(reader_goes);
    RUN(misuse);
    unlink(path);
    rmdir(folder);
    return tap_done();
}
