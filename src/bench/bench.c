/*
 * What the benches share.
 */
#include "bench/bench.h"

#include <errno.h>

int bench_step(const struct bench_watch *w, unsigned done, unsigned steps, const char *what,
               struct error *err)
{
    bool stop = w && w->step && w->step(w->arg, done, steps, what) != 0;
    return stop ? error_set(err, ECANCELED, "it was stopped") : 0;
}
