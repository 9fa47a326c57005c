/*
 * NBD URIs, after the NBD project's doc/uri.md.
 *
 * liburiparser splits the text by RFC 3986; what the parts mean is decided here. Percent-decoding
 * is our own because it must notice %00: NUL is refused in an export name (NBD strings have none)
 * and means an abstract socket at the start of `socket=`. `socket=@NAME` is the same, as other
 * tools write it.
 *
 * The path without its first slash is the export name, so "//disk" names "/disk". A parameter that
 * is not known is an error: silently ignoring a misspelt one could mean plain text, or another
 * disk. TLS is not built in, and so nbds and the tls-... parameters are refused, never downgraded.
 */
#include "nbd/uri.h"

#include "core/log.h"
#include "core/size.h"
#include "nbd/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <uriparser/Uri.h>

struct scheme {
    const char *name;
    enum address_kind kind;
    bool tls;
};

static const struct scheme schemes[] = {
    {"nbd", ADDRESS_TCP, false},       {"nbd+tcp", ADDRESS_TCP, false}, /* QEMU's name for it */
    {"nbd+unix", ADDRESS_UNIX, false}, {"nbd+vsock", ADDRESS_VSOCK, false},
    {"nbds", ADDRESS_TCP, true},       {"nbds+tcp", ADDRESS_TCP, true},
    {"nbds+unix", ADDRESS_UNIX, true}, {"nbds+vsock", ADDRESS_VSOCK, true},
};

const char *const nbd_uri_schemes[] = {
    "nbd", "nbd+tcp", "nbd+unix", "nbd+vsock", "nbds", "nbds+tcp", "nbds+unix", "nbds+vsock", NULL,
};

#define VSOCK_CID_HOST 2
#define ESCAPED_MAX 128 /* of a piece of the URI in a message */

struct text {
    char *data; /* terminated; owned */
    size_t len; /* without the terminator; NULs inside count */
};

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

/* Appends the decoded bytes of from..end to t, whose buffer is large enough. -EINVAL for a bad
 * escape (uriparser lets none through, but this does not depend on it). */
static int decode_into(struct text *t, const char *from, const char *end)
{
    while (from < end) {
        char c = *from++;
        if (c == '%') {
            int high = end - from >= 2 ? hex_value(from[0]) : -1;
            int low = high >= 0 ? hex_value(from[1]) : -1;
            if (low < 0) {
                return -EINVAL;
            }
            c = (char)(high * 16 + low);
            from += 2;
        }
        t->data[t->len++] = c;
    }
    t->data[t->len] = '\0';
    return 0;
}

static int decode(const char *from, const char *end, struct text *ret, struct error *err)
{
    struct text t = {malloc((size_t)(end - from) + 1), 0};
    if (!t.data) {
        return error_set(err, ENOMEM, "no memory for a URI");
    }
    if (decode_into(&t, from, end) < 0) {
        free(t.data);
        return error_set(err, EINVAL, "a '%%' in an NBD URI is not followed by two hex digits");
    }
    *ret = t;
    return 0;
}

static const struct scheme *find_scheme(const UriUriA *uri)
{
    size_t len = (size_t)(uri->scheme.afterLast - uri->scheme.first);
    for (size_t i = 0; uri->scheme.first && i < sizeof schemes / sizeof *schemes; i++) {
        if (strlen(schemes[i].name) == len &&
            strncasecmp(schemes[i].name, uri->scheme.first, len) == 0) {
            return &schemes[i];
        }
    }
    return NULL;
}

/* The path's segments, joined again; the slash before the first is not part of the name. */
static int parse_export(const UriUriA *uri, struct nbd_uri *u, struct error *err)
{
    size_t room = 1;
    for (const UriPathSegmentA *s = uri->pathHead; s; s = s->next) {
        room += (size_t)(s->text.afterLast - s->text.first) + 1;
    }
    struct text name = {malloc(room), 0};
    if (!name.data) {
        return error_set(err, ENOMEM, "no memory for an export name");
    }
    name.data[0] = '\0';
    int r = 0;
    for (const UriPathSegmentA *s = uri->pathHead; s && r == 0; s = s->next) {
        if (s != uri->pathHead) {
            name.data[name.len++] = '/';
        }
        r = decode_into(&name, s->text.first, s->text.afterLast);
    }
    if (r < 0) {
        error_set(err, EINVAL, "a '%%' in an NBD URI is not followed by two hex digits");
    } else if (memchr(name.data, '\0', name.len)) {
        r = error_set(err, EINVAL, "the export name in the NBD URI has a NUL (%%00) in it");
    } else if (name.len > NBD_STRING_MAX) {
        r = error_set(err, ENAMETOOLONG,
                      "the export name in the NBD URI has %zu bytes; %d is "
                      "the limit",
                      name.len, NBD_STRING_MAX);
    }
    if (r < 0) {
        free(name.data);
        return r;
    }
    u->export_name = name.data;
    return 0;
}

static int parse_port(const UriUriA *uri, uint16_t *ret, struct error *err)
{
    size_t len = (size_t)(uri->portText.afterLast - uri->portText.first);
    *ret = NBD_DEFAULT_PORT;
    if (!uri->portText.first || len == 0) {
        return 0;
    }
    char text[16] = "";
    uint64_t port;
    if (len >= sizeof text) {
        return error_set(err, EINVAL, "the port of an NBD URI is a number from 1 to 65535");
    }
    memcpy(text, uri->portText.first, len);
    if (number_parse(text, 1, 65535, &port) < 0) {
        return error_set(err, EINVAL, "the port of an NBD URI is a number from 1 to 65535, not %s",
                         text);
    }
    *ret = (uint16_t)port;
    return 0;
}

static int parse_tcp(const UriUriA *uri, const struct text *host, struct address *a,
                     struct error *err)
{
    if (memchr(host->data, '\0', host->len) || host->len >= sizeof a->host) {
        return error_set(err, EINVAL, "the host name in the NBD URI is not valid");
    }
    a->kind = ADDRESS_TCP;
    memcpy(a->host, host->data, host->len + 1);
    return parse_port(uri, &a->port, err);
}

static int parse_vsock(const UriUriA *uri, const struct text *host, struct address *a,
                       struct error *err)
{
    uint64_t cid = VSOCK_CID_HOST;
    if (host->len > 0 && (memchr(host->data, '\0', host->len) ||
                          number_parse(host->data, 0, UINT32_MAX - 1, &cid) < 0)) {
        char shown[ESCAPED_MAX];
        return error_set(err, EINVAL,
                         "nbd+vsock takes a context ID, a number, for its host, not "
                         "%s",
                         log_escape(shown, sizeof shown, host->data, host->len));
    }
    uint16_t port;
    int r = parse_port(uri, &port, err);
    a->kind = ADDRESS_VSOCK;
    a->vsock_cid = (uint32_t)cid;
    a->vsock_port = r == 0 ? port : 0;
    return r;
}

static int parse_unix(const UriUriA *uri, const struct text *host, struct text *socket,
                      struct address *a, struct error *err)
{
    if (host->len > 0 || uri->portText.first) {
        return error_set(err, EINVAL,
                         "nbd+unix takes no host: three slashes follow the colon, as "
                         "in nbd+unix:///EXPORT?socket=PATH");
    }
    if (!socket->data || socket->len == 0) {
        return error_set(err, EINVAL, "nbd+unix needs ?socket=PATH");
    }
    if (socket->data[0] == '\0') {
        socket->data[0] = '@';
    }
    if (memchr(socket->data, '\0', socket->len)) {
        return error_set(err, EINVAL, "the socket name in the NBD URI has a NUL (%%00) inside");
    }
    return address_unix(socket->data, a, err);
}

static bool is(const struct text *key, const char *name)
{
    return key->len == strlen(name) && memcmp(key->data, name, key->len) == 0;
}

/* One NAME=VALUE of the query. */
static int parse_parameter(const struct text *key, struct text *value, const struct scheme *scheme,
                           struct text *socket, struct error *err)
{
    char shown[ESCAPED_MAX];
    log_escape(shown, sizeof shown, key->data, key->len);
    if (is(key, "socket")) {
        if (scheme->kind != ADDRESS_UNIX) {
            return error_set(err, EINVAL, "socket= belongs to nbd+unix, not to %s", scheme->name);
        }
        if (socket->data) {
            return error_set(err, EINVAL, "socket= is given twice in the NBD URI");
        }
        *socket = *value;
        value->data = NULL;
        return 0;
    }
    if (key->len >= 4 && memcmp(key->data, "tls-", 4) == 0) {
        return error_set(err, ENOTSUP, "%s: TLS is not built in", shown);
    }
    return error_set(err, EINVAL,
                     "%s is no parameter of an NBD URI that penstock knows: it knows "
                     "socket",
                     shown);
}

static int parse_query(const UriUriA *uri, const struct scheme *scheme, struct text *socket,
                       struct error *err)
{
    const char *from = uri->query.first, *end = uri->query.afterLast;
    int r = 0;
    while (from && from < end && r == 0) {
        const char *stop = memchr(from, '&', (size_t)(end - from));
        stop = stop ? stop : end;
        const char *equal = memchr(from, '=', (size_t)(stop - from));
        struct text key = {0}, value = {0};
        if (stop > from) {
            r = decode(from, equal ? equal : stop, &key, err);
            if (r == 0) {
                r = decode(equal ? equal + 1 : stop, stop, &value, err);
            }
            if (r == 0) {
                r = parse_parameter(&key, &value, scheme, socket, err);
            }
        }
        free(key.data);
        free(value.data);
        from = stop < end ? stop + 1 : end;
    }
    return r;
}

static int parse_address(const UriUriA *uri, const struct scheme *scheme, struct text *socket,
                         struct address *a, struct error *err)
{
    struct text host = {0};
    int r = decode(uri->hostText.first, uri->hostText.afterLast, &host, err);
    if (r < 0) {
        return r;
    }
    *a = (struct address){.fd = -1};
    switch (scheme->kind) {
    case ADDRESS_UNIX:
        r = parse_unix(uri, &host, socket, a, err);
        break;
    case ADDRESS_VSOCK:
        r = parse_vsock(uri, &host, a, err);
        break;
    default:
        r = parse_tcp(uri, &host, a, err);
        break;
    }
    free(host.data);
    return r;
}

static int parse_parts(const UriUriA *uri, struct nbd_uri *u, struct error *err)
{
    const struct scheme *scheme = find_scheme(uri);
    if (!scheme) {
        return error_set(err, EINVAL,
                         "not an NBD URI: it starts with none of nbd://, "
                         "nbd+unix://, nbd+vsock://");
    }
    if (scheme->tls) {
        return error_set(err, ENOTSUP, "%s: TLS is not built in", scheme->name);
    }
    if (uri->fragment.first) {
        return error_set(err, EINVAL,
                         "an NBD URI has no #fragment; write %%23 for a # in an "
                         "export name");
    }
    struct text socket = {0};
    int r = parse_query(uri, scheme, &socket, err);
    if (r == 0) {
        r = parse_address(uri, scheme, &socket, &u->address, err);
    }
    free(socket.data);
    return r < 0 ? r : parse_export(uri, u, err);
}

int nbd_uri_parse(const char *text, struct nbd_uri *ret, struct error *err)
{
    UriUriA uri;
    const char *where;
    int r = uriParseSingleUriA(&uri, text, &where);
    if (r != URI_SUCCESS) {
        if (r == URI_ERROR_MALLOC) {
            return error_set(err, ENOMEM, "no memory for a URI");
        }
        char shown[ESCAPED_MAX];
        return error_set(err, EINVAL,
                         "not a valid URI from here on: %s (other characters are "
                         "written as %%NN)",
                         log_escape(shown, sizeof shown, where, strlen(where)));
    }
    struct nbd_uri u = {0};
    r = parse_parts(&uri, &u, err);
    uriFreeUriMembersA(&uri);
    if (r == 0) {
        *ret = u;
    }
    return r;
}

void nbd_uri_done(struct nbd_uri *u)
{
    free(u->export_name);
    u->export_name = NULL;
}
