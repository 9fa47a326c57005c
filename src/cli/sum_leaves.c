/*
 * penstock sum --leaves and --changed, and the lists that options name.
 */
#include "channel/stream.h"
#include "cli/sum_cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIST_MAX (64u << 20) /* half a million lines */

/* All of fd, malloc'ed. Parks, so that a list that comes through a pipe can be interrupted. */
static ssize_t slurp(int fd, char **ret)
{
    struct stream stream;
    int r = stream_open(&stream, fd);
    if (r < 0) {
        return r;
    }
    size_t room = 0, used = 0;
    char *text = NULL;
    ssize_t n = 0;
    do {
        used += (size_t)n;
        if (used == room) {
            room = room ? 2 * room : 65536;
            char *more = used < LIST_MAX ? realloc(text, room) : NULL;
            if (!more) {
                n = used < LIST_MAX ? -ENOMEM : -EFBIG;
                break;
            }
            text = more;
        }
        n = stream_read_some(&stream, text + used, room - used);
    } while (n > 0);
    stream_done(&stream);
    if (n < 0) {
        free(text);
        return n;
    }
    *ret = text;
    return (ssize_t)used;
}

ssize_t sum_read_list(const char *path, char **ret)
{
    if (strcmp(path, "-") == 0) {
        return slurp(STDIN_FILENO, ret);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    ssize_t n = slurp(fd, ret);
    close(fd);
    return n;
}

struct ranges {
    struct sum_range *items;
    size_t count, room;
};

static int add_range(struct ranges *ranges, const struct sum_range *range)
{
    if (ranges->count == ranges->room) {
        size_t room = ranges->room ? 2 * ranges->room : 64;
        struct sum_range *more = reallocarray(ranges->items, room, sizeof(*more));
        if (!more) {
            return -ENOMEM;
        }
        ranges->items = more;
        ranges->room = room;
    }
    ranges->items[ranges->count++] = *range;
    return 0;
}

static int add_lines(struct ranges *ranges, const char *text, size_t len)
{
    while (len > 0) {
        const char *newline = memchr(text, '\n', len);
        size_t line = newline ? (size_t)(newline - text) : len;
        size_t used = line + (newline != NULL);
        struct sum_range range;
        int r = sum_range_parse(text, line, &range);
        if (r == 0) {
            r = add_range(ranges, &range);
        }
        if (r < 0) {
            return r;
        }
        text += used;
        len -= used;
    }
    return 0;
}

static int add_list(struct ranges *ranges, const char *path, struct error *err)
{
    char *text = NULL;
    ssize_t n = sum_read_list(path, &text);
    int r = n < 0 ? (int)n : 0;
    if (text) {
        r = add_lines(ranges, text, (size_t)n);
    }
    free(text);
    if (r < 0) {
        error_set(err, -r, "a list of ranges");
        error_endpoint(err, path);
    }
    return r;
}

static int read_ranges(const struct sum_cli *cli, struct ranges *ranges, struct error *err)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < cli->changed.count; i++) {
        const char *text = cli->changed.items[i];
        struct sum_range range;
        if (text[0] == '@') {
            r = add_list(ranges, text + 1, err);
        } else if (sum_range_parse(text, strlen(text), &range) != 0) {
            r = error_set(err, EINVAL, "--changed: \"%.60s\" is not OFFSET+LENGTH", text);
        } else {
            r = add_range(ranges, &range);
        }
    }
    return r;
}

/* The old leaves, and the sum made to fit them. */
static int open_old(struct sum_job *job, struct leaves **ret, struct error *err)
{
    const struct leaves_header *h;
    int r = leaves_open(job->cli->leaves, ret, err);
    if (r < 0) {
        return r;
    }
    h = leaves_header_of(*ret);
    bool other = (option_given(job->run->parser, "digest") &&
                  strcmp(h->digest, digest_name(sum_digest(job->sum))) != 0) ||
                 (option_given(job->run->parser, "block-size") && h->block_size != job->block_size);
    if (other) {
        error_endpoint(err, job->cli->leaves);
        return error_set(err, EINVAL, "made with another digest or block size");
    }
    return sum_job_use(job, h->digest, h->block_size, err);
}

static int sum_and_keep(struct sum_job *job, const char *endpoint, struct sum_leaves *l,
                        struct sum_result *ret, struct error *err)
{
    const struct digest *d = sum_digest(job->sum);
    struct leaves_header h = {.digest_length = (uint32_t)digest_length(d),
                              .block_size = job->block_size};
    snprintf(h.digest, sizeof(h.digest), "%s", digest_name(d));
    if (digest_length(d) == 0) {
        return error_set(err, EINVAL, "the null digest has no leaves");
    }
    int r = leaves_create(job->cli->leaves, digest_length(d), &l->keep, err);
    if (r < 0) {
        return r;
    }
    job->leaves = l;
    r = sum_job_one(job, endpoint, ret, err);
    job->leaves = NULL;
    if (r == 0) {
        h.size = ret->size;
        memcpy(h.blkhash, ret->digest, ret->length);
        r = leaves_commit(l->keep, &h, err);
    }
    leaves_writer_free(l->keep);
    return r;
}

int sum_job_leaves(struct sum_job *job, const char *endpoint, struct sum_result *ret,
                   struct error *err)
{
    struct sum_leaves l = {};
    struct ranges ranges = {};
    int r = 0;
    if (job->cli->changed.count > 0) {
        r = read_ranges(job->cli, &ranges, err);
        if (r == 0) {
            r = open_old(job, &l.old, err);
        }
    }
    if (r == 0) {
        l.changed = ranges.items;
        l.count = ranges.count;
        r = sum_and_keep(job, endpoint, &l, ret, err);
    }
    leaves_close(l.old);
    free(ranges.items);
    return r;
}
