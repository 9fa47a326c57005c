/*
 * Locks on a disk that QEMU and its tools understand (and take themselves).
 *
 * There are four permissions; each has a byte that its users hold a shared lock on (100 + its bit)
 * and a byte that those hold a shared lock on who do not let others have it (200 + its bit). So
 * first all our bytes are locked, and then it is asked, without waiting, whether somebody holds
 * the opposite byte of any of them. Whoever comes second sees the first; when two come at once both
 * may be refused, and never both let in. The locks belong to the open file (OFD), so they end with
 * it, and with the process.
 *
 * A reader reads and lets nobody else write or resize; a writer reads and writes (and resizes when
 * asked to) and lets nobody else do so.
 */
#include "core/log.h"
#include "volume/file.h"

#include <errno.h>
#include <fcntl.h>

enum perm { PERM_READ, PERM_WRITE, PERM_WRITE_UNCHANGED, PERM_RESIZE, PERMS };

#define USES_BASE 100
#define DENIES_BASE 200

static const char *const perm_names[PERMS] = {"consistent read", "write", "unchanged write",
                                              "resize"};

static int lock_byte(int fd, short type, off_t byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) < 0 ? -errno : 0;
}

/* Whether anybody else has a lock on byte: 1, 0 or -errno. */
static int is_locked(int fd, off_t byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (fcntl(fd, F_OFD_GETLK, &lock) < 0) {
        return -errno;
    }
    return lock.l_type != F_UNLCK;
}

static int conflict(const char *how, int perm, struct error *err)
{
    return error_set(
        err, EBUSY,
        "another process %s (its \"%s\" lock): is the disk in use, by a running VM for "
        "example? --no-lock goes ahead all the same",
        how, perm_names[perm]);
}

static int take(int fd, unsigned uses, unsigned denies, struct error *err)
{
    for (int i = 0; i < PERMS; i++) {
        int r = uses & 1u << i ? lock_byte(fd, F_RDLCK, USES_BASE + i) : 0;
        if (r == 0 && (denies & 1u << i)) {
            r = lock_byte(fd, F_RDLCK, DENIES_BASE + i);
        }
        if (r == -EAGAIN || r == -EACCES) {
            return conflict("has locked it whole", i, err);
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int check(int fd, unsigned uses, unsigned denies, struct error *err)
{
    for (int i = 0; i < PERMS; i++) {
        int r = uses & 1u << i ? is_locked(fd, DENIES_BASE + i) : 0;
        if (r > 0) {
            return conflict("lets nobody else use it so", i, err);
        }
        if (r == 0 && (denies & 1u << i)) {
            r = is_locked(fd, USES_BASE + i);
            if (r > 0) {
                return conflict("uses it", i, err);
            }
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

int file_lock(int fd, bool write, bool resize, struct error *err)
{
    unsigned uses = 1u << PERM_READ;
    unsigned denies = 1u << PERM_WRITE | 1u << PERM_RESIZE;
    if (write) {
        uses |= 1u << PERM_WRITE;
    }
    if (resize) {
        uses |= 1u << PERM_RESIZE;
    }
    int r = take(fd, uses, denies, err);
    if (r == 0) {
        r = check(fd, uses, denies, err);
    }
    if (r < 0 && r != -EBUSY) {
        log_debug("no locks on this file system (error %d)", -r);
        return 0;
    }
    return r;
}
