/*
 * JSON, written as it comes (jansson has the names json_...): maps with millions of rows need no
 * memory. Keys and values go out in the order of the calls; nesting is kept right by the writer.
 *
 *     struct jsonout j;
 *     jsonout_start(&j, stdout);
 *     jsonout_object(&j, NULL);
 *     jsonout_number(&j, "size", size);
 *     jsonout_array(&j, "extents");
 *     jsonout_row(&j, NULL); jsonout_number(&j, "offset", 0); jsonout_end(&j);
 *     jsonout_end(&j); jsonout_end(&j);
 *     return jsonout_finish(&j);
 *
 * key: the member's name inside of an object (needed there), NULL inside of an array and at the
 * top. Strings that are not UTF-8 get U+FFFD for each wrong byte: what comes out is always JSON.
 */
#ifndef REPORT_JSONOUT_H
#define REPORT_JSONOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define JSONOUT_DEPTH_MAX 32

struct jsonout {
    FILE *f;
    unsigned depth;
    struct {
        bool array, row, used; /* row: all on one line; used: has a member already */
    } levels[JSONOUT_DEPTH_MAX];
};

void jsonout_start(struct jsonout *j, FILE *f);
void jsonout_object(struct jsonout *j, const char *key);
void jsonout_array(struct jsonout *j, const char *key);
/* An object on one line. */
void jsonout_row(struct jsonout *j, const char *key);
/* Ends the innermost object, array or row. */
void jsonout_end(struct jsonout *j);
/* value NULL: null. */
void jsonout_string(struct jsonout *j, const char *key, const char *value);
void jsonout_text(struct jsonout *j, const char *key, const char *value, size_t len);
void jsonout_number(struct jsonout *j, const char *key, uint64_t value);
void jsonout_signed(struct jsonout *j, const char *key, int64_t value);
/* Three decimals; null where it is no number. */
void jsonout_real(struct jsonout *j, const char *key, double value);
void jsonout_bool(struct jsonout *j, const char *key, bool value);
/* Everything was ended (asserted). Flushes: 0 or -EIO. */
int jsonout_finish(struct jsonout *j);

#endif
