/*
 * What a server offers: its exports (LIST) and an export's metadata contexts (LIST_META_CONTEXT),
 * each on a connection of its own that is given up politely afterwards. Streamed: nothing is kept.
 */
#include "nbd/client_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef int take_fn(struct nbd_handshake *h, void *arg, struct error *err);

/* Sends an option and hands each reply of one type to take(). How many there were, or -errno. */
static int each_reply(struct nbd_handshake *h, uint32_t option, const void *data, size_t len,
                      uint32_t type, take_fn *take, void *arg, struct error *err)
{
    int n = 0;
    int r = nbd_handshake_option(h, option, data, len, err);
    while (r >= 0 && (r = nbd_handshake_reply(h, type, err)) > 0) {
        if (n++ == NBD_OPTION_REPLIES_MAX) {
            return error_set(err, EPROTO, "the server answers %s without end",
                             nbd_option_name(option));
        }
        r = take(h, arg, err);
    }
    return r < 0 ? r : n;
}

struct ask {
    const char *export_name;
    void (*say_export)(void *arg, const char *name, const char *description);
    void (*say_context)(void *arg, const char *context);
    void *arg;
};

static int take_export(struct nbd_handshake *h, void *arg, struct error *err)
{
    const struct ask *a = arg;
    struct nbd_text name, description;
    if (nbd_server_reply_decode(h->data, h->reply.length, &name, &description) < 0) {
        return error_set(err, EPROTO, "the server's LIST reply is malformed");
    }
    char n[NBD_STRING_MAX + 1], d[NBD_STRING_MAX + 1];
    memcpy(n, name.data, name.len);
    n[name.len] = '\0';
    memcpy(d, description.data, description.len);
    d[description.len] = '\0';
    a->say_export(a->arg, n, description.len > 0 ? d : NULL);
    return 0;
}

static int take_context(struct nbd_handshake *h, void *arg, struct error *err)
{
    const struct ask *a = arg;
    struct nbd_text name;
    uint32_t id;
    if (nbd_context_reply_decode(h->data, h->reply.length, &id, &name) < 0) {
        return error_set(err, EPROTO, "the server's META_CONTEXT reply is malformed");
    }
    char n[NBD_STRING_MAX + 1];
    memcpy(n, name.data, name.len);
    n[name.len] = '\0';
    a->say_context(a->arg, n);
    return 0;
}

static int list_exports(struct nbd_handshake *h, const struct ask *a, struct error *err)
{
    return each_reply(h, NBD_OPT_LIST, NULL, 0, NBD_REP_SERVER, take_export,
                      &(struct ask){.say_export = a->say_export, .arg = a->arg}, err);
}

static int list_contexts(struct nbd_handshake *h, const struct ask *a, struct error *err)
{
    uint8_t data[NBD_STRING_MAX + 64];
    int r = nbd_handshake_headers(h, err);
    if (r < 0) {
        return r;
    }
    if (!h->structured) {
        return error_set(err, EOPNOTSUPP,
                         "the server has no structured replies, and so no "
                         "metadata contexts");
    }
    size_t len = nbd_meta_request_encode(data, a->export_name, NULL, 0);
    return each_reply(h, NBD_OPT_LIST_META_CONTEXT, data, len, NBD_REP_META_CONTEXT, take_context,
                      &(struct ask){.say_context = a->say_context, .arg = a->arg}, err);
}

static int ask(struct nbd_target *t, const struct endpoint_options *o, const struct ask *a,
               struct error *err)
{
    struct nbd_handshake *h = malloc(sizeof *h);
    struct channel *ch;
    if (!h) {
        return error_set(err, ENOMEM, "no memory for a handshake");
    }
    /* Contexts are asked for beside an open volume, and the server may take one client only. */
    uint64_t timeout_ns = a->say_export ? NBD_CONNECT_TIMEOUT_NS : NBD_LANE_TIMEOUT_LEAST_NS;
    uint64_t deadline = nbd_deadline(timeout_ns, o->connect_deadline_ns);
    int r = nbd_target_greet(t, deadline, h, &ch, err);
    if (r == 0) {
        if (!h->fixed) {
            r = error_set(err, EOPNOTSUPP,
                          "the server is not fixed newstyle and can't list "
                          "anything");
        } else {
            r = a->say_export ? list_exports(h, a, err) : list_contexts(h, a, err);
        }
        nbd_target_leave(h, ch, r);
    }
    free(h);
    return r;
}

static int open_and_ask(const char *uri, const struct endpoint_options *o, struct ask *a,
                        struct error *err)
{
    struct nbd_target t;
    struct endpoint_options defaults;
    if (!o) {
        endpoint_options_init(&defaults);
        o = &defaults;
    }
    int r = nbd_target_open(&t, uri, o, err);
    if (r < 0) {
        return r;
    }
    a->export_name = t.export_name;
    r = ask(&t, o, a, err);
    if (r < 0) {
        error_endpoint(err, t.title);
    }
    nbd_target_done(&t);
    return r;
}

int nbd_client_list(const char *uri, const struct endpoint_options *o,
                    void (*say)(void *arg, const char *name, const char *description), void *arg,
                    struct error *err)
{
    return open_and_ask(uri, o, &(struct ask){.say_export = say, .arg = arg}, err);
}

int nbd_client_contexts(const char *uri, const struct endpoint_options *o,
                        void (*say)(void *arg, const char *context), void *arg, struct error *err)
{
    return open_and_ask(uri, o, &(struct ask){.say_context = say, .arg = arg}, err);
}
