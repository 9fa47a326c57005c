/*
 * Bucket b below 32 holds the value b; above, the five bits after the leading one choose the step.
 */
#include "bench/histogram.h"

#define STEP_BITS 5u

static unsigned bucket_of(uint64_t ns)
{
    if (ns < HISTOGRAM_STEPS) {
        return (unsigned)ns;
    }
    unsigned power = 63u - (unsigned)__builtin_clzll(ns);
    unsigned step = (unsigned)(ns >> (power - STEP_BITS)) & (HISTOGRAM_STEPS - 1);
    unsigned bucket = (power - STEP_BITS + 1) * HISTOGRAM_STEPS + step;
    return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

/* The largest value that falls into it. */
static uint64_t bucket_end(unsigned bucket)
{
    if (bucket < HISTOGRAM_STEPS) {
        return bucket;
    }
    unsigned power = bucket / HISTOGRAM_STEPS + STEP_BITS - 1;
    uint64_t step = bucket % HISTOGRAM_STEPS + HISTOGRAM_STEPS;
    return ((step + 1) << (power - STEP_BITS)) - 1;
}

void histogram_add(struct histogram *h, uint64_t ns)
{
    h->counts[bucket_of(ns)]++;
    h->total++;
    h->max = ns > h->max ? ns : h->max;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        into->counts[i] += from->counts[i];
    }
    into->total += from->total;
    into->max = from->max > into->max ? from->max : into->max;
}

uint64_t histogram_percentile(const struct histogram *h, double percent)
{
    double wanted = (double)h->total * percent / 100;
    uint64_t seen = 0;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS && h->total; i++) {
        seen += h->counts[i];
        if ((double)seen >= wanted && seen > 0) {
            uint64_t end = bucket_end(i);
            return end < h->max ? end : h->max;
        }
    }
    return h->max;
}
