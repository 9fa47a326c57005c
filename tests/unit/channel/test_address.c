/* Addresses as text. */
#include "channel/socket.h"
#include "tap.h"

#include <errno.h>

static void tcp_addresses(void)
{
    static const struct {
        const char *text, *host;
        int port, result;
    } cases[] = {
        {"example.org:1", "example.org", 1, 0},
        {"example.org", "example.org", 10809, 0},
        {"[::1]:65535", "::1", 65535, 0},
        {"[fe80::1%eth0]", "fe80::1%eth0", 10809, 0},
        {":22", "", 22, 0},
        {"", "", 10809, 0},
        {"10810", "", 10810, 0},
        {"10.0.0.1:0", "10.0.0.1", 0, 0},
        {"::1", NULL, 0, -EINVAL},
        {"[::1", NULL, 0, -EINVAL},
        {"[]:1", NULL, 0, -EINVAL},
        {"[::1]1", NULL, 0, -EINVAL},
        {"[::1]:", NULL, 0, -EINVAL},
        {"[name]:1", NULL, 0, -EINVAL},
        {"h:", NULL, 0, -EINVAL},
        {"h:65536", NULL, 0, -EINVAL},
        {"h:-1", NULL, 0, -EINVAL},
        {"h: 1", NULL, 0, -EINVAL},
        {"h:1x", NULL, 0, -EINVAL},
        {"99999", NULL, 0, -EINVAL},
        {"a b:1", NULL, 0, -EINVAL},
        {"a/b", NULL, 0, -EINVAL},
        {"u@h:1", NULL, 0, -EINVAL},
        {"h\n", NULL, 0, -EINVAL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct address a = {.port = 7};
        struct error err = {0};
        int r = address_parse_tcp(cases[i].text, 10809, &a, &err);
        if (!EQ(r, cases[i].result)) {
            printf("#   address \"%s\"\n", cases[i].text);
        } else if (r == 0) {
            EQ(a.kind, ADDRESS_TCP);
            STREQ(a.host, cases[i].host);
            EQ(a.port, cases[i].port);
        } else {
            EQ(err.code, EINVAL);
            EQ(a.port, 7); /* untouched */
        }
    }
    char longest[300];
    struct address a;
    memset(longest, 'x', sizeof(longest));
    longest[255] = '\0';
    EQ(address_parse_tcp(longest, 1, &a, NULL), 0);
    longest[255] = 'x';
    longest[256] = '\0';
    EQ(address_parse_tcp(longest, 1, &a, NULL), -EINVAL);
}

static void vsock_addresses(void)
{
    struct address a;
    EQ(address_parse_vsock("3:99", &a, NULL), 0);
    EQ(a.vsock_cid, 3);
    EQ(a.vsock_port, 99);
    EQ(address_parse_vsock("local", &a, NULL), 0);
    EQ(a.vsock_cid, 1);
    EQ(a.vsock_port, 10809);
    EQ(address_parse_vsock("any:4294967295", &a, NULL), 0);
    EQ(a.vsock_cid, UINT32_MAX);
    EQ(address_parse_vsock(":5", &a, NULL), 0);
    EQ(a.vsock_cid, UINT32_MAX);
    static const char *const bad[] = {
        "", "x", "3:", "3:x", "4294967296", "3:4294967296", "99999999999999999999:1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        EQ(address_parse_vsock(bad[i], &a, NULL), -EINVAL);
    }
}

static void unix_addresses(void)
{
    struct address a;
    char longest[120];
    EQ(address_unix("/run/x.sock", &a, NULL), 0);
    STREQ(a.path, "/run/x.sock");
    OK(!a.abstract);
    EQ(address_unix("@name", &a, NULL), 0);
    OK(a.abstract);
    EQ(address_unix("", &a, NULL), -EINVAL);
    EQ(address_unix("@", &a, NULL), -EINVAL);
    memset(longest, 'p', sizeof(longest));
    longest[107] = '\0';
    EQ(address_unix(longest, &a, NULL), 0);
    longest[107] = 'p';
    longest[108] = '\0';
    EQ(address_unix(longest, &a, NULL), -ENAMETOOLONG);
}

static void formatted(void)
{
    struct address a;
    char buf[300];
    address_parse_tcp("[::1]:7", 1, &a, NULL);
    STREQ(address_format(&a, buf, sizeof(buf)), "[::1]:7");
    address_parse_tcp("h:7", 1, &a, NULL);
    STREQ(address_format(&a, buf, sizeof(buf)), "h:7");
    address_parse_vsock("3:7", &a, NULL);
    STREQ(address_format(&a, buf, sizeof(buf)), "vsock:3:7");
    address_parse_vsock("any:7", &a, NULL);
    STREQ(address_format(&a, buf, sizeof(buf)), "vsock:any:7");
    address_unix("/s", &a, NULL);
    STREQ(address_format(&a, buf, sizeof(buf)), "unix:/s");
    a = (struct address){.kind = ADDRESS_FD, .fd = 5};
    STREQ(address_format(&a, buf, sizeof(buf)), "fd:5");
    address_unix("/a/longer/path", &a, NULL);
    STREQ(address_format(&a, buf, 8), "unix:/a"); /* cut, never overrun */
}

int main(void)
{
    RUN(tcp_addresses);
    RUN(vsock_addresses);
    RUN(unix_addresses);
    RUN(formatted);
    return tap_done();
}
