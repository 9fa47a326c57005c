/*
 * A subcommand: what it is called, what it takes, what it does. commands.c lists them; main.c
 * finds the one that is asked for, parses its options and calls run().
 *
 * A command that is added: a file cmd_NAME.c with one `const struct command cmd_NAME`, its name
 * in commands.c's list and in meson.build, and its prose in docs/man/penstock-NAME.scd.in.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "cli/option.h"
#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>

enum exit_code {
    EXIT_DONE = 0,
    EXIT_FAILED = 1, /* it was tried and did not work */
    EXIT_USAGE = 2,  /* the command line was wrong: nothing was tried */
    EXIT_DIFFER = 3, /* compare: the disks differ */
};

#define OPERANDS_ANY UINT32_MAX

struct command_example {
    const char *command; /* as one would type it */
    const char *what;    /* a sentence */
};

struct command_exit {
    int code;
    const char *what; /* instead of the usual text */
};

struct command_run;

struct command {
    const char *name;
    const char *summary;               /* half a sentence, lower case, no full stop */
    const char *const *usage;          /* what follows "penstock NAME"; NULL ends */
    const struct option_spec *options; /* NULL: none of its own */
    size_t options_size;               /* of the struct that they write to */
    const char *operands;              /* what they are called in errors: "SOURCE and TARGET" */
    unsigned operands_min, operands_max;
    bool endpoints; /* operands are endpoints: "[ PROGRAM ARG ]" is one */
    bool in_worker; /* run() is called from a fiber, with SIGTERM and SIGINT in sigwait_next() */
    bool hidden;    /* in no help */
    /* As in option_parser: the operands in their turn; base is the options' struct. */
    int (*operand)(void *base, const char *operand, struct error *err);
    /* Does it. Returns an enum exit_code, having said on stderr what went wrong. */
    int (*run)(struct command_run *r);
    /* Frees what OPTION_CALL and operand() put into the options' struct; also after wrong use. */
    void (*options_done)(void *options);
    const struct command_example *examples; /* command NULL ends */
    const struct command_exit *exits;       /* what NULL ends; more than the usual codes */
};

struct command_run {
    const struct command *command;
    const struct option_parser *parser; /* for option_given() */
    void *options;                      /* the command's own struct; zeroed, fallbacks, arguments */
    const struct operands *operands;
    unsigned verbose; /* -v's */
    bool quiet;
};

/* All commands, NULL ends. */
extern const struct command *const cli_commands[];
const struct command *cli_command_find(const char *name);

/* "penstock: ERROR" on stderr; returns EXIT_FAILED. */
int command_failed(const struct error *err);
/* "penstock NAME: TEXT (try: penstock NAME --help)" on stderr; returns EXIT_USAGE. For what a table
 * can't say: options that exclude each other. */
int command_misused(const struct command_run *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Writes out stdout: EXIT_DONE, or EXIT_FAILED with a message (a full disk, a closed pipe). Every
 * command that answers ends with it; code is returned when stdout is fine. */
int command_flush(int code);

/* What main() does. */
int cli_main(int argc, char **argv);

#endif
