/*
 * See compare.h. One cursor walks the extents of both disks side by side, under a lock: whoever is
 * free takes the next item, a run of at most request_size bytes in which neither side's state
 * changes; runs that are zeros on both sides are stepped over there, whatever their length. Beyond
 * a disk's end it counts as zeros. `depth` fibers on each worker read and compare items.
 *
 * The first event (a difference or an error) is that of the lowest offset. When one is found the
 * cursor goes no further, but everything before it is in somebody's hands by then, and is waited
 * for; so what is found first in time does not matter.
 *
 * Limits: two buffers of request_size a fiber; the reads of one item follow each other.
 */
#include "jobs/compare.h"

#include "core/bufpool.h"
#include "core/fiber.h"
#include "core/fsync.h"
#include "core/size.h"
#include "core/worker.h"
#include "digest/zero.h"
#include "jobs/crew.h"

#include <errno.h>
#include <string.h>

#define EXTENTS_AT_ONCE 128
#define DEPTH_DEFAULT 8u
#define WORKERS_DEFAULT_MAX 4u
#define REQUEST_LEAST (256u << 10)
#define REQUEST_MOST (1u << 20)

struct side {
    struct volume *v;
    struct extent extents[EXTENTS_AT_ONCE];
    int next, count;
    uint64_t known; /* bytes from the cursor on that are `zero` or not */
    bool zero;
};

struct item {
    uint64_t off;
    size_t len;
    bool zero[2];
};

struct compare {
    struct side sides[2];
    uint64_t size; /* of the longer one */
    uint32_t request_size;
    struct compare_progress *progress;
    struct fmutex mutex; /* guards the cursor: sides, at, event and what follows */
    uint64_t at;
    uint64_t event; /* the lowest offset where something was; UINT64_MAX: nothing */
    bool event_is_error;
    struct error error;
    int code;
    uint64_t skipped;
    _Atomic(uint64_t) read;
};

/* mutex is held. */
static void note_locked(struct compare *c, uint64_t off, int code, const struct error *err)
{
    if (off < c->event) {
        c->event = off;
        c->event_is_error = code < 0;
        c->code = code;
        if (err) {
            c->error = *err;
        }
    }
}

static void note(struct compare *c, uint64_t off, int code, const struct error *err)
{
    fmutex_lock(&c->mutex);
    note_locked(c, off, code, err);
    fmutex_unlock(&c->mutex);
}

/* Makes s->known > 0 at the cursor, which is before the end. */
static int look(struct compare *c, struct side *s, struct error *err)
{
    if (s->known > 0) {
        return 0;
    }
    if (c->at >= s->v->size) {
        s->known = c->size - c->at;
        s->zero = true;
        return 0;
    }
    if (s->next == s->count) {
        s->next = 0;
        s->count = 0;
        fiber_yield();
        int n = volume_extents(s->v, c->at, s->v->size - c->at, s->extents, EXTENTS_AT_ONCE, err);
        if (n < 0) {
            return n;
        }
        s->count = n;
    }
    s->known = s->extents[s->next].length;
    s->zero = (s->extents[s->next].flags & EXTENT_ZERO) != 0;
    s->next++;
    return 0;
}

static void step(struct compare *c, uint64_t len)
{
    c->at += len;
    c->sides[0].known -= len;
    c->sides[1].known -= len;
}

/* The next item: true, or false at the end, after an event, when canceled. */
static bool take(struct compare *c, struct item *ret)
{
    bool found = false;
    fmutex_lock(&c->mutex);
    while (!found && c->at < min_u64(c->size, c->event) && !fiber_canceled()) {
        struct error err = {0};
        int r = look(c, &c->sides[0], &err);
        if (r == 0) {
            r = look(c, &c->sides[1], &err);
        }
        if (r < 0) {
            note_locked(c, c->at, r, &err);
            break;
        }
        uint64_t len = min_u64(c->sides[0].known, c->sides[1].known);
        if (c->sides[0].zero && c->sides[1].zero) {
            c->skipped += len;
            atomic_fetch_add(&c->progress->done, len);
            step(c, len);
            continue;
        }
        len = min_u64(len, c->request_size - (c->at & (c->request_size - 1)));
        *ret = (struct item){.off = c->at, .len = (size_t)len};
        ret->zero[0] = c->sides[0].zero;
        ret->zero[1] = c->sides[1].zero;
        step(c, len);
        found = true;
    }
    fmutex_unlock(&c->mutex);
    return found;
}

/* Where two ranges that differ do so first. b NULL: zeros. */
static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t len)
{
    size_t i = 0;
    while (i + 4096 <= len && (b ? memcmp(a + i, b + i, 4096) == 0 : is_zero(a + i, 4096))) {
        i += 4096;
    }
    while (i < len && a[i] == (b ? b[i] : 0)) {
        i++;
    }
    return i;
}

static void compare_item(struct compare *c, const struct item *it, uint8_t *const buf[2])
{
    struct error err = {0};
    for (int i = 0; i < 2; i++) {
        if (it->zero[i]) {
            continue;
        }
        int r = volume_read(c->sides[i].v, buf[i], it->len, it->off, &err);
        if (r < 0) {
            note(c, it->off, r, &err);
            return;
        }
        atomic_fetch_add(&c->read, it->len);
    }
    const uint8_t *a = it->zero[0] ? buf[1] : buf[0];
    const uint8_t *b = it->zero[0] || it->zero[1] ? NULL : buf[1];
    if (b ? memcmp(a, b, it->len) != 0 : !is_zero(a, it->len)) {
        note(c, it->off + first_difference(a, b, it->len), 0, NULL);
    }
    atomic_fetch_add(&c->progress->done, it->len);
}

static void compare_fiber(void *arg)
{
    struct compare *c = arg;
    uint8_t *buf[2] = {NULL, NULL};
    struct item it;
    void *both = NULL;
    /* One buffer for both: two that are waited for one after the other could wait for each other.
     */
    int r = bufpool_get(2 * (size_t)c->request_size, &both);
    if (r < 0 || !both) {
        note(c, 0, r < 0 ? r : -ENOMEM, NULL);
        return;
    }
    buf[0] = both;
    buf[1] = buf[0] + c->request_size;
    while (take(c, &it)) {
        compare_item(c, &it, buf);
        fiber_yield(); /* where reads never wait, the others and a cancel must get their turn */
    }
    bufpool_put(both, 2 * (size_t)c->request_size);
}

static uint32_t choose_request(const struct compare *c, uint64_t asked)
{
    uint64_t want = asked;
    if (want == 0) {
        want = max_u64(c->sides[0].v->limits.preferred, c->sides[1].v->limits.preferred);
        want = min_u64(max_u64(want, REQUEST_LEAST), REQUEST_MOST);
    }
    uint32_t size = COMPARE_REQUEST_MIN;
    while (size < want && size < COMPARE_REQUEST_MAX) {
        size *= 2;
    }
    return size;
}

static unsigned choose_workers(const struct compare *c, unsigned asked)
{
    if (asked > 0) {
        return (unsigned)min_u64(asked, WORKERS_MAX);
    }
    uint64_t n = min_u64(cpus_available(), WORKERS_DEFAULT_MAX);
    for (int i = 0; i < 2; i++) {
        unsigned lanes = volume_lanes(c->sides[i].v);
        n = lanes > 0 ? min_u64(n, lanes) : n;
    }
    uint64_t requests = c->size / c->request_size + 1;
    return (unsigned)max_u64(1, min_u64(n, requests));
}

static int conclude(struct compare *c, struct compare_result *ret, struct error *err)
{
    if (c->event_is_error) {
        error_set(err, -c->code, "%s", c->error.code ? c->error.text : "no memory to compare in");
        error_endpoint(err, c->error.endpoint);
        if (c->error.has_offset) {
            error_at(err, c->error.offset);
        }
        return c->code;
    }
    ret->read = c->read;
    ret->skipped = c->skipped;
    if (c->event != UINT64_MAX) {
        ret->verdict = COMPARE_DIFFERENT;
        ret->has_offset = true;
        ret->offset = c->event;
    } else if (ret->sizes[0] != ret->sizes[1]) {
        ret->verdict = COMPARE_SIZES_DIFFER;
    } else {
        ret->verdict = COMPARE_SAME;
    }
    return 0;
}

int compare_run(struct volume *a, struct volume *b, const struct compare_options *o,
                struct compare_progress *progress, struct compare_result *ret, struct crew **crew,
                struct error *err)
{
    struct compare_progress own = {0};
    struct compare_result result = {.sizes = {a->size, b->size}};
    struct compare c = {.sides = {{.v = a}, {.v = b}}, .event = UINT64_MAX};
    uint64_t start_ns = worker_now_ns(worker_self());
    *crew = NULL;
    if (o->strict && a->size != b->size) {
        result.verdict = COMPARE_DIFFERENT;
        *ret = result;
        return 0;
    }
    c.size = max_u64(a->size, b->size);
    c.progress = progress ? progress : &own;
    c.progress->total = c.size;
    c.request_size = choose_request(&c, o->request_size);
    int r = crew_new(choose_workers(&c, o->workers), crew, err);
    if (r < 0) {
        return r;
    }
    fmutex_init(&c.mutex);
    unsigned depth = o->depth ? o->depth : DEPTH_DEFAULT;
    r = crew_run(*crew, (unsigned)min_u64(depth, COMPARE_DEPTH_MAX), compare_fiber, &c);
    fmutex_done(&c.mutex);
    if (r < 0) {
        return error_set(err, -r, r == -ECANCELED ? "interrupted" : "cannot start to compare");
    }
    r = conclude(&c, &result, err);
    if (r == 0) {
        result.duration_ns = worker_now_ns(worker_self()) - start_ns;
        *ret = result;
    }
    return r;
}
