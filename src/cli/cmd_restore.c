/*
 * penstock restore FILE: a VM's state from a disk to standard output.
 */
#include "cli/command.h"
#include "cli/pipe_cli.h"
#include "cli/run.h"
#include "jobs/save.h"
#include "jobs/sidecar.h"
#include "report/jsonout.h"
#include "report/progress.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct restore_cli {
    uint64_t fd;
    bool direct, digest, as_is, json;
    uint64_t offset, rate, threads, pipe_size;
    const char *progress;
};

static const struct option_word none_is_zero[] = {{"none", 0}, {}};
static const struct option_word auto_is_zero[] = {{"auto", 0}, {}};

/* clang-format off */
static const struct option_spec options[] = {
    {"direct", 0, OPT_FLAG(struct restore_cli, direct),
        .help = "Bypass the page cache (O_DIRECT, several reads deep)."},
    {"offset", 0, OPT_SIZE(struct restore_cli, offset), "SIZE",
        "Start at this byte of FILE.", .fallback = "0"},
    {"digest", 0, OPT_FLAG(struct restore_cli, digest),
        .help = "Check the stream against FILE.blkhash or the digest in a compressed file, and "
        "fail where there is neither. A digest inside of a compressed file is always checked."},
    {"as-is", 0, OPT_FLAG(struct restore_cli, as_is),
        .help = "Give the bytes of FILE, do not expand a compressed one."},
    {"threads", 0, OPT_NUMBER(struct restore_cli, threads), "N",
        "Threads that expand.", .fallback = "auto", .words = auto_is_zero, .min = 1, .max = 64},
    {"rate", 0, OPT_SIZE(struct restore_cli, rate), "SIZE",
        "Give no more than so many bytes a second.", .fallback = "none", .words = none_is_zero},
    {"fd", 0, OPT_NUMBER(struct restore_cli, fd), "N",
        "Write the stream to this descriptor instead of standard output.",
        .fallback = "1", .max = INT32_MAX},
    {"pipe-size", 0, OPT_SIZE(struct restore_cli, pipe_size), "SIZE",
        "Size of the pipe that the stream goes to. auto: 1M, halved while the kernel refuses.",
        .fallback = "auto", .words = pipe_size_words, .min = 4096, .max = 1 << 30},
    {"progress", 0, OPT_STRING(struct restore_cli, progress), "FD",
        "Show how far it is: a bar on a terminal, lines on a descriptor.", .bare = "auto"},
    {"json", 0, OPT_FLAG(struct restore_cli, json),
        .help = "Say on standard error how it went, as JSON (standard output is the stream)."},
    {},
};
/* clang-format on */

struct restoring {
    struct restore_options o;
    struct restore_result result;
    struct error err;
    _Atomic uint64_t done, total;
    uint8_t expected[SAVE_DIGEST_MAX];
};

static int run_restore(void *arg)
{
    struct restoring *s = arg;
    return restore_run(&s->o, &s->result, &s->err);
}

static void sample(void *arg, struct progress_sample *ret)
{
    struct restoring *s = arg;
    *ret = (struct progress_sample){.done = atomic_load(&s->done), .total = atomic_load(&s->total)};
}

static int print_json(const struct restoring *s, const struct sizing *pipe)
{
    struct jsonout j;
    const struct restore_result *r = &s->result;
    jsonout_start(&j, stderr);
    jsonout_object(&j, NULL);
    jsonout_string(&j, "file", s->o.name);
    jsonout_number(&j, "bytes", r->bytes);
    jsonout_real(&j, "seconds", (double)r->elapsed_ns / 1e9);
    jsonout_string(&j, "way", r->way);
    jsonout_string(&j, "compress", r->codec);
    jsonout_bool(&j, "verified", r->verified);
    jsonout_number(&j, "pipe_wanted", pipe->wanted);
    jsonout_number(&j, "pipe_granted", pipe->granted);
    jsonout_real(&j, "waited_for_consumer", (double)r->consumer_wait_ns / 1e9);
    jsonout_end(&j);
    return jsonout_finish(&j) < 0 ? EXIT_FAILED : EXIT_DONE;
}

static int find_digest(struct restoring *s)
{
    struct error err;
    error_clear(&err);
    int n = sidecar_read(s->o.name, s->expected, sizeof(s->expected), &err);
    s->o.require_digest = true;
    if (n == -ENOENT) {
        return 0; /* compressed files have theirs inside */
    }
    if (n < 0) {
        s->err = err;
        return n;
    }
    s->o.expected = s->expected;
    s->o.expected_len = (size_t)n;
    return 0;
}

static int restore(struct command_run *r)
{
    const struct restore_cli *c = r->options;
    struct restoring s = {.err.code = 0};
    struct progress_options po = {.label = "restore", .sample = sample, .arg = &s};
    struct progress *progress = NULL;
    struct sizing pipe;
    bool interrupted = false;

    error_clear(&s.err);
    s.o = (struct restore_options){
        .name = r->operands->items[0],
        .fd = -1,
        .out_fd = (int)c->fd,
        .offset = c->offset,
        .direct = c->direct,
        .as_is = c->as_is,
        .rate = c->rate,
        .threads = (unsigned)c->threads,
        .progress = &s.done,
        .total = &s.total,
    };
    if (progress_choose(c->progress, r->quiet, &po) < 0) {
        return command_misused(r, "--progress: \"%s\" is no open descriptor", c->progress);
    }
    if (c->digest && find_digest(&s) < 0) {
        return command_failed(&s.err);
    }
    pipe_cli_size(s.o.out_fd, c->pipe_size, &pipe);
    progress_start(&po, &progress);
    int result = run_interruptible(run_restore, &s, &interrupted);
    progress_finish(progress, result == 0);
    if (result < 0) {
        error_set(&s.err, -result, "it can't be restored");
        return command_failed(&s.err);
    }
    return c->json ? print_json(&s, &pipe) : EXIT_DONE;
}

const struct command cmd_restore = {
    .name = "restore",
    .summary = "give a saved VM's state to standard output",
    .usage = (const char *const[]){"[OPTION]... FILE", NULL},
    .options = options,
    .options_size = sizeof(struct restore_cli),
    .operands = "FILE",
    .operands_min = 1,
    .operands_max = 1,
    .endpoints = true,
    .in_worker = true,
    .run = restore,
    .examples =
        (const struct command_example[]){
            {"qemu-system-x86_64 ... -incoming 'exec:penstock restore /var/lib/vm.state'",
             "QEMU reads its state through penstock; compressed files are expanded."},
            {NULL, NULL}},
};
