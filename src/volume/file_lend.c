/*
 * Lending the page cache: a range of the file that sendfile(2) can send without touching a disk.
 *
 * All of the range must be resident now. cachestat(2) (Linux 6.5) counts its pages in one call;
 * where it is missing or refused, one byte of each page is read with RWF_NOWAIT. A page that is
 * there may still be on its way from the disk, so the last one, which arrives last, is read that
 * way in both cases. Files in memory (tmpfs) refuse RWF_NOWAIT: there a page that is cached is
 * ready, and without cachestat all of the file is taken to be in memory (what was swapped out costs
 * a wait). What the kernel evicts between the question and the sending is read again by sendfile:
 * rare, and right.
 */
#include "core/size.h"
#include "volume/file.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
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
    return preadv2(fd, &iov, 1, (off_t)off, RWF_NOWAIT) == 1;
}

/* What is in memory is ready as long as the file still reaches that far. */
static bool memory_ready(int fd, uint64_t off)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (uint64_t)st.st_size > off;
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
    if (resident < 0) {
        resident = f->memory || probe_pages(f, off, len);
    }
    uint64_t last = off + len - 1;
    if (!resident || !(f->memory ? memory_ready(f->fd, last) : byte_ready(f->fd, last))) {
        return -EAGAIN;
    }
    *ret = (struct lent){.fd = f->fd, .offset = off, .length = len};
    return 0;
}
