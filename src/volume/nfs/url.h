/*
 * NFS URLs: "nfs://HOST[:PORT]/FOLDER/FILE[?NAME=VALUE&...]", HOST a name, an IPv4 address or an
 * IPv6 one in brackets. Pure: no I/O.
 */
#ifndef VOLUME_NFS_URL_H
#define VOLUME_NFS_URL_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

#define NFSC_PATH_MAX 1024 /* RFC 1813, 5.1.4: MNTPATHLEN */
#define NFSC_NAME_MAX 255  /* MNTNAMLEN */

struct nfsc_url {
    char host[256];
    char folder[NFSC_PATH_MAX + 1]; /* "/", "/export", "/export/a": decoded, no slash at its end */
    char file[NFSC_NAME_MAX + 1];
    uint32_t uid, gid; /* where has_uid, has_gid; else those of the process */
    bool has_uid, has_gid;
    uint16_t nfs_port;    /* 0: ask the portmapper */
    uint16_t mount_port;  /* the same */
    unsigned tcp_syncnt;  /* 0: the kernel's own */
    unsigned debug;       /* libnfs's */
    bool parents;         /* where the folder cannot be mounted, try those above it */
    unsigned connections; /* 0: one a worker */
    uint64_t reconnect_delay_ns;
    uint64_t request_timeout_ns;
};

#define NFSC_RECONNECT_DELAY_NS 30000000000ull
#define NFSC_REQUEST_TIMEOUT_NS 60000000000ull

/* 0, -EINVAL, -ENAMETOOLONG or -ENOTSUP (NFSv4) with err. *ret is written only on success. */
int nfsc_url_parse(const char *text, struct nfsc_url *ret, struct error *err);

#endif
