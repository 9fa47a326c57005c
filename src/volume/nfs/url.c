/*
 * NFS URLs, as libnfs and QEMU write them.
 *
 * The path's last part is the file, what stands before it the folder that is mounted. A parameter
 * that is not known is refused: a misspelt one could mean another user, or another server. Those
 * that QEMU's driver and libnfs know and that mean nothing here (readahead-size, page-cache-size:
 * this driver caches nothing) are checked and then without effect, so that a URL can be carried
 * over.
 */
#include "volume/nfs/url.h"

#include "core/log.h"
#include "core/size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEME "nfs://"
#define SHOWN_MAX 96   /* of a piece of the URL in a message */
#define VALUE_MAX 32   /* the longest value of a parameter, and the longest name */
#define SYNCNT_MAX 127 /* Linux's MAX_TCP_SYNCNT */
#define SECONDS_MAX 86400
#define READAHEAD_MAX (1u << 20) /* QEMU's limits */
#define PAGECACHE_MAX 2048
#define CONNECTIONS_MAX 256

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decodes from..end into to (size bytes, terminated): how many bytes, or -errno. */
static int decode(const char *from, const char *end, char *to, size_t size, struct error *err)
{
    size_t n = 0;
    while (from < end) {
        char c = *from++;
        if (c == '%') {
            int high = end - from >= 2 ? hex_value(from[0]) : -1;
            int low = high >= 0 ? hex_value(from[1]) : -1;
            if (low < 0) {
                return error_set(err, EINVAL,
                                 "a '%%' in the NFS URL is not followed by two hex digits");
            }
            c = (char)(high * 16 + low);
            from += 2;
        }
        if (c == '\0') {
            return error_set(err, EINVAL, "the NFS URL has a NUL (%%00) in it");
        }
        if (n + 1 >= size) {
            return error_set(err, ENAMETOOLONG, "a part of the NFS URL is longer than %zu bytes",
                             size - 1);
        }
        to[n++] = c;
    }
    to[n] = '\0';
    return (int)n;
}

/* --- HOST[:PORT] --- */

static int parse_port(const char *from, const char *end, struct nfsc_url *u, struct error *err)
{
    char text[8];
    uint64_t port;
    size_t len = (size_t)(end - from);
    if (len >= sizeof text) {
        return error_set(err, EINVAL, "the port of an NFS URL is a number from 1 to 65535");
    }
    memcpy(text, from, len);
    text[len] = '\0';
    if (number_parse(text, 1, 65535, &port) < 0) {
        return error_set(err, EINVAL, "the port of an NFS URL is a number from 1 to 65535");
    }
    u->nfs_port = (uint16_t)port;
    return 0;
}

static int parse_host(const char *from, const char *end, struct nfsc_url *u, struct error *err)
{
    const char *stop;
    const char *after;
    if (from >= end) {
        return error_set(err, EINVAL, "the NFS URL names no host: nfs://HOST/FOLDER/FILE");
    }
    if (*from == '[') {
        from++;
        stop = memchr(from, ']', (size_t)(end - from));
        if (!stop) {
            return error_set(err, EINVAL, "the NFS URL has a '[' without its ']'");
        }
        after = stop + 1;
    } else {
        stop = memchr(from, ':', (size_t)(end - from));
        stop = stop ? stop : end;
        after = stop;
    }
    if (stop == from) {
        return error_set(err, EINVAL, "the NFS URL names no host: nfs://HOST/FOLDER/FILE");
    }
    int r = decode(from, stop, u->host, sizeof u->host, err);
    if (r < 0 || after == end) {
        return r;
    }
    if (*after != ':') {
        return error_set(err, EINVAL,
                         "the NFS URL's host is followed by something else than :PORT");
    }
    return parse_port(after + 1, end, u, err);
}

/* --- /FOLDER/FILE --- */

static int add_folder(struct nfsc_url *u, const char *name, struct error *err)
{
    size_t have = strlen(u->folder);
    size_t len = strlen(name);
    if (len + 1 > NFSC_PATH_MAX - have) {
        return error_set(err, ENAMETOOLONG, "the folder in the NFS URL has more than %d bytes",
                         NFSC_PATH_MAX);
    }
    u->folder[have] = '/';
    memcpy(u->folder + have + 1, name, len + 1);
    return 0;
}

static int check_name(const char *name, struct error *err)
{
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        return error_set(err, EINVAL, "the path of the NFS URL has \"%s\" in it", name);
    }
    if (strchr(name, '/')) {
        return error_set(err, EINVAL, "a name in the NFS URL has a '/' (%%2F) in it");
    }
    return 0;
}

static int parse_path(const char *from, const char *end, struct nfsc_url *u, struct error *err)
{
    char name[NFSC_NAME_MAX + 1];
    if (from == end || end[-1] == '/') {
        return error_set(err, EINVAL, "the NFS URL names no file: nfs://HOST/FOLDER/FILE");
    }
    while (from < end) {
        from++; /* the slash */
        const char *stop = memchr(from, '/', (size_t)(end - from));
        stop = stop ? stop : end;
        int r = decode(from, stop, name, sizeof name, err);
        if (r >= 0) {
            r = check_name(name, err);
        }
        if (r == 0 && name[0] != '\0') {
            if (stop == end) {
                memcpy(u->file, name, sizeof name);
            } else {
                r = add_folder(u, name, err);
            }
        }
        if (r < 0) {
            return r;
        }
        from = stop;
    }
    if (u->folder[0] == '\0') {
        u->folder[0] = '/';
    }
    return 0;
}

/* --- NAME=VALUE --- */

enum kind { KIND_NUMBER, KIND_SECONDS };

enum target {
    SET_UID,
    SET_GID,
    SET_NFS_PORT,
    SET_MOUNT_PORT,
    SET_SYNCNT,
    SET_DEBUG,
    SET_VERSION,
    SET_PARENTS,
    SET_CONNECTIONS,
    SET_RECONNECT,
    SET_TIMEOUT,
    SET_NOTHING,
};

struct parameter {
    const char *name;
    enum kind kind;
    enum target target;
    uint64_t min, max;
};

static const struct parameter parameters[] = {
    {"uid", KIND_NUMBER, SET_UID, 0, INT32_MAX},
    {"gid", KIND_NUMBER, SET_GID, 0, INT32_MAX},
    {"nfsport", KIND_NUMBER, SET_NFS_PORT, 1, 65535},
    {"mountport", KIND_NUMBER, SET_MOUNT_PORT, 1, 65535},
    {"tcp-syncnt", KIND_NUMBER, SET_SYNCNT, 1, SYNCNT_MAX},
    {"debug", KIND_NUMBER, SET_DEBUG, 0, 10},
    {"version", KIND_NUMBER, SET_VERSION, 0, UINT32_MAX},
    {"auto-traverse-mounts", KIND_NUMBER, SET_PARENTS, 0, 1},
    {"connections", KIND_NUMBER, SET_CONNECTIONS, 1, CONNECTIONS_MAX},
    {"reconnect-delay", KIND_SECONDS, SET_RECONNECT, 0, SECONDS_MAX},
    {"request-timeout", KIND_SECONDS, SET_TIMEOUT, 0, SECONDS_MAX},
    {"readahead", KIND_NUMBER, SET_NOTHING, 0, READAHEAD_MAX},
    {"readahead-size", KIND_NUMBER, SET_NOTHING, 0, READAHEAD_MAX},
    {"pagecache", KIND_NUMBER, SET_NOTHING, 0, PAGECACHE_MAX},
    {"page-cache-size", KIND_NUMBER, SET_NOTHING, 0, PAGECACHE_MAX},
};
#define PARAMETERS (sizeof parameters / sizeof *parameters)

static int set_version(uint64_t n, struct error *err)
{
    if (n == 3) {
        return 0;
    }
    if (n == 4) {
        return error_set(err, ENOTSUP,
                         "NFSv4 is not supported, only version=3: a server that offers both "
                         "serves the same files by NFSv3");
    }
    return error_set(err, EINVAL, "version=%llu: NFSv3 is the one that is supported",
                     (unsigned long long)n);
}

static int set(struct nfsc_url *u, enum target target, uint64_t n, struct error *err)
{
    switch (target) {
    case SET_UID:
        u->uid = (uint32_t)n;
        u->has_uid = true;
        break;
    case SET_GID:
        u->gid = (uint32_t)n;
        u->has_gid = true;
        break;
    case SET_NFS_PORT:
        if (u->nfs_port != 0) {
            return error_set(err, EINVAL, "the NFS URL has both :PORT and nfsport=");
        }
        u->nfs_port = (uint16_t)n;
        break;
    case SET_MOUNT_PORT:
        u->mount_port = (uint16_t)n;
        break;
    case SET_SYNCNT:
        u->tcp_syncnt = (unsigned)n;
        break;
    case SET_DEBUG:
        u->debug = (unsigned)n;
        break;
    case SET_VERSION:
        return set_version(n, err);
    case SET_PARENTS:
        u->parents = n != 0;
        break;
    case SET_CONNECTIONS:
        u->connections = (unsigned)n;
        break;
    case SET_RECONNECT:
        u->reconnect_delay_ns = n;
        break;
    case SET_TIMEOUT:
        if (n == 0) {
            return error_set(err, EINVAL, "request-timeout=0: it takes a time above zero");
        }
        u->request_timeout_ns = n;
        break;
    case SET_NOTHING:
        break;
    }
    return 0;
}

static int unknown_name(const char *name, struct error *err)
{
    char shown[SHOWN_MAX];
    char all[ERROR_TEXT_MAX / 2] = "";
    size_t n = 0;
    for (size_t i = 0; i < PARAMETERS; i++) {
        int k = snprintf(all + n, sizeof all - n, "%s%s", i > 0 ? ", " : "", parameters[i].name);
        n = min_u64(n + (size_t)k, sizeof all - 1);
    }
    return error_set(err, EINVAL, "%s is no parameter of an NFS URL; there are %s",
                     log_escape(shown, sizeof shown, name, strlen(name)), all);
}

static int parse_parameter(const char *name, const char *value, unsigned *seen, struct nfsc_url *u,
                           struct error *err)
{
    size_t i = 0;
    while (i < PARAMETERS && strcmp(parameters[i].name, name) != 0) {
        i++;
    }
    if (i == PARAMETERS) {
        return unknown_name(name, err);
    }
    const struct parameter *p = &parameters[i];
    uint64_t n;
    int r = p->kind == KIND_SECONDS ? seconds_parse(value, p->max, &n)
                                    : number_parse(value, p->min, p->max, &n);
    if (r < 0) {
        char shown[SHOWN_MAX];
        return error_set(err, EINVAL, "%s=%s in the NFS URL: it takes %s from %llu to %llu", name,
                         log_escape(shown, sizeof shown, value, strlen(value)),
                         p->kind == KIND_SECONDS ? "seconds" : "a number",
                         (unsigned long long)p->min, (unsigned long long)p->max);
    }
    if (*seen & 1u << i) {
        return error_set(err, EINVAL, "%s= is given twice in the NFS URL", name);
    }
    *seen |= 1u << i;
    return set(u, p->target, n, err);
}

static int parse_query(const char *from, const char *end, struct nfsc_url *u, struct error *err)
{
    unsigned seen = 0;
    while (from < end) {
        const char *stop = memchr(from, '&', (size_t)(end - from));
        stop = stop ? stop : end;
        const char *equal = memchr(from, '=', (size_t)(stop - from));
        char name[VALUE_MAX];
        char value[VALUE_MAX];
        if (stop > from) {
            int r = decode(from, equal ? equal : stop, name, sizeof name, err);
            if (r >= 0) {
                r = decode(equal ? equal + 1 : stop, stop, value, sizeof value, err);
            }
            if (r >= 0) {
                r = parse_parameter(name, value, &seen, u, err);
            }
            if (r < 0) {
                return r;
            }
        }
        from = stop < end ? stop + 1 : end;
    }
    return 0;
}

int nfsc_url_parse(const char *text, struct nfsc_url *ret, struct error *err)
{
    struct nfsc_url u = {
        .parents = true,
        .reconnect_delay_ns = NFSC_RECONNECT_DELAY_NS,
        .request_timeout_ns = NFSC_REQUEST_TIMEOUT_NS,
    };
    if (strncmp(text, SCHEME, strlen(SCHEME)) != 0) {
        return error_set(err, EINVAL, "an NFS URL starts with nfs://HOST/");
    }
    const char *host = text + strlen(SCHEME);
    const char *query = strchr(host, '?');
    const char *end = query ? query : host + strlen(host);
    if (strchr(host, '#')) {
        return error_set(err, EINVAL, "an NFS URL has no #fragment; write %%23 for a # in a name");
    }
    const char *path = memchr(host, '/', (size_t)(end - host));
    path = path ? path : end;
    int r = parse_host(host, path, &u, err);
    if (r >= 0) {
        r = parse_path(path, end, &u, err);
    }
    if (r >= 0 && query) {
        r = parse_query(query + 1, query + strlen(query), &u, err);
    }
    if (r < 0) {
        return r;
    }
    *ret = u;
    return 0;
}
