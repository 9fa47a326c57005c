/*
 * penstock compare --leaves.
 */
#ifndef CLI_COMPARE_LEAVES_H
#define CLI_COMPARE_LEAVES_H

#include <stdbool.h>

/* names: two files of leaves. An exit code. */
int compare_leaves(const char *const names[2], bool json, bool quiet);

#endif
