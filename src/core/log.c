/*
 * Log lines on stderr. A line is put together in a buffer on the stack and leaves in one write(2),
 * so that lines of several threads and processes do not mix. A line of more than 2 KiB is cut.
 */
#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

/* Set at start-up, read everywhere: no order with anything else is needed. */
static _Atomic int current_level = LOG_WARNING;

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&current_level, memory_order_relaxed);
}

static void write_all(const char *line, size_t len)
{
    while (len > 0) {
        ssize_t n = write(STDERR_FILENO, line, len);

        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return; /* a full or closed stderr: there is nobody left to tell */
        }
        line += n;
        len -= (size_t)n;
    }
}

__attribute__((format(printf, 3, 0))) static void log_line(enum log_level level, const char *name,
                                                           const char *fmt, va_list args)
{
    int saved_errno = errno;
    char text[LINE_MAX_BYTES];
    char line[LINE_MAX_BYTES];
    size_t room = sizeof line - 1; /* for the newline */
    size_t len;
    int n;

    if (!log_enabled(level)) {
        return;
    }
    n = snprintf(line, room, "penstock: %s: ", name);
    len = (size_t)n;
    n = vsnprintf(text, sizeof text, fmt, args);
    if (n > 0) {
        /* Names of files and what peers say: they don't make lines of their own. */
        size_t got = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
        log_escape(line + len, room - len, text, got);
        len += strlen(line + len);
    }
    line[len++] = '\n';
    write_all(line, len);
    errno = saved_errno;
}

#define LOG_FUNCTION(function, level, name) \
    void function(const char *fmt, ...)     \
    {                                       \
        va_list args;                       \
                                            \
        va_start(args, fmt);                \
        log_line(level, name, fmt, args);   \
        va_end(args);                       \
    }

LOG_FUNCTION(log_error, LOG_ERROR, "error")
LOG_FUNCTION(log_warning, LOG_WARNING, "warning")
LOG_FUNCTION(log_info, LOG_INFO, "info")
LOG_FUNCTION(log_debug, LOG_DEBUG, "debug")

/* Bytes of the printable character at s (1..4), or 0 when its first byte has to be escaped. */
static size_t printable(const unsigned char *s, size_t len)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t code;
    size_t n;

    if (s[0] < 0x80) {
        return s[0] >= 0x20 && s[0] != 0x7f ? 1 : 0;
    }
    if (s[0] >= 0xc2 && s[0] <= 0xdf) {
        n = 2;
        code = s[0] & 0x1fu;
    } else if (s[0] >= 0xe0 && s[0] <= 0xef) {
        n = 3;
        code = s[0] & 0x0fu;
    } else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        n = 4;
        code = s[0] & 0x07u;
    } else {
        return 0;
    }
    if (n > len) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (s[i] & 0x3fu);
    }
    /* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. U+0080..U+009F are the
     * C1 control characters, which terminals obey. */
    if (code < smallest[n] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ||
        code < 0xa0) {
        return 0;
    }
    return n;
}

char *log_escape(char *dst, size_t size, const void *src, size_t len)
{
    static const char hex[] = "0123456789abcdef";
    static const char dots[] = "...";
    const unsigned char *s = src;
    size_t out = 0;
    size_t cut = 0; /* where the dots can go: after the last character that leaves room for them */

    if (size == 0) {
        return dst;
    }
    while (len > 0) {
        size_t n = printable(s, len);
        size_t need = n ? n : 4;

        if (need >= size - out) {
            size_t room = size - 1 - cut;

            memcpy(dst + cut, dots, room < 3 ? room : 3);
            dst[cut + (room < 3 ? room : 3)] = '\0';
            return dst;
        }
        if (n) {
            memcpy(dst + out, s, n);
        } else {
            dst[out] = '\\';
            dst[out + 1] = 'x';
            dst[out + 2] = hex[s[0] >> 4];
            dst[out + 3] = hex[s[0] & 15];
        }
        out += need;
        s += n ? n : 1;
        len -= n ? n : 1;
        if (out + 3 < size) {
            cut = out;
        }
    }
    dst[out] = '\0';
    return dst;
}
