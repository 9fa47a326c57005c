/*
 * penstock serve, from opening the disks to the last flush.
 *
 * Start: disks, sockets, the server on them, the pid file, the command of --run, the line on
 * --ready-fd; a signal in the midst of it cancels it. Then the server runs until a signal, the end
 * of the command, or of the only client. Stop: accepted requests are answered, what was written is
 * flushed, socket files, pid file and folder go, and the exit code says whether all of that worked.
 *
 * A second signal leaves at once: files are removed, nothing is flushed, exit code 1.
 */
#include "cli/serve.h"
#include "cli/run.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_export(struct serve *s, const struct serve_export *e)
{
    struct endpoint_options o;
    struct volume *v;

    endpoint_cli_apply(&s->cli->endpoint, &o);
    o.writable = !s->cli->read_only;
    int r = endpoint_open(e->endpoint, &o, &v, &s->err);
    if (o.writable && (r == -EROFS || r == -EACCES || r == -EPERM)) {
        error_prefix(&s->err, "it can't be opened for writing (--read-only serves it without)");
    }
    if (r < 0) {
        return r;
    }
    s->volumes[s->volume_count++] = v;
    struct nbd_export_options x = {
        .name = e->name,
        .description = e->description,
        .read_only = s->cli->read_only || !volume_can(v, VOLUME_CAN_WRITE),
    };
    return nbd_server_add_export(s->server, v, &x, &s->err);
}

static int make_server(struct serve *s)
{
    struct nbd_server_options o;

    nbd_server_options_init(&o);
    o.max_connections = (unsigned)s->cli->max_connections;
    o.handshake_timeout_ns = s->cli->handshake_timeout_ns;
    o.connection_memory = s->cli->memory;
    o.connection_requests = (unsigned)s->cli->requests;
    o.socket_buffer = s->cli->endpoint.socket_buffer;
    o.list = !s->cli->no_list;
    o.one_shot = s->cli->one_shot;
    o.persistent = !s->cli->one_shot;
    int r = nbd_server_new(&o, &s->server, &s->err);
    for (unsigned i = 0; r == 0 && i < s->cli->export_count; i++) {
        r = open_export(s, &s->cli->exports[i]);
    }
    return r;
}

/* Hands the listeners over to the server, last first, so that what it did not take stays ours. */
static int listen_on_all(struct serve *s)
{
    int r = workers_start((unsigned)s->cli->workers, &s->workers);

    if (r < 0) {
        return error_set(&s->err, -r, "%u workers can't be started", (unsigned)s->cli->workers);
    }
    while (s->sockets.listener_count > 0) {
        struct listener *l = &s->sockets.listeners[s->sockets.listener_count - 1];
        r = nbd_server_listen(s->server, l, s->workers, &s->err);
        if (r < 0) {
            return r;
        }
        s->sockets.listener_count--;
    }
    return 0;
}

static int tell_ready(struct serve *s)
{
    char text[SERVE_LISTENERS_MAX * 256] = "";
    int r = 0;

    if (s->cli->ready_fd != UINT64_MAX) {
        size_t used = 0;
        for (unsigned i = 0; i < s->sockets.uri_count; i++) {
            const char *uri = s->sockets.uris[i];
            if (strlen(uri) + 2 < sizeof(text) - used) {
                used += (size_t)snprintf(text + used, sizeof(text) - used, "%s\n", uri);
            }
        }
        r = ready_fd_say((int)s->cli->ready_fd, used ? text : "ready\n", &s->err);
    }
    if (r == 0) {
        ready_notify("READY=1");
    }
    return r;
}

static void start(void *arg)
{
    struct serve *s = arg;

    s->result = s->cli->stdio ? 0 : serve_listen(s->cli, &s->sockets, &s->err);
    if (s->result == 0) {
        s->result = make_server(s);
    }
    if (s->result == 0 && !s->cli->stdio) {
        s->result = listen_on_all(s);
    }
    if (s->result == 0 && s->cli->pid_file) {
        s->result = pid_file_write(&s->pid_file, s->cli->pid_file, &s->err);
    }
    if (s->result == 0 && s->cli->run) {
        s->result = serve_child_start(s, &s->err);
    }
    if (s->result == 0) {
        s->result = tell_ready(s);
    }
}

static void on_signal(void *arg, int signal)
{
    struct serve *s = arg;

    if (s->phase == SERVE_STARTING) {
        s->interrupted = true;
        fgroup_cancel(&s->starting);
    } else if (s->child.pid > 0) {
        kill(-s->child.pid, signal); /* the server ends when the command does */
    } else {
        ready_notify("STOPPING=1");
        nbd_server_stop(s->server, SERVE_GRACE_NS);
    }
}

static void last_words(void *arg)
{
    struct serve *s = arg;

    serve_sockets_remove(&s->sockets);
    pid_file_remove(&s->pid_file);
    if (s->child.pid > 0) {
        kill(-s->child.pid, SIGKILL);
    }
}

/* Standard input and output become the channel's, so that nothing else can write into it. */
static int take_stdio(int fds[2], struct error *err)
{
    struct stat in, out, talk;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    bool same = fstat(0, &in) == 0 && fstat(1, &out) == 0 && S_ISSOCK(in.st_mode) &&
                in.st_dev == out.st_dev && in.st_ino == out.st_ino;

    fds[0] = fcntl(0, F_DUPFD_CLOEXEC, 3);
    fds[1] = same ? fds[0] : fcntl(1, F_DUPFD_CLOEXEC, 3);
    if (null < 0 || fds[0] < 0 || fds[1] < 0) {
        return error_set(err, errno, "--stdio");
    }
    /* inetd makes standard error the socket, too. */
    bool talks_to_client = same && fstat(2, &talk) == 0 && talk.st_dev == in.st_dev &&
                           talk.st_ino == in.st_ino;
    dup2(null, 0);
    dup2(null, 1);
    if (talks_to_client) {
        dup2(null, 2);
    }
    close(null);
    return 0;
}

struct stdio_client {
    struct serve *serve;
    int result;
};

static void serve_stdio(void *arg)
{
    struct stdio_client *c = arg;
    struct serve *s = c->serve;
    struct channel *ch;
    int fds[2] = {-1, -1};

    c->result = take_stdio(fds, &s->err);
    if (c->result == 0) {
        c->result = channel_adopt(fds[0], fds[1], s->cli->endpoint.socket_buffer, &ch, &s->err);
    }
    if (c->result == 0) {
        c->result = nbd_server_connection(s->server, ch);
        if (c->result < 0) {
            error_set(&s->err, -c->result, "the client at standard input");
        }
    }
}

/* Serves until it is time to end: 0 or -errno with s->err. */
static int serve(struct serve *s)
{
    struct stdio_client client = {.serve = s};
    struct fgroup group;

    if (!s->cli->stdio) {
        nbd_server_wait(s->server);
        return 0;
    }
    fgroup_init(&group);
    client.result = fgroup_spawn(&group, serve_stdio, &client);
    if (client.result == 0) {
        fgroup_wait(&group, false);
    }
    return client.result;
}

/* Everything down, in the order of dependence. Returns the exit code. */
static int finish(struct serve *s, int code)
{
    struct error err = {};

    if (s->server && nbd_server_finish(s->server, &err) < 0) {
        code = command_failed(&err);
    }
    serve_child_join(s);
    serve_sockets_abandon(&s->sockets);
    serve_sockets_remove(&s->sockets);
    nbd_server_free(s->server);
    for (unsigned i = 0; i < s->volume_count; i++) {
        volume_close(s->volumes[i]);
    }
    if (s->workers) {
        workers_stop(s->workers);
    }
    pid_file_remove(&s->pid_file);
    if (code == EXIT_DONE && s->child.started) {
        code = s->child.status;
    }
    return code;
}

static int start_and_serve(struct serve *s)
{
    int code = EXIT_DONE;

    fgroup_init(&s->starting);
    s->result = fgroup_spawn(&s->starting, start, s);
    if (s->result == 0) {
        fgroup_wait(&s->starting, false);
    }
    if (s->result == 0 && !s->interrupted) {
        s->phase = SERVE_RUNNING;
        s->result = serve(s);
    }
    if (s->interrupted && s->phase == SERVE_STARTING) {
        log_info("interrupted before it was ready");
        code = s->cli->run ? EXIT_FAILED : EXIT_DONE;
    } else if (s->result < 0) {
        error_set(&s->err, -s->result, "the server can't go on");
        code = command_failed(&s->err);
    }
    if (s->child.pid > 0 && s->phase == SERVE_STARTING) {
        kill(-s->child.pid, SIGTERM);
    }
    return finish(s, code);
}

int serve_run(struct command_run *r)
{
    const struct serve_cli *cli = r->options;
    struct run_signals *signals;
    struct serve *s = calloc(1, sizeof(*s));
    int code;

    if (!s) {
        fprintf(stderr, "penstock: no memory\n");
        return EXIT_FAILED;
    }
    s->cli = cli;
    if (serve_addresses(cli, &s->sockets, &s->err) < 0 ||
        (cli->ready_fd != UINT64_MAX && ready_fd_check((int)cli->ready_fd, &s->err) < 0)) {
        code = command_misused(r, "%s", s->err.text);
    } else if (run_signals_start(on_signal, last_words, s, &signals) < 0) {
        fprintf(stderr, "penstock: no memory\n");
        code = EXIT_FAILED;
    } else {
        code = start_and_serve(s);
        run_signals_stop(signals);
    }
    free(s);
    return code;
}
