/*
 * The sizing policy against a kernel that is played: Linux's rules for SO_SNDBUF (clip to wmem_max,
 * report the double) and F_SETPIPE_SZ (EPERM above a limit), with every limit that matters.
 */
#include "channel/sizing.h"
#include "core/log.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

static struct kernel {
    int domain, type;
    int sndbuf; /* as getsockopt reports it */
    int wmem_max;
    bool may_force;
    int sets, forces, tcp_sets, rcvbuf_sets;
    int pipe, pipe_max, pipe_sets, pipe_errno;
} k;

static int fake_setsockopt(int fd, int level, int name, const void *value, unsigned len)
{
    int v = *(const int *)value;
    if (level == IPPROTO_TCP || name == SO_KEEPALIVE) {
        k.tcp_sets++;
        return 0;
    }
    if (name == SO_RCVBUF || name == SO_RCVBUFFORCE) {
        k.rcvbuf_sets++;
    } else if (name == SO_SNDBUF) {
        k.sets++;
        k.sndbuf = 2 * (v < k.wmem_max ? v : k.wmem_max);
    } else if (name == SO_SNDBUFFORCE) {
        k.forces++;
        if (!k.may_force) {
            errno = EPERM;
            return -1;
        }
        k.sndbuf = 2 * v;
    }
    return 0;
}

static int fake_getsockopt(int fd, int level, int name, void *value, unsigned *len)
{
    int *v = value;
    switch (name) {
    case SO_DOMAIN:
        *v = k.domain;
        return 0;
    case SO_TYPE:
        *v = k.type;
        return 0;
    case SO_SNDBUF:
        *v = k.sndbuf;
        return 0;
    default:
        errno = ENOPROTOOPT;
        return -1;
    }
}

static int fake_fcntl(int fd, int cmd, int value)
{
    if (cmd == F_GETPIPE_SZ) {
        return k.pipe;
    }
    k.pipe_sets++;
    if (k.pipe_errno) {
        errno = k.pipe_errno;
        return -1;
    }
    if (value > k.pipe_max && value > k.pipe) {
        errno = EPERM;
        return -1;
    }
    k.pipe = value;
    return value;
}

static const struct sizing_calls fake = {fake_setsockopt, fake_getsockopt, fake_fcntl};

static void play(int domain, int type, int sndbuf, int wmem_max, bool may_force)
{
    k = (struct kernel){.domain = domain,
                        .type = type,
                        .sndbuf = sndbuf,
                        .wmem_max = wmem_max,
                        .may_force = may_force};
    sizing_set_calls(&fake);
}

/* What is written to stderr while fn runs. */
static void capture(void (*fn)(void), char *buf, size_t size)
{
    int p[2], saved = dup(STDERR_FILENO);
    OK(pipe(p) == 0);
    dup2(p[1], STDERR_FILENO);
    fn();
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(p[1]);
    ssize_t n = read(p[0], buf, size - 1);
    buf[n > 0 ? n : 0] = '\0';
    close(p[0]);
}

static void unix_stream_gets_2_mib(void)
{
    struct sizing s;
    play(AF_UNIX, SOCK_STREAM, 212992, 4 << 20, false);
    sizing_socket(9, SOCKET_BUFFER_AUTO, &s);
    EQ(s.wanted, 2097152);
    EQ(s.granted, 2097152);
    OK(!s.clipped);
    EQ(k.sets, 1);
    EQ(k.forces, 0); /* nothing more to be had */
    EQ(k.rcvbuf_sets, 0);
    EQ(k.tcp_sets, 0);
}

static void wmem_max_of_exactly_2_mib_is_enough(void)
{
    struct sizing s;
    play(AF_UNIX, SOCK_STREAM, 212992, 2097152, false);
    sizing_socket(9, SOCKET_BUFFER_AUTO, &s);
    EQ(s.granted, 2097152);
    OK(!s.clipped);
    play(AF_UNIX, SOCK_STREAM, 212992, 2097151, false);
    sizing_socket(9, SOCKET_BUFFER_AUTO, &s);
    OK(s.clipped);
}

static void force_is_tried_only_where_it_helps(void)
{
    struct sizing s;
    play(AF_UNIX, SOCK_STREAM, 212992, 212992, true);
    sizing_socket(9, SOCKET_BUFFER_AUTO, &s);
    EQ(s.granted, 2097152);
    EQ(k.forces, 1);
    OK(!s.clipped);
}

static struct sizing clipped;

static void ask_three_times(void)
{
    for (int i = 0; i < 3; i++) {
        sizing_socket(9, SOCKET_BUFFER_AUTO, &clipped);
    }
}

static void clipped_is_said_once_with_the_sysctl(void)
{
    char text[2048];
    play(AF_UNIX, SOCK_STREAM, 212992, 212992, false);
    log_set_level(LOG_WARNING);
    capture(ask_three_times, text, sizeof(text));
    log_set_level(LOG_ERROR);
    OK(clipped.clipped);
    EQ(clipped.granted, 212992);
    STREQ(clipped.advice, "sysctl -w net.core.wmem_max=2097152");
    const char *first = strstr(text, clipped.advice);
    OK(first != NULL);
    OK(first && strstr(first + 1, "sysctl") == NULL);
    EQ(k.rcvbuf_sets, 0);
}

static void larger_default_is_kept(void)
{
    struct sizing s;
    play(AF_UNIX, SOCK_STREAM, 16 << 20, 16 << 20, false);
    sizing_socket(9, SOCKET_BUFFER_AUTO, &s);
    EQ(s.granted, 8 << 20);
    EQ(k.sets, 0);
    /* but a number is a number */
    sizing_socket(9, 65536, &s);
    EQ(s.granted, 65536);
    OK(!s.clipped);
}

static void kernel_default_is_left(void)
{
    struct sizing s;
    play(AF_UNIX, SOCK_STREAM, 212992, 4 << 20, true);
    sizing_socket(9, SOCKET_BUFFER_DEFAULT, &s);
    EQ(s.wanted, 0);
    EQ(s.granted, 106496);
    EQ(k.sets + k.forces, 0);
    OK(!s.clipped);
}

static void tcp_is_left_to_the_kernel(void)
{
    struct sizing s;
    play(AF_INET6, SOCK_STREAM, 2626560, 4 << 20, true);
    sizing_socket(9, SOCKET_BUFFER_AUTO, &s);
    EQ(s.wanted, 0);
    EQ(k.sets + k.forces, 0);
    OK(k.tcp_sets >= 2);
    sizing_socket(9, 1 << 20, &s);
    EQ(s.granted, 1 << 20);
    play(AF_VSOCK, SOCK_STREAM, 212992, 4 << 20, true);
    sizing_socket(9, SOCKET_BUFFER_AUTO, &s);
    EQ(k.sets + k.forces + k.tcp_sets, 0);
}

static void datagram_has_its_own_rule(void)
{
    struct sizing s;
    play(AF_UNIX, SOCK_DGRAM, 212992, 4 << 20, true);
    sizing_socket(9, SOCKET_BUFFER_AUTO, &s);
    EQ(s.granted, 1 << 20);
}

static void absurd_numbers_are_clipped(void)
{
    struct sizing s;
    play(AF_UNIX, SOCK_STREAM, 212992, 1 << 20, false);
    sizing_socket(9, UINT64_MAX - 2, &s);
    EQ(s.granted, 1 << 20);
    OK(s.clipped);
}

static void pipe_halves_down_to_64_kib(void)
{
    static const struct {
        int pipe, max, granted, sets;
        bool clipped;
    } cases[] = {
        {65536, 1 << 20, 1 << 20, 1, false},   {65536, 300000, 262144, 3, true},
        {65536, 4096, 65536, 5, true},         {8192, 4096, 8192, 5, true},
        {1 << 20, 1 << 20, 1 << 20, 0, false}, {4 << 20, 1 << 20, 4 << 20, 0, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sizing s;
        play(AF_UNIX, SOCK_STREAM, 0, 0, false);
        k.pipe = cases[i].pipe;
        k.pipe_max = cases[i].max;
        sizing_pipe(9, SOCKET_BUFFER_AUTO, &s);
        EQ(s.wanted, 1 << 20);
        EQ(s.granted, cases[i].granted);
        EQ(k.pipe_sets, cases[i].sets);
        EQ(s.clipped, cases[i].clipped);
        OK(!s.clipped || strstr(s.advice, "sysctl -w fs.pipe-max-size=1048576"));
    }
}

static void other_refusals_leave_the_pipe(void)
{
    struct sizing s;
    play(AF_UNIX, SOCK_STREAM, 0, 0, false);
    k.pipe = 65536;
    k.pipe_errno = EBUSY;
    sizing_pipe(9, SOCKET_BUFFER_AUTO, &s);
    EQ(k.pipe_sets, 1);
    EQ(s.granted, 65536);
    sizing_pipe(9, SOCKET_BUFFER_DEFAULT, &s);
    EQ(k.pipe_sets, 1);
    EQ(s.wanted, 0);
}

static void real_kernel(void)
{
    struct sizing s;
    int sv[2], p[2], reported = 0;
    socklen_t len = sizeof(reported);
    sizing_set_calls(NULL);
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sv) == 0);
    sizing_socket(sv[0], 65536, &s);
    OK(getsockopt(sv[0], SOL_SOCKET, SO_SNDBUF, &reported, &len) == 0);
    EQ(s.granted, reported / 2);
    sizing_socket(sv[0], SOCKET_BUFFER_AUTO, &s);
    OK(s.clipped == (s.granted < s.wanted));
    OK(pipe(p) == 0);
    sizing_pipe(p[1], SOCKET_BUFFER_AUTO, &s);
    EQ(s.granted, fcntl(p[0], F_GETPIPE_SZ));
    /* what is no socket and no pipe at all does no harm */
    sizing_socket(p[0], SOCKET_BUFFER_AUTO, &s);
    sizing_pipe(sv[0], SOCKET_BUFFER_AUTO, &s);
    EQ(s.granted, 0);
    close(sv[0]);
    close(sv[1]);
    close(p[0]);
    close(p[1]);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    RUN(unix_stream_gets_2_mib);
    RUN(wmem_max_of_exactly_2_mib_is_enough);
    RUN(force_is_tried_only_where_it_helps);
    RUN(clipped_is_said_once_with_the_sysctl);
    RUN(larger_default_is_kept);
    RUN(kernel_default_is_left);
    RUN(tcp_is_left_to_the_kernel);
    RUN(datagram_has_its_own_rule);
    RUN(absurd_numbers_are_clipped);
    RUN(pipe_halves_down_to_64_kib);
    RUN(other_refusals_leave_the_pipe);
    RUN(real_kernel);
    return tap_done();
}
