/* NFS URLs: what is taken, what is refused and in which words. */
#include "volume/nfs/url.h"

#include "tap.h"

#include <errno.h>
#include <string.h>

struct good {
    const char *text, *host, *folder, *file;
    uint16_t nfs_port, mount_port;
};

static const struct good good[] = {
    {"nfs://h/d", "h", "/", "d", 0, 0},
    {"nfs://h/export/d", "h", "/export", "d", 0, 0},
    {"nfs://h/a/b/c/d.img", "h", "/a/b/c", "d.img", 0, 0},
    {"nfs://h//a///b//d", "h", "/a/b", "d", 0, 0},
    {"nfs://h:2050/e/d", "h", "/e", "d", 2050, 0},
    {"nfs://[::1]/e/d", "::1", "/e", "d", 0, 0},
    {"nfs://[fe80::1%25eth0]:3/e/d", "fe80::1%eth0", "/e", "d", 3, 0},
    {"nfs://10.0.0.1/e/d?nfsport=1&mountport=65535", "10.0.0.1", "/e", "d", 1, 65535},
    {"nfs://h/%65xport/d%20isk%3f", "h", "/export", "d isk?", 0, 0},
    {"nfs://h/e/..d", "h", "/e", "..d", 0, 0},
    {"nfs://h/e/d?", "h", "/e", "d", 0, 0},
    {"nfs://h/e/d?&&version=3&", "h", "/e", "d", 0, 0},
    {"nfs://h/e/d?a%75to-traverse-mounts=1", "h", "/e", "d", 0, 0},
    {"nfs://h/e/d?readahead=1048576&pagecache=2048", "h", "/e", "d", 0, 0},
};

static void good_urls(void)
{
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const struct good *g = &good[i];
        struct nfsc_url u;
        struct error err = {0};
        if (!EQ(nfsc_url_parse(g->text, &u, &err), 0)) {
            printf("# %s: %s\n", g->text, err.text);
            continue;
        }
        if (!(STREQ(u.host, g->host) && STREQ(u.folder, g->folder) && STREQ(u.file, g->file) &&
              EQ(u.nfs_port, g->nfs_port) && EQ(u.mount_port, g->mount_port))) {
            printf("# %s\n", g->text);
        }
    }
}

static void defaults(void)
{
    struct nfsc_url u;
    if (EQ(nfsc_url_parse("nfs://h/d", &u, NULL), 0)) {
        OK(!u.has_uid && !u.has_gid && u.parents);
        EQ(u.tcp_syncnt, 0);
        EQ(u.debug, 0);
        EQ(u.connections, 0);
        EQ(u.reconnect_delay_ns, NFSC_RECONNECT_DELAY_NS);
        EQ(u.request_timeout_ns, NFSC_REQUEST_TIMEOUT_NS);
    }
}

static void parameters(void)
{
    struct nfsc_url u;
    const char *text = "nfs://h/d?uid=0&gid=2147483647&tcp-syncnt=127&debug=2&version=3&"
                       "auto-traverse-mounts=0&connections=7&reconnect-delay=0&"
                       "request-timeout=1.5&readahead-size=4096&page-cache-size=1";
    if (EQ(nfsc_url_parse(text, &u, NULL), 0)) {
        OK(u.has_uid && u.has_gid && !u.parents);
        EQ(u.uid, 0);
        EQ(u.gid, INT32_MAX);
        EQ(u.tcp_syncnt, 127);
        EQ(u.debug, 2);
        EQ(u.connections, 7);
        EQ(u.reconnect_delay_ns, 0);
        EQ(u.request_timeout_ns, 1500000000);
    }
}

struct bad {
    const char *text;
    int code;
    const char *says;
};

static const struct bad bad[] = {
    {"", EINVAL, "nfs://HOST/"},
    {"nfs:/h/d", EINVAL, "nfs://HOST/"},
    {"nfs://", EINVAL, "names no host"},
    {"nfs:///e/d", EINVAL, "names no host"},
    {"nfs://:3/d", EINVAL, "names no host"},
    {"nfs://[]/d", EINVAL, "names no host"},
    {"nfs://[::1/d", EINVAL, "without its ']'"},
    {"nfs://[::1]x/d", EINVAL, "something else"},
    {"nfs://h:/d", EINVAL, "port"},
    {"nfs://h:0/d", EINVAL, "port"},
    {"nfs://h:65536/d", EINVAL, "port"},
    {"nfs://h:123456789/d", EINVAL, "port"},
    {"nfs://h", EINVAL, "names no file"},
    {"nfs://h?uid=1", EINVAL, "names no file"},
    {"nfs://h/", EINVAL, "names no file"},
    {"nfs://h/e/", EINVAL, "names no file"},
    {"nfs://h/e/.", EINVAL, "\".\""},
    {"nfs://h/../e/d", EINVAL, "\"..\""},
    {"nfs://h/e/%2e%2E", EINVAL, "\"..\""},
    {"nfs://h/e%2Ff/d", EINVAL, "%2F"},
    {"nfs://h/e/d%00", EINVAL, "NUL"},
    {"nfs://h/e/d%", EINVAL, "hex digits"},
    {"nfs://h/e/d%4", EINVAL, "hex digits"},
    {"nfs://h/e/d%zz", EINVAL, "hex digits"},
    {"nfs://h/e/d#x", EINVAL, "#fragment"},
    {"nfs://h/e/d?version=4", ENOTSUP, "NFSv4"},
    {"nfs://h/e/d?version=2", EINVAL, "NFSv3"},
    {"nfs://h/e/d?version=x", EINVAL, "a number"},
    {"nfs://h/e/d?uid", EINVAL, "uid="},
    {"nfs://h/e/d?uid=-1", EINVAL, "uid=-1"},
    {"nfs://h/e/d?uid=2147483648", EINVAL, "uid=2147483648"},
    {"nfs://h/e/d?uid=1&uid=1", EINVAL, "twice"},
    {"nfs://h:1/e/d?nfsport=1", EINVAL, "both"},
    {"nfs://h/e/d?mountport=0", EINVAL, "from 1 to 65535"},
    {"nfs://h/e/d?tcp-syncnt=128", EINVAL, "from 1 to 127"},
    {"nfs://h/e/d?connections=0", EINVAL, "connections=0"},
    {"nfs://h/e/d?auto-traverse-mounts=2", EINVAL, "auto-traverse-mounts=2"},
    {"nfs://h/e/d?reconnect-delay=1x", EINVAL, "seconds"},
    {"nfs://h/e/d?request-timeout=0", EINVAL, "above zero"},
    {"nfs://h/e/d?usr=1", EINVAL, "usr is no parameter"},
    {"nfs://h/e/d?=1", EINVAL, "is no parameter"},
    {"nfs://h/e/d?a%01b=1", EINVAL, "a\\x01b is no parameter"},
    {"nfs://h/e/d?uid=111111111111111111111111111111111111111", ENAMETOOLONG, "longer than"},
};

static void bad_urls(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct nfsc_url u = {.tcp_syncnt = 99};
        struct error err = {0};
        bool ok = EQ(nfsc_url_parse(bad[i].text, &u, &err), -bad[i].code) &&
                  OK(strstr(err.text, bad[i].says)) && EQ(u.tcp_syncnt, 99);
        if (!ok) {
            printf("# %s: %s\n", bad[i].text, err.text);
        }
        nfsc_url_parse(bad[i].text, &u, NULL);
    }
}

static void long_parts(void)
{
    char text[3000] = "nfs://h/";
    struct nfsc_url u;
    memset(text + 8, 'f', NFSC_NAME_MAX);
    EQ(nfsc_url_parse(text, &u, NULL), 0);
    text[8 + NFSC_NAME_MAX] = 'f';
    EQ(nfsc_url_parse(text, &u, NULL), -ENAMETOOLONG);
    /* A folder of exactly NFSC_PATH_MAX bytes, and one more: parts of 1 + 127 bytes. */
    size_t n = 7;
    for (int i = 0; i < NFSC_PATH_MAX / 128; i++) {
        text[n] = '/';
        memset(text + n + 1, 'd', 127);
        n += 128;
    }
    memcpy(text + n, "/d", 3);
    if (EQ(nfsc_url_parse(text, &u, NULL), 0)) {
        EQ(strlen(u.folder), NFSC_PATH_MAX);
    }
    memcpy(text + n, "d/d", 4);
    EQ(nfsc_url_parse(text, &u, NULL), -ENAMETOOLONG);
    char host[400] = "nfs://";
    memset(host + 6, 'h', 256);
    memcpy(host + 262, "/d", 3);
    EQ(nfsc_url_parse(host, &u, NULL), -ENAMETOOLONG);
    memcpy(host + 261, "/d", 3);
    EQ(nfsc_url_parse(host, &u, NULL), 0);
}

int main(void)
{
    RUN(good_urls);
    RUN(defaults);
    RUN(parameters);
    RUN(bad_urls);
    RUN(long_parts);
    return tap_done();
}
