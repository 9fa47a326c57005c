/*
 * Endpoints: the names that commands take wherever they take a disk.
 *
 *   PATH, file:PATH          a file or block device
 *   nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH, nbd+vsock://CID[:PORT]/EXPORT
 *   nfs://HOST/PATH/FILE[?options]
 *   null:SIZE, memory:SIZE, pattern:SIZE
 *   fault:SPEC:ENDPOINT      errors and delays on purpose (fault.h)
 *   slice:OFFSET[+SIZE]:ENDPOINT
 *   [ PROGRAM ARG ... ]      an NBD server of our own (argv form only)
 *   -, fd:N                  a pipe (copy and sum handle these themselves: endpoint_is_stream())
 *
 * A known scheme and its ':' make it an endpoint of that kind; what has another scheme and "://" is
 * refused; everything else is a path, whatever colons it has. "file:" forces a path.
 */
#ifndef VOLUME_ENDPOINT_H
#define VOLUME_ENDPOINT_H

#include "volume/volume.h"

enum cache_mode { CACHE_WRITEBACK, CACHE_NONE, CACHE_WRITETHROUGH };

struct endpoint_options {
    bool writable;
    bool create;           /* files: make it if it is missing */
    bool exclusive_create; /* with create: it must not exist */
    uint64_t create_size;  /* size of a file that is made, or grown to with set_size */
    bool set_size;         /* files that exist: truncate or grow to create_size */
    bool lock;             /* OFD locks on QEMU's bytes; default true (endpoint_options_init) */
    enum cache_mode cache;
    uint64_t socket_buffer; /* SOCKET_BUFFER_AUTO ... */
    unsigned connections;   /* lanes: 0 = as many as workers use, where the server allows it */
    uint64_t connect_deadline_ns; /* absolute; DEADLINE_NONE */
    uint64_t reconnect_ns; /* a request whose connection is lost waits so long for a new one; 0 */
    bool raw;              /* -f raw was said: a known image magic is no reason to refuse */
};

void endpoint_options_init(struct endpoint_options *o);

/* name for people: without the \x1f of a [ PROGRAM ... ]. Writes to buf, returns it. */
char *endpoint_display(const char *name, char *buf, size_t size);

/* Opens name. From a fiber. On success *ret is the caller's, to be closed with volume_close(). */
int endpoint_open(const char *name, const struct endpoint_options *o, struct volume **ret,
                  struct error *err);

/* "-" or fd:N (with *fd set: 0 or 1 for "-" by direction). */
bool endpoint_is_stream(const char *name, bool writable, int *fd);

/* Drivers reach endpoint.c through this table (endpoint.c lists them all); nbd sits in an upper
 * room and registers itself, so that volume/ does not include nbd/. */
struct endpoint_driver {
    const char *const *schemes; /* "nbd", "nbd+unix", ... NULL ends */
    int (*open)(const char *name, const struct endpoint_options *o, struct volume **ret,
                struct error *err);
};
/* Before the first open, main thread. At most 16. The scheme "[" is that of [ PROGRAM ARG ... ]. */
void endpoint_register(const struct endpoint_driver *driver);

/*
 * Arguments from argv: one endpoint takes one argument, or "[" up to its "]". Writes a malloc'ed
 * name to *ret ("[ PROGRAM ARG ]" becomes "[\x1fPROGRAM\x1fARG\x1f]") and returns how many
 * arguments were used, or -EINVAL with err.
 */
int endpoint_take_args(char *const *argv, int argc, char **ret, struct error *err);

#endif
