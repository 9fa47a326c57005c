/*
 * What the files of `penstock sum` share.
 */
#ifndef CLI_SUM_CLI_H
#define CLI_SUM_CLI_H

#include "cli/command.h"
#include "cli/endpoint_cli.h"
#include "jobs/sum.h"
#include "jobs/sum_list.h"
#include "report/jsonout.h"
#include "report/progress.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct sum_cli {
    const char *digest;
    uint64_t block_size;
    uint64_t workers;
    const char *check;
    const char *progress;
    const char *leaves;
    struct option_list changed;
    bool list_digests, tag, sector, json;
    struct endpoint_cli endpoint;
};

struct sum_job {
    struct command_run *run;
    const struct sum_cli *cli;
    struct sum *sum;     /* for digest and block_size */
    char digest[48];     /* as it was asked for */
    uint32_t block_size; /* bytes */
    struct progress_options progress;
    _Atomic uint64_t done;           /* bytes of the present endpoint; from any worker */
    uint64_t total;                  /* 0: not known */
    const struct sum_leaves *leaves; /* of the present endpoint, or NULL */
    struct jsonout json;
    bool interrupted;
    struct sum_line line;
    char text[SUM_LINE_MAX];
};

/* 0, or an exit code with what was wrong said on stderr. *ret in both cases, for sum_job_free(). */
int sum_job_new(struct command_run *r, struct sum_job **ret);
void sum_job_free(struct sum_job *job);

/* Has job->sum compute this digest with these blocks from now on. As sum_new(). */
int sum_job_use(struct sum_job *job, const char *digest, uint32_t block_size, struct error *err);
/* The checksum of an endpoint. */
int sum_job_one(struct sum_job *job, const char *endpoint, struct sum_result *ret,
                struct error *err);
void sum_job_json_error(struct sum_job *job, const char *name, const struct error *err);

/* As sum_job_one(), with --leaves and --changed. */
int sum_job_leaves(struct sum_job *job, const char *endpoint, struct sum_result *ret,
                   struct error *err);

/* All of a file (of at most 64 MiB), or of standard input for "-", malloc'ed into *ret. Parks.
 * Bytes, or -errno. */
ssize_t sum_read_list(const char *path, char **ret);

/* --check. An exit code. */
int sum_check(struct sum_job *job);

#endif
