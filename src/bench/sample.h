/*
 * Repeated measurements of one thing, and what is told of them: the median, and how far they lie
 * apart.
 */
#ifndef BENCH_SAMPLE_H
#define BENCH_SAMPLE_H

#include <stddef.h>

#define SAMPLE_ROUNDS_MAX 99

struct sample {
    size_t n;
    double values[SAMPLE_ROUNDS_MAX];
};

void sample_add(struct sample *s, double value);
double sample_median(const struct sample *s); /* 0 when there is none */
double sample_min(const struct sample *s);
double sample_max(const struct sample *s);
/* (max - min) / median, in percent. */
double sample_spread(const struct sample *s);

#endif
