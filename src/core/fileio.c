/*
 * File I/O that parks the fiber (fileio.h): exact transfers made of single requests.
 *
 * A request goes to the worker's ring, else to the thread pool, and outside of a fiber it is the
 * plain system call. Reads first ask the page cache (RWF_NOWAIT): what is resident is copied at
 * once, which is several times faster than a round through ring and loop. Writes never try that:
 * a write into the page cache may be throttled for the disk, and on many file systems NOWAIT
 * writes are refused anyway.
 *
 * Files in memory (tmpfs) refuse RWF_NOWAIT and never need it: they are read and written with the
 * plain calls, in pieces, since a round through ring or pool costs more than the copy.
 *
 * A file system that does not know RWF_NOWAIT, and a file that is open with O_DIRECT (where NOWAIT
 * still waits for the disk), is left alone for some reads; what is remembered is a small counter
 * by descriptor number, so that a reused number cannot be wrong for long, and wrong only in speed.
 */
#include "core/fileio.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif

#include "core/log.h"
#include "core/pool.h"
#include "core/uring.h"
#include "core/worker_impl.h"

/* The longest copy out of the page cache between two turns of the loop: some 200 us. */
#define NOWAIT_BYTES (1u << 20)
#define THREAD_WRITE_BYTES (64u << 10)
#define NOWAIT_SKIP 255 /* reads until a refused NOWAIT is tried again */

static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
static bool engine_uring;
static bool engine_forced; /* everything goes through it, memory files too */

static void choose_engine(void)
{
    const char *want = getenv("PENSTOCK_IO");
    int r;

    engine_forced = want && *want;
    if (want && strcmp(want, "threads") == 0) {
        return;
    }
    if (want && *want && strcmp(want, "uring") != 0) {
        log_warning("PENSTOCK_IO=%.32s is neither \"uring\" nor \"threads\": ignored", want);
        want = NULL;
    }
    r = uring_probe();
    if (r == 0) {
        engine_uring = true;
    } else if (want && *want) {
        log_warning("PENSTOCK_IO=uring: %s; file I/O goes to threads instead", strerror(-r));
    }
}

static struct uring *worker_ring(struct worker *w)
{
    int r;

    if (w->uring_tried) {
        return w->uring;
    }
    w->uring_tried = true;
    pthread_once(&engine_once, choose_engine);
    if (engine_uring) {
        r = uring_new(w, &w->uring);
        if (r < 0) {
            log_info("no io_uring for this worker (%s): file I/O goes to threads", strerror(-r));
        }
    }
    return w->uring;
}

const char *fileio_engine(void)
{
    return worker_current && worker_ring(worker_current) ? "io_uring" : "threads";
}

int fileio_uring_probe(void)
{
    return uring_probe();
}

/* The plain system call. */
static void call_kernel(struct io_request *r)
{
    struct iovec iov = {.iov_base = r->buf, .iov_len = (size_t)r->length};
    int64_t n = -1;

    switch (r->op) {
    case IO_READ:
        n = pread(r->fd, r->buf, (size_t)r->length, (off_t)r->offset);
        break;
    case IO_WRITE:
        n = r->flags ? pwritev2(r->fd, &iov, 1, (off_t)r->offset, r->flags)
                     : pwrite(r->fd, r->buf, (size_t)r->length, (off_t)r->offset);
        break;
    case IO_FDATASYNC:
        n = fdatasync(r->fd);
        break;
    case IO_FSYNC:
        n = fsync(r->fd);
        break;
    case IO_FALLOCATE:
        n = fallocate(r->fd, r->flags, (off_t)r->offset, (off_t)r->length);
        break;
    }
    r->result = n < 0 ? -errno : n;
}

struct pool_request {
    struct pool_job job;
    struct io_request *request;
};

static void run_on_pool(struct pool_job *job)
{
    struct pool_request *p = (struct pool_request *)(void *)job;

    call_kernel(p->request);
}

static void run_by_threads(struct io_request *r)
{
    struct pool_request p = {.job.run = run_on_pool, .request = r};

    if (pool_run(POOL_FILE_IO, &p.job) < 0) {
        call_kernel(r); /* no thread to be had: slower for everybody is better than an error */
    }
}

/* One request; EINTR is handled. */
static int64_t run_request(struct io_request *r)
{
    do {
        struct fiber *f = fiber_self();
        struct uring *u = f ? worker_ring(f->worker) : NULL;

        if (u) {
            uring_run(u, r);
            if (r->result == -EAGAIN) {
                /* The ring honours O_NONBLOCK of the descriptor, read and write do not. */
                run_by_threads(r);
            }
        } else if (f) {
            run_by_threads(r);
        } else {
            call_kernel(r);
        }
    } while (r->result == -EINTR);
    return r->result;
}

static int64_t run_on_thread(struct io_request *r)
{
    do {
        run_by_threads(r);
    } while (r->result == -EINTR);
    return r->result;
}

/* The kernel's accesses are invisible to ASan: they are checked where they are ordered. */
static void check_buffer(const void *buf, size_t len)
{
#if CONTEXT_ASAN
    union {
        const void *in;
        void *out;
    } p = {.in = buf};

    if (__asan_region_is_poisoned(p.out, len)) {
        log_error("file I/O with a buffer of %zu bytes at %p that is not addressable", len, buf);
        abort();
    }
#else
    (void)buf;
    (void)len;
#endif
}

static bool valid_range(uint64_t offset, uint64_t length)
{
    return offset <= INT64_MAX && length <= INT64_MAX - offset;
}

bool fileio_is_memory(int fd)
{
    struct statfs fs;

    if (fstatfs(fd, &fs) != 0) {
        return false;
    }
    return fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC || fs.f_type == HUGETLBFS_MAGIC;
}

/* What is known of a descriptor, asked of the kernel only now and then. */
static const struct file_hint *file_hint(struct worker *w, int fd)
{
    struct file_hint *hint = &w->file_hints[(unsigned)fd % FILE_HINTS];

    if (hint->left == 0 || hint->fd != fd) {
        int flags = fcntl(fd, F_GETFL);
        bool direct = flags >= 0 && (flags & O_DIRECT);

        *hint = (struct file_hint){.fd = fd,
                                   .left = UINT8_MAX,
                                   .direct = direct,
                                   .memory = !direct && fileio_is_memory(fd)};
    }
    hint->left--;
    return hint;
}

static bool plain_is_fast(struct worker *w, int fd)
{
    pthread_once(&engine_once, choose_engine);
    return !engine_forced && file_hint(w, fd)->memory;
}

/*
 * Whether a write is better off with a thread of ours than with the ring: buffered writes are
 * punted to the kernel's workers, one at a time a file, which took twice the CPU of a plain write
 * for large ones (measured on ext4); for small ones the ring's cheaper hand-over counts more.
 */
static bool write_by_thread(struct worker *w, int fd, size_t len)
{
    return len >= THREAD_WRITE_BYTES && !engine_forced && !file_hint(w, fd)->direct;
}

/* Up to len bytes in pieces, with a turn for others between them. Stops at the first short one. */
static int64_t run_plain(enum io_op op, int fd, char *buf, size_t len, uint64_t offset)
{
    size_t total = 0;

    while (total < len) {
        size_t piece = len - total < NOWAIT_BYTES ? len - total : NOWAIT_BYTES;
        struct io_request r = {
            .op = op, .fd = fd, .buf = buf + total, .length = piece, .offset = offset + total};

        call_kernel(&r);
        if (r.result < 0 && r.result != -EINTR) {
            return total ? (int64_t)total : r.result;
        }
        if (r.result == 0) {
            break;
        }
        total += r.result > 0 ? (size_t)r.result : 0;
        if (total < len) {
            fiber_yield();
        }
    }
    return (int64_t)total;
}

static bool nowait_wanted(struct worker *w, int fd)
{
    uint8_t *skip = &w->nowait_skip[(unsigned)fd % sizeof w->nowait_skip];

    if (*skip > 0) {
        (*skip)--;
        return false;
    }
    return !file_hint(w, fd)->direct;
}

/*
 * Copies what the page cache has at the start of the range. Bytes, and *ret_end when the file ends
 * behind them. Errors are left to the waiting path, which will see them too.
 */
static size_t read_resident(int fd, char *buf, size_t len, uint64_t offset, bool *ret_end)
{
    struct worker *w = worker_current;
    size_t total = 0;

    *ret_end = false;
    if (!nowait_wanted(w, fd)) {
        return 0;
    }
    while (total < len) {
        size_t piece = len - total < NOWAIT_BYTES ? len - total : NOWAIT_BYTES;
        struct iovec iov = {.iov_base = buf + total, .iov_len = piece};
        ssize_t n = preadv2(fd, &iov, 1, (off_t)(offset + total), RWF_NOWAIT);

        if (n < 0) {
            if (errno == EOPNOTSUPP || errno == ENOSYS) {
                w->nowait_skip[(unsigned)fd % sizeof w->nowait_skip] = NOWAIT_SKIP;
            }
            break;
        }
        if (n == 0) {
            *ret_end = true;
            break;
        }
        total += (size_t)n;
        if ((size_t)n < piece) {
            break; /* not resident, or the end: the next one tells */
        }
        if (total < len) {
            fiber_yield();
        }
    }
    return total;
}

/* After a short O_DIRECT read at an unaligned end of the file the next one is refused. */
static bool at_end(int fd, uint64_t offset)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && offset >= (uint64_t)st.st_size;
}

ssize_t fileio_read(int fd, void *buf, size_t len, uint64_t offset)
{
    char *to = buf;
    size_t total = 0;
    bool end = false;

    if (!valid_range(offset, len)) {
        return -EINVAL;
    }
    check_buffer(buf, len);
    if (fiber_self() && len > 0) {
        if (plain_is_fast(worker_current, fd)) {
            return run_plain(IO_READ, fd, to, len, offset);
        }
        total = read_resident(fd, to, len, offset, &end);
    }
    while (!end && total < len) {
        size_t left = len - total;
        struct io_request r = {.op = IO_READ,
                               .fd = fd,
                               .buf = to + total,
                               .length = left < IO_LENGTH_MAX ? left : IO_LENGTH_MAX,
                               .offset = offset + total};
        int64_t n = run_request(&r);

        if (n == -EINVAL && total > 0 && at_end(fd, offset + total)) {
            break;
        }
        if (n < 0) {
            return (ssize_t)n;
        }
        if (n == 0) {
            break;
        }
        total += (size_t)n;
    }
    return (ssize_t)total;
}

int fileio_write(int fd, const void *buf, size_t len, uint64_t offset, int flags)
{
    /* struct io_request has one pointer for both directions; the kernel only reads this one */
    union {
        const char *in;
        char *out;
    } from = {.in = buf};
    size_t total = 0;

    if (!valid_range(offset, len)) {
        return -EINVAL;
    }
    check_buffer(buf, len);
    if (fiber_self() && len > 0 && plain_is_fast(worker_current, fd)) {
        int64_t n = run_plain(IO_WRITE, fd, from.out, len, offset);

        if (n < 0) {
            return (int)n;
        }
        total = (size_t)n; /* what is missing (a full disk) fails below, with its errno */
    }
    bool by_thread = fiber_self() && write_by_thread(worker_current, fd, len - total);
    while (total < len) {
        size_t left = len - total;
        struct io_request r = {.op = IO_WRITE,
                               .fd = fd,
                               .buf = from.out + total,
                               .length = left < IO_LENGTH_MAX ? left : IO_LENGTH_MAX,
                               .offset = offset + total,
                               .flags = flags};
        int64_t n = by_thread ? run_on_thread(&r) : run_request(&r);

        if (n == -EOPNOTSUPP && flags == RWF_DSYNC) {
            int e = fileio_write(fd, from.in + total, left, offset + total, 0);

            return e < 0 ? e : fileio_fdatasync(fd);
        }
        if (n < 0) {
            return (int)n;
        }
        if (n == 0) {
            return -EIO; /* no file or device does that; without an end there would be no end */
        }
        total += (size_t)n;
    }
    return 0;
}

int fileio_fdatasync(int fd)
{
    struct io_request r = {.op = IO_FDATASYNC, .fd = fd};

    return (int)run_request(&r);
}

int fileio_fsync(int fd)
{
    struct io_request r = {.op = IO_FSYNC, .fd = fd};

    return (int)run_request(&r);
}

int fileio_fallocate(int fd, int mode, uint64_t offset, uint64_t length)
{
    struct io_request r = {
        .op = IO_FALLOCATE, .fd = fd, .offset = offset, .length = length, .flags = mode};

    if (!valid_range(offset, length)) {
        return -EINVAL;
    }
    return (int)run_request(&r);
}
