/*
 * Addresses, connecting, listening, accepting; inherited sockets.
 */
#ifndef CHANNEL_SOCKET_H
#define CHANNEL_SOCKET_H

#include "channel/channel.h"
#include "core/error.h"

#include <stdint.h>

enum address_kind { ADDRESS_UNIX, ADDRESS_TCP, ADDRESS_VSOCK, ADDRESS_FD };

struct address {
    enum address_kind kind;
    char path[108]; /* unix: a leading '@' means abstract when abstract is true */
    bool abstract;
    char host[256]; /* tcp: empty means all (listen) or localhost (connect) */
    uint16_t port;  /* tcp; 0 when listening: any */
    uint32_t vsock_cid, vsock_port;
    int fd; /* ADDRESS_FD: a connected or listening socket that we take over */
};

/* "HOST:PORT", "[V6]:PORT", ":PORT", "PORT". 0 or -EINVAL with err. */
int address_parse_tcp(const char *text, uint16_t default_port, struct address *ret,
                      struct error *err);
int address_parse_vsock(const char *text, struct address *ret, struct error *err);
int address_unix(const char *path, struct address *ret, struct error *err);
/* For messages and URIs' socket names. Returns buf. */
char *address_format(const struct address *a, char *buf, size_t size);

/* Resolves (on the thread pool), tries each result, connects. deadline_ns absolute. */
int socket_connect(const struct address *a, uint64_t socket_buffer, uint64_t deadline_ns,
                   struct channel **ret, struct error *err);

struct listener {
    int fd;
    struct fdwait wait;
    uint64_t socket_buffer;
    char unix_path[108];         /* removed by listener_close(); empty: nothing to remove */
    uint64_t unix_dev, unix_ino; /* it is removed only while it is still ours */
};

/* A stale Unix socket file is replaced; a live one, or anything that is no socket, never:
 * -EADDRINUSE / -EEXIST. unix_mode: permission bits or -1. Non-blocking, close-on-exec.
 * Several listeners may come of one name (v4 and v6): up to max; returns how many. */
int listener_open(const struct address *a, int backlog, int unix_mode, uint64_t socket_buffer,
                  struct listener *ret, int max, struct error *err);
/* The address that was bound (the port that the kernel chose). */
int listener_address(const struct listener *l, struct address *ret);
/* Waits for a client; the descriptor is accepted but not adopted, so that another worker can adopt
 * it. >= 0 the fd; -ECANCELED; when descriptors run out it waits for some, it never spins. */
int listener_accept(struct listener *l);
/* Starts the waiting on the calling worker. */
int listener_attach(struct listener *l);
void listener_close(struct listener *l);

/* systemd: LISTEN_PID/LISTEN_FDS. Number of inherited sockets starting at fd 3 (each checked to be
 * a listening stream socket), 0 when none; takes the variables out of the environment. */
int socket_inherited(int *fds, int max, struct error *err);

#endif
