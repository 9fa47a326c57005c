/*
 * What has to be made known to the rooms below before the first endpoint is opened.
 */
#ifndef CLI_SETUP_H
#define CLI_SETUP_H

#include "core/error.h"

/* Registers the endpoint drivers of upper rooms. Main thread, before a worker runs. */
void command_setup(void);

/* As option_take_fn: a word, or "[ PROGRAM ARG ... ]". */
int command_take(char *const *argv, int argc, char **ret, struct error *err);

#endif
