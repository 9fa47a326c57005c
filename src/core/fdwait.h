/*
 * Waiting for a non-blocking file descriptor on the calling worker's epoll (edge-triggered,
 * registered once for both directions). At most one fiber waits for each direction at a time.
 *
 * Use: try the call; on EAGAIN wait; try again. fdwait_wait() may return although the fd is not
 * ready (an old edge), so always loop.
 */
#ifndef CORE_FDWAIT_H
#define CORE_FDWAIT_H

#include <stdbool.h>
#include <stdint.h>

struct fiber;
struct worker;

enum fdwait_dir { FDWAIT_READ, FDWAIT_WRITE };

struct fdwait {
    struct worker *worker;
    int fd;        /* not owned */
    bool pollable; /* false: epoll refused it (a regular file); it is always ready */
    bool ready[2]; /* an edge that nobody has waited for yet */
    struct fiber *waiter[2];
};

/* 0 or -errno. The fd must stay open until fdwait_done(). */
int fdwait_init(struct fdwait *w, int fd);
/* Harmless on a zeroed struct. No fiber may be waiting. */
void fdwait_done(struct fdwait *w);

/* 0, -ETIMEDOUT, -ECANCELED. EPOLLERR and EPOLLHUP wake both directions. */
int fdwait_wait(struct fdwait *w, enum fdwait_dir dir, uint64_t deadline_ns);

/* For one wait on an fd that has no fdwait. */
int fd_wait_once(int fd, enum fdwait_dir dir, uint64_t deadline_ns);

/* Any fd number that libraries replace under us (libnfs at reconnect): registers anew. */
int fdwait_renew(struct fdwait *w, int fd);

#endif
