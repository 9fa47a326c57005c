/*
 * The client's half of the handshake, on one connected channel.
 */
#ifndef NBD_CLIENT_HANDSHAKE_H
#define NBD_CLIENT_HANDSHAKE_H

#include "channel/channel.h"
#include "core/error.h"
#include "nbd/wire.h"

/* The longest reply to an option that makes sense: a name, a description, their lengths. */
#define NBD_OPTION_REPLY_MAX (2 * NBD_STRING_MAX + 64)
/* Replies to one option: far above what honest servers have exports, and an end to others. */
#define NBD_OPTION_REPLIES_MAX (1u << 20)

/* What is known of the export when the transmission phase begins. */
struct nbd_facts {
    uint64_t size;
    uint16_t flags; /* transmission flags */
    bool structured, extended;
    bool base_allocation;
    uint32_t context_id;                            /* of base:allocation */
    uint32_t block_min, block_preferred, block_max; /* 0: not advertised */
    char *name, *description;                       /* as the server says, or NULL; owned */
};

void nbd_facts_done(struct nbd_facts *f);

struct nbd_handshake {
    struct channel *ch;
    bool fixed, no_zeroes; /* agreed */
    bool structured, extended;
    uint32_t option; /* the one that is being answered */
    struct nbd_option_reply reply;
    uint8_t data[NBD_OPTION_REPLY_MAX]; /* its payload */
};

/* All return 0 or -errno with err. The channel's deadline is the caller's to set. */

/* Greeting and flags. */
int nbd_handshake_start(struct nbd_handshake *h, struct channel *ch, struct error *err);
/* Structured replies or extended headers, where the server has them. */
int nbd_handshake_headers(struct nbd_handshake *h, struct error *err);
/* Everything up to the transmission phase. The strings of *ret are the caller's. */
int nbd_handshake_go(struct nbd_handshake *h, const char *export_name, struct nbd_facts *ret,
                     struct error *err);
/* Gives up politely; what the server says to it does not matter. */
void nbd_handshake_abort(struct nbd_handshake *h);

/* For options that answer with a list (client_list.c). Sends an option, then takes replies. */
int nbd_handshake_option(struct nbd_handshake *h, uint32_t option, const void *data, size_t len,
                         struct error *err);
/* 1: h->reply and h->data are one of type `expected`; 0: the final ACK; -errno. */
int nbd_handshake_reply(struct nbd_handshake *h, uint32_t expected, struct error *err);

#endif
