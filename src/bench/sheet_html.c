/*
 * One self-contained HTML page: no script, no font, nothing from elsewhere. Each table comes with a
 * bar chart in SVG of its plotted columns; colours follow the reader's light or dark setting.
 */
#include "bench/sheet.h"

#include <errno.h>

#define CHART_WIDTH 720.0
#define LABEL_WIDTH 110.0
#define VALUE_WIDTH 70.0
#define BAR_HEIGHT 16.0
#define GROUP_GAP 10.0

static const char STYLE[] =
    ":root{--bg:#fff;--fg:#1c2430;--dim:#5c6675;--line:#d8dee8;--a:#1f6feb;--b:#e08a1e;--c:#2d9a5b}"
    "@media(prefers-color-scheme:dark){:root{--bg:#12161d;--fg:#e4e9f1;--dim:#98a3b3;"
    "--line:#2c3542;--a:#5b9cff;--b:#f0a94a;--c:#58c785}}"
    "body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:66rem;"
    "margin:2rem auto;padding:0 1rem}h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;"
    "margin:2.2rem 0 .5rem}p{color:var(--dim);margin:.3rem 0}table{border-collapse:collapse;"
    "font-variant-numeric:tabular-nums;width:100%}th,td{padding:.25rem .5rem;text-align:right;"
    "border-bottom:1px solid var(--line)}th{color:var(--dim);font-weight:600}"
    ".t{text-align:left}svg{max-width:100%;height:auto;margin:.5rem 0}svg text{fill:var(--fg);"
    "font:12px system-ui,sans-serif}.s0{fill:var(--a)}.s1{fill:var(--b)}.s2{fill:var(--c)}"
    ".wrap{overflow-x:auto}";

static void html_text(const char *text, FILE *f)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", f);
            break;
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            fputc(*text, f);
        }
    }
}

static void html_table(const struct sheet_table *t, FILE *f)
{
    fputs("<div class=\"wrap\"><table><thead><tr>", f);
    for (size_t c = 0; t->columns[c].name; c++) {
        fprintf(f, "<th%s>", t->columns[c].decimals < 0 ? " class=\"t\"" : "");
        html_text(t->columns[c].name, f);
        fputs("</th>", f);
    }
    fputs("</tr></thead><tbody>\n", f);
    for (size_t i = 0; i < t->n; i++) {
        fputs("<tr>", f);
        for (size_t c = 0; t->columns[c].name; c++) {
            const struct sheet_cell *cell = &t->rows[i].cells[c];
            if (t->columns[c].decimals < 0) {
                fputs("<td class=\"t\">", f);
                html_text(cell->empty ? "" : cell->text, f);
            } else if (cell->empty) {
                fputs("<td>", f);
            } else {
                fprintf(f, "<td>%.*f", t->columns[c].decimals, cell->number);
            }
            fputs("</td>", f);
        }
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div>\n", f);
}

static size_t plotted(const struct sheet_table *t)
{
    size_t n = 0;
    while (n < 3 && t->plot_columns[n]) {
        n++;
    }
    return n;
}

static double largest(const struct sheet_table *t, size_t series)
{
    double max = 0;
    for (size_t i = 0; i < t->n; i++) {
        for (size_t k = 0; k < series; k++) {
            const struct sheet_cell *cell = &t->rows[i].cells[t->plot_columns[k]];
            max = !cell->empty && cell->number > max ? cell->number : max;
        }
    }
    return max;
}

static void chart_legend(const struct sheet_table *t, size_t series, FILE *f)
{
    double x = LABEL_WIDTH;
    for (size_t k = 0; k < series; k++) {
        fprintf(f, "<rect class=\"s%zu\" x=\"%.0f\" y=\"2\" width=\"12\" height=\"12\"/>", k, x);
        fprintf(f, "<text x=\"%.0f\" y=\"12\">", x + 18);
        html_text(t->columns[t->plot_columns[k]].name, f);
        fputs("</text>\n", f);
        x += 190;
    }
}

static void chart_row(const struct sheet_table *t, const struct sheet_row *row, size_t series,
                      double y, double scale, FILE *f)
{
    fprintf(f, "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">", LABEL_WIDTH - 8,
            y + (double)series * BAR_HEIGHT / 2 + 4);
    html_text(row->cells[t->label_column].text, f);
    fputs("</text>", f);
    for (size_t k = 0; k < series; k++) {
        const struct sheet_cell *cell = &row->cells[t->plot_columns[k]];
        if (cell->empty) {
            continue;
        }
        double width = cell->number * scale, top = y + (double)k * BAR_HEIGHT;
        fprintf(f,
                "<rect class=\"s%zu\" x=\"%.0f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\" "
                "rx=\"2\"/><text x=\"%.1f\" y=\"%.1f\">%.*f</text>",
                k, LABEL_WIDTH, top + 1, width, BAR_HEIGHT - 2, LABEL_WIDTH + width + 6, top + 12,
                t->columns[t->plot_columns[k]].decimals, cell->number);
    }
    fputc('\n', f);
}

static void html_chart(const struct sheet_table *t, FILE *f)
{
    size_t series = plotted(t);
    double max = largest(t, series);
    if (series == 0 || max <= 0) {
        return;
    }
    double step = (double)series * BAR_HEIGHT + GROUP_GAP;
    double height = 24 + step * (double)t->n;
    fprintf(f,
            "<svg viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" "
            "xmlns=\"http://www.w3.org/2000/svg\">\n",
            CHART_WIDTH, height, CHART_WIDTH, height);
    chart_legend(t, series, f);
    double scale = (CHART_WIDTH - LABEL_WIDTH - VALUE_WIDTH) / max;
    for (size_t i = 0; i < t->n; i++) {
        chart_row(t, &t->rows[i], series, 24 + step * (double)i, scale, f);
    }
    fputs("</svg>\n", f);
}

int sheet_print_html(const struct sheet *s, FILE *f)
{
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
          "<meta name=\"color-scheme\" content=\"light dark\"><title>",
          f);
    html_text(s->title, f);
    fprintf(f, "</title><style>%s</style></head><body>\n<h1>", STYLE);
    html_text(s->title, f);
    fputs("</h1><p>", f);
    html_text(s->about, f);
    fputs("</p>\n", f);
    for (size_t i = 0; i < s->n; i++) {
        fputs("<h2>", f);
        html_text(s->tables[i].title, f);
        fputs("</h2>\n", f);
        html_chart(&s->tables[i], f);
        html_table(&s->tables[i], f);
        fputs("<p>", f);
        html_text(s->tables[i].note, f);
        fputs("</p>\n", f);
    }
    fputs("</body></html>\n", f);
    return fflush(f) != 0 ? -errno : 0;
}
