/*
 * Latency histograms: percentiles within 3 %, merging, the longest values.
 */
#include "bench/histogram.h"

#include "bench/sample.h"
#include "tap.h"

static struct histogram h, other;

static void percentiles(void)
{
    EQ(histogram_percentile(&h, 50), 0);
    for (uint64_t i = 1; i <= 100000; i++) {
        histogram_add(&h, i);
    }
    const double wanted[] = {1, 50, 90, 99, 99.9};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        double exact = 1000 * wanted[i], got = (double)histogram_percentile(&h, wanted[i]);
        OK(got >= exact && got <= exact * 1.04);
    }
    EQ(histogram_percentile(&h, 100), 100000);
    EQ(h.max, 100000);
}

static void small_values_are_exact(void)
{
    other = (struct histogram){0};
    for (uint64_t i = 0; i < 32; i++) {
        histogram_add(&other, i);
    }
    EQ(histogram_percentile(&other, 50), 15);
    EQ(histogram_percentile(&other, 100), 31);
}

static void merging(void)
{
    uint64_t total = h.total;
    histogram_merge(&h, &other);
    EQ(h.total, total + 32);
    EQ(h.max, 100000);
}

static void longest(void)
{
    histogram_add(&h, UINT64_MAX);
    histogram_add(&h, (uint64_t)1 << 41);
    OK(h.max == UINT64_MAX);
    OK(histogram_percentile(&h, 100) > 0);
}

static void samples(void)
{
    struct sample s = {0};
    OK(sample_median(&s) == 0);
    sample_add(&s, 3);
    OK(sample_median(&s) == 3);
    sample_add(&s, 1);
    OK(sample_median(&s) == 2);
    sample_add(&s, 2);
    OK(sample_median(&s) == 2);
    OK(sample_min(&s) == 1 && sample_max(&s) == 3);
    OK(sample_spread(&s) == 100);
    for (int i = 0; i < 200; i++) {
        sample_add(&s, 2);
    }
    EQ(s.n, SAMPLE_ROUNDS_MAX);
}

int main(void)
{
    RUN(percentiles);
    RUN(small_values_are_exact);
    RUN(merging);
    RUN(longest);
    RUN(samples);
    return tap_done();
}
