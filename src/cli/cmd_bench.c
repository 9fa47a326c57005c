/*
 * penstock bench nbd|io|pipe: the published measurements, made here.
 *
 * The benches start programs and fork, so the command does not run in a worker; `io` makes its own.
 */
#include "bench/bench.h"
#include "bench/sample.h"
#include "cli/command.h"
#include "cli/endpoint_cli.h"
#include "core/fiber.h"
#include "core/size.h"
#include "core/worker.h"
#include "volume/endpoint.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bench_cli {
    uint64_t size, rounds, block_size, run_ns, workers, max_pipe, read_percent;
    const char *against, *path, *depths, *csv, *html;
    unsigned pattern;
    bool json, write;
    struct endpoint_cli endpoint;
};

static const struct option_word pattern_words[] = {
    {"randread", IO_RANDREAD}, {"randwrite", IO_RANDWRITE}, {"randrw", IO_RANDRW},
    {"read", IO_READ},         {"write", IO_WRITE},         {},
};

/* clang-format off */
static const struct option_spec options[] = {
    {"size", 's', OPT_SIZE(struct bench_cli, size), "SIZE",
        "nbd, pipe: bytes to move a measurement.", .fallback = "1G", .min = 1 << 20,
        .max = (uint64_t)1 << 40},
    {"rounds", 'n', OPT_NUMBER(struct bench_cli, rounds), "N",
        "How often everything is measured, interleaved. The median is told.",
        .fallback = "5", .min = 1, .max = SAMPLE_ROUNDS_MAX},
    {"against", 0, OPT_STRING(struct bench_cli, against), "SERVER",
        "nbd: measure qemu-nbd, nbdkit, nbd-server, or a shell command that serves $disk at the "
        "Unix socket $socket."},
    {"path", 0, OPT_STRING(struct bench_cli, path), "PATH",
        "nbd: the folder of the disk; pipe: the file to write (it is overwritten and removed).",
        .fallback_help = "in /dev/shm", .complete = COMPLETE_FILE},
    {"max-pipe", 0, OPT_SIZE(struct bench_cli, max_pipe), "SIZE",
        "pipe: the largest pipe tried.", .fallback = "1M", .min = 4096, .max = 1 << 30},
    {"rw", 0, OPT_CHOICE(struct bench_cli, pattern), "PATTERN", "io: what is done.",
        .fallback = "randread", .words = pattern_words},
    {"block-size", 'b', OPT_SIZE(struct bench_cli, block_size), "SIZE",
        "io: bytes a request.", .fallback = "4K", .min = 1, .max = 64 << 20},
    {"depths", 'd', OPT_STRING(struct bench_cli, depths), "N,N...",
        "io: requests in flight on each endpoint.", .fallback = "1,2,4,8,16,32"},
    {"seconds", 't', OPT_SECONDS(struct bench_cli, run_ns), "SECONDS",
        "io: length of a measurement.", .fallback = "2", .max = 86400},
    {"read-percent", 0, OPT_NUMBER(struct bench_cli, read_percent), "N",
        "io: share of reads in randrw.", .fallback = "70", .max = 100},
    {"workers", 'w', OPT_NUMBER(struct bench_cli, workers), "N",
        "io: threads, each with an event loop and connections of its own.",
        .fallback = "auto", .words = (const struct option_word[]){{"auto", 0}, {}},
        .min = 1, .max = WORKERS_MAX},
    {"write", 0, OPT_FLAG(struct bench_cli, write),
        .help = "io: yes, overwrite what is in the endpoints."},
    {"json", 0, OPT_FLAG(struct bench_cli, json), .help = "Answer in JSON."},
    {"csv", 0, OPT_STRING(struct bench_cli, csv), "FILE", "Write the tables as CSV too.",
        .complete = COMPLETE_FILE},
    {"html", 0, OPT_STRING(struct bench_cli, html), "FILE",
        "Write one page with plots too; it needs nothing else.", .complete = COMPLETE_FILE},
    {OPT_INCLUDE(struct bench_cli, endpoint, endpoint_cli_options)},
    {},
};
/* clang-format on */

static volatile sig_atomic_t stopped;

static void stop(int number)
{
    stopped = number;
}

/* Signals end a bench between two measurements, with its files removed; what it waits for gets the
 * terminal's signal by itself. */
static void catch_signals(void)
{
    struct sigaction sa = {.sa_handler = stop};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

static int show_step(void *arg, unsigned done, unsigned steps, const char *what)
{
    const struct command_run *r = arg;
    if (!r->quiet && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K%u/%u %s", done + 1, steps, what);
    }
    return stopped;
}

static void clear_step(const struct command_run *r)
{
    if (!r->quiet && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K");
    }
}

/* ---- io ---- */

/* "1,2,4". 0 or -EINVAL. */
static int parse_depths(const char *text, unsigned *depths)
{
    char word[16];
    unsigned n = 0;
    while (*text) {
        size_t len = strcspn(text, ",");
        uint64_t value;
        if (len == 0 || len >= sizeof(word) || n == BENCH_IO_DEPTHS_MAX) {
            return -EINVAL;
        }
        memcpy(word, text, len);
        word[len] = '\0';
        if (number_parse(word, 1, 4096, &value) < 0) {
            return -EINVAL;
        }
        depths[n++] = (unsigned)value;
        text += len;
        if (*text == ',' && *++text == '\0') {
            return -EINVAL;
        }
    }
    return n ? 0 : -EINVAL;
}

struct io_job {
    const struct command_run *r;
    struct bench_io_options o;
    const struct bench_watch *watch;
    struct sheet *sheet;
    struct error *err;
};

static int open_volumes(struct io_job *job)
{
    const struct bench_cli *c = job->r->options;
    struct endpoint_options eo;
    endpoint_options_init(&eo);
    endpoint_cli_apply(&c->endpoint, &eo);
    eo.writable = c->write;
    for (unsigned i = 1; i < job->r->operands->count; i++) {
        int r = endpoint_open(job->r->operands->items[i], &eo,
                              &job->o.volumes[job->o.volumes_count], job->err);
        if (r < 0) {
            return r;
        }
        job->o.volumes_count++;
    }
    return 0;
}

static int run_io(void *arg)
{
    struct io_job *job = arg;
    const struct bench_cli *c = job->r->options;
    int r = workers_start((unsigned)c->workers, &job->o.workers);
    if (r < 0) {
        return error_set(job->err, -r, "no workers");
    }
    r = open_volumes(job);
    if (r == 0) {
        r = bench_io(&job->o, job->watch, job->sheet, job->err);
    }
    for (unsigned i = 0; i < job->o.volumes_count; i++) {
        volume_close(job->o.volumes[i]);
    }
    workers_stop(job->o.workers);
    return r;
}

static int bench_io_main(const struct command_run *r, const struct bench_watch *w, struct sheet *s,
                         struct error *err)
{
    const struct bench_cli *c = r->options;
    struct io_job job = {
        .r = r,
        .o = {.pattern = (enum bench_io_pattern)c->pattern,
              .block_size = (uint32_t)c->block_size,
              .run_ns = c->run_ns,
              .rounds = (unsigned)c->rounds,
              .read_percent = (unsigned)c->read_percent,
              .beside_published = c->pattern <= IO_RANDWRITE && c->block_size == 4096},
        .watch = w,
        .sheet = s,
        .err = err,
    };
    parse_depths(c->depths, job.o.depths); /* checked before */
    return worker_main(run_io, &job);
}

/* ---- all ---- */

static int write_file(const char *path, int (*print)(const struct sheet *s, FILE *f),
                      const struct sheet *s, struct error *err)
{
    FILE *f = path ? fopen(path, "we") : NULL;
    if (!path) {
        return 0;
    }
    int r = f ? print(s, f) : -errno;
    if (f && fclose(f) != 0 && r == 0) {
        r = -errno;
    }
    error_set(r < 0 ? err : NULL, r < 0 ? -r : EIO, "it can't be written");
    error_endpoint(r < 0 ? err : NULL, path);
    return r;
}

static int answer(const struct bench_cli *c, const struct sheet *s, struct error *err)
{
    int r = write_file(c->csv, sheet_print_csv, s, err);
    if (r == 0) {
        r = write_file(c->html, sheet_print_html, s, err);
    }
    if (r < 0) {
        return command_failed(err);
    }
    r = c->json ? sheet_print_json(s, stdout) : sheet_print_text(s, stdout);
    return command_flush(r < 0 ? EXIT_FAILED : EXIT_DONE);
}

/* What a table of options can't say. 0, or the exit code. */
static int check_use(const struct command_run *r)
{
    const struct bench_cli *c = r->options;
    const char *mode = r->operands->items[0];
    unsigned depths[BENCH_IO_DEPTHS_MAX];
    bool io = strcmp(mode, "io") == 0;
    if (!io && strcmp(mode, "nbd") != 0 && strcmp(mode, "pipe") != 0) {
        return command_misused(r, "\"%s\" is none of nbd, io, pipe", mode);
    }
    if (io != (r->operands->count > 1)) {
        return command_misused(r, io ? "an ENDPOINT is missing" : "%s takes no endpoint", mode);
    }
    if (r->operands->count - 1 > BENCH_IO_ENDPOINTS_MAX) {
        return command_misused(r, "more than %d endpoints", BENCH_IO_ENDPOINTS_MAX);
    }
    if (parse_depths(c->depths, depths) < 0) {
        return command_misused(r, "--depths: \"%.60s\" is no list of up to %d numbers", c->depths,
                               BENCH_IO_DEPTHS_MAX);
    }
    bool writes = c->pattern == IO_RANDWRITE || c->pattern == IO_WRITE || c->pattern == IO_RANDRW;
    if (io && writes && !c->write) {
        return command_misused(r, "that overwrites the endpoints: say --write");
    }
    return 0;
}

static int bench(struct command_run *r)
{
    const struct bench_cli *c = r->options;
    const char *mode = r->operands->items[0];
    const struct bench_watch watch = {show_step, r};
    struct sheet sheet;
    struct error err;
    error_clear(&err);

    int result = check_use(r);
    if (result != 0) {
        return result;
    }
    catch_signals();
    sheet_init(&sheet, "");
    if (strcmp(mode, "nbd") == 0) {
        const struct bench_nbd_options o = {c->size, (unsigned)c->rounds, c->path, c->against};
        result = bench_nbd(&o, &watch, &sheet, &err);
    } else if (strcmp(mode, "pipe") == 0) {
        const struct bench_pipe_options o = {c->size, (unsigned)c->rounds, c->path, c->max_pipe};
        result = bench_pipe(&o, &watch, &sheet, &err);
    } else {
        result = bench_io_main(r, &watch, &sheet, &err);
    }
    clear_step(r);
    if (result < 0) {
        error_set(&err, -result, "it can't be measured");
    }
    result = result < 0 ? command_failed(&err) : answer(c, &sheet, &err);
    sheet_done(&sheet);
    return result;
}

const struct command cmd_bench = {
    .name = "bench",
    .summary = "measure transports, servers and disks",
    .usage = (const char *const[]){"nbd [OPTION]...", "io [OPTION]... ENDPOINT...",
                                   "pipe [OPTION]...", NULL},
    .options = options,
    .options_size = sizeof(struct bench_cli),
    .operands = "nbd, io or pipe",
    .operands_min = 1,
    .operands_max = OPERANDS_ANY,
    .endpoints = true,
    .run = bench,
    .examples =
        (const struct command_example[]){
            {"penstock bench nbd", "What the send buffer of a Unix socket brings here."},
            {"penstock bench nbd --against qemu-nbd --html page.html",
             "The same with qemu-nbd as the server, and a page with plots."},
            {"penstock bench io --depths 1,32 nfs://server/export/a nfs://server/export/b",
             "Random reads of two drives at once."},
            {"penstock bench pipe --path /var/lib/vm.state",
             "What a larger pipe brings to saving a VM."},
            {NULL, NULL}},
};
