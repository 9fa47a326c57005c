/*
 * Man pages as scdoc source: what the tables know, around the prose that is written by hand.
 *
 * scdoc gives meaning to '_' and '*' around words, and to '\\', '#', '-', '|', '[' and '.' at the
 * start of a line; text from the tables is escaped, prose is already scdoc.
 */
#include "cli/help.h"

#include <ctype.h>
#include <string.h>

static void escaped(FILE *f, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (strchr("_*\\#~<>", *c) || (c == text && strchr("-|[]{.!", *c))) {
            fputc('\\', f);
        }
        fputc(*c, f);
    }
}

static void upper(FILE *f, const char *text)
{
    for (const char *c = text; *c; c++) {
        fputc(toupper((unsigned char)*c), f);
    }
}

static int man_option(void *arg, const struct option_spec *s, size_t offset)
{
    FILE *f = arg;

    (void)offset;
    if (s->hidden) {
        return 0;
    }
    if (s->short_name) {
        fprintf(f, "*-%c*, ", s->short_name);
    }
    fprintf(f, "*--%s*", s->name);
    if (s->argument) {
        fprintf(f, s->bare ? "[=_%s_]" : " _%s_", s->argument);
    }
    fputs("\n\t", f);
    escaped(f, s->help);
    const char *fallback = s->fallback_help ? s->fallback_help : s->fallback;
    if (fallback) {
        fputs(" Default: ", f);
        escaped(f, fallback);
        fputc('.', f);
    }
    fputs("\n\n", f);
    return 0;
}

static void man_exits(FILE *f, const struct command *c)
{
    fputs("# EXIT STATUS\n\n", f);
    if (c->exits) {
        for (const struct command_exit *e = c->exits; e->what; e++) {
            fprintf(f, "*%d*\n\t", e->code);
            escaped(f, e->what);
            fputs("\n\n", f);
        }
        return;
    }
    fputs("*0*\n\tDone.\n\n*1*\n\tIt failed; standard error says why.\n\n"
          "*2*\n\tThe command line was wrong; nothing was done.\n\n",
          f);
}

void help_man(FILE *f, const struct command *c, const char *prose)
{
    fprintf(f, "penstock-%s(1)\n\n# NAME\n\npenstock-%s - ", c->name, c->name);
    escaped(f, c->summary);
    fputs("\n\n# SYNOPSIS\n\n", f);
    for (unsigned i = 0; c->usage[i]; i++) {
        fprintf(f, "*penstock %s* ", c->name);
        escaped(f, c->usage[i]);
        fputs("\n\n", f);
    }
    fputs("# DESCRIPTION\n\n", f);
    if (prose && *prose) {
        fputs(prose, f);
    } else {
        escaped(f, c->summary);
        fputs(".\n", f);
    }
    fputs("\n# OPTIONS\n\n", f);
    if (c->options) {
        options_walk(c->options, 0, man_option, f);
    }
    options_walk(common_options, 0, man_option, f);
    man_exits(f, c);
    for (const struct command_example *e = c->examples; e && e->command; e++) {
        fputs(e == c->examples ? "# EXAMPLES\n\n" : "", f);
        escaped(f, e->what);
        fprintf(f, "\n\n```\n%s\n```\n\n", e->command);
    }
    fputs("# SEE ALSO\n\n*penstock*(1)\n", f);
}

void help_man_overview(FILE *f, const char *prose)
{
    fputs("penstock(1)\n\n# NAME\n\npenstock - the bulk data of virtual machines\n\n"
          "# SYNOPSIS\n\n*penstock* _COMMAND_ [_OPTION_]... [_OPERAND_]...\n\n"
          "*penstock* *--help* | *--version*\n\n# DESCRIPTION\n\n",
          f);
    fputs(prose ? prose : "", f);
    fputs("\n# COMMANDS\n\n", f);
    for (unsigned i = 0; cli_commands[i]; i++) {
        if (!cli_commands[i]->hidden) {
            fprintf(f, "*penstock-%s*(1)\n\t", cli_commands[i]->name);
            upper(f, (char[]){cli_commands[i]->summary[0], '\0'});
            escaped(f, cli_commands[i]->summary + 1);
            fputs(".\n\n", f);
        }
    }
    fputs("# OPTIONS\n\n*-h*, *--help*\n\tShow the commands.\n\n"
          "*-V*, *--version*\n\tShow the version and what is built in.\n",
          f);
}
