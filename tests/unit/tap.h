/*
 * A small TAP producer for unit tests. No longjmp, so it is safe inside fibers and threads: a
 * failing check says so and goes on; the program exits 1 when any has failed.
 *
 *     static void parses_units(void) { OK(size_parse("1K", ...) == 0); EQ(value, 1024); }
 *     int main(void) { RUN(parses_units); return tap_done(); }
 *
 * Each RUN is one TAP test; checks within it are counted into its result.
 */
#ifndef TESTS_UNIT_TAP_H
#define TESTS_UNIT_TAP_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tap_tests;
static int tap_failed_tests;
static bool tap_failed;
static const char *tap_skipped;

static inline bool tap_check(bool ok, const char *file, int line, const char *text)
{
    if (!ok) {
        __atomic_store_n(&tap_failed, true, __ATOMIC_RELAXED);
        printf("# %s:%d: failed: %s\n", file, line, text);
        fflush(stdout);
    }
    return ok;
}

static inline bool tap_equal(long long a, long long b, const char *file, int line, const char *text)
{
    if (!tap_check(a == b, file, line, text)) {
        printf("#   left %lld (%#llx), right %lld (%#llx)\n", a, (unsigned long long)a, b,
               (unsigned long long)b);
        fflush(stdout);
        return false;
    }
    return true;
}

static inline bool tap_same_text(const char *a, const char *b, const char *file, int line,
                                 const char *text)
{
    bool same = a && b && strcmp(a, b) == 0;
    if (!tap_check(same, file, line, text)) {
        printf("#   left \"%s\", right \"%s\"\n", a ? a : "(null)", b ? b : "(null)");
        fflush(stdout);
    }
    return same;
}

static inline void tap_run(void (*fn)(void), const char *name)
{
    tap_failed = false;
    tap_skipped = NULL;
    fn();
    tap_tests++;
    if (tap_failed) {
        tap_failed_tests++;
    }
    printf("%sok %d - %s", tap_failed ? "not " : "", tap_tests, name);
    if (tap_skipped) {
        printf(" # SKIP %s", tap_skipped);
    }
    printf("\n");
    fflush(stdout);
}

static inline int tap_done(void)
{
    printf("1..%d\n", tap_tests);
    return tap_failed_tests ? EXIT_FAILURE : EXIT_SUCCESS;
}

#define OK(cond) tap_check((cond), __FILE__, __LINE__, #cond)
#define EQ(a, b) tap_equal((long long)(a), (long long)(b), __FILE__, __LINE__, #a " == " #b)
#define STREQ(a, b) tap_same_text((a), (b), __FILE__, __LINE__, #a " is " #b)
#define RUN(fn) tap_run(fn, #fn)
/* Inside a test: it could not be run here; return right after. */
#define SKIP(why) (tap_skipped = (why))

#endif
