/*
 * The pipe at the other end of save and restore.
 */
#ifndef CLI_PIPE_CLI_H
#define CLI_PIPE_CLI_H

#include "channel/sizing.h"
#include "cli/option.h"

/* "auto" and "default", for --pipe-size. */
extern const struct option_word pipe_size_words[];

/* Sizes fd if it is a pipe; *ret says what was asked for and got (zeros if it is none). */
void pipe_cli_size(int fd, uint64_t asked, struct sizing *ret);

#endif
