/*
 * A bench's answer: one or more tables of measured rows beside published ones, which are printed
 * as text, CSV, JSON or one HTML page with plots.
 */
#ifndef BENCH_SHEET_H
#define BENCH_SHEET_H

#include <stddef.h>
#include <stdio.h>

#define SHEET_COLUMNS_MAX 16

struct sheet_column {
    const char *name; /* "GiB/s" */
    const char *key;  /* "gib_s", in CSV and JSON */
    int decimals;     /* -1: a text, not a number */
};

struct sheet_cell {
    char text[48];
    double number;
    int empty;
};

struct sheet_row {
    struct sheet_cell cells[SHEET_COLUMNS_MAX];
};

struct sheet_table {
    char title[160];
    char note[240];                     /* below the table; empty: none */
    const struct sheet_column *columns; /* name NULL ends; outlives the sheet */
    size_t label_column;                /* the plot's horizontal axis */
    size_t plot_columns[3];             /* what is plotted; 0 ends (0 is the label) */
    struct sheet_row *rows;
    size_t n;
};

struct sheet {
    char title[160];
    char about[400]; /* machine, version, how it was measured */
    struct sheet_table *tables;
    size_t n;
};

void sheet_init(struct sheet *s, const char *title);
void sheet_done(struct sheet *s);
/* NULL when out of memory. The pointer holds until the next call. */
struct sheet_table *sheet_add_table(struct sheet *s, const struct sheet_column *columns);
struct sheet_row *sheet_add_row(struct sheet_table *t);
void sheet_text(struct sheet_row *r, size_t column, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void sheet_number(struct sheet_row *r, size_t column, double value);
/* Fills `about` with CPU, kernel and version. */
void sheet_about_host(struct sheet *s);

/* Each: 0 or -errno. */
int sheet_print_text(const struct sheet *s, FILE *f);
int sheet_print_csv(const struct sheet *s, FILE *f);
int sheet_print_json(const struct sheet *s, FILE *f);
int sheet_print_html(const struct sheet *s, FILE *f);

#endif
