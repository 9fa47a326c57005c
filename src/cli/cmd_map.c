/*
 * penstock map: where a disk has data and where it has holes (jobs/map.h). Rows are printed as they
 * come.
 */
#include "cli/command.h"
#include "cli/endpoint_cli.h"
#include "cli/run.h"
#include "core/fiber.h"
#include "jobs/map.h"
#include "report/jsonout.h"
#include "report/table.h"

#include <errno.h>
#include <stdio.h>

struct map_cli {
    struct endpoint_cli endpoint;
    bool json, totals;
};

/* clang-format off */
static const struct option_spec options[] = {
    {"totals", 0, OPT_FLAG(struct map_cli, totals),
        .help = "Print how many bytes there are of each kind, instead of where."},
    {"json", 0, OPT_FLAG(struct map_cli, json), .help = "Answer in JSON."},
    {OPT_INCLUDE(struct map_cli, endpoint, endpoint_cli_options)},
    {},
};
/* clang-format on */

struct map_command {
    const struct map_cli *cli;
    const char *name;
    struct jsonout json;
    struct error err;
};

static int row_text(void *arg, const struct map_row *row)
{
    printf("%20llu %20llu  %s\n", (unsigned long long)row->offset, (unsigned long long)row->length,
           map_kind(row->flags));
    return ferror(stdout) ? -EIO : 0;
}

static int row_json(void *arg, const struct map_row *row)
{
    struct jsonout *j = arg;
    jsonout_row(j, NULL);
    jsonout_number(j, "offset", row->offset);
    jsonout_number(j, "length", row->length);
    jsonout_string(j, "type", map_kind(row->flags));
    jsonout_bool(j, "hole", (row->flags & EXTENT_HOLE) != 0);
    jsonout_bool(j, "zero", (row->flags & EXTENT_ZERO) != 0);
    jsonout_end(j);
    return ferror(stdout) ? -EIO : 0;
}

static int totals_text(struct volume *v, const struct map_totals *totals)
{
    struct table *t = table_new("rrl", (const char *)NULL);
    for (uint32_t kind = 0; kind < MAP_KINDS; kind++) {
        uint64_t bytes = totals->bytes[kind];
        if (bytes > 0) {
            table_cell(t, "%llu", (unsigned long long)bytes);
            table_cell(t, "%.1f%%", 100.0 * (double)bytes / (double)v->size);
            table_cell(t, "%s", map_kind(kind));
        }
    }
    int r = table_print(t, stdout);
    table_free(t);
    return r;
}

static void totals_json(struct jsonout *j, const struct map_totals *totals)
{
    jsonout_object(j, "totals");
    for (uint32_t kind = 0; kind < MAP_KINDS; kind++) {
        jsonout_number(j, map_kind(kind), totals->bytes[kind]);
    }
    jsonout_end(j);
    jsonout_number(j, "extent_count", totals->rows);
}

static int show_text(struct map_command *c, struct volume *v)
{
    struct map_totals totals;
    int r = map_run(v, c->cli->totals ? NULL : row_text, NULL, &totals, &c->err);
    return r == 0 && c->cli->totals ? totals_text(v, &totals) : r;
}

/* A document that is cut off by an error ends as JSON; the exit code says that it is not all. */
static int show_json(struct map_command *c, struct volume *v)
{
    struct jsonout *j = &c->json;
    struct map_totals totals;
    jsonout_start(j, stdout);
    jsonout_object(j, NULL);
    jsonout_string(j, "endpoint", c->name);
    jsonout_number(j, "size", v->size);
    int r;
    if (c->cli->totals) {
        r = map_run(v, NULL, NULL, &totals, &c->err);
        if (r == 0) {
            totals_json(j, &totals);
        }
    } else {
        jsonout_array(j, "extents");
        r = map_run(v, row_json, j, &totals, &c->err);
        jsonout_end(j);
    }
    jsonout_end(j);
    int w = jsonout_finish(j);
    return r < 0 ? r : w;
}

static int job(void *arg)
{
    struct map_command *c = arg;
    struct endpoint_options o;
    struct volume *v = NULL;
    endpoint_cli_apply(&c->cli->endpoint, &o);
    int r = endpoint_open(c->name, &o, &v, &c->err);
    if (r < 0) {
        return r;
    }
    r = c->cli->json ? show_json(c, v) : show_text(c, v);
    fiber_shield();
    volume_close(v);
    fiber_unshield();
    return r;
}

static int run_map(struct command_run *r)
{
    struct map_command c = {.cli = r->options, .name = r->operands->items[0]};
    bool interrupted;
    int result = run_interruptible(job, &c, &interrupted);
    if (result < 0) {
        if (c.err.code == 0 && ferror(stdout)) {
            return command_flush(EXIT_FAILED);
        }
        error_set(&c.err, -result, interrupted ? "interrupted" : "cannot map it");
        error_endpoint(&c.err, c.name);
        fflush(stdout);
        return command_failed(&c.err);
    }
    return command_flush(EXIT_DONE);
}

const struct command cmd_map = {
    .name = "map",
    .summary = "show where a disk has data and where it has holes",
    .usage = (const char *const[]){"[--json] [--totals] [OPTIONS] ENDPOINT", NULL},
    .options = options,
    .options_size = sizeof(struct map_cli),
    .operands = "ENDPOINT is",
    .operands_min = 1,
    .operands_max = 1,
    .endpoints = true,
    .in_worker = true,
    .run = run_map,
    .examples =
        (const struct command_example[]){
            {"penstock map disk.raw", "Offset, length and kind of each extent."},
            {"penstock map --totals --json 'nbd+unix:///?socket=/run/nbd.sock'",
             "How much of an export is data."},
            {},
        },
};
