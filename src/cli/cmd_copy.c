/*
 * penstock copy SOURCE TARGET.
 */
#include "channel/sizing.h"
#include "cli/command.h"
#include "cli/endpoint_cli.h"
#include "cli/run.h"
#include "core/fiber.h"
#include "digest/blkhash.h"
#include "jobs/copy.h"
#include "jobs/sum_list.h"
#include "nbd/client.h"
#include "report/jsonout.h"
#include "report/progress.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum size_mismatch { SIZE_REFUSE, SIZE_OK };

struct copy_cli {
    uint64_t request_size, depth, workers, rate, sparse, pipe_size;
    bool target_is_zero, allocated, no_create, json;
    unsigned flush;
    unsigned size_mismatch; /* enum size_mismatch */
    const char *progress, *sum;
    struct endpoint_cli endpoint;
};

static const struct option_word automatic[] = {{"auto", 0}, {}};
static const struct option_word yes_no[] = {{"yes", 1}, {"no", 0}, {}};
static const struct option_word unlimited[] = {{"none", 0}, {}};
static const struct option_word mismatch_words[] = {
    {"refuse", SIZE_REFUSE},
    {"ok", SIZE_OK},
    {},
};

/* clang-format off */
static const struct option_spec options[] = {
    {"sparse", 'S', OPT_SIZE(struct copy_cli, sparse), "SIZE",
        "Look for zeros in the data, in blocks of this size, and do not write them as data. 0: "
        "copy data as it is.",
        .fallback = "4K", .max = COPY_REQUEST_MAX},
    {"allocated", 0, OPT_FLAG(struct copy_cli, allocated),
        .help = "Zeros take space in the target too: it gets no holes."},
    {"target-is-zero", 0, OPT_FLAG(struct copy_cli, target_is_zero),
        .help = "Trust that the target reads as zeros, and write none."},
    {"no-create", 'n', OPT_FLAG(struct copy_cli, no_create),
        .help = "The target must exist, and keeps its size."},
    {"size-mismatch", 0, OPT_CHOICE(struct copy_cli, size_mismatch), "WHAT",
        "A target that is larger than the source: refuse it, or ok: copy to its start and leave "
        "the rest as it is.",
        .fallback = "refuse", .words = mismatch_words},
    {"flush", 0, OPT_CHOICE(struct copy_cli, flush), "YES|NO",
        "Succeed only when the target is on stable storage. Streams and endpoints that can't flush "
        "have nothing to wait for.",
        .fallback = "yes", .bare = "yes", .words = yes_no},
    {"request-size", 'r', OPT_SIZE(struct copy_cli, request_size), "SIZE",
        "Bytes a request, made a power of two.",
        .fallback = "auto", .words = automatic, .min = COPY_REQUEST_MIN, .max = COPY_REQUEST_MAX},
    {"depth", 'd', OPT_NUMBER(struct copy_cli, depth), "N",
        "Requests in flight on each worker.",
        .fallback = "auto", .words = automatic, .min = 1, .max = COPY_DEPTH_MAX},
    {"workers", 'w', OPT_NUMBER(struct copy_cli, workers), "N",
        "Threads, each with connections of its own where the server allows that. Streams are "
        "copied by one.",
        .fallback = "auto", .words = automatic, .min = 1, .max = 64},
    {"rate", 0, OPT_SIZE(struct copy_cli, rate), "SIZE",
        "At most so many bytes of data a second.",
        .fallback = "none", .words = unlimited, .min = 1, .max = 1ull << 50},
    {"pipe-size", 0, OPT_SIZE(struct copy_cli, pipe_size), "SIZE",
        "Size of a pipe that is the source or the target. auto: 1M, or what the kernel grants.",
        .fallback = "auto", .words = socket_buffer_words, .min = 4096, .max = 1 << 30},
    {"sum", 0, OPT_STRING(struct copy_cli, sum), "DIGEST",
        "Print the checksum of SOURCE, computed on the way: what penstock sum prints for it, with "
        "this digest.", .bare = "sha256"},
    {"progress", 'p', OPT_STRING(struct copy_cli, progress), "FD",
        "Show the progress: auto, a bar if standard error is a terminal; or lines N/100 on a "
        "descriptor.",
        .fallback = "auto", .bare = "auto"},
    {"json", 0, OPT_FLAG(struct copy_cli, json),
        .help = "Say on standard output what was done, as JSON."},
    {OPT_INCLUDE(struct copy_cli, endpoint, endpoint_cli_options)},
    {},
};
/* clang-format on */

struct copy_command {
    const struct copy_cli *cli;
    struct copy_options options;
    struct copy_progress progress;
    struct copy_result result;
    struct error err;
    int status;
    struct fgroup group;
};

static void sample(void *arg, struct progress_sample *ret)
{
    struct copy_progress *p = arg;
    ret->done = p->done;
    ret->total = p->total;
}

static void job(void *arg)
{
    struct copy_command *c = arg;
    c->status = copy_run(&c->options, &c->progress, &c->result, &c->err);
}

static void on_signal(void *arg, int number)
{
    struct copy_command *c = arg;
    fgroup_cancel(&c->group);
    (void)number;
}

/* A second signal: the process ends now, and must not leave a file that looks complete. */
static void last_words(void *arg)
{
    struct copy_command *c = arg;
    copy_abandon(&c->options, &c->progress);
}

static int run_job(struct copy_command *c)
{
    struct run_signals *signals;
    fgroup_init(&c->group);
    int r = run_signals_start(on_signal, last_words, c, &signals);
    if (r < 0) {
        return r;
    }
    r = fgroup_spawn(&c->group, job, c);
    if (r == 0) {
        fgroup_wait(&c->group, true);
        r = c->status;
    }
    run_signals_stop(signals);
    return r;
}

static void json_sockets(struct jsonout *j, const char *key, const struct copy_sockets *s)
{
    if (s->connections == 0) {
        return;
    }
    jsonout_row(j, key);
    jsonout_number(j, "connections", s->connections);
    jsonout_number(j, "send_buffer_wanted", s->send_buffer_wanted);
    jsonout_number(j, "send_buffer_granted", s->send_buffer_granted);
    jsonout_number(j, "receives", s->receives);
    jsonout_end(j);
}

static void json_end_point(struct jsonout *j, const char *key, const char *name)
{
    char shown[ERROR_ENDPOINT_MAX];
    jsonout_string(j, key, endpoint_display(name, shown, sizeof(shown)));
}

static int print_json(const struct copy_command *c)
{
    const struct copy_result *r = &c->result;
    struct jsonout j;
    jsonout_start(&j, stdout);
    jsonout_object(&j, NULL);
    json_end_point(&j, "source", c->options.source);
    json_end_point(&j, "target", c->options.target);
    jsonout_number(&j, "bytes", r->total);
    jsonout_number(&j, "data_bytes", r->data);
    jsonout_number(&j, "zero_bytes", r->zero);
    jsonout_real(&j, "seconds", (double)r->duration_ns / 1e9);
    jsonout_number(&j, "request_size", r->request_size);
    jsonout_number(&j, "depth", r->depth);
    jsonout_number(&j, "workers", r->workers);
    json_sockets(&j, "source_sockets", &r->source_sockets);
    json_sockets(&j, "target_sockets", &r->target_sockets);
    if (r->sum_digest[0]) {
        char hex[SUM_HEX_MAX];
        jsonout_row(&j, "sum");
        jsonout_string(&j, "digest", r->sum_digest);
        jsonout_number(&j, "block_size", BLKHASH_BLOCK_DEFAULT);
        jsonout_string(&j, "value", sum_hex(r->sum, r->sum_length, hex));
        jsonout_end(&j);
    }
    jsonout_end(&j);
    return jsonout_finish(&j);
}

/* The line of `penstock sum`. */
static void print_sum(const struct copy_command *c)
{
    struct sum_line line = {.length = c->result.sum_length};
    char text[SUM_LINE_MAX];
    memcpy(line.want, c->result.sum, line.length);
    endpoint_display(c->options.source, line.name, sizeof(line.name));
    fputs(sum_line_format(&line, text), stdout); /* command_flush() sees a failure */
}

static void explain_target(const struct copy_command *c)
{
    char shown[ERROR_ENDPOINT_MAX];
    endpoint_display(c->options.target, shown, sizeof(shown));
    if (c->result.target_removed) {
        fprintf(stderr, "penstock: %s was made by this copy and is removed again\n", shown);
    } else if (c->result.target_incomplete) {
        fprintf(stderr, "penstock: %s is incomplete: it holds a part of the source\n", shown);
    }
}

static void set_options(struct copy_command *c, const struct operands *operands)
{
    const struct copy_cli *cli = c->cli;
    struct copy_options *o = &c->options;
    *o = (struct copy_options){
        .source = operands->items[0],
        .target = operands->items[1],
        .pipe_size = cli->pipe_size,
        .request_size = cli->request_size,
        .depth = (unsigned)cli->depth,
        .workers = (unsigned)cli->workers,
        .rate = cli->rate,
        .sum = cli->sum,
        .sparse = (uint32_t)cli->sparse,
        .target_is_zero = cli->target_is_zero,
        .allocated = cli->allocated,
        .no_create = cli->no_create,
        .size_mismatch = cli->size_mismatch == SIZE_OK,
        .no_flush = !cli->flush,
    };
    endpoint_cli_apply(&cli->endpoint, &o->source_options);
    endpoint_cli_apply(&cli->endpoint, &o->target_options);
}

/* 0, or an exit code. */
static int check_use(struct command_run *r, const struct copy_command *c)
{
    int fd;
    const char *said = c->cli->json ? "--json" : c->cli->sum ? "--sum" : NULL;
    if (said && endpoint_is_stream(c->options.target, true, &fd) && fd == 1) {
        return command_misused(r, "%s and the disk can't both go to standard output", said);
    }
    struct digest *digest = NULL;
    int e = c->cli->sum ? digest_open(c->cli->sum, &digest) : 0;
    digest_free(digest);
    if (e == -ENOENT || e == -ENOTSUP) {
        return command_misused(r,
                               "--sum: there is no digest \"%.60s\"; see penstock sum "
                               "--list-digests",
                               c->cli->sum);
    }
    return 0;
}

static int run_copy(struct command_run *r)
{
    struct copy_command c = {.cli = r->options};
    struct progress_options shown = {.label = "copy", .sample = sample, .arg = &c.progress};
    struct progress *progress = NULL;
    set_options(&c, r->operands);
    int misused = check_use(r, &c);
    if (misused != 0) {
        return misused;
    }
    if (progress_choose(c.cli->progress, r->quiet, &shown) < 0) {
        return command_misused(r, "--progress takes the number of an open descriptor");
    }
    int result = progress_start(&shown, &progress);
    if (result == 0) {
        result = run_job(&c);
    }
    progress_finish(progress, result == 0);
    if (result < 0) {
        error_set(&c.err, -result, "the copy could not be started");
        command_failed(&c.err);
        explain_target(&c);
        return EXIT_FAILED;
    }
    if (c.cli->json) {
        print_json(&c);
    } else if (c.result.sum_digest[0]) {
        print_sum(&c);
    }
    return command_flush(EXIT_DONE);
}

const struct command cmd_copy = {
    .name = "copy",
    .summary = "copy a disk, from and to any endpoint",
    .usage = (const char *const[]){"[OPTIONS] SOURCE TARGET", NULL},
    .options = options,
    .options_size = sizeof(struct copy_cli),
    .operands = "SOURCE and TARGET are",
    .operands_min = 2,
    .operands_max = 2,
    .endpoints = true,
    .in_worker = true,
    .run = run_copy,
    .examples =
        (const struct command_example[]){
            {"penstock copy nbd://host/disk disk.raw", "A disk from a server into a sparse file."},
            {"penstock copy disk.raw /dev/vg/disk --size-mismatch=ok",
             "To a device that may be larger."},
            {"zstdcat disk.zst | penstock copy - 'nbd+unix:///disk?socket=/run/nbd.sock'",
             "From a pipe to a server."},
            {},
        },
};
