/*
 * src/cli/option.c: what each kind of option takes, and what the messages say.
 */
#include "cli/option.h"

#include "tap.h"

#include <errno.h>

enum colour { RED, GREEN };

struct inner {
    uint64_t port;
    struct option_list names;
};

struct sample {
    bool flag;
    unsigned count;
    uint64_t size, number, wait_ns;
    const char *text, *maybe;
    enum colour colour;
    struct inner inner;
    char order[64]; /* what the calls and the operands were, in order */
};

static void note(struct sample *s, char what, const char *value)
{
    size_t len = strlen(s->order);
    snprintf(s->order + len, sizeof(s->order) - len, "%c%s,", what, value);
}

static int call(void *base, const char *value, struct error *err)
{
    if (strcmp(value, "bad") == 0) {
        return error_set(err, EINVAL, "\"bad\" is bad");
    }
    note(base, 'c', value);
    return 0;
}

static int operand(void *base, const char *value, struct error *err)
{
    (void)err;
    note(base, 'o', value);
    return 0;
}

static int take(char *const *argv, int argc, char **ret, struct error *err)
{
    int n = 1;
    if (strcmp(argv[0], "[") == 0) {
        while (n < argc && strcmp(argv[n], "]") != 0) {
            n++;
        }
        if (n++ == argc) {
            return error_set(err, EINVAL, "\"[\" without \"]\"");
        }
    }
    *ret = strdup(argv[n - 1]);
    return n;
}

/* clang-format off */
static const struct option_spec inner_table[] = {
    {"port", 'p', OPT_NUMBER(struct inner, port), "N", "A port.", .fallback = "10809",
        .min = 1, .max = 65535},
    {"name", 0, OPT_LIST(struct inner, names), "NAME", "A name."},
    {},
};

static const struct option_spec table[] = {
    {"flag", 'f', OPT_FLAG(struct sample, flag), .help = "A flag."},
    {"count", 'c', OPT_COUNT(struct sample, count), .help = "A count."},
    {"size", 's', OPT_SIZE(struct sample, size), "SIZE", "A size.", .fallback = "64K",
        .min = 512, .max = 1 << 20, .words = (const struct option_word[]){{"none", 7}, {}}},
    {"number", 'n', OPT_NUMBER(struct sample, number), "N", "A number."},
    {"wait", 'w', OPT_SECONDS(struct sample, wait_ns), "SECONDS", "A time.", .fallback = "1.5",
        .max = 60},
    {"text", 't', OPT_STRING(struct sample, text), "TEXT", "A text."},
    {"maybe", 'm', OPT_STRING(struct sample, maybe), "TEXT", "A text.", .bare = "bare"},
    {"colour", 0, OPT_CHOICE(struct sample, colour), "COLOUR", "A colour.", .fallback = "green",
        .words = (const struct option_word[]){{"red", RED}, {"green", GREEN}, {}}},
    {"call", 0, OPT_CALL(), "TEXT", "A call.", .call = call},
    {OPT_INCLUDE(struct sample, inner, inner_table)},
    {},
};
/* clang-format on */

#define WORDS_MAX 100

/* Parses the words of line (split at blanks) into s; the parser is left in *p. */
static int parse(const char *line, struct sample *s, struct option_parser *p, struct error *err)
{
    static const struct option_spec *const tables[] = {table, NULL};
    static void *bases[1];
    static char copy[1024];
    char *argv[WORDS_MAX];
    int argc = 0;

    *s = (struct sample){};
    bases[0] = s;
    *p = (struct option_parser){.tables = tables, .bases = bases, .take = take, .operand = operand};
    error_clear(err);
    snprintf(copy, sizeof(copy), "%s", line);
    char *rest = copy;
    for (char *word; argc < WORDS_MAX && (word = strsep(&rest, " "));) {
        if (*word) {
            argv[argc++] = word;
        }
    }
    options_fallback(p);
    return options_parse(p, argc, argv, err);
}

static void fallbacks(void)
{
    struct sample s;
    struct option_parser p;
    struct error err;

    EQ(parse("", &s, &p, &err), 0);
    OK(!s.flag);
    EQ(s.size, 65536);
    EQ(s.number, 0);
    EQ(s.wait_ns, 1500000000);
    OK(!s.text && !s.maybe);
    EQ(s.colour, GREEN);
    EQ(s.inner.port, 10809);
    EQ(p.operands.count, 0);
    OK(!option_given(&p, "size") && !option_given(&p, "port"));
}

static void every_kind(void)
{
    struct sample s;
    struct option_parser p;
    struct error err;

    EQ(parse(
           "--flag -ccc --size=1K --number 5 --wait 0.25 --text= --maybe=x --colour red --port=80 "
           "--name a --name=b --call x",
           &s, &p, &err),
       0);
    OK(s.flag);
    EQ(s.count, 3);
    EQ(s.size, 1024);
    EQ(s.number, 5);
    EQ(s.wait_ns, 250000000);
    STREQ(s.text, "");
    STREQ(s.maybe, "x");
    EQ(s.colour, RED);
    EQ(s.inner.port, 80);
    EQ(s.inner.names.count, 2);
    STREQ(s.inner.names.items[1], "b");
    STREQ(s.order, "cx,");
    OK(option_given(&p, "size") && option_given(&p, "name") && option_given(&p, "count"));
    operands_done(&p.operands);
}

static void words_and_short_options(void)
{
    struct sample s;
    struct option_parser p;
    struct error err;

    EQ(parse("--size none -fcn7 -t value -m rest", &s, &p, &err), 0);
    EQ(s.size, 7);
    EQ(s.number, 7);
    EQ(s.count, 1);
    STREQ(s.text, "value");
    STREQ(s.maybe, "bare");
    STREQ(s.order, "orest,");
    operands_done(&p.operands);

    EQ(parse("--maybe rest -mx --number 1 --number 2", &s, &p, &err), 0);
    STREQ(s.maybe, "x");
    EQ(s.number, 2);
    operands_done(&p.operands);
}

static void operands_in_order(void)
{
    struct sample s;
    struct option_parser p;
    struct error err;

    EQ(parse("one --call a two -f - [ prog --flag -x ] --call b -- --flag -c", &s, &p, &err), 0);
    STREQ(s.order, "oone,ca,otwo,o-,o],cb,o--flag,o-c,");
    EQ(p.operands.count, 6);
    EQ(s.count, 0);
    STREQ(p.operands.items[5], "-c");
    operands_done(&p.operands);
}

static void mistakes(void)
{
    static const struct {
        const char *line, *text;
    } rows[] = {
        {"--nothing-like-it", "unknown option --nothing-like-it"},
        {"--siez=5", "unknown option --siez (did you mean --size?)"},
        {"--col=red", "unknown option --col (did you mean --colour?)"},
        {"-z", "unknown option -z"},
        {"-fz", "unknown option -z"},
        {"--flag=yes", "--flag: takes no argument"},
        {"--size", "--size: needs an argument (SIZE)"},
        {"-fs", "-s: needs an argument (SIZE)"},
        {"--size=lots", "--size: \"lots\" is not a size (such as 512, 64K or 1.5G), or none"},
        {"--size=-5", "--size: \"-5\" is not a size (such as 512, 64K or 1.5G), or none"},
        {"--size=511", "--size: 511 is not within 512 B to 1 MiB, or none"},
        {"--size=2M", "--size: 2M is not within 512 B to 1 MiB, or none"},
        {"-s2M", "-s: 2M is not within 512 B to 1 MiB, or none"},
        {"--number=", "--number: \"\" is not a whole number"},
        {"--number=99999999999999999999", "--number: 99999999999999999999 is out of range"},
        {"--port=0", "--port: 0 is not within 1 to 65535"},
        {"--wait=x", "--wait: \"x\" is not a number of seconds"},
        {"--wait=61", "--wait: 61 is not within 0 to 60"},
        {"--colour=blue", "--colour: \"blue\" is not one of red or green"},
        {"--call=bad", "--call: \"bad\" is bad"},
        {"[ prog", "\"[\" without \"]\""},
    };
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sample s;
        struct option_parser p;
        struct error err;
        EQ(parse(rows[i].line, &s, &p, &err), -EINVAL);
        STREQ(err.text, rows[i].text);
        operands_done(&p.operands);
    }
}

static void too_many(void)
{
    struct sample s;
    struct option_parser p;
    struct error err;
    char line[1024] = "";

    for (unsigned i = 0; i < 65; i++) {
        memcpy(line + i * 9, "--name=x ", 10);
    }
    EQ(parse(line, &s, &p, &err), -EINVAL);
    STREQ(err.text, "--name: given more than 64 times");
    EQ(s.inner.names.count, 64);
}

int main(void)
{
    RUN(fallbacks);
    RUN(every_kind);
    RUN(words_and_short_options);
    RUN(operands_in_order);
    RUN(mistakes);
    RUN(too_many);
    return tap_done();
}
