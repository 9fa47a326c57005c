/*
 * The volume driver: its operations as NBD commands, its limits and capabilities out of what the
 * server advertised. volume.c has cut and aligned requests to the limits before they come here.
 *
 * Limits: as advertised; without that, any alignment and 32 MiB, which the protocol makes every
 * server take. Requests without payload may be as long as 32 bits allow (extended headers: 64).
 * But servers that advertise neither block sizes nor structured replies are of a generation of
 * which one (nbd-server up to 3.24) zeroes the wrong place beyond 64 MiB; those get 32 MiB at a
 * time.
 *
 * A flush covers the writes that were answered before it (proto, "Ordering of messages and
 * writes"), on every connection where the server is MULTI_CONN. With several lanes it is only sent
 * when the writes that were in flight at its start have been answered.
 */
#include "nbd/client_private.h"

#include "core/size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lengths of commands without payload in compact headers; a round number below 2^32. */
#define EFFECT_MAX_COMPACT 0xffff0000u

static struct nbd_client *client_of(struct volume *v)
{
    return (struct nbd_client *)v;
}

static int call(struct volume *v, struct nbd_call *c)
{
    return nbd_client_call(client_of(v), c);
}

/* --- writes in flight --- */

static bool several_lanes(const struct nbd_client *c)
{
    return c->facts.flags & NBD_FLAG_CAN_MULTI_CONN;
}

/* Takes the lock only when a flush waits, so that its look and its wait are one for us. */
static void write_ended(struct nbd_client *c, unsigned epoch)
{
    if (atomic_fetch_sub(&c->writes[epoch & 1], 1) == 1 && atomic_load(&c->draining)) {
        fmutex_lock(&c->flushing);
        fcond_broadcast(&c->drained);
        fmutex_unlock(&c->flushing);
    }
}

/* A write, zero or discard; counted so that a flush can wait for it. */
static int call_counted(struct volume *v, struct nbd_call *request)
{
    struct nbd_client *c = client_of(v);
    if (!(request->flags & NBD_CMD_FLAG_FUA)) {
        request->answered = &c->writes_answered;
    }
    if (!several_lanes(c)) {
        return call(v, request);
    }
    unsigned epoch = atomic_load(&c->epoch);
    atomic_fetch_add(&c->writes[epoch & 1], 1);
    while (atomic_load(&c->epoch) != epoch) { /* a flush came between: it does not wait for us */
        write_ended(c, epoch);
        epoch = atomic_load(&c->epoch);
        atomic_fetch_add(&c->writes[epoch & 1], 1);
    }
    int r = call(v, request);
    write_ended(c, epoch);
    return r;
}

/* Under `flushing`. */
static int wait_for_writes(struct nbd_client *c, struct error *err)
{
    int r = 0;
    atomic_store(&c->draining, true); /* pairs with the load in write_ended() */
    unsigned old = atomic_fetch_add(&c->epoch, 1) & 1;
    while (r == 0 && atomic_load(&c->writes[old]) > 0) {
        r = fcond_wait(&c->drained, &c->flushing, DEADLINE_NONE);
    }
    atomic_store(&c->draining, false);
    return r < 0 ? error_set(err, -r, "canceled before it was sent") : 0;
}

/* --- operations --- */

static int client_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err)
{
    struct nbd_call c = {
        .command = NBD_CMD_READ, .offset = off, .length = len, .buffer = buf, .err = err};
    return call(v, &c);
}

static int client_write(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                        struct error *err)
{
    struct nbd_call c = {
        .command = NBD_CMD_WRITE,
        .flags = flags & WRITE_FUA ? NBD_CMD_FLAG_FUA : 0,
        .offset = off,
        .length = len,
        .payload = buf,
        .err = err,
    };
    return call_counted(v, &c);
}

static int client_flush(struct volume *v, struct error *err)
{
    struct nbd_client *c = client_of(v);
    if (several_lanes(c)) {
        fmutex_lock(&c->flushing);
        int r = wait_for_writes(c, err);
        fmutex_unlock(&c->flushing);
        if (r < 0) {
            return r;
        }
    }
    return nbd_client_flush(c, err);
}

static int client_zero(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                       struct error *err)
{
    struct nbd_call c = {
        .command = NBD_CMD_WRITE_ZEROES,
        .flags = (uint16_t)((flags & ZERO_FUA ? NBD_CMD_FLAG_FUA : 0) |
                            (flags & ZERO_MAY_UNMAP ? 0 : NBD_CMD_FLAG_NO_HOLE) |
                            (flags & ZERO_NO_FALLBACK ? NBD_CMD_FLAG_FAST_ZERO : 0)),
        .offset = off,
        .length = len,
        .err = err,
    };
    return call_counted(v, &c);
}

static int client_discard(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                          struct error *err)
{
    struct nbd_call c = {.command = NBD_CMD_TRIM, .offset = off, .length = len, .err = err};
    return call_counted(v, &c);
}

static int client_cache(struct volume *v, uint64_t off, uint64_t len, struct error *err)
{
    struct nbd_call c = {.command = NBD_CMD_CACHE, .offset = off, .err = err};
    bool extended = client_of(v)->facts.extended;
    int r = 0;
    while (r == 0 && len > 0) {
        c.length = extended ? len : min_u64(len, EFFECT_MAX_COMPACT);
        r = call(v, &c);
        c = (struct nbd_call){.command = NBD_CMD_CACHE,
                              .offset = c.offset + c.length,
                              .length = c.length,
                              .err = err};
        len -= c.length;
    }
    return r;
}

static int client_extents(struct volume *v, uint64_t off, uint64_t len, struct extent *out,
                          size_t max, struct error *err)
{
    struct nbd_call c = {
        .command = NBD_CMD_BLOCK_STATUS,
        .flags = max == 1 ? NBD_CMD_FLAG_REQ_ONE : 0,
        .offset = off,
        .length = client_of(v)->facts.extended ? len : min_u64(len, EFFECT_MAX_COMPACT),
        .extents = out,
        .extents_max = max,
        .err = err,
    };
    int r = call(v, &c);
    return r < 0 ? r : (int)min_u64(c.extents_count, INT32_MAX);
}

static unsigned client_lanes(struct volume *v)
{
    struct nbd_client *c = client_of(v);
    return several_lanes(c) ? atomic_load(&c->lanes_max) : 1;
}

static void client_close(struct volume *v)
{
    struct nbd_client *c = client_of(v);
    fiber_shield();
    nbd_client_close_lanes(c);
    nbd_target_done(&c->target);
    fiber_unshield();
    nbd_facts_done(&c->facts);
    fcond_done(&c->drained);
    fmutex_done(&c->flushing);
    fmutex_done(&c->opening);
    volume_done(&c->v);
    free(c);
}

static void client_describe(struct volume *v,
                            void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    struct nbd_client_info info;
    char number[32];
    nbd_client_info(v, &info);
    say(arg, "export", info.export_name);
    if (info.description) {
        say(arg, "description", info.description);
    }
    say(arg, "replies", info.extended ? "extended" : info.structured ? "structured" : "simple");
    say(arg, "base:allocation", info.base_allocation ? "yes" : "no");
    say(arg, "multi-conn", info.flags & NBD_FLAG_CAN_MULTI_CONN ? "yes" : "no");
    snprintf(number, sizeof number, "%u", info.connections);
    say(arg, "connections", number);
}

static const struct volume_ops client_ops = {
    .name = "nbd",
    .read = client_read,
    .write = client_write,
    .flush = client_flush,
    .zero = client_zero,
    .discard = client_discard,
    .cache = client_cache,
    .extents = client_extents,
    .lanes = client_lanes,
    .close = client_close,
    .describe = client_describe,
};

/* --- opening --- */

struct flag_cap {
    uint16_t flag;
    enum volume_cap cap;
    bool writes; /* only where the volume is writable */
};

static const struct flag_cap flag_caps[] = {
    {NBD_FLAG_SEND_FLUSH, VOLUME_CAN_FLUSH, false},
    {NBD_FLAG_SEND_FUA, VOLUME_CAN_FUA, true},
    {NBD_FLAG_SEND_WRITE_ZEROES, VOLUME_CAN_ZERO, true},
    {NBD_FLAG_SEND_FAST_ZERO, VOLUME_CAN_FAST_ZERO, true},
    {NBD_FLAG_SEND_TRIM, VOLUME_CAN_DISCARD, true},
    {NBD_FLAG_SEND_CACHE, VOLUME_CAN_CACHE, false},
    {NBD_FLAG_CAN_MULTI_CONN, VOLUME_IS_COHERENT, false},
    {NBD_FLAG_ROTATIONAL, VOLUME_IS_ROTATIONAL, false},
};

static void set_caps(struct nbd_client *c, bool writable)
{
    c->v.caps = writable ? VOLUME_CAN_WRITE : 0;
    for (size_t i = 0; i < sizeof flag_caps / sizeof *flag_caps; i++) {
        if ((c->facts.flags & flag_caps[i].flag) && (writable || !flag_caps[i].writes)) {
            c->v.caps |= flag_caps[i].cap;
        }
    }
    if (c->facts.base_allocation) {
        c->v.caps |= VOLUME_CAN_EXTENTS;
    }
}

static void set_limits(struct nbd_client *c)
{
    const struct nbd_facts *f = &c->facts;
    struct volume_limits *l = &c->v.limits;
    *l = (struct volume_limits){.min = 1, .preferred = 4096, .max = NBD_PAYLOAD_DEFAULT_MAX};
    if (f->block_min > 0) {
        l->min = f->block_min;
        l->preferred = (uint32_t)min_u64(max_u64(f->block_preferred, 512), VOLUME_TRANSFER_MAX);
        /* All bits set means no limit, yet no server is known to take more than it must. */
        l->max = f->block_max == UINT32_MAX ? NBD_PAYLOAD_DEFAULT_MAX : f->block_max;
        l->max = (uint32_t)align_down(min_u64(l->max, VOLUME_TRANSFER_MAX), l->min);
    }
    if (f->block_min == 0 && !f->structured) {
        l->max_zero = NBD_PAYLOAD_DEFAULT_MAX;
    } else if (!f->extended) {
        l->max_zero = EFFECT_MAX_COMPACT;
    }
}

static int open_first(struct nbd_client *c, const struct endpoint_options *o, struct error *err)
{
    uint64_t start = worker_now_ns(worker_self());
    uint64_t deadline = nbd_deadline(NBD_CONNECT_TIMEOUT_NS, o->connect_deadline_ns);
    int r = nbd_client_open_lane(c, deadline, err);
    if (r < 0) {
        return r;
    }
    uint64_t took = worker_now_ns(worker_self()) - start;
    c->lane_timeout_ns = max_u64(NBD_LANE_TIMEOUT_LEAST_NS, took * NBD_LANE_TIMEOUT_FACTOR);
    if (o->writable && (c->facts.flags & NBD_FLAG_READ_ONLY)) {
        return error_set(err, EROFS, "the server exports it for reading only");
    }
    c->v.size = c->facts.size;
    c->reconnect_ns = o->reconnect_ns;
    if (c->facts.flags & NBD_FLAG_CAN_MULTI_CONN) {
        c->lanes_max = o->connections > 0 ? (unsigned)min_u64(o->connections, WORKERS_MAX)
                                          : NBD_LANES_DEFAULT;
    }
    set_caps(c, o->writable);
    set_limits(c);
    return 0;
}

static int client_open(const char *name, const struct endpoint_options *o, struct volume **ret,
                       struct error *err)
{
    struct nbd_client *c = calloc(1, sizeof *c);
    if (!c) {
        return error_set(err, ENOMEM, "no memory for a client");
    }
    int r = nbd_target_open(&c->target, name, o, err);
    if (r < 0) {
        free(c);
        return r;
    }
    fmutex_init(&c->opening);
    fmutex_init(&c->flushing);
    fcond_init(&c->drained);
    r = volume_init(&c->v, &client_ops, c->target.title);
    if (r == 0) {
        r = open_first(c, o, err);
    }
    if (r < 0) {
        error_set(err, -r, "opening it");
        error_endpoint(err, c->target.title);
        client_close(&c->v);
        return r;
    }
    *ret = &c->v;
    return 0;
}

void nbd_client_register(void)
{
    static const char *const program_schemes[] = {"[", NULL};
    static const struct endpoint_driver uris = {nbd_uri_schemes, client_open};
    static const struct endpoint_driver programs = {program_schemes, client_open};
    endpoint_register(&uris);
    endpoint_register(&programs);
}

/* --- what `info` asks --- */

bool nbd_client_is(const struct volume *v)
{
    return v && v->ops == &client_ops;
}

static void count_lane(struct nbd_connection *lane, void *arg)
{
    struct nbd_client_info *info = arg;
    info->connections++;
    if (atomic_load(&lane->buried)) {
        info->send_buffer_wanted = lane->send_buffer_wanted;
        info->send_buffer_granted = lane->send_buffer_granted;
        info->receives += lane->receives;
    } else {
        info->send_buffer_wanted = lane->ch->send_buffer_wanted;
        info->send_buffer_granted = lane->ch->send_buffer_granted;
        info->receives += lane->ch->receives;
    }
}

void nbd_client_info(struct volume *v, struct nbd_client_info *ret)
{
    struct nbd_client *c = client_of(v);
    const struct nbd_facts *f = &c->facts;
    *ret = (struct nbd_client_info){
        .flags = f->flags,
        .structured = f->structured,
        .extended = f->extended,
        .base_allocation = f->base_allocation,
        .export_name = f->name ? f->name : c->target.export_name,
        .description = f->description,
        .block_min = f->block_min,
        .block_preferred = f->block_preferred,
        .block_max = f->block_max,
    };
    nbd_client_each_lane(c, count_lane, ret);
}
