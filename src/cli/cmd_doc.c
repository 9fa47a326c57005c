/*
 * penstock __doc: what the build and the tests ask the option tables for. Hidden.
 *
 *   commands                    the commands' names
 *   names COMMAND               its options, "--name" and "-s", one a line
 *   help COMMAND                as COMMAND --help
 *   man COMMAND [PROSE-FILE]    scdoc source; COMMAND "penstock" is the overview
 *   completion SHELL            bash, zsh or fish
 */
#include "cli/command.h"
#include "cli/help.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROSE_MAX (1u << 20)

/* The whole file, malloc'ed and terminated; NULL with errno. */
static char *slurp(const char *path)
{
    FILE *f = fopen(path, "re");
    char *text = f ? malloc(PROSE_MAX + 1) : NULL;
    size_t n = text ? fread(text, 1, PROSE_MAX, f) : 0;

    if (f) {
        fclose(f);
    }
    if (text) {
        text[n] = '\0';
    }
    return text;
}

static void names_of_commands(FILE *f)
{
    for (unsigned i = 0; cli_commands[i]; i++) {
        if (!cli_commands[i]->hidden) {
            fprintf(f, "%s\n", cli_commands[i]->name);
        }
    }
}

static int man(const char *name, const struct command *c, const char *prose_path)
{
    char *prose = NULL;

    if (prose_path && !(prose = slurp(prose_path))) {
        fprintf(stderr, "penstock: %s: %s\n", prose_path, strerror(errno));
        return EXIT_FAILED;
    }
    if (c) {
        help_man(stdout, c, prose);
    } else {
        help_man_overview(stdout, prose);
    }
    free(prose);
    (void)name;
    return EXIT_DONE;
}

static int run_doc(struct command_run *r)
{
    char *const *words = r->operands->items;
    unsigned n = r->operands->count;
    const char *name = n > 1 ? words[1] : "";
    const struct command *c = cli_command_find(name);
    int code = EXIT_DONE;

    if (strcmp(words[0], "commands") == 0) {
        names_of_commands(stdout);
    } else if (strcmp(words[0], "names") == 0 && c) {
        help_names(stdout, c);
    } else if (strcmp(words[0], "help") == 0 && c) {
        help_command(stdout, c);
    } else if (strcmp(words[0], "man") == 0 && (c || strcmp(name, "penstock") == 0)) {
        code = man(name, c, n > 2 ? words[2] : NULL);
    } else if (strcmp(words[0], "completion") != 0 || help_completion(stdout, name) < 0) {
        return command_misused(r, "no such text");
    }
    return command_flush(code);
}

const struct command cmd_doc = {
    .name = "__doc",
    .summary = "texts that are made of the option tables",
    .usage = (const char *const[]){"WHAT [NAME [FILE]]", NULL},
    .operands = "WHAT is",
    .operands_min = 1,
    .operands_max = 3,
    .hidden = true,
    .run = run_doc,
};
