/*
 * LIST_META_CONTEXT and SET_META_CONTEXT (proto, "Metadata querying"). One context is known,
 * base:allocation; queries for other namespaces and other leaves are ignored, as they must be.
 */
#include "nbd/server_private.h"

#define BASE_ALLOCATION_ID 1 /* 0 is what LIST says */

/* What the queries ask for. "base:" alone lists all of the namespace, and selects nothing. */
static bool asks_for_base(struct nbd_meta_request *r, bool list)
{
    if (r->count == 0) {
        return list;
    }
    bool found = false;
    struct nbd_text query;
    while (nbd_meta_request_next(r, &query)) {
        found |= nbd_text_is(&query, NBD_CONTEXT_BASE_ALLOCATION);
        found |= list && nbd_text_is(&query, "base:");
    }
    return found;
}

static void send_context(const struct option_call *o, uint32_t id)
{
    static const char name[] = NBD_CONTEXT_BASE_ALLOCATION;
    uint8_t data[4 + sizeof(name) - 1];
    nbd_put32(data, id);
    memcpy(data + 4, name, sizeof(name) - 1);
    option_reply(o, NBD_REP_META_CONTEXT, data, sizeof(data));
}

static enum option_next meta(const struct option_call *o, bool list)
{
    struct connection *c = o->c;
    struct nbd_meta_request r;
    if (nbd_meta_request_decode(o->data, o->len, &r) < 0) {
        return option_error(
            o, NBD_REP_ERR_INVALID,
            "the lengths inside the option do not fit, or a name is too long or has a NUL");
    }
    const struct nbd_export *e = server_export(c->server, &r.name);
    if (!e) {
        return option_error(o, NBD_REP_ERR_UNKNOWN, "there is no export of this name");
    }
    bool base = asks_for_base(&r, list);
    if (base) {
        send_context(o, list ? 0 : BASE_ALLOCATION_ID);
    }
    if (base && !list) {
        c->meta_export = e;
    }
    return option_reply(o, NBD_REP_ACK, NULL, 0);
}

enum option_next option_list_meta(const struct option_call *o)
{
    return meta(o, true);
}

enum option_next option_set_meta(const struct option_call *o)
{
    o->c->meta_export = NULL; /* what was chosen before is gone, whatever comes of this */
    if (o->c->mode == NBD_MODE_SIMPLE) {
        return option_error(o, NBD_REP_ERR_INVALID, "structured replies come first");
    }
    return meta(o, false);
}
