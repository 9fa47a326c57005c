/*
 * What `penstock info` knows of an endpoint, collected and then shown as text or JSON.
 */
#ifndef CLI_INFO_H
#define CLI_INFO_H

#include "core/error.h"
#include "nbd/client.h"
#include "volume/volume.h"

#include <stdbool.h>

#define INFO_PAIRS_MAX 64     /* what a driver says of itself */
#define INFO_CONTEXTS_MAX 256 /* metadata contexts of an export that are shown */

struct info_pair {
    char *key, *value;
};

struct info {
    const char *endpoint;
    struct volume *volume;
    const char *engine; /* of file I/O here */
    unsigned pair_count;
    struct info_pair pairs[INFO_PAIRS_MAX];
    bool is_nbd;
    struct nbd_client_info nbd;
    unsigned context_count;
    bool contexts_cut; /* there are more */
    char *contexts[INFO_CONTEXTS_MAX];
};

/* The names of bits, NULL ends; shared by text and JSON. */
struct info_bit {
    unsigned bit;
    const char *name;
};
extern const struct info_bit info_caps[];
extern const struct info_bit info_nbd_flags[];

/* 0 or an enum exit_code's cause: -errno. */
int info_print_text(const struct info *in);
int info_print_json(const struct info *in);

#endif
