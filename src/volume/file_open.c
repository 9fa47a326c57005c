/*
 * Opening a file or block device: on the thread pool, since every step may wait for a disk or a
 * server.
 *
 * The order matters: the lock is taken before anything is looked at or truncated; what the file
 * already holds is checked before it may be written (a disk image of a format that would have to
 * be guessed is never written to as if it were raw); O_DIRECT is switched on last. A file that was
 * made here is removed again when a later step fails.
 */
#include "core/fileio.h"
#include "core/size.h"
#include "volume/drivers.h"
#include "volume/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

struct magic {
    const char *format;
    size_t offset;
    size_t len;
    char bytes[24];
};

/* What the first 512 bytes of an image say it is. */
static const struct magic magics[] = {
    {"qcow", 0, 4, "QFI\xfb"},
    {"QED", 0, 4, "QED\0"},
    {"VMDK", 0, 4, "KDMV"},
    {"VMDK", 0, 4, "COWD"},
    {"VMDK", 0, 21, "# Disk DescriptorFile"},
    {"VHDX", 0, 8, "vhdxfile"},
    {"VHD", 0, 8, "conectix"},
    {"VDI", 64, 4, "\x7f\x10\xda\xbe"},
    {"LUKS", 0, 6, "LUKS\xba\xbe"},
    {"Parallels", 0, 16, "WithoutFreeSpace"},
    {"Parallels", 0, 16, "WithouFreSpacExt"},
};

int image_refuse(const void *head, size_t n, struct error *err)
{
    for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++) {
        const struct magic *m = &magics[i];
        if (m->offset + m->len <= n &&
            memcmp((const char *)head + m->offset, m->bytes, m->len) == 0) {
            return error_set(
                err, EINVAL,
                "it starts like a %s image, so it is not written to as if it were raw; "
                "say -f raw if its bytes are to be overwritten",
                m->format);
        }
    }
    return 0;
}

static int refuse_known_formats(int fd, struct error *err)
{
    char head[512];
    ssize_t n = pread(fd, head, sizeof(head), 0);
    if (n < 0) {
        return error_set(err, errno, "cannot read its first bytes");
    }
    return image_refuse(head, (size_t)n, err);
}

/*
 * O_EXCL for a block device that is to be written: the kernel then refuses one that is mounted or
 * part of another device, and a second writer.
 */
static int exclusive_flag(const char *path, const struct endpoint_options *o)
{
    struct stat st;
    if (!o->writable || !o->lock || stat(path, &st) < 0) {
        return 0;
    }
    return S_ISBLK(st.st_mode) ? O_EXCL : 0;
}

/* fd, or -errno. *made: the file is new. */
static int open_or_make(const char *path, const struct endpoint_options *o, bool *made)
{
    /* O_NONBLOCK so that a FIFO does not hang us; switched off again by set_flags(). */
    int flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (o->writable ? O_RDWR : O_RDONLY);
    *made = false;
    if (!o->writable || !o->create) {
        int fd = open(path, flags | exclusive_flag(path, o));
        return fd < 0 ? -errno : fd;
    }
    for (int tries = 0; tries < 16; tries++) {
        int fd = open(path, flags | O_CREAT | O_EXCL, 0666);
        if (fd >= 0) {
            *made = true;
            return fd;
        }
        if (errno != EEXIST || o->exclusive_create) {
            return -errno;
        }
        fd = open(path, flags | exclusive_flag(path, o));
        if (fd >= 0 || errno != ENOENT) {
            return fd < 0 ? -errno : fd;
        }
        /* EEXIST, then ENOENT: somebody removed it in between, or it is a dangling link. */
    }
    return -ENOENT;
}

static const char *not_a_disk(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "it is a directory";
    case S_IFIFO:
        return "it is a FIFO, which cannot be read at an offset (- and fd:N are for pipes)";
    case S_IFSOCK:
        return "it is a socket (nbd+unix:///?socket=PATH for an NBD server's)";
    case S_IFCHR:
        return "it is a character device";
    default:
        return NULL;
    }
}

static int explain_open(const char *path, int code, const struct endpoint_options *o,
                        struct error *err)
{
    struct stat st;
    const char *why = NULL;
    if ((code == ENXIO || code == EISDIR) && stat(path, &st) == 0) {
        why = not_a_disk(st.st_mode);
    }
    if (why) {
        return error_set(err, code == EISDIR ? EISDIR : EINVAL, "%s", why);
    }
    if (code == EBUSY) {
        return error_set(err, code,
                         "the device is in use: mounted, part of another device, or written by "
                         "somebody else; --no-lock goes ahead all the same");
    }
    if (code == EEXIST) {
        return error_set(err, code, "it exists already, and was to be made new");
    }
    return error_set(err, code, "cannot open it for %s", o->writable ? "writing" : "reading");
}

/*
 * Some files have no size but contents: those of /proc are made as they are read. Taken for a disk
 * they would be an empty one, without an error.
 */
static int refuse_unsized(int fd, struct error *err)
{
    char byte;
    struct stat st;
    if (pread(fd, &byte, 1, 0) <= 0 || fstat(fd, &st) < 0 || st.st_size > 0) {
        return 0; /* empty, or not any more */
    }
    return error_set(err, EINVAL,
                     "it has contents but no size, like the files of /proc, so it is not a disk "
                     "(as a pipe it can be copied: cat FILE | penstock copy - TARGET)");
}

/* Size of a file: made, cut or grown as o says. Sets VOLUME_READS_ZERO where that is known. */
static int regular_size(struct file *f, const struct stat *st, const struct endpoint_options *o,
                        bool made, struct error *err)
{
    struct volume *v = &f->volume;
    v->size = (uint64_t)st->st_size;
    int r = v->size == 0 && !made ? refuse_unsized(f->fd, err) : 0;
    if (r < 0) {
        return r;
    }
    if (o->writable && (made || o->set_size) && o->create_size != v->size) {
        if (o->create_size > VOLUME_SIZE_MAX) {
            return error_set(err, EFBIG, "no file can be that large");
        }
        if (ftruncate(f->fd, (off_t)o->create_size) < 0) {
            return error_set(err, errno, "cannot set its size to %llu bytes",
                             (unsigned long long)o->create_size);
        }
        v->size = o->create_size;
    }
    if (o->writable && st->st_size == 0) {
        v->caps |= VOLUME_READS_ZERO;
    }
    uint64_t preferred = st->st_blksize > 0 ? (uint64_t)st->st_blksize : 4096;
    v->limits.preferred = 4096;
    while (v->limits.preferred < preferred && v->limits.preferred < (1u << 20)) {
        v->limits.preferred *= 2;
    }
    v->limits.max_zero = FILE_ZERO_MAX;
    v->caps |= VOLUME_CAN_EXTENTS;
    return 0;
}

static int block_size(struct file *f, const struct endpoint_options *o, struct error *err)
{
    struct volume *v = &f->volume;
    int sector = 512;
    unsigned best = 4096;
    unsigned short rotational = 0;
    if (ioctl(f->fd, BLKGETSIZE64, &v->size) < 0 || ioctl(f->fd, BLKSSZGET, &sector) < 0) {
        return error_set(err, errno, "cannot ask the device for its size");
    }
    if (sector < 512 || sector > 65536 || (sector & (sector - 1)) != 0) {
        return error_set(err, EINVAL, "the device has sectors of %d bytes", sector);
    }
    if (v->size > VOLUME_SIZE_MAX) {
        return error_set(err, EFBIG, "the device is too large");
    }
    if (o->writable && o->set_size && o->create_size > v->size) {
        return error_set(err, ENOSPC, "the device has %llu bytes, and %llu are needed",
                         (unsigned long long)v->size, (unsigned long long)o->create_size);
    }
    v->limits.min = (uint32_t)sector;
    if (ioctl(f->fd, BLKIOMIN, &best) < 0 || best > (1u << 20) || (best & (best - 1)) != 0) {
        best = 4096;
    }
    v->limits.preferred = (uint32_t)max_u64(max_u64(best, 4096), (uint64_t)sector);
    if (ioctl(f->fd, BLKROTATIONAL, &rotational) == 0 && rotational) {
        v->caps |= VOLUME_IS_ROTATIONAL;
    }
    v->limits.max_zero = FILE_ZERO_MAX_BLOCK;
    return 0;
}

static int set_flags(struct file *f, const char *path, struct error *err)
{
    int flags = fcntl(f->fd, F_GETFL);
    flags &= ~O_NONBLOCK;
    if (fcntl(f->fd, F_SETFL, f->direct ? flags | O_DIRECT : flags) < 0) {
        return error_set(err, errno,
                         f->direct ? "its file system cannot do without a cache (O_DIRECT)"
                                   : "cannot set its flags");
    }
    if (!f->direct) {
        return 0;
    }
    int r = file_find_alignment(f, err);
    if (r < 0 || f->block) {
        return r;
    }
    /* A second, buffered descriptor for an odd tail. The kernel keeps the two coherent. */
    struct stat a;
    struct stat b;
    f->tail_fd = open(path, (flags & O_ACCMODE) | O_CLOEXEC | O_NOCTTY);
    if (f->tail_fd < 0 || fstat(f->fd, &a) < 0 || fstat(f->tail_fd, &b) < 0) {
        return error_set(err, errno, "cannot open it a second time");
    }
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino) {
        return error_set(err, EAGAIN, "it was replaced while it was opened");
    }
    return 0;
}

static int set_up(struct file *f, const char *path, const struct endpoint_options *o, bool made,
                  struct error *err)
{
    struct volume *v = &f->volume;
    struct stat st;
    if (fstat(f->fd, &st) < 0) {
        return error_set(err, errno, "cannot stat it");
    }
    const char *why = not_a_disk(st.st_mode);
    if (why) {
        return error_set(err, S_ISDIR(st.st_mode) ? EISDIR : EINVAL, "%s", why);
    }
    f->block = S_ISBLK(st.st_mode);
    f->direct = o->cache == CACHE_NONE;
    f->memory = fileio_is_memory(f->fd);
    f->writethrough = o->cache == CACHE_WRITETHROUGH;
    bool resize = o->writable && !f->block && (made || o->set_size);
    int r = o->lock ? file_lock(f->fd, o->writable, resize, err) : 0;
    if (r >= 0 && o->writable && !o->raw && !made) {
        r = refuse_known_formats(f->fd, err);
    }
    if (r >= 0) {
        r = f->block ? block_size(f, o, err) : regular_size(f, &st, o, made, err);
    }
    if (r >= 0) {
        r = set_flags(f, path, err);
    }
    if (r < 0) {
        return r;
    }
    v->caps |= VOLUME_IS_COHERENT | (f->direct ? 0 : VOLUME_CAN_CACHE);
    if (o->writable) {
        v->caps |= VOLUME_CAN_WRITE | VOLUME_CAN_FLUSH | VOLUME_CAN_FUA | VOLUME_CAN_ZERO |
                   VOLUME_CAN_FAST_ZERO | VOLUME_CAN_DISCARD;
    }
    if (resize) {
        v->caps |= VOLUME_CAN_RESIZE;
    }
    return 0;
}

int file_open_blocking(struct file *f, const char *path, const struct endpoint_options *o,
                       struct error *err)
{
    bool made;
    f->fd = open_or_make(path, o, &made);
    if (f->fd < 0) {
        return explain_open(path, -f->fd, o, err);
    }
    int r = set_up(f, path, o, made, err);
    if (r < 0 && made) {
        unlink(path);
    }
    return r;
}
