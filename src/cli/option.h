/*
 * Options as a table. One table a subcommand says everything about its options, and the parser,
 * --help, the man page's OPTIONS and the shell completions are all made of it.
 *
 *     struct copy_cli { uint64_t chunk; bool sparse; struct endpoint_cli endpoint; };
 *     static const struct option_spec options[] = {
 *         {"chunk", 'c', OPT_SIZE(struct copy_cli, chunk), "SIZE", "Bytes a request.",
 *             .fallback = "256K", .min = 4096, .max = 64 << 20},
 *         {"sparse", 0, OPT_FLAG(struct copy_cli, sparse), .help = "Leave holes."},
 *         {OPT_INCLUDE(struct copy_cli, endpoint, endpoint_cli_options)},
 *         {},
 *     };
 *
 * The OPT_...() macros check at compile time that the field has the type that the kind writes.
 * `fallback` is parsed like an argument, so the default that is shown is the default that is used.
 */
#ifndef CLI_OPTION_H
#define CLI_OPTION_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPTIONS_MAX 96    /* options of one command, includes counted: more is no interface */
#define OPERANDS_MAX 1024 /* words that are no options */

enum option_kind {
    OPTION_FLAG,    /* bool: true when given */
    OPTION_COUNT,   /* unsigned: how often it was given */
    OPTION_SIZE,    /* uint64_t: bytes, with suffixes */
    OPTION_NUMBER,  /* uint64_t: plain decimal */
    OPTION_SECONDS, /* uint64_t: nanoseconds; written as seconds with a fraction */
    OPTION_STRING,  /* const char *: points into argv */
    OPTION_CHOICE,  /* unsigned or an enum: one of words */
    OPTION_LIST,    /* struct option_list: a string, repeatable */
    OPTION_CALL,    /* calls; for options whose order among the operands matters */
    OPTION_INCLUDE, /* another table, for a struct inside this one */
};

/* What an argument is, for completion and nothing else. */
enum option_complete { COMPLETE_NOTHING, COMPLETE_FILE, COMPLETE_DIRECTORY };

/* A word that may stand for a value: "none" for 0, the alternatives of a choice. */
struct option_word {
    const char *word; /* NULL ends the array */
    uint64_t value;
};

struct option_list {
    unsigned count;
    const char *items[64];
};

struct option_spec {
    const char *name; /* long name without dashes; NULL with kind FLAG ends the table */
    char short_name;  /* 0: none */
    enum option_kind kind;
    size_t offset;             /* of the field in the command's struct; OPTION_CALL: not used */
    const char *argument;      /* its argument's name in the help, "SIZE"; NULL: takes none */
    const char *help;          /* one sentence or more, plain text */
    const char *fallback;      /* the default, as one would type it; NULL: zero */
    const char *fallback_help; /* what the help says the default is, where fallback can't */
    const char *bare;          /* the argument may be left out ("--progress"), and is then this; an
                                * argument is then given with '=' only */
    uint64_t min, max; /* SIZE, NUMBER: bytes or count; SECONDS: max in seconds. max 0: any */
    const struct option_word *words;
    const struct option_spec *include;
    /* OPTION_CALL: base is the command's struct, value NULL where it takes no argument. 0 or
     * -errno with err (without the option's name). */
    int (*call)(void *base, const char *value, struct error *err);
    enum option_complete complete;
    bool hidden; /* works, but is in no help */
};

/* clang-format off */
#define OPTION_FIELD_(type, member, ctype) \
    (offsetof(type, member) + (size_t)_Generic(((type *)0)->member, ctype : 0))
#define OPT_FLAG(type, member) OPTION_FLAG, OPTION_FIELD_(type, member, bool)
#define OPT_COUNT(type, member) OPTION_COUNT, OPTION_FIELD_(type, member, unsigned)
#define OPT_SIZE(type, member) OPTION_SIZE, OPTION_FIELD_(type, member, uint64_t)
#define OPT_NUMBER(type, member) OPTION_NUMBER, OPTION_FIELD_(type, member, uint64_t)
#define OPT_SECONDS(type, member) OPTION_SECONDS, OPTION_FIELD_(type, member, uint64_t)
#define OPT_STRING(type, member) OPTION_STRING, OPTION_FIELD_(type, member, const char *)
#define OPT_CHOICE(type, member) OPTION_CHOICE, OPTION_FIELD_(type, member, unsigned)
#define OPT_LIST(type, member) OPTION_LIST, OPTION_FIELD_(type, member, struct option_list)
#define OPT_CALL() OPTION_CALL, 0
#define OPT_INCLUDE(type, member, table) \
    .kind = OPTION_INCLUDE, .offset = offsetof(type, member), .include = (table)
/* clang-format on */

/* The words that were no options, in order. */
struct operands {
    unsigned count;
    char **items; /* owned, each malloc'ed */
};

/*
 * How many words at argv make one operand (1 unless it is a bracketed "[ PROGRAM ARG ... ]"), with
 * the operand malloc'ed in *ret; -errno with err. endpoint_take_args() is one.
 */
typedef int option_take_fn(char *const *argv, int argc, char **ret, struct error *err);

struct option_parser {
    const struct option_spec *const *tables; /* NULL ends */
    void *const *bases;                      /* the struct that each table writes to */
    option_take_fn *take;                    /* NULL: a word is an operand */
    /* Called for each operand in its turn among the options; NULL: nobody wants it. The operand is
     * also in `operands`, where it lives on. */
    int (*operand)(void *base, const char *operand, struct error *err);
    struct operands operands;                /* filled in; operands_done() */
    uint64_t given[(OPTIONS_MAX + 63) / 64]; /* which options were there */
};

/*
 * Writes the fallbacks of all tables. A fallback that does not parse is our own mistake
 * (asserted; a unit test walks all tables).
 */
void options_fallback(const struct option_parser *p);

/*
 * Parses argv[0 .. argc-1] (no program name among them). Options may follow operands, "--" ends
 * them, "-" is an operand, "-abc" is "-a -b -c", "-n5" and "-n 5", "--name=5" and "--name 5".
 * 0, or -EINVAL with an err that names the option. A later option wins over an earlier one.
 */
int options_parse(struct option_parser *p, int argc, char *const *argv, struct error *err);

/* Whether an option was on the command line. The name must be in the tables (asserted). */
bool option_given(const struct option_parser *p, const char *name);

void operands_done(struct operands *o);

/*
 * Walks a table, includes flattened: fn gets each option and where its field is, counted from the
 * table's struct. Stops when fn returns non-zero, and returns that.
 */
int options_walk(const struct option_spec *table, size_t offset,
                 int (*fn)(void *arg, const struct option_spec *spec, size_t offset), void *arg);

#endif
