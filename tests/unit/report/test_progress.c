/*
 * src/report/progress.c: the sums and the texts.
 */
#include "report/progress.h"

#include "tap.h"

#include <errno.h>

static void percent(void)
{
    static const struct {
        uint64_t done, total;
        unsigned percent;
    } rows[] = {
        {0, 0, 0},
        {5, 0, 0},
        {0, 10, 0},
        {1, 3, 33},
        {999, 1000, 99},
        {1000, 1000, 100},
        {1001, 1000, 100},
        {UINT64_MAX - 1, UINT64_MAX, 99},
        {UINT64_MAX / 2, UINT64_MAX, 50},
        {UINT64_MAX, UINT64_MAX, 100},
    };
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct progress_sample s = {rows[i].done, rows[i].total};
        EQ(progress_percent(&s), rows[i].percent);
    }
}

static void lines(void)
{
    char buf[256];
    struct progress_sample s = {1u << 30, 4ull << 30};

    STREQ(progress_line(buf, sizeof(buf), "copy", &s, 512.0 * (1 << 20), 100),
          "copy [##########                              ]  25% 1 GiB of 4 GiB, 512 MiB/s, "
          "0:06 left");
    STREQ(progress_line(buf, sizeof(buf), "copy", &s, 0, 40),
          "copy [###          ]  25% 1 GiB of 4 GiB");
    STREQ(progress_line(buf, sizeof(buf), "copy", &s, 0, 30), "copy  25% 1 GiB of 4 GiB");
    STREQ(progress_line(buf, sizeof(buf), "copy", &s, 0, 10), "copy  25% ");
    STREQ(progress_line(buf, sizeof(buf), "sum", &s, 1 << 20, 60),
          "sum [###          ]  25% 1 GiB of 4 GiB, 1 MiB/s, 51:12 left");
    s.total = 0;
    STREQ(progress_line(buf, sizeof(buf), "copy", &s, 1 << 20, 79), "copy 1 GiB, 1 MiB/s");
    s = (struct progress_sample){0, UINT64_MAX};
    STREQ(progress_line(buf, sizeof(buf), "x", &s, 1, 50),
          "x   0% 0 B of 16 EiB, 1 B/s, long left");
}

static void choosing(void)
{
    struct progress_options o = {};

    EQ(progress_choose(NULL, false, &o), 0);
    EQ(o.mode, PROGRESS_NONE);
    EQ(progress_choose("1", true, &o), 0);
    EQ(o.mode, PROGRESS_LINES);
    EQ(o.fd, 1);
    EQ(progress_choose("x", false, &o), -EINVAL);
    EQ(progress_choose("-1", false, &o), -EINVAL);
    EQ(progress_choose("1000000", false, &o), -EBADF);
    EQ(progress_choose("auto", true, &o), 0);
    EQ(o.mode, PROGRESS_NONE);
}

int main(void)
{
    RUN(percent);
    RUN(lines);
    RUN(choosing);
    return tap_done();
}
