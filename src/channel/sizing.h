/*
 * The one place that decides transport buffers (../../docs/architecture.md, "sizing").
 * For each kind: what is wanted and why, how to ask, how to ask harder, what was granted.
 */
#ifndef CHANNEL_SIZING_H
#define CHANNEL_SIZING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SOCKET_BUFFER_AUTO UINT64_MAX          /* the policy below */
#define SOCKET_BUFFER_DEFAULT (UINT64_MAX - 1) /* leave what the kernel gives */

#define SIZING_UNIX_STREAM_WANTED (2u << 20) /* results: 2.28 and 2.67 times, flat above */
#define SIZING_PIPE_WANTED (1u << 20)        /* results: 4 times 64 KiB, flat above */
#define SIZING_PIPE_LEAST (64u << 10)

struct sizing {
    uint64_t wanted;  /* bytes asked for; 0: left to the kernel */
    uint64_t granted; /* bytes the kernel gives now (SO_SNDBUF halved: Linux reports double) */
    bool clipped;     /* wanted > granted */
    char advice[160]; /* when clipped: the exact sysctl */
};

/* The socket calls, replaced by tests that play a kernel. */
struct sizing_calls {
    int (*setsockopt)(int fd, int level, int name, const void *value, unsigned len);
    int (*getsockopt)(int fd, int level, int name, void *value, unsigned *len);
    int (*fcntl_int)(int fd, int cmd, int value);
};
/* NULL: the real ones. */
void sizing_set_calls(const struct sizing_calls *calls);

/* A connected or accepted socket; sets TCP_NODELAY and keepalive on TCP, the send buffer on Unix
 * streams. Never fails: a refusal shows in *ret. Logs one warning a process when clipped. */
void sizing_socket(int fd, uint64_t socket_buffer, struct sizing *ret);

/* F_SETPIPE_SZ: pipe_size bytes or SOCKET_BUFFER_AUTO: 1 MiB, halved while refused down to
 * 64 KiB; SOCKET_BUFFER_DEFAULT leaves it. */
void sizing_pipe(int fd, uint64_t pipe_size, struct sizing *ret);

#endif
