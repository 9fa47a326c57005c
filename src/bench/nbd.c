/*
 * bench nbd: result 1, with processes of our own. For each send buffer a server and a client are
 * started, and the client reads the disk to null, writes it (in requests of 2 MiB, as QEMU does),
 * or sums it. With --against the server is somebody else's, which keeps its own buffers: then only
 * the client's side is swept.
 */
#include "bench/bench.h"

#include "bench/process.h"
#include "bench/published.h"
#include "bench/sample.h"
#include "core/size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define BUFFERS 5u
#define KINDS 3u
#define READY_TRIES 2000u /* of 5 ms */

static const char *const buffer_args[BUFFERS] = {"default", "512K", "1M", "2M", "4M"};

enum kind { KIND_READ, KIND_WRITE, KIND_SUM };

static const struct {
    const char *title;
    unsigned published;
} kinds[KINDS] = {
    {"penstock copy nbd+unix: to null:", PUBLISHED_READ},
    {"penstock copy memory file to nbd+unix:", PUBLISHED_WRITE},
    {"penstock sum nbd+unix:", PUBLISHED_BLKSUM},
};

struct place {
    char folder[128];
    char disk[160], target[160], socket[160];
    char uri[224];
};

struct measured {
    struct sample wall, user, sys, server_cpu, receives;
};

/* ---- the place ---- */

static int write_disk(const char *path, uint64_t size, struct error *err)
{
    enum { CHUNK = 1 << 20 };
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    uint64_t *buf = malloc(CHUNK);
    int r = fd < 0 ? -errno : buf ? 0 : -ENOMEM;
    uint64_t x = 88172645463325252u; /* xorshift64: nothing that zero detection can use */
    for (uint64_t at = 0; r == 0 && at < size;) {
        for (size_t i = 0; i < CHUNK / sizeof(*buf); i++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            buf[i] = x;
        }
        ssize_t n = write(fd, buf, (size_t)min_u64(CHUNK, size - at));
        r = n < 0 ? -errno : 0;
        at += n > 0 ? (uint64_t)n : 0;
    }
    free(buf);
    if (fd >= 0) {
        close(fd);
    }
    return r < 0 ? error_set(err, -r, "the disk can't be written: %s", path) : 0;
}

static int make_place(const struct bench_nbd_options *o, struct place *p, struct error *err)
{
    const char *base = o->folder ? o->folder : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    if (snprintf(p->folder, sizeof(p->folder), "%s/penstock-bench.XXXXXX", base) >=
        (int)sizeof(p->folder)) {
        return error_set(err, ENAMETOOLONG, "the folder's name is too long");
    }
    if (!mkdtemp(p->folder)) {
        return error_set(err, errno, "no folder can be made in %s", base);
    }
    snprintf(p->disk, sizeof(p->disk), "%s/disk", p->folder);
    snprintf(p->target, sizeof(p->target), "%s/target", p->folder);
    snprintf(p->socket, sizeof(p->socket), "%s/socket", p->folder);
    snprintf(p->uri, sizeof(p->uri), "nbd+unix:///?socket=%s", p->socket);
    int r = write_disk(p->disk, o->size, err);
    return r == 0 ? write_disk(p->target, o->size, err) : r;
}

static void remove_place(const struct place *p)
{
    unlink(p->disk);
    unlink(p->target);
    unlink(p->socket);
    char more[200];
    snprintf(more, sizeof(more), "%s/config", p->folder);
    unlink(more);
    rmdir(p->folder);
}

/* ---- servers ---- */

static char *word(const char *text)
{
    return (char *)(uintptr_t)text;
}

static bool listens(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

static int wait_ready(const char *path, const struct process *server, const char *name,
                      struct error *err)
{
    for (unsigned i = 0; i < READY_TRIES; i++) {
        if (listens(path)) {
            return 0;
        }
        if (process_has_ended(server)) {
            return error_set(err, ESRCH, "%s ended before it listened", name);
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return error_set(err, ETIMEDOUT, "%s does not listen", name);
}

static int write_nbd_server_config(const struct place *p, const char *disk, char *path, size_t size)
{
    snprintf(path, size, "%s/config", p->folder);
    FILE *f = fopen(path, "we");
    if (!f) {
        return -errno;
    }
    fprintf(f, "[generic]\n unixsock = %s\n allowlist = true\n[disk]\n exportname = %s\n",
            p->socket, disk);
    return fclose(f) == 0 ? 0 : -errno;
}

/*
 * In the foreground nbd-server serves one client only, so it becomes a daemon: a child of ours all
 * the same, since we are told to take in orphans.
 */
static int start_nbd_server(const struct place *p, const char *disk, struct process *ret,
                            struct error *err)
{
    char config[200], pid_file[200], text[32] = "";
    uint64_t pid = 0;
    int r = write_nbd_server_config(p, disk, config, sizeof(config));
    if (r < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        return error_set(err, r < 0 ? -r : errno, "nbd-server can't be set up");
    }
    snprintf(pid_file, sizeof(pid_file), "%s/pid", p->folder);
    unlink(pid_file);
    char *argv[] = {word("nbd-server"), word("-C"), config, word("-p"), pid_file, NULL};
    r = process_run(argv, NULL, NULL, err);
    for (unsigned i = 0; r == 0 && pid == 0 && i < READY_TRIES; i++) {
        FILE *f = fopen(pid_file, "re");
        if (f) {
            size_t n = fread(text, 1, sizeof(text) - 1, f);
            fclose(f);
            text[n] = '\0';
            text[strcspn(text, "\n")] = '\0';
            number_parse(text, 1, INT32_MAX, &pid);
        }
        if (pid == 0) {
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        }
    }
    unlink(pid_file);
    *ret = (struct process){.pid = (pid_t)pid, .name = "nbd-server", .out_fd = -1};
    return r == 0 && pid == 0 ? error_set(err, ETIMEDOUT, "nbd-server does not start") : r;
}

static int start_other(const char *against, const struct place *p, const char *disk,
                       struct process *ret, struct error *err)
{
    if (strcmp(against, "qemu-nbd") == 0) {
        char *argv[] = {word("qemu-nbd"), word("--persistent"), word("--shared=16"),
                        word("-f"),       word("raw"),          word("-k"),
                        word(p->socket),  word(disk),           NULL};
        return process_start(argv, -1, -1, -1, ret, err);
    }
    if (strcmp(against, "nbdkit") == 0) {
        char *argv[] = {word("nbdkit"), word("--foreground"), word("-U"), word(p->socket),
                        word("file"),   word(disk),           NULL};
        return process_start(argv, -1, -1, -1, ret, err);
    }
    if (strcmp(against, "nbd-server") == 0) {
        return start_nbd_server(p, disk, ret, err);
    }
    setenv("socket", p->socket, 1);
    setenv("disk", disk, 1);
    char *argv[] = {word("/bin/sh"), word("-c"), word(against), NULL};
    return process_start(argv, -1, -1, -1, ret, err);
}

static int start_server(const struct bench_nbd_options *o, const struct place *p, enum kind kind,
                        const char *buffer, struct process *ret, struct error *err)
{
    const char *disk = kind == KIND_WRITE ? p->target : p->disk;
    unlink(p->socket);
    int r;
    if (o->against) {
        r = start_other(o->against, p, disk, ret, err);
    } else {
        char *argv[] = {
            word(process_self), word("serve"),           word("-f"),   word("raw"), word("-U"),
            word(p->socket),    word("--socket-buffer"), word(buffer), word(disk),  NULL};
        r = process_start(argv, -1, -1, -1, ret, err);
    }
    if (r < 0) {
        return r;
    }
    r = wait_ready(p->socket, ret, o->against ? o->against : "penstock serve", err);
    if (r < 0) {
        process_stop(ret, NULL);
    }
    return r;
}

/* ---- clients ---- */

static uint64_t receives_of(const char *json)
{
    json_t *root = json_loads(json, 0, NULL);
    json_t *socket = json_object_get(root, "source_sockets");
    uint64_t n = (uint64_t)json_integer_value(json_object_get(socket, "receives"));
    json_decref(root);
    return n;
}

static int run_client(const struct place *p, const char *uri, enum kind kind, const char *buffer,
                      struct measured *m, struct error *err)
{
    char *read_argv[] = {word(process_self),
                         word("copy"),
                         word("--request-size=2M"),
                         word("--json"),
                         word("--socket-buffer"),
                         word(buffer),
                         word(uri),
                         word("null:"),
                         NULL};
    char *write_argv[] = {word(process_self),
                          word("copy"),
                          word("--request-size=2M"),
                          word("--json"),
                          word("-n"),
                          word("--socket-buffer"),
                          word(buffer),
                          word(p->disk),
                          word(uri),
                          NULL};
    char *sum_argv[] = {word(process_self), word("sum"), word("--socket-buffer"),
                        word(buffer),       word(uri),   NULL};
    char *const *argvs[KINDS] = {read_argv, write_argv, sum_argv};
    struct cost cost;
    char *output = NULL;
    int r = process_run(argvs[kind], &output, &cost, err);
    if (r < 0) {
        return r;
    }
    sample_add(&m->wall, cost.wall_s);
    sample_add(&m->user, cost.user_s);
    sample_add(&m->sys, cost.sys_s);
    if (kind == KIND_READ) {
        sample_add(&m->receives, (double)receives_of(output));
    }
    free(output);
    return 0;
}

static int measure(const struct bench_nbd_options *o, const struct place *p, enum kind kind,
                   unsigned buffer, struct measured *m, struct error *err)
{
    struct process server;
    struct cost cost = {0};
    int r = start_server(o, p, kind, buffer_args[buffer], &server, err);
    if (r < 0) {
        return r;
    }
    char uri[256];
    bool named = o->against && strcmp(o->against, "nbd-server") == 0;
    snprintf(uri, sizeof(uri), "nbd+unix:///%s?socket=%s", named ? "disk" : "", p->socket);
    r = run_client(p, uri, kind, buffer_args[buffer], m, err);
    process_stop(&server, &cost);
    sample_add(&m->server_cpu, cost.user_s + cost.sys_s);
    return r;
}

/* ---- the sheet ---- */

static const struct sheet_column columns[] = {
    {"send buffer", "send_buffer", -1},
    {"time", "seconds", 3},
    {"user", "user", 3},
    {"system", "system", 3},
    {"server CPU", "server_cpu", 3},
    {"GiB/s", "gib_s", 2},
    {"spread %", "spread_percent", 0},
    {"receives a MiB", "receives_a_mib", 2},
    {"ratio", "ratio", 2},
    {"published time", "published_seconds", 3},
    {"published ratio", "published_ratio", 2},
    {"nbdcopy, published", "published_nbdcopy_ratio", 2},
    {NULL, NULL, 0},
};

static int fill_table(const struct bench_nbd_options *o, struct sheet *s, enum kind kind,
                      const struct measured m[BUFFERS])
{
    struct sheet_table *t = sheet_add_table(s, columns);
    if (!t) {
        return -ENOMEM;
    }
    const struct published_nbd *p = &published_nbd[kinds[kind].published];
    snprintf(t->title, sizeof(t->title), "%s%s%s", kinds[kind].title,
             o->against ? ", server: " : "", o->against ? o->against : "");
    snprintf(t->note, sizeof(t->note), "Published: %s (QEMU 2025, a VM on an M2 Max).", p->title);
    t->plot_columns[0] = 8;
    t->plot_columns[1] = 10;
    for (unsigned i = 0; i < BUFFERS; i++) {
        struct sheet_row *row = sheet_add_row(t);
        if (!row) {
            return -ENOMEM;
        }
        double wall = sample_median(&m[i].wall);
        sheet_text(row, 0, "%s", buffer_args[i]);
        sheet_number(row, 1, wall);
        sheet_number(row, 2, sample_median(&m[i].user));
        sheet_number(row, 3, sample_median(&m[i].sys));
        sheet_number(row, 4, sample_median(&m[i].server_cpu));
        sheet_number(row, 5, (double)o->size / (1 << 30) / wall);
        sheet_number(row, 6, sample_spread(&m[i].wall));
        if (kind == KIND_READ) {
            sheet_number(row, 7, sample_median(&m[i].receives) / ((double)o->size / (1 << 20)));
        }
        sheet_number(row, 8, sample_median(&m[0].wall) / wall);
        sheet_number(row, 9, p->rows[i].time_s);
        sheet_number(row, 10, p->rows[0].time_s / p->rows[i].time_s);
        if (kind == KIND_SUM) {
            const struct published_nbd *nbdcopy = &published_nbd[PUBLISHED_NBDCOPY_SUM];
            sheet_number(row, 11, nbdcopy->rows[0].time_s / nbdcopy->rows[i].time_s);
        }
    }
    return 0;
}

static int run_rounds(const struct bench_nbd_options *o, const struct bench_watch *w,
                      const struct place *p, struct measured (*m)[BUFFERS], struct error *err)
{
    unsigned step = 0, steps = o->rounds * KINDS * BUFFERS;
    for (unsigned round = 0; round < o->rounds; round++) {
        for (unsigned kind = 0; kind < KINDS; kind++) {
            for (unsigned b = 0; b < BUFFERS; b++) {
                int r = bench_step(w, step, steps, kinds[kind].title, err);
                step++;
                r = r < 0 ? r : measure(o, p, (enum kind)kind, b, &m[kind][b], err);
                if (r < 0) {
                    return r;
                }
            }
        }
    }
    return 0;
}

int bench_nbd(const struct bench_nbd_options *o, const struct bench_watch *w, struct sheet *s,
              struct error *err)
{
    struct place p = {.folder = ""};
    struct measured(*m)[BUFFERS] = calloc(KINDS, sizeof(*m));
    sheet_init(s, "NBD over a Unix socket, by the size of the send buffer");
    sheet_about_host(s);
    int r = m ? make_place(o, &p, err) : error_set(err, ENOMEM, "out of memory");
    if (r == 0) {
        r = run_rounds(o, w, &p, m, err);
    }
    for (unsigned kind = 0; kind < KINDS && r == 0; kind++) {
        r = fill_table(o, s, (enum kind)kind, m[kind]);
    }
    if (p.folder[0]) {
        remove_place(&p);
    }
    free(m);
    return r < 0 ? error_set(err, -r, "out of memory") : 0;
}
