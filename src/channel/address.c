/*
 * Addresses as people write them and as messages show them. Pure: text in, struct out; names are
 * resolved where they are used (socket.c, listener.c).
 */
#include "channel/socket.h"

#include "core/size.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <linux/vm_sockets.h>

#define VSOCK_DEFAULT_PORT 10809 /* NBD's */

static bool only_digits(const char *text)
{
    return *text && strspn(text, "0123456789") == strlen(text);
}

static int parse_port(const char *text, uint16_t *ret, struct error *err)
{
    uint64_t port;
    if (number_parse(text, 0, UINT16_MAX, &port) < 0) {
        return error_set(err, EINVAL, "a port is a number from 0 to 65535");
    }
    *ret = (uint16_t)port;
    return 0;
}

static int set_host(const char *host, size_t len, struct address *a, struct error *err)
{
    if (len >= sizeof(a->host)) {
        return error_set(err, EINVAL, "the host name is longer than %zu characters",
                         sizeof(a->host) - 1);
    }
    for (size_t i = 0; i < len; i++) {
        if (!isgraph((unsigned char)host[i]) || strchr("/[]@", host[i])) {
            return error_set(err, EINVAL, "a host name can't contain what is at its character %zu",
                             i + 1);
        }
    }
    memcpy(a->host, host, len);
    a->host[len] = '\0';
    return 0;
}

/* Splits off the host; *rest is what follows it: "", or ":PORT". */
static int take_host(const char *text, struct address *a, const char **rest, struct error *err)
{
    if (text[0] == '[') {
        const char *end = strchr(text, ']');
        if (!end || end == text + 1 || !memchr(text, ':', (size_t)(end - text))) {
            return error_set(err, EINVAL, "brackets hold an IPv6 address: [::1]:10809");
        }
        *rest = end + 1;
        return set_host(text + 1, (size_t)(end - text - 1), a, err);
    }
    const char *colon = strchr(text, ':');
    if (colon && strchr(colon + 1, ':')) {
        return error_set(err, EINVAL, "an IPv6 address goes into brackets: [::1]:10809");
    }
    *rest = colon ? colon : text + strlen(text);
    return set_host(text, (size_t)(*rest - text), a, err);
}

int address_parse_tcp(const char *text, uint16_t default_port, struct address *ret,
                      struct error *err)
{
    struct address a = {.kind = ADDRESS_TCP, .port = default_port, .fd = -1};
    int r;
    if (only_digits(text)) {
        r = parse_port(text, &a.port, err);
    } else {
        const char *rest = "";
        r = take_host(text, &a, &rest, err);
        if (r == 0 && *rest == ':') {
            r = parse_port(rest + 1, &a.port, err);
        } else if (r == 0 && *rest) {
            r = error_set(err, EINVAL, "after an address in brackets comes :PORT or nothing");
        }
    }
    if (r == 0) {
        *ret = a;
    }
    return r;
}

static int parse_cid(const char *text, size_t len, uint32_t *ret)
{
    static const struct {
        const char *name;
        uint32_t cid;
    } names[] = {
        {"", VMADDR_CID_ANY},
        {"any", VMADDR_CID_ANY},
        {"local", VMADDR_CID_LOCAL},
        {"host", VMADDR_CID_HOST},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strlen(names[i].name) == len && memcmp(names[i].name, text, len) == 0) {
            *ret = names[i].cid;
            return 0;
        }
    }
    char digits[16];
    uint64_t value;
    if (len >= sizeof(digits)) {
        return -EINVAL;
    }
    memcpy(digits, text, len);
    digits[len] = '\0';
    if (number_parse(digits, 0, UINT32_MAX, &value) < 0) {
        return -EINVAL;
    }
    *ret = (uint32_t)value;
    return 0;
}

int address_parse_vsock(const char *text, struct address *ret, struct error *err)
{
    struct address a = {.kind = ADDRESS_VSOCK, .vsock_port = VSOCK_DEFAULT_PORT, .fd = -1};
    size_t cid_len = strcspn(text, ":");
    if (!*text || parse_cid(text, cid_len, &a.vsock_cid) < 0) {
        return error_set(err, EINVAL,
                         "a vsock address is CID[:PORT]; CID is a number, any, local "
                         "or host");
    }
    if (text[cid_len] == ':') {
        uint64_t port;
        if (number_parse(text + cid_len + 1, 0, UINT32_MAX, &port) < 0) {
            return error_set(err, EINVAL, "a vsock port is a number of 32 bits");
        }
        a.vsock_port = (uint32_t)port;
    }
    *ret = a;
    return 0;
}

int address_unix(const char *path, struct address *ret, struct error *err)
{
    struct address a = {.kind = ADDRESS_UNIX, .abstract = path[0] == '@', .fd = -1};
    size_t len = strlen(path);
    if (len == 0 || (a.abstract && len == 1)) {
        return error_set(err, EINVAL, "the path of the Unix socket is empty");
    }
    if (len >= sizeof(a.path)) {
        return error_set(err, ENAMETOOLONG, "the path of a Unix socket can have %zu characters",
                         sizeof(a.path) - 1);
    }
    memcpy(a.path, path, len + 1);
    *ret = a;
    return 0;
}

char *address_format(const struct address *a, char *buf, size_t size)
{
    switch (a->kind) {
    case ADDRESS_UNIX:
        snprintf(buf, size, "unix:%s", a->path);
        break;
    case ADDRESS_TCP:
        snprintf(buf, size, strchr(a->host, ':') ? "[%s]:%u" : "%s:%u", a->host, a->port);
        break;
    case ADDRESS_VSOCK:
        if (a->vsock_cid == VMADDR_CID_ANY) {
            snprintf(buf, size, "vsock:any:%u", a->vsock_port);
        } else {
            snprintf(buf, size, "vsock:%u:%u", a->vsock_cid, a->vsock_port);
        }
        break;
    case ADDRESS_FD:
        snprintf(buf, size, "fd:%d", a->fd);
        break;
    }
    return buf;
}
