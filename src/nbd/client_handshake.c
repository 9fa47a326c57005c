/*
 * The client's half of the handshake (proto, "Newstyle negotiation").
 *
 * One option at a time: it is sent, and its replies are read to the final one. A reply that breaks
 * the protocol ends the connection with a text that says what the server did; an error reply only
 * fails its option, and the server's words are shown, escaped. Extended headers are asked for
 * first, structured replies where there are none, then base:allocation, then GO with all that it
 * can tell. EXPORT_NAME is used only for servers that don't know GO (ERR_UNSUP) or are not fixed
 * newstyle: it can't say why it fails. Oldstyle servers are refused.
 *
 * Time is bounded by the channel's deadline, memory by one reply buffer, the number of replies by
 * NBD_OPTION_REPLIES_MAX.
 */
#include "nbd/client_handshake.h"

#include "core/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_MAX 384 /* of a server's text in one of our messages */

void nbd_facts_done(struct nbd_facts *f)
{
    free(f->name);
    free(f->description);
    f->name = f->description = NULL;
}

/* channel_read() with the end of the stream as an error, and words for what happened. */
static int receive(struct nbd_handshake *h, void *buf, size_t len, const char *what,
                   struct error *err)
{
    if (len == 0) {
        return 0;
    }
    int r = channel_read(h->ch, buf, len);
    if (r == 1 || r == -ECONNRESET) {
        return error_set(err, ECONNRESET, "the server closed the connection where %s was expected",
                         what);
    }
    if (r == -ETIMEDOUT) {
        return error_set(err, ETIMEDOUT, "the server did not send %s in time", what);
    }
    return r < 0 ? error_set(err, -r, "receiving %s", what) : 0;
}

static int send_all(struct nbd_handshake *h, struct iovec *iov, int n, const char *what,
                    struct error *err)
{
    int r = channel_writev(h->ch, iov, n, false);
    if (r == -ETIMEDOUT) {
        return error_set(err, ETIMEDOUT, "the server did not take %s in time", what);
    }
    return r < 0 ? error_set(err, -r, "sending %s", what) : 0;
}

static int wrong_greeting(const uint8_t *greeting, struct error *err)
{
    char shown[64];
    return error_set(err, EPROTO, "not an NBD server: it greets with \"%s\"",
                     log_escape(shown, sizeof shown, greeting, 8));
}

int nbd_handshake_start(struct nbd_handshake *h, struct channel *ch, struct error *err)
{
    *h = (struct nbd_handshake){.ch = ch};
    uint8_t greeting[NBD_GREETING_SIZE], answer[4];
    /* The magics first: what is no NBD server at all may never send the rest. */
    int r = receive(h, greeting, 8, "the greeting", err);
    if (r < 0) {
        return r;
    }
    if (nbd_get64(greeting) != NBD_MAGIC_INIT) {
        return wrong_greeting(greeting, err);
    }
    r = receive(h, greeting + 8, NBD_GREETING_SIZE - 8, "the greeting", err);
    if (r < 0) {
        return r;
    }
    uint16_t flags;
    r = nbd_greeting_decode(greeting, &flags);
    if (r == -EPROTONOSUPPORT) {
        return error_set(err, EPROTONOSUPPORT,
                         "the server speaks the oldstyle protocol, which "
                         "went out of use in 2011 and is not supported: newstyle is needed");
    }
    if (r < 0) {
        return error_set(err, EPROTO, "the server's second magic number is wrong (%#llx)",
                         (unsigned long long)nbd_get64(greeting + 8));
    }
    h->fixed = flags & NBD_FLAG_FIXED_NEWSTYLE;
    h->no_zeroes = flags & NBD_FLAG_NO_ZEROES;
    nbd_put32(answer, flags & (NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES));
    return send_all(h, &(struct iovec){answer, sizeof answer}, 1, "the handshake flags", err);
}

int nbd_handshake_option(struct nbd_handshake *h, uint32_t option, const void *data, size_t len,
                         struct error *err)
{
    union {
        const void *in;
        void *out;
    } base = {.in = data}; /* iovec has no const form */
    uint8_t header[NBD_OPTION_SIZE];
    struct iovec iov[2] = {{header, sizeof header}, {base.out, len}};
    nbd_option_encode(header, option, (uint32_t)len);
    h->option = option;
    return send_all(h, iov, len > 0 ? 2 : 1, nbd_option_name(option), err);
}

/* Any reply to the option that was sent, with its payload. 0 or -errno: the connection is lost. */
static int take_reply(struct nbd_handshake *h, struct error *err)
{
    uint8_t header[NBD_OPTION_REPLY_SIZE];
    const char *name = nbd_option_name(h->option);
    int r = receive(h, header, sizeof header, "the reply to an option", err);
    if (r < 0) {
        return error_prefix(err, "%s", name);
    }
    if (nbd_option_reply_decode(header, &h->reply) < 0) {
        return error_set(err, EPROTO, "the server answered %s with a wrong magic number (%#llx)",
                         name, (unsigned long long)nbd_get64(header));
    }
    if (h->reply.option != h->option) {
        return error_set(err, EPROTO, "the server answered %s with a reply to option %u", name,
                         h->reply.option);
    }
    if (h->reply.length > sizeof h->data) {
        return error_set(err, EPROTO,
                         "the server answered %s with a reply of %u bytes; %zu is the "
                         "limit",
                         name, h->reply.length, sizeof h->data);
    }
    r = receive(h, h->data, h->reply.length, "the rest of an option's reply", err);
    return r < 0 ? error_prefix(err, "%s", name) : 0;
}

struct option_error {
    uint32_t type;
    int code;
    const char *meaning;
};

static const struct option_error option_errors[] = {
    {NBD_REP_ERR_UNSUP, EOPNOTSUPP, "it does not know the option"},
    {NBD_REP_ERR_POLICY, EACCES, "its policy forbids it"},
    {NBD_REP_ERR_INVALID, EINVAL, "it calls the request invalid"},
    {NBD_REP_ERR_PLATFORM, EOPNOTSUPP, "its platform can't do it"},
    {NBD_REP_ERR_TLS_REQD, EACCES, "it requires TLS, and TLS is not built in"},
    {NBD_REP_ERR_UNKNOWN, ENOENT, "it has no such export"},
    {NBD_REP_ERR_SHUTDOWN, ESHUTDOWN, "it is shutting down"},
    {NBD_REP_ERR_BLOCK_SIZE_REQD, EINVAL, "it insists on its block sizes"},
    {NBD_REP_ERR_TOO_BIG, EINVAL, "the request is too big for it"},
    {NBD_REP_ERR_EXT_HEADER_REQD, EOPNOTSUPP, "it requires extended headers"},
};

/* Words for the error reply in h->reply. The server's own text is added where it has one. */
static int refused(struct nbd_handshake *h, struct error *err)
{
    int code = EPROTO;
    const char *meaning = "with an error that penstock does not know";
    for (size_t i = 0; i < sizeof option_errors / sizeof *option_errors; i++) {
        if (option_errors[i].type == h->reply.type) {
            code = option_errors[i].code;
            meaning = option_errors[i].meaning;
        }
    }
    if (h->reply.length == 0) {
        return error_set(err, code, "the server refused %s: %s", nbd_option_name(h->option),
                         meaning);
    }
    char shown[SHOWN_MAX];
    return error_set(err, code, "the server refused %s: %s; it says \"%s\"",
                     nbd_option_name(h->option), meaning,
                     log_escape(shown, sizeof shown, h->data, h->reply.length));
}

static int unexpected(struct nbd_handshake *h, struct error *err)
{
    return error_set(err, EPROTO,
                     "the server answered %s with a reply of type %u (%s), which has "
                     "no place there",
                     nbd_option_name(h->option), h->reply.type, nbd_reply_name(h->reply.type));
}

int nbd_handshake_reply(struct nbd_handshake *h, uint32_t expected, struct error *err)
{
    int r = take_reply(h, err);
    if (r < 0) {
        return r;
    }
    if (h->reply.type & NBD_REP_IS_ERROR) {
        return refused(h, err);
    }
    if (h->reply.type == NBD_REP_ACK) {
        return h->reply.length == 0
                   ? 0
                   : error_set(err, EPROTO, "the server's ACK to %s has %u bytes of payload",
                               nbd_option_name(h->option), h->reply.length);
    }
    return h->reply.type == expected ? 1 : unexpected(h, err);
}

static bool was_refused(const struct nbd_handshake *h, int r)
{
    return r < 0 && (h->reply.type & NBD_REP_IS_ERROR) && h->reply.option == h->option;
}

/* An option without data that the server may refuse. 1: agreed, 0: not, -errno: lost. */
static int ask_for(struct nbd_handshake *h, uint32_t option, struct error *err)
{
    struct error refusal = {0};
    h->reply.type = 0;
    int r = nbd_handshake_option(h, option, NULL, 0, err);
    if (r < 0) {
        return r;
    }
    r = nbd_handshake_reply(h, NBD_REP_ACK, &refusal);
    if (r == 0) {
        return 1;
    }
    if (was_refused(h, r) && h->reply.type != NBD_REP_ERR_SHUTDOWN) {
        return 0;
    }
    return error_set(err, -r, "%s", refusal.text);
}

int nbd_handshake_headers(struct nbd_handshake *h, struct error *err)
{
    if (!h->fixed) {
        return 0;
    }
    int r = ask_for(h, NBD_OPT_EXTENDED_HEADERS, err);
    if (r != 0) {
        h->extended = h->structured = r > 0;
        return r < 0 ? r : 0;
    }
    r = ask_for(h, NBD_OPT_STRUCTURED_REPLY, err);
    h->structured = r > 0;
    return r < 0 ? r : 0;
}

/* One reply to SET_META_CONTEXT: base:allocation, once; nothing else was asked for. */
static int take_context(struct nbd_handshake *h, struct nbd_facts *f, struct error *err)
{
    struct nbd_text name;
    uint32_t id;
    if (nbd_context_reply_decode(h->data, h->reply.length, &id, &name) < 0) {
        return error_set(err, EPROTO, "the server's META_CONTEXT reply is malformed");
    }
    if (!nbd_text_is(&name, NBD_CONTEXT_BASE_ALLOCATION)) {
        char shown[SHOWN_MAX];
        return error_set(err, EPROTO,
                         "the server selected the metadata context \"%s\", which was "
                         "not asked for",
                         log_escape(shown, sizeof shown, name.data, name.len));
    }
    /* nbdkit has been seen to repeat itself; the last ID is the one in force. */
    f->base_allocation = true;
    f->context_id = id;
    return 0;
}

/* base:allocation; a server that refuses has no block status for us. 0 or -errno. */
static int set_context(struct nbd_handshake *h, const char *export_name, struct nbd_facts *f,
                       struct error *err)
{
    static const char *const queries[] = {NBD_CONTEXT_BASE_ALLOCATION};
    struct error refusal = {0};
    size_t len = nbd_meta_request_encode(NULL, export_name, queries, 1);
    uint8_t data[NBD_STRING_MAX + 64];
    nbd_meta_request_encode(data, export_name, queries, 1);
    h->reply.type = 0;
    int r = nbd_handshake_option(h, NBD_OPT_SET_META_CONTEXT, data, len, err);
    if (r < 0) {
        return r;
    }
    unsigned n = 0;
    while ((r = nbd_handshake_reply(h, NBD_REP_META_CONTEXT, &refusal)) > 0) {
        r = n++ < 16 ? take_context(h, f, err)
                     : error_set(err, EPROTO, "the server answers SET_META_CONTEXT without end");
        if (r < 0) {
            return r;
        }
    }
    if (was_refused(h, r) && h->reply.type != NBD_REP_ERR_SHUTDOWN) {
        f->base_allocation = false;
        return 0;
    }
    return r < 0 ? error_set(err, -r, "%s", refusal.text) : 0;
}

static int keep_text(char **where, const struct nbd_text *t, struct error *err)
{
    char *copy = malloc(t->len + 1);
    if (!copy) {
        return error_set(err, ENOMEM, "no memory for an export's name");
    }
    memcpy(copy, t->data, t->len);
    copy[t->len] = '\0';
    free(*where);
    *where = copy;
    return 0;
}

/* One INFO reply. *have says whether INFO_EXPORT came. */
static int take_info(struct nbd_handshake *h, struct nbd_facts *f, bool *have, struct error *err)
{
    struct nbd_info info;
    if (nbd_info_decode(h->data, h->reply.length, &info) < 0) {
        return error_set(err, EPROTO, "the server's INFO reply of %u bytes is malformed",
                         h->reply.length);
    }
    switch (info.type) {
    case NBD_INFO_EXPORT:
        *have = true;
        f->size = info.size;
        f->flags = info.flags;
        break;
    case NBD_INFO_NAME:
        return keep_text(&f->name, &info.text, err);
    case NBD_INFO_DESCRIPTION:
        return keep_text(&f->description, &info.text, err);
    case NBD_INFO_BLOCK_SIZE:
        f->block_min = info.block_min;
        f->block_preferred = info.block_preferred;
        f->block_max = info.block_max;
        if (info.block_min == 0 || info.block_max == 0) {
            return error_set(err, EPROTO, "the server advertises a block size of 0");
        }
        break;
    default:
        break;
    }
    return 0;
}

/* GO. 0; 1: the server does not know it; -errno. */
static int go(struct nbd_handshake *h, const char *export_name, struct nbd_facts *f,
              struct error *err)
{
    static const uint16_t wanted[] = {NBD_INFO_BLOCK_SIZE, NBD_INFO_NAME, NBD_INFO_DESCRIPTION};
    struct error refusal = {0};
    uint8_t data[NBD_STRING_MAX + 64];
    size_t len = nbd_info_request_encode(data, export_name, wanted, 3);
    bool have = false;
    h->reply.type = 0;
    int r = nbd_handshake_option(h, NBD_OPT_GO, data, len, err);
    if (r < 0) {
        return r;
    }
    unsigned n = 0;
    while ((r = nbd_handshake_reply(h, NBD_REP_INFO, &refusal)) > 0) {
        r = n++ < 4096 ? take_info(h, f, &have, err)
                       : error_set(err, EPROTO, "the server answers GO with INFO without end");
        if (r < 0) {
            return r;
        }
    }
    if (r < 0) {
        return was_refused(h, r) && h->reply.type == NBD_REP_ERR_UNSUP && !h->extended
                   ? 1
                   : error_set(err, -r, "%s", refusal.text);
    }
    return have ? 0
                : error_set(err, EPROTO,
                            "the server acknowledged GO without telling the export's "
                            "size");
}

/* The option of the first newstyle servers: no reply but the export, or a closed connection. */
static int export_name_option(struct nbd_handshake *h, const char *export_name, struct nbd_facts *f,
                              struct error *err)
{
    uint8_t reply[NBD_EXPORT_NAME_REPLY_SIZE + NBD_EXPORT_NAME_PADDING];
    size_t len = h->no_zeroes ? NBD_EXPORT_NAME_REPLY_SIZE : sizeof reply;
    int r = nbd_handshake_option(h, NBD_OPT_EXPORT_NAME, export_name, strlen(export_name), err);
    if (r == 0) {
        r = receive(h, reply, len, "the reply to EXPORT_NAME", err);
    }
    if (r < 0) {
        return error_prefix(err, "the export may be unknown or forbidden (the server has no way "
                                 "to say so)");
    }
    f->size = nbd_get64(reply);
    f->flags = nbd_get16(reply + 8);
    return 0;
}

static bool power_of_two(uint32_t v)
{
    return v != 0 && (v & (v - 1)) == 0;
}

/* proto, "Size constraints"; what makes no sense is refused, not guessed at. */
static int check_facts(struct nbd_facts *f, struct error *err)
{
    if (!(f->flags & NBD_FLAG_HAS_FLAGS)) {
        f->flags = 0;
    }
    if (f->size > INT64_MAX) {
        return error_set(err, EPROTO,
                         "the server says that the export has %llu bytes, more than "
                         "8 EiB",
                         (unsigned long long)f->size);
    }
    if (f->block_min == 0) {
        return 0;
    }
    bool fine = power_of_two(f->block_min) && f->block_min <= 65536 &&
                power_of_two(f->block_preferred) && f->block_preferred >= f->block_min &&
                f->block_max >= f->block_preferred;
    return fine ? 0
                : error_set(err, EPROTO,
                            "the server advertises block sizes that make no sense: "
                            "minimum %u, preferred %u, maximum %u",
                            f->block_min, f->block_preferred, f->block_max);
}

int nbd_handshake_go(struct nbd_handshake *h, const char *export_name, struct nbd_facts *ret,
                     struct error *err)
{
    struct nbd_facts f = {0};
    int r = nbd_handshake_headers(h, err);
    if (r == 0 && h->structured) {
        r = set_context(h, export_name, &f, err);
    }
    if (r == 0) {
        r = h->fixed ? go(h, export_name, &f, err) : 1;
    }
    if (r > 0) {
        /* Nothing is bound to a name that no GO confirms: no contexts then. */
        f.base_allocation = false;
        r = export_name_option(h, export_name, &f, err);
    }
    if (r == 0) {
        r = check_facts(&f, err);
    }
    if (r < 0) {
        nbd_facts_done(&f);
        return r;
    }
    f.structured = h->structured;
    f.extended = h->extended;
    *ret = f;
    return 0;
}

void nbd_handshake_abort(struct nbd_handshake *h)
{
    /* The server may close without an ACK, and nothing hangs on it: not waited for. */
    if (h->fixed) {
        nbd_handshake_option(h, NBD_OPT_ABORT, NULL, 0, NULL);
    }
}
