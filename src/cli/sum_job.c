/*
 * One endpoint's checksum for `penstock sum`: opened, hashed, its progress shown, closed.
 */
#include "cli/sum_cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void advance(void *arg, uint64_t bytes)
{
    struct sum_job *job = arg;
    atomic_fetch_add_explicit(&job->done, bytes, memory_order_relaxed);
}

static void sample(void *arg, struct progress_sample *ret)
{
    struct sum_job *job = arg;
    ret->done = atomic_load_explicit(&job->done, memory_order_relaxed);
    ret->total = job->total;
}

int sum_job_use(struct sum_job *job, const char *digest, uint32_t block_size, struct error *err)
{
    if (job->sum && job->block_size == block_size && strcmp(job->digest, digest) == 0) {
        return 0;
    }
    struct sum_options o = {.digest = digest,
                            .block_size = block_size,
                            .workers = (unsigned)job->cli->workers,
                            .advance = advance,
                            .arg = job};
    sum_free(job->sum);
    job->sum = NULL;
    int r = sum_new(&o, &job->sum, err);
    if (r == 0) {
        snprintf(job->digest, sizeof(job->digest), "%s", digest);
        job->block_size = block_size;
    }
    return r;
}

int sum_job_new(struct command_run *r, struct sum_job **ret)
{
    const struct sum_cli *cli = r->options;
    struct error err = {};
    struct sum_job *job = calloc(1, sizeof(*job));

    *ret = job;
    if (!job) {
        error_set(&err, ENOMEM, "no memory");
        return command_failed(&err);
    }
    job->run = r;
    job->cli = cli;
    job->progress = (struct progress_options){.label = "sum", .sample = sample, .arg = job};
    if (progress_choose(cli->progress, r->quiet, &job->progress) < 0) {
        return command_misused(r, "--progress: no such descriptor");
    }
    int e = sum_job_use(job, cli->digest, (uint32_t)cli->block_size, &err);
    if (e == -ENOENT || e == -ENOTSUP) {
        return command_misused(r, "--digest: there is no \"%.60s\"; see --list-digests",
                               cli->digest);
    }
    if (e == -EINVAL) {
        return command_misused(r, "%s", err.text);
    }
    return e < 0 ? command_failed(&err) : 0;
}

void sum_job_free(struct sum_job *job)
{
    if (job) {
        sum_free(job->sum);
        free(job);
    }
}

static int sum_opened(struct sum_job *job, struct volume *v, int fd, const char *endpoint,
                      struct sum_result *ret, struct error *err)
{
    struct progress *progress = NULL;

    atomic_store(&job->done, 0);
    job->total = v ? v->size : 0;
    int r = progress_start(&job->progress, &progress);
    if (r < 0) {
        return error_set(err, -r, "progress");
    }
    r = v ? sum_volume(job->sum, v, job->leaves, ret, err)
          : sum_stream(job->sum, fd, endpoint, job->leaves, ret, err);
    progress_finish(progress, r == 0);
    return r;
}

int sum_job_one(struct sum_job *job, const char *endpoint, struct sum_result *ret,
                struct error *err)
{
    struct endpoint_options o;
    struct volume *v;
    int fd;

    if (endpoint_is_stream(endpoint, false, &fd)) {
        return sum_opened(job, NULL, fd, endpoint, ret, err);
    }
    endpoint_cli_apply(&job->cli->endpoint, &o);
    int r = endpoint_open(endpoint, &o, &v, err);
    if (r < 0) {
        return r;
    }
    r = sum_opened(job, v, -1, endpoint, ret, err);
    volume_close(v);
    return r;
}

void sum_job_json_error(struct sum_job *job, const char *name, const struct error *err)
{
    char text[ERROR_TEXT_MAX + ERROR_ENDPOINT_MAX + 256];

    jsonout_row(&job->json, NULL);
    jsonout_string(&job->json, "endpoint", name);
    jsonout_string(&job->json, "error", error_format(err, text, sizeof(text)));
    jsonout_end(&job->json);
}
