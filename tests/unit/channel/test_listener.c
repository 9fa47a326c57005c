/*
 * Listening, connecting and accepting: the rules about socket files, two families on one port,
 * full backlogs, exhausted descriptors, inherited sockets.
 */
#include "channel/sizing.h"
#include "channel/socket.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/log.h"
#include "core/worker.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND 1000000000ull

static char folder[] = "/tmp/penstock-test-XXXXXX";
static char path[64];
static void (*test_body)(void);

static int run_body(void *arg)
{
    test_body();
    return 0;
}

static void in_worker(void (*body)(void))
{
    test_body = body;
    EQ(worker_main(run_body, NULL), 0);
}

static int open_unix(struct listener *l, int mode, struct error *err)
{
    struct address a;
    EQ(address_unix(path, &a, NULL), 0);
    return listener_open(&a, 8, mode, SOCKET_BUFFER_AUTO, l, 1, err);
}

static bool exists(void)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* A socket file whose owner has gone. */
static void leave_stale(void)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(un.sun_path, path, strlen(path) + 1);
    OK(bind(fd, (struct sockaddr *)&un, sizeof(un)) == 0);
    OK(listen(fd, 1) == 0);
    close(fd);
    OK(exists());
}

static void talk(const struct address *a, struct listener *l)
{
    struct channel *client = NULL, *server = NULL;
    char buf[5] = "";
    struct error err = {0};
    uint64_t deadline = worker_now_ns(worker_self()) + 60 * SECOND;
    EQ(socket_connect(a, SOCKET_BUFFER_AUTO, deadline, &client, &err), 0);
    int fd = listener_accept(l);
    OK(fd >= 0);
    OK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    OK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    EQ(channel_adopt(fd, fd, SOCKET_BUFFER_AUTO, &server, NULL), 0);
    if (client && server) {
        EQ(channel_write(client, "ping", 4, false), 0);
        EQ(channel_read(server, buf, 4), 0);
        STREQ(buf, "ping");
        OK(client->peer[0]);
    }
    channel_close(client);
    channel_close(server);
}

static void unix_body(void)
{
    struct listener l;
    struct address a;
    struct stat st;
    EQ(open_unix(&l, 0600, NULL), 1);
    EQ(listener_attach(&l), 0);
    OK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    EQ(listener_address(&l, &a), 0);
    STREQ(a.path, path);
    talk(&a, &l);
    talk(&a, &l);
    listener_close(&l);
    OK(!exists());
    listener_close(&l);

    address_unix("@penstock-test", &a, NULL);
    char unique[sizeof(a.path)];
    snprintf(unique, sizeof(unique), "@penstock-test-%d", getpid());
    address_unix(unique, &a, NULL);
    EQ(listener_open(&a, 8, -1, SOCKET_BUFFER_AUTO, &l, 1, NULL), 1);
    EQ(listener_attach(&l), 0);
    struct address bound;
    EQ(listener_address(&l, &bound), 0);
    STREQ(bound.path, unique);
    talk(&bound, &l);
    listener_close(&l);
}

static void unix_sockets(void)
{
    in_worker(unix_body);
}

static void files_body(void)
{
    struct listener l, second;
    struct error err = {0};
    struct stat st;
    leave_stale();
    EQ(open_unix(&l, -1, &err), 1); /* replaced */
    EQ(open_unix(&second, -1, &err), -EADDRINUSE);
    OK(strstr(err.text, path));
    OK(exists()); /* and the live one is as it was */
    EQ(listener_attach(&l), 0);
    struct address a;
    address_unix(path, &a, NULL);
    int probe = listener_accept(&l); /* the second one's question whether we live */
    OK(probe >= 0);
    close(probe);
    talk(&a, &l);
    /* somebody moved another file into our place: it is not ours to remove */
    unlink(path);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    OK(fd >= 0);
    close(fd);
    listener_close(&l);
    OK(stat(path, &st) == 0 && S_ISREG(st.st_mode));
    error_clear(&err);
    EQ(open_unix(&l, -1, &err), -EEXIST);
    OK(stat(path, &st) == 0 && S_ISREG(st.st_mode));
    unlink(path);
    /* a dangling link is no socket either */
    OK(symlink("/nonexistent", path) == 0);
    error_clear(&err);
    EQ(open_unix(&l, -1, &err), -EEXIST);
    unlink(path);
    /* no folder */
    address_unix("/nonexistent/folder/s", &a, NULL);
    error_clear(&err);
    EQ(listener_open(&a, 1, -1, SOCKET_BUFFER_AUTO, &l, 1, &err), -ENOENT);
    OK(strstr(err.text, "/nonexistent/folder/s"));
}

static void files_that_are_in_the_way(void)
{
    in_worker(files_body);
}

/* Eight processes replace the same stale file at once: exactly one wins, and its socket works. */
static int starter(void *arg)
{
    struct listener l;
    int go = *(int *)arg;
    char c;
    if (read(go, &c, 1) < 0) {
        return 2;
    }
    int r = open_unix(&l, -1, NULL);
    if (r == 1) {
        /* alive until the parent has counted */
        while (read(go, &c, 1) > 0) {
        }
        pause();
    }
    return r == -EADDRINUSE ? 1 : 2;
}

#define STARTERS 8

static void one_starter_wins(void)
{
    int go[2];
    pid_t pids[STARTERS];
    leave_stale();
    OK(pipe(go) == 0);
    for (int i = 0; i < STARTERS; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            close(go[1]);
            _exit(worker_main(starter, &go[0]));
        }
    }
    close(go[0]);
    close(go[1]); /* all are released */
    int losers = 0, winner = -1;
    /* all but one end by themselves */
    for (int i = 0; i < STARTERS - 1; i++) {
        int status;
        pid_t pid = wait(&status);
        losers += WIFEXITED(status) && WEXITSTATUS(status) == 1;
        for (int k = 0; k < STARTERS; k++) {
            pids[k] = pids[k] == pid ? 0 : pids[k];
        }
    }
    EQ(losers, STARTERS - 1);
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    memcpy(un.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EQ(connect(fd, (struct sockaddr *)&un, sizeof(un)), 0);
    close(fd);
    for (int k = 0; k < STARTERS; k++) {
        if (pids[k]) {
            winner = k;
            kill(pids[k], SIGKILL);
            waitpid(pids[k], NULL, 0);
        }
    }
    OK(winner >= 0);
    unlink(path);
}

static void tcp_body(void)
{
    struct listener l[4];
    struct address a, bound, second;
    address_parse_tcp("localhost:0", 0, &a, NULL);
    int n = listener_open(&a, 8, -1, SOCKET_BUFFER_AUTO, l, 4, NULL);
    OK(n >= 1);
    EQ(listener_address(&l[0], &bound), 0);
    OK(bound.port != 0);
    for (int i = 0; i < n; i++) {
        EQ(listener_address(&l[i], &second), 0);
        EQ(second.port, bound.port);
        EQ(listener_attach(&l[i]), 0);
        talk(&second, &l[i]);
    }
    struct listener taken;
    struct error err = {0};
    EQ(listener_open(&bound, 8, -1, SOCKET_BUFFER_AUTO, &taken, 1, &err), -EADDRINUSE);
    for (int i = 0; i < n; i++) {
        listener_close(&l[i]);
    }
    /* nobody there any more */
    struct channel *ch;
    error_clear(&err);
    EQ(socket_connect(&bound, SOCKET_BUFFER_AUTO, DEADLINE_NONE, &ch, &err), -ECONNREFUSED);
    OK(strstr(err.text, "can't connect"));
    error_clear(&err);
    address_parse_tcp("no-such-host.invalid:1", 0, &a, NULL);
    OK(socket_connect(&a, SOCKET_BUFFER_AUTO, DEADLINE_NONE, &ch, &err) < 0);
    OK(strstr(err.text, "no-such-host.invalid"));
}

static void tcp_sockets(void)
{
    in_worker(tcp_body);
}

struct late {
    struct listener *l;
    int fd;
};

static void accept_later(void *arg)
{
    struct late *late = arg;
    fiber_sleep_ns(5000000);
    late->fd = listener_accept(late->l);
}

static void backlog_body(void)
{
    struct listener l;
    struct address a;
    struct channel *ch[4] = {NULL};
    struct fgroup g;
    address_unix(path, &a, NULL);
    EQ(listener_open(&a, 0, -1, SOCKET_BUFFER_AUTO, &l, 1, NULL), 1);
    EQ(listener_attach(&l), 0);
    /* a backlog of 0 holds one; the second waits until its deadline, or until there is room */
    EQ(socket_connect(&a, SOCKET_BUFFER_AUTO, DEADLINE_NONE, &ch[0], NULL), 0);
    EQ(socket_connect(&a, SOCKET_BUFFER_AUTO, worker_now_ns(worker_self()) + 3000000, &ch[1], NULL),
       -ETIMEDOUT);
    struct late late = {.l = &l, .fd = -1};
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, accept_later, &late), 0);
    EQ(socket_connect(&a, SOCKET_BUFFER_AUTO, DEADLINE_NONE, &ch[2], NULL), 0);
    fgroup_wait(&g, false);
    OK(late.fd >= 0);
    close(late.fd);
    channel_close(ch[0]);
    channel_close(ch[2]);
    listener_close(&l);
}

static void full_backlog_waits(void)
{
    in_worker(backlog_body);
}

static void accept_job(void *arg)
{
    struct late *late = arg;
    late->fd = listener_accept(late->l);
}

static void descriptors_body(void)
{
    struct listener l;
    struct address a;
    struct channel *ch;
    struct rlimit old, few;
    struct fgroup g;
    EQ(open_unix(&l, -1, NULL), 1);
    EQ(listener_attach(&l), 0);
    EQ(listener_address(&l, &a), 0);
    EQ(socket_connect(&a, SOCKET_BUFFER_AUTO, DEADLINE_NONE, &ch, NULL), 0);
    int free_fd = dup(0);
    OK(getrlimit(RLIMIT_NOFILE, &old) == 0);
    few = old;
    few.rlim_cur = (rlim_t)free_fd; /* whatever is lower is taken: none is left */
    close(free_fd);
    log_set_level(LOG_ERROR); /* the warning is meant for people */
    OK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    struct late late = {.l = &l, .fd = -1};
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, accept_job, &late), 0);
    for (int i = 0; i < 5; i++) {
        fiber_yield();
    }
    EQ(late.fd, -1); /* it waits */
    OK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    fgroup_wait(&g, false);
    OK(late.fd >= 0);
    close(late.fd);
    /* and a canceled wait ends */
    late.fd = 0;
    EQ(fgroup_spawn(&g, accept_job, &late), 0);
    fiber_yield();
    fgroup_cancel(&g);
    fgroup_wait(&g, false);
    EQ(late.fd, -ECANCELED);
    log_set_level(LOG_WARNING);
    channel_close(ch);
    listener_close(&l);
}

static void exhausted_descriptors_wait(void)
{
    in_worker(descriptors_body);
}

/* In a child, whose descriptors 3 and up are its own to arrange. */
static int inherited_child(int variant)
{
    int fds[4];
    char text[32];
    struct error err = {0};
    struct address a;
    struct listener l;
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    if (variant != 2 && (bind(s, (struct sockaddr *)&un, sizeof(un.sun_family)) || listen(s, 1))) {
        return 10;
    }
    if (dup2(s, 3) != 3) {
        return 11;
    }
    snprintf(text, sizeof(text), "%d", variant == 1 ? getpid() + 1 : getpid());
    setenv("LISTEN_PID", text, 1);
    setenv("LISTEN_FDS", variant == 3 ? "5" : variant == 4 ? "x" : "1", 1);
    int r = socket_inherited(fds, 4, &err);
    if (getenv("LISTEN_PID") || getenv("LISTEN_FDS")) {
        return 12;
    }
    switch (variant) {
    case 0:
        a = (struct address){.kind = ADDRESS_FD, .fd = fds[0]};
        return r == 1 && fds[0] == 3 && (fcntl(3, F_GETFD) & FD_CLOEXEC) &&
                       listener_open(&a, 1, -1, SOCKET_BUFFER_AUTO, &l, 1, NULL) == 1
                   ? 0
                   : 13;
    case 1:
        return r == 0 ? 0 : 14;
    default:
        return r < 0 && err.code ? 0 : 15;
    }
}

static void inherited_sockets(void)
{
    for (int variant = 0; variant <= 4; variant++) {
        int status = -1;
        pid_t pid = fork();
        if (pid == 0) {
            _exit(inherited_child(variant));
        }
        waitpid(pid, &status, 0);
        OK(WIFEXITED(status));
        if (!EQ(WEXITSTATUS(status), 0)) {
            printf("#   variant %d\n", variant);
        }
    }
    EQ(socket_inherited(NULL, 0, NULL), 0);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    OK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/s", folder);
    /* those that fork come before there are threads */
    RUN(one_starter_wins);
    RUN(inherited_sockets);
    RUN(unix_sockets);
    RUN(files_that_are_in_the_way);
    RUN(tcp_sockets);
    RUN(full_backlog_waits);
    RUN(exhausted_descriptors_wait);
    rmdir(folder);
    bufpool_trim();
    return tap_done();
}
