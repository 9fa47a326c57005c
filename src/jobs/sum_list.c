/*
 * See sum_list.h. Nothing here is trusted: a list may come from anywhere, and every length is
 * checked against what is left of the line before it is used.
 */
#include "jobs/sum_list.h"

#include "core/size.h"
#include "jobs/sum.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TAG "BLKHASH-"
#define BLOCK_SIZE_MAX (16u << 20)

/* What is left of a line. */
struct text {
    const char *at;
    size_t left;
};

static bool skip(struct text *t, const char *word)
{
    size_t n = strlen(word);
    if (t->left < n || memcmp(t->at, word, n) != 0) {
        return false;
    }
    t->at += n;
    t->left -= n;
    return true;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Hexadecimal digits from t into the digest: at least one byte's. */
static int take_hex(struct text *t, struct sum_line *l)
{
    l->length = 0;
    while (t->left >= 2) {
        int high = hex_value(t->at[0]), low = hex_value(t->at[1]);
        if (high < 0 || low < 0) {
            break;
        }
        if (l->length == sizeof(l->want)) {
            return -EINVAL;
        }
        l->want[l->length++] = (uint8_t)(high * 16 + low);
        t->at += 2;
        t->left -= 2;
    }
    return l->length > 0 ? 0 : -EINVAL;
}

/* len bytes of text as a name. */
static int take_name(const char *text, size_t len, bool escaped, struct sum_line *l)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (escaped && c == '\\') {
            if (++i == len) {
                return -EINVAL;
            }
            switch (text[i]) {
            case 'n':
                c = '\n';
                break;
            case 'r':
                c = '\r';
                break;
            case '\\':
                break;
            default:
                return -EINVAL;
            }
        }
        if (c == '\0' || n + 1 == sizeof(l->name)) {
            return -EINVAL;
        }
        l->name[n++] = c;
    }
    l->name[n] = '\0';
    return n > 0 ? 0 : -EINVAL;
}

/* "SHA256" or "SHA256:4096" and the space behind it. */
static int take_algorithm(struct text *t, struct sum_line *l)
{
    const char *end = memchr(t->at, ' ', t->left);
    size_t n = end ? (size_t)(end - t->at) : 0;
    if (n == 0 || n >= sizeof(l->digest)) {
        return -EINVAL;
    }
    for (size_t i = 0; i < n; i++) {
        l->digest[i] = (char)tolower((unsigned char)t->at[i]);
    }
    l->digest[n] = '\0';
    t->at += n + 1;
    t->left -= n + 1;
    l->block_size = BLKHASH_BLOCK_DEFAULT;
    char *colon = strchr(l->digest, ':');
    if (colon) {
        uint64_t value;
        if (number_parse(colon + 1, 1, BLOCK_SIZE_MAX, &value) < 0) {
            return -EINVAL;
        }
        l->block_size = (uint32_t)value;
        *colon = '\0';
    }
    return l->digest[0] != '\0' ? 0 : -EINVAL;
}

/* The name ends at the last ") = " of the line: names may have that in them, digests can't. */
static int parse_tagged(struct text t, bool escaped, struct sum_line *l)
{
    l->tagged = true;
    if (take_algorithm(&t, l) < 0 || !skip(&t, "(")) {
        return -EINVAL;
    }
    for (size_t n = t.left; n-- > 0;) {
        struct text rest = {t.at + n, t.left - n};
        if (skip(&rest, ") = ")) {
            int r = take_hex(&rest, l);
            return r < 0 || rest.left > 0 ? -EINVAL : take_name(t.at, n, escaped, l);
        }
    }
    return -EINVAL;
}

int sum_line_parse(const char *text, size_t len, struct sum_line *ret)
{
    struct text t = {text, len};
    if (t.left > 0 && t.at[t.left - 1] == '\r') {
        t.left--; /* a list that went through Windows */
    }
    if (t.left == 0 || t.at[0] == '#') {
        return 1;
    }
    bool escaped = skip(&t, "\\");
    if (skip(&t, TAG)) {
        return parse_tagged(t, escaped, ret);
    }
    ret->tagged = false;
    ret->digest[0] = '\0';
    ret->block_size = 0;
    if (take_hex(&t, ret) < 0 || !(skip(&t, "  ") || skip(&t, " *"))) {
        return -EINVAL;
    }
    return take_name(t.at, t.left, escaped, ret);
}

/* The number at the front of t, which ends at one of `ends` or with t. */
static int take_size(struct text *t, const char *ends, uint64_t *ret)
{
    char number[64];
    size_t n = 0;
    while (n < t->left && !strchr(ends, t->at[n])) {
        n++; /* strchr() finds a NUL too */
    }
    if (n == 0 || n >= sizeof(number)) {
        return -EINVAL;
    }
    memcpy(number, t->at, n);
    number[n] = '\0';
    t->at += n;
    t->left -= n;
    return size_parse(number, VOLUME_SIZE_MAX, ret) < 0 ? -EINVAL : 0;
}

static bool skip_blanks(struct text *t)
{
    size_t before = t->left;
    while (t->left > 0 && (*t->at == ' ' || *t->at == '\t')) {
        t->at++;
        t->left--;
    }
    return t->left < before;
}

int sum_range_parse(const char *text, size_t len, struct sum_range *ret)
{
    struct text t = {text, len};
    uint64_t offset, length;
    skip_blanks(&t);
    if (t.left == 0 || *t.at == '#' || *t.at == '\r') {
        return 1;
    }
    if (take_size(&t, "+ \t\r", &offset) < 0 || !(skip(&t, "+") || skip_blanks(&t)) ||
        take_size(&t, " \t\r", &length) < 0) {
        return -EINVAL;
    }
    ret->offset = offset;
    ret->length = length;
    return 0;
}

char *sum_hex(const uint8_t *digest, size_t length, char *hex)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < length; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[2 * length] = '\0';
    return hex;
}

/* name into out, escaped if it has to be; returns whether it had. */
static bool escape_name(const char *name, char *out)
{
    bool escaped = strpbrk(name, "\\\n\r") != NULL;
    for (; *name; name++) {
        char c = *name == '\n' ? 'n' : *name == '\r' ? 'r' : *name;
        if (escaped && (c != *name || c == '\\')) {
            *out++ = '\\';
        }
        *out++ = c;
    }
    *out = '\0';
    return escaped;
}

char *sum_line_format(const struct sum_line *l, char *buf)
{
    char hex[SUM_HEX_MAX], name[2 * SUM_NAME_MAX], algorithm[64];
    const char *mark = escape_name(l->name, name) ? "\\" : "";

    sum_hex(l->want, l->length, hex);
    if (!l->tagged) {
        snprintf(buf, SUM_LINE_MAX, "%s%s  %s\n", mark, hex, name);
        return buf;
    }
    snprintf(algorithm, sizeof(algorithm), "%s", l->digest);
    for (char *c = algorithm; *c; c++) {
        *c = (char)toupper((unsigned char)*c);
    }
    if (l->block_size == BLKHASH_BLOCK_DEFAULT) {
        snprintf(buf, SUM_LINE_MAX, "%s" TAG "%s (%s) = %s\n", mark, algorithm, name, hex);
    } else {
        snprintf(buf, SUM_LINE_MAX, "%s" TAG "%s:%u (%s) = %s\n", mark, algorithm, l->block_size,
                 name, hex);
    }
    return buf;
}
