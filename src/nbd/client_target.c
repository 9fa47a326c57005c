/*
 * The way to a server: an address out of a URI, or a program that is started for us; connecting
 * and greeting within a time limit.
 */
#include "nbd/client_private.h"

#include "core/size.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How long the end of a program that hangs up on us is waited for, so that its exit status can be
 * told. */
#define PROGRAM_END_WAIT_NS 2000000000ull

/* The words of a program are kept apart with a separator that nobody wants to read. */
static char *title_of(const char *name)
{
    char *title = strdup(name);
    for (char *c = title; c && *c; c++) {
        if (*c == PROGRAM_WORD_SEPARATOR) {
            *c = ' ';
        }
    }
    return title;
}

int nbd_target_open(struct nbd_target *t, const char *name, const struct endpoint_options *o,
                    struct error *err)
{
    *t = (struct nbd_target){.socket_buffer = o->socket_buffer, .title = title_of(name)};
    int r = 0;
    if (!t->title) {
        return error_set(err, ENOMEM, "no memory for a name");
    }
    if (name[0] == '[') {
        t->export_name = strdup("");
        r = t->export_name ? program_start(name, &t->program, &t->address, err)
                           : error_set(err, ENOMEM, "no memory for a name");
    } else {
        struct nbd_uri uri;
        r = nbd_uri_parse(name, &uri, err);
        if (r == 0) {
            t->address = uri.address;
            t->export_name = uri.export_name;
        }
    }
    if (r < 0) {
        error_endpoint(err, t->title);
        nbd_target_done(t);
    }
    return r;
}

void nbd_target_done(struct nbd_target *t)
{
    program_stop(t->program);
    free(t->export_name);
    free(t->title);
    *t = (struct nbd_target){0};
}

uint64_t nbd_deadline(uint64_t timeout_ns, uint64_t deadline_ns)
{
    return min_u64(worker_now_ns(worker_self()) + timeout_ns, deadline_ns);
}

int nbd_target_greet(struct nbd_target *t, uint64_t deadline_ns, struct nbd_handshake *h,
                     struct channel **ret, struct error *err)
{
    struct channel *ch;
    int r = socket_connect(&t->address, t->socket_buffer, deadline_ns, &ch, err);
    if (r == 0) {
        channel_set_deadline(ch, deadline_ns);
        r = nbd_handshake_start(h, ch, err);
        if (r < 0) {
            channel_close(ch);
        }
    }
    if (r < 0) {
        error_set(err, -r, "connecting");
        if (t->program && (r == -ECONNRESET || r == -ECONNREFUSED || r == -EPIPE)) {
            program_ended(t->program, PROGRAM_END_WAIT_NS, err);
        }
        return r;
    }
    if (t->program) {
        program_greeted(t->program);
    }
    *ret = ch;
    return 0;
}

void nbd_target_leave(struct nbd_handshake *h, struct channel *ch, int r)
{
    /* A server that broke the rules, or is not there any more, gets no farewell. */
    if (r != -EPROTO && r != -ECONNRESET && r != -ETIMEDOUT && r != -ECANCELED) {
        nbd_handshake_abort(h);
    }
    channel_close(ch);
}
