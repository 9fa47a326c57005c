/*
 * penstock tune: what this host clips, and how to lift it.
 */
#include "cli/command.h"
#include "core/error.h"
#include "report/jsonout.h"
#include "report/table.h"
#include "tune/measure.h"
#include "tune/tune.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct tune_cli {
    bool json, measure;
    const char *write;
};

/* clang-format off */
static const struct option_spec options[] = {
    {"write", 0, OPT_STRING(struct tune_cli, write), "FILE",
        "Write a sysctl.d drop-in with what is clipped.", .complete = COMPLETE_FILE},
    {"measure", 0, OPT_FLAG(struct tune_cli, measure),
        .help = "Measure what sockets and pipes gain here (some seconds)."},
    {"json", 0, OPT_FLAG(struct tune_cli, json), .help = "Answer in JSON."},
    {},
};
/* clang-format on */

static void print_item(const struct tune_item *item)
{
    printf("%-22s  %-8s %s\n", item->name, tune_state_name(item->state), item->value);
    printf("    %s: %s\n", item->what, item->effect);
    if (item->state == TUNE_CLIPPED && item->setting[0]) {
        printf("    to lift it: %s\n", item->setting);
    }
}

static void print_measures(const struct tune_measure *m, size_t n)
{
    struct table *t = table_new("lrrr", "measured", "buffer", "GiB/s", "ratio");
    for (size_t i = 0; i < n; i++) {
        table_cell(t, "%s", m[i].what);
        table_cell(t, "%s", m[i].buffer);
        table_cell(t, "%.2f", m[i].gib_s);
        table_cell(t, "%.2f", m[i].ratio);
    }
    printf("\n");
    table_print(t, stdout);
    table_free(t);
}

static void print_json(const struct tune_item *items, size_t n, const struct tune_measure *m,
                       size_t measures)
{
    struct jsonout j;
    jsonout_start(&j, stdout);
    jsonout_object(&j, NULL);
    jsonout_array(&j, "items");
    for (size_t i = 0; i < n; i++) {
        jsonout_object(&j, NULL);
        jsonout_string(&j, "name", items[i].name);
        jsonout_string(&j, "what", items[i].what);
        jsonout_string(&j, "state", tune_state_name(items[i].state));
        jsonout_string(&j, "value", items[i].value);
        jsonout_string(&j, "wanted", items[i].wanted[0] ? items[i].wanted : NULL);
        jsonout_string(&j, "effect", items[i].effect);
        jsonout_string(&j, "setting", items[i].setting[0] ? items[i].setting : NULL);
        jsonout_end(&j);
    }
    jsonout_end(&j);
    jsonout_array(&j, "measured");
    for (size_t i = 0; i < measures; i++) {
        jsonout_row(&j, NULL);
        jsonout_string(&j, "what", m[i].what);
        jsonout_string(&j, "buffer", m[i].buffer);
        jsonout_real(&j, "gib_s", m[i].gib_s);
        jsonout_real(&j, "ratio", m[i].ratio);
        jsonout_end(&j);
    }
    jsonout_end(&j);
    jsonout_end(&j);
    jsonout_finish(&j);
}

static int write_drop_in(const char *path, const struct tune_item *items, size_t n,
                         struct error *err)
{
    FILE *f = fopen(path, "we");
    int r = f ? tune_write_sysctl(f, items, n) : -errno;
    if (f && fclose(f) != 0 && r == 0) {
        r = -errno;
    }
    if (r < 0) {
        error_set(err, -r, "it can't be written");
        error_endpoint(err, path);
    }
    return r;
}

static int tune(struct command_run *r)
{
    const struct tune_cli *c = r->options;
    struct tune_item items[TUNE_ITEMS_MAX];
    struct tune_measure measures[TUNE_MEASURES_MAX];
    struct error err;
    error_clear(&err);

    size_t n = tune_look("", items), measured = 0;
    int failed = c->measure ? tune_measure(measures, &measured, &err) : 0;
    if (failed == 0 && c->write) {
        failed = write_drop_in(c->write, items, n, &err);
    }
    if (failed < 0) {
        return command_failed(&err);
    }
    bool clipped = false;
    for (size_t i = 0; i < n; i++) {
        clipped = clipped || items[i].state == TUNE_CLIPPED;
        if (!c->json) {
            print_item(&items[i]);
        }
    }
    if (c->json) {
        print_json(items, n, measures, measured);
    } else if (measured) {
        print_measures(measures, measured);
    }
    return command_flush(clipped ? EXIT_DIFFER : EXIT_DONE);
}

const struct command cmd_tune = {
    .name = "tune",
    .summary = "show what this host allows and what it clips",
    .usage = (const char *const[]){"[OPTION]...", NULL},
    .options = options,
    .options_size = sizeof(struct tune_cli),
    .operands = "no argument",
    .run = tune,
    .examples =
        (const struct command_example[]){{"penstock tune --write /etc/sysctl.d/60-penstock.conf",
                                          "Look, and write down what would lift the limits."},
                                         {NULL, NULL}},
    .exits = (const struct command_exit[]){{EXIT_DONE, "nothing is clipped"},
                                           {EXIT_DIFFER, "something is clipped"},
                                           {0, NULL}},
};
