/*
 * Short measurements of this host's transports: what a larger buffer brings.
 */
#ifndef TUNE_MEASURE_H
#define TUNE_MEASURE_H

#include "core/error.h"

#include <stddef.h>

#define TUNE_MEASURES_MAX 16

struct tune_measure {
    const char *what; /* "unix socket", "pipe" */
    char buffer[32];  /* as asked for: "default", "2 MiB" */
    double gib_s;     /* median of the rounds */
    double ratio;     /* to the default of the same transport */
};

/* Fills ret (TUNE_MEASURES_MAX of them) and *n; takes some seconds. 0 or -errno. */
int tune_measure(struct tune_measure *ret, size_t *n, struct error *err);

#endif
