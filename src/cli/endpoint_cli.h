/*
 * The options that every command with endpoints has, for OPT_INCLUDE.
 */
#ifndef CLI_ENDPOINT_CLI_H
#define CLI_ENDPOINT_CLI_H

#include "cli/option.h"
#include "volume/endpoint.h"

struct endpoint_cli {
    unsigned cache; /* enum cache_mode */
    bool no_lock;
    uint64_t socket_buffer;      /* bytes or SOCKET_BUFFER_... */
    uint64_t connections;        /* 0: automatic */
    uint64_t connect_timeout_ns; /* 0: none */
    uint64_t reconnect_ns;       /* 0: not */
    unsigned format;             /* enum endpoint_format */
};

enum endpoint_format { FORMAT_UNSAID, FORMAT_RAW };

extern const struct option_spec endpoint_cli_options[];
/* --format alone, --socket-buffer alone: for commands that want only those. */
extern const struct option_word socket_buffer_words[];

/* Defaults, then what the command line said. The deadline starts now: on a worker. */
void endpoint_cli_apply(const struct endpoint_cli *c, struct endpoint_options *o);

#endif
