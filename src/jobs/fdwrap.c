/*
 * penstock_fdwrap_*: the engine of save and restore behind a pipe, for a program that has a
 * descriptor and wants to write or read a stream.
 *
 * The helper is a thread that becomes a worker for the time of the transfer, or the penstock
 * program under the name libvirt_iohelper, whose only interface is two descriptors and an exit
 * code. SIGPIPE is blocked in the thread, so a reader that goes is an error and not a signal to
 * the host program.
 */
#include "penstock.h"

#include "channel/sizing.h"
#include "core/error.h"
#include "core/worker.h"
#include "jobs/save.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HELPER_NAME "libvirt_iohelper"

extern char **environ;

struct penstock_fdwrap {
    char *name;
    int file_fd; /* owned */
    int pipe_fd; /* the helper's end; owned */
    bool saving;
    bool direct;
    bool process;
    size_t pipe_size;
    pthread_t thread;
    pid_t pid;
    int stderr_fd; /* of the process */
    bool closed;
    int result;
    struct error err;
};

const char *penstock_version(void)
{
    return PENSTOCK_VERSION;
}

/* ---- the thread ---- */

static int transfer(void *arg)
{
    struct penstock_fdwrap *w = arg;
    off_t now = lseek(w->file_fd, 0, SEEK_CUR);
    uint64_t offset = now > 0 ? (uint64_t)now : 0;
    if (w->saving) {
        struct save_options o = {
            .store = {.name = w->name,
                      .fd = w->file_fd,
                      .in_place = true,
                      .direct = w->direct,
                      .offset = offset},
            .in_fd = w->pipe_fd,
        };
        struct save_result result;
        return save_run(&o, &result, &w->err);
    }
    struct restore_options o = {.name = w->name,
                                .fd = w->file_fd,
                                .out_fd = w->pipe_fd,
                                .offset = offset,
                                .direct = w->direct,
                                .as_is = true};
    struct restore_result result;
    return restore_run(&o, &result, &w->err);
}

static void close_helper_ends(struct penstock_fdwrap *w)
{
    close(w->pipe_fd); /* at once: the other side sees the end, or EPIPE */
    close(w->file_fd);
    w->pipe_fd = w->file_fd = -1;
}

static void *helper_thread(void *arg)
{
    struct penstock_fdwrap *w = arg;
    w->result = worker_main(transfer, w);
    if (w->result < 0) {
        error_set(&w->err, -w->result, "the transfer failed");
    }
    close_helper_ends(w);
    return NULL;
}

static int start_thread(struct penstock_fdwrap *w)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&w->thread, NULL, helper_thread, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return -r;
}

/* ---- the process ---- */

static int spawn(struct penstock_fdwrap *w, int stderr_fd)
{
    const char *program = getenv("PENSTOCK_PROGRAM");
    char *argv[] = {(char *)(uintptr_t)HELPER_NAME, w->name,
                    (char *)(uintptr_t)(w->saving ? "1" : "0"), NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, defaults;

    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGTERM);
    sigaddset(&defaults, SIGINT);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, w->saving ? w->pipe_fd : w->file_fd, 0);
    posix_spawn_file_actions_adddup2(&actions, w->saving ? w->file_fd : w->pipe_fd, 1);
    posix_spawn_file_actions_adddup2(&actions, stderr_fd, 2);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int r = posix_spawnp(&w->pid, program ? program : "penstock", &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return -r;
}

/* Descriptors 0 to 2 would be overwritten before they are duplicated: move them up. */
static int move_up(int *fd)
{
    if (*fd > 2) {
        return 0;
    }
    int high = fcntl(*fd, F_DUPFD_CLOEXEC, 3);
    if (high < 0) {
        return -errno;
    }
    close(*fd);
    *fd = high;
    return 0;
}

static int start_process(struct penstock_fdwrap *w)
{
    int ends[2] = {-1, -1};
    if (w->direct) {
        int flags = fcntl(w->file_fd, F_GETFL);
        if (flags < 0 || fcntl(w->file_fd, F_SETFL, flags | O_DIRECT) != 0) {
            w->direct = false; /* refused: the helper does what it can */
        }
    }
    int r = move_up(&w->file_fd);
    r = r == 0 ? move_up(&w->pipe_fd) : r;
    if (r == 0 && pipe2(ends, O_CLOEXEC) != 0) {
        r = -errno;
    }
    if (r < 0) {
        return r;
    }
    r = spawn(w, ends[1]);
    close(ends[1]);
    if (r < 0) {
        close(ends[0]);
        return r;
    }
    w->stderr_fd = ends[0];
    close_helper_ends(w);
    return 0;
}

static int wait_process(struct penstock_fdwrap *w)
{
    char text[ERROR_TEXT_MAX];
    size_t len = 0;
    ssize_t n;
    while ((n = read(w->stderr_fd, text + len, sizeof(text) - 1 - len)) != 0) {
        if (n < 0 && errno != EINTR) {
            break;
        }
        len += n > 0 ? (size_t)n : 0;
        if (len == sizeof(text) - 1) {
            len--; /* the end of a long text is dropped, the pipe is still drained */
        }
    }
    text[len] = '\0';
    close(w->stderr_fd);
    int status = 0;
    while (waitpid(w->pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return 0;
    }
    return error_set(&w->err, EIO, "%s", len ? text : "the helper was killed");
}

/* ---- the calls ---- */

static int start(struct penstock_fdwrap *w)
{
    return w->process ? start_process(w) : start_thread(w);
}

int penstock_fdwrap_open(int *fd, const char *name, unsigned flags, struct penstock_fdwrap **ret)
{
    int mode = fcntl(*fd, F_GETFL);
    if (mode < 0) {
        return -errno;
    }
    if ((mode & O_ACCMODE) == O_RDWR) {
        return -EINVAL;
    }
    struct penstock_fdwrap *w = calloc(1, sizeof(*w));
    int ends[2] = {-1, -1};
    int r = w && (w->name = strdup(name)) ? 0 : -ENOMEM;
    int own = r == 0 ? fcntl(*fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (r == 0 && (own < 0 || pipe2(ends, O_CLOEXEC) != 0)) {
        r = -errno;
    }
    if (r == 0) {
        struct sizing sizing;
        w->saving = (mode & O_ACCMODE) == O_WRONLY;
        w->direct = flags & PENSTOCK_FDWRAP_DIRECT;
        w->process = flags & PENSTOCK_FDWRAP_PROCESS;
        sizing_pipe(ends[0], SOCKET_BUFFER_AUTO, &sizing);
        w->pipe_size = (size_t)sizing.granted;
        w->file_fd = own;
        w->pipe_fd = w->saving ? ends[0] : ends[1];
        error_clear(&w->err);
        r = start(w);
        own = r < 0 ? w->file_fd : -1;
        ends[w->saving ? 0 : 1] = r < 0 ? w->pipe_fd : -1;
    }
    if (r < 0) {
        for (int i = 0; i < 2; i++) {
            if (ends[i] >= 0) {
                close(ends[i]);
            }
        }
        if (own >= 0) {
            close(own);
        }
        free(w ? w->name : NULL);
        free(w);
        return r;
    }
    close(*fd);
    *fd = w->saving ? ends[1] : ends[0];
    *ret = w;
    return 0;
}

size_t penstock_fdwrap_pipe_size(const struct penstock_fdwrap *w)
{
    return w->pipe_size;
}

int penstock_fdwrap_close(struct penstock_fdwrap *w, char *text, size_t size)
{
    if (!w->closed) {
        w->closed = true;
        if (w->process) {
            w->result = wait_process(w);
        } else {
            pthread_join(w->thread, NULL);
        }
    }
    if (text && size) {
        text[0] = '\0';
        if (w->result < 0) {
            error_format(&w->err, text, size);
        }
    }
    return w->result;
}

void penstock_fdwrap_free(struct penstock_fdwrap *w)
{
    if (!w) {
        return;
    }
    penstock_fdwrap_close(w, NULL, 0);
    free(w->name);
    free(w);
}
