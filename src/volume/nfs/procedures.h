/*
 * What the two files of procedures share. Includes libnfs's own headers, which nobody else in the
 * driver needs but connection.c.
 */
#ifndef VOLUME_NFS_PROCEDURES_H
#define VOLUME_NFS_PROCEDURES_H

#include "volume/nfs/private.h"

#include <nfsc/libnfs.h> /* before the others, which need its types */

#include <nfsc/libnfs-raw-mount.h>
#include <nfsc/libnfs-raw-nfs.h>
#include <nfsc/libnfs-raw.h>

/* First in each job. */
struct nfsc_job {
    uint32_t status; /* nfsstat3 or mountstat3 */
    const char *bad; /* what is wrong with the reply; a constant */
};

/* Calls, waits while the server asks for that, and judges status and bad. */
int nfsc_run(struct nfsc_path *p, const struct nfsc_procedure *proc, struct nfsc_job *job,
             struct error *err);

/* h must outlive what is made of it. */
nfs_fh3 nfsc_handle3(const struct nfsc_handle *h);
int nfsc_take_handle(struct nfsc_handle *to, uint32_t len, const void *data);

#endif
