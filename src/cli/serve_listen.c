/*
 * The sockets of `penstock serve`, and what they are called.
 *
 * Socket files are remembered beside the listeners (which are the server's once it listens), so
 * that a second signal can remove them without asking anybody.
 */
#include "cli/serve.h"
#include "core/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BACKLOG 1024
#define SAY_WHERE "say where to listen: --unix, --tcp, --vsock, --stdio or --run"

static int one_address(struct serve_sockets *s, int r)
{
    if (r == 0) {
        s->address_count++;
    }
    return r;
}

int serve_addresses(const struct serve_cli *cli, struct serve_sockets *s, struct error *err)
{
    int r = 0;

    if (cli->tcp.count + 2 > SERVE_LISTENERS_MAX) {
        return error_set(err, EINVAL, "--tcp: more than %u", SERVE_LISTENERS_MAX - 2);
    }
    if (cli->unix_path) {
        r = one_address(s, address_unix(cli->unix_path, &s->addresses[s->address_count], err));
        if (r < 0) {
            error_prefix(err, "--unix");
        }
    }
    for (unsigned i = 0; r == 0 && i < cli->tcp.count; i++) {
        struct address *a = &s->addresses[s->address_count];
        r = one_address(s, address_parse_tcp(cli->tcp.items[i], 10809, a, err));
        if (r < 0) {
            error_prefix(err, "--tcp");
        }
    }
    if (r == 0 && cli->vsock) {
        struct address *a = &s->addresses[s->address_count];
        r = one_address(s, address_parse_vsock(cli->vsock, a, err));
        if (r < 0) {
            error_prefix(err, "--vsock");
        }
    }
    if (r == 0 && s->address_count == 0 && !cli->stdio && !cli->run && !getenv("LISTEN_PID")) {
        r = error_set(err, EINVAL, SAY_WHERE);
    }
    return r < 0 ? -EINVAL : 0;
}

/* RFC 3986, unreserved characters and '/' stay. Cut where it does not fit. */
static size_t percent_encode(char *dst, size_t size, const char *src)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = 0;

    for (const unsigned char *c = (const unsigned char *)src; *c && n + 4 < size; c++) {
        bool plain = (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') ||
                     (*c >= 'A' && *c <= 'Z') || strchr("-._~/", *c);
        if (plain) {
            dst[n++] = (char)*c;
        } else {
            dst[n++] = '%';
            dst[n++] = hex[*c >> 4];
            dst[n++] = hex[*c & 15];
        }
    }
    dst[n] = '\0';
    return n;
}

/* What a client on this host gives to reach the listener: the first export. */
static void make_uri(char *uri, size_t size, const struct address *a, const char *export)
{
    char name[1024], path[512];
    bool any = strcmp(a->host, "") == 0 || strcmp(a->host, "0.0.0.0") == 0 ||
               strcmp(a->host, "::") == 0;

    percent_encode(name, sizeof(name), export);
    switch (a->kind) {
    case ADDRESS_UNIX:
        percent_encode(path, sizeof(path), a->path);
        snprintf(uri, size, "nbd+unix:///%s?socket=%s", name, path);
        break;
    case ADDRESS_TCP:
        snprintf(uri, size, !any && strchr(a->host, ':') ? "nbd://[%s]:%u/%s" : "nbd://%s:%u/%s",
                 any ? "localhost" : a->host, a->port, name);
        break;
    case ADDRESS_VSOCK:
        /* Listening on any CID, which is -1: the local one is 1. */
        snprintf(uri, size, "nbd+vsock://%u:%u/%s", a->vsock_cid == UINT32_MAX ? 1 : a->vsock_cid,
                 a->vsock_port, name);
        break;
    case ADDRESS_FD:
        uri[0] = '\0';
        break;
    }
}

/* Notes what the listeners from first on are called, and which files are theirs. */
static void note_listeners(const struct serve_cli *cli, struct serve_sockets *s, unsigned first)
{
    for (unsigned i = first; i < s->listener_count; i++) {
        const struct listener *l = &s->listeners[i];
        struct address a;
        char text[300];
        if (l->unix_path[0]) {
            struct serve_socket *f = &s->files[s->file_count++];
            memcpy(f->path, l->unix_path, sizeof(f->path));
            f->dev = l->unix_dev;
            f->ino = l->unix_ino;
        }
        if (listener_address(l, &a) == 0) {
            make_uri(s->uris[s->uri_count++], sizeof(s->uris[0]), &a, cli->exports[0].name);
            log_info("listening on %s", address_format(&a, text, sizeof(text)));
        }
    }
}

static int open_address(const struct serve_cli *cli, struct serve_sockets *s,
                        const struct address *a, struct error *err)
{
    unsigned first = s->listener_count;
    int r = listener_open(a, BACKLOG, cli->socket_mode, cli->endpoint.socket_buffer,
                          &s->listeners[first], (int)(SERVE_LISTENERS_MAX - first), err);
    if (r < 0) {
        return r;
    }
    s->listener_count += (unsigned)r;
    note_listeners(cli, s, first);
    return 0;
}

static int open_inherited(const struct serve_cli *cli, struct serve_sockets *s, struct error *err)
{
    int fds[SERVE_LISTENERS_MAX];
    int n = socket_inherited(fds, SERVE_LISTENERS_MAX, err);

    if (n > 0 && s->address_count > 0) {
        return error_set(err, EINVAL,
                         "sockets were handed over by LISTEN_FDS, so --unix, --tcp and --vsock "
                         "can't be given");
    }
    for (int i = 0; i < n; i++) {
        struct address a = {.kind = ADDRESS_FD, .fd = fds[i]};
        int r = open_address(cli, s, &a, err);
        if (r < 0) {
            return r;
        }
    }
    return n;
}

/* A folder that only we may enter, for the socket of --run. */
static int open_private(const struct serve_cli *cli, struct serve_sockets *s, struct error *err)
{
    const char *parent = getenv("XDG_RUNTIME_DIR");
    struct address a;
    char path[PATH_MAX + 8];

    /* A socket's path has at most 107 bytes; /tmp is short. */
    if (!parent || parent[0] != '/' || strlen(parent) > 60 || access(parent, W_OK) < 0) {
        parent = "/tmp";
    }
    snprintf(s->folder, sizeof(s->folder), "%s/penstock-XXXXXX", parent);
    if (!mkdtemp(s->folder)) {
        int code = errno;
        s->folder[0] = '\0';
        return error_set(err, code, "no private folder in %s for the socket of --run", parent);
    }
    snprintf(path, sizeof(path), "%s/nbd.sock", s->folder);
    int r = address_unix(path, &a, err);
    return r < 0 ? r : open_address(cli, s, &a, err);
}

int serve_listen(const struct serve_cli *cli, struct serve_sockets *s, struct error *err)
{
    int inherited = open_inherited(cli, s, err);

    if (inherited < 0) {
        return inherited;
    }
    if (inherited == 0 && s->address_count == 0) {
        return cli->run ? open_private(cli, s, err) : error_set(err, EINVAL, SAY_WHERE);
    }
    for (unsigned i = 0; i < s->address_count; i++) {
        int r = open_address(cli, s, &s->addresses[i], err);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

void serve_sockets_abandon(struct serve_sockets *s)
{
    for (unsigned i = 0; i < s->listener_count; i++) {
        listener_close(&s->listeners[i]);
    }
    s->listener_count = 0;
}

void serve_sockets_remove(struct serve_sockets *s)
{
    for (unsigned i = 0; i < s->file_count; i++) {
        const struct serve_socket *f = &s->files[i];
        struct stat st;
        if (lstat(f->path, &st) == 0 && st.st_dev == f->dev && st.st_ino == f->ino) {
            unlink(f->path);
        }
    }
    s->file_count = 0;
    if (s->folder[0]) {
        rmdir(s->folder);
        s->folder[0] = '\0';
    }
}
