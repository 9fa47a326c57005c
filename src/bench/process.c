/*
 * posix_spawn and wait4: the kernel's own accounting of a child and all that it waited for.
 */
#include "bench/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

const char process_self[] = "/proc/self/exe";

double process_now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void redirect(posix_spawn_file_actions_t *actions, int fd, int to, int flags)
{
    if (fd < 0) {
        posix_spawn_file_actions_addopen(actions, to, "/dev/null", flags, 0);
    } else {
        posix_spawn_file_actions_adddup2(actions, fd, to);
    }
}

int process_start(char *const argv[], int in_fd, int out_fd, int keep_fd, struct process *ret,
                  struct error *err)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;

    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    redirect(&actions, in_fd, STDIN_FILENO, O_RDONLY);
    redirect(&actions, out_fd, STDOUT_FILENO, O_WRONLY);
    if (keep_fd >= 0) {
        posix_spawn_file_actions_adddup2(&actions, keep_fd, keep_fd); /* clears close-on-exec */
    }
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    *ret = (struct process){.name = argv[0], .out_fd = -1, .started_s = process_now_s()};
    int r = posix_spawnp(&ret->pid, argv[0], &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    if (r != 0) {
        ret->pid = 0;
        return error_set(err, r, "%s can't be started", argv[0]);
    }
    return 0;
}

static double seconds(struct timeval tv)
{
    return (double)tv.tv_sec + (double)tv.tv_usec / 1e6;
}

static int reap(struct process *p, struct cost *cost)
{
    struct rusage usage;
    int status;
    pid_t pid;
    while ((pid = wait4(p->pid, &status, 0, &usage)) < 0 && errno == EINTR) {
    }
    p->pid = 0;
    if (pid < 0) {
        return -errno;
    }
    if (cost) {
        *cost = (struct cost){
            .wall_s = process_now_s() - p->started_s,
            .user_s = seconds(usage.ru_utime),
            .sys_s = seconds(usage.ru_stime),
            .switches = usage.ru_nvcsw + usage.ru_nivcsw,
        };
    }
    return status;
}

int process_wait(struct process *p, struct cost *cost, struct error *err)
{
    int status = reap(p, cost);
    if (status < 0) {
        return error_set(err, -status, "%s can't be waited for", p->name);
    }
    if (WIFSIGNALED(status)) {
        return error_set(err, EIO, "%s was ended by signal %d", p->name, WTERMSIG(status));
    }
    return WEXITSTATUS(status)
               ? error_set(err, EIO, "%s failed (exit code %d)", p->name, WEXITSTATUS(status))
               : 0;
}

bool process_has_ended(const struct process *p)
{
    siginfo_t info = {.si_pid = 0};
    int r = waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    return r != 0 || info.si_pid != 0;
}

int process_stop(struct process *p, struct cost *cost)
{
    if (p->pid <= 0) {
        return 0;
    }
    kill(p->pid, SIGTERM);
    return reap(p, cost);
}

static char *read_output(int fd)
{
    char *text = malloc(PROCESS_OUTPUT_MAX + 1);
    size_t len = 0;
    ssize_t n;
    char dropped[512];
    while ((n = text && len < PROCESS_OUTPUT_MAX ? read(fd, text + len, PROCESS_OUTPUT_MAX - len)
                                                 : read(fd, dropped, sizeof(dropped))) != 0) {
        if (n < 0 && errno != EINTR) {
            break;
        }
        if (text && len < PROCESS_OUTPUT_MAX) {
            len += n > 0 ? (size_t)n : 0;
        }
    }
    if (text) {
        text[len] = '\0';
    }
    return text;
}

int process_run(char *const argv[], char **output, struct cost *cost, struct error *err)
{
    struct process p;
    int ends[2] = {-1, -1};
    if (output && pipe2(ends, O_CLOEXEC) != 0) {
        return error_set(err, errno, "no pipe");
    }
    int r = process_start(argv, -1, ends[1], -1, &p, err);
    if (ends[1] >= 0) {
        close(ends[1]);
    }
    char *text = r == 0 && output ? read_output(ends[0]) : NULL;
    if (ends[0] >= 0) {
        close(ends[0]);
    }
    if (r == 0) {
        r = process_wait(&p, cost, err);
    }
    if (r < 0) {
        free(text);
        return r;
    }
    if (output) {
        *output = text;
    }
    return text || !output ? 0 : error_set(err, ENOMEM, "out of memory");
}
