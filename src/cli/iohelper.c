/*
 * libvirt_iohelper FILENAME FD, as libvirt 9 starts it: FD 1 means that standard input is a pipe
 * and standard output the file that was opened for writing, FD 0 the reverse; FILENAME is for
 * messages only. The access mode of FD and its O_DIRECT flag say the rest. Environment and
 * descriptors are bare. Exit code 0, or 1 with
 *
 *     ARGV0: failure with FILENAME: Unable to write FILENAME: No space left on device
 *
 * on standard error, without a line end: libvirt shows the text to its user as it is.
 *
 * Beyond the original: reading and writing overlap, the file's length is checked against what was
 * written before the exit code says success, and the pipe is made larger where it was left small.
 */
#include "cli/iohelper.h"

#include "channel/sizing.h"
#include "cli/pipe_cli.h"
#include "core/error.h"
#include "core/log.h"
#include "core/size.h"
#include "core/worker.h"
#include "jobs/save.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct helper {
    const char *name;
    int fd;       /* of the file: 0 or 1 */
    bool writing; /* to the file */
    uint64_t offset;
    struct error err;
};

bool iohelper_is_asked(const char *argv0)
{
    const char *slash = strrchr(argv0, '/');
    return strcmp(slash ? slash + 1 : argv0, "libvirt_iohelper") == 0;
}

static int run_save(struct helper *h)
{
    struct save_options o = {
        .store = {.name = h->name, .fd = h->fd, .in_place = true, .offset = h->offset},
        .in_fd = STDIN_FILENO,
    };
    struct save_result result;
    return save_run(&o, &result, &h->err);
}

static int run_restore(struct helper *h)
{
    struct restore_options o = {
        .name = h->name,
        .fd = h->fd,
        .out_fd = STDOUT_FILENO,
        .offset = h->offset,
        .as_is = true,
    };
    struct restore_result result;
    return restore_run(&o, &result, &h->err);
}

static int run(void *arg)
{
    struct helper *h = arg;
    return h->writing ? run_save(h) : run_restore(h);
}

static void enlarge_pipe(int fd)
{
    struct sizing ignored;
    pipe_cli_size(fd, SOCKET_BUFFER_AUTO, &ignored);
}

/* What fd is for, from how it was opened. 0 or -errno. */
static int look_at_fd(struct helper *h)
{
    int flags = fcntl(h->fd, F_GETFL);
    if (flags < 0) {
        return error_set(&h->err, errno, "Unable to determine access mode of fd %d", h->fd);
    }
    bool reversed = (h->fd == STDIN_FILENO && (flags & O_ACCMODE) == O_WRONLY) ||
                    (h->fd == STDOUT_FILENO && (flags & O_ACCMODE) == O_RDONLY);
    if ((flags & O_ACCMODE) == O_RDWR || reversed) {
        return error_set(&h->err, EINVAL, "Unable to process file with flags %d", flags);
    }
    h->writing = (flags & O_ACCMODE) == O_WRONLY;
    off_t now = lseek(h->fd, 0, SEEK_CUR);
    h->offset = now > 0 ? (uint64_t)now : 0;
    return 0;
}

static int complain(const char *argv0, const struct helper *h)
{
    if (h->err.has_offset || h->err.endpoint[0]) {
        fprintf(stderr, "%s: failure with %s: Unable to %s %s: %s", argv0, h->name,
                h->writing ? "write" : "read", h->name, strerror(h->err.code));
    } else {
        fprintf(stderr, "%s: failure with %s: %s: %s", argv0, h->name, h->err.text,
                strerror(h->err.code));
    }
    return EXIT_FAILURE;
}

int iohelper_main(int argc, char **argv)
{
    uint64_t fd;
    if (argc != 3 || number_parse(argv[2], 0, INT32_MAX, &fd) < 0) {
        fprintf(stderr, "%s: syntax FILENAME FD", argv[0]);
        return EXIT_FAILURE;
    }
    struct helper h = {.name = argv[1], .fd = (int)fd};
    error_clear(&h.err);
    log_set_level(LOG_ERROR); /* libvirt takes every text on stderr for the cause of a failure */
    signal(SIGPIPE, SIG_IGN); /* a reader that has gone is an error with a text */
    int r = look_at_fd(&h);
    if (r == 0) {
        enlarge_pipe(h.writing ? STDIN_FILENO : STDOUT_FILENO);
        r = worker_main(run, &h);
    }
    if (r < 0) {
        error_set(&h.err, -r, "the transfer failed");
        return complain(argv[0], &h);
    }
    return EXIT_SUCCESS;
}
