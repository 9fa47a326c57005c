/*
 * A virtual clock: each byte costs 1/rate seconds, and whoever is more than the burst ahead waits.
 */
#include "jobs/pace.h"

#include "core/fiber.h"
#include "core/worker.h"

#define NS_A_SECOND 1000000000ull
#define BURST_NS (NS_A_SECOND / 10)

void pace_init(struct pace *p, uint64_t rate)
{
    *p = (struct pace){.rate = rate, .free_ns = worker_now_ns(worker_self())};
}

int pace_wait(struct pace *p, uint64_t bytes)
{
    if (p->rate == 0) {
        return 0;
    }
    uint64_t now = worker_now_ns(worker_self());
    if (p->free_ns < now) {
        p->free_ns = now;
    }
    p->free_ns += (uint64_t)((double)bytes * (double)NS_A_SECOND / (double)p->rate);
    return p->free_ns > now + BURST_NS ? fiber_sleep_until(p->free_ns - BURST_NS) : 0;
}
