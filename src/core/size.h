/*
 * Numbers and sizes as people write them, parsed strictly: the whole string must be used, overflow
 * is an error, no sign, no spaces. Suffixes are binary: K M G T P E, also KiB MiB ..., either case;
 * "B" alone means bytes. A fraction ("1.5G") is allowed where it comes out as whole bytes.
 */
#ifndef CORE_SIZE_H
#define CORE_SIZE_H

#include <stddef.h>
#include <stdint.h>

/* 0 and *ret, or -EINVAL (not a size), -ERANGE (above max). *ret is written only on success. */
int size_parse(const char *text, uint64_t max, uint64_t *ret);

/* A plain decimal number in min..max. 0, -EINVAL or -ERANGE. */
int number_parse(const char *text, uint64_t min, uint64_t max, uint64_t *ret);

/* A decimal number of seconds with an optional fraction ("1.5"), up to max_s; *ret_ns gets
 * nanoseconds. 0, -EINVAL or -ERANGE. */
int seconds_parse(const char *text, uint64_t max_s, uint64_t *ret_ns);

#define SIZE_TEXT_MAX 32
/* "1.5 GiB", "512 B": at most one decimal. buf holds SIZE_TEXT_MAX bytes. Returns buf. */
char *size_format(uint64_t bytes, char *buf);

static inline uint64_t align_down(uint64_t value, uint64_t power_of_two)
{
    return value & ~(power_of_two - 1);
}

/* The caller knows that value is not within power_of_two of 2^64. */
static inline uint64_t align_up(uint64_t value, uint64_t power_of_two)
{
    return (value + power_of_two - 1) & ~(power_of_two - 1);
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
