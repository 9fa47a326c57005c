/*
 * What servers answer instead of "done": nfsstat3 (RFC 1813, 2.6) and mountstat3 (5.1.5), which
 * uses the same numbers. One table.
 */
#include "volume/nfs/private.h"

#include <errno.h>
#include <stddef.h>

struct status {
    uint32_t status;
    int code;
    const char *name;
    const char *words;
};

static const struct status table[] = {
    {1, EPERM, "NFS3ERR_PERM", "not the owner"},
    {2, ENOENT, "NFS3ERR_NOENT", "there is no such file or folder"},
    {5, EIO, "NFS3ERR_IO", "the server's disk failed"},
    {6, ENXIO, "NFS3ERR_NXIO", "no such device"},
    {13, EACCES, "NFS3ERR_ACCES", "the server does not allow it (uid= and gid= say as whom)"},
    {17, EEXIST, "NFS3ERR_EXIST", "it exists already"},
    {18, EXDEV, "NFS3ERR_XDEV", "it is on another file system"},
    {19, ENODEV, "NFS3ERR_NODEV", "no such device"},
    {20, ENOTDIR, "NFS3ERR_NOTDIR", "a part of the path is no folder"},
    {21, EISDIR, "NFS3ERR_ISDIR", "it is a folder"},
    {22, EINVAL, "NFS3ERR_INVAL", "the server calls that not valid"},
    {27, EFBIG, "NFS3ERR_FBIG", "larger than the server's files may be"},
    {28, ENOSPC, "NFS3ERR_NOSPC", "the server's disk is full"},
    {30, EROFS, "NFS3ERR_ROFS", "the server's file system is read-only"},
    {31, EMLINK, "NFS3ERR_MLINK", "too many links"},
    {63, ENAMETOOLONG, "NFS3ERR_NAMETOOLONG", "the name is too long for the server"},
    {66, ENOTEMPTY, "NFS3ERR_NOTEMPTY", "the folder is not empty"},
    {69, EDQUOT, "NFS3ERR_DQUOT", "the quota is used up"},
    {70, ESTALE, "NFS3ERR_STALE", "the file was removed or its server knows it no longer"},
    {71, EREMOTE, "NFS3ERR_REMOTE", "it is on another server"},
    {10001, EIO, "NFS3ERR_BADHANDLE", "the server does not know its own handle"},
    {10002, EIO, "NFS3ERR_NOT_SYNC", "the file has changed meanwhile"},
    {10003, EIO, "NFS3ERR_BAD_COOKIE", "the server lost its place"},
    {10004, ENOTSUP, "NFS3ERR_NOTSUPP", "the server cannot do that"},
    {10005, EIO, "NFS3ERR_TOOSMALL", "too small a buffer"},
    {10006, EIO, "NFS3ERR_SERVERFAULT", "the server failed"},
    {10007, EIO, "NFS3ERR_BADTYPE", "the server does not know that type of file"},
    {10008, EAGAIN, "NFS3ERR_JUKEBOX", "the server asks to wait"},
};

static const struct status *find(uint32_t status)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].status == status) {
            return &table[i];
        }
    }
    return NULL;
}

int nfsc_status_errno(uint32_t status)
{
    const struct status *s = find(status);
    return s ? s->code : EIO;
}

const char *nfsc_status_name(uint32_t status)
{
    const struct status *s = find(status);
    return s ? s->name : NULL;
}

int nfsc_status_error(uint32_t status, const char *what, struct error *err)
{
    const struct status *s = find(status);
    if (!s) {
        return error_set(err, EIO, "%s: the server answers with an unknown status, %u", what,
                         status);
    }
    return error_set(err, s->code, "%s: %s (%s)", what, s->words, s->name);
}
