/*
 * Sizes, numbers and seconds as people write them (size.h). All three are one scan: digits, a
 * fraction where it is allowed, and what is left over is the suffix. A number that is well formed
 * but too big is told apart (-ERANGE) from one that is no number (-EINVAL).
 */
#include "core/size.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#define FRACTION_DIGITS_MAX 19 /* 10^19 is the last power of ten below 2^64 */

struct decimal {
    uint64_t whole;
    bool overflow;          /* whole did not fit */
    uint64_t fraction;      /* fraction / scale is the part below 1 */
    uint64_t scale;         /* a power of ten */
    bool fraction_too_fine; /* more digits than FRACTION_DIGITS_MAX, trailing zeros aside */
    bool has_fraction;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads digits[.digits]; returns what follows, or NULL when there is no number. */
static const char *scan_decimal(const char *text, struct decimal *d)
{
    unsigned zeros = 0;
    unsigned digits = 0;

    *d = (struct decimal){.scale = 1};
    if (!is_digit(*text)) {
        return NULL;
    }
    for (; is_digit(*text); text++) {
        if (__builtin_mul_overflow(d->whole, 10, &d->whole) ||
            __builtin_add_overflow(d->whole, (uint64_t)(*text - '0'), &d->whole)) {
            d->overflow = true;
        }
    }
    if (*text != '.') {
        return text;
    }
    text++;
    if (!is_digit(*text)) {
        return NULL;
    }
    d->has_fraction = true;
    for (; is_digit(*text); text++) {
        if (*text == '0') {
            zeros++; /* only counts when another digit follows */
            continue;
        }
        if (zeros >= FRACTION_DIGITS_MAX || digits + zeros + 1 > FRACTION_DIGITS_MAX) {
            d->fraction_too_fine = true;
            continue;
        }
        for (unsigned i = 0; i <= zeros; i++) {
            d->fraction *= 10;
            d->scale *= 10;
        }
        d->fraction += (uint64_t)(*text - '0');
        digits += zeros + 1;
        zeros = 0;
    }
    return text;
}

/* The power of two of a suffix, or -1. */
static int suffix_shift(const char *s)
{
    static const char units[] = "kmgtpe";
    int shift = -1;

    if (s[0] == '\0') {
        return 0;
    }
    if ((s[0] | 0x20) == 'b') {
        return s[1] == '\0' ? 0 : -1;
    }
    for (int i = 0; units[i]; i++) {
        if ((s[0] | 0x20) == units[i]) {
            shift = 10 * (i + 1);
        }
    }
    if (shift < 0 || s[1] == '\0') {
        return shift;
    }
    return (s[1] | 0x20) == 'i' && (s[2] | 0x20) == 'b' && s[3] == '\0' ? shift : -1;
}

int size_parse(const char *text, uint64_t max, uint64_t *ret)
{
    unsigned __int128 value;
    unsigned __int128 part;
    struct decimal d;
    int shift;

    text = scan_decimal(text, &d);
    if (!text) {
        return -EINVAL;
    }
    shift = suffix_shift(text);
    if (shift < 0 || d.fraction_too_fine) {
        return -EINVAL;
    }
    /* fraction < 10^19 < 2^64 and shift <= 60: no overflow in 128 bits */
    part = (unsigned __int128)d.fraction << shift;
    if (part % d.scale != 0) {
        return -EINVAL;
    }
    value = ((unsigned __int128)d.whole << shift) + part / d.scale;
    if (d.overflow || value > max) {
        return -ERANGE;
    }
    *ret = (uint64_t)value;
    return 0;
}

int number_parse(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
    struct decimal d;

    text = scan_decimal(text, &d);
    if (!text || *text != '\0' || d.has_fraction) {
        return -EINVAL;
    }
    if (d.overflow || d.whole < min || d.whole > max) {
        return -ERANGE;
    }
    *ret = d.whole;
    return 0;
}

int seconds_parse(const char *text, uint64_t max_s, uint64_t *ret_ns)
{
    const uint64_t ns_per_s = 1000000000;
    unsigned __int128 ns;
    unsigned __int128 part;
    struct decimal d;

    text = scan_decimal(text, &d);
    if (!text || *text != '\0' || d.fraction_too_fine) {
        return -EINVAL;
    }
    part = (unsigned __int128)d.fraction * ns_per_s;
    if (part % d.scale != 0) {
        return -EINVAL; /* finer than a nanosecond */
    }
    ns = (unsigned __int128)d.whole * ns_per_s + part / d.scale;
    if (d.overflow || ns > UINT64_MAX || ns > (unsigned __int128)max_s * ns_per_s) {
        return -ERANGE;
    }
    *ret_ns = (uint64_t)ns;
    return 0;
}

char *size_format(uint64_t bytes, char *buf)
{
    static const char units[] = "KMGTPE";
    unsigned unit = 0;
    uint64_t tenths;

    if (bytes < 1024) {
        snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 " B", bytes);
        return buf;
    }
    while (unit < 5 && bytes >> (10 * (unit + 2)) != 0) {
        unit++;
    }
    for (;;) {
        unsigned shift = 10 * (unit + 1);
        unsigned __int128 scaled = (unsigned __int128)bytes * 10 + ((uint64_t)1 << (shift - 1));

        tenths = (uint64_t)(scaled >> shift);
        if (tenths < 10240 || unit == 5) {
            break;
        }
        unit++; /* 1023.96 KiB reads 1 MiB, not 1024 KiB */
    }
    if (tenths % 10) {
        snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 ".%u %ciB", tenths / 10, (unsigned)(tenths % 10),
                 units[unit]);
    } else {
        snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 " %ciB", tenths / 10, units[unit]);
    }
    return buf;
}
