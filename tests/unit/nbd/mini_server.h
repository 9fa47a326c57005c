/*
 * A small NBD server for tests of the client: blocking threads, one a connection, memory for a
 * disk, structured replies, and bad habits on demand. Written against the protocol, not with our
 * own code, but for the numbers in wire.h. Errors of its sockets end the connection silently: the
 * client under test is what is looked at.
 */
#ifndef TESTS_MINI_SERVER_H
#define TESTS_MINI_SERVER_H

#include "nbd/wire.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MINI_SIZE (4u << 20)
#define MINI_CONNECTIONS_MAX 16
#define MINI_BATCH_MAX 64

struct mini {
    /* How it behaves; set before the first connection or atomically. */
    uint16_t flags;
    unsigned connections_max;  /* 0: any; more are hung up on in the handshake */
    atomic_uint batch;         /* answers this many requests at a time, the last one first */
    atomic_bool mute;          /* takes requests and never answers */
    atomic_bool deaf;          /* does not even read */
    atomic_uint hang_up_after; /* requests; 0: never */
    atomic_uint lie_after;     /* the same, and answers an unknown cookie first */
    atomic_bool hold_writes;   /* WRITE is answered when this is false again */
    atomic_uint fail_at;       /* requests of this offset fail with EIO and a text */
    atomic_ulong size_step;    /* each connection finds another size */

    /* What it has seen. */
    atomic_uint connections, disconnects, requests, writes, flushes, held;
    atomic_uint flushes_while_held;

    uint8_t *disk;
    char folder[64], path[96], uri[160];
    int fd;
    pthread_t acceptor;
    pthread_t threads[MINI_CONNECTIONS_MAX];
    int fds[MINI_CONNECTIONS_MAX];
    atomic_bool ending;
};

struct mini_connection {
    struct mini *m;
    int fd;
    unsigned number;
};

static inline void mini_pause(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static inline bool mini_read(int fd, void *p, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = recv(fd, (uint8_t *)p + done, len - done, 0);
        if (n <= 0) {
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

static inline bool mini_write(int fd, const void *p, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = send(fd, (const uint8_t *)p + done, len - done, MSG_NOSIGNAL);
        if (n <= 0) {
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

static inline bool mini_option_reply(int fd, uint32_t option, uint32_t type, const void *data,
                                     uint32_t len)
{
    uint8_t header[NBD_OPTION_REPLY_SIZE];
    nbd_option_reply_encode(header, option, type, len);
    return mini_write(fd, header, sizeof header) && mini_write(fd, data, len);
}

static inline bool mini_go(struct mini_connection *c)
{
    uint8_t info[NBD_INFO_EXPORT_SIZE];
    uint64_t size = MINI_SIZE - c->number * atomic_load(&c->m->size_step);
    nbd_info_export_encode(info, size, c->m->flags | NBD_FLAG_HAS_FLAGS);
    return mini_option_reply(c->fd, NBD_OPT_GO, NBD_REP_INFO, info, sizeof info) &&
           mini_option_reply(c->fd, NBD_OPT_GO, NBD_REP_ACK, "", 0);
}

static inline bool mini_handshake(struct mini_connection *c)
{
    uint8_t b[4096];
    nbd_greeting_encode(b, NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES);
    if ((c->m->connections_max > 0 && c->number >= c->m->connections_max) ||
        !mini_write(c->fd, b, NBD_GREETING_SIZE) || !mini_read(c->fd, b, 4)) {
        return false;
    }
    for (;;) {
        uint32_t option, len;
        if (!mini_read(c->fd, b, NBD_OPTION_SIZE) || nbd_option_decode(b, &option, &len) < 0 ||
            len > sizeof b || !mini_read(c->fd, b, len)) {
            return false;
        }
        if (option == NBD_OPT_GO) {
            return mini_go(c);
        }
        uint32_t type = option == NBD_OPT_STRUCTURED_REPLY ? NBD_REP_ACK : NBD_REP_ERR_UNSUP;
        if (!mini_option_reply(c->fd, option, type, "", 0)) {
            return false;
        }
    }
}

static inline bool mini_chunk(int fd, uint64_t cookie, unsigned type, const void *data, size_t len)
{
    uint8_t header[NBD_HEADER_MAX];
    struct nbd_reply r = {
        .flags = NBD_REPLY_FLAG_DONE, .type = (uint16_t)type, .cookie = cookie, .length = len};
    return mini_write(fd, header, nbd_chunk_encode(header, false, &r)) && mini_write(fd, data, len);
}

static inline bool mini_answer(struct mini_connection *c, const struct nbd_request *r)
{
    static const char text[] = "\0\0\0\5\0\4oops";
    struct mini *m = c->m;
    if (r->command == NBD_CMD_WRITE && atomic_load(&m->hold_writes)) {
        atomic_fetch_add(&m->held, 1);
        while (atomic_load(&m->hold_writes) && !atomic_load(&m->ending)) {
            sched_yield();
        }
        atomic_fetch_sub(&m->held, 1);
    }
    if (atomic_load(&m->fail_at) != 0 && r->offset == atomic_load(&m->fail_at)) {
        return mini_chunk(c->fd, r->cookie, NBD_CHUNK_ERROR, text, sizeof text - 1);
    }
    if (r->command == NBD_CMD_READ) {
        uint8_t *b = malloc(8 + r->length);
        nbd_put64(b, r->offset);
        memcpy(b + 8, m->disk + r->offset, r->length);
        bool ok = mini_chunk(c->fd, r->cookie, NBD_CHUNK_OFFSET_DATA, b, 8 + r->length);
        free(b);
        return ok;
    }
    return mini_chunk(c->fd, r->cookie, NBD_CHUNK_NONE, "", 0);
}

static inline bool mini_take(struct mini_connection *c, struct nbd_request *r)
{
    uint8_t b[NBD_REQUEST_SIZE];
    struct mini *m = c->m;
    while (atomic_load(&m->deaf) && !atomic_load(&m->ending)) {
        sched_yield();
    }
    if (!mini_read(c->fd, b, sizeof b) || nbd_request_decode(b, false, r) < 0) {
        return false;
    }
    if (r->offset > MINI_SIZE || r->length > MINI_SIZE - r->offset) {
        return false;
    }
    if (r->command == NBD_CMD_DISC) {
        atomic_fetch_add(&m->disconnects, 1);
        return false;
    }
    if (r->command == NBD_CMD_WRITE && !mini_read(c->fd, m->disk + r->offset, r->length)) {
        return false;
    }
    atomic_fetch_add(&m->writes, r->command == NBD_CMD_WRITE);
    if (r->command == NBD_CMD_FLUSH) {
        atomic_fetch_add(&m->flushes, 1);
        atomic_fetch_add(&m->flushes_while_held, atomic_load(&m->held) > 0);
    }
    return true;
}

static inline void mini_serve(struct mini_connection *c)
{
    struct nbd_request batch[MINI_BATCH_MAX];
    struct mini *m = c->m;
    unsigned waiting = 0;
    while (mini_take(c, &batch[waiting])) {
        unsigned n = atomic_fetch_add(&m->requests, 1) + 1;
        if (atomic_load(&m->mute)) {
            continue;
        }
        if (n == atomic_load(&m->lie_after)) {
            mini_chunk(c->fd, 0xdead, NBD_CHUNK_NONE, "", 0);
        }
        if (n == atomic_load(&m->hang_up_after)) {
            return;
        }
        waiting++;
        bool full = waiting >= atomic_load(&m->batch) || waiting == MINI_BATCH_MAX;
        while (full && waiting > 0) {
            if (!mini_answer(c, &batch[--waiting])) {
                return;
            }
        }
    }
}

static inline void *mini_connection_main(void *arg)
{
    struct mini_connection *c = arg;
    if (mini_handshake(c)) {
        mini_serve(c);
    }
    shutdown(c->fd, SHUT_RDWR); /* closed by mini_stop(), which may shut it down, too */
    free(c);
    return NULL;
}

static inline void *mini_acceptor_main(void *arg)
{
    struct mini *m = arg;
    int fd;
    while ((fd = accept(m->fd, NULL, NULL)) >= 0) {
        unsigned n = atomic_load(&m->connections);
        struct mini_connection *c = malloc(sizeof *c);
        if (!c || n == MINI_CONNECTIONS_MAX) {
            abort();
        }
        *c = (struct mini_connection){m, fd, n};
        m->fds[n] = fd;
        if (pthread_create(&m->threads[n], NULL, mini_connection_main, c) != 0) {
            abort();
        }
        atomic_store(&m->connections, n + 1);
    }
    return NULL;
}

static inline void mini_start(struct mini *m)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(m->folder, sizeof m->folder, "/tmp/penstock-test-XXXXXX");
    m->disk = calloc(1, MINI_SIZE);
    if (!m->disk || !mkdtemp(m->folder)) {
        abort();
    }
    snprintf(m->path, sizeof m->path, "%s/s", m->folder);
    snprintf(m->uri, sizeof m->uri, "nbd+unix:///?socket=%s", m->path);
    memcpy(a.sun_path, m->path, strlen(m->path) + 1);
    m->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(m->fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(m->fd, 64) < 0 ||
        pthread_create(&m->acceptor, NULL, mini_acceptor_main, m) != 0) {
        abort();
    }
}

static inline void mini_stop(struct mini *m)
{
    atomic_store(&m->ending, true);
    shutdown(m->fd, SHUT_RDWR);
    pthread_join(m->acceptor, NULL);
    for (unsigned i = 0; i < atomic_load(&m->connections); i++) {
        shutdown(m->fds[i], SHUT_RDWR);
        pthread_join(m->threads[i], NULL);
        close(m->fds[i]);
    }
    close(m->fd);
    unlink(m->path);
    rmdir(m->folder);
    free(m->disk);
}

#endif
