/* The thread pool: more offloaded work than threads, and file I/O that goes on meanwhile. */
#include "core/fiber.h"
#include "core/fileio.h"
#include "core/worker.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tap.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static bool gate_open;
static unsigned waiting;

static int wait_at_gate(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    waiting++;
    while (!gate_open) {
        pthread_cond_wait(&cond, &lock);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

static int open_gate(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    gate_open = true;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&lock);
    return 0;
}

static unsigned passed;

static void go_through_gate(void *arg)
{
    (void)arg;
    EQ(offload(wait_at_gate, NULL), 0);
    passed++;
}

static void read_a_file(void *arg)
{
    char byte = 0;

    (void)arg;
    EQ(fileio_write(*(int *)arg, "x", 1, 0, 0), 0);
    EQ(fileio_fdatasync(*(int *)arg), 0);
    EQ(fileio_read(*(int *)arg, &byte, 1, 0), 1);
    EQ(byte, 'x');
}

/* Offloaded work fills its threads and waits; files are read and written all the same. */
static int long_waits(void *arg)
{
    enum { JOBS = 200 };
    struct fgroup gate;
    struct fgroup files;
    FILE *file = tmpfile();
    int fd = fileno(file);

    (void)arg;
    fgroup_init(&gate);
    fgroup_init(&files);
    for (unsigned i = 0; i < JOBS; i++) {
        EQ(fgroup_spawn(&gate, go_through_gate, NULL), 0);
    }
    for (unsigned i = 0; i < 20; i++) {
        EQ(fgroup_spawn(&files, read_a_file, &fd), 0);
    }
    fgroup_wait(&files, false);
    EQ(passed, 0);
    open_gate(NULL); /* not offloaded: it would queue behind those that wait for it */
    fgroup_wait(&gate, false);
    EQ(passed, JOBS);
    EQ(waiting, JOBS);
    fclose(file);
    return 0;
}

static void long_waits_do_not_hold_up_files(void)
{
    EQ(worker_main(long_waits, NULL), 0);
}

static int sees_blocked_signals(void *arg)
{
    sigset_t mask;

    (void)arg;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    return sigismember(&mask, SIGTERM) && sigismember(&mask, SIGCHLD) &&
           !sigismember(&mask, SIGSEGV) && !sigismember(&mask, SIGBUS);
}

static int offload_sees_blocked_signals(void *arg)
{
    return offload(sees_blocked_signals, arg);
}

static void threads_block_signals(void)
{
    sigset_t mask;

    EQ(worker_main(offload_sees_blocked_signals, NULL), 1);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    OK(!sigismember(&mask, SIGTERM)); /* ours are as they were */
}

/* Short jobs from several workers. */
static _Atomic unsigned jobs_run;

static int count_job(void *arg)
{
    (void)arg;
    atomic_fetch_add(&jobs_run, 1);
    return -ENOENT;
}

static void run_jobs(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < 200; i++) {
        EQ(offload(count_job, NULL), -ENOENT);
    }
}

static void many_short_jobs(void)
{
    struct workers *ws;

    EQ(workers_start(3, &ws), 0);
    for (unsigned i = 0; i < 12; i++) {
        EQ(worker_post(workers_get(ws, i % 3), run_jobs, NULL), 0);
    }
    workers_stop(ws);
    EQ(jobs_run, 12 * 200);
}

int main(void)
{
    RUN(long_waits_do_not_hold_up_files);
    RUN(threads_block_signals);
    RUN(many_short_jobs);
    return tap_done();
}
