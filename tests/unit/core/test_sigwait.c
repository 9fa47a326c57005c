/* Signals as a wait: none is lost, doubles are one, children get their own back. */
#include "core/sigwait.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fiber.h"
#include "core/worker.h"
#include "tap.h"

static uint64_t now = 1000000000;
static struct worker *worker;
static int result;
static unsigned returns;

static void wait_for_signal(void *arg)
{
    (void)arg;
    result = sigwait_next();
    returns++;
}

static struct fiber *start(void)
{
    struct fiber *f = NULL;

    result = 0;
    EQ(fiber_spawn(wait_for_signal, NULL, &f), 0);
    return f;
}

static void step(void)
{
    while (worker_step(worker, false) > 0) {
    }
}

static void signals(void)
{
    struct fiber *f;

    EQ(worker_new_stepped(&now, &worker), 0);
    /* one that comes before anybody waits */
    kill(getpid(), SIGTERM);
    start();
    step();
    EQ(result, SIGTERM);
    /* the same one again, 249 ms later, is no other */
    start();
    now += 249000000;
    kill(getpid(), SIGTERM);
    step();
    EQ(returns, 1);
    now += 2000000;
    kill(getpid(), SIGINT);
    step();
    EQ(returns, 2);
    EQ(result, SIGINT);
    /* a hang-up terminates */
    now += 1000000000;
    start();
    kill(getpid(), SIGHUP);
    step();
    EQ(result, SIGTERM);
    /* nobody sends */
    f = start();
    step();
    fiber_cancel(f);
    step();
    EQ(result, -ECANCELED);
    worker_free(worker);
}

static void child_gets_its_own_back(void)
{
    struct sigaction action;
    int status = 0;
    pid_t pid;

    sigaction(SIGPIPE, NULL, &action);
    OK(action.sa_handler == SIG_IGN);
    pid = fork();
    if (pid == 0) {
        sigset_t mask;

        sigwait_restore_for_child();
        sigprocmask(SIG_SETMASK, NULL, &mask);
        sigaction(SIGPIPE, NULL, &action);
        if (sigismember(&mask, SIGINT) || action.sa_handler != SIG_DFL) {
            _exit(1);
        }
        kill(getpid(), SIGTERM); /* ends it */
        _exit(2);
    }
    OK(pid > 0);
    EQ(waitpid(pid, &status, 0), pid);
    OK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

int main(void)
{
    /* whatever the test runner ignores */
    signal(SIGHUP, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (sigwait_init() < 0 || sigwait_init() < 0) {
        return 1;
    }
    RUN(signals);
    RUN(child_gets_its_own_back);
    return tap_done();
}
