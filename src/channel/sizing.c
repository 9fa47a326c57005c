/*
 * The one file that sets a transport buffer, and why each is as large as it is.
 *
 * Unix stream, send side: 2 MiB. With the default of 212,992 bytes a payload of 2 MiB takes ten
 * receives, with 2 MiB one; reading from an NBD server became 2.28 times faster and writing 2.67
 * times, flat above. The kernel ignores the receive side of Unix sockets, so it is never set.
 * Unix datagram, send side: 1 MiB, so that net.unix.max_dgram_qlen (10 by default) frames of 64
 * KiB, each accounted with its overhead, can wait for a slow reader.
 * TCP and vsock: the kernel tunes itself; a size is set only when one is asked for by number.
 * Pipe: 1 MiB, which is also fs.pipe-max-size unless somebody changed it; 64 KiB costs a factor of
 * up to four in front of a disk writer, and larger gains nothing.
 *
 * What Linux does with SO_SNDBUF: the value is clipped to net.core.wmem_max, doubled (its
 * bookkeeping takes as much again) and reported doubled. So `granted` is half of what getsockopt()
 * reports, and clipped compares that half with `wanted`: wmem_max itself counts undoubled, and
 * wmem_max = wanted is exactly enough. SO_SNDBUFFORCE (CAP_NET_ADMIN) ignores wmem_max; it is
 * tried only when SO_SNDBUF gave less than wanted.
 *
 * What Linux does with F_SETPIPE_SZ: above fs.pipe-max-size, or when the user's pipes together
 * pass fs.pipe-user-pages-soft, it is EPERM without CAP_SYS_RESOURCE; a smaller try may succeed.
 */
#include "channel/sizing.h"

#include "core/log.h"
#include "core/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define UNIX_DATAGRAM_WANTED (1u << 20)
/* A peer that vanished without a word is noticed after 60 + 6 x 15 seconds. */
#define KEEPALIVE_IDLE_S 60
#define KEEPALIVE_INTERVAL_S 15
#define KEEPALIVE_COUNT 6

static int real_setsockopt(int fd, int level, int name, const void *value, unsigned len)
{
    return setsockopt(fd, level, name, value, len);
}

static int real_getsockopt(int fd, int level, int name, void *value, unsigned *len)
{
    return getsockopt(fd, level, name, value, len);
}

static int real_fcntl_int(int fd, int cmd, int value)
{
    return fcntl(fd, cmd, value);
}

static const struct sizing_calls real_calls = {real_setsockopt, real_getsockopt, real_fcntl_int};
static const struct sizing_calls *calls = &real_calls;
static atomic_bool socket_warned, pipe_warned;

void sizing_set_calls(const struct sizing_calls *replacement)
{
    calls = replacement ? replacement : &real_calls;
    atomic_store(&socket_warned, false);
    atomic_store(&pipe_warned, false);
}

static int get_int(int fd, int level, int name, int otherwise)
{
    int value = otherwise;
    unsigned len = sizeof(value);
    return calls->getsockopt(fd, level, name, &value, &len) < 0 ? otherwise : value;
}

static void set_int(int fd, int level, int name, int value)
{
    calls->setsockopt(fd, level, name, &value, sizeof(value));
}

static uint64_t send_buffer(int fd)
{
    int reported = get_int(fd, SOL_SOCKET, SO_SNDBUF, 0);
    return reported > 0 ? (uint64_t)reported / 2 : 0;
}

static void ask_for_send_buffer(int fd, uint64_t socket_buffer, struct sizing *ret)
{
    ret->granted = send_buffer(fd);
    if (socket_buffer == SOCKET_BUFFER_AUTO && ret->granted >= ret->wanted) {
        return; /* the host gives more by default: never shrink it */
    }
    /* the kernel doubles it in an int */
    int ask = ret->wanted > INT_MAX / 2 ? INT_MAX / 2 : (int)ret->wanted;
    set_int(fd, SOL_SOCKET, SO_SNDBUF, ask);
    ret->granted = send_buffer(fd);
    if (ret->granted < (uint64_t)ask) {
        set_int(fd, SOL_SOCKET, SO_SNDBUFFORCE, ask);
        ret->granted = send_buffer(fd);
    }
}

static void say_socket_clipped(int fd, struct sizing *ret)
{
    ret->clipped = ret->wanted > ret->granted;
    if (!ret->clipped) {
        return;
    }
    snprintf(ret->advice, sizeof(ret->advice), "sysctl -w net.core.wmem_max=%" PRIu64, ret->wanted);
    PROBE3(buffer__clipped, fd, ret->wanted, ret->granted);
    if (!atomic_exchange(&socket_warned, true)) {
        log_warning("the kernel gives a socket a send buffer of %" PRIu64 " bytes where %" PRIu64
                    " were wanted, transfers will be slower; as root: %s",
                    ret->granted, ret->wanted, ret->advice);
    }
}

static void tune_tcp(int fd)
{
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT);
}

void sizing_socket(int fd, uint64_t socket_buffer, struct sizing *ret)
{
    memset(ret, 0, sizeof(*ret));
    int domain = get_int(fd, SOL_SOCKET, SO_DOMAIN, AF_UNSPEC);
    int type = get_int(fd, SOL_SOCKET, SO_TYPE, SOCK_STREAM);
    if ((domain == AF_INET || domain == AF_INET6) && type == SOCK_STREAM) {
        tune_tcp(fd);
    }
    if (socket_buffer == SOCKET_BUFFER_AUTO && domain == AF_UNIX) {
        ret->wanted = type == SOCK_DGRAM ? UNIX_DATAGRAM_WANTED : SIZING_UNIX_STREAM_WANTED;
    } else if (socket_buffer < SOCKET_BUFFER_DEFAULT) {
        ret->wanted = socket_buffer;
    }
    if (ret->wanted == 0) {
        ret->granted = send_buffer(fd);
        return;
    }
    ask_for_send_buffer(fd, socket_buffer, ret);
    say_socket_clipped(fd, ret);
}

static uint64_t pipe_capacity(int fd)
{
    int n = calls->fcntl_int(fd, F_GETPIPE_SZ, 0);
    return n > 0 ? (uint64_t)n : 0;
}

/* Asks for less and less while it is not allowed; any other refusal leaves the pipe as it is. */
static void ask_for_pipe(int fd, uint64_t wanted)
{
    uint64_t least = wanted < SIZING_PIPE_LEAST ? wanted : SIZING_PIPE_LEAST;
    int ask = wanted > INT_MAX ? INT_MAX : (int)wanted;
    while (calls->fcntl_int(fd, F_SETPIPE_SZ, ask) < 0 && errno == EPERM &&
           (uint64_t)ask / 2 >= least) {
        ask /= 2;
    }
}

void sizing_pipe(int fd, uint64_t pipe_size, struct sizing *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->granted = pipe_capacity(fd);
    if (pipe_size == SOCKET_BUFFER_DEFAULT || pipe_size == 0 || ret->granted == 0) {
        return; /* left alone, or no pipe at all */
    }
    ret->wanted = pipe_size == SOCKET_BUFFER_AUTO ? SIZING_PIPE_WANTED : pipe_size;
    if (pipe_size == SOCKET_BUFFER_AUTO && ret->granted >= ret->wanted) {
        return;
    }
    ask_for_pipe(fd, ret->wanted);
    ret->granted = pipe_capacity(fd);
    ret->clipped = ret->wanted > ret->granted;
    if (!ret->clipped) {
        return;
    }
    snprintf(ret->advice, sizeof(ret->advice),
             "sysctl -w fs.pipe-max-size=%" PRIu64 " (or close pipes, see fs.pipe-user-pages-soft)",
             ret->wanted);
    PROBE3(buffer__clipped, fd, ret->wanted, ret->granted);
    if (!atomic_exchange(&pipe_warned, true)) {
        log_warning("the kernel gives a pipe %" PRIu64 " bytes where %" PRIu64
                    " were wanted, transfers will be slower; as root: %s",
                    ret->granted, ret->wanted, ret->advice);
    }
}
