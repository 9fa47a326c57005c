/*
 * The options of the handshake but those of metadata contexts: one function each. o->data holds
 * exactly the option's o->len bytes.
 */
#include "nbd/server_private.h"

#include "core/log.h"

/* 2.2 "Option types": options that carry no data refuse any. */
static enum option_next refuse_data(const struct option_call *o)
{
    return option_error(o, NBD_REP_ERR_INVALID, "this option takes no data");
}

enum option_next option_abort(const struct option_call *o)
{
    option_reply(o, NBD_REP_ACK, NULL, 0);
    return OPTION_CLOSE;
}

static void choose(struct connection *c, struct nbd_export *e)
{
    c->export = e;
    c->volume = e->volume;
    c->flags = handshake_flags(c, e);
    if (c->meta_export != e) {
        c->meta_export = NULL; /* the contexts were chosen for another export */
    }
}

enum option_next option_export_name(const struct option_call *o)
{
    struct connection *c = o->c;
    const struct nbd_text name = {.data = o->data, .len = o->len};
    struct nbd_export *e = o->len <= NBD_STRING_MAX ? server_export(c->server, &name) : NULL;
    if (!e || c->mode == NBD_MODE_EXTENDED) {
        return OPTION_HANG_UP; /* there is no error reply to this option */
    }
    choose(c, e);
    size_t len = NBD_EXPORT_NAME_REPLY_SIZE + (c->no_zeroes ? 0 : NBD_EXPORT_NAME_PADDING);
    uint8_t *p = out_add(c, len);
    memset(p, 0, len);
    nbd_put64(p, e->volume->size);
    nbd_put16(p + 8, c->flags);
    return OPTION_TRANSMIT;
}

static void list_one(const struct option_call *o, const struct nbd_export *e)
{
    uint8_t data[4 + 2 * NBD_STRING_MAX];
    size_t name = strlen(e->name);
    size_t description = e->description ? strlen(e->description) : 0;
    nbd_put32(data, (uint32_t)name);
    memcpy(data + 4, e->name, name);
    if (description > 0) {
        memcpy(data + 4 + name, e->description, description);
    }
    option_reply(o, NBD_REP_SERVER, data, 4 + name + description);
}

enum option_next option_list(const struct option_call *o)
{
    const struct nbd_server *s = o->c->server;
    if (o->len != 0) {
        return refuse_data(o);
    }
    if (!s->o.list) {
        return option_error(o, NBD_REP_ERR_POLICY, "exports are not listed here");
    }
    for (unsigned i = 0; i < s->exports_count; i++) {
        list_one(o, &s->exports[i]);
    }
    return option_reply(o, NBD_REP_ACK, NULL, 0);
}

enum option_next option_starttls(const struct option_call *o)
{
    if (o->len != 0) {
        return refuse_data(o);
    }
    return option_error(o, NBD_REP_ERR_UNSUP, "this server speaks plain text only");
}

static void info_text(const struct option_call *o, unsigned type, const char *text)
{
    uint8_t data[2 + NBD_STRING_MAX];
    size_t len = strlen(text);
    nbd_put16(data, (uint16_t)type);
    memcpy(data + 2, text, len);
    option_reply(o, NBD_REP_INFO, data, 2 + len);
}

static void send_infos(const struct option_call *o, const struct nbd_info_request *r,
                       const struct nbd_export *e)
{
    bool name = false, description = false;
    for (unsigned i = 0; i < r->count; i++) {
        uint16_t type = nbd_info_request_type(r, i);
        name |= type == NBD_INFO_NAME;
        description |= type == NBD_INFO_DESCRIPTION;
    }
    uint8_t data[NBD_INFO_BLOCK_SIZE_SIZE];
    nbd_info_export_encode(data, e->volume->size, handshake_flags(o->c, e));
    option_reply(o, NBD_REP_INFO, data, NBD_INFO_EXPORT_SIZE);
    if (name) {
        info_text(o, NBD_INFO_NAME, e->name);
    }
    if (description && e->description) {
        info_text(o, NBD_INFO_DESCRIPTION, e->description);
    }
    /* Said whether asked or not: it only helps. Anything goes (the volume bounces what is not
     * aligned), so the minimum is 1 and nobody must know it. */
    uint32_t preferred = e->volume->limits.preferred;
    nbd_info_block_size_encode(data, 1, preferred < 512 ? 4096 : preferred, PAYLOAD_MAX);
    option_reply(o, NBD_REP_INFO, data, NBD_INFO_BLOCK_SIZE_SIZE);
}

static enum option_next info_or_go(const struct option_call *o, struct nbd_export **ret)
{
    struct nbd_info_request r;
    if (nbd_info_request_decode(o->data, o->len, &r) < 0) {
        return option_error(
            o, NBD_REP_ERR_INVALID,
            "the lengths inside the option do not fit, or the name is too long or has a NUL");
    }
    struct nbd_export *e = server_export(o->c->server, &r.name);
    if (!e) {
        return option_error(o, NBD_REP_ERR_UNKNOWN, "there is no export of this name");
    }
    send_infos(o, &r, e);
    option_reply(o, NBD_REP_ACK, NULL, 0);
    *ret = e;
    return OPTION_AGAIN;
}

enum option_next option_info(const struct option_call *o)
{
    struct nbd_export *e = NULL;
    return info_or_go(o, &e);
}

enum option_next option_go(const struct option_call *o)
{
    struct nbd_export *e = NULL;
    enum option_next next = info_or_go(o, &e);
    if (!e) {
        return next;
    }
    choose(o->c, e);
    return OPTION_TRANSMIT;
}

enum option_next option_structured(const struct option_call *o)
{
    struct connection *c = o->c;
    if (c->server->o.no_structured) {
        return option_error(o, NBD_REP_ERR_UNSUP, "structured replies are switched off");
    }
    if (o->len != 0) {
        return refuse_data(o);
    }
    if (c->mode == NBD_MODE_EXTENDED) {
        return option_error(o, NBD_REP_ERR_EXT_HEADER_REQD, "extended headers are agreed already");
    }
    if (c->mode == NBD_MODE_STRUCTURED) {
        return option_error(o, NBD_REP_ERR_INVALID, "structured replies are agreed already");
    }
    c->mode = NBD_MODE_STRUCTURED;
    return option_reply(o, NBD_REP_ACK, NULL, 0);
}

enum option_next option_extended(const struct option_call *o)
{
    struct connection *c = o->c;
    if (c->server->o.no_extended || c->server->o.no_structured) {
        return option_error(o, NBD_REP_ERR_UNSUP, "extended headers are switched off");
    }
    if (o->len != 0) {
        return refuse_data(o);
    }
    if (c->mode == NBD_MODE_EXTENDED) {
        return option_error(o, NBD_REP_ERR_INVALID, "extended headers are agreed already");
    }
    c->mode = NBD_MODE_EXTENDED;
    return option_reply(o, NBD_REP_ACK, NULL, 0);
}
