/*
 * How far a job is: a bar on a terminal, or lines "N/100" for programs. The job keeps counters
 * (atomics, or what its own worker may read); a fiber here looks at them now and then.
 */
#ifndef REPORT_PROGRESS_H
#define REPORT_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress;

enum progress_mode {
    PROGRESS_NONE,
    PROGRESS_TERMINAL, /* a bar that is drawn over */
    PROGRESS_LINES,    /* "N/100\n" each time N has changed */
};

struct progress_sample {
    uint64_t done, total; /* bytes; total 0: not known */
};

struct progress_options {
    enum progress_mode mode;
    int fd;            /* not owned */
    const char *label; /* what the bar is about, "copy" */
    /* On the fiber of the worker that called progress_start(). */
    void (*sample)(void *arg, struct progress_sample *ret);
    void *arg;
};

/*
 * What --progress says (NULL: it was not given; "" or "auto": a bar if standard error is a
 * terminal; "FD": lines on that descriptor, which must be open). quiet: none unless asked for.
 * 0 or -EINVAL, -EBADF.
 */
int progress_choose(const char *asked, bool quiet, struct progress_options *o);

/* From a fiber. *ret may be NULL for PROGRESS_NONE; that is fine everywhere. 0 or -ENOMEM. */
int progress_start(const struct progress_options *o, struct progress **ret);
/* The last state is shown: 100 only when done is true. Frees p. */
void progress_finish(struct progress *p, bool done);

/* Pure, for the tests. 0..100, 100 only when all is done. */
unsigned progress_percent(const struct progress_sample *s);
/* The bar's line: columns wide at most, without line end. rate in bytes a second, 0: not known. */
char *progress_line(char *buf, size_t size, const char *label, const struct progress_sample *s,
                    double rate, unsigned columns);

#endif
