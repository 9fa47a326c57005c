/*
 * penstock sum: checksums of disks (jobs/sum.h), printed, or compared with a list (sum_check.c).
 */
#include "cli/command.h"
#include "cli/run.h"
#include "cli/sum_cli.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
static const struct option_spec sum_options[] = {
    {"digest", 'd', OPT_STRING(struct sum_cli, digest), "NAME",
        "The digest below blkhash: any that --list-digests names.", .fallback = "sha256"},
    {"list-digests", 'l', OPT_FLAG(struct sum_cli, list_digests),
        .help = "Print the names of the digests, one a line."},
    {"block-size", 0, OPT_SIZE(struct sum_cli, block_size), "SIZE",
        "Bytes that are hashed as one block, a power of two. Another size gives another checksum.",
        .fallback = "64K", .min = SUM_BLOCK_MIN, .max = SUM_BLOCK_MAX},
    {"check", 'c', OPT_STRING(struct sum_cli, check), "FILE",
        "Read lines of checksums from FILE (- is standard input), compute each again and say which "
        "are right. --digest and --block-size are those of lines that do not say.",
        .complete = COMPLETE_FILE},
    {"tag", 0, OPT_FLAG(struct sum_cli, tag),
        .help = "Print lines that name the digest, and the block size where it is not 64K."},
    {"sector", 0, OPT_FLAG(struct sum_cli, sector),
        .help = "Where the size is no multiple of 512, print the checksum of the disk padded with "
        "zeros to one: what blksum prints for such a file."},
    {"leaves", 0, OPT_STRING(struct sum_cli, leaves), "FILE",
        "Keep the digests of the blocks in FILE, which is replaced once all is known; for one "
        "endpoint. See --changed, and penstock compare --leaves.",
        .complete = COMPLETE_FILE},
    {"changed", 0, OPT_LIST(struct sum_cli, changed), "RANGE",
        "Only RANGE was changed since FILE of --leaves was written: hash that, and take the rest "
        "from FILE. OFFSET+LENGTH, or @LIST: a file of lines OFFSET+LENGTH, @- for standard input. "
        "May be given again."},
    {"workers", 'w', OPT_NUMBER(struct sum_cli, workers), "N",
        "Threads that read and hash.", .fallback = "auto", .fallback_help = "one a CPU",
        .words = (const struct option_word[]){{"auto", 0}, {}}, .min = 1, .max = 256},
    {"progress", 'p', OPT_STRING(struct sum_cli, progress), "FD",
        "Show how far it is: a bar on a terminal, or with FD lines N/100 on that descriptor.",
        .bare = "auto"},
    {"json", 0, OPT_FLAG(struct sum_cli, json), .help = "Print a JSON array of the results."},
    {OPT_INCLUDE(struct sum_cli, endpoint, endpoint_cli_options)},
    {},
};
/* clang-format on */

static void say_digest(void *arg, const char *name)
{
    fprintf(arg, "%s\n", name);
}

static void print_json(struct sum_job *job, const char *name, const struct sum_result *result)
{
    char hex[SUM_HEX_MAX];

    jsonout_row(&job->json, NULL);
    jsonout_string(&job->json, "endpoint", name);
    jsonout_string(&job->json, "digest", sum_hex(result->digest, result->length, hex));
    if (result->odd) {
        jsonout_string(&job->json, "sector_digest", sum_hex(result->sector, result->length, hex));
    }
    jsonout_string(&job->json, "algorithm", digest_name(sum_digest(job->sum)));
    jsonout_number(&job->json, "block_size", job->block_size);
    jsonout_number(&job->json, "size", result->size);
    jsonout_number(&job->json, "zeros_skipped", result->zeros);
    jsonout_end(&job->json);
}

static int print_line(struct sum_job *job, const char *name, const struct sum_result *result,
                      struct error *err)
{
    struct sum_line *line = &job->line;

    if (strlen(name) >= sizeof(line->name)) {
        return error_set(err, ENAMETOOLONG, "%.100s...", name);
    }
    memset(line, 0, offsetof(struct sum_line, name));
    line->tagged = job->cli->tag;
    snprintf(line->digest, sizeof(line->digest), "%s", digest_name(sum_digest(job->sum)));
    line->block_size = job->block_size;
    line->length = result->length;
    memcpy(line->want, job->cli->sector ? result->sector : result->digest, result->length);
    snprintf(line->name, sizeof(line->name), "%s", name);
    fputs(sum_line_format(line, job->text), stdout);
    fflush(stdout); /* each as soon as it is known; command_flush() sees a failure */
    return 0;
}

static int print_sums(struct sum_job *job)
{
    const struct operands *operands = job->run->operands;
    int code = EXIT_DONE;

    for (unsigned i = 0; i < operands->count; i++) {
        struct sum_result result;
        struct error err = {};
        char name[SUM_NAME_MAX];

        endpoint_display(operands->items[i], name, sizeof(name));
        int r = job->cli->leaves ? sum_job_leaves(job, operands->items[i], &result, &err)
                                 : sum_job_one(job, operands->items[i], &result, &err);
        if (r == 0 && job->cli->json) {
            print_json(job, name, &result);
        } else if (r == 0) {
            r = print_line(job, name, &result, &err);
        }
        if (r < 0) {
            code = EXIT_FAILED;
            if (job->interrupted) {
                break;
            }
            command_failed(&err);
            if (job->cli->json) {
                sum_job_json_error(job, name, &err);
            }
        }
    }
    return code;
}

static int sum_main(void *arg)
{
    struct sum_job *job = arg;
    int code;

    if (job->cli->json) {
        jsonout_start(&job->json, stdout);
        jsonout_array(&job->json, NULL);
    }
    code = job->cli->check ? sum_check(job) : print_sums(job);
    if (job->cli->json && code != EXIT_USAGE) {
        jsonout_end(&job->json);
        if (jsonout_finish(&job->json) < 0) {
            code = EXIT_FAILED;
        }
    }
    return code;
}

static int check_use(struct command_run *r, const struct sum_cli *cli)
{
    if (cli->check && r->operands->count > 0) {
        return command_misused(r, "--check takes the endpoints from its file");
    }
    if (!cli->check && r->operands->count == 0) {
        return command_misused(r, "ENDPOINT is missing; - is standard input");
    }
    if (cli->changed.count > 0 && !cli->leaves) {
        return command_misused(r, "--changed needs --leaves");
    }
    if (cli->leaves && (cli->check || r->operands->count != 1)) {
        return command_misused(r, "--leaves is for one endpoint");
    }
    if (cli->json && cli->tag) {
        return command_misused(r, "--json and --tag exclude each other");
    }
    return 0;
}

static int run_sum(struct command_run *r)
{
    struct sum_cli *cli = r->options;

    if (cli->list_digests) {
        digest_list(say_digest, stdout);
        return command_flush(EXIT_DONE);
    }
    int code = check_use(r, cli);
    if (code != 0) {
        return code;
    }
    struct sum_job *job = NULL;
    code = sum_job_new(r, &job);
    if (code == 0) {
        code = run_interruptible(sum_main, job, &job->interrupted);
        if (job->interrupted) {
            fprintf(stderr, "penstock: interrupted\n");
            code = EXIT_FAILED;
        } else if (code < 0) {
            code = command_failed(&(struct error){.code = -code, .text = "sum"});
        }
    }
    sum_job_free(job);
    return command_flush(code);
}

const struct command cmd_sum = {
    .name = "sum",
    .summary = "print or check checksums of disks, compatible with blksum",
    .usage = (const char *const[]){"[OPTION...] ENDPOINT...", "[OPTION...] --check FILE",
                                   "--list-digests", NULL},
    .options = sum_options,
    .options_size = sizeof(struct sum_cli),
    .operands = "ENDPOINT",
    .operands_min = 0,
    .operands_max = OPERANDS_ANY,
    .endpoints = true,
    .in_worker = true,
    .run = run_sum,
    .examples =
        (const struct command_example[]){
            {"penstock sum disk.raw nbd://server/disk", "Two disks, two lines: are they equal?"},
            {"penstock sum --tag *.raw > SUMS && penstock sum --check SUMS",
             "Keep checksums and check them."},
            {"penstock sum --leaves disk.leaves --changed 1G+64K disk.raw",
             "Bring the checksum up to date after a change."},
            {"zstd -dc disk.zst | penstock sum -", "What comes out of a pipe."},
            {}},
    .exits = (const struct command_exit[]){{EXIT_FAILED,
                                            "an endpoint could not be read to its end, or --check "
                                            "found a checksum that is wrong"},
                                           {}},
};
