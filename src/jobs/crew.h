/*
 * A crew: the same fiber, `depth` times on each of several workers, until all have come back. What
 * they work on is theirs to share out (an fmutex and a cursor).
 *
 *     crew_new(4, &crew, err); crew_run(crew, 16, fetch, job); ... close volumes ...;
 * crew_free(crew);
 *
 * The workers live until crew_free(), so that volumes can close the lanes that they have there.
 */
#ifndef JOBS_CREW_H
#define JOBS_CREW_H

#include "core/error.h"

struct crew;

/* The calling worker and workers - 1 more. 1..WORKERS_MAX. 0 or -errno with err. */
int crew_new(unsigned workers, struct crew **ret, struct error *err);
/* NULL is fine. From a fiber of the worker that made it. */
void crew_free(struct crew *c);

/*
 * fn(arg) in depth fibers on every worker; returns when all have ended. When the calling fiber is
 * canceled, or one of them calls crew_stop(), they all are. 0, -ECANCELED (the caller was),
 * -ENOMEM.
 */
int crew_run(struct crew *c, unsigned depth, void (*fn)(void *arg), void *arg);
/* Any fiber of the crew. */
void crew_stop(struct crew *c);

#endif
