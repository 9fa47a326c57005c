/*
 * A worker's timers: an intrusive pairing heap, so that arming one needs no memory and cannot
 * fail. Private to src/core. Equal deadlines fire in the order in which they were armed.
 */
#ifndef CORE_TIMERS_H
#define CORE_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct timer {
    uint64_t deadline_ns;
    uint64_t order; /* of arming */
    struct timer *child;
    struct timer *next; /* sibling */
    struct timer *prev; /* sibling, or the parent of a first child */
    bool armed;
};

struct timers {
    struct timer *first;
    uint64_t armed_ever;
};

void timers_arm(struct timers *ts, struct timer *t, uint64_t deadline_ns);
/* Harmless on a timer that is not armed. */
void timers_disarm(struct timers *ts, struct timer *t);
/* The earliest that is due at now_ns, disarmed; NULL: none. */
struct timer *timers_take_due(struct timers *ts, uint64_t now_ns);

#endif
