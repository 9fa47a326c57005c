/*
 * penstock serve: the options.
 *
 * Exports are named where they stand: --export NAME is followed by its endpoint, --description
 * belongs to the export before it. So these three, the operand included, are taken in their turn.
 */
#include "cli/serve.h"

#include <errno.h>
#include <string.h>

static int take_export(void *base, const char *value, struct error *err)
{
    struct serve_cli *cli = base;

    if (cli->export_count && !cli->exports[cli->export_count - 1].endpoint) {
        return error_set(err, EINVAL, "the export before it has no endpoint");
    }
    if (cli->export_count == SERVE_EXPORTS_MAX) {
        return error_set(err, EINVAL, "more than %u exports", SERVE_EXPORTS_MAX);
    }
    struct serve_export *e = &cli->exports[cli->export_count++];
    e->name = value;
    if (cli->export_count == 1) {
        e->description = cli->description;
    }
    return 0;
}

static int take_description(void *base, const char *value, struct error *err)
{
    struct serve_cli *cli = base;

    (void)err;
    if (cli->export_count) {
        cli->exports[cli->export_count - 1].description = value;
    } else {
        cli->description = value;
    }
    return 0;
}

static int take_endpoint(void *base, const char *operand, struct error *err)
{
    struct serve_cli *cli = base;

    if (cli->export_count && cli->exports[cli->export_count - 1].endpoint) {
        return error_set(err, EINVAL, "more endpoints than exports: each needs an --export NAME");
    }
    if (!cli->export_count) {
        take_export(base, "", NULL);
    }
    cli->exports[cli->export_count - 1].endpoint = operand;
    return 0;
}

static int take_mode(void *base, const char *value, struct error *err)
{
    struct serve_cli *cli = base;
    size_t len = strlen(value);
    int mode = 0;

    if (strcmp(value, "umask") == 0) {
        cli->socket_mode = -1;
        return 0;
    }
    if (len < 1 || len > 4 || strspn(value, "01234567") != len) {
        return error_set(err, EINVAL, "\"%.16s\" is not a mode such as 660", value);
    }
    for (; *value; value++) {
        mode = mode * 8 + (*value - '0');
    }
    if (mode > 0777) {
        return error_set(err, EINVAL, "a socket has no more bits than 777");
    }
    cli->socket_mode = mode;
    return 0;
}

static const struct option_word none_is_zero[] = {{"none", 0}, {}};
static const struct option_word auto_is_zero[] = {{"auto", 0}, {}};
static const struct option_word none_is_max[] = {{"none", UINT64_MAX}, {}};

/* clang-format off */
static const struct option_spec serve_options[] = {
    {"unix", 'U', OPT_STRING(struct serve_cli, unix_path), "PATH",
        "Listen on a Unix socket. A file that a dead server has left there is replaced; a socket "
        "that is alive, or any other file, is not.", .complete = COMPLETE_FILE},
    {"socket-mode", 0, OPT_CALL(), "MODE",
        "Permission bits of the Unix socket, in octal.",
        .fallback = "umask", .call = take_mode},
    {"tcp", 0, OPT_LIST(struct serve_cli, tcp), "[HOST:]PORT",
        "Listen on a TCP port: of all addresses unless HOST is given; port 0 lets the kernel "
        "choose. May be given several times."},
    {"vsock", 0, OPT_STRING(struct serve_cli, vsock), "CID[:PORT]",
        "Listen on a vsock port (10809), where virtual machines reach it without a network.",
        .bare = "any"},
    {"stdio", 0, OPT_FLAG(struct serve_cli, stdio),
        .help = "Serve the one client at standard input and output (inetd, ssh)."},
    {"run", 0, OPT_STRING(struct serve_cli, run), "COMMAND",
        "Run COMMAND by the shell, with the server's address in $uri and the socket's path in "
        "$unixsocket, until it ends; its exit status is ours. Without -U or --tcp, on a Unix "
        "socket in a private folder."},
    {"export", 'x', OPT_CALL(), "NAME",
        "The name of the endpoint that follows. May be given several times, each followed by its "
        "endpoint.", .fallback_help = "the empty name, which is the default export",
        .call = take_export},
    {"description", 0, OPT_CALL(), "TEXT",
        "What clients are told of the export before it.", .call = take_description},
    {"no-list", 0, OPT_FLAG(struct serve_cli, no_list),
        .help = "Do not tell clients which exports there are."},
    {"read-only", 'r', OPT_FLAG(struct serve_cli, read_only),
        .help = "Clients may not write."},
    {"one-shot", '1', OPT_FLAG(struct serve_cli, one_shot),
        .help = "End when the first client has gone."},
    {"persistent", 0, OPT_FLAG(struct serve_cli, persistent),
        .help = "Go on when clients have gone. This is the default."},
    {"max-connections", 0, OPT_NUMBER(struct serve_cli, max_connections), "N",
        "Clients at a time; more are refused.",
        .fallback = "none", .words = none_is_zero, .min = 1, .max = 1000000},
    {"workers", 0, OPT_NUMBER(struct serve_cli, workers), "N",
        "Threads that serve, each with its own connection, file ring or socket to each endpoint.",
        .fallback = "auto", .fallback_help = "as many as there are CPUs",
        .words = auto_is_zero, .min = 1, .max = WORKERS_MAX},
    {"handshake-timeout", 0, OPT_SECONDS(struct serve_cli, handshake_timeout_ns), "SECONDS",
        "How long a client may take to choose an export.",
        .fallback = "10", .words = none_is_zero, .max = 86400},
    {"memory", 0, OPT_SIZE(struct serve_cli, memory), "SIZE",
        "Payload that one connection may have in flight; a client that asks for more waits.",
        .fallback = "128M", .min = 64 << 20, .max = UINT64_C(1) << 40},
    {"requests", 0, OPT_NUMBER(struct serve_cli, requests), "N",
        "Requests that one connection may have in flight.",
        .fallback = "256", .min = 1, .max = 65536},
    {"pid-file", 0, OPT_STRING(struct serve_cli, pid_file), "PATH",
        "Write the process id there when clients can connect, and remove it at the end.",
        .complete = COMPLETE_FILE},
    {"ready-fd", 0, OPT_NUMBER(struct serve_cli, ready_fd), "FD",
        "When clients can connect, write the server's addresses to this descriptor, a line each, "
        "and close it.",
        .fallback = "none", .words = none_is_max, .max = 1 << 20},
    {OPT_INCLUDE(struct serve_cli, endpoint, endpoint_cli_options)},
    {},
};
/* clang-format on */

static int misuse(struct command_run *r)
{
    const struct serve_cli *cli = r->options;

    if (!cli->export_count || !cli->exports[cli->export_count - 1].endpoint) {
        return command_misused(r, "ENDPOINT is missing");
    }
    if (cli->one_shot && cli->persistent) {
        return command_misused(r, "--one-shot and --persistent exclude each other");
    }
    if (cli->stdio && (cli->unix_path || cli->tcp.count || cli->vsock || cli->run)) {
        return command_misused(r, "--stdio excludes --unix, --tcp, --vsock and --run");
    }
    if (option_given(r->parser, "socket-mode") && !cli->unix_path) {
        return command_misused(r, "--socket-mode is for --unix");
    }
    return 0;
}

static int run(struct command_run *r)
{
    int code = misuse(r);
    return code ? code : serve_run(r);
}

const struct command cmd_serve = {
    .name = "serve",
    .summary = "give disks to NBD clients",
    .usage =
        (const char *const[]){
            "[OPTION]... ENDPOINT",
            "[OPTION]... --export NAME ENDPOINT [--export NAME ENDPOINT]...",
            NULL,
        },
    .options = serve_options,
    .options_size = sizeof(struct serve_cli),
    .operands = "ENDPOINT is",
    .operands_min = 1,
    .operands_max = SERVE_EXPORTS_MAX,
    .endpoints = true,
    .in_worker = true,
    .operand = take_endpoint,
    .run = run,
    .examples =
        (const struct command_example[]){
            {"penstock serve -U /run/vm1/disk.sock /var/lib/vm1/disk.img",
             "A disk on a Unix socket, until SIGTERM."},
            {"penstock serve --tcp 10809 -r --export a a.img --export b b.img",
             "Two disks that all may read."},
            {"penstock serve disk.img --run 'nbdinfo \"$uri\"'",
             "A server for one command, on a socket of its own."},
            {},
        },
    .exits =
        (const struct command_exit[]){
            {0, "The server was stopped by SIGTERM or SIGINT, or the only client of --one-shot or "
                "--stdio has gone, and all that was written is flushed."},
            {1, "It failed; standard error says why. A second signal ends the server at once, with "
                "this status."},
            {2, "The command line was wrong; nothing was done."},
            {0, NULL},
        },
};
