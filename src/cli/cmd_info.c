/*
 * penstock info: what an endpoint is, or which exports a server has.
 */
#include "cli/command.h"
#include "cli/endpoint_cli.h"
#include "cli/info.h"
#include "cli/run.h"
#include "core/fileio.h"
#include "core/log.h"
#include "report/jsonout.h"
#include "report/table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct info_cli {
    struct endpoint_cli endpoint;
    bool json, list;
};

struct info_job {
    const struct info_cli *cli;
    const char *name; /* for endpoint_open() */
    char *title;      /* for people */
    struct error err;
};

/* clang-format off */
static const struct option_spec info_options[] = {
    {"json", 0, OPT_FLAG(struct info_cli, json), .help = "Answer in JSON."},
    {"list", 'L', OPT_FLAG(struct info_cli, list),
        .help = "List the exports of the NBD server that the endpoint names."},
    {OPT_INCLUDE(struct info_cli, endpoint, endpoint_cli_options)},
    {},
};
/* clang-format on */

static void take_pair(void *arg, const char *key, const char *value)
{
    struct info *in = arg;
    struct info_pair *p = &in->pairs[in->pair_count];

    if (in->pair_count == INFO_PAIRS_MAX) {
        return;
    }
    p->key = strdup(key);
    p->value = strdup(value);
    if (p->key && p->value) {
        in->pair_count++;
    } else {
        free(p->key);
        free(p->value);
    }
}

static void take_context(void *arg, const char *context)
{
    struct info *in = arg;

    char *copy = in->context_count < INFO_CONTEXTS_MAX ? strdup(context) : NULL;
    if (copy) {
        in->contexts[in->context_count++] = copy;
    } else {
        in->contexts_cut = true;
    }
}

static void info_done(struct info *in)
{
    for (unsigned i = 0; i < in->pair_count; i++) {
        free(in->pairs[i].key);
        free(in->pairs[i].value);
    }
    for (unsigned i = 0; i < in->context_count; i++) {
        free(in->contexts[i]);
    }
    free(in);
}

static int show_endpoint(struct info_job *job, const struct endpoint_options *o)
{
    struct info *in = calloc(1, sizeof(*in));
    if (!in) {
        return error_set(&job->err, ENOMEM, "no memory");
    }
    in->endpoint = job->title;
    int r = endpoint_open(job->name, o, &in->volume, &job->err);
    if (r < 0) {
        free(in);
        return r;
    }
    in->engine = fileio_engine();
    if (in->volume->ops->describe) {
        in->volume->ops->describe(in->volume, take_pair, in);
    }
    in->is_nbd = nbd_client_is(in->volume);
    if (in->is_nbd) {
        nbd_client_info(in->volume, &in->nbd);
        struct error ignored = {}; /* old servers know no contexts, and some serve one client */
        if (in->nbd.structured && strncmp(job->name, "nbd", 3) == 0) {
            (void)nbd_client_contexts(job->name, o, take_context, in, &ignored);
        }
    }
    r = job->cli->json ? info_print_json(in) : info_print_text(in);
    volume_close(in->volume);
    info_done(in);
    return r;
}

static void list_row(void *arg, const char *name, const char *description)
{
    struct table *t = arg;
    char shown[1024];

    table_cell(t, "%s", log_escape(shown, sizeof(shown), name, strlen(name)));
    description = description ? description : "";
    table_cell(t, "%s", log_escape(shown, sizeof(shown), description, strlen(description)));
}

static void list_json(void *arg, const char *name, const char *description)
{
    struct jsonout *j = arg;

    jsonout_row(j, NULL);
    jsonout_string(j, "name", name);
    jsonout_string(j, "description", description);
    jsonout_end(j);
}

static int list_exports(struct info_job *job, const struct endpoint_options *o)
{
    struct jsonout j;
    struct table *t = NULL;
    int r;

    if (job->cli->json) {
        /* A document that is cut off by an error would look like an answer: it ends as JSON, and
         * the exit code says that it is not all. */
        jsonout_start(&j, stdout);
        jsonout_object(&j, NULL);
        jsonout_array(&j, "exports");
        r = nbd_client_list(job->name, o, list_json, &j, &job->err);
        jsonout_end(&j);
        jsonout_end(&j);
        int w = jsonout_finish(&j);
        return r < 0 ? r : w;
    }
    t = table_new("ll", "EXPORT", "DESCRIPTION");
    r = nbd_client_list(job->name, o, list_row, t, &job->err);
    if (r >= 0) {
        r = table_print(t, stdout);
    }
    table_free(t);
    return r;
}

static int do_info(void *arg)
{
    struct info_job *job = arg;
    struct endpoint_options o;

    endpoint_cli_apply(&job->cli->endpoint, &o);
    o.raw = true; /* looking does no harm */
    return job->cli->list ? list_exports(job, &o) : show_endpoint(job, &o);
}

/* "[ PROGRAM ARG ]" comes with \x1f between its words. malloc'ed. */
static char *title_of(const char *name)
{
    char *title = strdup(name);
    for (char *c = title; c && *c; c++) {
        *c = *c == '\x1f' ? ' ' : *c;
    }
    return title;
}

static int run(struct command_run *r)
{
    struct info_job job = {.cli = r->options, .name = r->operands->items[0]};
    bool interrupted;

    job.title = title_of(job.name);
    if (!job.title) {
        error_set(&job.err, ENOMEM, "no memory");
        return command_failed(&job.err);
    }
    int result = run_interruptible(do_info, &job, &interrupted);
    if (result < 0) {
        error_set(&job.err, -result, interrupted ? "interrupted" : "no answer");
        error_endpoint(&job.err, job.title);
    }
    free(job.title);
    return result < 0 ? command_failed(&job.err) : command_flush(EXIT_DONE);
}

const struct command cmd_info = {
    .name = "info",
    .summary = "show what an endpoint is",
    .usage =
        (const char *const[]){
            "[--json] [OPTION]... ENDPOINT",
            "--list [--json] [OPTION]... NBD-URI",
            NULL,
        },
    .options = info_options,
    .options_size = sizeof(struct info_cli),
    .operands = "ENDPOINT is",
    .operands_min = 1,
    .operands_max = 1,
    .endpoints = true,
    .in_worker = true,
    .run = run,
    .examples =
        (const struct command_example[]){
            {"penstock info disk.img", "Size and abilities of a file."},
            {"penstock info --json 'nbd+unix:///?socket=/run/vm1/disk.sock'",
             "What an NBD server said in the handshake, and how large the socket's buffer is."},
            {"penstock info --list nbd://storage.example/", "The exports of a server."},
            {},
        },
};
