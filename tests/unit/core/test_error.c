/* struct error: first cause wins, prefixes stack up, NULL is fine, the text is safe to print. */
#include "core/error.h"

#include <errno.h>

#include "core/log.h"
#include "tap.h"

static void first_cause_is_kept(void)
{
    struct error err = {0};

    EQ(error_set(&err, ENOSPC, "writing %d bytes", 5), -ENOSPC);
    EQ(error_set(&err, EIO, "something later"), -EIO);
    EQ(err.code, ENOSPC);
    STREQ(err.text, "writing 5 bytes");
    error_clear(&err);
    EQ(err.code, 0);
    STREQ(err.text, "");
}

static void null_is_nobody(void)
{
    error_clear(NULL);
    EQ(error_set(NULL, EIO, "x"), -EIO);
    EQ(error_prefix(NULL, "x"), 0);
    error_endpoint(NULL, "x");
    error_at(NULL, 1);
}

static void unset_takes_no_details(void)
{
    struct error err = {0};

    EQ(error_prefix(&err, "opening"), 0);
    error_endpoint(&err, "disk");
    error_at(&err, 5);
    STREQ(err.text, "");
    STREQ(err.endpoint, "");
    OK(!err.has_offset);
}

static void formats_what_is_known(void)
{
    struct error err = {0};
    char buf[1024];

    STREQ(error_format(&err, buf, sizeof buf), "no error");
    error_set(&err, EIO, "short read");
    STREQ(error_format(&err, buf, sizeof buf), "short read: Input/output error");
    EQ(error_prefix(&err, "block %u", 7u), -EIO);
    error_endpoint(&err, "nbd://host/a");
    error_endpoint(&err, "other");
    error_at(&err, 4096);
    error_at(&err, 1);
    STREQ(error_format(&err, buf, sizeof buf),
          "nbd://host/a: block 7: short read at offset 4096: Input/output error");
    STREQ(error_format(&err, buf, 13), "nbd://hos...");
}

static void formats_without_text(void)
{
    struct error err = {.code = ENOENT};
    char buf[256];

    STREQ(error_format(&err, buf, sizeof buf), "No such file or directory");
    error_at(&err, 1);
    STREQ(error_format(&err, buf, sizeof buf), "at offset 1: No such file or directory");
}

static void long_texts_are_cut(void)
{
    static char big[4096];
    struct error err = {0};
    char buf[64];

    memset(big, 'a', sizeof big - 1);
    error_set(&err, EIO, "%s", big);
    EQ(strlen(err.text), ERROR_TEXT_MAX - 1);
    error_prefix(&err, "in");
    EQ(strlen(err.text), ERROR_TEXT_MAX - 1);
    OK(strncmp(err.text, "in: aaa", 7) == 0);
    error_prefix(&err, "%s", big);
    EQ(strlen(err.text), ERROR_TEXT_MAX - 1);
    error_endpoint(&err, big);
    EQ(strlen(err.endpoint), ERROR_ENDPOINT_MAX - 1);
    EQ(strlen(error_format(&err, buf, sizeof buf)), sizeof buf - 1);
}

static void control_characters_are_escaped(void)
{
    struct error err = {0};
    char buf[256];

    error_set(&err, EIO, "peer said \x1b[2J\n");
    STREQ(error_format(&err, buf, sizeof buf), "peer said \\x1b[2J\\x0a: Input/output error");
}

static void escape_table(void)
{
    static const struct {
        const char *in;
        size_t size;
        const char *out;
    } cases[] = {
        {"plain", 64, "plain"},
        {"", 64, ""},
        {"tab\t", 64, "tab\\x09"},
        {"\x7f", 64, "\\x7f"},
        {"gr\xc3\xbc\xc3\x9f", 64, "gr\xc3\xbc\xc3\x9f"},
        {"\xe2\x82\xac \xf0\x9f\x90\xa7", 64, "\xe2\x82\xac \xf0\x9f\x90\xa7"},
        {"\xc0\x80", 64, "\\xc0\\x80"},                   /* overlong */
        {"\xe0\x80\x80", 64, "\\xe0\\x80\\x80"},          /* overlong */
        {"\xed\xa0\x80", 64, "\\xed\\xa0\\x80"},          /* surrogate */
        {"\xf4\x90\x80\x80", 64, "\\xf4\\x90\\x80\\x80"}, /* above U+10FFFF */
        {"\xc2\x9b", 64, "\\xc2\\x9b"},                   /* C1: CSI */
        {"\xe2\x82", 64, "\\xe2\\x82"},                   /* cut off */
        {"abcdef", 7, "abcdef"},
        {"abcdefg", 7, "abc..."},
        {"\x01\x02", 8, "\\x01..."},
        {"\x01\x02", 7, "..."},
        {"abc", 3, ".."},
        {"abc", 1, ""},
    };
    char buf[64];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        STREQ(log_escape(buf, cases[i].size, cases[i].in, strlen(cases[i].in)), cases[i].out);
    }
    STREQ(log_escape(buf, sizeof buf, "a\0b", 3), "a\\x00b");
}

static void levels(void)
{
    OK(log_enabled(LOG_ERROR) && log_enabled(LOG_WARNING));
    OK(!log_enabled(LOG_INFO) && !log_enabled(LOG_DEBUG));
    log_set_level(LOG_DEBUG);
    OK(log_enabled(LOG_DEBUG));
    errno = 77;
    log_debug("a line of the test: %d", 1);
    EQ(errno, 77);
    log_set_level(LOG_WARNING);
}

int main(void)
{
    RUN(first_cause_is_kept);
    RUN(null_is_nobody);
    RUN(unset_takes_no_details);
    RUN(formats_what_is_known);
    RUN(formats_without_text);
    RUN(long_texts_are_cut);
    RUN(control_characters_are_escaped);
    RUN(escape_table);
    RUN(levels);
    return tap_done();
}
