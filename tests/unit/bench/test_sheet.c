/*
 * Sheets in their four forms: numbers rounded, empty cells, quoting, escaping.
 */
#include "bench/sheet.h"

#include "tap.h"

static const struct sheet_column columns[] = {
    {"name", "name", -1},
    {"GiB/s", "gib_s", 2},
    {NULL, NULL, 0},
};

static char text[65536];

static void print(int (*how)(const struct sheet *, FILE *), const char *label)
{
    struct sheet s;
    sheet_init(&s, "a <title>");
    struct sheet_table *t = sheet_add_table(&s, columns);
    snprintf(t->title, sizeof(t->title), "one, \"two\"");
    t->plot_columns[0] = 1;
    struct sheet_row *row = sheet_add_row(t);
    sheet_text(row, 0, "%s", label);
    sheet_number(row, 1, 1.005);
    row = sheet_add_row(t);
    sheet_text(row, 0, "empty");
    memset(text, 0, sizeof(text));
    FILE *f = fmemopen(text, sizeof(text), "w");
    EQ(how(&s, f), 0);
    fclose(f);
    sheet_done(&s);
}

static void as_text(void)
{
    print(sheet_print_text, "label");
    OK(strstr(text, "name   GiB/s\nlabel   1.00\nempty\n") != NULL);
}

static void as_csv(void)
{
    print(sheet_print_csv, "a,b");
    STREQ(text, "table,name,gib_s\r\n\"one, \"\"two\"\"\",\"a,b\",1.00\r\n"
                "\"one, \"\"two\"\"\",empty,\r\n");
}

static void as_json(void)
{
    print(sheet_print_json, "a\"b");
    OK(strstr(text, "\"name\": \"a\\\"b\"") != NULL);
    OK(strstr(text, "\"gib_s\": null") != NULL);
}

static void as_html(void)
{
    print(sheet_print_html, "<b>&");
    OK(strstr(text, "&lt;b&gt;&amp;") != NULL);
    OK(strstr(text, "<b>") == NULL);
    OK(strstr(text, "a &lt;title&gt;") != NULL);
    OK(strstr(text, "<svg") != NULL && strstr(text, "</html>") != NULL);
    OK(strstr(text, "http:") == strstr(text, "http://www.w3.org/2000/svg"));
}

static void about_the_host(void)
{
    struct sheet s;
    sheet_init(&s, "t");
    sheet_about_host(&s);
    OK(strstr(s.about, "penstock") != NULL);
    sheet_done(&s);
}

int main(void)
{
    RUN(as_text);
    RUN(as_csv);
    RUN(as_json);
    RUN(as_html);
    RUN(about_the_host);
    return tap_done();
}
