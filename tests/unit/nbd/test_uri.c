/* NBD URIs: what they mean, and what is refused. */
#include "nbd/uri.h"

#include "../tap.h"

#include <errno.h>

struct good {
    const char *text;
    enum address_kind kind;
    const char *where; /* host or socket path */
    unsigned port;
    const char *export_name;
};

static const struct good good[] = {
    {"nbd://example.com", ADDRESS_TCP, "example.com", 10809, ""},
    {"nbd://example.com/", ADDRESS_TCP, "example.com", 10809, ""},
    {"nbd://example.com/disk", ADDRESS_TCP, "example.com", 10809, "disk"},
    {"nbd://example.com:/disk", ADDRESS_TCP, "example.com", 10809, "disk"},
    {"nbd://example.com:1/disk", ADDRESS_TCP, "example.com", 1, "disk"},
    {"nbd://example.com:65535//disk", ADDRESS_TCP, "example.com", 65535, "/disk"},
    {"nbd://example.com/a/b/c", ADDRESS_TCP, "example.com", 10809, "a/b/c"},
    {"nbd://example.com/a//b/", ADDRESS_TCP, "example.com", 10809, "a//b/"},
    {"nbd://example.com/a%20b%2Fc%25", ADDRESS_TCP, "example.com", 10809, "a b/c%"},
    {"nbd://example.com/%C3%A9", ADDRESS_TCP, "example.com", 10809, "\xc3\xa9"},
    {"nbd://example.com/%23%3F", ADDRESS_TCP, "example.com", 10809, "#?"},
    {"nbd://127.0.0.1:2000/", ADDRESS_TCP, "127.0.0.1", 2000, ""},
    {"nbd://[::1]/x", ADDRESS_TCP, "::1", 10809, "x"},
    {"nbd://[fe80::1]:20/x", ADDRESS_TCP, "fe80::1", 20, "x"},
    {"nbd://user@example.com/x", ADDRESS_TCP, "example.com", 10809, "x"},
    {"NBD://example.com/x", ADDRESS_TCP, "example.com", 10809, "x"},
    {"nbd+tcp://example.com/x", ADDRESS_TCP, "example.com", 10809, "x"},
    {"nbd:///x", ADDRESS_TCP, "", 10809, "x"},
    {"nbd+unix:///?socket=/run/a.sock", ADDRESS_UNIX, "/run/a.sock", 0, ""},
    {"nbd+unix:///disk?socket=/run/a.sock", ADDRESS_UNIX, "/run/a.sock", 0, "disk"},
    {"nbd+unix:////disk?socket=/run/a.sock", ADDRESS_UNIX, "/run/a.sock", 0, "/disk"},
    {"nbd+unix://?socket=/run/a.sock", ADDRESS_UNIX, "/run/a.sock", 0, ""},
    {"nbd+unix:///x?socket=/run/a%20b%26c", ADDRESS_UNIX, "/run/a b&c", 0, "x"},
    {"nbd+unix:///x?socket=a+b", ADDRESS_UNIX, "a+b", 0, "x"},
    {"nbd+unix:///x?&socket=a&", ADDRESS_UNIX, "a", 0, "x"},
    {"nbd+unix:///x?socket=%00abstract", ADDRESS_UNIX, "@abstract", 0, "x"},
    {"nbd+unix:///x?socket=@abstract", ADDRESS_UNIX, "@abstract", 0, "x"},
    {"nbd+vsock://3/x", ADDRESS_VSOCK, NULL, 10809, "x"},
    {"nbd+vsock://3:77/x", ADDRESS_VSOCK, NULL, 77, "x"},
};

static void c179_c180_c181_c182_good_uris(void)
{
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const struct good *g = &good[i];
        struct nbd_uri u = {0};
        struct error err = {0};
        if (!EQ(nbd_uri_parse(g->text, &u, &err), 0)) {
            printf("# %s: %s\n", g->text, err.text);
            continue;
        }
        const struct address *a = &u.address;
        bool ok = EQ(a->kind, g->kind) && STREQ(u.export_name, g->export_name);
        if (g->kind == ADDRESS_TCP) {
            ok = ok && STREQ(a->host, g->where) && EQ(a->port, g->port);
        } else if (g->kind == ADDRESS_UNIX) {
            ok = ok && STREQ(a->path, g->where) && EQ(a->abstract, g->where[0] == '@');
        } else {
            ok = ok && EQ(a->vsock_cid, 3) && EQ(a->vsock_port, g->port);
        }
        if (!ok) {
            printf("# in %s\n", g->text);
        }
        nbd_uri_done(&u);
    }
    struct nbd_uri u = {0};
    OK(nbd_uri_parse("nbd+vsock:///x", &u, NULL) == 0 && u.address.vsock_cid == 2);
    nbd_uri_done(&u);
}

struct bad {
    const char *text;
    int code;
    const char *says;
};

static const struct bad bad[] = {
    {"", EINVAL, "none of nbd://"},
    {"disk.img", EINVAL, "none of nbd://"},
    {"http://example.com/", EINVAL, "none of nbd://"},
    {"nbdx://example.com/", EINVAL, "none of nbd://"},
    {"nbds://example.com/x", ENOTSUP, "TLS is not built in"},
    {"nbds+unix:///x?socket=/a", ENOTSUP, "TLS is not built in"},
    {"nbds+vsock://3/x", ENOTSUP, "TLS is not built in"},
    {"nbd://example.com/x?tls-psk-file=/a", ENOTSUP, "TLS is not built in"},
    {"nbd://example.com:0/x", EINVAL, "1 to 65535"},
    {"nbd://example.com:65536/x", EINVAL, "1 to 65535"},
    {"nbd://example.com:123456789012345678/x", EINVAL, "1 to 65535"},
    {"nbd://example.com:x/x", EINVAL, "not a valid URI"},
    {"nbd://[::1/x", EINVAL, "not a valid URI"},
    {"nbd://example.com/a b", EINVAL, "not a valid URI"},
    {"nbd://example.com/a%2", EINVAL, "not a valid URI"},
    {"nbd://example.com/a%zz", EINVAL, "not a valid URI"},
    {"nbd://example.com/a%00b", EINVAL, "NUL"},
    {"nbd://a%00b/x", EINVAL, "host name"},
    {"nbd://example.com/x#y", EINVAL, "#fragment"},
    {"nbd://example.com/x?sockte=/a", EINVAL, "sockte is no parameter"},
    {"nbd://example.com/x?a%00b=c", EINVAL, "a\\x00b is no parameter"},
    {"nbd://example.com/x?socket=/a", EINVAL, "belongs to nbd+unix"},
    {"nbd+unix:///x", EINVAL, "needs ?socket=PATH"},
    {"nbd+unix:///x?socket", EINVAL, "needs ?socket=PATH"},
    {"nbd+unix:///x?socket=", EINVAL, "needs ?socket=PATH"},
    {"nbd+unix:///x?socket=/a&socket=/b", EINVAL, "given twice"},
    {"nbd+unix:///x?socket=/a%00b", EINVAL, "NUL"},
    {"nbd+unix://host/x?socket=/a", EINVAL, "no host"},
    {"nbd+unix://:1/x?socket=/a", EINVAL, "no host"},
    {"nbd+vsock://host/x", EINVAL, "context ID"},
    {"nbd+vsock://4294967295/x", EINVAL, "context ID"},
};

static void c179_c180_c183_bad_uris(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct nbd_uri u = {.export_name = (char *)1};
        struct error err = {0};
        bool ok = EQ(nbd_uri_parse(bad[i].text, &u, &err), -bad[i].code) &&
                  OK(strstr(err.text, bad[i].says)) && OK(u.export_name == (char *)1);
        if (!ok) {
            printf("# %s: %s\n", bad[i].text, err.text);
        }
        nbd_uri_parse(bad[i].text, &u, NULL);
    }
}

static void b2_long_names(void)
{
    char text[3 * 4097 + 32] = "nbd://h/";
    struct nbd_uri u;
    struct error err = {0};
    memset(text + 8, 'a', 4096);
    if (EQ(nbd_uri_parse(text, &u, NULL), 0)) {
        EQ(strlen(u.export_name), 4096);
        nbd_uri_done(&u);
    }
    text[8 + 4096] = 'a';
    EQ(nbd_uri_parse(text, &u, &err), -ENAMETOOLONG);
    memset(text + 8, 0, sizeof text - 8);
    for (int i = 0; i < 4096; i++) {
        memcpy(text + 8 + 3 * i, "%61", 3);
    }
    if (EQ(nbd_uri_parse(text, &u, NULL), 0)) {
        EQ(strlen(u.export_name), 4096);
        nbd_uri_done(&u);
    }
    char host[400] = "nbd://";
    memset(host + 6, 'h', 300);
    EQ(nbd_uri_parse(host, &u, NULL), -EINVAL);
    char path[400] = "nbd+unix:///?socket=/";
    memset(path + strlen(path), 'p', 200);
    OK(nbd_uri_parse(path, &u, NULL) < 0);
}

int main(void)
{
    RUN(c179_c180_c181_c182_good_uris);
    RUN(c179_c180_c183_bad_uris);
    RUN(b2_long_names);
    return tap_done();
}
