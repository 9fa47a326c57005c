/*
 * Writes in flight on volumes with a limits.min above 1, so that a read-modify-write never runs
 * beside another write of the same block.
 *
 * The list is in order of arrival. A range waits while an earlier one overlaps it and either of
 * the two is a read-modify-write; so nobody is overtaken by what he conflicts with, and each waits
 * only for earlier ones, which rules out a deadlock. The list is as long as what is in flight.
 */
#include "volume/volume_private.h"

#include "core/fiber.h"
#include "core/size.h"

#include <errno.h>
#include <stddef.h>

static bool overlap(const struct write_range *a, const struct write_range *b)
{
    return a->off < b->off ? b->off - a->off < a->len : a->off - b->off < b->len;
}

static bool must_wait(const struct volume_state *s, const struct write_range *r)
{
    for (const struct write_range *o = s->first; o != r; o = o->next) {
        if ((o->modify || r->modify) && overlap(o, r)) {
            return true;
        }
    }
    return false;
}

/* mutex is held. */
static void take_out(struct volume_state *s, struct write_range *r)
{
    struct write_range *before = NULL;
    struct write_range **link = &s->first;
    while (*link != r) {
        before = *link;
        link = &before->next;
    }
    *link = r->next;
    if (s->last == r) {
        s->last = before;
    }
}

int volume_range_enter(struct volume *v, struct write_range *r, uint64_t off, uint64_t len)
{
    if (v->limits.min == 1) {
        return 0;
    }
    struct volume_state *s = v->state;
    uint64_t end = off + len;
    r->next = NULL;
    r->off = align_down(off, v->limits.min);
    r->len = align_up(end, v->limits.min) - r->off;
    r->modify = !volume_aligned(v, off, len);
    fmutex_lock(&s->mutex);
    if (s->last) {
        s->last->next = r;
    } else {
        s->first = r;
    }
    s->last = r;
    int ret = 0;
    while (ret == 0 && must_wait(s, r)) {
        ret = fcond_wait(&s->changed, &s->mutex, DEADLINE_NONE);
    }
    if (ret < 0) {
        take_out(s, r);
        fcond_broadcast(&s->changed);
    }
    fmutex_unlock(&s->mutex);
    return ret;
}

void volume_range_leave(struct volume *v, struct write_range *r)
{
    if (v->limits.min == 1) {
        return;
    }
    struct volume_state *s = v->state;
    fmutex_lock(&s->mutex);
    take_out(s, r);
    if (s->first) {
        fcond_broadcast(&s->changed);
    }
    fmutex_unlock(&s->mutex);
}
