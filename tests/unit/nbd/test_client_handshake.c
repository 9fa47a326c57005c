/*
 * The client's handshake against servers in a script: what it sends, what it makes of good answers,
 * and a table of wrong ones. No fibers: the channel is bytes in memory.
 */
#include "nbd/client_handshake.h"

#include "../tap.h"

#include <errno.h>

struct tape {
    struct channel ch; /* first */
    uint8_t in[1 << 17];
    size_t len, at;
    uint8_t out[1 << 16];
    size_t written;
};

static ssize_t tape_read(struct channel *ch, void *buf, size_t len)
{
    struct tape *t = (struct tape *)ch;
    size_t n = t->len - t->at < len ? t->len - t->at : len;
    memcpy(buf, t->in + t->at, n);
    t->at += n;
    return (ssize_t)n;
}

static int tape_write(struct channel *ch, struct iovec *iov, int n, bool more)
{
    struct tape *t = (struct tape *)ch;
    for (int i = 0; i < n; i++) {
        if (iov[i].iov_len > sizeof t->out - t->written) {
            return -EPIPE;
        }
        memcpy(t->out + t->written, iov[i].iov_base, iov[i].iov_len);
        t->written += iov[i].iov_len;
    }
    return 0;
}

static const struct channel_ops tape_ops = {.read_some = tape_read, .write = tape_write};

static struct tape tape;

static void put(const void *p, size_t len)
{
    memcpy(tape.in + tape.len, p, len);
    tape.len += len;
}

static void put16(uint16_t v)
{
    uint8_t b[2];
    nbd_put16(b, v);
    put(b, 2);
}

static void put32(uint32_t v)
{
    uint8_t b[4];
    nbd_put32(b, v);
    put(b, 4);
}

static void put64(uint64_t v)
{
    uint8_t b[8];
    nbd_put64(b, v);
    put(b, 8);
}

static void put_reply(uint32_t option, uint32_t type, const void *data, uint32_t len)
{
    put64(NBD_MAGIC_OPTION_REPLY);
    put32(option);
    put32(type);
    put32(len);
    put(data, len);
}

static void put_refusal(uint32_t option, uint32_t type)
{
    put_reply(option, type, "", 0);
}

static void put_greeting(uint16_t flags)
{
    put64(NBD_MAGIC_INIT);
    put64(NBD_MAGIC_OPTION);
    put16(flags);
}

static void put_info_export(uint64_t size, uint16_t flags)
{
    uint8_t b[NBD_INFO_EXPORT_SIZE];
    nbd_info_export_encode(b, size, flags);
    put_reply(NBD_OPT_GO, NBD_REP_INFO, b, sizeof b);
}

static void put_info_blocks(uint32_t min, uint32_t preferred, uint32_t max)
{
    uint8_t b[NBD_INFO_BLOCK_SIZE_SIZE];
    nbd_info_block_size_encode(b, min, preferred, max);
    put_reply(NBD_OPT_GO, NBD_REP_INFO, b, sizeof b);
}

static void put_info_text(uint16_t type, const char *text)
{
    uint8_t b[64];
    nbd_put16(b, type);
    memcpy(b + 2, text, strlen(text));
    put_reply(NBD_OPT_GO, NBD_REP_INFO, b, (uint32_t)(2 + strlen(text)));
}

static void put_context(uint32_t id, const char *name)
{
    uint8_t b[64];
    nbd_put32(b, id);
    memcpy(b + 4, name, strlen(name));
    put_reply(NBD_OPT_SET_META_CONTEXT, NBD_REP_META_CONTEXT, b, (uint32_t)(4 + strlen(name)));
}

static void ack(uint32_t option)
{
    put_reply(option, NBD_REP_ACK, "", 0);
}

#define BOTH (NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES)
#define FLAGS (NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH)

/* Up to the answers to GO. */
static void until_go(void)
{
    put_greeting(BOTH);
    put_refusal(NBD_OPT_EXTENDED_HEADERS, NBD_REP_ERR_UNSUP);
    ack(NBD_OPT_STRUCTURED_REPLY);
    put_context(5, NBD_CONTEXT_BASE_ALLOCATION);
    ack(NBD_OPT_SET_META_CONTEXT);
}

static struct nbd_facts facts;
static struct error err;
static struct nbd_handshake h;

static int play(void (*script)(void))
{
    memset(&tape, 0, sizeof tape);
    tape.ch.ops = &tape_ops;
    memset(&facts, 0, sizeof facts);
    memset(&err, 0, sizeof err);
    script();
    int r = nbd_handshake_start(&h, &tape.ch, &err);
    return r < 0 ? r : nbd_handshake_go(&h, "disk", &facts, &err);
}

/* Takes an option off what the client wrote. */
static uint32_t sent_option(size_t *at, uint32_t *len)
{
    uint32_t option = 0;
    *len = 0;
    if (tape.written - *at >= NBD_OPTION_SIZE) {
        nbd_option_decode(tape.out + *at, &option, len);
    }
    *at += NBD_OPTION_SIZE + *len;
    return option;
}

/* --- servers that agree --- */

static void modern(void)
{
    put_greeting(BOTH | 0x8000); /* an unknown flag is ignored and not echoed */
    ack(NBD_OPT_EXTENDED_HEADERS);
    put_context(5, NBD_CONTEXT_BASE_ALLOCATION);
    ack(NBD_OPT_SET_META_CONTEXT);
    put_info_text(NBD_INFO_NAME, "the disk");
    put_info_text(99, "unknown information");
    put_info_blocks(512, 4096, 1 << 20);
    put_info_text(NBD_INFO_DESCRIPTION, "the description");
    put_info_export(1 << 20, FLAGS | 0x8000);
    ack(NBD_OPT_GO);
}

static void agrees_with_a_modern_server(void)
{
    uint32_t len;
    size_t at = 4;
    if (!EQ(play(modern), 0)) {
        printf("# %s\n", err.text);
    }
    OK(facts.extended && facts.structured && facts.base_allocation);
    EQ(facts.context_id, 5);
    EQ(facts.size, 1 << 20);
    EQ(facts.flags, FLAGS | 0x8000);
    EQ(facts.block_min, 512);
    EQ(facts.block_preferred, 4096);
    EQ(facts.block_max, 1 << 20);
    STREQ(facts.name, "the disk");
    STREQ(facts.description, "the description");
    nbd_facts_done(&facts);
    EQ(tape.at, tape.len);
    EQ(nbd_get32(tape.out), BOTH);
    EQ(sent_option(&at, &len), NBD_OPT_EXTENDED_HEADERS);
    EQ(sent_option(&at, &len), NBD_OPT_SET_META_CONTEXT);
    EQ(sent_option(&at, &len), NBD_OPT_GO);
    EQ(len, 4 + 4 + 2 + 3 * 2);
    EQ(at, tape.written);
}

static void structured_only(void)
{
    until_go();
    put_info_export(1000, FLAGS);
    ack(NBD_OPT_GO);
}

static void falls_back_to_structured(void)
{
    EQ(play(structured_only), 0);
    OK(facts.structured && !facts.extended && facts.base_allocation);
    EQ(facts.size, 1000);
    EQ(facts.block_min, 0);
    nbd_facts_done(&facts);
}

static void no_contexts(void)
{
    put_greeting(NBD_FLAG_FIXED_NEWSTYLE);
    put_refusal(NBD_OPT_EXTENDED_HEADERS, NBD_REP_ERR_UNSUP);
    ack(NBD_OPT_STRUCTURED_REPLY);
    put_context(5, NBD_CONTEXT_BASE_ALLOCATION);
    put_reply(NBD_OPT_SET_META_CONTEXT, NBD_REP_ERR_POLICY, "no", 2); /* takes it back */
    put_info_export(1000, 0x8000);                                    /* no HAS_FLAGS: no flags */
    ack(NBD_OPT_GO);
}

static void contexts_of_a_failed_option_do_not_count(void)
{
    EQ(play(no_contexts), 0);
    OK(facts.structured && !facts.base_allocation);
    EQ(facts.flags, 0);
    nbd_facts_done(&facts);
}

static void no_go(void)
{
    uint8_t zeros[124] = {0};
    put_greeting(NBD_FLAG_FIXED_NEWSTYLE);
    put_refusal(NBD_OPT_EXTENDED_HEADERS, NBD_REP_ERR_UNSUP);
    put_refusal(NBD_OPT_STRUCTURED_REPLY, NBD_REP_IS_ERROR | 4711); /* unknown: only no */
    put_refusal(NBD_OPT_GO, NBD_REP_ERR_UNSUP);
    put64(77);
    put16(FLAGS);
    put(zeros, sizeof zeros);
}

static void no_options_at_all(void)
{
    put_greeting(NBD_FLAG_NO_ZEROES);
    put64(78);
    put16(FLAGS);
}

static void falls_back_to_export_name(void)
{
    uint32_t len;
    size_t at = 4;
    EQ(play(no_go), 0);
    OK(!facts.structured && !facts.base_allocation && facts.size == 77);
    EQ(tape.at, tape.len);
    EQ(play(no_options_at_all), 0);
    OK(!facts.structured && facts.size == 78);
    EQ(tape.at, tape.len);
    EQ(nbd_get32(tape.out), NBD_FLAG_NO_ZEROES);
    EQ(sent_option(&at, &len), NBD_OPT_EXPORT_NAME);
    EQ(len, 4);
    EQ(at, tape.written);
}

static void largest(void)
{
    until_go();
    put_info_blocks(65536, 65536, UINT32_MAX);
    put_info_export(INT64_MAX, FLAGS);
    ack(NBD_OPT_GO);
}

static void takes_what_the_limits_allow(void)
{
    EQ(play(largest), 0);
    EQ(facts.size, INT64_MAX);
    nbd_facts_done(&facts);
}

/* --- servers that refuse or lie --- */

#define SCRIPT(name) static void name(void)

SCRIPT(http)
{
    put("HTTP/1.1 400 Bad Request\r\n", 26);
}

SCRIPT(closes_at_once)
{
}

SCRIPT(oldstyle)
{
    put64(NBD_MAGIC_INIT);
    put64(NBD_MAGIC_OLDSTYLE);
    put64(1 << 20);
    put32(1);
}

SCRIPT(second_magic)
{
    put64(NBD_MAGIC_INIT);
    put64(4711);
    put64(0);
}

SCRIPT(closes_after_greeting)
{
    put_greeting(BOTH);
}

SCRIPT(reply_magic)
{
    put_greeting(BOTH);
    put64(NBD_MAGIC_OPTION);
    put64(0);
    put64(0);
}

SCRIPT(another_option)
{
    put_greeting(BOTH);
    ack(NBD_OPT_STRUCTURED_REPLY);
}

SCRIPT(reply_too_long)
{
    put_greeting(BOTH);
    put64(NBD_MAGIC_OPTION_REPLY);
    put32(NBD_OPT_EXTENDED_HEADERS);
    put32(NBD_REP_ACK);
    put32(1 << 30);
}

SCRIPT(ack_with_payload)
{
    put_greeting(BOTH);
    put_reply(NBD_OPT_EXTENDED_HEADERS, NBD_REP_ACK, "x", 1);
}

SCRIPT(unknown_reply)
{
    put_greeting(BOTH);
    put_reply(NBD_OPT_EXTENDED_HEADERS, 55, "", 0);
}

SCRIPT(server_reply_to_go)
{
    until_go();
    put_reply(NBD_OPT_GO, NBD_REP_SERVER, "\0\0\0\0", 4);
}

SCRIPT(shutting_down)
{
    put_greeting(BOTH);
    put_refusal(NBD_OPT_EXTENDED_HEADERS, NBD_REP_ERR_SHUTDOWN);
}

SCRIPT(other_context)
{
    put_greeting(BOTH);
    ack(NBD_OPT_EXTENDED_HEADERS);
    put_context(1, "qemu:dirty-bitmap:x");
}

SCRIPT(endless_contexts)
{
    put_greeting(BOTH);
    ack(NBD_OPT_EXTENDED_HEADERS);
    for (int i = 0; i < 100; i++) {
        put_context(1, NBD_CONTEXT_BASE_ALLOCATION);
    }
}

SCRIPT(short_context)
{
    put_greeting(BOTH);
    ack(NBD_OPT_EXTENDED_HEADERS);
    put_reply(NBD_OPT_SET_META_CONTEXT, NBD_REP_META_CONTEXT, "abc", 3);
}

SCRIPT(unknown_export)
{
    until_go();
    put_reply(NBD_OPT_GO, NBD_REP_ERR_UNKNOWN, "no \x07 such", 9);
}

SCRIPT(tls_required)
{
    until_go();
    put_refusal(NBD_OPT_GO, NBD_REP_ERR_TLS_REQD);
}

SCRIPT(forbidden)
{
    until_go();
    put_refusal(NBD_OPT_GO, NBD_REP_ERR_POLICY);
}

SCRIPT(unknown_error)
{
    until_go();
    put_refusal(NBD_OPT_GO, NBD_REP_IS_ERROR | 99);
}

SCRIPT(ack_without_export)
{
    until_go();
    put_info_blocks(512, 4096, 1 << 20);
    ack(NBD_OPT_GO);
}

SCRIPT(short_export)
{
    until_go();
    put_reply(NBD_OPT_GO, NBD_REP_INFO, "\0\0abcd", 6);
}

SCRIPT(endless_info)
{
    until_go();
    for (int i = 0; i < 4200; i++) {
        put_info_text(99, "x");
    }
}

SCRIPT(too_large)
{
    until_go();
    put_info_export(1ull << 63, FLAGS);
    ack(NBD_OPT_GO);
}

static void blocks(uint32_t min, uint32_t preferred, uint32_t max)
{
    until_go();
    put_info_blocks(min, preferred, max);
    put_info_export(1 << 20, FLAGS);
    ack(NBD_OPT_GO);
}

SCRIPT(min_of_0)
{
    blocks(0, 4096, 1 << 20);
}

SCRIPT(min_of_513)
{
    blocks(513, 4096, 1 << 20);
}

SCRIPT(min_of_128k)
{
    blocks(1 << 17, 1 << 17, 1 << 20);
}

SCRIPT(preferred_below_min)
{
    blocks(4096, 512, 1 << 20);
}

SCRIPT(preferred_odd)
{
    blocks(512, 5000, 1 << 20);
}

SCRIPT(max_below_preferred)
{
    blocks(512, 4096, 2048);
}

SCRIPT(export_name_refused)
{
    put_greeting(0);
}

SCRIPT(go_unsup_in_extended_mode)
{
    put_greeting(BOTH);
    ack(NBD_OPT_EXTENDED_HEADERS);
    ack(NBD_OPT_SET_META_CONTEXT);
    put_refusal(NBD_OPT_GO, NBD_REP_ERR_UNSUP);
}

struct refusal {
    const char *name;
    void (*script)(void);
    int code;
    const char *says;
};

#define R(script, code, says)       \
    {                               \
#script, script, code, says \
    }
static const struct refusal refusals[] = {
    R(http, EPROTO, "not an NBD server: it greets with \"HTTP/1.1\""),
    R(closes_at_once, ECONNRESET, "closed the connection where the greeting was expected"),
    R(oldstyle, EPROTONOSUPPORT, "oldstyle"),
    R(second_magic, EPROTO, "second magic number is wrong (0x1267)"),
    R(closes_after_greeting, ECONNRESET, "EXTENDED_HEADERS: the server closed"),
    R(reply_magic, EPROTO, "answered EXTENDED_HEADERS with a wrong magic"),
    R(another_option, EPROTO, "answered EXTENDED_HEADERS with a reply to option 8"),
    R(reply_too_long, EPROTO, "a reply of 1073741824 bytes"),
    R(ack_with_payload, EPROTO, "ACK to EXTENDED_HEADERS has 1 bytes"),
    R(unknown_reply, EPROTO, "a reply of type 55"),
    R(server_reply_to_go, EPROTO, "a reply of type 2 (SERVER)"),
    R(shutting_down, ESHUTDOWN, "it is shutting down"),
    R(other_context, EPROTO, "\"qemu:dirty-bitmap:x\", which was not asked for"),
    R(endless_contexts, EPROTO, "SET_META_CONTEXT without end"),
    R(short_context, EPROTO, "META_CONTEXT reply is malformed"),
    R(unknown_export, ENOENT, "it has no such export; it says \"no \\x07 such\""),
    R(tls_required, EACCES, "it requires TLS, and TLS is not built in"),
    R(forbidden, EACCES, "its policy forbids it"),
    R(unknown_error, EPROTO, "an error that penstock does not know"),
    R(ack_without_export, EPROTO, "without telling the export's size"),
    R(short_export, EPROTO, "INFO reply of 6 bytes is malformed"),
    R(endless_info, EPROTO, "INFO without end"),
    R(too_large, EPROTO, "more than 8 EiB"),
    R(min_of_0, EPROTO, "block size of 0"),
    R(min_of_513, EPROTO, "make no sense: minimum 513"),
    R(min_of_128k, EPROTO, "make no sense"),
    R(preferred_below_min, EPROTO, "make no sense"),
    R(preferred_odd, EPROTO, "make no sense"),
    R(max_below_preferred, EPROTO, "make no sense"),
    R(export_name_refused, ECONNRESET, "unknown or forbidden"),
    R(go_unsup_in_extended_mode, EOPNOTSUPP, "refused GO"),
};

static void every_refusal_is_named(void)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        if (!EQ(play(r->script), -r->code) || !EQ(err.code, r->code) ||
            !OK(strstr(err.text, r->says))) {
            printf("# %s: \"%s\"\n", r->name, err.text);
        }
    }
}

static void abort_is_sent_where_it_is_known(void)
{
    uint32_t len;
    play(unknown_export);
    size_t at = tape.written;
    nbd_handshake_abort(&h);
    EQ(sent_option(&at, &len), NBD_OPT_ABORT);
    EQ(len, 0);
    play(export_name_refused);
    at = tape.written;
    nbd_handshake_abort(&h);
    EQ(tape.written, at);
}

int main(void)
{
    RUN(agrees_with_a_modern_server);
    RUN(falls_back_to_structured);
    RUN(contexts_of_a_failed_option_do_not_count);
    RUN(falls_back_to_export_name);
    RUN(takes_what_the_limits_allow);
    RUN(every_refusal_is_named);
    RUN(abort_is_sent_where_it_is_known);
    return tap_done();
}
