/*
 * Order, bounds and ends: requests that overtake each other, clients that leave in each way they
 * can, servers that stop, listeners.
 */
#include "raw_client.h"

#include "channel/socket.h"

#define MIB ((size_t)1 << 20)

static void wait_held(struct site *s, unsigned n)
{
    while (fault_held(s->volume) != n) {
        fiber_sleep_ns(1000000);
    }
}

RAW_TEST(requests_overtake)
{
    struct site s;
    struct raw r;
    uint64_t cookie;
    uint8_t buf[4096];
    site_open(&s, "fault:hold-read@0,hold-flush:memory:1M", NULL, false);
    raw_connect(&r, s.server, NBD_MODE_SIMPLE);
    raw_request(&r, NBD_CMD_READ, 0, 1, 0, 512);
    raw_request(&r, NBD_CMD_FLUSH, 0, 2, 0, 0);
    for (uint64_t i = 3; i < 103; i++) {
        raw_request(&r, NBD_CMD_READ, 0, i, 4096, 4096);
    }
    for (uint64_t i = 3; i < 103; i++) {
        struct nbd_reply reply = raw_header(&r);
        EQ(reply.cookie, i);
        raw_get(&r, buf, sizeof(buf));
    }
    wait_held(&s, 2);
    fault_release(s.volume);
    unsigned seen = 0;
    for (int i = 0; i < 2; i++) {
        struct nbd_reply reply = raw_header(&r);
        seen |= 1u << reply.cookie;
        if (reply.cookie == 1) {
            raw_get(&r, buf, 512);
        }
    }
    EQ(seen, 6);
    raw_write(&r, 0, 4, 0, buf, 512);
    EQ(raw_result(&r, &cookie), 0);
    EQ(cookie, 4);
    EQ(raw_close(&r), 0);
    site_close(&s);
}

/* Half a second of delay costs nothing here: all of them wait at the same time. */
RAW_TEST(disc_and_half_close_get_all_replies)
{
    for (int how = 0; how < 2; how++) {
        struct site s;
        struct raw r;
        uint8_t buf[512];
        site_open(&s, "fault:delay-read=20ms@0:memory:1M", NULL, false);
        raw_connect(&r, s.server, NBD_MODE_STRUCTURED);
        for (uint64_t i = 0; i < 50; i++) {
            raw_request(&r, NBD_CMD_READ, 0, i, (i & 1) * 4096, 512);
        }
        if (how == 0) {
            raw_disc(&r);
        } else {
            EQ(channel_shutdown_write(r.ch), 0);
        }
        for (int i = 0; i < 50; i++) {
            struct nbd_reply reply = raw_header(&r);
            EQ(reply.length, 520);
            raw_get(&r, buf, 8);
            raw_get(&r, buf, 512);
        }
        raw_ends(&r);
        EQ(raw_close(&r), 0);
        site_close(&s);
    }
}

RAW_TEST(vanished_client_is_released)
{
    struct site s;
    struct raw r;
    uint8_t data[2048] = {0};
    site_open(&s, "fault:hold-read,hold-write@0,no-extents:memory:4M", NULL, false);
    raw_connect(&r, s.server, NBD_MODE_STRUCTURED);
    raw_request(&r, NBD_CMD_READ, 0, 1, 0, 512);
    raw_request(&r, NBD_CMD_READ, 0, 2, 0, MIB);
    raw_write(&r, 0, 3, 0, data, 512);
    wait_held(&s, 3);
    OK(raw_close(&r) < 0); /* the held calls are canceled, or this never ends */
    EQ(fault_held(s.volume), 0);
    raw_connect(&r, s.server, NBD_MODE_SIMPLE); /* in the middle of a payload */
    raw_request(&r, NBD_CMD_WRITE, 0, 1, 0, 2 * MIB);
    raw_send(&r, data, sizeof(data));
    EQ(raw_close(&r), -ECONNRESET);
    raw_connect(&r, s.server, NBD_MODE_SIMPLE); /* and of a header */
    raw_send(&r, data, 5);
    EQ(raw_close(&r), -ECONNRESET);
    raw_connect(&r, s.server, NBD_MODE_SIMPLE); /* without reading what it asked for */
    for (int i = 0; i < 64; i++) {
        raw_request(&r, NBD_CMD_CACHE, 0, 1, 0, MIB);
    }
    raw_close(&r);
    site_close(&s);
    EQ(bufpool_in_use(), 0);
}

RAW_TEST(bad_magic_ends_after_the_replies)
{
    struct site s;
    struct raw r;
    uint8_t buf[NBD_REQUEST_SIZE] = {0};
    site_open(&s, "fault:delay-flush=5ms:memory:1M", NULL, false);
    raw_connect(&r, s.server, NBD_MODE_SIMPLE);
    raw_request(&r, NBD_CMD_FLUSH, 0, 8, 0, 0);
    raw_send(&r, buf, sizeof(buf));
    EQ(raw_result(&r, NULL), 0);
    raw_ends(&r);
    EQ(raw_close(&r), -EPROTO);
    site_close(&s);
}

RAW_TEST(stopping_finishes_what_was_accepted)
{
    struct site s;
    struct raw r, idle;
    uint8_t buf[512];
    site_open(&s, "fault:hold-read@0:memory:1M", NULL, false);
    raw_connect(&idle, s.server, NBD_MODE_EXTENDED);
    raw_connect(&r, s.server, NBD_MODE_SIMPLE);
    raw_request(&r, NBD_CMD_READ, 0, 1, 0, 512);
    wait_held(&s, 1);
    nbd_server_stop(s.server, RAW_DEADLINE_NS);
    raw_ends(&idle); /* nothing in flight: at once */
    EQ(raw_close(&idle), 0);
    fault_release(s.volume);
    EQ(raw_header(&r).error, 0);
    raw_get(&r, buf, sizeof(buf));
    raw_ends(&r);
    EQ(raw_close(&r), 0);
    site_close(&s);
}

RAW_TEST(what_is_left_after_the_grace_is_cut)
{
    struct site s;
    struct raw r;
    site_open(&s, "fault:hold-read:memory:1M", NULL, false);
    raw_connect(&r, s.server, NBD_MODE_SIMPLE);
    raw_request(&r, NBD_CMD_READ, 0, 1, 0, 512);
    wait_held(&s, 1);
    nbd_server_stop(s.server, 1000000);
    EQ(nbd_server_finish(s.server, NULL), 0);
    raw_ends(&r);
    EQ(raw_close(&r), -ECANCELED);
    nbd_server_free(s.server);
    volume_close(s.volume);
}

/* 128 requests of a MiB each, none of the answers read: it waits, within its bounds, and another
 * client is served all the same. Then all is read and right. */
RAW_TEST(slow_client_blocks_itself_alone)
{
    struct nbd_server_options o;
    struct site s;
    struct raw slow, quick;
    uint8_t *buf = malloc(MIB);
    nbd_server_options_init(&o);
    o.connection_memory = 8 * MIB;
    o.connection_requests = 16;
    site_open(&s, "fault:delay-read=1us:pattern:1G", &o, true);
    raw_connect(&slow, s.server, NBD_MODE_STRUCTURED);
    for (uint64_t i = 0; i < 128; i++) {
        raw_request(&slow, NBD_CMD_READ, NBD_CMD_FLAG_DF, i, i * MIB, MIB);
    }
    raw_connect(&quick, s.server, NBD_MODE_STRUCTURED);
    for (int i = 0; i < 20; i++) {
        EQ(raw_read(&quick, 0, buf, 12345, 200000), 0);
    }
    OK(bufpool_in_use() <= 9 * MIB);
    uint64_t sum = 0;
    for (int i = 0; i < 128; i++) {
        struct nbd_reply reply = raw_header(&slow);
        uint8_t at[8];
        sum += reply.cookie;
        EQ(reply.length, MIB + 8);
        raw_get(&slow, at, 8);
        EQ(nbd_get64(at), reply.cookie * MIB);
        raw_get(&slow, buf, MIB);
    }
    EQ(sum, 127 * 64);
    EQ(raw_close(&slow), 0);
    EQ(raw_close(&quick), 0);
    site_close(&s);
    free(buf);
}

struct writer {
    struct raw *r;
    const uint8_t *data;
    unsigned count;
};

static void write_many(void *arg)
{
    struct writer *w = arg;
    for (uint64_t i = 0; i < w->count; i++) {
        raw_write(w->r, 0, i, (i * 40000) % (3 * MIB), w->data, 40000);
        raw_request(w->r, NBD_CMD_READ, 0, i | 1 << 20, i * 4096, 4096);
    }
}

RAW_TEST(many_in_flight_both_ways)
{
    struct site s;
    struct raw r;
    static uint8_t data[40000];
    struct writer w = {.r = &r, .data = data, .count = 300};
    struct fgroup g;
    raw_fill(data, sizeof(data), 9);
    site_open(&s, "fault:delay-write=100us,percent=30,delay-read=50us,percent=20:memory:4M", NULL,
              false);
    raw_connect(&r, s.server, NBD_MODE_SIMPLE);
    fgroup_init(&g);
    EQ(fgroup_spawn(&g, write_many, &w), 0);
    unsigned reads = 0, writes = 0;
    for (unsigned i = 0; i < 2 * w.count && !tap_failed; i++) {
        static uint8_t back[4096];
        struct nbd_reply reply = raw_header(&r);
        EQ(reply.error, 0);
        if (reply.cookie >> 20) {
            raw_get(&r, back, sizeof(back));
            reads++;
        } else {
            writes++;
        }
    }
    OK(reads == w.count && writes == w.count);
    fgroup_wait(&g, false);
    EQ(raw_close(&r), 0);
    site_close(&s);
}

static int connect_to(const struct address *a, struct raw *r)
{
    *r = (struct raw){0};
    int ret = socket_connect(a, SOCKET_BUFFER_AUTO, worker_now_ns(worker_self()) + RAW_DEADLINE_NS,
                             &r->ch, NULL);
    if (ret == 0) {
        channel_set_deadline(r->ch, worker_now_ns(worker_self()) + RAW_DEADLINE_NS);
    }
    return ret;
}

RAW_TEST(listener_workers_and_limits)
{
    struct nbd_server_options o;
    struct site s;
    struct listener l;
    struct address any, at;
    struct workers *ws;
    struct raw r[3], extra;
    uint8_t buf[4096], p[64];
    nbd_server_options_init(&o);
    o.max_connections = 3;
    o.one_shot = true;
    site_open(&s, "memory:1M", &o, false);
    EQ(address_parse_tcp("127.0.0.1:0", 0, &any, NULL), 0);
    EQ(listener_open(&any, 16, -1, SOCKET_BUFFER_AUTO, &l, 1, NULL), 1);
    EQ(listener_address(&l, &at), 0);
    EQ(workers_start(2, &ws), 0);
    EQ(nbd_server_listen(s.server, &l, ws, NULL), 0);
    for (int i = 0; i < 3; i++) {
        EQ(connect_to(&at, &r[i]), 0);
        raw_greet(&r[i]);
        raw_go(&r[i], "disk");
        EQ(raw_read(&r[i], 0, buf, 0, sizeof(buf)), 0);
    }
    EQ(connect_to(&at, &extra), 0);
    raw_greet(&extra);
    raw_option(&extra, NBD_OPT_GO, p, nbd_info_request_encode(p, "disk", NULL, 0));
    EQ(raw_final(&extra, NBD_OPT_GO), NBD_REP_ERR_POLICY);
    channel_close(extra.ch);
    raw_disc(&r[0]);
    channel_close(r[0].ch);
    nbd_server_wait(s.server); /* the first has gone */
    nbd_server_stop(s.server, RAW_DEADLINE_NS);
    raw_ends(&r[1]);
    raw_ends(&r[2]);
    channel_close(r[1].ch);
    channel_close(r[2].ch);
    site_close(&s);
    workers_stop(ws);
}

int main(void)
{
    RUN(requests_overtake);
    RUN(disc_and_half_close_get_all_replies);
    RUN(vanished_client_is_released);
    RUN(bad_magic_ends_after_the_replies);
    RUN(stopping_finishes_what_was_accepted);
    RUN(what_is_left_after_the_grace_is_cut);
    RUN(slow_client_blocks_itself_alone);
    RUN(many_in_flight_both_ways);
    RUN(listener_workers_and_limits);
    return tap_done();
}
