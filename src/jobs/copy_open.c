/*
 * The two ends of a copy: opening them, the rules about sizes, and what becomes of the target when
 * the copy fails.
 *
 * The target is not changed before everything that can be refused has been: same file at both
 * ends, sizes, rights. A regular file that exists is then cut to nothing and made as long as the
 * source, so that it reads as zeros and zeros need not be written (--no-create keeps it as it is).
 * A file that is not there is made exclusively, so that it is known to be ours: after a failure it
 * is removed, if what the name leads to still is that file.
 *
 * A copy onto itself is found by device and inode, below slice: and fault: and behind fd:N.
 */
#include "channel/sizing.h"
#include "core/size.h"
#include "jobs/copy_internal.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* A target of unknown length is made longer by at least so much at a time (it is sparse). */
#define GROW_LEAST (64ull << 20)

/* Whatever file is at the bottom of an endpoint: 0 with *st, or -errno (none). Blocks. */
static int stat_below(const char *name, bool writable, struct stat *st)
{
    int fd;
    while (strncmp(name, "slice:", 6) == 0 || strncmp(name, "fault:", 6) == 0) {
        const char *below = strchr(name + 6, ':');
        if (!below) {
            return -EINVAL;
        }
        name = below + 1;
    }
    if (endpoint_is_stream(name, writable, &fd)) {
        return fstat(fd, st) < 0 ? -errno : 0;
    }
    if (strncmp(name, "file:", 5) == 0) {
        name += 5;
    }
    return stat(name, st) < 0 ? -errno : 0;
}

struct ends_stat {
    const struct copy_options *options;
    struct stat source, target;
    int source_result, target_result;
};

static int stat_ends(void *arg)
{
    struct ends_stat *e = arg;
    e->source_result = stat_below(e->options->source, false, &e->source);
    e->target_result = stat_below(e->options->target, true, &e->target);
    return 0;
}

static bool same_file(const struct ends_stat *e)
{
    if (e->source_result < 0 || e->target_result < 0) {
        return false;
    }
    if (S_ISBLK(e->source.st_mode) && S_ISBLK(e->target.st_mode)) {
        return e->source.st_rdev == e->target.st_rdev;
    }
    return S_ISREG(e->source.st_mode) && e->source.st_dev == e->target.st_dev &&
           e->source.st_ino == e->target.st_ino;
}

static bool onto_itself(const struct ends_stat *e)
{
    const struct copy_options *o = e->options;
    return same_file(e) || (strcmp(o->source, o->target) == 0 && strstr(o->source, "://"));
}

void copy_name_end(const char *name, struct error *err)
{
    char shown[ERROR_ENDPOINT_MAX];
    error_endpoint(err, endpoint_display(name, shown, sizeof(shown)));
}

static int open_stream(struct copy *c, struct copy_end *end, int fd, struct error *err)
{
    int r = stream_open(&end->stream, fd);
    if (r < 0) {
        error_set(err, -r, "descriptor %d can't be used", fd);
        copy_name_end(end->name, err);
        return r;
    }
    if (end->stream.kind == STREAM_PIPE) {
        struct sizing s;
        sizing_pipe(fd, c->options->pipe_size, &s);
    }
    return 0;
}

static int open_source(struct copy *c, struct error *err)
{
    int fd;
    if (endpoint_is_stream(c->source.name, false, &fd)) {
        return open_stream(c, &c->source, fd, err);
    }
    struct endpoint_options o = c->options->source_options;
    o.writable = o.create = o.exclusive_create = o.set_size = false;
    int r = endpoint_open(c->source.name, &o, &c->source.volume, err);
    if (r == 0) {
        c->size = c->source.volume->size;
    }
    return r;
}

/* What came into being when the target was opened, to be removed when the copy fails. */
static void remember_created(struct copy *c)
{
    struct stat st;
    if (strcmp(c->target.volume->ops->name, "file") == 0 &&
        stat_below(c->target.name, true, &st) == 0 && S_ISREG(st.st_mode)) {
        c->created = true;
        c->progress->created_dev = st.st_dev;
        c->progress->created_ino = st.st_ino;
        c->progress->created = true;
    }
}

/* Whether a name is a local path, by its looks alone: "file:..." or no scheme in front. */
static bool is_path(const char *name)
{
    size_t n = 0;
    while (isalnum((unsigned char)name[n]) || (name[n] && strchr("+.-", name[n]))) {
        n++;
    }
    return strncmp(name, "file:", 5) == 0 || (name[n] != ':' && name[0] != '[');
}

/* How a target's options are: made when it is missing, its length ours to set when it is no
 * device. A driver sets the length at once, so what exists is opened with the length it has; it is
 * changed when everything has been checked. */
static void target_options(struct copy *c, const struct ends_stat *e, struct endpoint_options *o)
{
    bool is_missing = e->target_result == -ENOENT && is_path(c->target.name);
    bool is_file = e->target_result == 0 && S_ISREG(e->target.st_mode);
    *o = c->options->target_options;
    o->writable = true;
    o->create = o->exclusive_create = o->set_size = false;
    if (!c->options->no_create && (e->target_result < 0 || is_file)) {
        o->create = true;
        o->exclusive_create = is_missing;
        o->set_size = true;
        o->create_size = is_file ? (uint64_t)e->target.st_size : c->size;
    }
}

static int open_target(struct copy *c, const struct ends_stat *e, struct error *err)
{
    int fd;
    if (endpoint_is_stream(c->target.name, true, &fd)) {
        return open_stream(c, &c->target, fd, err);
    }
    struct endpoint_options o;
    target_options(c, e, &o);
    int r = endpoint_open(c->target.name, &o, &c->target.volume, err);
    if (r == 0 && o.exclusive_create) {
        remember_created(c);
    }
    return r;
}

static int refuse_size(struct copy *c, int code, const char *why, struct error *err)
{
    error_set(err, code, "it has %" PRIu64 " bytes, the source has %" PRIu64 ": %s",
              c->target.volume->size, c->size, why);
    copy_name_end(c->target.name, err);
    return -code;
}

/* A fixed target: is it large enough, and not too large? */
static int check_size(struct copy *c, struct error *err)
{
    uint64_t has = c->target.volume->size;
    if (has < c->size) {
        return refuse_size(c, ENOSPC, "it is too small", err);
    }
    if (has > c->size && !c->options->size_mismatch) {
        return refuse_size(c, EINVAL, "use --size-mismatch=ok if that is meant", err);
    }
    return 0;
}

/* A target whose length is ours to set: emptied, then as long as the source. */
static int make_size(struct copy *c, bool fresh, struct error *err)
{
    struct volume *t = c->target.volume;
    int r = 0;
    if (!fresh) {
        c->touched = true;
        r = volume_resize(t, 0, err);
    }
    if (r == 0 && t->size != c->size) {
        c->touched = true;
        r = volume_resize(t, c->size, err);
    }
    return r;
}

static int prepare_target(struct copy *c, struct error *err)
{
    struct volume *t = c->target.volume;
    if (!t) {
        return 0;
    }
    bool ours = volume_can(t, VOLUME_CAN_RESIZE) && !c->options->no_create;
    bool zeros = volume_can(t, VOLUME_READS_ZERO);
    int r = 0;
    if (!volume_can(t, VOLUME_CAN_WRITE)) {
        r = error_set(err, EROFS, "it can't be written to");
        copy_name_end(c->target.name, err);
    } else if (ours || volume_can(t, VOLUME_TAKES_ANY_SIZE)) {
        r = make_size(c, c->created || volume_can(t, VOLUME_NO_DATA), err);
        zeros = true;
        c->grow = !c->source.volume;
    } else if (c->source.volume) {
        r = check_size(c, err);
    }
    c->skip_zeros = (zeros || c->options->target_is_zero) && !c->options->allocated;
    return r;
}

int copy_open(struct copy *c, struct error *err)
{
    struct ends_stat e = {.options = c->options};
    int r = offload(stat_ends, &e);
    if (r == 0 && onto_itself(&e)) {
        error_set(err, EINVAL, "source and target are the same");
        copy_name_end(c->target.name, err);
        r = -EINVAL;
    }
    if (r == 0) {
        r = open_source(c, err);
    }
    if (r == 0) {
        r = open_target(c, &e, err);
    }
    if (r == 0) {
        r = prepare_target(c, err);
    }
    if (r < 0) {
        fiber_shield();
        copy_close(c);
        fiber_unshield();
    }
    return r;
}

int copy_grow(struct copy *c, uint64_t size, struct error *err)
{
    struct volume *t = c->target.volume;
    c->touched = true;
    if (size <= t->size) {
        return 0;
    }
    if (!c->grow) {
        error_set(err, ENOSPC, "the stream is longer than the target (%" PRIu64 " bytes)", t->size);
        copy_name_end(c->target.name, err);
        error_at(err, t->size);
        return -ENOSPC;
    }
    uint64_t more = max_u64(GROW_LEAST, t->size / 2);
    uint64_t room = VOLUME_SIZE_MAX - size;
    return volume_resize(t, size + min_u64(more, room), err);
}

int copy_settle(struct copy *c, struct error *err)
{
    struct volume *t = c->target.volume;
    if (c->source.volume || !t) {
        return 0;
    }
    if (c->grow) {
        return t->size == c->size ? 0 : volume_resize(t, c->size, err);
    }
    if (c->size < t->size && !c->options->size_mismatch) {
        return refuse_size(c, EINVAL, "the rest is as it was; --size-mismatch=ok allows that", err);
    }
    return 0;
}

void copy_close(struct copy *c)
{
    volume_close(c->target.volume);
    volume_close(c->source.volume);
    c->target.volume = c->source.volume = NULL;
    stream_done(&c->target.stream);
    stream_done(&c->source.stream);
}

/* Removes what was made, if the name still leads to it: 0 or -errno. */
static int remove_created(const struct copy_options *o, struct copy_progress *p)
{
    struct stat st;
    const char *path = o->target;
    if (strncmp(path, "file:", 5) == 0) {
        path += 5;
    }
    if (!atomic_exchange(&p->created, false) || lstat(path, &st) < 0 ||
        st.st_dev != p->created_dev || st.st_ino != p->created_ino) {
        return -ENOENT;
    }
    return unlink(path) < 0 ? -errno : 0;
}

static int remove_offloaded(void *arg)
{
    struct copy *c = arg;
    return remove_created(c->options, c->progress);
}

void copy_abandon(const struct copy_options *o, struct copy_progress *progress)
{
    remove_created(o, progress);
}

void copy_clean_up(struct copy *c, struct copy_result *ret)
{
    if (c->created) {
        ret->target_removed = offload(remove_offloaded, c) == 0;
        ret->target_incomplete = !ret->target_removed;
    } else {
        ret->target_incomplete = c->touched;
    }
}
