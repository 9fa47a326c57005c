/*
 * One error value: what went wrong, in words and as an errno, and where.
 *
 * The place that knows most fills it in once with error_set(); callers on the way up add what
 * they were doing with error_prefix(), and whoever knows them adds endpoint and offset. A second
 * error_set() on an error that is already set changes nothing: the first cause is the cause.
 * Every function accepts NULL for "nobody wants to know". No allocation, no I/O, any thread.
 */
#ifndef CORE_ERROR_H
#define CORE_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ERROR_TEXT_MAX 640
#define ERROR_ENDPOINT_MAX 256

struct error {
    int code;        /* a positive errno; 0: no error */
    bool has_offset; /* offset is meaningful */
    uint64_t offset; /* bytes from the start of the endpoint */
    char endpoint[ERROR_ENDPOINT_MAX];
    char text[ERROR_TEXT_MAX];
};

/* Makes err empty without touching its big arrays. */
void error_clear(struct error *err);

/*
 * Sets err, unless it is set already, and returns -code, so that `return error_set(...)` reads
 * well. code is a positive errno. The text says what failed and does not repeat strerror(code).
 */
int error_set(struct error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "text: " before what err says, if it is set. Returns -err->code (0 when err is NULL). */
int error_prefix(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Names the endpoint, unless one is named already. */
void error_endpoint(struct error *err, const char *endpoint);

/* Says at which byte, unless that is said already. */
void error_at(struct error *err, uint64_t offset);

/*
 * Writes "endpoint: text at offset N: strerror" (the parts that are known) into buf, always
 * terminated, control characters escaped. Returns buf.
 */
char *error_format(const struct error *err, char *buf, size_t size);

#ifdef __clang_analyzer__
/* The analyser does not see that a positive code comes back as less than 0. */
#define error_set(...)                         \
    ({                                         \
        int set_code = error_set(__VA_ARGS__); \
        if (set_code >= 0) {                   \
            __builtin_unreachable();           \
        }                                      \
        set_code;                              \
    })
#endif

#endif
