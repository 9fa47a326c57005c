/*
 * How a service says that it is ready: a pid file, a line on a descriptor, systemd's socket.
 */
#ifndef CLI_READY_H
#define CLI_READY_H

#include "core/error.h"

#include <stdint.h>

struct pid_file {
    const char *path;  /* NULL: none was written; not owned */
    uint64_t dev, ino; /* it is removed only while it is still ours */
};

/* Writes it whole or not at all: a new file that is renamed. 0 or -errno with err. */
int pid_file_write(struct pid_file *p, const char *path, struct error *err);
/* Async-signal-safe. Harmless when none was written, and the second time. */
void pid_file_remove(struct pid_file *p);

/* Whether fd can be said to be ours to write to: 0, or -EBADF with err. */
int ready_fd_check(int fd, struct error *err);
/* Writes text and closes fd. 0 or -errno. */
int ready_fd_say(int fd, const char *text, struct error *err);

/* To $NOTIFY_SOCKET, where there is one: "READY=1". Failure is no matter. */
void ready_notify(const char *state);

#endif
