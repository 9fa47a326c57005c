/*
 * What this host allows, what of it clips penstock, and how to lift it. Only looks; changes
 * nothing. From a plain thread or a fiber; quick.
 */
#ifndef TUNE_TUNE_H
#define TUNE_TUNE_H

#include <stddef.h>
#include <stdio.h>

enum tune_state {
    TUNE_FINE,
    TUNE_CLIPPED, /* less than what penstock would use: lifting it gains something */
    TUNE_NOTED,   /* good to know, nothing to lift */
    TUNE_UNKNOWN, /* it can't be looked at here */
};

#define TUNE_ITEMS_MAX 24
#define TUNE_TEXT_MAX 320

struct tune_item {
    const char *name; /* "net.core.wmem_max" */
    const char *what; /* what it is, half a sentence */
    enum tune_state state;
    char value[96];              /* as it is */
    char wanted[96];             /* what would be enough; empty: no matter */
    char effect[TUNE_TEXT_MAX];  /* in plain words, one sentence or two */
    char setting[TUNE_TEXT_MAX]; /* the exact command; empty: none */
    char sysctl[96];             /* the line for a sysctl.d file; empty: it is no sysctl */
};

/* Fills items (TUNE_ITEMS_MAX of them); returns how many. root: where /proc and /sys are found, ""
 * for this host (tests have a folder of their own). */
size_t tune_look(const char *root, struct tune_item *items);

/* A sysctl.d drop-in with what is clipped. 0 or -errno. */
int tune_write_sysctl(FILE *f, const struct tune_item *items, size_t n);

const char *tune_state_name(enum tune_state state);

#endif
