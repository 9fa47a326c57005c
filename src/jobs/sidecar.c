/*
 * The digest file beside saved state: written to a temporary, made durable, renamed.
 */
#include "jobs/sidecar.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX ".blkhash"
#define TEXT_MAX (128 + NAME_MAX + 8)

static int name_of(const char *path, char *buf, struct error *err)
{
    int n = snprintf(buf, PATH_MAX, "%s" SUFFIX, path);
    return n < PATH_MAX ? 0 : error_set(err, ENAMETOOLONG, "the digest file's name is too long");
}

static int write_whole(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, text, len);
        if (n < 0) {
            return -errno;
        }
        text += n;
        len -= (size_t)n;
    }
    return fsync(fd) == 0 ? 0 : -errno;
}

int sidecar_write(const char *path, const uint8_t *digest, size_t len, struct error *err)
{
    char name[PATH_MAX], temporary[PATH_MAX + 8], text[TEXT_MAX];
    int r = name_of(path, name, err);
    if (r < 0) {
        return r;
    }
    size_t n = 0;
    for (size_t i = 0; i < len && n + 3 < sizeof(text); i++) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%02x", digest[i]);
    }
    const char *slash = strrchr(path, '/');
    n += (size_t)snprintf(text + n, sizeof(text) - n, "  %.*s\n", NAME_MAX,
                          slash ? slash + 1 : path);
    snprintf(temporary, sizeof(temporary), "%s.XXXXXX", name);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        r = -errno;
    } else {
        r = write_whole(fd, text, n);
        close(fd);
        if (r == 0 && rename(temporary, name) != 0) {
            r = -errno;
        }
        if (r < 0) {
            unlink(temporary);
        }
    }
    if (r < 0) {
        error_set(err, -r, "the digest can't be written");
        error_endpoint(err, name);
    }
    return r;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int sidecar_read(const char *path, uint8_t *digest, size_t room, struct error *err)
{
    char name[PATH_MAX], text[TEXT_MAX] = "";
    int r = name_of(path, name, err);
    if (r < 0) {
        return r;
    }
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    r = n < 0 ? -errno : 0;
    if (fd >= 0) {
        close(fd);
    }
    if (r < 0) {
        error_set(err, -r, "the digest can't be read");
        error_endpoint(err, name);
        return r;
    }
    text[n] = '\0';
    size_t len = 0;
    while (len < room && hex_digit(text[2 * len]) >= 0 && hex_digit(text[2 * len + 1]) >= 0) {
        digest[len] = (uint8_t)(hex_digit(text[2 * len]) * 16 + hex_digit(text[2 * len + 1]));
        len++;
    }
    if (len == 0 || text[2 * len] != ' ') {
        error_set(err, EBADMSG, "it holds no digest");
        error_endpoint(err, name);
        return -EBADMSG;
    }
    return (int)len;
}
