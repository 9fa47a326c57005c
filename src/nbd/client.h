/*
 * The NBD client: a volume driver for nbd://, nbd+unix://, nbd+vsock:// and [ PROGRAM ... ], and
 * what `info` and `map` ask for beyond that.
 */
#ifndef NBD_CLIENT_H
#define NBD_CLIENT_H

#include "core/error.h"
#include "volume/endpoint.h"
#include "volume/volume.h"

/* Makes the schemes known to endpoint_open(). Main thread, before the first open. */
void nbd_client_register(void);

/* What the server said in the handshake; pointers live as long as the volume. */
struct nbd_client_info {
    uint16_t flags;            /* transmission flags */
    bool structured, extended; /* negotiated */
    bool base_allocation;
    const char *export_name;                        /* as the server calls it, else as asked for */
    const char *description;                        /* or NULL */
    uint32_t block_min, block_preferred, block_max; /* 0: not advertised */
    uint64_t send_buffer_wanted, send_buffer_granted;
    unsigned connections; /* lanes open now */
    uint64_t receives;    /* receive calls of all lanes */
};

/* NULL-safe test whether v is ours. */
bool nbd_client_is(const struct volume *v);
void nbd_client_info(struct volume *v, struct nbd_client_info *ret);

/* NBD_OPT_LIST: say() for each export, its name and description (or NULL). Returns how many. */
int nbd_client_list(const char *uri, const struct endpoint_options *o,
                    void (*say)(void *arg, const char *name, const char *description), void *arg,
                    struct error *err);

/* Block status of any metadata context, streamed; for `map --context NAME`. */
int nbd_client_contexts(const char *uri, const struct endpoint_options *o,
                        void (*say)(void *arg, const char *context), void *arg, struct error *err);

#endif
