/*
 * Requests that outlive their connection.
 *
 * Where the endpoint is to be reconnected to, a request whose connection is lost, or that is
 * answered with ESHUTDOWN, is sent again from its start on a new one: all of NBD's requests may be
 * repeated as long as nobody else writes the same blocks. The export must be the same (size, flags,
 * block sizes). Attempts are PAUSE_FIRST_NS apart, then twice as long each, up to PAUSE_MAX_NS,
 * until the request has waited as long as it may. A server that lies is not talked to again.
 *
 * What was written, answered and not flushed before the loss may be gone: the server may have died
 * with it. Only the caller still has those bytes, or not; so the next flush fails and says so. An
 * endpoint that is only read loses nothing.
 */
#include "nbd/client_private.h"

#include "core/log.h"
#include "core/size.h"

#include <errno.h>

#define PAUSE_FIRST_NS 50000000ull
#define PAUSE_MAX_NS 4000000000ull

static void note_loss(struct nbd_client *c)
{
    if (atomic_load(&c->writes_answered) != atomic_load(&c->writes_flushed)) {
        atomic_store(&c->writes_lost, true);
    }
}

static bool may_be_repeated(const struct nbd_call *call, int r)
{
    return r < 0 && r != -ECANCELED && (call->lost || r == -ESHUTDOWN) && !fiber_canceled();
}

int nbd_client_call(struct nbd_client *c, struct nbd_call *call)
{
    const struct nbd_call first = *call;
    int r = nbd_client_call_once(c, call);
    if (c->reconnect_ns == 0 || !may_be_repeated(call, r)) {
        return r;
    }
    uint64_t give_up = nbd_deadline(c->reconnect_ns, DEADLINE_NONE), pause = PAUSE_FIRST_NS;
    log_info("%s: the connection is lost; trying again", c->target.title);
    while (may_be_repeated(call, r)) {
        note_loss(c);
        if (nbd_deadline(0, DEADLINE_NONE) >= give_up) {
            error_prefix(call->err, "given up after %llu seconds",
                         (unsigned long long)(c->reconnect_ns / 1000000000));
            break;
        }
        if (fiber_sleep_until(nbd_deadline(pause, give_up)) < 0) {
            break;
        }
        pause = min_u64(pause * 2, PAUSE_MAX_NS);
        error_clear(call->err);
        *call = first;
        r = nbd_client_call_once(c, call);
    }
    return r;
}

static int lost_writes(struct error *err)
{
    return error_set(err, EIO,
                     "the connection was lost after writes that had not been flushed: they may be "
                     "gone");
}

int nbd_client_flush(struct nbd_client *c, struct error *err)
{
    struct nbd_call call = {.command = NBD_CMD_FLUSH, .err = err};
    unsigned long long answered = atomic_load(&c->writes_answered);
    if (atomic_load(&c->writes_lost)) {
        return lost_writes(err);
    }
    int r = nbd_client_call(c, &call);
    if (r < 0) {
        return r;
    }
    if (atomic_load(&c->writes_lost)) { /* while it was on its way */
        return lost_writes(err);
    }
    unsigned long long flushed = atomic_load(&c->writes_flushed);
    while (flushed < answered &&
           !atomic_compare_exchange_weak(&c->writes_flushed, &flushed, answered)) {
    }
    return 0;
}
