/*
 * Termination signals as a wait: blocked in every thread, read from a signalfd.
 *
 * SIGHUP counts as SIGTERM unless it was ignored when the program started (nohup). SIGINT and
 * SIGTERM that were ignored (shells do that to background jobs) are taken nevertheless: a server
 * must be stoppable. Which signal came first is known, when a pending one came is not: the 250 ms
 * after the first within which another is the same one are seen by who waits again meanwhile.
 */
#include "core/sigwait.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "core/fdwait.h"
#include "core/fiber.h"
#include "core/worker.h"

#define SAME_SIGNAL_NS 250000000u

/* SIGXFSZ: a limit on file sizes is to be an error of write(), as a full disk is. */
static const int handled[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGXFSZ};
#define HANDLED (sizeof handled / sizeof handled[0])

static bool initialised;
static int signal_fd = -1;
static sigset_t mask_before;
static struct sigaction action_before[HANDLED];
static bool came_before; /* a signal, at came_ns */
static uint64_t came_ns;

int sigwait_init(void)
{
    struct sigaction to_default = {.sa_handler = SIG_DFL};
    struct sigaction to_ignored = {.sa_handler = SIG_IGN};
    sigset_t waited;

    if (initialised) {
        return 0;
    }
    for (unsigned i = 0; i < HANDLED; i++) {
        if (sigaction(handled[i], NULL, &action_before[i]) < 0) {
            return -errno;
        }
    }
    sigemptyset(&waited);
    sigaddset(&waited, SIGTERM);
    sigaddset(&waited, SIGINT);
    if (action_before[2].sa_handler != SIG_IGN) {
        sigaddset(&waited, SIGHUP);
    }
    signal_fd = signalfd(-1, &waited, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signal_fd < 0) {
        return -errno;
    }
    pthread_sigmask(SIG_BLOCK, &waited, &mask_before);
    sigaction(SIGTERM, &to_default, NULL);
    sigaction(SIGINT, &to_default, NULL);
    sigaction(SIGPIPE, &to_ignored, NULL);
    sigaction(SIGXFSZ, &to_ignored, NULL);
    initialised = true;
    return 0;
}

/* Takes one pending signal: its number, or -EAGAIN. */
static int take_signal(void)
{
    struct signalfd_siginfo info;
    ssize_t n;

    do {
        n = read(signal_fd, &info, sizeof info);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return -errno;
    }
    return info.ssi_signo == SIGHUP ? SIGTERM : (int)info.ssi_signo;
}

static bool same_as_before(uint64_t now_ns)
{
    return came_before && now_ns - came_ns < SAME_SIGNAL_NS;
}

int sigwait_next(void)
{
    struct fdwait wait;
    int r;

    if (!initialised) {
        return -EINVAL;
    }
    r = fdwait_init(&wait, signal_fd);
    if (r < 0) {
        return r;
    }
    for (;;) {
        r = take_signal();
        if (r == -EAGAIN) {
            r = fdwait_wait(&wait, FDWAIT_READ, DEADLINE_NONE);
            if (r < 0) {
                break;
            }
            continue;
        }
        if (r < 0) {
            break;
        }
        if (!same_as_before(worker_now_ns(worker_self()))) {
            came_before = true;
            came_ns = worker_now_ns(worker_self());
            break;
        }
    }
    fdwait_done(&wait);
    return r;
}

void sigwait_restore_for_child(void)
{
    sigset_t none;

    if (initialised) {
        for (unsigned i = 0; i < HANDLED; i++) {
            sigaction(handled[i], &action_before[i], NULL);
        }
        sigprocmask(SIG_SETMASK, &mask_before, NULL);
        return;
    }
    /* Threads of workers and of the pool have everything blocked. */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}
