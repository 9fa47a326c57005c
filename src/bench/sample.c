/*
 * See sample.h.
 */
#include "bench/sample.h"

#include <stdlib.h>
#include <string.h>

void sample_add(struct sample *s, double value)
{
    if (s->n < SAMPLE_ROUNDS_MAX) {
        s->values[s->n++] = value;
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void sorted(const struct sample *s, double *out)
{
    memcpy(out, s->values, s->n * sizeof(double));
    qsort(out, s->n, sizeof(double), compare);
}

double sample_median(const struct sample *s)
{
    double v[SAMPLE_ROUNDS_MAX];
    if (s->n == 0) {
        return 0;
    }
    sorted(s, v);
    return s->n % 2 ? v[s->n / 2] : (v[s->n / 2 - 1] + v[s->n / 2]) / 2;
}

double sample_min(const struct sample *s)
{
    double v[SAMPLE_ROUNDS_MAX] = {0};
    sorted(s, v);
    return v[0];
}

double sample_max(const struct sample *s)
{
    double v[SAMPLE_ROUNDS_MAX] = {0};
    sorted(s, v);
    return s->n ? v[s->n - 1] : 0;
}

double sample_spread(const struct sample *s)
{
    double median = sample_median(s);
    return median > 0 ? (sample_max(s) - sample_min(s)) / median * 100 : 0;
}
