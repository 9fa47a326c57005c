/*
 * [ PROGRAM ARG ... ]: a server is started with systemd's socket activation (sd_listen_fds(3)):
 * it finds a listening socket as descriptor 3, LISTEN_FDS=1 and its own LISTEN_PID in the
 * environment. The socket lies in a folder that only we may enter. Because it listens before the
 * program runs, connecting needs no polling; the program's stderr is ours, so what it complains of
 * is seen.
 *
 * Between fork and exec only async-signal-safe calls are made: other threads may have held any
 * lock. So arguments, path and environment are laid out before the fork, and the child only writes
 * its own number into LISTEN_PID.
 *
 * It can't outlive us: PR_SET_PDEATHSIG ends it even when we are killed. It is in a process group
 * of its own, because a Ctrl-C is for us to act on: we end our requests first, then the program.
 *
 * At the end: SIGTERM, a bounded wait, SIGKILL. Servers write back what they hold when they get
 * SIGTERM, hence the generous bound.
 */
#include "nbd/program.h"

#include "core/fdwait.h"
#include "core/fiber.h"
#include "core/log.h"
#include "core/sigwait.h"
#include "core/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define LISTEN_FD 3
#define KILL_WAIT_NS 5000000000ull
#define POLL_FIRST_NS 1000000ull
#define POLL_MAX_NS 50000000ull
#define PID_DIGITS 10

uint64_t program_term_wait_ns = 30000000000ull;
/* qemu-nbd loses a SIGTERM that comes while it starts. It has nothing to write back then. */
uint64_t program_silent_wait_ns = 1000000000ull;

struct program {
    pid_t pid;
    bool reaped;
    int status;           /* of waitpid(), when reaped */
    _Atomic bool greeted; /* every lane says so */
    bool told;            /* how it ended is no news: we sent a signal, or have said it */
    char *folder, *socket_path;
    char *title;          /* the program's name, for messages */
    struct program *next; /* in living */
};

/* All whose folder is not removed yet, for programs_abandon(). Held for a few instructions. */
static pthread_mutex_t living_lock = PTHREAD_MUTEX_INITIALIZER;
static struct program *living;

/* What the child needs, laid out before the fork. */
struct launch {
    char *words; /* the name, cut into words */
    char **argv;
    char *path;
    char **envp;
    char listen_pid[sizeof "LISTEN_PID=" + PID_DIGITS];
    int listen_fd;
    int report_fd; /* close-on-exec; the child's errno when exec fails */
    pid_t parent;
};

extern char **environ;

static void launch_done(struct launch *l)
{
    free(l->words);
    free(l->argv);
    free(l->path);
    free(l->envp);
}

/* "[", words, "]" with separators between them, into argv. */
static int split_words(struct launch *l, const char *name, struct error *err)
{
    size_t len = strlen(name), count = 1;
    if (len < 5 || name[0] != '[' || name[1] != PROGRAM_WORD_SEPARATOR || name[len - 1] != ']' ||
        name[len - 2] != PROGRAM_WORD_SEPARATOR) {
        return error_set(err, EINVAL, "not of the form [ PROGRAM ARG ... ]");
    }
    l->words = strndup(name + 2, len - 4);
    if (!l->words) {
        return error_set(err, ENOMEM, "no memory for a command line");
    }
    for (const char *c = l->words; *c; c++) {
        count += *c == PROGRAM_WORD_SEPARATOR;
    }
    l->argv = calloc(count + 1, sizeof *l->argv);
    if (!l->argv) {
        return error_set(err, ENOMEM, "no memory for a command line");
    }
    char *at = l->words;
    for (size_t i = 0; i < count; i++) {
        l->argv[i] = at;
        char *end = strchr(at, PROGRAM_WORD_SEPARATOR);
        if (end) {
            *end = '\0';
            at = end + 1;
        }
    }
    return l->argv[0][0] != '\0' ? 0 : error_set(err, EINVAL, "[ ] has no program in it");
}

/* execvp(3)'s search: it may allocate, so it can't be done in the child. */
static int find_program(struct launch *l, struct error *err)
{
    const char *name = l->argv[0], *search = getenv("PATH");
    if (strchr(name, '/')) {
        l->path = strdup(name);
        return l->path ? 0 : error_set(err, ENOMEM, "no memory for a path");
    }
    search = search ? search : "/usr/local/bin:/usr/bin:/bin";
    while (true) {
        size_t len = strcspn(search, ":");
        char *path;
        if (asprintf(&path, "%.*s/%s", (int)len, len > 0 ? search : ".", name) < 0) {
            return error_set(err, ENOMEM, "no memory for a path");
        }
        struct stat st;
        if (access(path, X_OK) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
            l->path = path;
            return 0;
        }
        free(path);
        if (search[len] == '\0') {
            return error_set(err, ENOENT, "no program of the name %s is found", name);
        }
        search += len + 1;
    }
}

static int lay_out_environment(struct launch *l, struct error *err)
{
    static const char *const dropped[] = {"LISTEN_FDS=", "LISTEN_PID=", "LISTEN_FDNAMES="};
    static char listen_fds[] = "LISTEN_FDS=1";
    size_t count = 0, n = 0;
    while (environ && environ[count]) {
        count++;
    }
    l->envp = calloc(count + 3, sizeof *l->envp);
    if (!l->envp) {
        return error_set(err, ENOMEM, "no memory for an environment");
    }
    for (size_t i = 0; i < count; i++) {
        bool keep = true;
        for (size_t d = 0; d < sizeof dropped / sizeof *dropped; d++) {
            keep = keep && strncmp(environ[i], dropped[d], strlen(dropped[d])) != 0;
        }
        if (keep) {
            l->envp[n++] = environ[i];
        }
    }
    l->envp[n++] = listen_fds;
    l->envp[n++] = l->listen_pid;
    memset(l->listen_pid, 0, sizeof l->listen_pid);
    memcpy(l->listen_pid, "LISTEN_PID=", strlen("LISTEN_PID="));
    return 0;
}

/* --- the child --- */

static void write_number(char *to, pid_t pid)
{
    char digits[PID_DIGITS];
    int n = 0;
    do {
        digits[n++] = (char)('0' + pid % 10);
        pid /= 10;
    } while (pid > 0 && n < PID_DIGITS);
    while (n > 0) {
        *to++ = digits[--n];
    }
    *to = '\0';
}

static void child_failed(const struct launch *l)
{
    int code = errno;
    ssize_t n = write(l->report_fd, &code, sizeof code);
    _exit(n == sizeof code ? 126 : 127);
}

__attribute__((noreturn)) static void child(struct launch *l)
{
    sigwait_restore_for_child();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != l->parent) {
        _exit(127); /* it died before the prctl */
    }
    setpgid(0, 0);
    write_number(l->listen_pid + strlen("LISTEN_PID="), getpid());
    /* The report must not lie where the listener goes. */
    if (l->report_fd == LISTEN_FD) {
        l->report_fd = fcntl(l->report_fd, F_DUPFD_CLOEXEC, LISTEN_FD + 1);
    }
    if (l->listen_fd == LISTEN_FD) {
        if (fcntl(LISTEN_FD, F_SETFD, 0) < 0) {
            child_failed(l);
        }
    } else if (dup2(l->listen_fd, LISTEN_FD) < 0) {
        child_failed(l);
    }
    execve(l->path, l->argv, l->envp);
    child_failed(l);
    _exit(127);
}

/* --- the parent --- */

static int make_folder(struct program *p, struct error *err)
{
    const char *tmp = getenv("TMPDIR");
    struct sockaddr_un a;
    /* A long TMPDIR leaves no room for a socket's name. */
    if (!tmp || tmp[0] != '/' ||
        strlen(tmp) + strlen("/penstock-XXXXXX/socket") >= sizeof a.sun_path) {
        tmp = "/tmp";
    }
    if (asprintf(&p->folder, "%s/penstock-XXXXXX", tmp) < 0) {
        p->folder = NULL;
        return error_set(err, ENOMEM, "no memory for a path");
    }
    if (!mkdtemp(p->folder)) {
        int r = error_set(err, errno, "making a folder %s for a socket", p->folder);
        free(p->folder);
        p->folder = NULL;
        return r;
    }
    if (asprintf(&p->socket_path, "%s/socket", p->folder) < 0) {
        p->socket_path = NULL;
        return error_set(err, ENOMEM, "no memory for a path");
    }
    return 0;
}

/* Not non-blocking: the program expects an ordinary listening socket. */
static int make_listener(const struct program *p, struct error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return error_set(err, errno, "making a socket");
    }
    memcpy(a.sun_path, p->socket_path, strlen(p->socket_path) + 1);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, SOMAXCONN) < 0) {
        int r = error_set(err, errno, "listening on %s", p->socket_path);
        close(fd);
        return r;
    }
    return fd;
}

/* Waits for exec: an errno comes through the pipe when it fails, nothing when it is done. */
static int wait_for_exec(struct program *p, int report_fd, const char *path, struct error *err)
{
    int code = 0;
    ssize_t n;
    fiber_shield();
    fd_wait_once(report_fd, FDWAIT_READ, DEADLINE_NONE);
    fiber_unshield();
    do {
        n = read(report_fd, &code, sizeof code);
    } while (n < 0 && errno == EINTR);
    if (n == 0) {
        return 0;
    }
    waitpid(p->pid, &p->status, 0);
    p->reaped = true;
    p->told = true;
    return error_set(err, n == sizeof code ? code : EIO, "starting %s", path);
}

static int fork_program(struct program *p, struct launch *l, struct error *err)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0) {
        return error_set(err, errno, "making a pipe");
    }
    l->report_fd = report[1];
    l->parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        child(l);
    }
    int r = pid < 0 ? error_set(err, errno, "starting a process") : 0;
    close(report[1]);
    if (pid > 0) {
        p->pid = pid;
        p->reaped = false;
        r = wait_for_exec(p, report[0], l->path, err);
    }
    close(report[0]);
    return r;
}

static void is_living(struct program *p, bool lives);

static int launch(struct program *p, const char *name, struct error *err)
{
    struct launch l = {.listen_fd = -1};
    int r = split_words(&l, name, err);
    if (r == 0) {
        r = find_program(&l, err);
    }
    if (r == 0) {
        r = lay_out_environment(&l, err);
    }
    if (r == 0) {
        p->title = strdup(l.argv[0]);
        r = p->title ? make_folder(p, err) : error_set(err, ENOMEM, "no memory for a name");
    }
    if (r == 0) {
        is_living(p, true);
        l.listen_fd = r = make_listener(p, err);
    }
    if (r >= 0) {
        r = fork_program(p, &l, err);
    }
    if (l.listen_fd >= 0) {
        close(l.listen_fd);
    }
    launch_done(&l);
    return r;
}

int program_start(const char *name, struct program **ret, struct address *address,
                  struct error *err)
{
    struct program *p = calloc(1, sizeof *p);
    if (!p) {
        return error_set(err, ENOMEM, "no memory for a program");
    }
    p->reaped = true; /* until there is one */
    int r = launch(p, name, err);
    if (r == 0) {
        r = address_unix(p->socket_path, address, err);
    }
    if (r < 0) {
        program_stop(p);
        return r;
    }
    *ret = p;
    return 0;
}

/* Parks until it has ended, or the deadline. Not canceled. */
static bool wait_for_end(struct program *p, uint64_t wait_ns)
{
    uint64_t deadline = worker_now_ns(worker_self()) + wait_ns, pause = POLL_FIRST_NS;
    fiber_shield();
    while (!p->reaped) {
        pid_t r = waitpid(p->pid, &p->status, WNOHANG);
        if (r == p->pid || (r < 0 && errno != EINTR)) {
            p->reaped = true;
        } else if (worker_now_ns(worker_self()) >= deadline) {
            break;
        } else {
            fiber_sleep_ns(pause);
            pause = pause * 2 < POLL_MAX_NS ? pause * 2 : POLL_MAX_NS;
        }
    }
    fiber_unshield();
    return p->reaped;
}

/* How it ended, in words. */
static const char *ending(const struct program *p, char *buf, size_t size)
{
    if (WIFSIGNALED(p->status)) {
        snprintf(buf, size, "was killed by signal %d", WTERMSIG(p->status));
    } else {
        snprintf(buf, size, "exited with status %d", WEXITSTATUS(p->status));
    }
    return buf;
}

bool program_ended(struct program *p, uint64_t wait_ns, struct error *err)
{
    char how[64];
    if (!wait_for_end(p, wait_ns)) {
        return false;
    }
    error_prefix(err, "%s %s", p->title, ending(p, how, sizeof how));
    p->told = true;
    return true;
}

void program_greeted(struct program *p)
{
    p->greeted = true;
}

static void end_process(struct program *p)
{
    if (p->reaped || wait_for_end(p, 0)) {
        return;
    }
    p->told = true;
    kill(p->pid, SIGTERM);
    if (!wait_for_end(p, p->greeted ? program_term_wait_ns : program_silent_wait_ns)) {
        log_warning("%s does not end on SIGTERM and is killed", p->title);
        kill(p->pid, SIGKILL);
        wait_for_end(p, KILL_WAIT_NS);
    }
}

static void remove_folder(const struct program *p)
{
    if (p->socket_path) {
        unlink(p->socket_path);
    }
    if (p->folder) {
        rmdir(p->folder);
    }
}

static void is_living(struct program *p, bool lives)
{
    pthread_mutex_lock(&living_lock);
    struct program **at = &living;
    while (*at && *at != p) {
        at = &(*at)->next;
    }
    if (lives) {
        p->next = living;
        living = p;
    } else if (*at) {
        *at = p->next;
    }
    pthread_mutex_unlock(&living_lock);
}

void programs_abandon(void)
{
    pthread_mutex_lock(&living_lock);
    for (const struct program *p = living; p; p = p->next) {
        remove_folder(p);
    }
    pthread_mutex_unlock(&living_lock);
}

void program_stop(struct program *p)
{
    char how[64];
    if (!p) {
        return;
    }
    end_process(p);
    if (p->pid > 0 && p->reaped && !p->told && p->status != 0) {
        log_warning("%s %s", p->title, ending(p, how, sizeof how));
    }
    is_living(p, false);
    remove_folder(p);
    free(p->socket_path);
    free(p->folder);
    free(p->title);
    free(p);
}
