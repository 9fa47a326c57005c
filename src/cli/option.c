/*
 * The option parser: see option.h for what a table says.
 *
 * The tables are flattened first (includes resolved, each option with the address of its field),
 * then argv is gone through once. Every argument, typed or fallback, goes through set_value(), so
 * there is one place that turns text into values for each kind.
 *
 * Long names must be written in full: scripts that abbreviate would break when an option is added.
 * A near miss is named in the error text instead.
 */
#include "cli/option.h"

#include "core/log.h"
#include "core/size.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct slot {
    const struct option_spec *spec;
    char *base;  /* the struct that the table it is in describes */
    char *field; /* where its value goes */
};

struct slots {
    unsigned count;
    struct slot items[OPTIONS_MAX];
    char *base; /* of the table that is being flattened */
};

int options_walk(const struct option_spec *table, size_t offset,
                 int (*fn)(void *arg, const struct option_spec *spec, size_t offset), void *arg)
{
    for (const struct option_spec *s = table; s->name || s->kind == OPTION_INCLUDE; s++) {
        int r;
        if (s->kind == OPTION_INCLUDE) {
            r = options_walk(s->include, offset + s->offset, fn, arg);
        } else {
            r = fn(arg, s, offset + s->offset);
        }
        if (r) {
            return r;
        }
    }
    return 0;
}

static int add_slot(void *arg, const struct option_spec *spec, size_t offset)
{
    struct slots *all = arg;

    assert(all->count < OPTIONS_MAX);
    struct slot *s = &all->items[all->count++];
    s->spec = spec;
    s->field = all->base + offset;
    s->base = s->field - spec->offset;
    return 0;
}

static void flatten(const struct option_parser *p, struct slots *all)
{
    all->count = 0;
    for (unsigned i = 0; p->tables[i]; i++) {
        all->base = p->bases[i];
        options_walk(p->tables[i], 0, add_slot, all);
    }
}

static const struct option_word *find_word(const struct option_word *words, const char *text)
{
    assert(text);
    for (; words && words->word; words++) {
        if (strcmp(words->word, text) == 0) {
            return words;
        }
    }
    return NULL;
}

/* "a, b or c" for messages; cut where it does not fit. */
static void list_words(const struct option_word *words, char *buf, size_t size)
{
    size_t used = 0;

    buf[0] = '\0';
    for (const struct option_word *w = words; w && w->word; w++) {
        const char *join = w == words ? "" : w[1].word ? ", " : " or ";
        size_t need = strlen(join) + strlen(w->word);
        if (need >= size - used) {
            return;
        }
        memcpy(buf + used, join, strlen(join));
        memcpy(buf + used + strlen(join), w->word, strlen(w->word) + 1);
        used += need;
    }
}

static int refuse(const struct option_spec *spec, const char *value, int code, struct error *err)
{
    static const char *const what[] = {
        [OPTION_SIZE] = "a size (such as 512, 64K or 1.5G)",
        [OPTION_NUMBER] = "a whole number",
        [OPTION_SECONDS] = "a number of seconds",
    };
    char shown[128], words[128], least[SIZE_TEXT_MAX], most[SIZE_TEXT_MAX];

    assert(value);
    log_escape(shown, sizeof(shown), value, strlen(value));
    list_words(spec->words, words, sizeof(words));
    if (spec->kind == OPTION_CHOICE) {
        return error_set(err, EINVAL, "\"%s\" is not one of %s", shown, words);
    }
    const char *join = words[0] ? ", or " : "";
    if (code != -ERANGE) {
        return error_set(err, EINVAL, "\"%s\" is not %s%s%s", shown, what[spec->kind], join, words);
    }
    if (spec->max == 0) {
        return error_set(err, EINVAL, "%s is out of range", shown);
    }
    if (spec->kind == OPTION_SIZE) {
        return error_set(err, EINVAL, "%s is not within %s to %s%s%s", shown,
                         size_format(spec->min, least), size_format(spec->max, most), join, words);
    }
    return error_set(err, EINVAL, "%s is not within %llu to %llu%s%s", shown,
                     (unsigned long long)spec->min, (unsigned long long)spec->max, join, words);
}

static int parse_number(const struct option_spec *spec, const char *value, uint64_t *ret)
{
    uint64_t most = spec->max ? spec->max : UINT64_MAX;
    int r;

    switch (spec->kind) {
    case OPTION_SIZE:
        r = size_parse(value, most, ret);
        return r == 0 && *ret < spec->min ? -ERANGE : r;
    case OPTION_NUMBER:
        return number_parse(value, spec->min, most, ret);
    default:
        /* Seconds end up as nanoseconds in 64 bits: 500 years is for ever. */
        return seconds_parse(value, spec->max ? spec->max : UINT64_C(15000000000), ret);
    }
}

static int set_number(const struct slot *s, const char *value, struct error *err)
{
    const struct option_word *word = find_word(s->spec->words, value);
    uint64_t number;

    if (word) {
        number = word->value;
    } else {
        int r = parse_number(s->spec, value, &number);
        if (r < 0) {
            return refuse(s->spec, value, r, err);
        }
    }
    memcpy(s->field, &number, sizeof(number));
    return 0;
}

static int set_choice(const struct slot *s, const char *value, struct error *err)
{
    const struct option_word *word = find_word(s->spec->words, value);

    if (!word) {
        return refuse(s->spec, value, -EINVAL, err);
    }
    unsigned choice = (unsigned)word->value;
    memcpy(s->field, &choice, sizeof(choice));
    return 0;
}

static int set_list(const struct slot *s, const char *value, struct error *err)
{
    struct option_list list;

    memcpy(&list, s->field, sizeof(list));
    if (list.count == sizeof(list.items) / sizeof(list.items[0])) {
        return error_set(err, EINVAL, "given more than %u times", list.count);
    }
    list.items[list.count++] = value;
    memcpy(s->field, &list, sizeof(list));
    return 0;
}

/* value: the argument, NULL where the option takes none. err is without the option's name. */
static int set_value(const struct slot *s, const char *value, struct error *err)
{
    bool yes = true;
    unsigned count;

    /* A table whose option has a value to parse and no argument is our own mistake. */
    assert(value || s->spec->kind == OPTION_FLAG || s->spec->kind == OPTION_COUNT ||
           s->spec->kind == OPTION_CALL);
    switch (s->spec->kind) {
    case OPTION_FLAG:
        memcpy(s->field, &yes, sizeof(yes));
        return 0;
    case OPTION_COUNT:
        memcpy(&count, s->field, sizeof(count));
        count++;
        memcpy(s->field, &count, sizeof(count));
        return 0;
    case OPTION_SIZE:
    case OPTION_NUMBER:
    case OPTION_SECONDS:
        return set_number(s, value, err);
    case OPTION_STRING:
        memcpy(s->field, &value, sizeof(value));
        return 0;
    case OPTION_CHOICE:
        return set_choice(s, value, err);
    case OPTION_LIST:
        return set_list(s, value, err);
    case OPTION_CALL:
        return s->spec->call(s->base, value, err);
    case OPTION_INCLUDE:
        break;
    }
    assert(!"an include is no option");
    return -EINVAL;
}

void options_fallback(const struct option_parser *p)
{
    struct slots all;

    flatten(p, &all);
    for (unsigned i = 0; i < all.count; i++) {
        if (all.items[i].spec->fallback) {
            int r = set_value(&all.items[i], all.items[i].spec->fallback, NULL);
            assert(r == 0);
            (void)r;
        }
    }
}

/* Levenshtein distance, cut off: names are short and only 0..2 are of interest. */
static unsigned distance(const char *a, const char *b)
{
    size_t la = strlen(a), lb = strlen(b);
    unsigned row[64];

    if (la >= 63 || lb >= 63) {
        return 63;
    }
    for (size_t j = 0; j <= lb; j++) {
        row[j] = (unsigned)j;
    }
    for (size_t i = 1; i <= la; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= lb; j++) {
            unsigned replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            unsigned longer = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = replaced < longer ? replaced : longer;
        }
    }
    return row[lb];
}

static int unknown_long(const struct slots *all, const char *name, size_t len, struct error *err)
{
    char shown[64], plain[64];
    const char *near = NULL;
    unsigned best = 3;

    log_escape(shown, sizeof(shown), name, len);
    if (len < sizeof(plain)) {
        memcpy(plain, name, len);
        plain[len] = '\0';
        for (unsigned i = 0; i < all->count; i++) {
            const struct option_spec *s = all->items[i].spec;
            bool starts = len >= 2 && strncmp(s->name, plain, len) == 0;
            unsigned d = starts ? 1 : distance(s->name, plain);
            if (!s->hidden && d < best) {
                best = d;
                near = s->name;
            }
        }
    }
    if (near) {
        return error_set(err, EINVAL, "unknown option --%s (did you mean --%s?)", shown, near);
    }
    return error_set(err, EINVAL, "unknown option --%s", shown);
}

static void mark_given(struct option_parser *p, unsigned i)
{
    p->given[i / 64] |= UINT64_C(1) << (i % 64);
}

/* argv[*at] starts with "--" and is longer. *at is left on the last word that was used. */
static int parse_long(struct option_parser *p, struct slots *all, int argc, char *const *argv,
                      int *at, struct error *err)
{
    const char *name = argv[*at] + 2;
    size_t len = strcspn(name, "=");
    const char *value = name[len] ? name + len + 1 : NULL;
    unsigned i = 0;

    while (i < all->count && (strlen(all->items[i].spec->name) != len ||
                              strncmp(all->items[i].spec->name, name, len) != 0)) {
        i++;
    }
    if (i == all->count) {
        return unknown_long(all, name, len, err);
    }
    const struct option_spec *s = all->items[i].spec;
    if (!s->argument && value) {
        return error_set(err, EINVAL, "--%s: takes no argument", s->name);
    }
    if (s->argument && !value) {
        if (s->bare) {
            value = s->bare;
        } else if (*at + 1 < argc) {
            value = argv[++*at];
        } else {
            return error_set(err, EINVAL, "--%s: needs an argument (%s)", s->name, s->argument);
        }
    }
    mark_given(p, i);
    int r = set_value(&all->items[i], value, err);
    return r < 0 ? error_prefix(err, "--%s", s->name), -EINVAL : 0;
}

/* argv[*at] is "-abc". */
static int parse_short(struct option_parser *p, struct slots *all, int argc, char *const *argv,
                       int *at, struct error *err)
{
    for (const char *c = argv[*at] + 1; *c; c++) {
        unsigned i = 0;
        while (i < all->count && all->items[i].spec->short_name != *c) {
            i++;
        }
        if (i == all->count) {
            char shown[8];
            log_escape(shown, sizeof(shown), c, 1);
            return error_set(err, EINVAL, "unknown option -%s", shown);
        }
        const struct option_spec *s = all->items[i].spec;
        const char *value = NULL;
        bool rest = false;
        if (s->argument && c[1]) {
            value = c + 1;
            rest = true;
        } else if (s->argument && s->bare) {
            value = s->bare;
        } else if (s->argument && *at + 1 < argc) {
            value = argv[++*at];
            rest = true;
        } else if (s->argument) {
            return error_set(err, EINVAL, "-%c: needs an argument (%s)", *c, s->argument);
        }
        mark_given(p, i);
        if (set_value(&all->items[i], value, err) < 0) {
            error_prefix(err, "-%c", *c);
            return -EINVAL;
        }
        if (rest) {
            break;
        }
    }
    return 0;
}

/* Takes the operand at argv[0]; returns how many words it was made of. */
static int take_operand(struct option_parser *p, char *const *argv, int argc, struct error *err)
{
    struct operands *o = &p->operands;
    char *item = NULL;
    int used = 1;

    if (p->take) {
        used = p->take(argv, argc, &item, err);
        if (used < 0) {
            return used;
        }
    } else {
        item = strdup(argv[0]);
    }
    char **grown = NULL;
    if (item && o->count < OPERANDS_MAX) {
        grown = realloc(o->items, (o->count + 1) * sizeof(*grown));
    }
    if (!grown) {
        free(item);
        return error_set(err, ENOMEM, o->count == OPERANDS_MAX ? "too many words" : "no memory");
    }
    grown[o->count++] = item;
    o->items = grown;
    if (p->operand) {
        int r = p->operand(p->bases[0], item, err);
        if (r < 0) {
            return r;
        }
    }
    return used;
}

int options_parse(struct option_parser *p, int argc, char *const *argv, struct error *err)
{
    struct slots all;
    bool options_over = false;

    flatten(p, &all);
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        bool dash = !options_over && word[0] == '-' && word[1];
        int r;
        if (dash && strcmp(word, "--") == 0) {
            options_over = true;
            continue;
        }
        if (dash && word[1] == '-') {
            r = parse_long(p, &all, argc, argv, &i, err);
        } else if (dash) {
            r = parse_short(p, &all, argc, argv, &i, err);
        } else {
            r = take_operand(p, argv + i, argc - i, err);
            i += r > 0 ? r - 1 : 0;
        }
        if (r < 0) {
            return -EINVAL;
        }
    }
    return 0;
}

bool option_given(const struct option_parser *p, const char *name)
{
    struct slots all;

    flatten(p, &all);
    for (unsigned i = 0; i < all.count; i++) {
        if (strcmp(all.items[i].spec->name, name) == 0) {
            return (p->given[i / 64] >> (i % 64)) & 1;
        }
    }
    assert(!"no such option in the tables");
    return false;
}

void operands_done(struct operands *o)
{
    for (unsigned i = 0; i < o->count; i++) {
        free(o->items[i]);
    }
    free(o->items);
    o->items = NULL;
    o->count = 0;
}
