/*
 * See leaves.h. Reading, and what both ways share; leaves_writer.c writes.
 *
 * Memory is bounded: digests go through buffers of LEAVES_CHUNK bytes, whatever the disk's size.
 */
#include "jobs/leaves.h"

#include "core/fiber.h"
#include "core/fileio.h"
#include "core/size.h"
#include "jobs/leaves_file.h"
#include "jobs/sum.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "penstock leaves\n"
#define VERSION 1u

enum {
    AT_VERSION = 16,
    AT_BEGIN = 20,
    AT_BLOCK = 24,
    AT_LENGTH = 28,
    AT_SIZE = 32,
    AT_COUNT = 40,
    AT_BLKHASH = 48,
    AT_NAME = 112,
    AT_REST = 160,
};

static uint64_t get(const uint8_t *p, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = bytes; i-- > 0;) {
        value = value << 8 | p[i];
    }
    return value;
}

static void set(uint8_t *p, unsigned bytes, uint64_t value)
{
    for (unsigned i = 0; i < bytes; i++) {
        p[i] = (uint8_t)(value >> (8 * i));
    }
}

/* Whether the numbers go together: everything after relies on that. */
static bool sensible(const struct leaves_header *h)
{
    uint32_t block = h->block_size;
    if (block < SUM_BLOCK_MIN || block > SUM_BLOCK_MAX || (block & (block - 1)) != 0) {
        return false;
    }
    if (h->digest_length == 0 || h->digest_length > BLKHASH_DIGEST_MAX || h->digest[0] == '\0') {
        return false;
    }
    return h->size <= VOLUME_SIZE_MAX && h->count == h->size / block + (h->size % block != 0);
}

int leaves_parse(const uint8_t *bytes, struct leaves_header *ret)
{
    struct leaves_header h = {
        .digest_length = (uint32_t)get(bytes + AT_LENGTH, 4),
        .block_size = (uint32_t)get(bytes + AT_BLOCK, 4),
        .size = get(bytes + AT_SIZE, 8),
        .count = get(bytes + AT_COUNT, 8),
    };
    memcpy(h.blkhash, bytes + AT_BLKHASH, sizeof(h.blkhash));
    memcpy(h.digest, bytes + AT_NAME, sizeof(h.digest));
    if (memcmp(bytes, MAGIC, strlen(MAGIC)) != 0 || get(bytes + AT_VERSION, 4) != VERSION ||
        get(bytes + AT_BEGIN, 4) != LEAVES_HEADER_BYTES || h.digest[sizeof(h.digest) - 1] != '\0' ||
        !sensible(&h)) {
        return -EINVAL;
    }
    *ret = h;
    return 0;
}

void leaves_build(const struct leaves_header *h, uint8_t *bytes)
{
    memset(bytes, 0, LEAVES_HEADER_BYTES);
    memcpy(bytes, MAGIC, strlen(MAGIC));
    set(bytes + AT_VERSION, 4, VERSION);
    set(bytes + AT_BEGIN, 4, LEAVES_HEADER_BYTES);
    set(bytes + AT_BLOCK, 4, h->block_size);
    set(bytes + AT_LENGTH, 4, h->digest_length);
    set(bytes + AT_SIZE, 8, h->size);
    set(bytes + AT_COUNT, 8, h->count);
    memcpy(bytes + AT_BLKHASH, h->blkhash, h->digest_length);
    memcpy(bytes + AT_NAME, h->digest, strnlen(h->digest, sizeof(h->digest) - 1));
}

struct leaves {
    int fd;
    char *path;
    uint64_t file_size;
    struct leaves_header header;
};

int leaves_fail(struct error *err, int code, const char *path, const char *what)
{
    error_set(err, code, "%s", what);
    error_endpoint(err, path);
    return -code;
}

/* On the thread pool. */
static int open_blocking(void *arg)
{
    struct leaves *l = arg;
    struct stat st;
    l->fd = open(l->path,
                 O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused, not waited for */
    if (l->fd < 0) {
        return -errno;
    }
    if (fstat(l->fd, &st) < 0) {
        return -errno;
    }
    l->file_size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    return 0;
}

static int read_header(struct leaves *l, struct error *err)
{
    uint8_t bytes[LEAVES_HEADER_BYTES] = {0};
    ssize_t n = l->file_size < sizeof(bytes) ? 0 : fileio_read(l->fd, bytes, sizeof(bytes), 0);
    if (n < 0) {
        return leaves_fail(err, (int)-n, l->path, "read");
    }
    if (leaves_parse(bytes, &l->header) < 0) {
        return leaves_fail(err, EINVAL, l->path, "this is no file of leaves");
    }
    /* count < 2^54 and length <= 64: no overflow */
    uint64_t want = LEAVES_HEADER_BYTES + l->header.count * l->header.digest_length;
    if (l->file_size != want) {
        return leaves_fail(err, EBADMSG, l->path, "damaged: the file has another size");
    }
    return 0;
}

/* The blkhash of the leaves against the one in the header. */
static int verify_with(struct leaves *l, struct blkhash_outer *o, uint8_t *chunk, struct error *err)
{
    const struct leaves_header *h = &l->header;
    uint8_t sum[BLKHASH_DIGEST_MAX];
    uint64_t at_once = LEAVES_CHUNK / h->digest_length;
    int r = 0;

    for (uint64_t i = 0; r == 0 && i < h->count;) {
        uint64_t n = min_u64(at_once, h->count - i);
        r = leaves_read(l, i, n, chunk, err);
        if (r == 0) {
            r = blkhash_outer_digests(o, chunk, (size_t)n);
        }
        i += n;
        fiber_yield(); /* a terabyte's leaves take a while */
        r = r == 0 && fiber_canceled() ? -ECANCELED : r;
    }
    if (r == 0) {
        r = blkhash_outer_final(o, h->size, sum);
    }
    if (r < 0) {
        return leaves_fail(err, -r, l->path, "read");
    }
    if (memcmp(sum, h->blkhash, h->digest_length) != 0) {
        return leaves_fail(err, EBADMSG, l->path, "damaged: its leaves do not have its checksum");
    }
    return 0;
}

static int verify(struct leaves *l, struct error *err)
{
    struct blkhash_outer *o = NULL;
    struct digest *d = NULL;
    uint8_t *chunk = malloc(LEAVES_CHUNK);
    int r = chunk ? digest_open(l->header.digest, &d) : -ENOMEM;
    if (r == 0 && digest_length(d) != l->header.digest_length) {
        r = -EINVAL;
    }
    if (r == 0) {
        r = blkhash_outer_new(d, l->header.block_size, &o);
    }
    if (r < 0) {
        leaves_fail(err, -r, l->path, "the digest of its header");
    } else {
        r = verify_with(l, o, chunk, err);
    }
    blkhash_outer_free(o);
    digest_free(d);
    free(chunk);
    return r;
}

int leaves_open(const char *path, struct leaves **ret, struct error *err)
{
    struct leaves *l = calloc(1, sizeof(*l));
    if (!l || !(l->path = strdup(path))) {
        free(l);
        return error_set(err, ENOMEM, "no memory");
    }
    l->fd = -1;
    int r = offload(open_blocking, l);
    if (r < 0) {
        leaves_fail(err, -r, path, "open");
    } else {
        r = read_header(l, err);
    }
    if (r == 0) {
        r = verify(l, err);
    }
    if (r < 0) {
        leaves_close(l);
        return r;
    }
    *ret = l;
    return 0;
}

void leaves_close(struct leaves *l)
{
    if (!l) {
        return;
    }
    if (l->fd >= 0) {
        close(l->fd);
    }
    free(l->path);
    free(l);
}

const struct leaves_header *leaves_header_of(const struct leaves *l)
{
    return &l->header;
}

const char *leaves_path(const struct leaves *l)
{
    return l->path;
}

int leaves_read(struct leaves *l, uint64_t first, uint64_t n, uint8_t *out, struct error *err)
{
    uint64_t length = l->header.digest_length;
    if (first > l->header.count || n > l->header.count - first) {
        return leaves_fail(err, EINVAL, l->path, "there are not so many leaves");
    }
    ssize_t got = fileio_read(l->fd, out, (size_t)(n * length),
                              LEAVES_HEADER_BYTES + first * length);
    if (got < 0) {
        return leaves_fail(err, (int)-got, l->path, "read");
    }
    if ((uint64_t)got != n * length) {
        return leaves_fail(err, EBADMSG, l->path, "the file became shorter");
    }
    return 0;
}

/* ---- comparing ---- */

struct run {
    uint64_t begin, end; /* bytes */
    leaves_say_fn *say;
    void *arg;
};

static int end_run(struct run *run)
{
    int r = run->end > run->begin ? run->say(run->arg, run->begin, run->end - run->begin) : 0;
    run->begin = run->end = 0;
    return r;
}

static int add_to_run(struct run *run, uint64_t begin, uint64_t end)
{
    if (run->end == begin && run->end > run->begin) {
        run->end = end;
        return 0;
    }
    int r = end_run(run);
    run->begin = begin;
    run->end = end;
    return r;
}

static int compare_chunk(struct leaves *a, struct leaves *b, uint64_t first, uint64_t n,
                         uint8_t *chunk, struct run *run, struct error *err)
{
    uint64_t length = a->header.digest_length, block = a->header.block_size;
    uint64_t shorter = min_u64(a->header.size, b->header.size);
    uint8_t *other = chunk + LEAVES_CHUNK;
    int r = leaves_read(a, first, n, chunk, err);
    if (r == 0) {
        r = leaves_read(b, first, n, other, err);
    }
    for (uint64_t i = 0; r == 0 && i < n; i++) {
        if (memcmp(chunk + i * length, other + i * length, length) != 0) {
            uint64_t begin = (first + i) * block;
            r = add_to_run(run, begin, min_u64(begin + block, shorter));
        }
    }
    return r;
}

int leaves_compare(struct leaves *a, struct leaves *b, leaves_say_fn *say, void *arg,
                   struct error *err)
{
    const struct leaves_header *ha = &a->header, *hb = &b->header;
    struct run run = {.say = say, .arg = arg};
    if (ha->block_size != hb->block_size || ha->digest_length != hb->digest_length ||
        strcmp(ha->digest, hb->digest) != 0) {
        return leaves_fail(err, EINVAL, b->path, "made with another digest or block size");
    }
    uint8_t *chunk = malloc((size_t)LEAVES_CHUNK * 2);
    if (!chunk) {
        return error_set(err, ENOMEM, "no memory");
    }
    uint64_t both = min_u64(ha->count, hb->count);
    uint64_t at_once = LEAVES_CHUNK / ha->digest_length;
    int r = 0;
    for (uint64_t i = 0; r == 0 && i < both;) {
        uint64_t n = min_u64(at_once, both - i);
        r = compare_chunk(a, b, i, n, chunk, &run, err);
        i += n;
    }
    uint64_t shorter = min_u64(ha->size, hb->size), longer = max_u64(ha->size, hb->size);
    if (r == 0 && longer > shorter) {
        r = add_to_run(&run, shorter, longer);
    }
    if (r == 0) {
        r = end_run(&run);
    }
    free(chunk);
    return r < 0 ? error_set(err, -r, "compare") : 0;
}
