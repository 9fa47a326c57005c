/*
 * The handshake (proto, "Handshake"): fixed newstyle only. Options are received whole, up to a
 * limit, then one function each answers (server_options.c, server_meta.c); what is wrong inside an
 * option is an error reply, and the stream stays in step. Only what can't be skipped in bounds ends
 * it.
 */
#include "nbd/server_private.h"

#include "core/log.h"
#include "core/worker.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static option_fn *const option_table[] = {
    [NBD_OPT_EXPORT_NAME] = option_export_name,
    [NBD_OPT_ABORT] = option_abort,
    [NBD_OPT_LIST] = option_list,
    [NBD_OPT_STARTTLS] = option_starttls,
    [NBD_OPT_INFO] = option_info,
    [NBD_OPT_GO] = option_go,
    [NBD_OPT_STRUCTURED_REPLY] = option_structured,
    [NBD_OPT_LIST_META_CONTEXT] = option_list_meta,
    [NBD_OPT_SET_META_CONTEXT] = option_set_meta,
    [NBD_OPT_EXTENDED_HEADERS] = option_extended,
};

enum option_next option_reply(const struct option_call *o, uint32_t type, const void *data,
                              size_t len)
{
    uint8_t *p = out_add(o->c, NBD_OPTION_REPLY_SIZE + len);
    nbd_option_reply_encode(p, o->option, type, (uint32_t)len);
    if (len > 0) {
        memcpy(p + NBD_OPTION_REPLY_SIZE, data, len);
    }
    return OPTION_AGAIN;
}

enum option_next option_error(const struct option_call *o, uint32_t type, const char *fmt, ...)
{
    char raw[512];
    char text[NBD_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(raw, sizeof(raw), fmt, args);
    va_end(args);
    log_escape(text, sizeof(text), raw, strlen(raw));
    log_debug("client %s: %s answered with %s: %s", o->c->ch->peer, nbd_option_name(o->option),
              nbd_reply_name(type), text);
    return option_reply(o, type, text, strlen(text));
}

uint16_t handshake_flags(const struct connection *c, const struct nbd_export *e)
{
    const struct volume *v = e->volume;
    bool writable = !e->read_only;
    unsigned flags = NBD_FLAG_HAS_FLAGS;
    flags |= writable ? 0 : NBD_FLAG_READ_ONLY;
    flags |= volume_can(v, VOLUME_CAN_FLUSH) ? NBD_FLAG_SEND_FLUSH : 0;
    flags |= volume_can(v, VOLUME_CAN_FLUSH | VOLUME_CAN_FUA) ? NBD_FLAG_SEND_FUA : 0;
    flags |= volume_can(v, VOLUME_IS_ROTATIONAL) ? NBD_FLAG_ROTATIONAL : 0;
    flags |= writable && volume_can(v, VOLUME_CAN_DISCARD) ? NBD_FLAG_SEND_TRIM : 0;
    flags |= writable ? NBD_FLAG_SEND_WRITE_ZEROES : 0;
    flags |= writable && volume_can(v, VOLUME_CAN_FAST_ZERO) ? NBD_FLAG_SEND_FAST_ZERO : 0;
    flags |= c->mode != NBD_MODE_SIMPLE ? NBD_FLAG_SEND_DF : 0;
    flags |= volume_can(v, VOLUME_IS_COHERENT) ? NBD_FLAG_CAN_MULTI_CONN : 0;
    flags |= volume_can(v, VOLUME_CAN_CACHE) ? NBD_FLAG_SEND_CACHE : 0;
    flags |= c->mode == NBD_MODE_EXTENDED && c->meta_export == e ? NBD_FLAG_BLOCK_STATUS_PAYLOAD
                                                                 : 0;
    return (uint16_t)flags;
}

/*
 * Input during the handshake. A server that stops cancels the wait once; a client in the middle of
 * haggling then gets a moment more, so that it can be told so (proto, ERR_SHUTDOWN).
 */
static int handshake_need(struct connection *c, size_t n)
{
    out_flush(c);
    if (c->error < 0) {
        return c->error;
    }
    int ret = in_need(c, n);
    if (ret == -ECANCELED && server_stopping(c->server) && !c->canceled_once) {
        c->canceled_once = true;
        fiber_shield(); /* until the handshake is over */
        channel_set_deadline(c->ch, worker_now_ns(c->worker) + HANDSHAKE_STOP_NS);
        ret = in_need(c, n);
    }
    return ret;
}

static int greet(struct connection *c)
{
    nbd_greeting_encode(out_add(c, NBD_GREETING_SIZE),
                        NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES);
    int ret = handshake_need(c, 4);
    if (ret != 0) {
        return ret;
    }
    uint32_t flags = nbd_get32(c->in + c->in_at);
    c->in_at += 4;
    if ((flags & ~(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES)) != 0) {
        log_debug("client %s: unknown handshake flags %#x", c->ch->peer, flags);
        return -EPROTO;
    }
    c->no_zeroes = (flags & NBD_FLAG_NO_ZEROES) != 0;
    return 0;
}

static enum option_next run_option(const struct option_call *o)
{
    struct connection *c = o->c;
    option_fn *fn = NULL;
    if (o->option < sizeof(option_table) / sizeof(option_table[0])) {
        fn = option_table[o->option];
    }
    if (o->option == NBD_OPT_ABORT) {
        return fn(o);
    }
    if (server_stopping(c->server) || c->refused) {
        if (o->option == NBD_OPT_EXPORT_NAME) {
            return OPTION_HANG_UP; /* it knows no error reply */
        }
        return c->refused ? option_error(o, NBD_REP_ERR_POLICY,
                                         "the server has as many clients as it takes")
                          : option_error(o, NBD_REP_ERR_SHUTDOWN, "the server is shutting down");
    }
    if (!fn) {
        return option_error(o, NBD_REP_ERR_UNSUP, "this option is not known here");
    }
    return fn(o);
}

/* An option that is too long to be looked at. */
static enum option_next skip_option(struct connection *c, uint32_t option, uint32_t len)
{
    const struct option_call o = {.c = c, .option = option};
    if (option == NBD_OPT_SET_META_CONTEXT) {
        c->meta_export = NULL; /* it replaces what was chosen, even when it fails */
    }
    if (len > OPTION_SKIP_MAX || option == NBD_OPT_EXPORT_NAME || in_skip(c, len) != 0) {
        return OPTION_HANG_UP;
    }
    bool known = option < sizeof(option_table) / sizeof(option_table[0]) && option_table[option];
    if (option == NBD_OPT_ABORT || c->refused || server_stopping(c->server) || !known) {
        return run_option(&o);
    }
    return option_error(&o, NBD_REP_ERR_TOO_BIG, "%u bytes of option data are too many", len);
}

static int next_option(struct connection *c, enum option_next *next)
{
    int ret = handshake_need(c, NBD_OPTION_SIZE);
    if (ret != 0) {
        return ret;
    }
    uint32_t option, len;
    if (nbd_option_decode(c->in + c->in_at, &option, &len) < 0 || ++c->options > OPTIONS_MAX) {
        return -EPROTO;
    }
    c->in_at += NBD_OPTION_SIZE;
    if (len > OPTION_DATA_MAX) {
        *next = skip_option(c, option, len);
        return 0;
    }
    if (len > 0) {
        ret = handshake_need(c, len);
        if (ret != 0) {
            return ret == 1 ? -ECONNRESET : ret;
        }
    }
    const struct option_call o = {.c = c, .option = option, .data = c->in + c->in_at, .len = len};
    *next = run_option(&o);
    c->in_at += len;
    return 0;
}

int handshake(struct connection *c)
{
    uint64_t timeout = c->server->o.handshake_timeout_ns;
    if (timeout > 0) {
        channel_set_deadline(c->ch, worker_now_ns(c->worker) + timeout);
    }
    enum option_next next = OPTION_AGAIN;
    int ret = greet(c);
    while (ret == 0 && next == OPTION_AGAIN) {
        ret = next_option(c, &next);
    }
    if (ret == 0 && next != OPTION_HANG_UP) {
        out_flush(c);
        ret = c->error;
    }
    if (c->canceled_once) {
        fiber_unshield();
    }
    if (ret != 0) {
        log_debug("client %s: the handshake ended: %d", c->ch->peer, ret);
        return ret;
    }
    switch (next) {
    case OPTION_TRANSMIT:
        return 0;
    case OPTION_CLOSE:
        return 1;
    case OPTION_AGAIN:
    case OPTION_HANG_UP:
        break;
    }
    return -EPROTO;
}
