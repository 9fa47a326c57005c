/*
 * The one error value (error.h). Everything is formatted into the arrays of struct error, so that
 * an out-of-memory error can be reported as well as any other; what does not fit is cut.
 */
#include "core/error.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"

void error_clear(struct error *err)
{
    if (!err) {
        return;
    }
    err->code = 0;
    err->has_offset = false;
    err->offset = 0;
    err->endpoint[0] = '\0';
    err->text[0] = '\0';
}

#undef error_set /* the analyser's */
int error_set(struct error *err, int code, const char *fmt, ...)
{
    assert(code > 0);
    if (err && err->code == 0) {
        va_list args;

        err->code = code;
        va_start(args, fmt);
        vsnprintf(err->text, sizeof err->text, fmt, args);
        va_end(args);
    }
    return -code;
}

int error_prefix(struct error *err, const char *fmt, ...)
{
    char text[ERROR_TEXT_MAX];
    size_t used;
    va_list args;
    int n;

    if (!err) {
        return 0;
    }
    if (err->code == 0) {
        return 0;
    }
    va_start(args, fmt);
    n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    used = n < 0 ? 0 : (size_t)n;
    if (used < sizeof text) {
        snprintf(text + used, sizeof text - used, "%s%s", err->text[0] ? ": " : "", err->text);
    }
    memcpy(err->text, text, sizeof text);
    return -err->code;
}

void error_endpoint(struct error *err, const char *endpoint)
{
    if (err && err->code != 0 && err->endpoint[0] == '\0' && endpoint) {
        snprintf(err->endpoint, sizeof err->endpoint, "%s", endpoint);
    }
}

void error_at(struct error *err, uint64_t offset)
{
    if (err && err->code != 0 && !err->has_offset) {
        err->has_offset = true;
        err->offset = offset;
    }
}

char *error_format(const struct error *err, char *buf, size_t size)
{
    char raw[ERROR_ENDPOINT_MAX + ERROR_TEXT_MAX + 256];
    char at[48] = "";
    char why_buf[96];
    const char *why;

    if (size == 0) {
        return buf;
    }
    if (!err || err->code == 0) {
        snprintf(buf, size, "no error");
        return buf;
    }
    if (err->has_offset) {
        snprintf(at, sizeof at, "%sat offset %" PRIu64, err->text[0] ? " " : "", err->offset);
    }
    /* The GNU one: any thread, and it may return a constant string instead of the buffer. */
    why = strerror_r(err->code, why_buf, sizeof why_buf);
    snprintf(raw, sizeof raw, "%s%s%s%s%s%s", err->endpoint, err->endpoint[0] ? ": " : "",
             err->text, at, err->text[0] || at[0] ? ": " : "", why);
    return log_escape(buf, size, raw, strlen(raw));
}
