/*
 * A new file of leaves (leaves.h). It is written beside its place under a name of its own, made
 * stable, and renamed: whoever looks sees the old file or the new one, whole.
 */
#include "core/fiber.h"
#include "core/fileio.h"
#include "jobs/leaves.h"
#include "jobs/leaves_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct leaves_writer {
    int fd;
    char *path, *part; /* where it goes, where it is */
    bool made;         /* there is something at part */
    size_t digest_length;
    uint64_t count;   /* digests appended */
    uint64_t written; /* bytes behind the header that are in the file */
    size_t used;      /* bytes of chunk */
    uint8_t chunk[LEAVES_CHUNK];
};

static int create_blocking(void *arg)
{
    struct leaves_writer *w = arg;
    struct stat st;
    if (stat(w->path, &st) == 0 && !S_ISREG(st.st_mode)) {
        return -EEXIST; /* the rename would replace a device or a pipe */
    }
    w->fd = open(w->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    w->made = w->fd >= 0;
    return w->fd < 0 ? -errno : 0;
}

int leaves_create(const char *path, size_t digest_length, struct leaves_writer **ret,
                  struct error *err)
{
    struct leaves_writer *w = calloc(1, sizeof(*w));
    if (!w) {
        return error_set(err, ENOMEM, "no memory");
    }
    w->fd = -1;
    w->digest_length = digest_length;
    w->path = strdup(path);
    if (!w->path || asprintf(&w->part, "%s.%ld.part", path, (long)getpid()) < 0) {
        w->part = NULL;
        leaves_writer_free(w);
        return error_set(err, ENOMEM, "no memory");
    }
    int r = offload(create_blocking, w);
    if (r < 0) {
        leaves_fail(err, -r, w->part, "create");
        leaves_writer_free(w);
        return r;
    }
    *ret = w;
    return 0;
}

static int write_chunk(struct leaves_writer *w, struct error *err)
{
    int r = fileio_write(w->fd, w->chunk, w->used, LEAVES_HEADER_BYTES + w->written, 0);
    if (r < 0) {
        return leaves_fail(err, -r, w->part, "write");
    }
    w->written += w->used;
    w->used = 0;
    return 0;
}

int leaves_append(struct leaves_writer *w, const uint8_t *digests, uint64_t n, struct error *err)
{
    for (; n > 0; n--, digests += w->digest_length) {
        if (sizeof(w->chunk) - w->used < w->digest_length) {
            int r = write_chunk(w, err);
            if (r < 0) {
                return r;
            }
        }
        memcpy(w->chunk + w->used, digests, w->digest_length);
        w->used += w->digest_length;
        w->count++;
    }
    return 0;
}

int leaves_append_repeat(struct leaves_writer *w, const uint8_t *digest, uint64_t n,
                         struct error *err)
{
    int r = 0;
    for (; r == 0 && n > 0; n--) {
        r = leaves_append(w, digest, 1, err);
    }
    return r;
}

/* Into place, and the folder's entry stable. */
static int rename_blocking(void *arg)
{
    struct leaves_writer *w = arg;
    if (rename(w->part, w->path) < 0) {
        return -errno;
    }
    w->made = false;
    char *copy = strdup(w->path);
    if (!copy) {
        return -ENOMEM;
    }
    int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = folder < 0 || fsync(folder) < 0 ? -errno : 0;
    if (folder >= 0) {
        close(folder);
    }
    free(copy);
    /* Some file systems do not sync folders; the file is in its place all the same. */
    return r == -EINVAL ? 0 : r;
}

int leaves_commit(struct leaves_writer *w, struct leaves_header *h, struct error *err)
{
    uint8_t header[LEAVES_HEADER_BYTES];
    int r = write_chunk(w, err);
    if (r < 0) {
        return r;
    }
    h->count = w->count;
    leaves_build(h, header);
    r = fileio_write(w->fd, header, sizeof(header), 0, 0);
    if (r == 0) {
        r = fileio_fsync(w->fd);
    }
    if (r == 0) {
        r = offload(rename_blocking, w);
    }
    return r < 0 ? leaves_fail(err, -r, w->path, "write") : 0;
}

static int remove_blocking(void *arg)
{
    struct leaves_writer *w = arg;
    if (w->fd >= 0) {
        close(w->fd);
    }
    if (w->made) {
        unlink(w->part);
    }
    return 0;
}

void leaves_writer_free(struct leaves_writer *w)
{
    if (!w) {
        return;
    }
    offload(remove_blocking, w);
    free(w->path);
    free(w->part);
    free(w);
}
