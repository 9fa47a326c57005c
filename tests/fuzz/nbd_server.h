/*
 * For the fuzz targets of the NBD server: a server over a socketpair that is fed bytes and then the
 * end of the stream; it must answer or hang up, end, and have given everything back.
 */
#ifndef FUZZ_NBD_SERVER_H
#define FUZZ_NBD_SERVER_H

#include "channel/channel.h"
#include "channel/sizing.h"
#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/log.h"
#include "core/worker.h"
#include "nbd/server.h"
#include "nbd/wire.h"
#include "volume/endpoint.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define FUZZ_DISK "memory:65536"

struct fuzz_run {
    struct nbd_server *server;
    struct channel *ours, *theirs;
    const uint8_t *head, *data;
    size_t head_len, len;
};

static void fuzz_serve(void *arg)
{
    struct fuzz_run *r = arg;
    nbd_server_connection(r->server, r->theirs);
}

static void fuzz_drain(void *arg)
{
    struct fuzz_run *r = arg;
    static uint8_t drop[65536];
    while (channel_read_some(r->ours, drop, sizeof(drop)) > 0) {
    }
}

static int fuzz_must(int ret)
{
    if (ret < 0) {
        abort();
    }
    return ret;
}

static int fuzz_main(void *arg)
{
    struct fuzz_run *r = arg;
    struct nbd_server_options o;
    struct endpoint_options e;
    struct volume *v = NULL;
    struct fgroup group;
    int sv[2];
    nbd_server_options_init(&o);
    endpoint_options_init(&e);
    o.handshake_timeout_ns = 0;
    e.writable = true;
    const struct nbd_export_options x = {.name = "x", .description = "fuzzed"};
    fuzz_must(endpoint_open(FUZZ_DISK, &e, &v, NULL));
    fuzz_must(nbd_server_new(&o, &r->server, NULL));
    fuzz_must(nbd_server_add_export(r->server, v, &x, NULL));
    fuzz_must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv));
    fuzz_must(channel_adopt(sv[0], sv[0], SOCKET_BUFFER_DEFAULT, &r->ours, NULL));
    fuzz_must(channel_adopt(sv[1], sv[1], SOCKET_BUFFER_DEFAULT, &r->theirs, NULL));
    fgroup_init(&group);
    fuzz_must(fgroup_spawn(&group, fuzz_serve, r));
    fuzz_must(fgroup_spawn(&group, fuzz_drain, r));
    /* Either may fail when the server has hung up already. */
    if (channel_write(r->ours, r->head, r->head_len, true) == 0 && r->len > 0) {
        (void)channel_write(r->ours, r->data, r->len, false);
    }
    (void)channel_shutdown_write(r->ours);
    fgroup_wait(&group, false);
    channel_close(r->ours);
    fuzz_must(nbd_server_finish(r->server, NULL));
    nbd_server_free(r->server);
    volume_close(v);
    if (bufpool_in_use() != 0) {
        abort();
    }
    return 0;
}

static inline void fuzz_server(const uint8_t *head, size_t head_len, const uint8_t *data,
                               size_t len)
{
    struct fuzz_run r = {.head = head, .head_len = head_len, .data = data, .len = len};
    signal(SIGPIPE, SIG_IGN);
    log_set_level(LOG_ERROR);
    fuzz_must(worker_main(fuzz_main, &r));
}

#endif
