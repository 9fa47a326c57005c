/*
 * Where a file's holes are: SEEK_DATA and SEEK_HOLE, on the thread pool.
 *
 * On tmpfs (and some network file systems) SEEK_HOLE walks page by page to the end of the data, no
 * matter how little of it was asked about; a hundred callers that each ask for their own part of
 * one long run would walk it a hundred times. So one caller seeks at a time, and the data extent
 * that was found last is kept: the next caller is most often in it. Only data is kept, never a
 * hole: to call a hole data costs time, to call data a hole costs the data. It is dropped when this
 * volume zeros or discards, and after a second, since others may punch the file too.
 */
#include "core/fiber.h"
#include "core/size.h"
#include "volume/file.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#define KEEP_NS 1000000000ull
#define EXTENTS_AT_ONCE 1024u

void file_map_init(struct file *f)
{
    fmutex_init(&f->map.mutex);
    atomic_init(&f->map.generation, 0);
}

void file_map_done(struct file *f)
{
    fmutex_done(&f->map.mutex);
}

void file_map_forget(struct file *f)
{
    atomic_fetch_add(&f->map.generation, 1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static bool known(const struct file_map *m, uint64_t off)
{
    return off >= m->start && off < m->end && m->seen == atomic_load(&m->generation) &&
           now_ns() - m->found_ns < KEEP_NS;
}

struct seek_job {
    struct file *file;
    uint64_t off;
    uint64_t end;
    struct extent *out;
    size_t max;
    size_t count;
};

static void put(struct seek_job *job, uint64_t upto, uint32_t flags)
{
    if (upto > job->off) {
        job->out[job->count++] = (struct extent){.length = upto - job->off, .flags = flags};
        job->off = upto;
    }
}

/*
 * No data from here to the end of the file, wherever that is by now. A file that has become shorter
 * than its volume has no zeros beyond its end, it has nothing: "data" there lets the read fail.
 */
static int put_last_hole(struct seek_job *job)
{
    off_t end = lseek(job->file->fd, 0, SEEK_END);
    if (end < 0) {
        return -errno;
    }
    put(job, min_u64((uint64_t)end, job->end), EXTENT_HOLE | EXTENT_ZERO);
    if (job->count < job->max) {
        put(job, job->end, 0);
    }
    return 0;
}

/* job->count < job->max, job->off < job->end. 0 or -errno. */
static int seek_pair(struct seek_job *job)
{
    struct file_map *m = &job->file->map;
    int fd = job->file->fd;
    unsigned generation = atomic_load(&m->generation);
    off_t data = lseek(fd, (off_t)job->off, SEEK_DATA);
    if (data < 0) {
        return errno == ENXIO ? put_last_hole(job) : -errno;
    }
    uint64_t start = (uint64_t)data;
    put(job, min_u64(start, job->end), EXTENT_HOLE | EXTENT_ZERO);
    if (job->off == job->end || job->count == job->max) {
        return 0;
    }
    off_t hole = lseek(fd, (off_t)start, SEEK_HOLE);
    if (hole < 0 && errno != ENXIO) {
        return -errno;
    }
    uint64_t end = hole < 0 || (uint64_t)hole <= start ? job->end : (uint64_t)hole;
    m->start = start;
    m->end = min_u64(end, job->file->volume.size);
    m->seen = generation;
    m->found_ns = now_ns();
    put(job, min_u64(end, job->end), 0);
    return 0;
}

static int seek_blocking(void *arg)
{
    struct seek_job *job = arg;
    while (job->off < job->end && job->count < job->max) {
        int r = seek_pair(job);
        if (r < 0) {
            return job->count > 0 ? 0 : r;
        }
    }
    return 0;
}

int file_extents(struct volume *v, uint64_t off, uint64_t len, struct extent *out, size_t max,
                 struct error *err)
{
    struct file *f = file_of(v);
    struct file_map *m = &f->map;
    if (f->block || atomic_load_explicit(&f->no_seek, memory_order_relaxed)) {
        return -ENOTSUP;
    }
    struct seek_job job = {.file = f, .off = off, .end = off + len, .out = out};
    job.max = min_u64(max, EXTENTS_AT_ONCE);
    int r = 0;
    fmutex_lock(&m->mutex);
    if (known(m, off)) {
        put(&job, min_u64(m->end, job.end), 0);
    } else {
        r = offload(seek_blocking, &job);
    }
    fmutex_unlock(&m->mutex);
    if (r == -EINVAL || r == -EOPNOTSUPP || r == -ENOSYS) {
        atomic_store_explicit(&f->no_seek, true, memory_order_relaxed);
        return -ENOTSUP;
    }
    if (r < 0) {
        return error_set(err, -r, "cannot find out where its holes are");
    }
    return (int)job.count;
}
