/*
 * Calls by way of another worker, where connections=N leaves this one without a connection of its
 * own: a fiber on the worker that has the connection makes the call, and the caller parks.
 *
 * The job and its buffers are the caller's, so the caller returns when the call has ended and not
 * before. When it is canceled it has the fiber over there canceled, which ends the call at once. An
 * errand lives until the caller, the fiber, and a cancellation on its way have all let go of it.
 */
#include "volume/nfs/private.h"

#include <errno.h>
#include <stdlib.h>

struct errand {
    atomic_uint holders;
    struct nfsc_lane *lane;
    const struct nfsc_procedure *procedure;
    void *job;
    struct error *err;
    struct fmutex lock; /* guards ended and result */
    struct fcond changed;
    bool ended;
    int result;
    /* On the lane's worker only: */
    struct fiber *runner; /* NULL: not yet, or no more */
    bool canceled;
};

static void let_go(struct errand *e)
{
    if (atomic_fetch_sub(&e->holders, 1) == 1) {
        fcond_done(&e->changed);
        fmutex_done(&e->lock);
        free(e);
    }
}

static void run(void *arg)
{
    struct errand *e = arg;
    int r;
    if (e->canceled) {
        r = error_set(e->err, ECANCELED, "canceled before it was sent");
    } else {
        e->runner = fiber_self();
        r = nfsc_lane_call_here(e->lane, e->procedure, e->job, e->err);
        e->runner = NULL;
    }
    fmutex_lock(&e->lock);
    e->ended = true;
    e->result = r;
    fcond_signal(&e->changed);
    fmutex_unlock(&e->lock);
    let_go(e);
}

static void cancel(void *arg)
{
    struct errand *e = arg;
    e->canceled = true;
    if (e->runner) {
        fiber_cancel(e->runner);
    }
    let_go(e);
}

static int wait_for(struct errand *e, struct worker *w)
{
    bool told = false;
    fmutex_lock(&e->lock);
    while (!e->ended) {
        if (fcond_wait(&e->changed, &e->lock, DEADLINE_NONE) < 0 && !told) {
            told = true;
            fiber_shield(); /* the next waits are for the end */
            atomic_fetch_add(&e->holders, 1);
            if (worker_post(w, cancel, e) < 0) {
                atomic_fetch_sub(&e->holders, 1); /* no memory: it ends when it ends */
            }
        }
    }
    int r = e->result;
    fmutex_unlock(&e->lock);
    if (told) {
        fiber_unshield();
    }
    return r;
}

int nfsc_errand(struct worker *w, struct nfsc_lane *lane, const struct nfsc_procedure *p, void *job,
                struct error *err)
{
    struct errand *e = calloc(1, sizeof *e);
    if (!e) {
        return error_set(err, ENOMEM, "no memory for a request");
    }
    e->lane = lane;
    e->procedure = p;
    e->job = job;
    e->err = err;
    atomic_init(&e->holders, 2);
    fmutex_init(&e->lock);
    fcond_init(&e->changed);
    int r = worker_post(w, run, e);
    if (r < 0) {
        error_set(err, -r, "no memory for a request");
        atomic_store(&e->holders, 1);
    } else {
        r = wait_for(e, w);
    }
    let_go(e);
    return r;
}
