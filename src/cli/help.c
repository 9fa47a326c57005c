/*
 * --help, for people: 79 columns, options in the table's order.
 */
#include "cli/help.h"

#include <string.h>

#define TEXT_COLUMN 26
#define COLUMNS 79

/* clang-format off */
const struct option_spec common_options[] = {
    {"verbose", 'v', OPT_COUNT(struct common_cli, verbose),
        .help = "Say more on standard error; twice: everything."},
    {"quiet", 'q', OPT_FLAG(struct common_cli, quiet),
        .help = "Say nothing but errors, and show no progress."},
    {"help", 'h', OPT_FLAG(struct common_cli, help), .help = "Show this help."},
    {},
};
/* clang-format on */

/* Prints text from column *at on, wrapped, with lines that follow indented by indent. */
static void wrap(FILE *f, const char *text, size_t indent, size_t *at)
{
    while (*text) {
        size_t len = strcspn(text, " ");
        bool first = *at == indent;
        if (!first && *at + 1 + len > COLUMNS) {
            fprintf(f, "\n%*s", (int)indent, "");
            *at = indent;
            first = true;
        }
        fprintf(f, "%s%.*s", first ? "" : " ", (int)len, text);
        *at += len + !first;
        text += len;
        text += strspn(text, " ");
    }
}

static int show_option(void *arg, const struct option_spec *s, size_t offset)
{
    FILE *f = arg;
    char left[128];

    (void)offset;
    if (s->hidden) {
        return 0;
    }
    int n = s->short_name ? snprintf(left, sizeof(left), "  -%c, --%s", s->short_name, s->name)
                          : snprintf(left, sizeof(left), "      --%s", s->name);
    if (s->argument) {
        n += snprintf(left + n, sizeof(left) - n, s->bare ? "[=%s]" : "=%s", s->argument);
    }
    fputs(left, f);
    size_t at = TEXT_COLUMN;
    if ((size_t)n + 2 > TEXT_COLUMN) {
        fprintf(f, "\n%*s", TEXT_COLUMN, "");
    } else {
        fprintf(f, "%*s", TEXT_COLUMN - n, "");
    }
    wrap(f, s->help, TEXT_COLUMN, &at);
    const char *fallback = s->fallback_help ? s->fallback_help : s->fallback;
    if (fallback) {
        char text[160];
        snprintf(text, sizeof(text), "Default: %s.", fallback);
        wrap(f, text, TEXT_COLUMN, &at);
    }
    fputc('\n', f);
    return 0;
}

void help_overview(FILE *f)
{
    fprintf(f, "Usage: penstock COMMAND [OPTION]... [OPERAND]...\n\n"
               "The bulk data of virtual machines, at the speed of the machine.\n\nCommands:\n");
    for (unsigned i = 0; cli_commands[i]; i++) {
        if (!cli_commands[i]->hidden) {
            fprintf(f, "  %-12s%s\n", cli_commands[i]->name, cli_commands[i]->summary);
        }
    }
    fprintf(f, "\nOptions:\n"
               "  -h, --help        Show this help; penstock COMMAND --help shows a command's.\n"
               "  -V, --version     Show the version and what is built in.\n");
}

void help_command(FILE *f, const struct command *c)
{
    for (unsigned i = 0; c->usage[i]; i++) {
        fprintf(f, "%s penstock %s %s\n", i ? "      " : "Usage:", c->name, c->usage[i]);
    }
    fprintf(f, "\npenstock %s: %s\n\nOptions:\n", c->name, c->summary);
    if (c->options) {
        options_walk(c->options, 0, show_option, f);
    }
    options_walk(common_options, 0, show_option, f);
    for (const struct command_example *e = c->examples; e && e->command; e++) {
        fprintf(f, "%s  %s\n      ", e == c->examples ? "\nExamples:\n" : "", e->command);
        size_t at = 6;
        wrap(f, e->what, 6, &at);
        fputc('\n', f);
    }
}

static int show_name(void *arg, const struct option_spec *s, size_t offset)
{
    (void)offset;
    if (!s->hidden) {
        fprintf(arg, "--%s\n", s->name);
        if (s->short_name) {
            fprintf(arg, "-%c\n", s->short_name);
        }
    }
    return 0;
}

void help_names(FILE *f, const struct command *c)
{
    if (c->options) {
        options_walk(c->options, 0, show_name, f);
    }
    options_walk(common_options, 0, show_name, f);
}
