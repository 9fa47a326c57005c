/*
 * memory:SIZE: a sparse disk in memory, up to 8 EiB - 1, that lives as long as it is open.
 *
 * The disk is cut into chunks of 64 KiB. A radix tree of 512 pointers a node, as high as the size
 * needs (one to six levels), finds a chunk; nodes and chunks are made when they are first written
 * and stay where they are until the volume is closed, so readers and lenders need no lock: they
 * only ever follow pointers that were published whole. Chunks are carved from 64 MiB mappings (one
 * mapping a chunk would run into vm.max_map_count); the mapping is given back page by page with
 * MADV_DONTNEED when a chunk is zeroed or discarded, after which it reads zeros and is a hole
 * again.
 *
 * A leaf entry is the chunk's address, or while it is in use its second byte's: bit 0 is a flag.
 * The writer sets it after its bytes are in, and a punch clears it before it drops the pages; so
 * whatever the order of the two, no chunk with data is called a hole.
 *
 * Limits: memory; address space (a punched chunk keeps its 64 KiB of it); an extents call looks at
 * no more than 2^20 chunks (64 GiB of data) and then answers with what it has.
 */
#include "core/size.h"
#include "volume/drivers.h"
#include "volume/volume_private.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK_SHIFT 16
#define CHUNK ((size_t)1 << CHUNK_SHIFT)
#define NODE_SHIFT 9
#define NODE_FAN (1u << NODE_SHIFT)
#define SLAB_CHUNKS 1024u
#define SCAN_MAX (1u << 20)

struct node {
    _Atomic(void *) entry[NODE_FAN]; /* struct node *, or in a leaf a chunk, tagged while in use */
};

struct slab {
    struct slab *next;
    uint8_t *base;
};

struct memory {
    struct volume volume;
    unsigned levels; /* of nodes, >= 1 */
    struct node *root;
    pthread_mutex_t guard; /* the fields below; held for no wait */
    struct slab *slabs;
    unsigned carved; /* chunks taken from the first slab */
};

static struct memory *memory_of(struct volume *v)
{
    return (struct memory *)v;
}

static unsigned slot(uint64_t chunk, unsigned level)
{
    return (unsigned)(chunk >> (level * NODE_SHIFT)) & (NODE_FAN - 1);
}

/* The leaf's entry of chunk, or NULL when there is no leaf yet. */
static _Atomic(void *) *find_entry(const struct memory *m, uint64_t chunk)
{
    struct node *node = m->root;
    for (unsigned level = m->levels - 1; level > 0; level--) {
        node = atomic_load_explicit(&node->entry[slot(chunk, level)], memory_order_acquire);
        if (!node) {
            return NULL;
        }
    }
    return &node->entry[slot(chunk, 0)];
}

static bool in_use(const void *entry)
{
    return ((uintptr_t)entry & 1) != 0;
}

static uint8_t *chunk_data(void *entry)
{
    return (uint8_t *)entry - in_use(entry);
}

static void *load_chunk(const struct memory *m, uint64_t chunk)
{
    _Atomic(void *) *e = find_entry(m, chunk);
    return e ? atomic_load_explicit(e, memory_order_acquire) : NULL;
}

/* guard is held. */
static uint8_t *carve_chunk(struct memory *m)
{
    if (!m->slabs || m->carved == SLAB_CHUNKS) {
        struct slab *s = malloc(sizeof(*s));
        if (!s) {
            return NULL;
        }
        s->base = mmap(NULL, SLAB_CHUNKS * CHUNK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (s->base == MAP_FAILED) {
            free(s);
            return NULL;
        }
        s->next = m->slabs;
        m->slabs = s;
        m->carved = 0;
    }
    return m->slabs->base + (size_t)m->carved++ * CHUNK;
}

/* guard is held: the path to chunk and chunk itself, made where they are missing. */
static _Atomic(void *) *make_path(struct memory *m, uint64_t chunk)
{
    struct node *node = m->root;
    for (unsigned level = m->levels - 1; level > 0; level--) {
        _Atomic(void *) *e = &node->entry[slot(chunk, level)];
        struct node *next = atomic_load_explicit(e, memory_order_relaxed);
        if (!next) {
            next = calloc(1, sizeof(*next));
            if (!next) {
                return NULL;
            }
            atomic_store_explicit(e, next, memory_order_release);
        }
        node = next;
    }
    _Atomic(void *) *leaf = &node->entry[slot(chunk, 0)];
    if (!atomic_load_explicit(leaf, memory_order_relaxed)) {
        uint8_t *data = carve_chunk(m);
        if (!data) {
            return NULL;
        }
        atomic_store_explicit(leaf, data, memory_order_release);
    }
    return leaf;
}

static _Atomic(void *) *entry_for_write(struct memory *m, uint64_t chunk)
{
    _Atomic(void *) *e = find_entry(m, chunk);
    if (!e || !atomic_load_explicit(e, memory_order_acquire)) {
        pthread_mutex_lock(&m->guard);
        e = make_path(m, chunk);
        pthread_mutex_unlock(&m->guard);
    }
    return e;
}

/* How much of off..off+len lies in off's chunk. */
static size_t in_chunk(uint64_t off, uint64_t len)
{
    return (size_t)min_u64(len, CHUNK - (off & (CHUNK - 1)));
}

static int memory_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err)
{
    struct memory *m = memory_of(v);
    uint8_t *to = buf;
    while (len > 0) {
        size_t n = in_chunk(off, len);
        void *e = load_chunk(m, off >> CHUNK_SHIFT);
        if (in_use(e)) {
            memcpy(to, chunk_data(e) + (off & (CHUNK - 1)), n);
        } else {
            memset(to, 0, n);
        }
        to += n;
        off += n;
        len -= n;
    }
    return 0;
}

static int memory_write(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                        struct error *err)
{
    struct memory *m = memory_of(v);
    const uint8_t *from = buf;
    while (len > 0) {
        size_t n = in_chunk(off, len);
        _Atomic(void *) *e = entry_for_write(m, off >> CHUNK_SHIFT);
        if (!e) {
            return error_set(err, ENOSPC, "no memory for the memory disk");
        }
        uint8_t *data = chunk_data(atomic_load_explicit(e, memory_order_relaxed));
        memcpy(data + (off & (CHUNK - 1)), from, n);
        atomic_store_explicit(e, data + 1, memory_order_release);
        from += n;
        off += n;
        len -= n;
    }
    return 0;
}

static int memory_flush(struct volume *v, struct error *err)
{
    return 0;
}

/*
 * The first chunk from `chunk` up to `end` that has an entry; end when there is none. Subtrees
 * that do not exist are stepped over whole.
 */
static uint64_t next_chunk(const struct memory *m, uint64_t chunk, uint64_t end)
{
    while (chunk < end) {
        struct node *node = m->root;
        unsigned level = m->levels - 1;
        void *e;
        for (;;) {
            e = atomic_load_explicit(&node->entry[slot(chunk, level)], memory_order_acquire);
            if (!e || level == 0) {
                break;
            }
            node = e;
            level--;
        }
        if (e) {
            return chunk;
        }
        unsigned shift = level * NODE_SHIFT;
        chunk = ((chunk >> shift) + 1) << shift;
    }
    return end;
}

/* data: of the chunk that e holds. */
static void punch(_Atomic(void *) *e, uint8_t *data)
{
    void *old = atomic_exchange_explicit(e, data, memory_order_acq_rel);
    if (in_use(old) && madvise(data, CHUNK, MADV_DONTNEED) < 0) {
        /* Locked memory (mlockall) cannot be given back. */
        memset(data, 0, CHUNK);
    }
}

static void zero_chunk(struct memory *m, uint64_t chunk, uint64_t off, size_t len, bool unmap)
{
    _Atomic(void *) *e = find_entry(m, chunk);
    void *now = e ? atomic_load_explicit(e, memory_order_acquire) : NULL;
    if (!in_use(now)) {
        return;
    }
    bool to_the_end = off + len == m->volume.size;
    if (unmap && (off & (CHUNK - 1)) == 0 && (len == CHUNK || to_the_end)) {
        punch(e, chunk_data(now));
    } else {
        memset(chunk_data(now) + (off & (CHUNK - 1)), 0, len);
    }
}

static int zero_range(struct memory *m, uint64_t off, uint64_t len, bool unmap)
{
    uint64_t end = off + len;
    uint64_t last = (end - 1) >> CHUNK_SHIFT;
    for (uint64_t c = next_chunk(m, off >> CHUNK_SHIFT, last + 1); c <= last;
         c = next_chunk(m, c + 1, last + 1)) {
        uint64_t from = max_u64(off, c << CHUNK_SHIFT);
        zero_chunk(m, c, from, in_chunk(from, end - from), unmap);
    }
    return 0;
}

static int memory_zero(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                       struct error *err)
{
    return zero_range(memory_of(v), off, len, (flags & ZERO_MAY_UNMAP) != 0);
}

static int memory_discard(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                          struct error *err)
{
    return zero_range(memory_of(v), off, len, true);
}

static int memory_cache(struct volume *v, uint64_t off, uint64_t len, struct error *err)
{
    return 0;
}

static int memory_extents(struct volume *v, uint64_t off, uint64_t len, struct extent *out,
                          size_t max, struct error *err)
{
    struct memory *m = memory_of(v);
    uint64_t end = off + len;
    uint64_t end_chunk = ((end - 1) >> CHUNK_SHIFT) + 1;
    size_t n = 0;
    for (unsigned looked = 0; off < end && looked < SCAN_MAX; looked++) {
        uint64_t chunk = off >> CHUNK_SHIFT;
        bool data = in_use(load_chunk(m, chunk));
        uint64_t stop = chunk + 1;
        if (!data) {
            stop = next_chunk(m, stop, end_chunk);
        }
        uint64_t upto = stop >= end_chunk ? end : stop << CHUNK_SHIFT;
        uint32_t flags = data ? 0 : EXTENT_HOLE | EXTENT_ZERO;
        if (n > 0 && out[n - 1].flags == flags) {
            out[n - 1].length += upto - off;
        } else if (n == max) {
            break;
        } else {
            out[n++] = (struct extent){.length = upto - off, .flags = flags};
        }
        off = upto;
    }
    return (int)n;
}

static int memory_lend(struct volume *v, uint64_t off, uint64_t len, struct lent *ret)
{
    struct memory *m = memory_of(v);
    uint64_t chunk = off >> CHUNK_SHIFT;
    void *e = load_chunk(m, chunk);
    size_t n = in_chunk(off, len);
    if (!in_use(e)) {
        *ret = (struct lent){.fd = -1, .data = volume_zeros(), .length = n};
        return 0;
    }
    const uint8_t *data = chunk_data(e) + (off & (CHUNK - 1));
    while (n < len) {
        void *next = load_chunk(m, ++chunk);
        if (!in_use(next) || chunk_data(next) != data + n) {
            break;
        }
        n += in_chunk(chunk << CHUNK_SHIFT, len - n);
    }
    *ret = (struct lent){.fd = -1, .data = data, .length = n};
    return 0;
}

static void free_nodes(struct node *node, unsigned level)
{
    if (level > 0) {
        for (unsigned i = 0; i < NODE_FAN; i++) {
            struct node *below = atomic_load(&node->entry[i]);
            if (below) {
                free_nodes(below, level - 1);
            }
        }
    }
    free(node);
}

static void memory_close(struct volume *v)
{
    struct memory *m = memory_of(v);
    free_nodes(m->root, m->levels - 1);
    while (m->slabs) {
        struct slab *s = m->slabs;
        m->slabs = s->next;
        munmap(s->base, SLAB_CHUNKS * CHUNK);
        free(s);
    }
    pthread_mutex_destroy(&m->guard);
    volume_done(v);
    free(m);
}

static const struct volume_ops memory_ops = {
    .name = "memory",
    .read = memory_read,
    .write = memory_write,
    .flush = memory_flush,
    .zero = memory_zero,
    .discard = memory_discard,
    .cache = memory_cache,
    .extents = memory_extents,
    .lend = memory_lend,
    .close = memory_close,
};

static unsigned levels_for(uint64_t size)
{
    uint64_t chunks = size == 0 ? 1 : ((size - 1) >> CHUNK_SHIFT) + 1;
    unsigned levels = 1;
    while ((chunks - 1) >> (levels * NODE_SHIFT) != 0) {
        levels++;
    }
    return levels;
}

int memory_open(const char *name, const struct endpoint_options *o, struct volume **ret,
                struct error *err)
{
    uint64_t size;
    if (size_parse(endpoint_rest(name), VOLUME_SIZE_MAX, &size) < 0) {
        return error_set(err, EINVAL, "memory:SIZE: not a size up to 8 EiB - 1");
    }
    struct memory *m = calloc(1, sizeof(*m));
    struct node *root = calloc(1, sizeof(*root));
    if (!m || !root || volume_init(&m->volume, &memory_ops, name) < 0) {
        free(root);
        free(m);
        return error_set(err, ENOMEM, "no memory");
    }
    m->root = root;
    m->levels = levels_for(size);
    pthread_mutex_init(&m->guard, NULL);
    m->volume.size = size;
    m->volume.limits.preferred = (uint32_t)CHUNK;
    m->volume.caps = VOLUME_CAN_FLUSH | VOLUME_CAN_FUA | VOLUME_CAN_CACHE | VOLUME_CAN_EXTENTS |
                     VOLUME_IS_COHERENT | VOLUME_READS_ZERO;
    if (o->writable) {
        m->volume.caps |= VOLUME_CAN_WRITE | VOLUME_CAN_ZERO | VOLUME_CAN_FAST_ZERO |
                          VOLUME_CAN_DISCARD;
    }
    *ret = &m->volume;
    return 0;
}
