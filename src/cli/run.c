/*
 * See run.h. A fiber waits in sigwait_next(); the job's end cancels it.
 */
#include "cli/run.h"

#include "cli/command.h"
#include "core/fiber.h"
#include "core/sigwait.h"
#include "nbd/program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct run_signals {
    void (*on_signal)(void *arg, int signal);
    void (*last_words)(void *arg);
    void *arg;
    struct fgroup group;
};

static void wait_signals(void *arg)
{
    struct run_signals *s = arg;

    int first = sigwait_next();
    if (first < 0) {
        return;
    }
    s->on_signal(s->arg, first);
    int second = sigwait_next();
    if (second < 0) {
        return;
    }
    fprintf(stderr, "penstock: a second signal: leaving at once\n");
    if (s->last_words) {
        s->last_words(s->arg);
    }
    programs_abandon();
    _exit(EXIT_FAILED);
}

int run_signals_start(void (*on_signal)(void *arg, int signal), void (*last_words)(void *arg),
                      void *arg, struct run_signals **ret)
{
    struct run_signals *s = calloc(1, sizeof(*s));
    if (!s) {
        return -ENOMEM;
    }
    s->on_signal = on_signal;
    s->last_words = last_words;
    s->arg = arg;
    fgroup_init(&s->group);
    int r = fgroup_spawn(&s->group, wait_signals, s);
    if (r < 0) {
        free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void run_signals_stop(struct run_signals *s)
{
    if (s) {
        fgroup_cancel(&s->group);
        fgroup_wait(&s->group, false);
        free(s);
    }
}

struct interruptible {
    int (*job)(void *arg);
    void *arg;
    int result;
    bool *interrupted;
    struct fgroup group;
};

static void run_job(void *arg)
{
    struct interruptible *run = arg;
    run->result = run->job(run->arg);
}

static void cancel_job(void *arg, int signal)
{
    struct interruptible *run = arg;
    *run->interrupted = true;
    fgroup_cancel(&run->group);
    (void)signal;
}

int run_interruptible(int (*job)(void *arg), void *arg, bool *interrupted)
{
    struct interruptible run = {.job = job, .arg = arg, .interrupted = interrupted};
    struct run_signals *signals;

    *interrupted = false;
    fgroup_init(&run.group);
    int r = run_signals_start(cancel_job, NULL, &run, &signals);
    if (r < 0) {
        return r;
    }
    r = fgroup_spawn(&run.group, run_job, &run);
    if (r == 0) {
        fgroup_wait(&run.group, true);
        r = run.result;
    }
    run_signals_stop(signals);
    return r;
}
