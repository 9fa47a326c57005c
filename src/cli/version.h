/*
 * penstock --version.
 */
#ifndef CLI_VERSION_H
#define CLI_VERSION_H

#include <stdio.h>

/* The version, then a line for each optional part: whether it is in, and whether it works here
 * where that is quick to find out. */
void version_print(FILE *f);

#endif
