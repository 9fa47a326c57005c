/*
 * The calls that move data and attributes (RFC 1813, 3.3): arguments in, and out only what the
 * reply was checked for. Those that find files are in procedures_find.c.
 *
 * Counts in replies are the server's word and are held against what was asked for and what came.
 * The write verifier (3.3.7, 4.8) changes when a server loses what it had not yet written: every
 * WRITE's is held against those before it, and COMMIT's against both. Once they differ `lost` is
 * set for good, since this driver keeps no copies that it could send again.
 *
 * NFS3ERR_JUKEBOX means "later": the call is repeated as long as a lost connection would be.
 */
#include "volume/nfs/procedures.h"
#include "core/size.h"

#include <errno.h>
#include <string.h>

static nfs_fh3 handle3(const struct nfsc_handle *h)
{
    nfs_fh3 f = {.data = {.data_len = h->len, .data_val = (char *)(uintptr_t)h->data}};
    return f;
}

nfs_fh3 nfsc_handle3(const struct nfsc_handle *h)
{
    return handle3(h);
}

int nfsc_take_handle(struct nfsc_handle *to, uint32_t len, const void *data)
{
    if (len == 0 || len > NFSC_HANDLE_MAX || !data) {
        to->len = 0;
        return -EPROTO;
    }
    to->len = len;
    memcpy(to->data, data, len);
    return 0;
}

/* --- calling --- */

static int call_once(struct nfsc_path *p, const struct nfsc_procedure *proc, void *job,
                     struct error *err)
{
    if (!p->connection) {
        return nfsc_lane_call(p->volume, proc, job, err);
    }
    int r = nfsc_connection_call(p->connection, proc, job, p->timeout_ns, err);
    if (r == -ENOTCONN) {
        return error_set(err, ECONNRESET, "%s: the connection was lost: %s", proc->name,
                         nfsc_connection_fault(p->connection));
    }
    return r;
}

int nfsc_run(struct nfsc_path *p, const struct nfsc_procedure *proc, struct nfsc_job *job,
             struct error *err)
{
    uint64_t pause = NFSC_BACKOFF_FIRST_NS;
    uint64_t until = worker_now_ns(worker_self()) + p->volume->server.url.reconnect_delay_ns;
    for (;;) {
        job->bad = NULL;
        int r = call_once(p, proc, job, err);
        if (r < 0) {
            return r;
        }
        if (job->status != NFS3ERR_JUKEBOX || worker_now_ns(worker_self()) >= until) {
            break;
        }
        if (fiber_sleep_ns(pause) < 0) {
            return error_set(err, ECANCELED, "%s was canceled", proc->name);
        }
        pause = min_u64(2 * pause, NFSC_BACKOFF_LAST_NS);
    }
    if (job->status != NFS3_OK) {
        return nfsc_status_error(job->status, proc->name, err);
    }
    return job->bad ? error_set(err, EPROTO, "%s: %s", proc->name, job->bad) : 0;
}

/* --- READ --- */

struct read_job {
    struct nfsc_job job;
    const struct nfsc_handle *handle;
    void *buf;
    uint32_t len;
    uint64_t off;
    uint32_t count;
    bool eof;
};

static int start_read(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    struct read_job *j = job;
    READ3args a = {.file = handle3(j->handle), .offset = j->off, .count = j->len};
    return rpc_nfs3_read_async(rpc, fn, &a, arg);
}

static void take_read(void *data, void *job)
{
    struct read_job *j = job;
    const READ3res *res = data;
    const READ3resok *ok = &res->READ3res_u.resok;
    j->job.status = res->status;
    if (res->status != NFS3_OK) {
        return;
    }
    if (ok->data.data_len > j->len) {
        j->job.bad = "the server sends more than was asked for";
    } else if (ok->count != ok->data.data_len) {
        j->job.bad = "the server sends another number of bytes than it says";
    } else if (ok->count == 0 && !ok->eof) {
        j->job.bad = "the server sends nothing, and says that this is not the end";
    } else {
        j->count = ok->count;
        j->eof = ok->eof != 0;
        if (ok->count > 0) {
            memcpy(j->buf, ok->data.data_val, ok->count);
        }
    }
}

int nfsc_read(struct nfsc_path *p, const struct nfsc_handle *h, void *buf, uint32_t len,
              uint64_t off, bool *eof, struct error *err)
{
    static const struct nfsc_procedure proc = {"READ", start_read, take_read};
    struct read_job j = {.handle = h, .buf = buf, .len = len, .off = off};
    int r = nfsc_run(p, &proc, &j.job, err);
    if (r < 0) {
        return r;
    }
    *eof = j.eof;
    return (int)j.count;
}

/* --- WRITE and COMMIT --- */

struct write_job {
    struct nfsc_job job;
    const struct nfsc_handle *handle;
    const void *buf;
    uint32_t len;
    uint64_t off;
    bool stable;
    uint32_t count;
    unsigned committed;
    char verifier[NFS3_WRITEVERFSIZE];
};

static int start_write(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    struct write_job *j = job;
    WRITE3args a = {
        .file = handle3(j->handle),
        .offset = j->off,
        .count = j->len,
        .stable = j->stable ? FILE_SYNC : UNSTABLE,
        .data = {.data_len = j->len, .data_val = (char *)(uintptr_t)j->buf},
    };
    return rpc_nfs3_write_async(rpc, fn, &a, arg);
}

static void take_write(void *data, void *job)
{
    struct write_job *j = job;
    const WRITE3res *res = data;
    const WRITE3resok *ok = &res->WRITE3res_u.resok;
    j->job.status = res->status;
    if (res->status != NFS3_OK) {
        return;
    }
    if (ok->count > j->len) {
        j->job.bad = "the server says it wrote more than it was sent";
    } else if (ok->count == 0) {
        j->job.bad = "the server says it wrote nothing";
    } else if ((unsigned)ok->committed > FILE_SYNC) {
        j->job.bad = "the server does not say how safe what it wrote is";
    } else if (j->stable && ok->committed != FILE_SYNC) {
        j->job.bad = "the server did not write it to its disk, although that was asked for";
    }
    j->count = ok->count;
    j->committed = (unsigned)ok->committed;
    memcpy(j->verifier, ok->verf, sizeof j->verifier);
}

static void note_write(struct nfsc_stable *s, const struct write_job *j)
{
    pthread_mutex_lock(&s->lock);
    if (s->pending && memcmp(s->verifier, j->verifier, sizeof s->verifier) != 0) {
        s->lost = true;
    }
    if (j->committed != FILE_SYNC) {
        s->pending = true;
        s->writes++;
        memcpy(s->verifier, j->verifier, sizeof s->verifier);
    }
    pthread_mutex_unlock(&s->lock);
}

int nfsc_write(struct nfsc_path *p, const struct nfsc_handle *h, const void *buf, uint32_t len,
               uint64_t off, bool stable, struct nfsc_stable *s, struct error *err)
{
    static const struct nfsc_procedure proc = {"WRITE", start_write, take_write};
    struct write_job j = {.handle = h, .buf = buf, .len = len, .off = off, .stable = stable};
    int r = nfsc_run(p, &proc, &j.job, err);
    if (r < 0) {
        return r;
    }
    note_write(s, &j);
    return (int)j.count;
}

struct commit_job {
    struct nfsc_job job;
    const struct nfsc_handle *handle;
    char verifier[NFS3_WRITEVERFSIZE];
};

static int start_commit(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    struct commit_job *j = job;
    COMMIT3args a = {.file = handle3(j->handle)}; /* offset 0, count 0: all of it */
    return rpc_nfs3_commit_async(rpc, fn, &a, arg);
}

static void take_commit(void *data, void *job)
{
    struct commit_job *j = job;
    const COMMIT3res *res = data;
    j->job.status = res->status;
    if (res->status == NFS3_OK) {
        memcpy(j->verifier, res->COMMIT3res_u.resok.verf, sizeof j->verifier);
    }
}

static int say_lost(struct error *err)
{
    return error_set(err, EIO,
                     "the server was restarted before it had written to its disk what it was sent "
                     "(its write verifier has changed): data may be lost, so all of it must be "
                     "written again");
}

int nfsc_commit(struct nfsc_path *p, const struct nfsc_handle *h, struct nfsc_stable *s,
                struct error *err)
{
    static const struct nfsc_procedure proc = {"COMMIT", start_commit, take_commit};
    struct commit_job j = {.handle = h};
    pthread_mutex_lock(&s->lock);
    bool lost = s->lost;
    bool pending = s->pending;
    uint64_t covered = s->writes;
    pthread_mutex_unlock(&s->lock);
    if (lost) {
        return say_lost(err);
    }
    if (!pending) {
        return 0;
    }
    int r = nfsc_run(p, &proc, &j.job, err);
    if (r < 0) {
        return r;
    }
    pthread_mutex_lock(&s->lock);
    if (s->pending && memcmp(s->verifier, j.verifier, sizeof s->verifier) != 0) {
        s->lost = true;
    } else if (s->writes == covered) {
        s->pending = false;
    }
    lost = s->lost;
    pthread_mutex_unlock(&s->lock);
    return lost ? say_lost(err) : 0;
}

/* --- GETATTR and SETATTR --- */

struct attr_job {
    struct nfsc_job job;
    const struct nfsc_handle *handle;
    uint64_t size; /* to set */
    struct nfsc_attributes *ret;
};

static int start_getattr(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    struct attr_job *j = job;
    GETATTR3args a = {.object = handle3(j->handle)};
    return rpc_nfs3_getattr_async(rpc, fn, &a, arg);
}

static void take_getattr(void *data, void *job)
{
    struct attr_job *j = job;
    const GETATTR3res *res = data;
    j->job.status = res->status;
    if (res->status == NFS3_OK) {
        j->ret->type = (unsigned)res->GETATTR3res_u.resok.obj_attributes.type;
        j->ret->size = res->GETATTR3res_u.resok.obj_attributes.size;
    }
}

int nfsc_getattr(struct nfsc_path *p, const struct nfsc_handle *h, struct nfsc_attributes *ret,
                 struct error *err)
{
    static const struct nfsc_procedure proc = {"GETATTR", start_getattr, take_getattr};
    struct attr_job j = {.handle = h, .ret = ret};
    return nfsc_run(p, &proc, &j.job, err);
}

static int start_set_size(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    struct attr_job *j = job;
    SETATTR3args a = {
        .object = handle3(j->handle),
        .new_attributes = {.size = {.set_it = 1, .set_size3_u = {.size = j->size}}},
    };
    return rpc_nfs3_setattr_async(rpc, fn, &a, arg);
}

static void take_set_size(void *data, void *job)
{
    struct attr_job *j = job;
    j->job.status = ((const SETATTR3res *)data)->status;
}

int nfsc_set_size(struct nfsc_path *p, const struct nfsc_handle *h, uint64_t size,
                  struct error *err)
{
    static const struct nfsc_procedure proc = {"SETATTR", start_set_size, take_set_size};
    struct attr_job j = {.handle = h, .size = size};
    struct nfsc_attributes now;
    int r = nfsc_run(p, &proc, &j.job, err);
    if (r == 0) {
        r = nfsc_getattr(p, h, &now, err);
    }
    if (r == 0 && now.size != size) {
        return error_set(err, EIO,
                         "SETATTR: the server was to make it %llu bytes long, and made it %llu",
                         (unsigned long long)size, (unsigned long long)now.size);
    }
    return r;
}
