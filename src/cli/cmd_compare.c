/*
 * penstock compare: whether two disks hold the same bytes (jobs/compare.h).
 */
#include "cli/command.h"
#include "cli/compare_leaves.h"
#include "cli/endpoint_cli.h"
#include "cli/run.h"
#include "core/fiber.h"
#include "jobs/compare.h"
#include "jobs/crew.h"
#include "report/jsonout.h"
#include "report/progress.h"

#include <errno.h>
#include <stdio.h>

struct compare_cli {
    struct endpoint_cli endpoint;
    uint64_t request_size, depth, workers;
    const char *progress;
    bool strict, json, leaves;
};

static const struct option_word automatic[] = {{"auto", 0}, {}};

/* clang-format off */
static const struct option_spec options[] = {
    {"strict", 's', OPT_FLAG(struct compare_cli, strict),
        .help = "Disks of different sizes differ, even if the longer one has only zeros there."},
    {"json", 0, OPT_FLAG(struct compare_cli, json), .help = "Answer in JSON."},
    {"leaves", 0, OPT_FLAG(struct compare_cli, leaves),
        .help = "Compare two files that penstock sum --leaves has written, and print which ranges "
        "of the disks differ, in whole blocks, as OFFSET+LENGTH. No disk is read."},
    {"request-size", 'r', OPT_SIZE(struct compare_cli, request_size), "SIZE",
        "Bytes a request, made a power of two.",
        .fallback = "auto", .words = automatic,
        .min = COMPARE_REQUEST_MIN, .max = COMPARE_REQUEST_MAX},
    {"depth", 'd', OPT_NUMBER(struct compare_cli, depth), "N",
        "Requests in flight on each worker.",
        .fallback = "auto", .words = automatic, .min = 1, .max = COMPARE_DEPTH_MAX},
    {"workers", 'w', OPT_NUMBER(struct compare_cli, workers), "N",
        "Threads, each with connections of its own where a server allows that.",
        .fallback = "auto", .words = automatic, .min = 1, .max = 64},
    {"progress", 'p', OPT_STRING(struct compare_cli, progress), "FD",
        "Show how far it is: a bar on a terminal, or with FD lines N/100 on that descriptor.",
        .bare = "auto"},
    {OPT_INCLUDE(struct compare_cli, endpoint, endpoint_cli_options)},
    {},
};
/* clang-format on */

struct compare_command {
    const struct compare_cli *cli;
    const char *names[2];
    struct compare_progress progress;
    struct compare_result result;
    struct error err;
};

static void sample(void *arg, struct progress_sample *ret)
{
    struct compare_progress *p = arg;
    *ret = (struct progress_sample){.done = p->done, .total = p->total};
}

static int compare(struct compare_command *c, struct volume *const volumes[2], struct crew **crew)
{
    struct compare_options o = {
        .workers = (unsigned)c->cli->workers,
        .depth = (unsigned)c->cli->depth,
        .request_size = c->cli->request_size,
        .strict = c->cli->strict,
    };
    return compare_run(volumes[0], volumes[1], &o, &c->progress, &c->result, crew, &c->err);
}

static int job(void *arg)
{
    struct compare_command *c = arg;
    struct volume *volumes[2] = {NULL, NULL};
    struct endpoint_options o;
    struct crew *crew = NULL;
    int r = 0;
    endpoint_cli_apply(&c->cli->endpoint, &o);
    for (int i = 0; r == 0 && i < 2; i++) {
        r = endpoint_open(c->names[i], &o, &volumes[i], &c->err);
    }
    if (r == 0) {
        r = compare(c, volumes, &crew);
    }
    fiber_shield();
    volume_close(volumes[0]);
    volume_close(volumes[1]);
    crew_free(crew);
    fiber_unshield();
    return r;
}

static void print_text(const struct compare_result *r)
{
    unsigned long long a = r->sizes[0];
    unsigned long long b = r->sizes[1];
    if (r->verdict == COMPARE_SAME) {
        printf("The disks are the same: %llu bytes\n", a);
    } else if (r->verdict == COMPARE_SIZES_DIFFER) {
        printf(
            "The disks are the same but for their sizes: %llu and %llu bytes, all zeros beyond the "
            "shorter one's end\n",
            a, b);
    } else if (r->has_offset) {
        printf("The disks differ at byte %llu\n", (unsigned long long)r->offset);
    } else {
        printf("The disks differ in size: %llu and %llu bytes\n", a, b);
    }
}

static void print_json(const struct compare_command *c)
{
    static const char *const verdicts[] = {"same", "sizes-differ", "different"};
    const struct compare_result *r = &c->result;
    struct jsonout j;
    jsonout_start(&j, stdout);
    jsonout_object(&j, NULL);
    jsonout_string(&j, "result", verdicts[r->verdict]);
    if (r->has_offset) {
        jsonout_number(&j, "offset", r->offset);
    }
    jsonout_array(&j, "disks");
    for (int i = 0; i < 2; i++) {
        jsonout_row(&j, NULL);
        jsonout_string(&j, "endpoint", c->names[i]);
        jsonout_number(&j, "size", r->sizes[i]);
        jsonout_end(&j);
    }
    jsonout_end(&j);
    jsonout_number(&j, "bytes_read", r->read);
    jsonout_number(&j, "zeros_skipped", r->skipped);
    jsonout_real(&j, "seconds", (double)r->duration_ns / 1e9);
    jsonout_end(&j);
    jsonout_finish(&j); /* command_flush() sees what went wrong */
}

static int run_compare(struct command_run *r)
{
    struct compare_command c = {.cli = r->options,
                                .names = {r->operands->items[0], r->operands->items[1]}};
    struct progress_options shown = {.label = "compare", .sample = sample, .arg = &c.progress};
    struct progress *progress = NULL;
    bool interrupted;
    if (c.cli->leaves) {
        return compare_leaves(c.names, c.cli->json, r->quiet);
    }
    if (progress_choose(c.cli->progress, r->quiet, &shown) < 0) {
        return command_misused(r, "--progress takes the number of an open descriptor");
    }
    int result = progress_start(&shown, &progress);
    if (result == 0) {
        result = run_interruptible(job, &c, &interrupted);
    }
    progress_finish(progress, result == 0 && c.result.verdict != COMPARE_DIFFERENT);
    if (result < 0) {
        error_set(&c.err, -result, "the comparison could not be started");
        return command_failed(&c.err);
    }
    if (c.cli->json) {
        print_json(&c);
    } else if (!r->quiet) {
        print_text(&c.result);
    }
    return command_flush(c.result.verdict == COMPARE_DIFFERENT ? EXIT_DIFFER : EXIT_DONE);
}

const struct command cmd_compare = {
    .name = "compare",
    .summary = "compare the contents of two disks",
    .usage = (const char *const[]){"[OPTIONS] ENDPOINT ENDPOINT", NULL},
    .options = options,
    .options_size = sizeof(struct compare_cli),
    .operands = "two ENDPOINTs are",
    .operands_min = 2,
    .operands_max = 2,
    .endpoints = true,
    .in_worker = true,
    .run = run_compare,
    .examples =
        (const struct command_example[]){
            {"penstock compare disk.raw 'nbd+unix:///disk?socket=/run/nbd.sock'",
             "A file and what a server has."},
            {"penstock compare --strict --json a.raw b.raw",
             "Sizes count; the answer for programs."},
            {},
        },
    .exits =
        (const struct command_exit[]){
            {EXIT_DONE, "The disks are the same (without --strict: but for zeros at the end of the "
                        "longer one)."},
            {EXIT_DIFFER, "The disks differ."},
            {0, NULL},
        },
};
