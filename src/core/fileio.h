/*
 * File I/O that parks the fiber: the worker's io_uring where the kernel gives one, else the
 * process's thread pool; PENSTOCK_IO=uring|threads forces one (uring: falls back with a warning
 * where it is refused). What the page cache can answer at once is answered without a switch
 * (preadv2 with RWF_NOWAIT), and so is everything in a file system of memory, unless PENSTOCK_IO
 * says otherwise.
 *
 * Positional, exact: short transfers are continued; reading at the end of the file gives what is
 * there. None of it is canceled (the kernel has the buffer). Buffers of O_DIRECT descriptors must
 * be aligned by the caller. Outside of a worker the plain system call is made.
 */
#ifndef CORE_FILEIO_H
#define CORE_FILEIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes read (less than len only at the end of the file), or -errno. */
ssize_t fileio_read(int fd, void *buf, size_t len, uint64_t offset);

/* 0 when all of it is written, or -errno. flags: RWF_DSYNC or 0. */
int fileio_write(int fd, const void *buf, size_t len, uint64_t offset, int flags);

int fileio_fdatasync(int fd); /* 0 or -errno */
int fileio_fsync(int fd);

/* 0 or -errno (EOPNOTSUPP as the kernel says it). mode: FALLOC_FL_... */
int fileio_fallocate(int fd, int mode, uint64_t offset, uint64_t length);

/* Whether the file lies in a file system of memory (tmpfs, ramfs, hugetlbfs): nothing on it waits
 * for a disk, so reads and writes are plain copies. Any thread. */
bool fileio_is_memory(int fd);

/* "io_uring" or "threads": what the calling worker uses. */
const char *fileio_engine(void);

/* Whether io_uring works here, for `tune` and `--version`: 0, or -errno of io_uring_setup. */
int fileio_uring_probe(void);

#endif
