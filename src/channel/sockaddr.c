/*
 * struct address to and from struct sockaddr. getaddrinfo() may take seconds, so it runs on the
 * thread pool; everything else is plain filling in.
 */
#include "channel/sockaddr.h"

#include "core/fiber.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include <linux/vm_sockets.h>

struct lookup {
    const struct address *a;
    bool passive;
    struct addrinfo *list;
    int gai; /* EAI_... */
    int code;
};

static int look_up(void *arg)
{
    struct lookup *l = arg;
    char port[8];
    snprintf(port, sizeof(port), "%u", l->a->port);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICSERV | (l->passive ? AI_PASSIVE : 0),
    };
    l->gai = getaddrinfo(l->a->host[0] ? l->a->host : NULL, port, &hints, &l->list);
    l->code = l->gai == EAI_SYSTEM ? errno : 0;
    return 0;
}

static int lookup_errno(const struct lookup *l)
{
    switch (l->gai) {
    case EAI_SYSTEM:
        return l->code ? l->code : EIO;
    case EAI_MEMORY:
        return ENOMEM;
    case EAI_AGAIN:
        return EAGAIN;
    default:
        return ENXIO;
    }
}

static int resolve_tcp(const struct address *a, bool passive, struct sockaddr_item *out, int max,
                       struct error *err)
{
    struct lookup l = {.a = a, .passive = passive};
    int r = offload(look_up, &l);
    if (r < 0) {
        return error_set(err, -r, "resolving %s", a->host);
    }
    if (l.gai != 0) {
        return error_set(err, lookup_errno(&l), "can't resolve host name \"%s\": %s", a->host,
                         gai_strerror(l.gai));
    }
    int n = 0;
    for (struct addrinfo *i = l.list; i && n < max; i = i->ai_next) {
        if (i->ai_addrlen <= sizeof(out[n].addr)) {
            memset(&out[n], 0, sizeof(out[n]));
            memcpy(&out[n].addr, i->ai_addr, i->ai_addrlen);
            out[n++].len = i->ai_addrlen;
        }
    }
    freeaddrinfo(l.list);
    return n > 0 ? n : error_set(err, ENXIO, "host name \"%s\" has no address", a->host);
}

int sockaddr_resolve(const struct address *a, bool passive, struct sockaddr_item *out, int max,
                     struct error *err)
{
    memset(&out[0], 0, sizeof(out[0]));
    if (a->kind == ADDRESS_TCP) {
        return resolve_tcp(a, passive, out, max, err);
    }
    if (a->kind == ADDRESS_VSOCK) {
        struct sockaddr_vm *vm = (struct sockaddr_vm *)&out[0].addr;
        vm->svm_family = AF_VSOCK;
        vm->svm_cid = a->vsock_cid;
        vm->svm_port = a->vsock_port;
        out[0].len = sizeof(*vm);
        return 1;
    }
    struct sockaddr_un *un = (struct sockaddr_un *)&out[0].addr;
    size_t len = strnlen(a->path, sizeof(un->sun_path) - 1);
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, a->path, len);
    if (a->abstract) {
        un->sun_path[0] = '\0'; /* the length, not a terminator, ends an abstract name */
        out[0].len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    } else {
        out[0].len = sizeof(*un);
    }
    return 1;
}

static void from_unix(const struct sockaddr_un *un, socklen_t len, struct address *ret)
{
    size_t head = offsetof(struct sockaddr_un, sun_path);
    size_t n = len > head ? len - head : 0;
    ret->kind = ADDRESS_UNIX;
    ret->abstract = n > 0 && un->sun_path[0] == '\0';
    if (n > sizeof(ret->path) - 1) {
        n = sizeof(ret->path) - 1;
    }
    memcpy(ret->path, un->sun_path, n);
    if (ret->abstract) {
        ret->path[0] = '@';
    }
}

void sockaddr_to_address(const struct sockaddr_storage *addr, socklen_t len, struct address *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->fd = -1;
    if (addr->ss_family == AF_UNIX) {
        from_unix((const struct sockaddr_un *)addr, len, ret);
        return;
    }
    if (addr->ss_family == AF_VSOCK) {
        const struct sockaddr_vm *vm = (const struct sockaddr_vm *)addr;
        ret->kind = ADDRESS_VSOCK;
        ret->vsock_cid = vm->svm_cid;
        ret->vsock_port = vm->svm_port;
        return;
    }
    ret->kind = ADDRESS_TCP;
    const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
    ret->port = ntohs(in->sin_port); /* sin6_port lies at the same place (RFC 3493, 3.3) */
    if (getnameinfo((const struct sockaddr *)addr, len, ret->host, sizeof(ret->host), NULL, 0,
                    NI_NUMERICHOST) != 0) {
        ret->host[0] = '\0';
    }
}
