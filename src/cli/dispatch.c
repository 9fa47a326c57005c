/*
 * From argv to a command's run(): finds the command, parses its options, makes the worker that it
 * wants, and turns what comes back into an exit code. Nothing is initialised that the command does
 * not need: a --help takes a few milliseconds.
 */
#include "cli/command.h"
#include "cli/help.h"
#include "cli/iohelper.h"
#include "cli/setup.h"
#include "cli/version.h"
#include "core/log.h"
#include "core/sigwait.h"
#include "core/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int command_failed(const struct error *err)
{
    char text[ERROR_TEXT_MAX + ERROR_ENDPOINT_MAX + 256];

    fprintf(stderr, "penstock: %s\n", error_format(err, text, sizeof(text)));
    return EXIT_FAILED;
}

int command_misused(const struct command_run *r, const char *fmt, ...)
{
    char text[ERROR_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    fprintf(stderr, "penstock %s: %s (try: penstock %s --help)\n", r->command->name, text,
            r->command->name);
    return EXIT_USAGE;
}

int command_flush(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return code;
    }
    fprintf(stderr, "penstock: standard output: %s\n", strerror(errno));
    return EXIT_FAILED;
}

static int run_on_worker(void *arg)
{
    struct command_run *r = arg;
    return r->command->run(r);
}

static int run_in_worker(struct command_run *r)
{
    int e = sigwait_init();
    if (e == 0) {
        command_setup();
        e = worker_main(run_on_worker, r);
    }
    if (e < 0) {
        fprintf(stderr, "penstock: no worker could be started: %s\n", strerror(-e));
        return EXIT_FAILED;
    }
    return e;
}

static int run_plainly(struct command_run *r)
{
    signal(SIGPIPE, SIG_IGN); /* a reader that goes away is an error message, not a death */
    return r->command->run(r);
}

static int check_operands(const struct command_run *r)
{
    const struct command *c = r->command;
    unsigned n = r->operands->count;

    if (n < c->operands_min) {
        return command_misused(r, "%s missing", c->operands ? c->operands : "something is");
    }
    if (n > c->operands_max) {
        char shown[128];
        const char *extra = r->operands->items[c->operands_max];
        log_escape(shown, sizeof(shown), extra, strlen(extra));
        return command_misused(r, "\"%s\" is too much", shown);
    }
    return 0;
}

/* Parses, then runs. options is the command's struct, zeroed. */
static int parse_and_run(const struct command *c, void *options, int argc, char **argv)
{
    static const struct option_spec none[] = {{}};
    struct common_cli common = {};
    const struct option_spec *tables[] = {c->options ? c->options : none, common_options, NULL};
    void *bases[] = {options, &common};
    struct option_parser parser = {.tables = tables,
                                   .bases = bases,
                                   .operand = c->operand,
                                   .take = c->endpoints ? command_take : NULL};
    struct command_run run = {
        .command = c, .parser = &parser, .options = options, .operands = &parser.operands};
    struct error err = {};
    int code;

    options_fallback(&parser);
    int r = options_parse(&parser, argc, argv, &err);
    if (common.help) { /* asked for, so a mistake elsewhere on the line does not matter */
        help_command(stdout, c);
        code = command_flush(EXIT_DONE);
    } else if (r < 0) {
        code = command_misused(&run, "%s", err.text);
    } else {
        code = check_operands(&run);
    }
    if (!common.help && code == 0) {
        run.verbose = common.verbose;
        run.quiet = common.quiet;
        log_set_level(run.verbose > 1 ? LOG_DEBUG
                      : run.verbose   ? LOG_INFO
                      : run.quiet     ? LOG_ERROR
                                      : LOG_WARNING);
        code = c->in_worker ? run_in_worker(&run) : run_plainly(&run);
    }
    operands_done(&parser.operands);
    return code;
}

static int run_command(const struct command *c, int argc, char **argv)
{
    void *options = calloc(1, c->options_size ? c->options_size : 1);
    if (!options) {
        fprintf(stderr, "penstock: no memory\n");
        return EXIT_FAILED;
    }
    int code = parse_and_run(c, options, argc, argv);
    if (c->options_done) {
        c->options_done(options);
    }
    free(options);
    return code;
}

/*
 * Descriptors 0, 1 and 2 exist from here on: a disk that is opened as 2 would get our messages.
 * One that was closed stays unusable, in that it is open for the wrong direction: what nobody gave
 * is not an empty disk, and an answer that nobody can get is a failure.
 */
static void open_standard_fds(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) {
            return;
        }
    }
}

static int unknown_command(const char *name)
{
    char shown[128];

    log_escape(shown, sizeof(shown), name, strlen(name));
    fprintf(stderr, "penstock: %s \"%s\" (try: penstock --help)\n",
            name[0] == '-' ? "unknown option" : "unknown command", shown);
    return EXIT_USAGE;
}

int cli_main(int argc, char **argv)
{
    open_standard_fds();
    if (argc > 0 && iohelper_is_asked(argv[0])) {
        return iohelper_main(argc, argv);
    }
    if (argc < 2) {
        fprintf(stderr, "penstock: a command is missing (try: penstock --help)\n");
        return EXIT_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        version_print(stdout);
        return command_flush(EXIT_DONE);
    }
    bool help = strcmp(word, "help") == 0;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (help && argc == 2)) {
        help_overview(stdout);
        return command_flush(EXIT_DONE);
    }
    const struct command *c = cli_command_find(help ? argv[2] : word);
    if (!c) {
        return unknown_command(help ? argv[2] : word);
    }
    if (help) {
        help_command(stdout, c);
        return command_flush(EXIT_DONE);
    }
    return run_command(c, argc - 2, argv + 2);
}
