/* Lines of checksums: what is printed can be read, and what is wrong is refused. */
#include "jobs/sum_list.h"
#include "tap.h"

#include <errno.h>

#define HEX32 "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"

static int parse(const char *text, struct sum_line *l)
{
    memset(l, 0x55, sizeof(*l));
    return sum_line_parse(text, strlen(text), l);
}

static void plain_lines(void)
{
    struct sum_line l;
    EQ(parse(HEX32 "  disk.raw", &l), 0);
    OK(!l.tagged);
    EQ(l.length, 32);
    EQ(l.want[0], 0xaf);
    EQ(l.want[31], 0xfc);
    STREQ(l.name, "disk.raw");
    EQ(parse("AB12 *nbd://host/a b", &l), 0);
    EQ(l.length, 2);
    EQ(l.want[1], 0x12);
    STREQ(l.name, "nbd://host/a b");
    EQ(parse("ab12   three spaces\r", &l), 0);
    STREQ(l.name, " three spaces");
    EQ(parse("\\ab12  a\\\\b\\nc\\rd", &l), 0);
    STREQ(l.name, "a\\b\nc\rd");
    EQ(parse("ab12  a\\nb", &l), 0);
    STREQ(l.name, "a\\nb");
}

static void tagged_lines(void)
{
    struct sum_line l;
    EQ(parse("BLKHASH-SHA256 (disk (1) = x) = " HEX32, &l), 0);
    OK(l.tagged);
    STREQ(l.digest, "sha256");
    EQ(l.block_size, 65536);
    STREQ(l.name, "disk (1) = x");
    EQ(l.length, 32);
    EQ(parse("\\BLKHASH-SHA512-256:4096 (a\\\\b) = 00", &l), 0);
    STREQ(l.digest, "sha512-256");
    EQ(l.block_size, 4096);
    STREQ(l.name, "a\\b");
}

static void nothing_there(void)
{
    struct sum_line l;
    EQ(parse("", &l), 1);
    EQ(parse("\r", &l), 1);
    EQ(parse("# disks of 2026", &l), 1);
}

static void wrong_lines(void)
{
    static const char *const wrong[] = {
        "disk.raw",
        HEX32,
        HEX32 " ",
        HEX32 "  ",
        HEX32 " disk.raw",
        "abc  disk.raw",
        "  disk.raw",
        "\\",
        "\\ab  a\\",
        "\\ab  a\\x",
        "BLKHASH-",
        "BLKHASH-SHA256",
        "BLKHASH-SHA256 disk = ab",
        "BLKHASH-SHA256 (disk) = ",
        "BLKHASH-SHA256 (disk) = abc",
        "BLKHASH-SHA256 (disk) = ab ",
        "BLKHASH-SHA256 () = ab",
        "BLKHASH-SHA256: (disk) = ab",
        "BLKHASH-SHA256:0 (disk) = ab",
        "BLKHASH-SHA256:16777217 (disk) = ab",
        "BLKHASH-SHA256:4k (disk) = ab",
        "BLKHASH-:4096 (disk) = ab",
        "BLKHASH- (disk) = ab",
        "BLKHASH-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa (disk) = ab",
        /* 65 bytes of digest */
        HEX32 HEX32 "00  disk",
    };
    struct sum_line l;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (!EQ(parse(wrong[i], &l), -EINVAL)) {
            printf("# %s\n", wrong[i]);
        }
    }
    EQ(sum_line_parse("ab  a\0b", 7, &l), -EINVAL);
}

static void long_names(void)
{
    static char text[SUM_NAME_MAX + 16], back[SUM_LINE_MAX];
    static struct sum_line l;
    memset(text, '\\', sizeof(text));
    memcpy(text, "ab  ", 4);
    EQ(sum_line_parse(text, 4 + SUM_NAME_MAX, &l), -EINVAL);
    EQ(sum_line_parse(text, 4 + SUM_NAME_MAX - 1, &l), 0);
    EQ(strlen(l.name), SUM_NAME_MAX - 1);
    sum_line_format(&l, back);
    EQ(strlen(back), 2 * (SUM_NAME_MAX - 1) + 6);
}

static void prints_what_it_reads(void)
{
    static const char *const lines[] = {
        (HEX32 "  disk.raw"),
        "\\ab12  a\\\\b\\nc\\rd",
        ("BLKHASH-SHA256 (disk (1) = x) = " HEX32),
        "\\BLKHASH-SHA512-256:4096 (a\\\\b) = 00",
    };
    static char text[SUM_LINE_MAX];
    struct sum_line l;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        EQ(parse(lines[i], &l), 0);
        sum_line_format(&l, text);
        text[strcspn(text, "\n")] = '\0';
        STREQ(text, lines[i]);
    }
}

int main(void)
{
    RUN(plain_lines);
    RUN(tagged_lines);
    RUN(nothing_there);
    RUN(wrong_lines);
    RUN(long_names);
    RUN(prints_what_it_reads);
    return tap_done();
}
