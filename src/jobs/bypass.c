/*
 * See bypass.h.
 */
#include "jobs/bypass.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

bool bypass_is_set(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT);
}

int bypass_reopen(int fd, int access, bool direct)
{
    char self[64];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    int copy = open(self, access | (direct ? O_DIRECT : 0) | O_CLOEXEC);
    return copy < 0 ? -errno : copy;
}

int bypass_cached(int fd, int access, bool *owned)
{
    *owned = false;
    if (!bypass_is_set(fd)) {
        return fd;
    }
    int copy = bypass_reopen(fd, access, false);
    if (copy >= 0) {
        *owned = true;
        return copy;
    }
    /* Rights to the path were dropped: change the open file that we were given. */
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0 ? fd : copy;
}
