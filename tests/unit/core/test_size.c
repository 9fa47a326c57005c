/* Sizes, numbers and seconds: what is taken, what is refused and with which errno. */
#include "core/size.h"

#include <errno.h>

#include "tap.h"

#define UNTOUCHED 0xdeadbeefu

static void check_size(const char *text, uint64_t max, int want, uint64_t value)
{
    uint64_t got = UNTOUCHED;
    int r = size_parse(text, max, &got);

    if (r != want || got != (want == 0 ? value : UNTOUCHED)) {
        printf("# \"%s\": %d, %" PRIu64 "\n", text, r, got);
        OK(!"size_parse");
    }
}

static void sizes(void)
{
    static const struct {
        const char *text;
        int ret;
        uint64_t value;
    } cases[] = {
        {"0", 0, 0},
        {"1", 0, 1},
        {"007", 0, 7},
        {"12B", 0, 12},
        {"12b", 0, 12},
        {"1K", 0, 1024},
        {"1k", 0, 1024},
        {"1KiB", 0, 1024},
        {"1kib", 0, 1024},
        {"3M", 0, 3 << 20},
        {"2GiB", 0, (uint64_t)2 << 30},
        {"1.5G", 0, (uint64_t)3 << 29},
        {"0.5K", 0, 512},
        {"1.0", 0, 1},
        {"1.50000000000000000000000000000K", 0, 1536},
        {"0.0009765625K", 0, 1},
        {"4T", 0, (uint64_t)4 << 40},
        {"5P", 0, (uint64_t)5 << 50},
        {"15E", 0, (uint64_t)15 << 60},
        {"15.5E", 0, (uint64_t)31 << 59},
        {"18446744073709551615", 0, UINT64_MAX},
        {"18446744073709551616", -ERANGE, 0},
        {"16E", -ERANGE, 0},
        {"99999999999999999999999", -ERANGE, 0},
        {"99999999999999999999999x", -EINVAL, 0},
        {"18014398509481984K", -ERANGE, 0},
        {"", -EINVAL, 0},
        {"-1", -EINVAL, 0},
        {"+1", -EINVAL, 0},
        {" 1", -EINVAL, 0},
        {"1 ", -EINVAL, 0},
        {"1 K", -EINVAL, 0},
        {"K", -EINVAL, 0},
        {"1KB", -EINVAL, 0},
        {"1Ki", -EINVAL, 0},
        {"1KiBs", -EINVAL, 0},
        {"1BB", -EINVAL, 0},
        {"1X", -EINVAL, 0},
        {"1[", -EINVAL, 0},
        {"1.", -EINVAL, 0},
        {".5K", -EINVAL, 0},
        {"1.5", -EINVAL, 0},
        {"0.1K", -EINVAL, 0},
        {"1.2.3K", -EINVAL, 0},
        {"0.00000000000000000000000001E", -EINVAL, 0},
        {"0x10", -EINVAL, 0},
        {"1e3", -EINVAL, 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_size(cases[i].text, UINT64_MAX, cases[i].ret, cases[i].value);
    }
    check_size("1K", 1024, 0, 1024);
    check_size("1025", 1024, -ERANGE, 0);
    check_size("1.5K", 1535, -ERANGE, 0);
}

static void numbers(void)
{
    uint64_t n = UNTOUCHED;

    EQ(number_parse("10", 1, 10, &n), 0);
    EQ(n, 10);
    EQ(number_parse("11", 1, 10, &n), -ERANGE);
    EQ(number_parse("0", 1, 10, &n), -ERANGE);
    EQ(number_parse("99999999999999999999", 0, UINT64_MAX, &n), -ERANGE);
    EQ(number_parse("18446744073709551615", 0, UINT64_MAX, &n), 0);
    OK(n == UINT64_MAX);
    EQ(number_parse("", 0, 10, &n), -EINVAL);
    EQ(number_parse("1K", 0, 10, &n), -EINVAL);
    EQ(number_parse("1.0", 0, 10, &n), -EINVAL);
    EQ(number_parse("-1", 0, 10, &n), -EINVAL);
}

static void seconds(void)
{
    uint64_t ns = UNTOUCHED;

    EQ(seconds_parse("1.5", 60, &ns), 0);
    EQ(ns, 1500000000);
    EQ(seconds_parse("0.000000001", 60, &ns), 0);
    EQ(ns, 1);
    EQ(seconds_parse("60", 60, &ns), 0);
    EQ(ns, 60000000000);
    EQ(seconds_parse("60.1", 60, &ns), -ERANGE);
    EQ(seconds_parse("18446744073.709551615", UINT64_MAX, &ns), 0);
    OK(ns == UINT64_MAX);
    EQ(seconds_parse("18446744073.709551616", UINT64_MAX, &ns), -ERANGE);
    EQ(seconds_parse("0.0000000001", 60, &ns), -EINVAL);
    EQ(seconds_parse("1s", 60, &ns), -EINVAL);
    EQ(seconds_parse("", 60, &ns), -EINVAL);
}

static void formats(void)
{
    char buf[SIZE_TEXT_MAX];

    STREQ(size_format(0, buf), "0 B");
    STREQ(size_format(1023, buf), "1023 B");
    STREQ(size_format(1024, buf), "1 KiB");
    STREQ(size_format(1536, buf), "1.5 KiB");
    STREQ(size_format((1 << 20) - 1, buf), "1 MiB");
    STREQ(size_format((uint64_t)3 << 29, buf), "1.5 GiB");
    STREQ(size_format((uint64_t)1 << 60, buf), "1 EiB");
    STREQ(size_format(UINT64_MAX, buf), "16 EiB");
}

static void alignment(void)
{
    EQ(align_down(4097, 4096), 4096);
    EQ(align_up(4097, 4096), 8192);
    EQ(align_up(4096, 4096), 4096);
    EQ(min_u64(1, 2), 1);
    EQ(max_u64(1, 2), 2);
}

int main(void)
{
    RUN(sizes);
    RUN(numbers);
    RUN(seconds);
    RUN(formats);
    RUN(alignment);
    return tap_done();
}
