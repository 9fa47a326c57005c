/* What is special about files: what is refused, sizes, locks, holes, the page cache, odd tails. */
#include "core/fiber.h"
#include "volume/file.h"
#include "volume_test.h"

#include <sys/socket.h>
#include <sys/un.h>

static struct endpoint_options options(bool writable)
{
    struct endpoint_options o;
    endpoint_options_init(&o);
    o.writable = writable;
    return o;
}

static int try_open(const char *path, const struct endpoint_options *o, struct error *err)
{
    struct volume *v = NULL;
    memset(err, 0, sizeof(*err));
    int r = endpoint_open(path, o, &v, err);
    volume_close(r == 0 ? v : NULL);
    return r;
}

static void refused(const char *path, bool writable, int code, const char *text)
{
    struct endpoint_options o = options(writable);
    struct error err;
    if (!EQ(try_open(path, &o, &err), -code) || !OK(strstr(err.text, text) != NULL)) {
        printf("# %s: %s\n", path, err.text);
    }
}

FIBER_TEST(what_is_no_disk)
{
    const char *fifo = in_folder("", "fifo");
    const char *sock = in_folder("", "sock");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", sock);
    OK(mkfifo(fifo, 0600) == 0 && bind(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    for (int writable = 0; writable < 2; writable++) {
        refused(test_folder, writable, EISDIR, "directory");
        refused(fifo, writable, EINVAL, "FIFO");
        refused(sock, writable, EINVAL, "socket");
        refused("/dev/zero", writable, EINVAL, "character device");
        refused(in_folder("", "missing"), writable, ENOENT, writable ? "writing" : "reading");
    }
    close(fd);
    unlink(fifo);
    unlink(sock);
}

FIBER_TEST(formats_are_not_guessed)
{
    static const struct {
        const char *format;
        const char *bytes;
        size_t at;
        size_t len;
    } rows[] = {
        {"qcow", "QFI\xfb", 0, 4},
        {"VMDK", "KDMV", 0, 4},
        {"VHDX", "vhdxfile", 0, 8},
        {"VDI", "\x7f\x10\xda\xbe", 64, 4},
        {"QED", "QED\0", 0, 4},
        {"LUKS", "LUKS\xba\xbe", 0, 6},
        {"Parallels", "WithoutFreeSpace", 0, 16},
    };
    const char *path = in_folder("", "image");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char head[512] = "";
        struct error err;
        memcpy(head + rows[i].at, rows[i].bytes, rows[i].len);
        make_file(path, head, sizeof(head), 65536);
        refused(path, true, EINVAL, rows[i].format);
        refused(path, true, EINVAL, "-f raw");
        struct endpoint_options o = options(false);
        EQ(try_open(path, &o, &err), 0);
        o = options(true);
        o.raw = true;
        EQ(try_open(path, &o, &err), 0);
    }
    make_file(path, "QF", 2, 2);
    struct error err;
    struct endpoint_options o = options(true);
    EQ(try_open(path, &o, &err), 0);
    unlink(path);
}

static uint64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : UINT64_MAX;
}

FIBER_TEST(made_and_sized)
{
    const char *path = in_folder("", "new");
    struct endpoint_options o = options(true);
    struct error err;
    struct volume *v = NULL;
    o.create = true;
    o.create_size = 12345;
    EQ(endpoint_open(path, &o, &v, NULL), 0);
    EQ(v->size, 12345);
    OK(volume_can(v, VOLUME_READS_ZERO) && volume_can(v, VOLUME_CAN_RESIZE));
    EQ(volume_resize(v, 20000, NULL), 0);
    EQ(v->size, 20000);
    EQ(volume_resize(v, 12345, NULL), 0);
    volume_close(v);
    EQ(size_of(path), 12345);

    /* It is there: kept as it is, unless a size is asked for. */
    o.create_size = 777;
    EQ(endpoint_open(path, &o, &v, NULL), 0);
    EQ(v->size, 12345);
    OK(!volume_can(v, VOLUME_READS_ZERO));
    EQ(volume_resize(v, 1, NULL), -ENOTSUP);
    volume_close(v);
    o.set_size = true;
    EQ(try_open(path, &o, &err), 0);
    EQ(size_of(path), 777);
    o.exclusive_create = true;
    EQ(try_open(path, &o, &err), -EEXIST);
    unlink(path);
    o.create_size = UINT64_MAX;
    OK(try_open(path, &o, &err) < 0);
    EQ(size_of(path), -1); /* what was made is removed when opening fails */
}

FIBER_TEST(locks)
{
    const char *path = in_folder("", "disk");
    struct endpoint_options read = options(false);
    struct endpoint_options write = options(true);
    struct endpoint_options free_read = options(false);
    struct volume *v = NULL;
    struct error err;
    free_read.lock = false;
    make_file(path, "", 0, 4096);
    EQ(endpoint_open(path, &write, &v, NULL), 0);
    EQ(try_open(path, &write, &err), -EBUSY);
    OK(strstr(err.text, "\"write\"") && strstr(err.text, "--no-lock"));
    EQ(try_open(path, &read, &err), -EBUSY);
    EQ(try_open(path, &free_read, &err), 0);
    volume_close(v);
    EQ(endpoint_open(path, &read, &v, NULL), 0);
    EQ(try_open(path, &read, &err), 0);
    EQ(try_open(path, &write, &err), -EBUSY);
    volume_close(v);
    EQ(try_open(path, &write, &err), 0);
    unlink(path);
}

FIBER_TEST(shrinks_and_grows_under_us)
{
    const char *path = in_folder("", "disk");
    struct endpoint_options o = options(true);
    struct error err = {0};
    static char buf[65536];
    struct volume *v = NULL;
    memset(buf, 'x', sizeof(buf));
    make_file(path, buf, sizeof(buf), 65536);
    for (int direct = 0; direct < 2; direct++) {
        o.cache = direct ? CACHE_NONE : CACHE_WRITEBACK;
        if (endpoint_open(path, &o, &v, NULL) < 0) {
            continue;
        }
        OK(truncate(path, 200000) == 0);
        EQ(volume_read(v, buf, 1, 65536, NULL), -EINVAL);
        EQ(volume_write(v, buf, 1, 65536, 0, NULL), -ENOSPC);
        OK(truncate(path, 8192) == 0);
        error_clear(&err);
        EQ(volume_read(v, buf, 65536, 0, &err), -EIO);
        EQ(err.offset, 8192);
        OK(strstr(err.text, "ends here") != NULL);
        EQ(volume_read(v, buf, 8192, 0, NULL), 0);
        struct extent e[3];
        int n = volume_extents(v, 0, 65536, e, 3, NULL);
        OK(n >= 1);
        volume_close(v);
        OK(truncate(path, 65536) == 0);
    }
    unlink(path);
}

FIBER_TEST(holes)
{
    const char *path = in_folder("", "disk");
    struct endpoint_options o = options(true);
    struct extent e[8];
    struct volume *v = NULL;
    static char buf[262144];
    memset(buf, 'x', sizeof(buf));
    make_file(path, "", 0, 4 << 20);
    EQ(endpoint_open(path, &o, &v, NULL), 0);
    EQ(volume_write(v, buf, sizeof(buf), 1 << 20, 0, NULL), 0);
    EQ(volume_extents(v, 0, 4 << 20, e, 8, NULL), 3);
    EQ(e[0].length, 1 << 20);
    EQ(e[0].flags, EXTENT_HOLE | EXTENT_ZERO);
    EQ(e[1].length, sizeof(buf));
    EQ(e[1].flags, 0);
    /* From the middle of the data, which is known by now. */
    EQ(volume_extents(v, (1 << 20) + 4096, 4096, e, 8, NULL), 1);
    EQ(e[0].length, 4096);
    EQ(e[0].flags, 0);
    /* What is punched is no longer known as data. */
    EQ(volume_zero(v, 1 << 20, sizeof(buf), ZERO_MAY_UNMAP, NULL), 0);
    EQ(volume_extents(v, (1 << 20) + 4096, 4096, e, 8, NULL), 1);
    EQ(e[0].flags, EXTENT_HOLE | EXTENT_ZERO);
    EQ(volume_write(v, buf, 1, 2 << 20, 0, NULL), 0);
    EQ(volume_extents(v, 2 << 20, 1, e, 8, NULL), 1);
    EQ(e[0].flags, 0);
    volume_close(v);
    unlink(path);
}

FIBER_TEST(lends_what_is_cached)
{
    const char *path = in_folder("", "disk");
    struct endpoint_options o = options(false);
    static char buf[65536];
    struct volume *v = NULL;
    struct lent lent;
    make_file(path, buf, sizeof(buf), 65536);
    EQ(endpoint_open(path, &o, &v, NULL), 0);
    EQ(volume_read(v, buf, sizeof(buf), 0, NULL), 0);
    /* First as the kernel likes it, then as if it had no cachestat(2). Memory may be so short that
     * nothing stays cached; then there is nothing to lend. */
    for (int i = 0; i < 2; i++) {
        if (volume_lend(v, 100, 50000, &lent) == 0) {
            OK(lent.fd >= 0);
            EQ(lent.offset, 100);
            EQ(lent.length, 50000);
        }
        atomic_store(&file_of(v)->no_cachestat, true);
    }
    EQ(volume_lend(v, 1, 65536, &lent), -EAGAIN);
    volume_close(v);
    setenv("PENSTOCK_NO_LEND", "1", 1);
    EQ(endpoint_open(path, &o, &v, NULL), 0);
    EQ(volume_lend(v, 100, 50000, &lent), -EAGAIN);
    volume_close(v);
    unsetenv("PENSTOCK_NO_LEND");
    unlink(path);
}

int main(void)
{
    folder_make();
    RUN(what_is_no_disk);
    RUN(formats_are_not_guessed);
    RUN(made_and_sized);
    RUN(locks);
    RUN(shrinks_and_grows_under_us);
    RUN(holes);
    RUN(lends_what_is_cached);
    folder_remove();
    bufpool_trim();
    return tap_done();
}
