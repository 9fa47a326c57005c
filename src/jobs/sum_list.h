/*
 * Lines of checksums, as `sum` prints them and `sum --check` reads them:
 *
 *     HEX  NAME                                what sha256sum and blksum print
 *     BLKHASH-SHA256 (NAME) = HEX              --tag; -SHA256:4096 where blocks are not 64 KiB
 *
 * A name with a backslash or a line end in it has these escaped, and then the line begins with a
 * backslash, as sha256sum has it. Pure: text in, text out.
 */
#ifndef JOBS_SUM_LIST_H
#define JOBS_SUM_LIST_H

#include "digest/blkhash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUM_NAME_MAX 8192u /* longer than any path or URI that works */
#define SUM_LINE_MAX (2 * SUM_NAME_MAX + 512u)

struct sum_line {
    bool tagged;
    char digest[48];     /* tagged: its name, lower case */
    uint32_t block_size; /* tagged: bytes */
    size_t length;       /* of the digest, bytes, > 0 */
    uint8_t want[BLKHASH_DIGEST_MAX];
    char name[SUM_NAME_MAX];
};

/* A line without its line end. 0; 1 when there is nothing in it (empty, a comment); -EINVAL. */
int sum_line_parse(const char *text, size_t len, struct sum_line *ret);

/* The line for l (l->digest and l->block_size are used when it is tagged) with its line end into
 * buf, which holds SUM_LINE_MAX bytes. Returns buf. */
char *sum_line_format(const struct sum_line *l, char *buf);

struct sum_range;
/* "OFFSET+LENGTH", or both with blanks between them and anything after more blanks (a line of
 * `map`); numbers as size_parse() takes them. 0; 1 for an empty line or a comment; -EINVAL. */
int sum_range_parse(const char *text, size_t len, struct sum_range *ret);

#define SUM_HEX_MAX (2 * BLKHASH_DIGEST_MAX + 1)
/* Lower case into hex, which holds SUM_HEX_MAX bytes. Returns hex. */
char *sum_hex(const uint8_t *digest, size_t length, char *hex);

#endif
