/*
 * The fault layer: fault.h says what it can do and how it is asked for.
 *
 * Each rule counts the calls that match it with one atomic, so what happens to a call depends on
 * its place in that order only, and chance (percent) is a hash of seed, rule and that place: the
 * same run gives the same faults. A held call waits on a condition that any worker's
 * fault_release() signals, and looks every 10 ms for its file when it has one.
 */
#include "volume/fault.h"

#include "core/fiber.h"
#include "core/fsync.h"
#include "core/size.h"
#include "core/worker.h"
#include "volume/drivers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS 10000000ull

struct fault {
    struct volume volume;
    struct volume *below; /* owned */
    struct fault_spec spec;
    _Atomic(uint64_t) hits[FAULT_RULES_MAX]; /* calls that matched, in order */
    struct fmutex mutex;                     /* guards released */
    struct fcond changed;
    bool released;
    atomic_uint held;
};

/* What the rules do to a call. */
struct verdict {
    int code;     /* errno of an error, 0 none */
    int cut_code; /* errno after its first half */
    bool flip;
    uint64_t flip_at;
};

static struct fault *fault_of(struct volume *v)
{
    return (struct fault *)v;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static bool matches(const struct fault_rule *rule, enum fault_op op, uint64_t off, uint64_t len)
{
    if (rule->op != FAULT_ANY && rule->op != op) {
        return false;
    }
    if (rule->len == 0 || op == FAULT_FLUSH) {
        return rule->len == 0;
    }
    return off < rule->off ? rule->off - off < len : off - rule->off < rule->len;
}

/* Whether this match is one that it is done to. */
static bool is_due(struct fault *f, unsigned i)
{
    const struct fault_rule *rule = &f->spec.rules[i];
    uint64_t place = atomic_fetch_add(&f->hits[i], 1);
    if (place < rule->after || place - rule->after >= rule->count) {
        return false;
    }
    return rule->percent == 100 ||
           mix(f->spec.seed ^ mix(place ^ (uint64_t)i << 56)) % 100 < rule->percent;
}

static int path_exists(void *arg)
{
    const struct fault_rule *rule = arg;
    return access(rule->path, F_OK) == 0;
}

/* PATH.held, so that another process can wait for the moment. */
static int say_held(void *arg)
{
    const struct fault_rule *rule = arg;
    char path[sizeof(rule->path) + 8];
    snprintf(path, sizeof(path), "%s.held", rule->path);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0) {
        return -errno;
    }
    close(fd);
    return 0;
}

static int hold(struct fault *f, const struct fault_rule *rule)
{
    int r = 0;
    struct fault_rule copy = *rule;
    if (copy.path[0] != '\0') {
        r = offload(say_held, &copy);
        if (r < 0) {
            return r;
        }
    }
    fmutex_lock(&f->mutex);
    atomic_fetch_add(&f->held, 1);
    while (!f->released && r != -ECANCELED) {
        uint64_t deadline = DEADLINE_NONE;
        if (copy.path[0] != '\0') {
            fmutex_unlock(&f->mutex);
            bool there = offload(path_exists, &copy) == 1;
            fmutex_lock(&f->mutex);
            if (there) {
                break;
            }
            deadline = worker_now_ns(worker_self()) + LOOK_NS;
        }
        r = fcond_wait(&f->changed, &f->mutex, deadline);
    }
    atomic_fetch_sub(&f->held, 1);
    fmutex_unlock(&f->mutex);
    return r == -ECANCELED ? r : 0;
}

static int apply_rule(struct fault *f, const struct fault_rule *rule, uint64_t off,
                      struct verdict *ret)
{
    switch (rule->kind) {
    case FAULT_ERROR:
        ret->code = ret->code ? ret->code : rule->code;
        return 0;
    case FAULT_SHORT:
        ret->cut_code = ret->cut_code ? ret->cut_code : rule->code;
        return 0;
    case FAULT_DELAY:
        return fiber_sleep_ns(rule->delay_ns);
    case FAULT_HOLD:
        return hold(f, rule);
    case FAULT_FLIP:
        ret->flip = true;
        ret->flip_at = rule->len == 0 ? off : max_u64(rule->off, off);
        return 0;
    }
    return 0;
}

/* 0 with *ret, or the error that the call ends with. */
static int judge(struct fault *f, enum fault_op op, uint64_t off, uint64_t len, struct verdict *ret,
                 struct error *err)
{
    *ret = (struct verdict){0};
    for (unsigned i = 0; i < f->spec.count; i++) {
        const struct fault_rule *rule = &f->spec.rules[i];
        if (matches(rule, op, off, len) && is_due(f, i)) {
            int r = apply_rule(f, rule, off, ret);
            if (r < 0) {
                return r;
            }
        }
    }
    if (ret->code) {
        return error_set(err, ret->code, "a fault on purpose");
    }
    return 0;
}

static int fault_read(struct volume *v, void *buf, size_t len, uint64_t off, struct error *err)
{
    struct fault *f = fault_of(v);
    struct verdict w;
    int r = judge(f, FAULT_READ, off, len, &w, err);
    if (r < 0) {
        return r;
    }
    r = volume_read(f->below, buf, w.cut_code ? len / 2 : len, off, err);
    if (r >= 0 && w.cut_code) {
        return error_set(err, w.cut_code, "a short read on purpose");
    }
    if (r >= 0 && w.flip) {
        ((uint8_t *)buf)[w.flip_at - off] ^= 0xff;
    }
    return r;
}

static int write_flipped(struct fault *f, const void *buf, size_t len, uint64_t off, unsigned flags,
                         uint64_t at, struct error *err)
{
    void *copy = aligned_alloc(4096, align_up(len, 4096));
    if (!copy) {
        return -ENOMEM;
    }
    memcpy(copy, buf, len);
    ((uint8_t *)copy)[at - off] ^= 0xff;
    int r = volume_write(f->below, copy, len, off, flags, err);
    free(copy);
    return r;
}

static int fault_write(struct volume *v, const void *buf, size_t len, uint64_t off, unsigned flags,
                       struct error *err)
{
    struct fault *f = fault_of(v);
    struct verdict w;
    int r = judge(f, FAULT_WRITE, off, len, &w, err);
    if (r < 0) {
        return r;
    }
    if (w.flip) {
        return write_flipped(f, buf, len, off, flags, w.flip_at, err);
    }
    r = volume_write(f->below, buf, w.cut_code ? len / 2 : len, off, flags, err);
    if (r >= 0 && w.cut_code) {
        return error_set(err, w.cut_code, "a short write on purpose");
    }
    return r;
}

static int fault_flush(struct volume *v, struct error *err)
{
    struct fault *f = fault_of(v);
    struct verdict w;
    int r = judge(f, FAULT_FLUSH, 0, 0, &w, err);
    return r < 0 ? r : volume_flush(f->below, err);
}

static int fault_zero(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                      struct error *err)
{
    struct fault *f = fault_of(v);
    struct verdict w;
    int r = judge(f, FAULT_ZERO, off, len, &w, err);
    if (r < 0) {
        return r;
    }
    r = volume_zero(f->below, off, w.cut_code ? len / 2 : len, flags, err);
    if (r >= 0 && w.cut_code) {
        return error_set(err, w.cut_code, "a short zero on purpose");
    }
    return r;
}

static int fault_discard(struct volume *v, uint64_t off, uint64_t len, unsigned flags,
                         struct error *err)
{
    struct fault *f = fault_of(v);
    struct verdict w;
    int r = judge(f, FAULT_DISCARD, off, len, &w, err);
    return r < 0 ? r : volume_discard(f->below, off, len, flags, err);
}

static int fault_cache(struct volume *v, uint64_t off, uint64_t len, struct error *err)
{
    struct fault *f = fault_of(v);
    struct verdict w;
    int r = judge(f, FAULT_CACHE, off, len, &w, err);
    return r < 0 ? r : volume_cache(f->below, off, len, err);
}

static int fault_extents(struct volume *v, uint64_t off, uint64_t len, struct extent *out,
                         size_t max, struct error *err)
{
    struct fault *f = fault_of(v);
    struct verdict w;
    int r = judge(f, FAULT_EXTENTS, off, len, &w, err);
    return r < 0 ? r : volume_extents(f->below, off, len, out, max, err);
}

static int fault_resize(struct volume *v, uint64_t size, struct error *err)
{
    int r = volume_resize(fault_of(v)->below, size, err);
    if (r >= 0) {
        v->size = size;
    }
    return r;
}

static int fault_lend(struct volume *v, uint64_t off, uint64_t len, struct lent *ret)
{
    struct fault *f = fault_of(v);
    for (unsigned i = 0; i < f->spec.count; i++) {
        if (f->spec.rules[i].op == FAULT_READ || f->spec.rules[i].op == FAULT_ANY) {
            return -EAGAIN;
        }
    }
    return f->spec.no_lend ? -EAGAIN : volume_lend(f->below, off, len, ret);
}

static unsigned fault_lanes(struct volume *v)
{
    return volume_lanes(fault_of(v)->below);
}

static void fault_close(struct volume *v)
{
    struct fault *f = fault_of(v);
    volume_close(f->below);
    fcond_done(&f->changed);
    fmutex_done(&f->mutex);
    volume_done(v);
    free(f);
}

static const struct volume_ops fault_ops = {
    .name = "fault",
    .read = fault_read,
    .write = fault_write,
    .flush = fault_flush,
    .zero = fault_zero,
    .discard = fault_discard,
    .cache = fault_cache,
    .extents = fault_extents,
    .resize = fault_resize,
    .lend = fault_lend,
    .lanes = fault_lanes,
    .close = fault_close,
};

unsigned fault_held(struct volume *v)
{
    return v->ops == &fault_ops ? atomic_load(&fault_of(v)->held) : 0;
}

void fault_release(struct volume *v)
{
    if (v->ops != &fault_ops) {
        return;
    }
    struct fault *f = fault_of(v);
    fmutex_lock(&f->mutex);
    f->released = true;
    fcond_broadcast(&f->changed);
    fmutex_unlock(&f->mutex);
}

/* Limits that were asked for, made to fit each other. They may be laxer than those of the volume
 * below: its own volume_...() calls cut and bounce. */
static void set_limits(struct volume *v, const struct volume_limits *asked)
{
    struct volume_limits *l = &v->limits;
    l->min = asked->min ? asked->min : l->min;
    l->preferred = asked->preferred ? asked->preferred : l->preferred;
    l->max = asked->max ? asked->max : l->max;
    l->max_zero = asked->max_zero ? asked->max_zero : l->max_zero;
    l->preferred = (uint32_t)max_u64(l->preferred, l->min);
    l->max = (uint32_t)max_u64(align_down(l->max, l->min), l->min);
    if (l->max_zero > 0) {
        l->max_zero = max_u64(align_down(l->max_zero, l->min), l->min);
    }
}

int fault_open(const char *name, const struct endpoint_options *o, struct volume **ret,
               struct error *err)
{
    const char *text = endpoint_rest(name);
    const char *colon = strchr(text, ':');
    if (!colon) {
        return error_set(err, EINVAL, "not fault:SPEC:ENDPOINT");
    }
    struct fault *f = calloc(1, sizeof(*f));
    if (!f) {
        return error_set(err, ENOMEM, "no memory");
    }
    int r = fault_parse(text, (size_t)(colon - text), &f->spec, err);
    if (r >= 0) {
        r = endpoint_open_below(colon + 1, o, &f->below, err);
    }
    if (r >= 0) {
        r = volume_init(&f->volume, &fault_ops, name);
        if (r < 0) {
            volume_close(f->below);
        }
    }
    if (r < 0) {
        free(f);
        return r;
    }
    fmutex_init(&f->mutex);
    fcond_init(&f->changed);
    f->volume.size = f->below->size;
    f->volume.caps = f->below->caps & ~f->spec.caps_off;
    f->volume.limits = f->below->limits;
    set_limits(&f->volume, &f->spec.limits);
    *ret = &f->volume;
    return 0;
}
