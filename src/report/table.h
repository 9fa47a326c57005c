/*
 * Aligned text tables for people. Cells are added one after the other, row by row.
 *
 *     struct table *t = table_new("lrr", "name", "size", "rate");
 *     table_cell(t, "%s", name); table_cell(t, ...); table_cell(t, ...);
 *     table_print(t, stdout); table_free(t);
 *
 * Memory: what was added, until table_free(). When it runs out the table remembers, and
 * table_print() says so.
 */
#ifndef REPORT_TABLE_H
#define REPORT_TABLE_H

#include <stdio.h>

#define TABLE_COLUMNS_MAX 24

struct table;

/* align: a letter a column, 'l' or 'r'; then a heading (const char *) for each column, copied. A
 * table whose first heading is (const char *)NULL has none. NULL when there is no memory: fine
 * everywhere. */
struct table *table_new(const char *align, ...);
void table_cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Fills the row that was begun with empty cells. */
void table_end_row(struct table *t);
/* 0, -ENOMEM (an earlier call ran out; nothing is printed), -EIO. No trailing blanks. */
int table_print(const struct table *t, FILE *f);
void table_free(struct table *t);

#endif
