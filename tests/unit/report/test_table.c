/*
 * src/report/table.c
 */
#include "report/table.h"

#include "tap.h"

#include <errno.h>

static void same(struct table *t, const char *want)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    EQ(table_print(t, f), 0);
    fclose(f);
    STREQ(text, want);
    free(text);
    table_free(t);
}

static void aligned(void)
{
    struct table *t = table_new("lrl", "name", "size", "note");

    table_cell(t, "a");
    table_cell(t, "%d", 1);
    table_cell(t, "%s", "first");
    table_cell(t, "longer \xc2\xb5s");
    table_cell(t, "%d", 1234567);
    table_end_row(t);
    table_cell(t, "b");
    table_end_row(t);
    same(t, "name          size  note\n"
            "a                1  first\n"
            "longer \xc2\xb5s  1234567\n"
            "b\n");
}

static void without_headings(void)
{
    struct table *t = table_new("rl", NULL);

    table_cell(t, "key");
    table_cell(t, "value");
    table_cell(t, "k");
    same(t, "key  value\n  k\n");
}

static void empty(void)
{
    same(table_new("l", NULL), "");
    EQ(table_print(NULL, stdout), -ENOMEM);
    table_cell(NULL, "x");
    table_end_row(NULL);
    table_free(NULL);
}

int main(void)
{
    RUN(aligned);
    RUN(without_headings);
    RUN(empty);
    return tap_done();
}
