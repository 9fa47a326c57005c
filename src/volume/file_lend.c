/*
 * Lending the page cache: a range of the file that sendfile(2) can send without touching a disk.
 *
 * All of the range must be resident now. cachestat(2) (Linux 6.5) counts its pages in one call;
 * where it is missing or refused, one byte of each page is read with RWF_NOWAIT. A page that is
 * there may still be on its way from the disk, so the last one, which arrives last, is read that
 * way in both cases (but on tmpfs, which does not know RWF_NOWAIT and has nothing on its way: a
 * page that is counted is there). What the kernel evicts between the question and the sending is
 * read again by sendfile: rare, and right.
 */
#include "core/size.h"
#include "volume/file.h"

#include <errno.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* the same on every architecture */
#endif

/* As the kernel defines them; libc headers of Debian 12 do not know them. */
struct cachestat_range {
    uint64_t off;
    uint64_t len;
};

struct cachestat {
    uint64_t cached;
    uint64_t dirty;
    uint64_t writeback;
    uint64_t evicted;
    uint64_t recently_evicted;
};

#define PROBE_PAGES_MAX 512u

static bool byte_ready(int fd, uint64_t off)
{
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    errno = 0;
    return preadv2(fd, &iov, 1, (off_t)off, RWF_NOWAIT) == 1;
}

/* On tmpfs pages are in memory or in swap, and cachestat counts only the former. The file must
 * reach beyond off still: elsewhere the read of its last byte says so. */
static bool in_memory(int fd, uint64_t off)
{
    struct statfs fs;
    struct stat st;
    return fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC && fstat(fd, &st) == 0 &&
           (uint64_t)st.st_size > off;
}

static bool last_byte_ready(struct file *f, uint64_t off, bool counted)
{
    if (!atomic_load_explicit(&f->no_nowait, memory_order_relaxed)) {
        if (byte_ready(f->fd, off)) {
            return true;
        }
        if (errno != EOPNOTSUPP) {
            return false;
        }
        atomic_store_explicit(&f->no_nowait, true, memory_order_relaxed);
    }
    return counted && in_memory(f->fd, off);
}

static uint64_t page_size(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* 1: all resident, 0: not, -1: cannot be asked. */
static int ask_cachestat(struct file *f, uint64_t off, uint64_t len)
{
    if (atomic_load_explicit(&f->no_cachestat, memory_order_relaxed)) {
        return -1;
    }
    struct cachestat_range range = {.off = off, .len = len};
    struct cachestat stat;
    if (syscall(SYS_cachestat, f->fd, &range, &stat, 0) < 0) {
        atomic_store_explicit(&f->no_cachestat, true, memory_order_relaxed);
        return -1;
    }
    uint64_t page = page_size();
    uint64_t pages = (off + len - 1) / page - off / page + 1;
    return stat.cached >= pages;
}

static bool probe_pages(struct file *f, uint64_t off, uint64_t len)
{
    uint64_t page = page_size();
    if (len / page > PROBE_PAGES_MAX) {
        return false;
    }
    for (uint64_t at = off; at < off + len; at = align_down(at, page) + page) {
        if (!byte_ready(f->fd, at)) {
            return false;
        }
    }
    return true;
}

int file_lend(struct volume *v, uint64_t off, uint64_t len, struct lent *ret)
{
    struct file *f = file_of(v);
    if (f->direct) {
        return -EAGAIN;
    }
    int resident = ask_cachestat(f, off, len);
    bool counted = resident >= 0;
    if (!counted) {
        resident = probe_pages(f, off, len);
    }
    if (!resident || !last_byte_ready(f, off + len - 1, counted)) {
        return -EAGAIN;
    }
    *ret = (struct lent){.fd = f->fd, .offset = off, .length = len};
    return 0;
}
