/*
 * struct address to and from the kernel's addresses; names are resolved on the thread pool.
 */
#ifndef CHANNEL_SOCKADDR_H
#define CHANNEL_SOCKADDR_H

#include "channel/socket.h"

#include <sys/socket.h>

/* A name can have as many addresses as its zone says; more than these are not tried. */
#define SOCKADDRS_MAX 16

struct sockaddr_item {
    struct sockaddr_storage addr;
    socklen_t len;
};

/* All addresses of a, in the order to try: how many (>= 1), or -errno. From a fiber for TCP.
 * passive: to listen on (an empty host is every address, else it is this machine). */
int sockaddr_resolve(const struct address *a, bool passive, struct sockaddr_item *out, int max,
                     struct error *err);

/* What the kernel says, without asking a name server. */
void sockaddr_to_address(const struct sockaddr_storage *addr, socklen_t len, struct address *ret);

#endif
