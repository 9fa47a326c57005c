/*
 * See endpoint_cli.h.
 */
#include "cli/endpoint_cli.h"

#include "channel/sizing.h"
#include "core/fiber.h"
#include "core/worker.h"

const struct option_word socket_buffer_words[] = {
    {"auto", SOCKET_BUFFER_AUTO},
    {"default", SOCKET_BUFFER_DEFAULT},
    {},
};

static const struct option_word cache_words[] = {
    {"writeback", CACHE_WRITEBACK},
    {"none", CACHE_NONE},
    {"writethrough", CACHE_WRITETHROUGH},
    {},
};

static const struct option_word format_words[] = {
    {"raw", FORMAT_RAW},
    {},
};

static const struct option_word no_timeout[] = {
    {"none", 0},
    {},
};

/* clang-format off */
const struct option_spec endpoint_cli_options[] = {
    {"format", 'f', OPT_CHOICE(struct endpoint_cli, format), "FORMAT",
        "What is in the endpoint. raw: its bytes as they are, even where they look like an image "
        "of another format, which is refused otherwise.",
        .fallback_help = "raw, unless it looks like something else", .words = format_words},
    {"cache", 0, OPT_CHOICE(struct endpoint_cli, cache), "MODE",
        "How files are written: writeback (through the page cache; flush makes it safe), none "
        "(O_DIRECT, past the page cache), writethrough (each write is on disk before its reply).",
        .fallback = "writeback", .words = cache_words},
    {"no-lock", 0, OPT_FLAG(struct endpoint_cli, no_lock),
        .help = "Do not lock image files. Without locks nothing keeps two programs from writing to "
        "one image."},
    {"socket-buffer", 0, OPT_SIZE(struct endpoint_cli, socket_buffer), "SIZE",
        "Send buffer of sockets. auto: 2M on Unix sockets, TCP is left to the kernel; default: "
        "what the kernel gives.",
        .fallback = "auto", .words = socket_buffer_words, .min = 1, .max = 1 << 30},
    {"connections", 0, OPT_NUMBER(struct endpoint_cli, connections), "N",
        "Connections to an endpoint that is reached over the network.",
        .fallback = "auto", .words = (const struct option_word[]){{"auto", 0}, {}},
        .min = 1, .max = 64},
    {"connect-timeout", 0, OPT_SECONDS(struct endpoint_cli, connect_timeout_ns), "SECONDS",
        "How long to try to connect to an endpoint.",
        .fallback = "30", .words = no_timeout, .max = 86400},
    {"reconnect", 0, OPT_SECONDS(struct endpoint_cli, reconnect_ns), "SECONDS",
        "When the connection to an NBD server is lost, connect again and send what was not "
        "answered once more; a request that waits longer than this fails. What had been written "
        "and not flushed may be lost with a server: then the flush at the end fails.",
        .fallback = "none", .words = no_timeout, .max = 86400},
    {},
};
/* clang-format on */

void endpoint_cli_apply(const struct endpoint_cli *c, struct endpoint_options *o)
{
    struct worker *w = worker_self();

    endpoint_options_init(o);
    o->cache = (enum cache_mode)c->cache;
    o->lock = !c->no_lock;
    o->socket_buffer = c->socket_buffer;
    o->connections = (unsigned)c->connections;
    o->raw = c->format == FORMAT_RAW;
    o->reconnect_ns = c->reconnect_ns;
    o->connect_deadline_ns = DEADLINE_NONE;
    if (c->connect_timeout_ns && w) {
        o->connect_deadline_ns = worker_now_ns(w) + c->connect_timeout_ns;
    }
}
