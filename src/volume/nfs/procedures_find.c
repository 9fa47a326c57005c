/*
 * The calls that find and make files: LOOKUP, CREATE, REMOVE, FSINFO (RFC 1813, 3.3), MNT (5.2.1)
 * and the portmapper's GETPORT (RFC 1833, 3.2).
 */
#include "volume/nfs/procedures.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#define MODE_NEW 0600 /* a disk is nobody else's business */

struct find_job {
    struct nfsc_job job;
    const struct nfsc_handle *folder;
    const char *name;
    bool exclusive;
    struct nfsc_handle found;
    bool has_handle;
};

static diropargs3 where3(const struct find_job *j)
{
    diropargs3 w = {.dir = nfsc_handle3(j->folder), .name = (char *)(uintptr_t)j->name};
    return w;
}

static int start_lookup(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    LOOKUP3args a = {.what = where3(job)};
    return rpc_nfs3_lookup_async(rpc, fn, &a, arg);
}

static const char bad_handle[] = "the server's file handle is not valid";

static void take_lookup(void *data, void *job)
{
    struct find_job *j = job;
    const LOOKUP3res *res = data;
    j->job.status = res->status;
    if (res->status == NFS3_OK &&
        nfsc_take_handle(&j->found, res->LOOKUP3res_u.resok.object.data.data_len,
                         res->LOOKUP3res_u.resok.object.data.data_val) < 0) {
        j->job.bad = bad_handle;
    }
}

int nfsc_lookup(struct nfsc_path *p, const struct nfsc_handle *folder, const char *name,
                struct nfsc_handle *ret, struct error *err)
{
    static const struct nfsc_procedure proc = {"LOOKUP", start_lookup, take_lookup};
    struct find_job j = {.folder = folder, .name = name};
    int r = nfsc_run(p, &proc, &j.job, err);
    if (r == 0) {
        *ret = j.found;
    }
    return r;
}

static int start_create(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    struct find_job *j = job;
    CREATE3args a = {.where = where3(j), .how = {.mode = j->exclusive ? GUARDED : UNCHECKED}};
    sattr3 *attributes = j->exclusive ? &a.how.createhow3_u.g_obj_attributes
                                      : &a.how.createhow3_u.obj_attributes;
    attributes->mode.set_it = 1;
    attributes->mode.set_mode3_u.mode = MODE_NEW;
    return rpc_nfs3_create_async(rpc, fn, &a, arg);
}

static void take_create(void *data, void *job)
{
    struct find_job *j = job;
    const CREATE3res *res = data;
    const post_op_fh3 *handle = &res->CREATE3res_u.resok.obj;
    j->job.status = res->status;
    if (res->status != NFS3_OK || !handle->handle_follows) {
        return;
    }
    if (nfsc_take_handle(&j->found, handle->post_op_fh3_u.handle.data.data_len,
                         handle->post_op_fh3_u.handle.data.data_val) < 0) {
        j->job.bad = bad_handle;
    }
    j->has_handle = true;
}

int nfsc_create(struct nfsc_path *p, const struct nfsc_handle *folder, const char *name,
                bool exclusive, struct nfsc_handle *ret, bool *has_handle, struct error *err)
{
    static const struct nfsc_procedure proc = {"CREATE", start_create, take_create};
    struct find_job j = {.folder = folder, .name = name, .exclusive = exclusive};
    int r = nfsc_run(p, &proc, &j.job, err);
    if (r == 0) {
        *ret = j.found;
        *has_handle = j.has_handle;
    }
    return r;
}

static int start_remove(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    REMOVE3args a = {.object = where3(job)};
    return rpc_nfs3_remove_async(rpc, fn, &a, arg);
}

static void take_remove(void *data, void *job)
{
    struct find_job *j = job;
    j->job.status = ((const REMOVE3res *)data)->status;
}

int nfsc_remove(struct nfsc_path *p, const struct nfsc_handle *folder, const char *name,
                struct error *err)
{
    static const struct nfsc_procedure proc = {"REMOVE", start_remove, take_remove};
    struct find_job j = {.folder = folder, .name = name};
    return nfsc_run(p, &proc, &j.job, err);
}

struct facts_job {
    struct nfsc_job job;
    const struct nfsc_handle *handle;
    struct nfsc_facts *ret;
};

static int start_fsinfo(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    struct facts_job *j = job;
    FSINFO3args a = {.fsroot = nfsc_handle3(j->handle)};
    return rpc_nfs3_fsinfo_async(rpc, fn, &a, arg);
}

static uint32_t transfer(uint32_t max)
{
    return max > NFSC_TRANSFER_MAX ? NFSC_TRANSFER_MAX : max;
}

static void take_fsinfo(void *data, void *job)
{
    struct facts_job *j = job;
    const FSINFO3res *res = data;
    const FSINFO3resok *ok = &res->FSINFO3res_u.resok;
    j->job.status = res->status;
    if (res->status != NFS3_OK) {
        return;
    }
    if (ok->rtmax == 0 || ok->wtmax == 0) {
        j->job.bad = "the server says that it moves no bytes at all (rtmax or wtmax is 0)";
        return;
    }
    j->ret->read_max = transfer(ok->rtmax);
    j->ret->write_max = transfer(ok->wtmax);
    j->ret->file_max = ok->maxfilesize;
}

int nfsc_fsinfo(struct nfsc_path *p, const struct nfsc_handle *h, struct nfsc_facts *ret,
                struct error *err)
{
    static const struct nfsc_procedure proc = {"FSINFO", start_fsinfo, take_fsinfo};
    struct facts_job j = {.handle = h, .ret = ret};
    return nfsc_run(p, &proc, &j.job, err);
}

static int start_mnt(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    struct find_job *j = job;
    return rpc_mount3_mnt_async(rpc, fn, (char *)(uintptr_t)j->name, arg);
}

static void take_mnt(void *data, void *job)
{
    struct find_job *j = job;
    const mountres3 *res = data;
    j->job.status = res->fhs_status;
    if (res->fhs_status == MNT3_OK &&
        nfsc_take_handle(&j->found, res->mountres3_u.mountinfo.fhandle.fhandle3_len,
                         res->mountres3_u.mountinfo.fhandle.fhandle3_val) < 0) {
        j->job.bad = bad_handle;
    }
}

int nfsc_mnt(struct nfsc_path *p, const char *folder, struct nfsc_handle *ret, struct error *err)
{
    static const struct nfsc_procedure proc = {"MNT", start_mnt, take_mnt};
    struct find_job j = {.name = folder};
    int r = nfsc_run(p, &proc, &j.job, err);
    if (r == 0) {
        *ret = j.found;
    }
    return r;
}

struct port_job {
    struct nfsc_job job;
    int program, version;
    uint32_t port;
};

static int start_getport(struct rpc_context *rpc, nfsc_reply_fn *fn, void *job, void *arg)
{
    struct port_job *j = job;
    return rpc_pmap2_getport_async(rpc, j->program, j->version, IPPROTO_TCP, fn, arg);
}

static void take_getport(void *data, void *job)
{
    struct port_job *j = job;
    memcpy(&j->port, data, sizeof j->port);
}

int nfsc_getport(struct nfsc_path *p, uint32_t program, uint32_t version, struct error *err)
{
    static const struct nfsc_procedure proc = {"GETPORT", start_getport, take_getport};
    struct port_job j = {.program = (int)program, .version = (int)version};
    int r = nfsc_run(p, &proc, &j.job, err);
    if (r < 0) {
        return r;
    }
    if (j.port == 0 || j.port > 65535) {
        return error_set(err, ENXIO,
                         "the server's portmapper knows no program %u, version %u, by TCP", program,
                         version);
    }
    return (int)j.port;
}
