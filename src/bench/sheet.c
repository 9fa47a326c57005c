/*
 * Sheets: building them, and the plain forms. The HTML page is in sheet_html.c.
 */
#include "bench/sheet.h"

#include "report/jsonout.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

void sheet_init(struct sheet *s, const char *title)
{
    *s = (struct sheet){.n = 0};
    snprintf(s->title, sizeof(s->title), "%s", title);
}

void sheet_done(struct sheet *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->tables[i].rows);
    }
    free(s->tables);
    *s = (struct sheet){.n = 0};
}

struct sheet_table *sheet_add_table(struct sheet *s, const struct sheet_column *columns)
{
    struct sheet_table *tables = realloc(s->tables, (s->n + 1) * sizeof(*tables));
    if (!tables) {
        return NULL;
    }
    s->tables = tables;
    tables[s->n] = (struct sheet_table){.columns = columns};
    return &tables[s->n++];
}

struct sheet_row *sheet_add_row(struct sheet_table *t)
{
    struct sheet_row *rows = realloc(t->rows, (t->n + 1) * sizeof(*rows));
    if (!rows) {
        return NULL;
    }
    t->rows = rows;
    struct sheet_row *row = &rows[t->n++];
    for (size_t i = 0; i < SHEET_COLUMNS_MAX; i++) {
        row->cells[i] = (struct sheet_cell){.empty = 1};
    }
    return row;
}

void sheet_text(struct sheet_row *r, size_t column, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->cells[column].text, sizeof(r->cells[column].text), fmt, ap);
    va_end(ap);
    r->cells[column].empty = 0;
}

void sheet_number(struct sheet_row *r, size_t column, double value)
{
    r->cells[column].number = value;
    r->cells[column].empty = 0;
}

static void cpu_name(char *buf, size_t size)
{
    char line[256];
    snprintf(buf, size, "unknown CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof(line), f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            snprintf(buf, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (f) {
        fclose(f);
    }
}

void sheet_about_host(struct sheet *s)
{
    struct utsname u;
    char cpu[128];
    uname(&u);
    cpu_name(cpu, sizeof(cpu));
    snprintf(s->about, sizeof(s->about), "penstock %s, %s, %s %.40s", PENSTOCK_VERSION, cpu,
             u.sysname, u.release);
}

static void cell_text(const struct sheet_column *c, const struct sheet_cell *cell, char *buf,
                      size_t size)
{
    if (cell->empty) {
        buf[0] = '\0';
    } else if (c->decimals < 0) {
        snprintf(buf, size, "%s", cell->text);
    } else {
        snprintf(buf, size, "%.*f", c->decimals, cell->number);
    }
}

/* ---- text ---- */

static size_t column_width(const struct sheet_table *t, size_t c)
{
    char buf[64];
    size_t width = strlen(t->columns[c].name);
    for (size_t i = 0; i < t->n; i++) {
        cell_text(&t->columns[c], &t->rows[i].cells[c], buf, sizeof(buf));
        width = strlen(buf) > width ? strlen(buf) : width;
    }
    return width;
}

static void print_line(const struct sheet_table *t, const struct sheet_row *row, FILE *f)
{
    char line[1024];
    size_t len = 0;
    for (size_t c = 0; t->columns[c].name && len < sizeof(line) - 80; c++) {
        char buf[64];
        int width = (int)column_width(t, c);
        if (row) {
            cell_text(&t->columns[c], &row->cells[c], buf, sizeof(buf));
        } else {
            snprintf(buf, sizeof(buf), "%s", t->columns[c].name);
        }
        len += (size_t)snprintf(line + len, sizeof(line) - len, "%s%*s", c ? "  " : "",
                                t->columns[c].decimals < 0 ? -width : width, buf);
    }
    while (len > 0 && line[len - 1] == ' ') {
        len--;
    }
    fprintf(f, "%.*s\n", (int)len, line);
}

int sheet_print_text(const struct sheet *s, FILE *f)
{
    fprintf(f, "%s\n%s\n", s->title, s->about);
    for (size_t i = 0; i < s->n; i++) {
        const struct sheet_table *t = &s->tables[i];
        fprintf(f, "\n%s\n", t->title);
        print_line(t, NULL, f);
        for (size_t k = 0; k < t->n; k++) {
            print_line(t, &t->rows[k], f);
        }
        if (t->note[0]) {
            fprintf(f, "%s\n", t->note);
        }
    }
    return fflush(f) != 0 ? -errno : 0;
}

/* ---- CSV (RFC 4180) ---- */

static void csv_field(const char *text, FILE *f)
{
    if (!strpbrk(text, ",\"\n")) {
        fputs(text, f);
        return;
    }
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"') {
            fputc('"', f);
        }
        fputc(*text, f);
    }
    fputc('"', f);
}

int sheet_print_csv(const struct sheet *s, FILE *f)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct sheet_table *t = &s->tables[i];
        if (i == 0 || t->columns != s->tables[i - 1].columns) {
            fputs("table", f);
            for (size_t c = 0; t->columns[c].name; c++) {
                fprintf(f, ",%s", t->columns[c].key);
            }
            fputs("\r\n", f);
        }
        for (size_t k = 0; k < t->n; k++) {
            csv_field(t->title, f);
            for (size_t c = 0; t->columns[c].name; c++) {
                char buf[64];
                cell_text(&t->columns[c], &t->rows[k].cells[c], buf, sizeof(buf));
                fputc(',', f);
                csv_field(buf, f);
            }
            fputs("\r\n", f);
        }
    }
    return fflush(f) != 0 ? -errno : 0;
}

/* ---- JSON ---- */

static void json_row(struct jsonout *j, const struct sheet_table *t, const struct sheet_row *row)
{
    jsonout_row(j, NULL);
    for (size_t c = 0; t->columns[c].name; c++) {
        const struct sheet_cell *cell = &row->cells[c];
        if (t->columns[c].decimals < 0 || cell->empty) {
            jsonout_string(j, t->columns[c].key, cell->empty ? NULL : cell->text);
        } else {
            jsonout_real(j, t->columns[c].key, cell->number);
        }
    }
    jsonout_end(j);
}

int sheet_print_json(const struct sheet *s, FILE *f)
{
    struct jsonout j;
    jsonout_start(&j, f);
    jsonout_object(&j, NULL);
    jsonout_string(&j, "title", s->title);
    jsonout_string(&j, "about", s->about);
    jsonout_array(&j, "tables");
    for (size_t i = 0; i < s->n; i++) {
        jsonout_object(&j, NULL);
        jsonout_string(&j, "title", s->tables[i].title);
        jsonout_array(&j, "rows");
        for (size_t k = 0; k < s->tables[i].n; k++) {
            json_row(&j, &s->tables[i], &s->tables[i].rows[k]);
        }
        jsonout_end(&j);
        jsonout_end(&j);
    }
    jsonout_end(&j);
    jsonout_end(&j);
    return jsonout_finish(&j);
}
