/*
 * The list of all commands, in the order in which the help shows them. One a line.
 */
#include "cli/command.h"

#include <string.h>

extern const struct command cmd_compare;
extern const struct command cmd_copy;
extern const struct command cmd_info;
extern const struct command cmd_map;
extern const struct command cmd_restore;
extern const struct command cmd_bench;
extern const struct command cmd_save;
extern const struct command cmd_serve;
extern const struct command cmd_tune;
extern const struct command cmd_sum;
extern const struct command cmd_doc;

const struct command *const cli_commands[] = {
    &cmd_serve, &cmd_copy,    &cmd_sum,   &cmd_compare, &cmd_map, &cmd_info,
    &cmd_save,  &cmd_restore, &cmd_bench, &cmd_tune,    &cmd_doc, /* hidden */
    NULL,
};

const struct command *cli_command_find(const char *name)
{
    for (unsigned i = 0; cli_commands[i]; i++) {
        if (strcmp(cli_commands[i]->name, name) == 0) {
            return cli_commands[i];
        }
    }
    return NULL;
}
