/*
 * See jsonout.h. RFC 8259; indented by two, a member a line, rows on one line.
 */
#include "report/jsonout.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

void jsonout_start(struct jsonout *j, FILE *f)
{
    *j = (struct jsonout){.f = f};
}

/* Length of the UTF-8 sequence at s (RFC 3629: no overlong forms, no surrogates), 0 when it is
 * none. */
static size_t utf8_length(const unsigned char *s, size_t left)
{
    static const struct {
        unsigned char mask, lead, second_min, second_max;
        unsigned char length;
    } forms[] = {
        {0x80, 0x00, 0, 0, 1},       {0xff, 0xe0, 0xa0, 0xbf, 3}, {0xff, 0xed, 0x80, 0x9f, 3},
        {0xff, 0xf0, 0x90, 0xbf, 4}, {0xff, 0xf4, 0x80, 0x8f, 4}, {0xe0, 0xc0, 0x80, 0xbf, 2},
        {0xf0, 0xe0, 0x80, 0xbf, 3}, {0xfc, 0xf0, 0x80, 0xbf, 4},
    };

    if (s[0] == 0xc0 || s[0] == 0xc1) {
        return 0;
    }
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if ((s[0] & forms[i].mask) != forms[i].lead) {
            continue;
        }
        size_t len = forms[i].length;
        if (len > left || (len > 1 && (s[1] < forms[i].second_min || s[1] > forms[i].second_max))) {
            return 0;
        }
        for (size_t k = 2; k < len; k++) {
            if ((s[k] & 0xc0) != 0x80) {
                return 0;
            }
        }
        return len;
    }
    return 0;
}

static void put_string(FILE *f, const char *text, size_t len)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const unsigned char *s = (const unsigned char *)text;

    fputc('"', f);
    for (size_t i = 0; i < len;) {
        size_t n = utf8_length(s + i, len - i);
        const char *special = s[i] ? strchr(plain, s[i]) : NULL;
        if (n == 0) {
            fputs("\xef\xbf\xbd", f);
            n = 1;
        } else if (special) {
            fputc('\\', f);
            fputc(letters[special - plain], f);
        } else if (s[i] < 0x20 || s[i] == 0x7f) {
            fprintf(f, "\\u%04x", s[i]);
        } else {
            fwrite(s + i, 1, n, f);
        }
        i += n;
    }
    fputc('"', f);
}

/* What stands before a value: comma, line, key. */
static void before(struct jsonout *j, const char *key)
{
    if (j->depth == 0) {
        assert(!key);
        return;
    }
    unsigned top = j->depth - 1;
    assert(j->levels[top].array == !key);
    if (j->levels[top].used) {
        fputc(',', j->f);
    }
    if (j->levels[top].row) {
        fputs(j->levels[top].used ? " " : "", j->f);
    } else {
        fprintf(j->f, "\n%*s", (int)j->depth * 2, "");
    }
    j->levels[top].used = true;
    if (key) {
        put_string(j->f, key, strlen(key));
        fputs(": ", j->f);
    }
}

static void begin(struct jsonout *j, const char *key, bool array, bool row)
{
    before(j, key);
    assert(j->depth < JSONOUT_DEPTH_MAX);
    fputc(array ? '[' : '{', j->f);
    j->levels[j->depth].array = array;
    /* What is inside of a row is on its line too. */
    j->levels[j->depth].row = row || (j->depth && j->levels[j->depth - 1].row);
    j->levels[j->depth].used = false;
    j->depth++;
}

void jsonout_object(struct jsonout *j, const char *key)
{
    begin(j, key, false, false);
}

void jsonout_array(struct jsonout *j, const char *key)
{
    begin(j, key, true, false);
}

void jsonout_row(struct jsonout *j, const char *key)
{
    begin(j, key, false, true);
}

void jsonout_end(struct jsonout *j)
{
    assert(j->depth > 0);
    j->depth--;
    if (j->levels[j->depth].used && !j->levels[j->depth].row) {
        fprintf(j->f, "\n%*s", (int)j->depth * 2, "");
    }
    fputc(j->levels[j->depth].array ? ']' : '}', j->f);
}

void jsonout_text(struct jsonout *j, const char *key, const char *value, size_t len)
{
    before(j, key);
    put_string(j->f, value, len);
}

void jsonout_string(struct jsonout *j, const char *key, const char *value)
{
    if (value) {
        jsonout_text(j, key, value, strlen(value));
    } else {
        before(j, key);
        fputs("null", j->f);
    }
}

void jsonout_number(struct jsonout *j, const char *key, uint64_t value)
{
    before(j, key);
    fprintf(j->f, "%" PRIu64, value);
}

void jsonout_signed(struct jsonout *j, const char *key, int64_t value)
{
    before(j, key);
    fprintf(j->f, "%" PRId64, value);
}

void jsonout_real(struct jsonout *j, const char *key, double value)
{
    before(j, key);
    if (isfinite(value)) {
        fprintf(j->f, "%.3f", value);
    } else {
        fputs("null", j->f);
    }
}

void jsonout_bool(struct jsonout *j, const char *key, bool value)
{
    before(j, key);
    fputs(value ? "true" : "false", j->f);
}

int jsonout_finish(struct jsonout *j)
{
    assert(j->depth == 0);
    fputc('\n', j->f);
    return fflush(j->f) || ferror(j->f) ? -EIO : 0;
}
