/*
 * The list of all commands, in the order in which the help shows them. One a line.
 */
#include "cli/command.h"

#include <string.h>

extern const struct command cmd_doc;

const struct command *const commands[] = {
    &cmd_doc, /* hidden */
    NULL,
};

const struct command *command_find(const char *name)
{
    for (unsigned i = 0; commands[i]; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}
