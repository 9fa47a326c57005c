/*
 * One function an item, in a table. Each reads its file or asks the kernel, judges, and says what
 * that means. The judgement's figures come from channel/sizing.h, so advice and policy agree.
 */
#include "tune/tune.h"

#include "channel/sizing.h"
#include "core/fileio.h"
#include "core/size.h"
#include "digest/blkhash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define OPEN_FILES_WANTED 4096u /* a thousand clients and their disks */
#define MEMLOCK_WANTED (64u << 20)

struct look {
    const char *root;
    struct tune_item *item;
};

/* ---- reading ---- */

/* The first line of root + path. 0 or -errno. */
static int read_line(const char *root, const char *path, char *buf, size_t size)
{
    char name[512];
    if (snprintf(name, sizeof(name), "%s%s", root, path) >= (int)sizeof(name)) {
        return -ENAMETOOLONG;
    }
    FILE *f = fopen(name, "re");
    if (!f) {
        return -errno;
    }
    bool got = fgets(buf, (int)size, f) != NULL;
    fclose(f);
    if (!got) {
        return -ENODATA;
    }
    buf[strcspn(buf, "\n")] = '\0';
    return 0;
}

static int read_number(const char *root, const char *path, uint64_t *ret)
{
    char line[64];
    int r = read_line(root, path, line, sizeof(line));
    return r == 0 ? number_parse(line, 0, UINT64_MAX, ret) : r;
}

static void unknown(struct tune_item *item, int r)
{
    item->state = TUNE_UNKNOWN;
    snprintf(item->value, sizeof(item->value), "%s", strerror(-r));
    snprintf(item->effect, sizeof(item->effect), "It can't be looked at here.");
}

static void say_bytes(char *buf, size_t size, uint64_t bytes)
{
    char text[SIZE_TEXT_MAX];
    snprintf(buf, size, "%" PRIu64 " (%s)", bytes, size_format(bytes, text));
}

static void advise_sysctl(struct tune_item *item, uint64_t wanted)
{
    snprintf(item->setting, sizeof(item->setting), "sysctl -w %s=%" PRIu64, item->name, wanted);
    snprintf(item->sysctl, sizeof(item->sysctl), "%s = %" PRIu64, item->name, wanted);
}

/* ---- sysctls that have a wanted size ---- */

static void look_wmem_max(struct look *l)
{
    struct tune_item *item = l->item;
    uint64_t value = 0;
    int r = read_number(l->root, "/proc/sys/net/core/wmem_max", &value);
    if (r < 0) {
        unknown(item, r);
        return;
    }
    char have[SIZE_TEXT_MAX], want[SIZE_TEXT_MAX];
    say_bytes(item->value, sizeof(item->value), value);
    say_bytes(item->wanted, sizeof(item->wanted), SIZING_UNIX_STREAM_WANTED);
    if (value >= SIZING_UNIX_STREAM_WANTED) {
        snprintf(item->effect, sizeof(item->effect),
                 "Unix sockets get the %s that penstock asks for.",
                 size_format(SIZING_UNIX_STREAM_WANTED, want));
        return;
    }
    item->state = TUNE_CLIPPED;
    snprintf(
        item->effect, sizeof(item->effect),
        "Unix sockets get %s of the %s wanted, unless the process may force it: copies over NBD "
        "can be 2 to 3 times slower.",
        size_format(value, have), size_format(SIZING_UNIX_STREAM_WANTED, want));
    advise_sysctl(item, SIZING_UNIX_STREAM_WANTED);
}

static void look_rmem_max(struct look *l)
{
    uint64_t value = 0;
    int r = read_number(l->root, "/proc/sys/net/core/rmem_max", &value);
    if (r < 0) {
        unknown(l->item, r);
        return;
    }
    l->item->state = TUNE_NOTED;
    say_bytes(l->item->value, sizeof(l->item->value), value);
    snprintf(l->item->effect, sizeof(l->item->effect),
             "The receive side of Unix streams is ignored by the kernel, and TCP tunes itself.");
}

static void look_pipe_max(struct look *l)
{
    struct tune_item *item = l->item;
    uint64_t value = 0;
    int r = read_number(l->root, "/proc/sys/fs/pipe-max-size", &value);
    if (r < 0) {
        unknown(item, r);
        return;
    }
    char have[SIZE_TEXT_MAX];
    say_bytes(item->value, sizeof(item->value), value);
    say_bytes(item->wanted, sizeof(item->wanted), SIZING_PIPE_WANTED);
    if (value >= SIZING_PIPE_WANTED) {
        snprintf(item->effect, sizeof(item->effect),
                 "Pipes get the 1 MiB that saving a VM gains from.");
        return;
    }
    item->state = TUNE_CLIPPED;
    snprintf(item->effect, sizeof(item->effect),
             "Pipes get %s of the 1 MiB wanted: saving a VM can be up to 4 times slower.",
             size_format(value, have));
    advise_sysctl(item, SIZING_PIPE_WANTED);
}

/* 0 means no limit (pipe(7)). Each pipe of 1 MiB takes 256 pages. */
static void look_pipe_pages(struct look *l)
{
    struct tune_item *item = l->item;
    uint64_t value = 0;
    int r = read_number(l->root, "/proc/sys/fs/pipe-user-pages-soft", &value);
    if (r < 0) {
        unknown(item, r);
        return;
    }
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pipes = value * page / SIZING_PIPE_WANTED;
    snprintf(item->value, sizeof(item->value), "%" PRIu64 " pages", value);
    snprintf(item->wanted, sizeof(item->wanted), "%" PRIu64 " pages",
             16 * SIZING_PIPE_WANTED / page);
    if (value == 0 || pipes >= 16) {
        snprintf(item->effect, sizeof(item->effect),
                 value ? "A user without privileges can have %" PRIu64 " pipes of 1 MiB."
                       : "No limit on a user's pipes.",
                 pipes);
        return;
    }
    item->state = TUNE_CLIPPED;
    snprintf(item->effect, sizeof(item->effect),
             "A user without privileges can have only %" PRIu64
             " pipes of 1 MiB; further ones stay "
             "small.",
             pipes);
    advise_sysctl(item, 64 * SIZING_PIPE_WANTED / page);
}

/* ---- what the process may do ---- */

static void look_sndbufforce(struct look *l)
{
    struct tune_item *item = l->item;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int size = 4096; /* less than any limit: only the right is asked for */
    bool may = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) == 0;
    if (fd >= 0) {
        close(fd);
    }
    item->state = TUNE_NOTED;
    snprintf(item->value, sizeof(item->value), may ? "allowed" : "refused");
    snprintf(item->effect, sizeof(item->effect),
             may ? "This process may go beyond net.core.wmem_max (CAP_NET_ADMIN)."
                 : "net.core.wmem_max limits this process (no CAP_NET_ADMIN).");
}

static void look_uring(struct look *l)
{
    struct tune_item *item = l->item;
    uint64_t disabled = 0;
    int r = fileio_uring_probe();
    if (r == 0) {
        snprintf(item->value, sizeof(item->value), "works");
        snprintf(item->effect, sizeof(item->effect), "File I/O goes through it.");
        return;
    }
    item->state = TUNE_CLIPPED;
    snprintf(item->value, sizeof(item->value), "refused: %s", strerror(-r));
    snprintf(item->wanted, sizeof(item->wanted), "allowed");
    bool by_sysctl = read_number(l->root, "/proc/sys/kernel/io_uring_disabled", &disabled) == 0 &&
                     disabled;
    snprintf(item->effect, sizeof(item->effect),
             "File I/O goes to a pool of threads, which costs CPU at high queue depths.");
    if (by_sysctl) {
        snprintf(item->setting, sizeof(item->setting), "sysctl -w kernel.io_uring_disabled=0");
        snprintf(item->sysctl, sizeof(item->sysctl), "kernel.io_uring_disabled = 0");
    } else {
        snprintf(
            item->setting, sizeof(item->setting),
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp "
            "profile");
    }
}

static void look_limit(struct look *l, int resource, uint64_t wanted, const char *flag,
                       const char *effect)
{
    struct tune_item *item = l->item;
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0) {
        unknown(item, -errno);
        return;
    }
    if (limit.rlim_cur == RLIM_INFINITY) {
        snprintf(item->value, sizeof(item->value), "unlimited");
    } else {
        snprintf(item->value, sizeof(item->value), "%" PRIu64, (uint64_t)limit.rlim_cur);
    }
    snprintf(item->wanted, sizeof(item->wanted), "%" PRIu64, wanted);
    if (limit.rlim_cur >= wanted) {
        snprintf(item->effect, sizeof(item->effect), "Enough.");
        return;
    }
    item->state = TUNE_CLIPPED;
    snprintf(item->effect, sizeof(item->effect), "%s", effect);
    snprintf(item->setting, sizeof(item->setting),
             "prlimit --pid $$ --%s=%" PRIu64 ", or Limit%s=%" PRIu64 " in the systemd unit", flag,
             wanted, resource == RLIMIT_NOFILE ? "NOFILE" : "MEMLOCK", wanted);
}

static void look_memlock(struct look *l)
{
    look_limit(l, RLIMIT_MEMLOCK, MEMLOCK_WANTED, "memlock",
               "Kernels before 5.12 count io_uring's rings against it.");
    if (l->item->state == TUNE_CLIPPED && fileio_uring_probe() == 0) {
        l->item->state = TUNE_NOTED; /* the ring works all the same */
    }
}

static void look_open_files(struct look *l)
{
    look_limit(l, RLIMIT_NOFILE, OPEN_FILES_WANTED, "nofile",
               "A server with many clients runs out of descriptors: new ones wait.");
}

/* ---- the machine ---- */

static void look_hugepages(struct look *l)
{
    uint64_t n = 0;
    int r = read_number(l->root, "/proc/sys/vm/nr_hugepages", &n);
    if (r < 0) {
        unknown(l->item, r);
        return;
    }
    l->item->state = TUNE_NOTED;
    snprintf(l->item->value, sizeof(l->item->value), "%" PRIu64, n);
    snprintf(l->item->effect, sizeof(l->item->effect),
             "Guests' memory on huge pages spares page walks; penstock itself needs none.");
}

static void look_thp(struct look *l)
{
    char line[96];
    int r = read_line(l->root, "/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line));
    if (r < 0) {
        unknown(l->item, r);
        return;
    }
    l->item->state = TUNE_NOTED;
    snprintf(l->item->value, sizeof(l->item->value), "%.90s", line);
    snprintf(
        l->item->effect, sizeof(l->item->effect),
        "The mode in brackets is on; penstock's buffers are recycled and hardly gain from it.");
}

static void look_vsock(struct look *l)
{
    int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = fd < 0 ? -errno : 0;
    if (fd >= 0) {
        close(fd);
    }
    l->item->state = TUNE_NOTED;
    snprintf(l->item->value, sizeof(l->item->value), r == 0 ? "there" : "not there: %s",
             strerror(-r));
    snprintf(l->item->effect, sizeof(l->item->effect),
             r == 0 ? "Guests can be reached at nbd+vsock://."
                    : "nbd+vsock:// endpoints can't be used (modprobe vhost_vsock).");
}

static void look_digests(struct look *l)
{
    struct digest *d;
    int r = digest_open("sha256", &d);
    if (r < 0) {
        unknown(l->item, r);
        return;
    }
    l->item->state = TUNE_NOTED;
    snprintf(l->item->value, sizeof(l->item->value), "%s", digest_engine(d));
    snprintf(l->item->effect, sizeof(l->item->effect),
             "How SHA-256 of whole blocks is computed on this CPU.");
    digest_free(d);
}

/* ---- the table ---- */

static const struct {
    const char *name, *what;
    void (*look)(struct look *l);
} table[] = {
    {"net.core.wmem_max", "largest send buffer of a socket", look_wmem_max},
    {"SO_SNDBUFFORCE", "right to go beyond it", look_sndbufforce},
    {"net.core.rmem_max", "largest receive buffer of a socket", look_rmem_max},
    {"fs.pipe-max-size", "largest pipe", look_pipe_max},
    {"fs.pipe-user-pages-soft", "memory of one user's pipes", look_pipe_pages},
    {"io_uring", "file I/O without threads", look_uring},
    {"memlock", "memory that may be locked", look_memlock},
    {"open files", "descriptors of this process", look_open_files},
    {"huge pages", "reserved huge pages", look_hugepages},
    {"transparent huge pages", "their mode", look_thp},
    {"vsock", "sockets between host and guest", look_vsock},
    {"sha256", "digests of blocks", look_digests},
};

#define TABLE_ITEMS (sizeof(table) / sizeof(table[0]))
_Static_assert(TABLE_ITEMS <= TUNE_ITEMS_MAX, "callers have room for TUNE_ITEMS_MAX");

size_t tune_look(const char *root, struct tune_item *items)
{
    for (size_t i = 0; i < TABLE_ITEMS; i++) {
        items[i] = (struct tune_item){.name = table[i].name, .what = table[i].what};
        struct look l = {root, &items[i]};
        table[i].look(&l);
    }
    return TABLE_ITEMS;
}

const char *tune_state_name(enum tune_state state)
{
    static const char *const names[] = {"fine", "clipped", "noted", "unknown"};
    return names[state];
}

int tune_write_sysctl(FILE *f, const struct tune_item *items, size_t n)
{
    fprintf(f, "# What penstock needs and this host clips (penstock tune).\n"
               "# Put it into /etc/sysctl.d and run: sysctl --system\n");
    for (size_t i = 0; i < n; i++) {
        if (items[i].sysctl[0]) {
            fprintf(f, "\n# %s\n%s\n", items[i].effect, items[i].sysctl);
        }
    }
    if (fflush(f) != 0) {
        return -errno;
    }
    return ferror(f) ? -EIO : 0;
}
