/*
 * src/report/jsonout.c: what is written is read back by jansson where that says more than a text.
 */
#include "report/jsonout.h"

#include "tap.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>

static char *text;
static size_t text_len;

static void open_json(struct jsonout *j)
{
    jsonout_start(j, open_memstream(&text, &text_len));
}

static void close_json(struct jsonout *j)
{
    EQ(jsonout_finish(j), 0);
    fclose(j->f);
}

static void layout(void)
{
    struct jsonout j;

    open_json(&j);
    jsonout_object(&j, NULL);
    jsonout_number(&j, "size", UINT64_MAX);
    jsonout_array(&j, "rows");
    for (unsigned i = 0; i < 2; i++) {
        jsonout_row(&j, NULL);
        jsonout_number(&j, "offset", i);
        jsonout_array(&j, "in");
        jsonout_bool(&j, NULL, i == 0);
        jsonout_signed(&j, NULL, -1);
        jsonout_end(&j);
        jsonout_end(&j);
    }
    jsonout_end(&j);
    jsonout_array(&j, "empty");
    jsonout_end(&j);
    jsonout_object(&j, "nothing");
    jsonout_end(&j);
    jsonout_end(&j);
    close_json(&j);
    STREQ(text, "{\n"
                "  \"size\": 18446744073709551615,\n"
                "  \"rows\": [\n"
                "    {\"offset\": 0, \"in\": [true, -1]},\n"
                "    {\"offset\": 1, \"in\": [false, -1]}\n"
                "  ],\n"
                "  \"empty\": [],\n"
                "  \"nothing\": {}\n"
                "}\n");
    free(text);
}

static void values_at_the_top(void)
{
    struct jsonout j;

    open_json(&j);
    jsonout_string(&j, NULL, NULL);
    close_json(&j);
    STREQ(text, "null\n");
    free(text);

    open_json(&j);
    jsonout_array(&j, NULL);
    jsonout_real(&j, NULL, 1.5);
    jsonout_real(&j, NULL, NAN);
    jsonout_end(&j);
    close_json(&j);
    STREQ(text, "[\n  1.500,\n  null\n]\n");
    free(text);
}

static void strings(void)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"", "\"\""},
        {"plain", "\"plain\""},
        {"q\" b\\ n\n t\t r\r f\f b\b", "\"q\\\" b\\\\ n\\n t\\t r\\r f\\f b\\b\""},
        {"\x01\x1f\x7f", "\"\\u0001\\u001f\\u007f\""},
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\""},
        {"a\xff"
         "b",
         "\"a\xef\xbf\xbd"
         "b\""},
        {"\xc0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* surrogate */
        {"\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* cut off */
    };
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct jsonout j;
        char want[128];
        open_json(&j);
        jsonout_string(&j, NULL, rows[i].in);
        close_json(&j);
        snprintf(want, sizeof(want), "%s\n", rows[i].out);
        STREQ(text, want);
        free(text);
    }
}

/* Whatever the bytes: a reader that insists on UTF-8 takes it. */
static void any_bytes_are_json(void)
{
    uint32_t seed = 1;

    for (unsigned round = 0; round < 2000; round++) {
        struct jsonout j;
        char bytes[12];
        for (unsigned i = 0; i < sizeof(bytes); i++) {
            seed = seed * 1664525 + 1013904223;
            /* mostly bytes that lead or continue sequences */
            bytes[i] = (char)(seed >> 24 | (seed & 0x300 ? 0x80 : 0));
        }
        open_json(&j);
        jsonout_array(&j, NULL);
        jsonout_text(&j, NULL, bytes, sizeof(bytes));
        jsonout_end(&j);
        close_json(&j);
        json_error_t error;
        json_t *parsed = json_loadb(text, text_len, JSON_ALLOW_NUL, &error);
        if (!OK(parsed != NULL)) {
            printf("# round %u: %s: %s\n", round, error.text, text);
        }
        json_decref(parsed);
        free(text);
    }
}

static void full_disk(void)
{
    struct jsonout j;
    FILE *f = fopen("/dev/full", "we");

    if (!f) {
        SKIP("no /dev/full");
        return;
    }
    jsonout_start(&j, f);
    jsonout_number(&j, NULL, 1);
    EQ(jsonout_finish(&j), -EIO);
    fclose(f);
}

int main(void)
{
    RUN(layout);
    RUN(values_at_the_top);
    RUN(strings);
    RUN(any_bytes_are_json);
    RUN(full_disk);
    return tap_done();
}
