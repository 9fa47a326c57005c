/*
 * Latencies in nanoseconds: 32 buckets a power of two, so a percentile is within 3 %.
 */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_STEPS 32u
#define HISTOGRAM_POWERS 36u /* up to 2^40 ns, 18 minutes; longer ones count as that */
#define HISTOGRAM_BUCKETS (HISTOGRAM_STEPS * HISTOGRAM_POWERS)

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS];
    uint64_t total;
    uint64_t max;
};

void histogram_add(struct histogram *h, uint64_t ns);
void histogram_merge(struct histogram *into, const struct histogram *from);
/* percent 0..100; the bucket's upper end, and never above the largest seen. 0 when empty. */
uint64_t histogram_percentile(const struct histogram *h, double percent);

#endif
