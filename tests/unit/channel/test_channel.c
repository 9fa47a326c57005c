/*
 * Channels over socket pairs and pipes: exactness, the end of the stream in every place, abort,
 * cancel, deadline, sendfile.
 */
#include "channel/channel.h"
#include "channel/sizing.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/worker.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define BIG (3u * 1000 * 1000)

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

static void open_pair(struct channel **a, struct channel **b)
{
    int sv[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) == 0);
    EQ(channel_adopt(sv[0], sv[0], SOCKET_BUFFER_DEFAULT, a, NULL), 0);
    EQ(channel_adopt(sv[1], sv[1], SOCKET_BUFFER_DEFAULT, b, NULL), 0);
}

static void open_pipe(struct channel **reader, struct channel **writer)
{
    int p[2];
    OK(pipe2(p, O_CLOEXEC) == 0);
    EQ(channel_adopt(p[0], -1, SOCKET_BUFFER_DEFAULT, reader, NULL), 0);
    EQ(channel_adopt(-1, p[1], SOCKET_BUFFER_DEFAULT, writer, NULL), 0);
}

static void fill(uint8_t *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++) {
        buf[i] = (uint8_t)((i * 2654435761u + seed) >> 13);
    }
}

struct job {
    struct channel *ch;
    uint8_t *buf;
    size_t len;
    int result;
    struct fiber *self;
};

static void write_job(void *arg)
{
    struct job *j = arg;
    j->self = fiber_self();
    j->result = channel_write(j->ch, j->buf, j->len, false);
    j->self = NULL;
}

static void read_job(void *arg)
{
    struct job *j = arg;
    j->self = fiber_self();
    j->result = channel_read(j->ch, j->buf, j->len);
    j->self = NULL;
}

static void both_ways(struct channel *reader, struct channel *writer, uint64_t *receives)
{
    uint8_t *out = malloc(BIG), *in = calloc(1, BIG);
    struct job w = {.ch = writer, .buf = out, .len = BIG, .result = -1};
    struct fgroup g;
    fill(out, BIG, 7);
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, write_job, &w), 0);
    EQ(channel_read(reader, in, 1), 0);
    EQ(channel_read(reader, in + 1, BIG - 1), 0);
    fgroup_wait(&g, false);
    EQ(w.result, 0);
    OK(memcmp(in, out, BIG) == 0);
    EQ(reader->bytes_in, BIG);
    EQ(writer->bytes_out, BIG);
    OK(reader->receives >= 2);
    *receives = reader->receives;
    free(out);
    free(in);
}

static void big_transfer_body(void)
{
    struct channel *a, *b;
    uint64_t receives;
    open_pair(&a, &b);
    EQ(a->kind, CHANNEL_UNIX);
    both_ways(a, b, &receives);
    channel_close(a);
    channel_close(b);
    open_pipe(&a, &b);
    EQ(a->kind, CHANNEL_PIPE);
    both_ways(a, b, &receives);
    channel_close(a);
    channel_close(b);
}

static void big_transfers_are_exact(void)
{
    in_worker(big_transfer_body);
}

static void vector_body(void)
{
    struct channel *a, *b;
    char got[16] = "";
    char one[] = "pen", two[] = "sto", three[] = "ck";
    struct iovec iov[] = {{one, 0}, {one, 3}, {two, 3}, {NULL, 0}, {three, 2}};
    open_pair(&a, &b);
    EQ(channel_writev(a, iov, 5, false), 0);
    EQ(channel_read(b, got, 8), 0);
    STREQ(got, "penstock");
    EQ(channel_writev(a, iov, 0, false), 0);
    EQ(channel_write(a, "", 0, true), 0);
    EQ(channel_write(a, "skipped!", 8, true), 0);
    EQ(channel_write(a, "xy", 2, false), 0);
    EQ(channel_skip(b, 8), 0);
    EQ(channel_skip(b, 0), 0);
    EQ(channel_read_some(b, got, sizeof(got)), 2);
    OK(memcmp(got, "xy", 2) == 0);
    channel_close(a);
    channel_close(b);
}

static void vectors_and_skips(void)
{
    in_worker(vector_body);
}

static void end_body(void)
{
    struct channel *a, *b;
    char buf[8];
    open_pair(&a, &b);
    EQ(channel_write(a, "abc", 3, false), 0);
    EQ(channel_shutdown_write(a), 0);
    EQ(channel_read(b, buf, 2), 0);
    EQ(channel_read(b, buf, 2), -ECONNRESET); /* inside a message */
    EQ(channel_read(b, buf, 2), 1);           /* before one */
    EQ(channel_read_some(b, buf, 2), 0);
    EQ(channel_skip(b, 5), 1);
    /* the other direction goes on */
    EQ(channel_write(b, "still", 5, false), 0);
    EQ(channel_read(a, buf, 5), 0);
    OK(memcmp(buf, "still", 5) == 0);
    EQ(channel_write(a, "x", 1, false), -EPIPE);
    channel_close(a);
    EQ(channel_write(b, "x", 1, false), -EPIPE);
    channel_close(b);

    open_pipe(&a, &b);
    EQ(channel_write(b, "ab", 2, false), 0);
    EQ(channel_shutdown_write(b), 0);
    EQ(channel_skip(a, 3), -ECONNRESET);
    EQ(channel_read(a, buf, 1), 1);
    channel_close(a);
    channel_close(b);
    open_pipe(&a, &b);
    channel_close(a);
    EQ(channel_write(b, "ab", 2, false), -EPIPE);
    channel_close(b);
}

static void ends_of_the_stream(void)
{
    in_worker(end_body);
}

static void abort_one(void (*open)(struct channel **, struct channel **))
{
    struct channel *a, *b;
    uint8_t *buf = calloc(1, BIG);
    uint8_t small[4];
    open(&a, &b);
    struct job r = {.ch = a, .buf = small, .len = sizeof(small)};
    struct fgroup g;
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, read_job, &r), 0);
    while (!r.self) {
        fiber_yield();
    }
    channel_abort(a);
    channel_abort(a);
    fgroup_wait(&g, false);
    EQ(r.result, -ECONNRESET);
    EQ(channel_read(a, small, 1), -ECONNRESET);
    channel_close(a);
    channel_close(b);

    open(&a, &b);
    struct job w = {.ch = b, .buf = buf, .len = BIG};
    EQ(fgroup_spawn(&g, write_job, &w), 0);
    while (b->bytes_out == 0) {
        fiber_yield();
    }
    channel_abort(b);
    fgroup_wait(&g, false);
    EQ(w.result, -ECONNRESET);
    EQ(channel_write(b, "x", 1, false), -ECONNRESET);
    channel_close(a);
    channel_close(b);
    free(buf);
}

static void abort_body(void)
{
    abort_one(open_pair);
    abort_one(open_pipe);
}

static void abort_ends_waits(void)
{
    in_worker(abort_body);
}

static void deadline_body(void)
{
    struct channel *a, *b;
    uint8_t *buf = calloc(1, BIG);
    open_pair(&a, &b);
    channel_set_deadline(a, worker_now_ns(worker_self()) + 1000000);
    EQ(channel_read(a, buf, 1), -ETIMEDOUT);
    EQ(channel_write(a, buf, BIG, false), -ETIMEDOUT);
    channel_set_deadline(a, DEADLINE_NONE);
    EQ(channel_write(b, "k", 1, false), 0);
    EQ(channel_read(a, buf, 1), 0);
    EQ(buf[0], 'k');
    channel_close(a);
    channel_close(b);
    free(buf);
}

static void deadlines_pass(void)
{
    in_worker(deadline_body);
}

static void cancel_body(void)
{
    struct channel *a, *b;
    uint8_t small[4];
    open_pair(&a, &b);
    struct job r = {.ch = a, .buf = small, .len = sizeof(small)};
    struct fgroup g;
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, read_job, &r), 0);
    while (!r.self) {
        fiber_yield();
    }
    fgroup_cancel(&g);
    fgroup_wait(&g, false);
    EQ(r.result, -ECANCELED);
    /* the channel itself is as it was */
    EQ(channel_write(b, "go", 2, false), 0);
    EQ(channel_read(a, small, 2), 0);
    channel_close(a);
    channel_close(b);
}

static void cancel_ends_a_wait_only(void)
{
    in_worker(cancel_body);
}

static int memory_file(const uint8_t *data, size_t len)
{
    int fd = memfd_create("sendfile", MFD_CLOEXEC);
    OK(fd >= 0);
    OK(write(fd, data, len) == (ssize_t)len);
    return fd;
}

struct send_job {
    struct channel *ch;
    int fd;
    uint64_t offset;
    size_t len, sent;
    int result;
};

static void send_job(void *arg)
{
    struct send_job *s = arg;
    s->result = channel_sendfile(s->ch, s->fd, s->offset, s->len, &s->sent);
}

static void sendfile_once(void (*open)(struct channel **, struct channel **),
                          const struct channel_ops *ops)
{
    struct channel *a, *b;
    uint8_t *data = malloc(BIG), *in = calloc(1, BIG);
    struct fgroup g;
    fill(data, BIG, 3);
    int fd = memory_file(data, BIG);
    open(&a, &b);
    b->ops = ops ? ops : b->ops;
    struct send_job s = {.ch = b, .fd = fd, .offset = 5, .len = BIG - 5};
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, send_job, &s), 0);
    EQ(channel_read(a, in, BIG - 5), 0);
    fgroup_wait(&g, false);
    EQ(s.result, 0);
    EQ(s.sent, BIG - 5);
    OK(memcmp(in, data + 5, BIG - 5) == 0);
    /* truncated under us: said, with what went out, and no signal */
    OK(ftruncate(fd, 1000) == 0);
    s.offset = 600;
    s.len = 4096;
    EQ(channel_sendfile(b, fd, 600, 4096, &s.sent), -ENODATA);
    EQ(s.sent, 400);
    EQ(channel_read(a, in, 400), 0);
    OK(memcmp(in, data + 600, 400) == 0);
    EQ(channel_sendfile(b, fd, 5000, 10, &s.sent), -ENODATA);
    EQ(s.sent, 0);
    channel_close(a);
    EQ(channel_sendfile(b, fd, 0, 10, &s.sent), -EPIPE);
    channel_close(b);
    close(fd);
    free(data);
    free(in);
}

static struct channel_ops no_sendfile;

static void sendfile_body(void)
{
    sendfile_once(open_pair, NULL);
    sendfile_once(open_pipe, NULL);
    struct channel *a, *b;
    open_pair(&a, &b);
    no_sendfile = *a->ops;
    no_sendfile.sendfile = NULL;
    channel_close(a);
    channel_close(b);
    sendfile_once(open_pair, &no_sendfile);
}

static void sendfile_by_reference_and_by_copy(void)
{
    in_worker(sendfile_body);
}

static void odd_descriptors_body(void)
{
    struct channel *ch;
    struct error err = {0};
    char buf[4] = "";
    /* a regular file: epoll refuses it, the thread pool reads it */
    int fd = memory_file((const uint8_t *)"abc", 3);
    EQ(lseek(fd, 0, SEEK_SET), 0);
    EQ(channel_adopt(fd, -1, SOCKET_BUFFER_AUTO, &ch, &err), 0);
    EQ(ch->kind, CHANNEL_OTHER);
    EQ(channel_read(ch, buf, 3), 0);
    STREQ(buf, "abc");
    EQ(channel_read(ch, buf, 3), 1);
    EQ(channel_write(ch, "x", 1, false), -EBADF);
    channel_close(ch);
    fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    EQ(channel_adopt(-1, fd, SOCKET_BUFFER_AUTO, &ch, &err), 0);
    EQ(channel_write(ch, "x", 1, false), -ENOSPC);
    EQ(channel_read(ch, buf, 1), -EBADF);
    channel_close(ch);
    /* no descriptor at all */
    EQ(channel_adopt(1 << 20, 1 << 20, SOCKET_BUFFER_AUTO, &ch, &err), -EBADF);
    EQ(err.code, EBADF);
}

static void odd_descriptors(void)
{
    in_worker(odd_descriptors_body);
}

static void blocking_again_body(void)
{
    struct channel *ch;
    int p[2];
    OK(pipe2(p, O_CLOEXEC) == 0);
    int other = dup(p[0]); /* shares the flags, as the shell does that gave us the pipe */
    EQ(channel_adopt(p[0], -1, SOCKET_BUFFER_DEFAULT, &ch, NULL), 0);
    OK(fcntl(other, F_GETFL) & O_NONBLOCK);
    channel_close(ch);
    OK(!(fcntl(other, F_GETFL) & O_NONBLOCK));
    close(other);
    close(p[1]);
}

static void shared_pipes_are_blocking_again(void)
{
    in_worker(blocking_again_body);
}

static bool other_ran;

static void set_other_ran(void *arg)
{
    other_ran = true;
}

static void fair_body(void)
{
    struct channel *a, *b;
    char c;
    static char much[4096];
    open_pair(&a, &b);
    EQ(channel_write(b, much, sizeof(much), false), 0);
    EQ(fiber_spawn(set_other_ran, NULL, NULL), 0);
    for (int i = 0; i < 1000 && !other_ran; i++) {
        EQ(channel_read(a, &c, 1), 0); /* always ready: never has to wait */
    }
    OK(other_ran);
    channel_close(a);
    channel_close(b);
}

static void ready_channels_leave_turns(void)
{
    in_worker(fair_body);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    RUN(big_transfers_are_exact);
    RUN(vectors_and_skips);
    RUN(ends_of_the_stream);
    RUN(abort_ends_waits);
    RUN(deadlines_pass);
    RUN(cancel_ends_a_wait_only);
    RUN(sendfile_by_reference_and_by_copy);
    RUN(odd_descriptors);
    RUN(shared_pipes_are_blocking_again);
    RUN(ready_channels_leave_turns);
    bufpool_trim();
    return tap_done();
}
