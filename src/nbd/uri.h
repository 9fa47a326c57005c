/*
 * NBD URIs: "nbd://HOST[:PORT]/EXPORT", "nbd+unix:///EXPORT?socket=PATH",
 * "nbd+vsock://[CID][:PORT]/EXPORT".
 */
#ifndef NBD_URI_H
#define NBD_URI_H

#include "channel/socket.h"
#include "core/error.h"

struct nbd_uri {
    struct address address;
    char *export_name; /* percent-decoded; owned */
};

/* The schemes that nbd_uri_parse() answers for, also those that it refuses; NULL ends. */
extern const char *const nbd_uri_schemes[];

/* No I/O. 0, or -EINVAL (not such a URI), -ENOTSUP (TLS), -ENAMETOOLONG, -ENOMEM with err; *ret is
 * written only on success. */
int nbd_uri_parse(const char *text, struct nbd_uri *ret, struct error *err);
void nbd_uri_done(struct nbd_uri *u);

#endif
