/*
 * The parts of `penstock serve`: what the command line said, and what is running.
 *
 *   cmd_serve.c     the options
 *   serve.c         from opening the disks to the last flush
 *   serve_listen.c  sockets and their names
 *   serve_child.c   --run
 */
#ifndef CLI_SERVE_H
#define CLI_SERVE_H

#include "channel/socket.h"
#include "cli/command.h"
#include "cli/endpoint_cli.h"
#include "cli/ready.h"
#include "core/fiber.h"
#include "nbd/server.h"

#include <limits.h>
#include <sys/types.h>

#define SERVE_EXPORTS_MAX 256 /* a command line; beyond that is what several processes are for */
#define SERVE_LISTENERS_MAX 32
#define SERVE_GRACE_NS UINT64_C(10000000000) /* for clients that don't read their replies */

struct serve_export {
    const char *name;
    const char *description; /* or NULL */
    const char *endpoint;    /* NULL: not said yet */
};

struct serve_cli {
    struct endpoint_cli endpoint;
    const char *unix_path;
    int socket_mode; /* -1: as the umask says */
    struct option_list tcp;
    const char *vsock;
    bool stdio;
    const char *run;
    const char *pid_file;
    uint64_t ready_fd; /* UINT64_MAX: none */
    bool one_shot, persistent, read_only, no_list;
    uint64_t max_connections, workers, handshake_timeout_ns, memory, requests;
    const char *description; /* said before there was an export */
    unsigned export_count;
    struct serve_export exports[SERVE_EXPORTS_MAX];
};

/* A socket file that goes when we go. */
struct serve_socket {
    char path[108];
    uint64_t dev, ino;
};

struct serve_sockets {
    unsigned address_count;
    struct address addresses[SERVE_LISTENERS_MAX]; /* what the options said */
    unsigned listener_count;
    struct listener listeners[SERVE_LISTENERS_MAX]; /* open, not yet the server's */
    unsigned uri_count;
    char uris[SERVE_LISTENERS_MAX][2048];
    unsigned file_count;
    struct serve_socket files[SERVE_LISTENERS_MAX];
    char folder[PATH_MAX]; /* made for --run; empty: none */
};

struct serve_child {
    pid_t pid;         /* 0: not running */
    int status;        /* exit code, as a shell would say it */
    bool has_terminal; /* it is in the foreground of ours */
    bool started;
    struct fgroup group;
};

enum serve_phase { SERVE_STARTING, SERVE_RUNNING };

struct serve {
    const struct serve_cli *cli;
    enum serve_phase phase;
    bool interrupted; /* a signal came before it was ready */
    struct fgroup starting;
    int result; /* of the start: 0 or -errno */
    struct error err;
    struct workers *workers;
    struct nbd_server *server;
    unsigned volume_count;
    struct volume *volumes[SERVE_EXPORTS_MAX];
    struct serve_sockets sockets;
    struct serve_child child;
    struct pid_file pid_file;
};

/* serve.c: all of it, from a fiber. Returns an exit code. */
int serve_run(struct command_run *r);

/* serve_listen.c */
/* The options' addresses, without touching any. 0 or -EINVAL with err: wrong use. */
int serve_addresses(const struct serve_cli *cli, struct serve_sockets *s, struct error *err);
/* Inherited sockets and those of the addresses; a private folder for --run. 0 or -errno. On
 * failure what is open is in s, for serve_sockets_abandon(). */
int serve_listen(const struct serve_cli *cli, struct serve_sockets *s, struct error *err);
/* Closes the listeners that the server did not take. */
void serve_sockets_abandon(struct serve_sockets *s);
/* Removes socket files and the folder. Quick, no allocation; harmless the second time. */
void serve_sockets_remove(struct serve_sockets *s);

/* serve_child.c */
/* Starts the command, and stops the server when it has ended. 0 or -errno with err. */
int serve_child_start(struct serve *s, struct error *err);
/* Waits for its end. */
void serve_child_join(struct serve *s);

#endif
