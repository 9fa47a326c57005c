/*
 * The texts that are made of the option tables: --help, man pages (scdoc source), completions.
 */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include "cli/command.h"

#include <stdio.h>

/* The options that every command has: --help, --verbose, --quiet. */
struct common_cli {
    bool help;
    unsigned verbose;
    bool quiet;
};
extern const struct option_spec common_options[];

/* penstock --help. */
void help_overview(FILE *f);
/* penstock COMMAND --help. */
void help_command(FILE *f, const struct command *c);

/* scdoc source of a command's page; prose (may be NULL) is what stands under DESCRIPTION, and may
 * bring sections of its own. */
void help_man(FILE *f, const struct command *c, const char *prose);
/* The page of penstock itself: the list of commands, then the prose. */
void help_man_overview(FILE *f, const char *prose);

/* shell: "bash", "zsh" or "fish". 0 or -EINVAL. */
int help_completion(FILE *f, const char *shell);

/* One line an option, "--name" or "-s": what the tests compare the above with. */
void help_names(FILE *f, const struct command *c);

#endif
