/*
 * bench pipe: result 4. A producer process writes a stream as QEMU does (writev of 32 pages, each
 * with 8 bytes before it, from memory that is not in the cache), this process moves it from the
 * pipe into a file, by read and write or by splice, with and without O_DIRECT.
 */
#include "bench/bench.h"

#include "bench/process.h"
#include "bench/published.h"
#include "bench/sample.h"
#include "channel/sizing.h"
#include "core/size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u
#define PAGES_A_WRITE 32u
#define PRODUCER_MEMORY (256u << 20)
#define BUFFER (1u << 20)
#define SIZES_MAX 10u

enum way { WAY_READ_WRITE, WAY_READ_WRITE_DIRECT, WAY_SPLICE, WAYS };

static const char *const way_names[WAYS] = {"read and write", "read and write, O_DIRECT", "splice"};

struct measured {
    struct sample rate, cpu, switches;
    uint64_t granted;
    bool refused;
};

/* ---- the producer, a child ---- */

static int write_group(int fd, struct iovec *iov, int n)
{
    while (n > 0) {
        ssize_t done = writev(fd, iov, n);
        if (done < 0) {
            return -errno;
        }
        while (n > 0 && (size_t)done >= iov->iov_len) {
            done -= (ssize_t)iov->iov_len;
            iov++;
            n--;
        }
        if (n > 0) {
            iov->iov_base = (char *)iov->iov_base + done;
            iov->iov_len -= (size_t)done;
        }
    }
    return 0;
}

static int produce(int fd, uint64_t size, char *memory)
{
    char header[8] = "page...";
    struct iovec iov[2 * PAGES_A_WRITE];
    uint64_t at = 0, group = PAGES_A_WRITE * (PAGE + sizeof(header));
    while (size >= group) {
        for (unsigned i = 0; i < PAGES_A_WRITE; i++, at = (at + PAGE) % PRODUCER_MEMORY) {
            iov[2 * i] = (struct iovec){header, sizeof(header)};
            iov[2 * i + 1] = (struct iovec){memory + at, PAGE};
        }
        int r = write_group(fd, iov, 2 * PAGES_A_WRITE);
        if (r < 0) {
            return r;
        }
        size -= group;
    }
    iov[0] = (struct iovec){memory, (size_t)size};
    return size ? write_group(fd, iov, 1) : 0;
}

/* ---- the consumer ---- */

static ssize_t fill(int fd, char *buf, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = read(fd, buf + done, len - done);
        if (n < 0) {
            return -errno;
        }
        if (n == 0) {
            break;
        }
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static int read_write(int in, int out, char *buf, uint64_t *moved)
{
    ssize_t n;
    while ((n = fill(in, buf, BUFFER)) > 0) {
        if (n % PAGE) {
            fcntl(out, F_SETFL, fcntl(out, F_GETFL) & ~O_DIRECT); /* the odd tail */
        }
        for (ssize_t done = 0; done < n;) {
            ssize_t w = write(out, buf + done, (size_t)(n - done));
            if (w < 0) {
                return -errno;
            }
            done += w;
        }
        *moved += (uint64_t)n;
    }
    return (int)n;
}

static int splice_all(int in, int out, uint64_t *moved)
{
    ssize_t n;
    while ((n = splice(in, NULL, out, NULL, BUFFER, SPLICE_F_MOVE)) > 0) {
        *moved += (uint64_t)n;
    }
    return n < 0 ? -errno : 0;
}

/* ---- one measurement ---- */

struct bench {
    const struct bench_pipe_options *o;
    const char *path;
    char *memory, *buf;
};

static double cpu_of(const struct rusage *u)
{
    return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
           (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec) / 1e6;
}

static int consume(struct bench *b, int in, enum way way, uint64_t *moved)
{
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    int out = open(b->path, flags | (way == WAY_READ_WRITE_DIRECT ? O_DIRECT : 0), 0600);
    if (out < 0) {
        return -errno;
    }
    int r = way == WAY_SPLICE ? splice_all(in, out, moved) : read_write(in, out, b->buf, moved);
    if (r == 0 && fdatasync(out) != 0 && errno != EINVAL && errno != EROFS) {
        r = -errno;
    }
    close(out);
    return r;
}

static int child(const struct bench *b, int ends[2])
{
    close(ends[0]);
    return produce(ends[1], b->o->size, b->memory) < 0 ? 1 : 0;
}

static int measure(struct bench *b, enum way way, uint64_t pipe_size, struct measured *m,
                   struct error *err)
{
    int ends[2], status = 0;
    struct sizing sizing;
    struct rusage before = {0}, after = {0}, theirs = {0};
    uint64_t moved = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return error_set(err, errno, "no pipe");
    }
    sizing_pipe(ends[0], pipe_size, &sizing);
    m->granted = sizing.granted;
    getrusage(RUSAGE_SELF, &before);
    double start = process_now_s();
    pid_t pid = fork();
    if (pid == 0) {
        _exit(child(b, ends));
    }
    int r = pid < 0 ? -errno : 0;
    close(ends[1]);
    if (r == 0) {
        r = consume(b, ends[0], way, &moved);
    }
    close(ends[0]);
    if (pid > 0) {
        wait4(pid, &status, 0, &theirs);
    }
    double seconds = process_now_s() - start;
    getrusage(RUSAGE_SELF, &after);
    if (way == WAY_READ_WRITE_DIRECT && r == -EINVAL) {
        m->refused = true; /* a file system without O_DIRECT */
        return 0;
    }
    if (r < 0 || moved != b->o->size) {
        error_set(err, r < 0 ? -r : EIO, "the stream can't be written");
        error_endpoint(err, b->path);
        return r < 0 ? r : -EIO;
    }
    double gib = (double)moved / (1 << 30);
    sample_add(&m->rate, gib / seconds);
    sample_add(&m->cpu, (cpu_of(&after) - cpu_of(&before) + cpu_of(&theirs)) / gib);
    long switches = after.ru_nvcsw - before.ru_nvcsw + theirs.ru_nvcsw;
    sample_add(&m->switches, (double)switches / gib);
    return 0;
}

/* ---- the sheet ---- */

static const struct sheet_column columns[] = {
    {"pipe", "pipe", -1},
    {"granted", "granted", -1},
    {"GiB/s", "gib_s", 3},
    {"spread %", "spread_percent", 0},
    {"CPU s a GiB", "cpu_a_gib", 3},
    {"wake-ups a GiB", "wakeups_a_gib", 0},
    {"ratio", "ratio", 2},
    {"published Gbit/s", "published_gbit_s", 1},
    {"published ratio", "published_ratio", 2},
    {NULL, NULL, 0},
};

static double published_rate(uint64_t size)
{
    for (unsigned i = 0; i < PUBLISHED_PIPE; i++) {
        if (published_pipe[i].size == size) {
            return published_pipe[i].gbit_s;
        }
    }
    return 0;
}

/* Ratios are to 64 KiB, which is what a pipe is by itself. */
static int fill_table(struct sheet *s, enum way way, const uint64_t *sizes, unsigned n,
                      const struct measured *m)
{
    struct sheet_table *t = sheet_add_table(s, columns);
    double base = 0;
    if (!t) {
        return -ENOMEM;
    }
    snprintf(t->title, sizeof(t->title), "into a file by %s", way_names[way]);
    snprintf(t->note, sizeof(t->note),
             m[0].refused
                 ? "This file system refuses O_DIRECT."
                 : "Published: virsh save to /dev/null on a machine with many cores (2022).");
    t->plot_columns[0] = 2;
    for (unsigned i = 0; i < n; i++) {
        base = sizes[i] == 64u << 10 ? sample_median(&m[i].rate) : base;
    }
    for (unsigned i = 0; i < n && !m[0].refused; i++) {
        struct sheet_row *row = sheet_add_row(t);
        char text[SIZE_TEXT_MAX];
        if (!row) {
            return -ENOMEM;
        }
        double published = published_rate(sizes[i]);
        sheet_text(row, 0, "%s", size_format(sizes[i], text));
        sheet_text(row, 1, "%s", size_format(m[i].granted, text));
        sheet_number(row, 2, sample_median(&m[i].rate));
        sheet_number(row, 3, sample_spread(&m[i].rate));
        sheet_number(row, 4, sample_median(&m[i].cpu));
        sheet_number(row, 5, sample_median(&m[i].switches));
        if (base > 0) {
            sheet_number(row, 6, sample_median(&m[i].rate) / base);
        }
        if (published > 0) {
            sheet_number(row, 7, published);
            sheet_number(row, 8, published / published_pipe[0].gbit_s);
        }
    }
    return 0;
}

static unsigned choose_sizes(uint64_t max, uint64_t *sizes)
{
    static const uint64_t wanted[] = {4096,       16u << 10, 64u << 10, 128u << 10, 256u << 10,
                                      512u << 10, 1u << 20,  2u << 20,  4u << 20,   16u << 20};
    unsigned n = 0;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]) && n < SIZES_MAX; i++) {
        if (wanted[i] <= max) {
            sizes[n++] = wanted[i];
        }
    }
    return n;
}

static int run_rounds(struct bench *b, const struct bench_watch *w, const uint64_t *sizes,
                      unsigned n, struct measured (*m)[SIZES_MAX], struct error *err)
{
    unsigned step = 0, steps = b->o->rounds * n * WAYS;
    for (unsigned round = 0; round < b->o->rounds; round++) {
        for (unsigned i = 0; i < n; i++) {
            for (unsigned way = 0; way < WAYS; way++) {
                int r = bench_step(w, step, steps, way_names[way], err);
                step++;
                r = r < 0 ? r : measure(b, (enum way)way, sizes[i], &m[way][i], err);
                if (r < 0) {
                    return r;
                }
            }
        }
    }
    return 0;
}

int bench_pipe(const struct bench_pipe_options *o, const struct bench_watch *w, struct sheet *s,
               struct error *err)
{
    char own[] = "/dev/shm/penstock-bench.XXXXXX";
    uint64_t sizes[SIZES_MAX];
    unsigned n = choose_sizes(o->max_pipe, sizes);
    struct bench b = {.o = o, .path = o->path};
    struct measured(*m)[SIZES_MAX] = calloc(WAYS, sizeof(*m));
    b.memory = aligned_alloc(PAGE, PRODUCER_MEMORY);
    b.buf = aligned_alloc(PAGE, BUFFER);
    int r = m && b.memory && b.buf ? 0 : error_set(err, ENOMEM, "out of memory");
    sheet_init(s, "A stream through a pipe into a file, by the size of the pipe");
    sheet_about_host(s);
    if (r == 0 && !o->path) {
        int fd = mkostemp(own, O_CLOEXEC);
        r = fd < 0 ? error_set(err, errno, "no file can be made in /dev/shm: use --path") : 0;
        if (fd >= 0) {
            close(fd);
        }
        b.path = own;
    }
    if (r == 0) {
        memset(b.memory, 0x5a, PRODUCER_MEMORY);
        r = run_rounds(&b, w, sizes, n, m, err);
    }
    for (unsigned way = 0; way < WAYS && r == 0; way++) {
        r = fill_table(s, (enum way)way, sizes, n, m[way]);
    }
    struct stat st;
    if (b.path && stat(b.path, &st) == 0 && S_ISREG(st.st_mode)) {
        unlink(b.path);
    }
    free(b.memory);
    free(b.buf);
    free(m);
    return r < 0 ? error_set(err, -r, "out of memory") : 0;
}
