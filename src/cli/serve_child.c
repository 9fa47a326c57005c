/*
 * serve --run COMMAND: the server lives as long as the command.
 *
 * The command gets a process group of its own and, where we have it, the terminal: Ctrl-C and
 * Ctrl-Z then reach the command alone, as if there were no server around it, and what is sent to
 * us (SIGTERM) we pass on to its whole group, once. When it is stopped we stop too, so that the
 * shell that started us gets its prompt; when we are continued, so is it.
 *
 * Between fork and exec only async-signal-safe calls are made: other threads may hold any lock.
 */
#include "cli/serve.h"
#include "core/log.h"
#include "core/sigwait.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A process that is not in the foreground gets SIGTTOU for this, unless it is blocked. */
static void give_terminal(pid_t group)
{
    sigset_t ttou, old;

    sigemptyset(&ttou);
    sigaddset(&ttou, SIGTTOU);
    pthread_sigmask(SIG_BLOCK, &ttou, &old);
    tcsetpgrp(STDIN_FILENO, group);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* In the child. Says errno on report if the shell can't be started. */
static void be_command(const struct serve_child *c, char *const *argv, char *const *env, int report,
                       pid_t parent)
{
    setpgid(0, 0);
    if (c->has_terminal) {
        give_terminal(getpid());
    }
    sigwait_restore_for_child();
    /* Should we be killed, the command hears of it. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent) {
        execve("/bin/sh", argv, env);
    }
    int code = errno;
    (void)!write(report, &code, sizeof(code));
    _exit(127);
}

/* Of the environment: what the command gets anew, and what was meant for us alone. */
static bool is_ours(const char *variable)
{
    static const char *const names[] = {"uri=", "unixsocket=", "NOTIFY_SOCKET="};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strncmp(variable, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* The environment with our variables in front: an array, and the texts that are ours. */
static char **make_environment(const struct serve *s, char *ours[2])
{
    size_t n = 0;

    while (environ[n]) {
        n++;
    }
    char **env = calloc(n + 3, sizeof(*env));
    const char *socket = s->sockets.file_count ? s->sockets.files[0].path : "";
    const char *uri = s->sockets.uri_count ? s->sockets.uris[0] : "";
    if (!env || asprintf(&ours[0], "uri=%s", uri) < 0) {
        free(env);
        return NULL;
    }
    if (asprintf(&ours[1], "unixsocket=%s", socket) < 0) {
        free(ours[0]);
        free(env);
        return NULL;
    }
    size_t used = 0;
    env[used++] = ours[0];
    env[used++] = ours[1];
    for (size_t i = 0; i < n; i++) {
        if (!is_ours(environ[i])) {
            env[used++] = environ[i];
        }
    }
    return env;
}

/* The child's pid, or -errno, also when the shell could not be executed. */
static pid_t start_command(struct serve *s, char *const *env)
{
    char sh[] = "sh", dash_c[] = "-c", end[] = "--";
    char *command = strdup(s->cli->run);
    char *argv[] = {sh, dash_c, end, command, NULL};
    pid_t parent = getpid();
    int report[2], code = 0;

    if (!command) {
        return -ENOMEM;
    }
    if (pipe2(report, O_CLOEXEC) < 0) {
        free(command);
        return -errno;
    }
    pid_t pid = fork();
    if (pid == 0) {
        be_command(&s->child, argv, env, report[1], parent);
    }
    int r = pid < 0 ? -errno : 0;
    close(report[1]);
    if (r == 0) {
        setpgid(pid, pid); /* whichever of us comes first */
        ssize_t n = read(report[0], &code, sizeof(code));
        if (n == (ssize_t)sizeof(code)) {
            waitpid(pid, NULL, 0);
            r = code ? -code : -ECHILD;
        }
    }
    close(report[0]);
    free(command);
    return r < 0 ? r : pid;
}

/* On the thread pool: until the command has ended. */
static int wait_command(void *arg)
{
    struct serve *s = arg;
    struct serve_child *c = &s->child;
    int status;

    for (;;) {
        pid_t r = waitpid(c->pid, &status, WUNTRACED);
        if (r < 0 && errno == EINTR) {
            continue;
        }
        if (r < 0) {
            return -errno;
        }
        if (!WIFSTOPPED(status)) {
            break;
        }
        if (c->has_terminal) {
            give_terminal(getpgrp());
        }
        kill(getpid(), SIGSTOP); /* all of our threads; goes on with SIGCONT */
        if (c->has_terminal) {
            give_terminal(c->pid);
        }
        kill(-c->pid, SIGCONT);
    }
    if (c->has_terminal) {
        give_terminal(getpgrp());
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void watch_command(void *arg)
{
    struct serve *s = arg;
    int r = offload(wait_command, s);

    s->child.pid = 0;
    s->child.status = r < 0 ? EXIT_FAILED : r;
    log_info("the command has ended with status %d", s->child.status);
    nbd_server_stop(s->server, SERVE_GRACE_NS);
}

int serve_child_start(struct serve *s, struct error *err)
{
    char *ours[2] = {NULL, NULL};
    char **env = make_environment(s, ours);

    if (!env) {
        return error_set(err, ENOMEM, "no memory");
    }
    s->child.has_terminal = isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp();
    pid_t pid = start_command(s, env);
    free(ours[0]);
    free(ours[1]);
    free(env);
    if (pid < 0) {
        return error_set(err, -pid, "the command of --run can't be started");
    }
    s->child.pid = pid;
    s->child.started = true;
    fgroup_init(&s->child.group);
    int r = fgroup_spawn(&s->child.group, watch_command, s);
    if (r < 0) {
        kill(-pid, SIGTERM);
        waitpid(pid, NULL, 0);
        s->child.pid = 0;
        s->child.started = false;
        return error_set(err, -r, "no memory");
    }
    return 0;
}

void serve_child_join(struct serve *s)
{
    if (s->child.started) {
        fgroup_wait(&s->child.group, false);
    }
}
