/*
 * A file on an NFS server as a volume, by NFSv3 over TCP, in this process: no mount, no root.
 *
 * Every worker has a connection of its own (lane.c), so drives and workers share neither a socket
 * nor a loop. Writes are UNSTABLE and a flush is a COMMIT: NFS's own write-back cache. With FUA, or
 * with write-through, a write is FILE_SYNC.
 *
 * Limits: requests are cut at the server's rtmax and wtmax, and at 1 MiB, one after the other.
 * NFSv3 knows nothing of holes: zeros are written, and all of it is data. The size is what it was
 * when the file was opened. There are no locks (NLM): two writers are not kept apart.
 */
#include "core/size.h"
#include "volume/drivers.h"
#include "volume/nfs/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct nfsc_volume *nfs_of(struct volume *v)
{
    return (struct nfsc_volume *)v;
}

static struct nfsc_path by_lane(struct nfsc_volume *n)
{
    return (struct nfsc_path){.volume = n};
}

static int volume_nfs_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err)
{
    struct nfsc_volume *n = nfs_of(v);
    struct nfsc_path p = by_lane(n);
    uint8_t *to = buf;
    while (len > 0) {
        bool eof = false;
        uint32_t part = (uint32_t)min_u64(len, n->facts.read_max);
        int got = nfsc_read(&p, &n->handle, to, part, off, &eof, err);
        if (got < 0) {
            error_at(err, off);
            return got;
        }
        to += got;
        off += (unsigned)got;
        len -= (unsigned)got;
        if (eof && len > 0) {
            error_set(err, EIO, "the file ends here: it was %llu bytes long when it was opened",
                      (unsigned long long)v->size);
            error_at(err, off);
            return -EIO;
        }
    }
    return 0;
}

static int volume_nfs_write(struct volume *v, const void *buf, size_t len, uint64_t off,
                            unsigned flags, struct error *err)
{
    struct nfsc_volume *n = nfs_of(v);
    struct nfsc_path p = by_lane(n);
    const uint8_t *from = buf;
    bool stable = n->writethrough || (flags & WRITE_FUA);
    while (len > 0) {
        uint32_t part = (uint32_t)min_u64(len, n->facts.write_max);
        int put = nfsc_write(&p, &n->handle, from, part, off, stable, &n->stable, err);
        if (put < 0) {
            error_at(err, off);
            return put;
        }
        from += put;
        off += (unsigned)put;
        len -= (unsigned)put;
    }
    return 0;
}

static int volume_nfs_flush(struct volume *v, struct error *err)
{
    struct nfsc_path p = by_lane(nfs_of(v));
    return nfsc_commit(&p, &nfs_of(v)->handle, &nfs_of(v)->stable, err);
}

static int volume_nfs_resize(struct volume *v, uint64_t size, struct error *err)
{
    struct nfsc_path p = by_lane(nfs_of(v));
    int r = nfsc_set_size(&p, &nfs_of(v)->handle, size, err);
    if (r == 0) {
        v->size = size;
    }
    return r;
}

static unsigned volume_nfs_lanes(struct volume *v)
{
    return nfs_of(v)->server.url.connections;
}

static void volume_nfs_close(struct volume *v)
{
    struct nfsc_volume *n = nfs_of(v);
    nfsc_lanes_close(n);
    fmutex_done(&n->opening);
    pthread_mutex_destroy(&n->stable.lock);
    volume_done(v);
    free(n);
}

static void volume_nfs_describe(struct volume *v,
                                void (*say)(void *arg, const char *key, const char *value),
                                void *arg)
{
    const struct nfsc_volume *n = nfs_of(v);
    char text[320];
    snprintf(text, sizeof text, "%s port %u", n->server.shown, n->port);
    say(arg, "server", text);
    say(arg, "version", "3");
    snprintf(text, sizeof text, "%u", n->facts.read_max);
    say(arg, "read size", text);
    snprintf(text, sizeof text, "%u", n->facts.write_max);
    say(arg, "write size", text);
    snprintf(text, sizeof text, "%u", nfsc_lanes_open(nfs_of(v)));
    say(arg, "connections", text);
}

static const struct volume_ops nfs_ops = {
    .name = "nfs",
    .read = volume_nfs_read,
    .write = volume_nfs_write,
    .flush = volume_nfs_flush,
    .resize = volume_nfs_resize,
    .lanes = volume_nfs_lanes,
    .close = volume_nfs_close,
    .describe = volume_nfs_describe,
};

static struct nfsc_volume *new_volume(const char *name)
{
    struct nfsc_volume *n = calloc(1, sizeof *n);
    if (!n || volume_init(&n->v, &nfs_ops, name) < 0) {
        free(n);
        return NULL;
    }
    fmutex_init(&n->opening);
    pthread_mutex_init(&n->stable.lock, NULL);
    return n;
}

int nfsc_open(const char *name, const struct endpoint_options *o, struct volume **ret,
              struct error *err)
{
    struct nfsc_url url;
    int r = nfsc_url_parse(name, &url, err);
    if (r < 0) {
        return r;
    }
    struct nfsc_volume *n = new_volume(name);
    if (!n) {
        return error_set(err, ENOMEM, "no memory");
    }
    n->server.url = url;
    if (o->connections > 0) {
        n->server.url.connections = o->connections;
    }
    n->writethrough = o->cache == CACHE_WRITETHROUGH;
    n->v.caps = VOLUME_IS_COHERENT;
    if (o->writable) {
        n->v.caps |= VOLUME_CAN_WRITE | VOLUME_CAN_FLUSH | VOLUME_CAN_FUA | VOLUME_CAN_RESIZE;
    }
    r = nfsc_find(n, o, err);
    if (r < 0) {
        volume_nfs_close(&n->v);
        return r;
    }
    *ret = &n->v;
    return 0;
}
