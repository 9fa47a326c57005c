/*
 * See table.h. Widths are counted in UTF-8 code points, which is right for what penstock prints
 * ("µs"), and not in terminal cells.
 */
#include "report/table.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define GAP 2

struct table {
    unsigned columns;
    bool right[TABLE_COLUMNS_MAX];
    size_t width[TABLE_COLUMNS_MAX];
    char **cells; /* row by row; each malloc'ed */
    size_t count, room;
    bool failed;
};

static size_t text_width(const char *text)
{
    size_t n = 0;
    for (; *text; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

/* Takes over text, which may be NULL (no memory). */
static void add(struct table *t, char *text)
{
    if (text && t->count == t->room) {
        size_t room = t->room ? t->room * 2 : 64;
        char **grown = realloc(t->cells, room * sizeof(*grown));
        if (grown) {
            t->cells = grown;
            t->room = room;
        }
    }
    if (!text || t->count == t->room) {
        free(text);
        t->failed = true;
        return;
    }
    unsigned column = (unsigned)(t->count % t->columns);
    size_t width = text_width(text);
    if (width > t->width[column]) {
        t->width[column] = width;
    }
    t->cells[t->count++] = text;
}

struct table *table_new(const char *align, ...)
{
    struct table *t = calloc(1, sizeof(*t));
    va_list ap;

    if (!t) {
        return NULL;
    }
    t->columns = (unsigned)strlen(align);
    assert(t->columns > 0 && t->columns <= TABLE_COLUMNS_MAX);
    va_start(ap, align);
    for (unsigned i = 0; i < t->columns; i++) {
        t->right[i] = align[i] == 'r';
    }
    for (unsigned i = 0; i < t->columns; i++) {
        const char *heading = va_arg(ap, const char *);
        if (!heading) {
            assert(i == 0);
            break;
        }
        add(t, strdup(heading));
    }
    va_end(ap);
    return t;
}

void table_cell(struct table *t, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    if (!t || t->failed) {
        return;
    }
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0) {
        text = NULL;
    }
    va_end(ap);
    add(t, text);
}

void table_end_row(struct table *t)
{
    while (t && !t->failed && t->count % t->columns) {
        add(t, strdup(""));
    }
}

static void print_row(const struct table *t, char *const *cells, unsigned n, FILE *f)
{
    size_t blanks = 0; /* owed before the next text */

    for (unsigned i = 0; i < n; i++) {
        size_t pad = t->width[i] - text_width(cells[i]);
        blanks += (i ? GAP : 0) + (t->right[i] ? pad : 0);
        if (cells[i][0]) {
            fprintf(f, "%*s%s", (int)blanks, "", cells[i]);
            blanks = 0;
        }
        blanks += t->right[i] ? 0 : pad;
    }
    fputc('\n', f);
}

int table_print(const struct table *t, FILE *f)
{
    if (!t || t->failed) {
        return -ENOMEM;
    }
    for (size_t i = 0; i < t->count; i += t->columns) {
        size_t left = t->count - i;
        print_row(t, t->cells + i, left < t->columns ? (unsigned)left : t->columns, f);
    }
    return ferror(f) ? -EIO : 0;
}

void table_free(struct table *t)
{
    if (!t) {
        return;
    }
    for (size_t i = 0; i < t->count; i++) {
        free(t->cells[i]);
    }
    free(t->cells);
    free(t);
}
