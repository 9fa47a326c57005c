/*
 * Keeping to a rate: bytes a second, with a burst of a tenth of a second.
 */
#ifndef JOBS_PACE_H
#define JOBS_PACE_H

#include <stdint.h>

struct pace {
    uint64_t rate;    /* bytes a second, 0: none */
    uint64_t free_ns; /* when the bytes so far are paid for */
};

void pace_init(struct pace *p, uint64_t rate);
/* Accounts for bytes, and sleeps while they are ahead of the rate. 0 or -ECANCELED. */
int pace_wait(struct pace *p, uint64_t bytes);

#endif
