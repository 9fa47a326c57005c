/* The parser of fault: specifications (fault.h has the grammar). Pure. */
#include "core/size.h"
#include "volume/fault.h"

#include <errno.h>
#include <string.h>

#define SETTING_MAX 320

struct name_value {
    const char *name;
    unsigned value;
};

static const struct name_value ops[] = {
    {"read", FAULT_READ},       {"write", FAULT_WRITE},     {"flush", FAULT_FLUSH},
    {"zero", FAULT_ZERO},       {"discard", FAULT_DISCARD}, {"cache", FAULT_CACHE},
    {"extents", FAULT_EXTENTS}, {"any", FAULT_ANY},         {NULL, 0},
};

static const struct name_value errnos[] = {
    {"EIO", EIO},
    {"ENOSPC", ENOSPC},
    {"EPERM", EPERM},
    {"EINVAL", EINVAL},
    {"ENOMEM", ENOMEM},
    {"ENOTSUP", ENOTSUP},
    {"EOVERFLOW", EOVERFLOW},
    {"ESHUTDOWN", ESHUTDOWN},
    {"EDQUOT", EDQUOT},
    {"EFBIG", EFBIG},
    {"ETIMEDOUT", ETIMEDOUT},
    {"EAGAIN", EAGAIN},
    {"EACCES", EACCES},
    {"EROFS", EROFS},
    {"ENXIO", ENXIO},
    {"EBUSY", EBUSY},
    {"EPIPE", EPIPE},
    {"ESTALE", ESTALE},
    {"ENODEV", ENODEV},
    {"ECONNRESET", ECONNRESET},
    {"EREMOTEIO", EREMOTEIO},
    {NULL, 0},
};

static const struct name_value caps[] = {
    {"no-fua", VOLUME_CAN_FUA},
    {"no-flush", VOLUME_CAN_FLUSH},
    {"no-zero", VOLUME_CAN_ZERO | VOLUME_CAN_FAST_ZERO},
    {"no-fast-zero", VOLUME_CAN_FAST_ZERO},
    {"no-discard", VOLUME_CAN_DISCARD},
    {"no-cache", VOLUME_CAN_CACHE},
    {"no-extents", VOLUME_CAN_EXTENTS},
    {NULL, 0},
};

static bool look_up(const struct name_value *table, const char *name, unsigned *ret)
{
    for (; table->name; table++) {
        if (strcmp(table->name, name) == 0) {
            *ret = table->value;
            return true;
        }
    }
    return false;
}

/* "50ms", "2s", "100us": up to a day. */
static bool parse_time(char *text, uint64_t *ret_ns)
{
    static const struct name_value units[] = {{"ms", 1000000}, {"us", 1000}, {"ns", 1}};
    size_t len = strlen(text);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (len > 2 && strcmp(text + len - 2, units[i].name) == 0) {
            uint64_t n;
            text[len - 2] = '\0';
            if (number_parse(text, 0, 86400000, &n) < 0) {
                return false;
            }
            *ret_ns = n * units[i].value;
            return true;
        }
    }
    if (len > 1 && text[len - 1] == 's') {
        text[len - 1] = '\0';
    }
    return seconds_parse(text, 86400, ret_ns) == 0;
}

/* "OFFSET[+LENGTH]" */
static bool parse_range(char *text, struct fault_rule *rule)
{
    char *plus = strchr(text, '+');
    rule->len = 1;
    if (plus) {
        *plus = '\0';
        if (size_parse(plus + 1, VOLUME_SIZE_MAX, &rule->len) < 0 || rule->len == 0) {
            return false;
        }
    }
    return size_parse(text, VOLUME_SIZE_MAX, &rule->off) == 0;
}

/* What kind of rule name is, and of which operation. */
static bool parse_kind(char *name, struct fault_rule *rule)
{
    static const struct name_value kinds[] = {
        {"short", FAULT_SHORT},
        {"delay", FAULT_DELAY},
        {"hold", FAULT_HOLD},
        {"flip", FAULT_FLIP},
        {NULL, 0},
    };
    unsigned kind;
    unsigned op = FAULT_ANY;
    char *dash = strrchr(name, '-');
    if (dash && strcmp(dash, "-error") == 0) {
        *dash = '\0';
        rule->kind = FAULT_ERROR;
        if (!look_up(ops, name, &op)) {
            return false;
        }
        rule->op = (enum fault_op)op;
        return true;
    }
    if (dash) {
        *dash = '\0';
        if (!look_up(ops, dash + 1, &op)) {
            return false;
        }
    }
    if (!look_up(kinds, name, &kind)) {
        return false;
    }
    rule->kind = (enum fault_kind)kind;
    rule->op = (enum fault_op)op;
    bool needs_data = kind == FAULT_SHORT || kind == FAULT_FLIP;
    return !needs_data || op == FAULT_READ || op == FAULT_WRITE ||
           (kind == FAULT_SHORT && op == FAULT_ZERO);
}

/* The value of a rule, NULL when there is none. */
static bool parse_value(char *value, struct fault_rule *rule)
{
    unsigned code;
    switch (rule->kind) {
    case FAULT_ERROR:
    case FAULT_SHORT:
        if (!value || !look_up(errnos, value, &code)) {
            return false;
        }
        rule->code = (int)code;
        return true;
    case FAULT_DELAY:
        return value && parse_time(value, &rule->delay_ns);
    case FAULT_HOLD:
        if (value) {
            size_t len = strlen(value);
            if (len == 0 || len >= sizeof(rule->path)) {
                return false;
            }
            memcpy(rule->path, value, len + 1);
        }
        return true;
    case FAULT_FLIP:
        return value == NULL;
    }
    return false;
}

static bool parse_rule(char *text, struct fault_spec *spec)
{
    if (spec->count == FAULT_RULES_MAX) {
        return false;
    }
    struct fault_rule *rule = &spec->rules[spec->count];
    *rule = (struct fault_rule){.count = UINT64_MAX, .percent = 100};
    char *at = strrchr(text, '@');
    if (at) {
        *at = '\0';
        if (!parse_range(at + 1, rule)) {
            return false;
        }
    }
    char *value = strchr(text, '=');
    if (value) {
        *value++ = '\0';
    }
    if (!parse_kind(text, rule) || !parse_value(value, rule)) {
        return false;
    }
    spec->count++;
    return true;
}

static bool parse_limit(const char *text, uint64_t max, bool power_of_two, uint32_t *ret)
{
    uint64_t n;
    if (size_parse(text, max, &n) < 0 || n == 0 || (power_of_two && (n & (n - 1)) != 0)) {
        return false;
    }
    *ret = (uint32_t)n;
    return true;
}

/* Modifiers of the rule before, and what belongs to the whole: 1 known and right, 0 not known,
 * -1 wrong. */
static int parse_number_setting(const char *name, const char *value, struct fault_spec *spec)
{
    struct fault_rule *last = spec->count > 0 ? &spec->rules[spec->count - 1] : NULL;
    struct volume_limits *l = &spec->limits;
    uint64_t n = 0;
    bool ok;
    if (strcmp(name, "after") == 0) {
        ok = last && number_parse(value, 0, INT64_MAX, &last->after) == 0;
    } else if (strcmp(name, "count") == 0) {
        ok = last && number_parse(value, 1, INT64_MAX, &last->count) == 0;
    } else if (strcmp(name, "percent") == 0) {
        ok = last && number_parse(value, 1, 100, &n) == 0;
        if (ok) {
            last->percent = (unsigned)n;
        }
    } else if (strcmp(name, "seed") == 0) {
        ok = number_parse(value, 0, INT64_MAX, &spec->seed) == 0;
    } else if (strcmp(name, "min") == 0) {
        ok = parse_limit(value, 65536, true, &l->min);
    } else if (strcmp(name, "preferred") == 0) {
        ok = parse_limit(value, 1u << 30, true, &l->preferred) && l->preferred >= 512;
    } else if (strcmp(name, "max") == 0) {
        ok = parse_limit(value, VOLUME_TRANSFER_MAX, false, &l->max);
    } else if (strcmp(name, "max-zero") == 0) {
        ok = size_parse(value, VOLUME_SIZE_MAX, &l->max_zero) == 0 && l->max_zero > 0;
    } else {
        return 0;
    }
    return ok ? 1 : -1;
}

static bool parse_setting(char *text, struct fault_spec *spec)
{
    unsigned cap;
    if (strcmp(text, "no-lend") == 0) {
        spec->no_lend = true;
        return true;
    }
    if (look_up(caps, text, &cap)) {
        spec->caps_off |= cap;
        return true;
    }
    char *equals = strchr(text, '=');
    if (equals) {
        *equals = '\0';
        int known = parse_number_setting(text, equals + 1, spec);
        *equals = '=';
        if (known != 0) {
            return known > 0;
        }
    }
    return parse_rule(text, spec);
}

int fault_parse(const char *text, size_t len, struct fault_spec *ret, struct error *err)
{
    *ret = (struct fault_spec){.seed = 1};
    while (len > 0) {
        const char *comma = memchr(text, ',', len);
        size_t n = comma ? (size_t)(comma - text) : len;
        char setting[SETTING_MAX];
        if (n >= sizeof(setting) || memchr(text, '\0', n)) {
            return error_set(err, EINVAL, "fault: a setting is too long");
        }
        memcpy(setting, text, n);
        setting[n] = '\0';
        if (!parse_setting(setting, ret)) {
            return error_set(err, EINVAL, "fault: cannot make sense of \"%.*s\"", (int)n, text);
        }
        n += comma ? 1 : 0;
        text += n;
        len -= n;
    }
    return 0;
}
