/*
 * The server's commands in each of the three reply modes, and what it says to wrong ones.
 */
#include "raw_client.h"

#define MIB ((size_t)1 << 20)

static const enum nbd_reply_mode modes[] = {NBD_MODE_SIMPLE, NBD_MODE_STRUCTURED,
                                            NBD_MODE_EXTENDED};

static void write_and_read(struct raw *r, const uint8_t *data, uint8_t *back, size_t size)
{
    static const struct {
        uint64_t off;
        size_t len;
    } ranges[] = {{0, 1},          {511, 1026}, {4096, 4096},   {5000, 16384},  {6001, 16385},
                  {70000, 100000}, {3, 262144}, {4097, 262145}, {100, 3 << 20}, {0, 5 << 20}};
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        uint64_t off = ranges[i].off;
        size_t len = ranges[i].len;
        OK(off + len <= size);
        raw_write(r, i & 1 ? NBD_CMD_FLAG_FUA : 0, i, off, data + i, len);
        EQ(raw_result(r, NULL), 0);
        EQ(raw_read(r, 0, back, off, len), 0);
        OK(memcmp(back, data + i, len) == 0);
    }
}

static void in_each_mode(const char *endpoint)
{
    size_t size = 5 * MIB + 12345;
    uint8_t *data = malloc(size + 64), *back = malloc(size);
    raw_fill(data, size + 64, 1);
    for (int m = 0; m < 3; m++) {
        struct site s;
        struct raw r;
        site_open(&s, endpoint, NULL, false);
        raw_connect(&r, s.server, modes[m]);
        write_and_read(&r, data, back, size);
        raw_disc(&r);
        raw_ends(&r);
        EQ(raw_close(&r), 0);
        struct nbd_server_stats stats;
        nbd_server_stats(s.server, &stats);
        EQ(stats.connections, 1);
        EQ(stats.connections_now, 0);
        EQ(stats.errors, 0);
        EQ(stats.bytes_read, stats.bytes_written);
        site_close(&s);
    }
    free(data);
    free(back);
}

RAW_TEST(reads_and_writes_memory)
{
    in_each_mode("memory:5255225");
}

RAW_TEST(reads_and_writes_a_file)
{
    char path[] = "/tmp/penstock-test-XXXXXX";
    int fd = mkstemp(path);
    OK(fd >= 0 && ftruncate(fd, 5 * MIB + 12345) == 0);
    close(fd);
    in_each_mode(path);
    unlink(path);
}

RAW_TEST(reads_and_writes_what_lends_nothing)
{
    in_each_mode("fault:delay-read=1us:memory:5255225");
}

/* One request after another on one connection; each must get its own answer. */
RAW_TEST(wrong_requests_are_answered)
{
    static const struct {
        unsigned command, flags;
        uint64_t offset, length;
        uint32_t error;
    } cases[] = {
        {NBD_CMD_READ, 0, 1 << 20, 1, NBD_EINVAL},
        {NBD_CMD_READ, 0, UINT64_MAX, 2, NBD_EINVAL},
        {NBD_CMD_READ, 0, 0, (1 << 20) + 1, NBD_EINVAL},
        {NBD_CMD_READ, NBD_CMD_FLAG_NO_HOLE, 0, 512, NBD_EINVAL},
        {NBD_CMD_READ, 0x8000, 0, 512, NBD_EINVAL},
        {NBD_CMD_TRIM, 0, 1 << 20, 1, NBD_EINVAL},
        {NBD_CMD_TRIM, NBD_CMD_FLAG_DF, 0, 1, NBD_EINVAL},
        {NBD_CMD_CACHE, 0, 1, 1 << 20, NBD_EINVAL},
        {NBD_CMD_WRITE_ZEROES, 0, 1, 1 << 20, NBD_ENOSPC},
        {NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_REQ_ONE, 0, 512, NBD_EINVAL},
        {NBD_CMD_FLUSH, NBD_CMD_FLAG_DF, 0, 0, NBD_EINVAL},
        {NBD_CMD_BLOCK_STATUS, 0, 0, 0, NBD_EINVAL},
        {NBD_CMD_BLOCK_STATUS, 0, 1, 1 << 20, NBD_EINVAL},
        {NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_DF, 0, 512, NBD_EINVAL},
        {8, 0, 0, 0, NBD_EINVAL},
        {0xffff, 0, 0, 512, NBD_EINVAL},
        {NBD_CMD_READ, 0, 5, 0, NBD_OK},
        {NBD_CMD_TRIM, 0, 5, 0, NBD_OK},
        {NBD_CMD_WRITE_ZEROES, 0, 5, 0, NBD_OK},
        {NBD_CMD_FLUSH, 0, 5, 5, NBD_OK},
        {NBD_CMD_TRIM, 0, 1, 1000, NBD_OK},
        {NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_NO_HOLE, 1, 1000, NBD_OK},
        {NBD_CMD_CACHE, 0, 0, 1 << 20, NBD_OK},
    };
    for (int m = 0; m < 3; m++) {
        struct site s;
        struct raw r;
        uint64_t cookie = 0;
        site_open(&s, "memory:1M", NULL, false);
        raw_connect(&r, s.server, modes[m]);
        for (uint64_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            raw_request(&r, cases[i].command, cases[i].flags, i | 1ull << 63, cases[i].offset,
                        cases[i].length);
            if (!EQ(raw_result(&r, &cookie), cases[i].error) || !EQ(cookie, i | 1ull << 63)) {
                printf("# mode %d, case %d\n", m, (int)i);
            }
        }
        raw_disc(&r);
        EQ(raw_close(&r), 0);
        site_close(&s);
    }
}

RAW_TEST(refused_writes_are_consumed)
{
    static uint8_t data[300000];
    for (int m = 0; m < 3; m++) {
        struct site s;
        struct raw r;
        uint8_t byte;
        site_open(&s, "memory:1M", NULL, false);
        raw_connect(&r, s.server, modes[m]);
        raw_write(&r, 0, 1, MIB - 1, data, 2);
        EQ(raw_result(&r, NULL), NBD_ENOSPC);
        raw_write(&r, 0, 1, UINT64_MAX, data, sizeof(data));
        EQ(raw_result(&r, NULL), NBD_ENOSPC);
        raw_write(&r, NBD_CMD_FLAG_DF, 1, 0, data, sizeof(data));
        EQ(raw_result(&r, NULL), NBD_EINVAL);
        raw_write(&r, 0, 1, 7, data, 0);
        EQ(raw_result(&r, NULL), NBD_OK);
        if (r.extended) { /* without the flag there is no payload */
            raw_request(&r, NBD_CMD_WRITE, 0, 1, 0, 512);
            EQ(raw_result(&r, NULL), NBD_EINVAL);
            /* and with it there is, whatever the command */
            raw_request(&r, NBD_CMD_READ, NBD_CMD_FLAG_PAYLOAD_LEN, 1, 0, 512);
            raw_send(&r, data, 512);
            EQ(raw_result(&r, NULL), NBD_EINVAL);
            raw_request(&r, 99, NBD_CMD_FLAG_PAYLOAD_LEN, 1, 0, sizeof(data));
            raw_send(&r, data, sizeof(data));
            EQ(raw_result(&r, NULL), NBD_EINVAL);
        } else {
            raw_write(&r, NBD_CMD_FLAG_PAYLOAD_LEN, 1, 0, data, 512);
            EQ(raw_result(&r, NULL), NBD_EINVAL);
        }
        EQ(raw_read(&r, 0, &byte, 0, 1), 0);
        EQ(raw_close(&r), 0);
        site_close(&s);
    }
}

RAW_TEST(read_only)
{
    struct site s;
    struct raw r;
    uint8_t data[512] = {0};
    site_open(&s, "memory:1M", NULL, true);
    raw_connect(&r, s.server, NBD_MODE_STRUCTURED);
    raw_write(&r, 0, 1, 0, data, 512);
    EQ(raw_result(&r, NULL), NBD_EPERM);
    raw_request(&r, NBD_CMD_TRIM, 0, 1, 0, 512);
    EQ(raw_result(&r, NULL), NBD_EPERM);
    raw_request(&r, NBD_CMD_WRITE_ZEROES, 0, 1, 0, 512);
    EQ(raw_result(&r, NULL), NBD_EPERM);
    raw_request(&r, NBD_CMD_FLUSH, 0, 1, 0, 0);
    EQ(raw_result(&r, NULL), NBD_OK);
    EQ(raw_read(&r, 0, data, 0, 512), 0);
    EQ(raw_close(&r), 0);
    site_close(&s);
}

RAW_TEST(too_large_for_us)
{
    size_t len = (64 << 20) + 1;
    uint8_t *data = calloc(1, len);
    struct site s;
    struct raw r;
    site_open(&s, "null:1G", NULL, false);
    raw_connect(&r, s.server, NBD_MODE_SIMPLE);
    raw_write(&r, 0, 1, 0, data, len - 1);
    EQ(raw_result(&r, NULL), NBD_OK);
    raw_write(&r, 0, 1, 0, data, len);
    EQ(raw_result(&r, NULL), NBD_EINVAL);
    raw_request(&r, NBD_CMD_READ, 0, 1, 0, len);
    EQ(raw_result(&r, NULL), NBD_EINVAL);
    raw_request(&r, NBD_CMD_WRITE, 0, 1, 0, UINT32_MAX);
    raw_ends(&r);
    EQ(raw_close(&r), -EPROTO);
    raw_connect(&r, s.server, NBD_MODE_EXTENDED);
    raw_request(&r, NBD_CMD_READ, 0, 1, 0, len);
    EQ(raw_result(&r, NULL), NBD_EOVERFLOW);
    raw_request(&r, NBD_CMD_WRITE, NBD_CMD_FLAG_PAYLOAD_LEN, 1, 0, len);
    raw_ends(&r);
    EQ(raw_close(&r), -EPROTO);
    free(data);
    site_close(&s);
}

RAW_TEST(eight_exbibytes)
{
    uint64_t size = INT64_MAX - 511;
    uint8_t p[64];
    struct site s;
    struct raw r;
    site_open(&s, "null:9223372036854775296", NULL, false);
    raw_connect(&r, s.server, NBD_MODE_EXTENDED);
    EQ(raw_read(&r, 0, p, size - 64, 64), 0);
    raw_request(&r, NBD_CMD_WRITE_ZEROES, 0, 1, 0, size);
    EQ(raw_result(&r, NULL), 0);
    raw_request(&r, NBD_CMD_TRIM, NBD_CMD_FLAG_FUA, 1, 0, size);
    EQ(raw_result(&r, NULL), 0);
    raw_request(&r, NBD_CMD_CACHE, 0, 1, 0, size);
    EQ(raw_result(&r, NULL), 0);
    raw_request(&r, NBD_CMD_BLOCK_STATUS, 0, 1, 0, size);
    struct nbd_reply reply = raw_header(&r);
    EQ(reply.type, NBD_CHUNK_BLOCK_STATUS_EXT);
    EQ(reply.length, 24);
    raw_get(&r, p, 24);
    struct nbd_status st = {0};
    uint64_t length = 0, flags = 0;
    EQ(nbd_status_decode(p, 24, true, &st), 0);
    nbd_status_get(&st, 0, &length, &flags);
    EQ(length, size);
    EQ(raw_close(&r), 0);
    site_close(&s);
}

/* Data in the first and third 64 KiB of four; the rest are holes. */
static void make_sparse(struct raw *r)
{
    static uint8_t data[65536];
    raw_fill(data, sizeof(data), 3);
    raw_write(r, 0, 1, 0, data, sizeof(data));
    EQ(raw_result(r, NULL), 0);
    raw_write(r, 0, 1, 131072, data, sizeof(data));
    EQ(raw_result(r, NULL), 0);
}

static void expect_status(struct raw *r, uint64_t off, uint64_t len, unsigned flags,
                          const struct extent *want, unsigned n)
{
    uint8_t p[512];
    struct nbd_status st = {0};
    raw_request(r, NBD_CMD_BLOCK_STATUS, flags, 5, off, len);
    struct nbd_reply reply = raw_header(r);
    EQ(reply.type, r->extended ? NBD_CHUNK_BLOCK_STATUS_EXT : NBD_CHUNK_BLOCK_STATUS);
    EQ(reply.flags, NBD_REPLY_FLAG_DONE);
    OK(reply.length <= sizeof(p));
    raw_get(r, p, reply.length);
    EQ(nbd_status_decode(p, reply.length, r->extended, &st), 0);
    EQ(st.id, 1);
    EQ(st.count, n);
    for (unsigned i = 0; i < st.count && i < n; i++) {
        uint64_t length, f;
        nbd_status_get(&st, i, &length, &f);
        EQ(length, want[i].length);
        EQ(f, want[i].flags);
    }
}

RAW_TEST(block_status_and_holes)
{
    static const struct extent all[] = {{65536, 0}, {65536, 3}, {65536, 0}, {MIB - 196608, 3}};
    static const struct extent some[] = {{1000, 3}, {65536, 0}, {7, 3}};
    static uint8_t back[1 << 20];
    for (int m = 1; m < 3; m++) {
        struct site s;
        struct raw r;
        site_open(&s, "memory:1M", NULL, false);
        raw_connect(&r, s.server, modes[m]);
        make_sparse(&r);
        expect_status(&r, 0, MIB, 0, all, 4);
        expect_status(&r, 0, MIB, NBD_CMD_FLAG_REQ_ONE, all, 1);
        expect_status(&r, 131072 - 1000, 1000 + 65536 + 7, 0, some, 3);
        raw_request(&r, NBD_CMD_READ, 0, 5, 0, MIB);
        unsigned holes = 0, chunks = 0;
        for (bool done = false; !done && !tap_failed; chunks++) {
            struct nbd_reply reply = raw_header(&r);
            done = reply.flags & NBD_REPLY_FLAG_DONE;
            holes += reply.type == NBD_CHUNK_OFFSET_HOLE;
            OK(reply.length <= sizeof(back));
            raw_get(&r, back, reply.length);
        }
        EQ(holes, 2);
        EQ(chunks, 4);
        raw_request(&r, NBD_CMD_READ, NBD_CMD_FLAG_DF, 5, 0, MIB);
        struct nbd_reply reply = raw_header(&r);
        EQ(reply.length, MIB + 8);
        EQ(reply.flags, NBD_REPLY_FLAG_DONE);
        raw_get(&r, back, 8);
        raw_get(&r, back, MIB);
        EQ(raw_close(&r), 0);
        site_close(&s);
    }
}

RAW_TEST(status_of_chosen_contexts)
{
    struct site s;
    struct raw r;
    uint8_t p[64];
    site_open(&s, "memory:1M", NULL, false);
    raw_connect(&r, s.server, NBD_MODE_EXTENDED);
    nbd_put64(p, MIB);
    nbd_put32(p + 8, 1);
    nbd_put32(p + 12, 1);
    static const struct {
        size_t len;
        uint32_t id;
        uint64_t effect;
        uint32_t error;
    } cases[] = {{12, 1, MIB, 0},         {12, 2, MIB, NBD_EINVAL}, {16, 1, MIB, NBD_EINVAL},
                 {8, 1, MIB, NBD_EINVAL}, {11, 1, MIB, NBD_EINVAL}, {12, 1, MIB + 1, NBD_EINVAL},
                 {12, 1, 0, NBD_EINVAL},  {4, 1, 1, NBD_EINVAL}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        nbd_put64(p, cases[i].effect);
        nbd_put32(p + 8, cases[i].id);
        raw_request(&r, NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_PAYLOAD_LEN, 9, 0, cases[i].len);
        raw_send(&r, p, cases[i].len);
        if (cases[i].error != 0) {
            EQ(raw_result(&r, NULL), cases[i].error);
        } else {
            struct nbd_reply reply = raw_header(&r);
            uint8_t got[64];
            EQ(reply.type, NBD_CHUNK_BLOCK_STATUS_EXT);
            EQ(reply.length, 24);
            raw_get(&r, got, 24);
        }
    }
    EQ(raw_close(&r), 0);
    site_close(&s);
}

RAW_TEST(errors_of_the_volume)
{
    static uint8_t data[1 << 20];
    for (int m = 0; m < 3; m++) {
        struct site s;
        struct raw r;
        site_open(&s,
                  "fault:read-error=EIO@600K,write-error=ENOSPC@600K,zero-error=ENOTSUP@1,"
                  "flush-error=EIO,count=1,no-extents:memory:1M",
                  NULL, false);
        raw_connect(&r, s.server, modes[m]);
        EQ(raw_read(&r, 0, data, 614400, 512), NBD_EIO);
        EQ(raw_read(&r, 0, data, 0, sizeof(data)), NBD_EIO);
        EQ(raw_read(&r, 0, data, 0, 100000), NBD_OK);
        raw_write(&r, 0, 1, 614400, data, 512);
        EQ(raw_result(&r, NULL), NBD_ENOSPC);
        raw_write(&r, 0, 1, 0, data, sizeof(data));
        EQ(raw_result(&r, NULL), NBD_ENOSPC);
        raw_request(&r, NBD_CMD_FLUSH, 0, 1, 0, 0);
        EQ(raw_result(&r, NULL), NBD_EIO);
        raw_request(&r, NBD_CMD_FLUSH, 0, 1, 0, 0); /* it would succeed now, but data is lost */
        EQ(raw_result(&r, NULL), NBD_EIO);
        raw_write(&r, NBD_CMD_FLAG_FUA, 1, 0, data, 512);
        EQ(raw_result(&r, NULL), NBD_EIO);
        raw_disc(&r);
        EQ(raw_close(&r), 0);
        EQ(nbd_server_finish(s.server, NULL), -EIO);
        nbd_server_free(s.server);
        volume_close(s.volume);
    }
}

int main(void)
{
    log_set_level(LOG_ERROR);
    RUN(reads_and_writes_memory);
    RUN(reads_and_writes_a_file);
    RUN(reads_and_writes_what_lends_nothing);
    RUN(wrong_requests_are_answered);
    RUN(refused_writes_are_consumed);
    RUN(read_only);
    RUN(too_large_for_us);
    RUN(eight_exbibytes);
    RUN(block_status_and_holes);
    RUN(status_of_chosen_contexts);
    RUN(errors_of_the_volume);
    return tap_done();
}
