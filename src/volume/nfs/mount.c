/*
 * From a URL to a file: resolve the host's name, ask the portmapper for the ports that the URL does
 * not name, mount the folder, look the file up, make it if that was asked for.
 *
 * The whole folder is mounted, as one can have an export below another; where the server does not
 * export it by that name (auto-traverse-mounts=0 leaves it at that) the folders above are tried,
 * and what is left of the path is looked up. Symbolic links are not followed: they mean something
 * on the client.
 *
 * Calls are not repeated here when the connection is lost: making a file twice is not the same as
 * making it once.
 */
#include "core/log.h"
#include "core/size.h"
#include "volume/drivers.h"
#include "volume/nfs/procedures.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PORTMAPPER_PORT 111
#define PROGRAM_NFS 100003u
#define PROGRAM_MOUNT 100005u
#define VERSION 3u
#define HEAD_BYTES 512u

struct search {
    struct nfsc_volume *n;
    const struct endpoint_options *o;
    uint64_t deadline_ns;      /* for connecting */
    struct nfsc_handle folder; /* that the file is in */
    bool made;
};

/* --- connections by port --- */

static int open_path(struct search *s, uint16_t port, struct nfsc_path *p, struct error *err)
{
    *p = (struct nfsc_path){.volume = s->n, .timeout_ns = s->n->server.url.request_timeout_ns};
    return nfsc_connection_open(&s->n->server, port, s->deadline_ns, &p->connection, err);
}

static int ask_port(struct search *s, uint32_t program, const char *parameter, struct error *err)
{
    struct nfsc_path p;
    int r = open_path(s, PORTMAPPER_PORT, &p, err);
    if (r == 0) {
        r = nfsc_getport(&p, program, VERSION, err);
        nfsc_connection_close(p.connection);
    }
    if (r < 0) {
        error_prefix(err, "asking for a port that %s= does not name", parameter);
    }
    return r;
}

/* --- the folder --- */

static bool not_exported(uint32_t code)
{
    return code == ENOENT || code == EACCES || code == ENOTDIR || code == EINVAL || code == EPERM;
}

/* What of url.folder was mounted; *rest is what is not. */
static int mount_some(struct search *s, struct nfsc_path *p, const char **rest, struct error *err)
{
    const struct nfsc_url *u = &s->n->server.url;
    char name[NFSC_PATH_MAX + 1];
    struct error first = {0};
    size_t len = strlen(u->folder);
    for (;;) {
        struct error failure = {0};
        memcpy(name, u->folder, len);
        name[len] = '\0';
        int r = nfsc_mnt(p, len > 0 ? name : "/", &s->folder, &failure);
        if (r == 0) {
            *rest = u->folder + (len == 1 ? 0 : len);
            return 0;
        }
        if (first.code == 0) {
            first = failure;
        }
        if (!u->parents || !not_exported((uint32_t)-r) || len <= 1) {
            char shown[256];
            log_escape(shown, sizeof shown, u->folder, strlen(u->folder));
            return error_set(err, first.code, "cannot mount %s: %s", shown, first.text);
        }
        while (len > 0 && u->folder[len - 1] != '/') {
            len--;
        }
        len -= len > 1; /* the slash, but not that of "/" */
    }
}

static int walk(struct search *s, struct nfsc_path *p, const char *rest, struct error *err)
{
    char name[NFSC_NAME_MAX + 1];
    while (*rest != '\0') {
        size_t len = strcspn(rest, "/");
        if (len > 0) {
            memcpy(name, rest, len); /* names are checked in url.c */
            name[len] = '\0';
            int r = nfsc_lookup(p, &s->folder, name, &s->folder, err);
            if (r < 0) {
                return error_prefix(err, "looking for a folder");
            }
        }
        rest += len + (rest[len] == '/');
    }
    return 0;
}

/* --- the file --- */

static int create(struct search *s, struct nfsc_path *p, struct error *err)
{
    struct nfsc_volume *n = s->n;
    const char *name = n->server.url.file;
    bool has_handle = false;
    /* GUARDED also where an old file would do: only then is it known that it is new. */
    int r = nfsc_create(p, &s->folder, name, true, &n->handle, &has_handle, err);
    if (r == 0) {
        s->made = true;
        r = has_handle ? 0 : nfsc_lookup(p, &s->folder, name, &n->handle, err);
    }
    return r;
}

static int find_file(struct search *s, struct nfsc_path *p, struct error *err)
{
    struct error failure = {0};
    const struct endpoint_options *o = s->o;
    int r = nfsc_lookup(p, &s->folder, s->n->server.url.file, &s->n->handle, &failure);
    if (r == -ENOENT && o->writable && o->create) {
        return create(s, p, err);
    }
    if (r == 0 && o->writable && o->create && o->exclusive_create) {
        return error_set(err, EEXIST, "it exists already, and was to be made new");
    }
    return r < 0 ? error_set(err, failure.code, "%s", failure.text) : 0;
}

static int check_type(const struct nfsc_attributes *a, struct error *err)
{
    switch (a->type) {
    case NF3REG:
        return a->size <= VOLUME_SIZE_MAX
                   ? 0
                   : error_set(err, EFBIG, "the server says that it has %llu bytes",
                               (unsigned long long)a->size);
    case NF3DIR:
        return error_set(err, EISDIR, "it is a directory");
    case NF3LNK:
        return error_set(err, ELOOP, "it is a symbolic link, which is not followed");
    default:
        return error_set(err, EINVAL, "it is no regular file");
    }
}

static int refuse_formats(struct search *s, struct nfsc_path *p, uint64_t size, struct error *err)
{
    uint8_t head[HEAD_BYTES];
    bool eof;
    uint32_t len = (uint32_t)min_u64(min_u64(size, sizeof head), s->n->facts.read_max);
    if (len == 0) {
        return 0;
    }
    int r = nfsc_read(p, &s->n->handle, head, len, 0, &eof, err);
    return r < 0 ? r : image_refuse(head, (size_t)r, err);
}

static int set_up(struct search *s, struct nfsc_path *p, struct error *err)
{
    struct nfsc_volume *n = s->n;
    const struct endpoint_options *o = s->o;
    struct nfsc_attributes a = {0};
    int r = nfsc_getattr(p, &n->handle, &a, err);
    if (r == 0) {
        r = check_type(&a, err);
    }
    if (r == 0) {
        r = nfsc_fsinfo(p, &n->handle, &n->facts, err);
    }
    if (r == 0 && o->writable && !o->raw && !s->made) {
        r = refuse_formats(s, p, a.size, err);
    }
    n->v.size = a.size;
    if (r == 0 && o->writable && (s->made || o->set_size) && o->create_size != a.size) {
        if (o->create_size > VOLUME_SIZE_MAX) {
            return error_set(err, EFBIG, "no file can be that large");
        }
        r = nfsc_set_size(p, &n->handle, o->create_size, err);
        n->v.size = o->create_size;
    }
    if (o->writable && a.size == 0) {
        n->v.caps |= VOLUME_READS_ZERO;
    }
    return r;
}

static int open_file(struct search *s, struct error *err)
{
    struct nfsc_path p;
    int r = open_path(s, s->n->port, &p, err);
    if (r < 0) {
        return r;
    }
    r = find_file(s, &p, err);
    if (r == 0) {
        r = set_up(s, &p, err);
        if (r < 0 && s->made) {
            nfsc_remove(&p, &s->folder, s->n->server.url.file, NULL);
        }
    }
    if (r == 0) {
        r = nfsc_lane_adopt(s->n, p.connection, err);
    }
    if (r < 0) {
        nfsc_connection_close(p.connection);
    }
    return r;
}

/* Two connections: MOUNT and NFS are programs of their own, mostly at ports of their own. */
static int find_folder(struct search *s, uint16_t port, struct error *err)
{
    struct nfsc_path p;
    const char *rest = NULL;
    int r = open_path(s, port, &p, err);
    if (r < 0) {
        return r;
    }
    r = mount_some(s, &p, &rest, err);
    nfsc_connection_close(p.connection);
    if (r < 0 || *rest == '\0') {
        return r;
    }
    r = open_path(s, s->n->port, &p, err);
    if (r == 0) {
        r = walk(s, &p, rest, err);
        nfsc_connection_close(p.connection);
    }
    return r;
}

static int resolve(struct nfsc_server *s, struct error *err)
{
    struct address a = {.kind = ADDRESS_TCP, .port = PORTMAPPER_PORT, .fd = -1};
    memcpy(a.host, s->url.host, sizeof a.host);
    log_escape(s->shown, sizeof s->shown, s->url.host, strlen(s->url.host));
    int r = sockaddr_resolve(&a, false, s->addresses, SOCKADDRS_MAX, err);
    s->address_count = r < 0 ? 0 : r;
    return r;
}

int nfsc_find(struct nfsc_volume *n, const struct endpoint_options *o, struct error *err)
{
    struct search s = {.n = n, .o = o};
    s.deadline_ns = min_u64(o->connect_deadline_ns,
                            worker_now_ns(worker_self()) + NFSC_CONNECT_TIMEOUT_NS);
    int r = resolve(&n->server, err);
    int mount_port = n->server.url.mount_port;
    int nfs_port = n->server.url.nfs_port;
    if (r >= 0 && mount_port == 0) {
        r = mount_port = ask_port(&s, PROGRAM_MOUNT, "mountport", err);
    }
    if (r >= 0 && nfs_port == 0) {
        r = nfs_port = ask_port(&s, PROGRAM_NFS, "nfsport", err);
    }
    if (r < 0) {
        return r;
    }
    n->port = (uint16_t)nfs_port;
    r = find_folder(&s, (uint16_t)mount_port, err);
    return r < 0 ? r : open_file(&s, err);
}
