/*
 * libpenstock: what the penstock commands are made of, for programs.
 *
 * Functions return 0 (or more) on success and a negative errno otherwise, unless they say so.
 * Nothing here prints or exits. Any thread may call anything; one object is used by one thread at
 * a time.
 */
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0" */
const char *penstock_version(void);

/*
 * Wrapping a file for saving or restoring a stream: the caller gets one end of a pipe that is as
 * large as the kernel allows up to 1 MiB, and a helper moves the bytes between the other end and
 * the file, reading and writing at the same time.
 */
struct penstock_fdwrap;

enum penstock_fdwrap_flags {
    /* Bypass the page cache. An O_DIRECT flag that is set on the descriptor says the same. */
    PENSTOCK_FDWRAP_DIRECT = 1 << 0,
    /* The helper is a process of its own (the program "penstock" from PATH, or what the
     * environment variable PENSTOCK_PROGRAM names) instead of a thread. */
    PENSTOCK_FDWRAP_PROCESS = 1 << 1,
};

/*
 * *fd is open either for reading only (restore) or for writing only (save), and stands where the
 * stream begins. On success *fd is replaced by the pipe's end, which the caller closes, and *ret is
 * the caller's; the original descriptor is taken over. On failure *fd is as it was. name is for
 * messages. A pipe that could not be made larger is no failure; see
 * penstock_fdwrap_pipe_size().
 *
 * -EINVAL: fd is open for both; -EBADF; -ENOMEM; -EMFILE; -ENOENT (no program for the process).
 */
int penstock_fdwrap_open(int *fd, const char *name, unsigned flags, struct penstock_fdwrap **ret);

/* Bytes that the pipe holds. */
size_t penstock_fdwrap_pipe_size(const struct penstock_fdwrap *w);

/*
 * Waits for the helper's end; the caller has closed the pipe's end before, or this waits for ever.
 * After a save 0 means that every byte is in the file and on the disk. On failure the first error's
 * -errno, and its text (if text is not NULL, at most size bytes, always terminated). A second call
 * returns the same again.
 */
int penstock_fdwrap_close(struct penstock_fdwrap *w, char *text, size_t size);

/* Closes if that was not done, ignoring what it says. NULL is fine. */
void penstock_fdwrap_free(struct penstock_fdwrap *w);

#ifdef __cplusplus
}
#endif

#endif
