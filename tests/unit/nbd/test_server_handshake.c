/*
 * The server's option haggling, byte by byte.
 */
#include "raw_client.h"

RAW_TEST(plain_go)
{
    struct site s;
    struct raw r;
    uint8_t buf[64], p[64];
    size_t len;
    site_open(&s, "memory:1000", NULL, false);
    raw_open(&r, s.server);
    raw_greet(&r);
    static const uint16_t types[] = {NBD_INFO_NAME, NBD_INFO_DESCRIPTION, 77, NBD_INFO_NAME};
    raw_option(&r, NBD_OPT_INFO, p, nbd_info_request_encode(p, "disk", types, 4));
    unsigned seen = 0;
    while (raw_option_reply(&r, NBD_OPT_INFO, buf, sizeof(buf), &len) == NBD_REP_INFO) {
        struct nbd_info info;
        EQ(nbd_info_decode(buf, len, &info), 0);
        OK(!(seen & (1u << info.type)));
        seen |= 1u << info.type;
        OK(info.type != NBD_INFO_EXPORT || info.size == 1000);
        OK(info.type != NBD_INFO_NAME || nbd_text_is(&info.text, "disk"));
        OK(info.type != NBD_INFO_DESCRIPTION || nbd_text_is(&info.text, "a disk"));
        OK(info.type != NBD_INFO_BLOCK_SIZE || info.block_min == 1);
    }
    EQ(seen, 15);
    raw_go(&r, "disk");
    EQ(raw_read(&r, 0, buf, 0, 64), 0);
    raw_disc(&r);
    raw_ends(&r);
    EQ(raw_close(&r), 0);
    site_close(&s);
}

RAW_TEST(option_errors_stay_in_step)
{
    struct site s;
    struct raw r;
    uint8_t p[256] = {0};
    site_open(&s, "memory:1000", NULL, false);
    raw_open(&r, s.server);
    raw_greet(&r);
    static const struct {
        uint32_t option;
        size_t len;
        uint32_t reply;
    } cases[] = {
        {NBD_OPT_PEEK_EXPORT, 0, NBD_REP_ERR_UNSUP},
        {12, 100, NBD_REP_ERR_UNSUP},
        {UINT32_MAX, 1, NBD_REP_ERR_UNSUP},
        {0, 16, NBD_REP_ERR_UNSUP},
        {NBD_OPT_LIST, 1, NBD_REP_ERR_INVALID},
        {NBD_OPT_STARTTLS, 0, NBD_REP_ERR_UNSUP},
        {NBD_OPT_STARTTLS, 5, NBD_REP_ERR_INVALID},
        {NBD_OPT_STRUCTURED_REPLY, 1, NBD_REP_ERR_INVALID},
        {NBD_OPT_EXTENDED_HEADERS, 1, NBD_REP_ERR_INVALID},
        {NBD_OPT_GO, 0, NBD_REP_ERR_INVALID},
        {NBD_OPT_GO, 5, NBD_REP_ERR_INVALID},
        {NBD_OPT_INFO, 7, NBD_REP_ERR_INVALID},
        {NBD_OPT_INFO, 6, NBD_REP_ACK}, /* the one export answers to the empty name */
        {NBD_OPT_LIST_META_CONTEXT, 3, NBD_REP_ERR_INVALID},
        {NBD_OPT_SET_META_CONTEXT, 8, NBD_REP_ERR_INVALID},
        {NBD_OPT_LIST_META_CONTEXT, 8, NBD_REP_ACK},
        {NBD_OPT_LIST, 0, NBD_REP_ACK},
        {NBD_OPT_STRUCTURED_REPLY, 0, NBD_REP_ACK},
        {NBD_OPT_STRUCTURED_REPLY, 0, NBD_REP_ERR_INVALID},
        {NBD_OPT_EXTENDED_HEADERS, 0, NBD_REP_ACK},
        {NBD_OPT_EXTENDED_HEADERS, 0, NBD_REP_ERR_INVALID},
        {NBD_OPT_STRUCTURED_REPLY, 0, NBD_REP_ERR_EXT_HEADER_REQD},
        {NBD_OPT_ABORT, 9, NBD_REP_ACK},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        raw_option(&r, cases[i].option, p, cases[i].len);
        if (!EQ(raw_final(&r, cases[i].option), cases[i].reply)) {
            printf("# case %zu\n", i);
        }
    }
    raw_ends(&r);
    EQ(raw_close(&r), 0);
    site_close(&s);
}

RAW_TEST(long_options)
{
    struct site s;
    struct raw r;
    uint8_t p[NBD_OPTION_SIZE];
    size_t len = 1 << 20;
    uint8_t *data = calloc(1, len);
    site_open(&s, "memory:1000", NULL, false);
    raw_open(&r, s.server);
    raw_greet(&r);
    raw_option(&r, 99, data, len);
    EQ(raw_final(&r, 99), NBD_REP_ERR_UNSUP);
    raw_option(&r, NBD_OPT_SET_META_CONTEXT, data, len);
    EQ(raw_final(&r, NBD_OPT_SET_META_CONTEXT), NBD_REP_ERR_TOO_BIG);
    raw_option(&r, NBD_OPT_LIST, NULL, 0);
    EQ(raw_final(&r, NBD_OPT_LIST), NBD_REP_ACK);
    nbd_option_encode(p, 99, UINT32_MAX);
    raw_send(&r, p, sizeof(p));
    raw_ends(&r);
    EQ(raw_close(&r), -EPROTO);
    free(data);
    site_close(&s);
}

static void export_name(struct site *s, uint32_t flags, const char *name, size_t want)
{
    struct raw r;
    uint8_t p[256];
    raw_open(&r, s->server);
    raw_get(&r, p, NBD_GREETING_SIZE);
    nbd_put32(p, flags);
    raw_send(&r, p, 4);
    raw_option(&r, NBD_OPT_EXPORT_NAME, name, strlen(name));
    if (want > 0) {
        raw_get(&r, p, want);
        EQ(nbd_get64(p), 1000);
        OK(nbd_get16(p + 8) & NBD_FLAG_HAS_FLAGS);
        for (size_t i = 10; i < want; i++) {
            OK(p[i] == 0);
        }
        EQ(raw_read(&r, 0, p, 990, 10), 0);
        raw_disc(&r);
    }
    raw_ends(&r);
    EQ(raw_close(&r), want > 0 ? 0 : -EPROTO);
}

RAW_TEST(export_names)
{
    struct site s;
    site_open(&s, "memory:1000", NULL, false);
    export_name(&s, 3, "disk", 10);
    export_name(&s, 1, "disk", 134);
    export_name(&s, 0, "disk", 134);
    export_name(&s, 2, "", 10);
    export_name(&s, 3, "other", 0);
    site_close(&s);
}

RAW_TEST(unknown_client_flags_and_magic)
{
    struct site s;
    struct raw r;
    uint8_t p[32] = {0};
    site_open(&s, "memory:1000", NULL, false);
    raw_open(&r, s.server);
    raw_get(&r, p, NBD_GREETING_SIZE);
    nbd_put32(p, 7);
    raw_send(&r, p, 4);
    raw_ends(&r);
    EQ(raw_close(&r), -EPROTO);
    raw_open(&r, s.server);
    raw_greet(&r);
    raw_send(&r, p, 16);
    raw_ends(&r);
    EQ(raw_close(&r), -EPROTO);
    raw_open(&r, s.server); /* gone in the middle of a header */
    raw_greet(&r);
    raw_send(&r, p, 3);
    EQ(raw_close(&r), -ECONNRESET);
    raw_open(&r, s.server); /* gone before the greeting, or right after */
    int ret = raw_close(&r);
    OK(ret == 0 || ret == -EPIPE);
    site_close(&s);
}

RAW_TEST(contexts)
{
    struct site s;
    struct raw r;
    uint8_t p[512], buf[64];
    size_t len;
    static const char *const base[] = {"base:"};
    static const char *const twice[] = {"base:allocation", "x:y", "base:nothing", "base:allocation",
                                        "nocolon"};
    site_open(&s, "memory:1M", NULL, false);
    raw_open(&r, s.server);
    raw_greet(&r);
    EQ(raw_set_base(&r, "disk"), NBD_REP_ERR_INVALID); /* before structured replies */
    raw_option(&r, NBD_OPT_LIST_META_CONTEXT, p, nbd_meta_request_encode(p, "disk", base, 1));
    EQ(raw_option_reply(&r, NBD_OPT_LIST_META_CONTEXT, buf, sizeof(buf), &len),
       NBD_REP_META_CONTEXT);
    EQ(nbd_get32(buf), 0);
    EQ(raw_final(&r, NBD_OPT_LIST_META_CONTEXT), NBD_REP_ACK);
    raw_option(&r, NBD_OPT_STRUCTURED_REPLY, NULL, 0);
    EQ(raw_final(&r, NBD_OPT_STRUCTURED_REPLY), NBD_REP_ACK);
    raw_option(&r, NBD_OPT_SET_META_CONTEXT, p, nbd_meta_request_encode(p, "disk", base, 1));
    EQ(raw_option_reply(&r, NBD_OPT_SET_META_CONTEXT, NULL, 0, NULL), NBD_REP_ACK);
    raw_option(&r, NBD_OPT_SET_META_CONTEXT, p, nbd_meta_request_encode(p, "disk", twice, 5));
    EQ(raw_option_reply(&r, NBD_OPT_SET_META_CONTEXT, buf, sizeof(buf), &len),
       NBD_REP_META_CONTEXT);
    EQ(nbd_get32(buf), 1);
    EQ(raw_option_reply(&r, NBD_OPT_SET_META_CONTEXT, NULL, 0, NULL), NBD_REP_ACK);
    EQ(raw_set_base(&r, "other"), NBD_REP_ERR_UNKNOWN); /* and what was chosen is gone */
    raw_go(&r, "disk");
    r.structured = true;
    raw_request(&r, NBD_CMD_BLOCK_STATUS, 0, 1, 0, 512);
    EQ(raw_result(&r, NULL), NBD_EINVAL);
    raw_disc(&r);
    EQ(raw_close(&r), 0);
    site_close(&s);
}

RAW_TEST(switched_off)
{
    struct nbd_server_options o;
    struct site s;
    struct raw r;
    nbd_server_options_init(&o);
    o.list = false;
    o.no_structured = true;
    site_open(&s, "memory:1M", &o, true);
    raw_open(&r, s.server);
    raw_greet(&r);
    raw_option(&r, NBD_OPT_LIST, NULL, 0);
    EQ(raw_final(&r, NBD_OPT_LIST), NBD_REP_ERR_POLICY);
    raw_option(&r, NBD_OPT_STRUCTURED_REPLY, NULL, 0);
    EQ(raw_final(&r, NBD_OPT_STRUCTURED_REPLY), NBD_REP_ERR_UNSUP);
    raw_option(&r, NBD_OPT_EXTENDED_HEADERS, NULL, 0);
    EQ(raw_final(&r, NBD_OPT_EXTENDED_HEADERS), NBD_REP_ERR_UNSUP);
    EQ(raw_close(&r), 0);
    site_close(&s);
}

RAW_TEST(handshake_has_a_deadline)
{
    struct nbd_server_options o;
    struct site s;
    struct raw r;
    nbd_server_options_init(&o);
    o.handshake_timeout_ns = 1000000;
    site_open(&s, "memory:1M", &o, true);
    raw_open(&r, s.server);
    uint8_t p[NBD_GREETING_SIZE];
    raw_get(&r, p, sizeof(p));
    raw_ends(&r);
    EQ(raw_close(&r), -ETIMEDOUT);
    site_close(&s);
}

RAW_TEST(stopping_is_said_to_those_who_haggle)
{
    struct site s;
    struct raw r;
    site_open(&s, "memory:1M", NULL, false);
    raw_open(&r, s.server);
    raw_greet(&r);
    raw_option(&r, NBD_OPT_LIST, NULL, 0);
    EQ(raw_final(&r, NBD_OPT_LIST), NBD_REP_ACK);
    nbd_server_stop(s.server, RAW_DEADLINE_NS);
    raw_option(&r, NBD_OPT_LIST, NULL, 0);
    EQ(raw_final(&r, NBD_OPT_LIST), NBD_REP_ERR_SHUTDOWN);
    raw_option(&r, NBD_OPT_ABORT, NULL, 0);
    EQ(raw_final(&r, NBD_OPT_ABORT), NBD_REP_ACK);
    raw_ends(&r);
    EQ(raw_close(&r), 0);
    raw_open(&r, s.server); /* too late, and it says nothing */
    raw_greet(&r);
    raw_ends(&r);
    raw_close(&r);
    site_close(&s);
}

int main(void)
{
    RUN(plain_go);
    RUN(option_errors_stay_in_step);
    RUN(long_options);
    RUN(export_names);
    RUN(unknown_client_flags_and_magic);
    RUN(contexts);
    RUN(switched_off);
    RUN(handshake_has_a_deadline);
    RUN(stopping_is_said_to_those_who_haggle);
    return tap_done();
}
