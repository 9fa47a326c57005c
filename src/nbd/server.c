/*
 * The NBD server as a whole: exports, listeners, who is connected, and how it ends.
 *
 * Threads: connections live on many workers. The lists are guarded by s->lock, a plain lock that is
 * held for a few instructions; whatever must run on a connection's own worker is posted there.
 * s->users counts everything that still holds a pointer to the server; nbd_server_finish() waits
 * for it to become 0.
 */
#include "nbd/server_private.h"

#include "channel/sizing.h"
#include "core/log.h"
#include "core/worker.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define HANDSHAKE_TIMEOUT_NS 10000000000ull
#define CONNECTION_MEMORY (128ull << 20)
#define CONNECTION_REQUESTS 256
#define REFUSED_MAX 16 /* clients beyond the limit that are told so; more are cut at once */

struct server_listener {
    struct nbd_server *server;
    struct server_listener *next;
    struct listener listener;
    struct worker *worker;
    struct workers *workers; /* NULL: all on worker */
    struct fiber *fiber;
    bool done;
};

void nbd_server_options_init(struct nbd_server_options *o)
{
    *o = (struct nbd_server_options){
        .handshake_timeout_ns = HANDSHAKE_TIMEOUT_NS,
        .connection_memory = CONNECTION_MEMORY,
        .connection_requests = CONNECTION_REQUESTS,
        .socket_buffer = SOCKET_BUFFER_AUTO,
        .list = true,
        .persistent = true,
    };
}

int nbd_server_new(const struct nbd_server_options *o, struct nbd_server **ret, struct error *err)
{
    if (o->connection_requests == 0 || o->connection_memory == 0) {
        return error_set(err, EINVAL, "a connection needs at least one request and some memory");
    }
    struct nbd_server *s = calloc(1, sizeof(*s));
    if (!s) {
        return error_set(err, ENOMEM, "no memory for the server");
    }
    s->o = *o;
    pthread_mutex_init(&s->lock, NULL);
    fsem_init(&s->event, 1);
    s->event.free = 0;
    *ret = s;
    return 0;
}

static bool text_fits(const char *text)
{
    return !text || strlen(text) <= NBD_STRING_MAX;
}

int nbd_server_add_export(struct nbd_server *s, struct volume *v,
                          const struct nbd_export_options *o, struct error *err)
{
    if (!text_fits(o->name) || !text_fits(o->description)) {
        return error_set(err, EINVAL, "export names and descriptions have at most %d bytes",
                         NBD_STRING_MAX);
    }
    for (unsigned i = 0; i < s->exports_count; i++) {
        if (strcmp(s->exports[i].name, o->name) == 0) {
            return error_set(err, EEXIST, "export \"%s\" is given twice", o->name);
        }
    }
    struct nbd_export *exports = reallocarray(s->exports, s->exports_count + 1, sizeof(*exports));
    if (!exports) {
        return error_set(err, ENOMEM, "no memory for an export");
    }
    s->exports = exports;
    struct nbd_export e = {
        .server = s,
        .volume = v,
        .name = strdup(o->name),
        .description = o->description ? strdup(o->description) : NULL,
        .read_only = o->read_only || !volume_can(v, VOLUME_CAN_WRITE),
    };
    if (!e.name || (o->description && !e.description)) {
        free(e.name);
        free(e.description);
        return error_set(err, ENOMEM, "no memory for an export");
    }
    s->exports[s->exports_count++] = e;
    return 0;
}

struct nbd_export *server_export(struct nbd_server *s, const struct nbd_text *name)
{
    for (unsigned i = 0; i < s->exports_count; i++) {
        if (nbd_text_is(name, s->exports[i].name)) {
            return &s->exports[i];
        }
    }
    /* The empty name is the default export, which a single one is by nature. */
    return name->len == 0 && s->exports_count == 1 ? &s->exports[0] : NULL;
}

/* With the lock held: whoever waits for the server looks again. */
static void wake_waiter(struct nbd_server *s)
{
    if (!s->event_pending) {
        s->event_pending = true;
        fsem_give(&s->event, 1);
    }
}

static void server_use(struct nbd_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->users++;
    pthread_mutex_unlock(&s->lock);
}

static void server_unuse(struct nbd_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->users--;
    wake_waiter(s);
    pthread_mutex_unlock(&s->lock);
}

void server_connection_add(struct nbd_server *s, struct connection *c)
{
    pthread_mutex_lock(&s->lock);
    c->prev = NULL;
    c->next = s->connections;
    if (c->next) {
        c->next->prev = c;
    }
    s->connections = c;
    s->gone.connections++;
    pthread_mutex_unlock(&s->lock);
}

static void add_counters(struct nbd_server_stats *to, const struct counters *from)
{
    to->requests += __atomic_load_n(&from->requests, __ATOMIC_RELAXED);
    to->errors += __atomic_load_n(&from->errors, __ATOMIC_RELAXED);
    to->bytes_read += __atomic_load_n(&from->read, __ATOMIC_RELAXED);
    to->bytes_written += __atomic_load_n(&from->written, __ATOMIC_RELAXED);
    to->bytes_lent += __atomic_load_n(&from->lent, __ATOMIC_RELAXED);
}

void server_connection_gone(struct nbd_server *s, struct connection *c)
{
    pthread_mutex_lock(&s->lock);
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        s->connections = c->next;
    }
    if (c->next) {
        c->next->prev = c->prev;
    }
    add_counters(&s->gone, &c->count);
    /* A probe of the port, or a listing, does not count as the client of a one-shot server. */
    s->first_gone |= c->export != NULL && !c->refused;
    wake_waiter(s);
    pthread_mutex_unlock(&s->lock);
}

void nbd_server_stats(const struct nbd_server *s, struct nbd_server_stats *ret)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&s->lock;
    pthread_mutex_lock(lock);
    *ret = s->gone;
    ret->connections_now = 0;
    for (const struct connection *c = s->connections; c; c = c->next) {
        add_counters(ret, &c->count);
        ret->connections_now++;
    }
    pthread_mutex_unlock(lock);
}

/* --- connections --- */

struct single {
    struct connection *c;
    int ret;
};

static void run_single(void *arg)
{
    struct single *one = arg;
    one->ret = connection_run(one->c);
}

int nbd_server_connection(struct nbd_server *s, struct channel *ch)
{
    struct single one = {.c = connection_new(s, ch, false)};
    if (!one.c) {
        channel_close(ch);
        return -ENOMEM;
    }
    server_use(s);
    /* In a fiber of its own: stopping cancels it, and the caller wants to go on afterwards. */
    struct fgroup group;
    fgroup_init(&group);
    int ret = fgroup_spawn(&group, run_single, &one);
    if (ret < 0) {
        connection_free(one.c);
    } else {
        fgroup_wait(&group, true);
        ret = one.ret;
    }
    server_unuse(s);
    return ret;
}

struct arrival {
    struct nbd_server *server;
    int fd;
    bool refused;
};

static void client_gone(struct nbd_server *s, bool refused)
{
    pthread_mutex_lock(&s->lock);
    s->clients--;
    s->refused -= refused;
    s->users--;
    wake_waiter(s);
    pthread_mutex_unlock(&s->lock);
}

static void arrival_main(void *arg)
{
    struct arrival a = *(struct arrival *)arg;
    free(arg);
    struct channel *ch = NULL;
    struct error err;
    error_clear(&err);
    if (channel_adopt(a.fd, a.fd, a.server->o.socket_buffer, &ch, &err) < 0) {
        char text[ERROR_TEXT_MAX + ERROR_ENDPOINT_MAX];
        log_warning("a client can't be served: %s", error_format(&err, text, sizeof(text)));
    } else {
        struct connection *c = connection_new(a.server, ch, a.refused);
        if (c) {
            connection_run(c);
        } else {
            log_warning("no memory for a client");
            channel_close(ch);
        }
    }
    client_gone(a.server, a.refused);
}

/* Counts a client in. false: it is one too many even to be told so. */
static bool admit(struct nbd_server *s, bool *refused)
{
    bool ok = true;
    pthread_mutex_lock(&s->lock);
    unsigned served = s->clients - s->refused;
    *refused = s->o.max_connections > 0 && served >= s->o.max_connections;
    if (*refused && s->refused >= REFUSED_MAX) {
        ok = false;
    } else {
        s->clients++;
        s->refused += *refused;
        s->users++;
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static void welcome(struct nbd_server *s, struct worker *w, int fd)
{
    bool refused;
    if (!admit(s, &refused)) {
        close(fd);
        return;
    }
    struct arrival *a = malloc(sizeof(*a));
    if (a) {
        *a = (struct arrival){.server = s, .fd = fd, .refused = refused};
        if (worker_post(w, arrival_main, a) == 0) {
            return;
        }
    }
    free(a);
    close(fd);
    client_gone(s, refused);
}

/* --- listeners --- */

static void accept_main(void *arg)
{
    struct server_listener *l = arg;
    struct nbd_server *s = l->server;
    l->fiber = fiber_self();
    unsigned turn = 0;
    while (!server_stopping(s)) {
        int fd = listener_accept(&l->listener);
        if (fd < 0) {
            if (fd != -ECANCELED) {
                log_error("accepting clients has failed: %s", strerrordesc_np(-fd));
            }
            break;
        }
        struct worker *w = l->worker;
        if (l->workers) {
            w = workers_get(l->workers, turn++ % workers_count(l->workers));
        }
        welcome(s, w, fd);
    }
    listener_close(&l->listener);
    l->done = true;
    server_unuse(s);
}

int nbd_server_listen(struct nbd_server *s, struct listener *l, struct workers *ws,
                      struct error *err)
{
    struct server_listener *sl = calloc(1, sizeof(*sl));
    if (!sl) {
        listener_close(l);
        return error_set(err, ENOMEM, "no memory for a listener");
    }
    sl->server = s;
    sl->worker = worker_self();
    sl->workers = ws;
    sl->listener = *l;
    int ret = listener_attach(&sl->listener);
    if (ret < 0) {
        listener_close(&sl->listener);
        free(sl);
        return error_set(err, -ret, "waiting for clients");
    }
    server_use(s);
    pthread_mutex_lock(&s->lock);
    sl->next = s->listeners;
    s->listeners = sl;
    pthread_mutex_unlock(&s->lock);
    ret = fiber_spawn(accept_main, sl, &sl->fiber);
    if (ret < 0) {
        sl->done = true;
        listener_close(&sl->listener);
        server_unuse(s);
        return error_set(err, -ret, "starting to accept clients");
    }
    return 0;
}

/* --- the end --- */

/* On each worker that has something of ours: arg is the server. */
static void stop_here(void *arg)
{
    struct nbd_server *s = arg;
    struct worker *w = worker_self();
    pthread_mutex_lock(&s->lock);
    /* Neither call waits. */
    for (struct connection *c = s->connections; c; c = c->next) {
        if (c->worker == w) {
            connection_stop(c);
        }
    }
    for (struct server_listener *l = s->listeners; l; l = l->next) {
        if (l->worker == w && !l->done) {
            fiber_cancel(l->fiber);
        }
    }
    pthread_mutex_unlock(&s->lock);
    server_unuse(s);
}

static void cut_here(void *arg)
{
    struct nbd_server *s = arg;
    struct worker *w = worker_self();
    pthread_mutex_lock(&s->lock);
    for (struct connection *c = s->connections; c; c = c->next) {
        if (c->worker == w) {
            connection_fail(c, -ECANCELED);
            fiber_cancel(c->main);
        }
    }
    pthread_mutex_unlock(&s->lock);
    server_unuse(s);
}

/* Posts fn once to each worker that has a connection or a listener. With the lock held. */
static void post_everywhere(struct nbd_server *s, worker_fn *fn)
{
    bool done[WORKERS_MAX] = {false};
    struct connection *c = s->connections;
    struct server_listener *l = s->listeners;
    while (c || l) {
        struct worker *w = c ? c->worker : l->worker;
        bool skip = !c && l->done;
        if (c) {
            c = c->next;
        } else {
            l = l->next;
        }
        if (skip || done[worker_index(w)]) {
            continue;
        }
        done[worker_index(w)] = true;
        s->users++;
        if (worker_post(w, fn, s) < 0) {
            s->users--;
            log_error("no memory to stop a worker's connections");
        }
    }
}

void nbd_server_stop(struct nbd_server *s, uint64_t grace_ns)
{
    pthread_mutex_lock(&s->lock);
    if (!s->stopping) {
        s->grace_ns = grace_ns;
        /* Pairs with the loads in server_stopping(): a connection that misses our post, because it
         * is not in the list yet, sees this. */
        __atomic_store_n(&s->stopping, true, __ATOMIC_RELEASE);
        post_everywhere(s, stop_here);
    }
    wake_waiter(s);
    pthread_mutex_unlock(&s->lock);
}

typedef bool wait_fn(const struct nbd_server *s);

static bool may_end(const struct nbd_server *s)
{
    if (s->stopping || (s->o.one_shot && s->first_gone)) {
        return true;
    }
    return !s->o.persistent && s->first_gone && s->clients == 0;
}

static bool unused(const struct nbd_server *s)
{
    return s->users == 0;
}

/* Parks until done(s), which is asked with the lock held. */
static void wait_until(struct nbd_server *s, wait_fn *done)
{
    int ret = 0;
    pthread_mutex_lock(&s->lock);
    while (!done(s) && ret == 0) {
        pthread_mutex_unlock(&s->lock);
        ret = fsem_take(&s->event, 1);
        pthread_mutex_lock(&s->lock);
        s->event_pending = false;
    }
    pthread_mutex_unlock(&s->lock);
}

void nbd_server_wait(struct nbd_server *s)
{
    wait_until(s, may_end);
}

/* When the grace is over what is left is cut. */
static void cut_late(void *arg)
{
    struct nbd_server *s = arg;
    if (fiber_sleep_ns(s->grace_ns) == 0) {
        pthread_mutex_lock(&s->lock);
        post_everywhere(s, cut_here);
        pthread_mutex_unlock(&s->lock);
    }
}

static void free_listeners(struct nbd_server *s)
{
    while (s->listeners) {
        struct server_listener *l = s->listeners;
        s->listeners = l->next;
        free(l);
    }
}

static int flush_exports(struct nbd_server *s, struct error *err)
{
    int ret = 0;
    for (unsigned i = 0; i < s->exports_count; i++) {
        struct nbd_export *e = &s->exports[i];
        if (!__atomic_load_n(&e->written, __ATOMIC_RELAXED)) {
            continue;
        }
        e->written = false;
        int failed = export_flush(e, err);
        if (failed < 0 && ret == 0) {
            error_endpoint(err, e->volume->endpoint);
            ret = failed;
        }
    }
    return ret;
}

int nbd_server_finish(struct nbd_server *s, struct error *err)
{
    nbd_server_stop(s, 0);
    fiber_shield();
    struct fgroup cutter;
    fgroup_init(&cutter);
    if (fgroup_spawn(&cutter, cut_late, s) < 0) {
        cut_late(s); /* no memory for a fiber: all have the whole grace then */
    }
    wait_until(s, unused);
    fgroup_cancel(&cutter);
    fgroup_wait(&cutter, false);
    free_listeners(s);
    int ret = flush_exports(s, err);
    fiber_unshield();
    return ret;
}

void nbd_server_free(struct nbd_server *s)
{
    if (!s) {
        return;
    }
    free_listeners(s);
    for (unsigned i = 0; i < s->exports_count; i++) {
        free(s->exports[i].name);
        free(s->exports[i].description);
    }
    free(s->exports);
    fsem_done(&s->event);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
