/*
 * Pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986): arming is O(1), taking the first and
 * disarming are O(log n) amortised. Both passes of the pairing are loops: the depth of the heap
 * may be the number of timers.
 */
#include "core/timers.h"

#include <assert.h>
#include <stddef.h>

static bool before(const struct timer *a, const struct timer *b)
{
    return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns : a->order < b->order;
}

/* Makes one tree of two whose roots have no siblings. */
static struct timer *meld(struct timer *a, struct timer *b)
{
    if (!a) {
        return b;
    }
    if (!b) {
        return a;
    }
    if (before(b, a)) {
        struct timer *t = a;

        a = b;
        b = t;
    }
    b->prev = a;
    b->next = a->child;
    if (a->child) {
        a->child->prev = b;
    }
    a->child = b;
    return a;
}

static struct timer *meld_siblings(struct timer *t)
{
    struct timer *pairs = NULL; /* linked by next, last pair first */
    struct timer *root = NULL;

    while (t) {
        struct timer *a = t;
        struct timer *b = t->next;

        t = b ? b->next : NULL;
        a->next = a->prev = NULL;
        if (b) {
            b->next = b->prev = NULL;
        }
        a = meld(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs) {
        struct timer *rest = pairs->next;

        pairs->next = NULL;
        root = meld(root, pairs);
        pairs = rest;
    }
    return root;
}

void timers_arm(struct timers *ts, struct timer *t, uint64_t deadline_ns)
{
    assert(!t->armed);
    t->deadline_ns = deadline_ns;
    t->order = ts->armed_ever++;
    t->child = t->next = t->prev = NULL;
    t->armed = true;
    ts->first = meld(ts->first, t);
}

void timers_disarm(struct timers *ts, struct timer *t)
{
    if (!t->armed) {
        return;
    }
    t->armed = false;
    if (t == ts->first) {
        ts->first = meld_siblings(t->child);
        return;
    }
    if (t->prev->child == t) {
        t->prev->child = t->next;
    } else {
        t->prev->next = t->next;
    }
    if (t->next) {
        t->next->prev = t->prev;
    }
    ts->first = meld(ts->first, meld_siblings(t->child));
}

struct timer *timers_take_due(struct timers *ts, uint64_t now_ns)
{
    struct timer *t = ts->first;

    if (!t || t->deadline_ns > now_ns) {
        return NULL;
    }
    timers_disarm(ts, t);
    return t;
}
