/*
 * Fibers: parking and waking, cancellation, groups.
 *
 * A fiber is in exactly one place: running, parked, or in one of its worker's two lists (ready,
 * yielded). All switches go through the loop's own stack: a fiber that parks switches to the loop,
 * which takes the next ready one. It costs two switches of a dozen instructions instead of one and
 * keeps everything that happens between two fibers (freeing an ended one, asking epoll) in one
 * place.
 *
 * Wakes from other threads travel as mail in struct fiber itself. The flag mail_out coalesces
 * them, and keeps the memory of an ended fiber until its mail has arrived: a waker may lose the
 * race with a timeout or a cancellation.
 */
#include "core/fiber.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "core/worker_impl.h"

static void list_push(struct fiber_list *l, struct fiber *f)
{
    f->next = NULL;
    if (l->tail) {
        l->tail->next = f;
    } else {
        l->head = f;
    }
    l->tail = f;
}

static struct fiber *list_pop(struct fiber_list *l)
{
    struct fiber *f = l->head;

    if (f) {
        l->head = f->next;
        if (!l->head) {
            l->tail = NULL;
        }
    }
    return f;
}

static void group_leave(struct fiber *f)
{
    struct fgroup_member *m = &f->member;
    struct fgroup *g = m->group;

    if (!g) {
        return;
    }
    if (m->prev) {
        m->prev->next = m->next;
    } else {
        g->members = m->next;
    }
    if (m->next) {
        m->next->prev = m->prev;
    }
    m->group = NULL;
    if (--g->count == 0 && g->waiter) {
        fiber_wake(g->waiter);
    }
}

/* Where every fiber begins. Takes no address of a local: the frame is never left, and ASan would
 * keep it poisoned for the next user of the stack. */
static void fiber_main(void *arg)
{
    struct fiber *f = arg;
    struct worker *w = f->worker;

    context_entered(&w->loop);
    f->fn(f->arg);
    assert(f->shield == 0);
    group_leave(f);
    w->fibers--;
    if (w->fibers == 1 && w->waits_alone) {
        fiber_wake(w->waits_alone);
    }
    f->state = FIBER_ENDED;
    context_leave(&f->context, &w->loop);
}

struct fiber *fiber_make(fiber_fn *fn, void *arg)
{
    struct fiber *f = stack_get();

    if (!f) {
        return NULL;
    }
    memset((char *)f + sizeof f->context, 0, sizeof *f - sizeof f->context);
    f->fn = fn;
    f->arg = arg;
    f->state = FIBER_NEW;
    context_init(&f->context, stack_bottom(f), stack_room(), fiber_main, f);
    return f;
}

void fiber_adopt(struct worker *w, struct fiber *f)
{
    assert(w == worker_current);
    f->worker = w;
    w->fibers++;
    w->fibers_ever++;
    list_push(&w->ready, f);
}

static void deliver_start(struct worker *w, struct mail *m)
{
    struct fiber *f = (struct fiber *)(void *)((char *)m - offsetof(struct fiber, mail));

    fiber_adopt(w, f);
}

void fiber_send(struct worker *w, struct fiber *f)
{
    f->worker = w;
    f->mail.deliver = deliver_start;
    mailbox_send(w, &f->mail);
}

int fiber_spawn(fiber_fn *fn, void *arg, struct fiber **ret_or_null)
{
    struct fiber *f;

    assert(worker_current);
    f = fiber_make(fn, arg);
    if (!f) {
        return -ENOMEM;
    }
    fiber_adopt(worker_current, f);
    if (ret_or_null) {
        *ret_or_null = f;
    }
    return 0;
}

struct fiber *fiber_self(void)
{
    return worker_current ? worker_current->running : NULL;
}

static void make_ready(struct fiber *f, int wait_result)
{
    struct worker *w = f->worker;

    timers_disarm(&w->timers, &f->timer);
    f->state = FIBER_READY;
    f->wait_result = wait_result;
    list_push(&w->ready, f);
}

/* Frees f, or leaves that to the mail that is on its way to it. */
static void fiber_release(struct fiber *f)
{
    if (atomic_load_explicit(&f->mail_out, memory_order_acquire)) {
        f->worker->late_mail++;
    } else {
        stack_put(f);
    }
}

unsigned fiber_run_ready(struct worker *w, unsigned max)
{
    unsigned n = 0;
    struct fiber *f;

    context_adopt(&w->loop);
    while (n < max && (f = list_pop(&w->ready)) != NULL) {
        f->state = FIBER_RUNNING;
        f->yielded = false;
        w->running = f;
        context_switch(&w->loop, &f->context);
        w->running = NULL;
        n++;
        if (f->state == FIBER_ENDED) {
            fiber_release(f);
        }
    }
    return n;
}

void fiber_fire_timers(struct worker *w)
{
    struct timer *t;
    uint64_t now_ns;

    if (!w->timers.first) {
        return;
    }
    now_ns = worker_now_ns(w);
    while ((t = timers_take_due(&w->timers, now_ns)) != NULL) {
        struct fiber *f = (struct fiber *)(void *)((char *)t - offsetof(struct fiber, timer));

        assert(f->state == FIBER_PARKED);
        make_ready(f, -ETIMEDOUT);
    }
}

void fiber_unyield(struct worker *w)
{
    if (!w->yielded.head) {
        return;
    }
    if (w->ready.tail) {
        w->ready.tail->next = w->yielded.head;
    } else {
        w->ready.head = w->yielded.head;
    }
    w->ready.tail = w->yielded.tail;
    w->yielded = (struct fiber_list){NULL, NULL};
}

static bool canceled_now(const struct fiber *f)
{
    return f->canceled && f->shield == 0;
}

int fiber_park(bool cancelable, uint64_t deadline_ns)
{
    struct fiber *f = fiber_self();
    struct worker *w;

    assert(f);
    w = f->worker;
    if (cancelable && canceled_now(f)) {
        return -ECANCELED;
    }
    if (f->wake_pending) {
        f->wake_pending = false;
        return 0;
    }
    if (deadline_ns != DEADLINE_NONE) {
        if (deadline_ns <= worker_now_ns(w)) {
            return -ETIMEDOUT;
        }
        timers_arm(&w->timers, &f->timer, deadline_ns);
    }
    f->cancelable = cancelable;
    f->state = FIBER_PARKED;
    context_switch(&f->context, &w->loop);
    return f->wait_result;
}

void fiber_wake(struct fiber *f)
{
    assert(f->worker == worker_current);
    if (f->state == FIBER_PARKED) {
        make_ready(f, 0);
        return;
    }
    /* A fiber that was woken and has not run since will see what this wake is about anyway. */
    if (f->state != FIBER_READY || f->yielded || f->wait_result != 0) {
        f->wake_pending = true;
    }
}

static void fiber_deliver_wake(struct worker *w, struct mail *m)
{
    struct fiber *f = (struct fiber *)(void *)((char *)m - offsetof(struct fiber, mail));

    /* Read-modify-write: the waker that found the flag set has not sent mail of its own, and what
     * it did before must be seen by the fiber. */
    atomic_exchange_explicit(&f->mail_out, false, memory_order_acq_rel);
    if (f->state == FIBER_ENDED) {
        w->late_mail--;
        stack_put(f);
        return;
    }
    fiber_wake(f);
}

void fiber_wake_from(struct fiber *f)
{
    if (atomic_exchange_explicit(&f->mail_out, true, memory_order_acq_rel)) {
        return;
    }
    f->mail.deliver = fiber_deliver_wake;
    mailbox_send(f->worker, &f->mail);
}

void fiber_wake_any(struct fiber *f)
{
    if (f->worker == worker_current) {
        fiber_wake(f);
    } else {
        fiber_wake_from(f);
    }
}

void fiber_yield(void)
{
    struct fiber *f = fiber_self();

    assert(f);
    f->state = FIBER_READY;
    f->yielded = true;
    list_push(&f->worker->yielded, f);
    context_switch(&f->context, &f->worker->loop);
}

int fiber_sleep_until(uint64_t deadline_ns)
{
    struct fiber *f = fiber_self();
    bool waited = false;
    int r = 0;

    assert(f);
    while (r == 0 && worker_now_ns(f->worker) < deadline_ns) {
        r = fiber_park(true, deadline_ns);
        waited = true;
    }
    if (!waited) {
        fiber_yield(); /* so that a loop of short sleeps does not keep the worker to itself */
    }
    if (r == -ETIMEDOUT) {
        r = 0;
    }
    return r == 0 && canceled_now(f) ? -ECANCELED : r;
}

int fiber_sleep_ns(uint64_t ns)
{
    uint64_t deadline_ns;

    assert(worker_current);
    if (__builtin_add_overflow(worker_now_ns(worker_current), ns, &deadline_ns)) {
        deadline_ns = DEADLINE_NONE;
    }
    return fiber_sleep_until(deadline_ns);
}

void fiber_cancel(struct fiber *f)
{
    assert(f->worker == worker_current && f->state != FIBER_ENDED);
    f->canceled = true;
    if (f->state == FIBER_PARKED && f->cancelable && f->shield == 0) {
        make_ready(f, -ECANCELED);
    }
}

bool fiber_canceled(void)
{
    struct fiber *f = fiber_self();

    return f && canceled_now(f);
}

void fiber_shield(void)
{
    struct fiber *f = fiber_self();

    assert(f);
    f->shield++;
}

void fiber_unshield(void)
{
    struct fiber *f = fiber_self();

    assert(f && f->shield > 0);
    f->shield--;
}

void fgroup_init(struct fgroup *g)
{
    *g = (struct fgroup){0};
}

int fgroup_spawn(struct fgroup *g, fiber_fn *fn, void *arg)
{
    struct fgroup_member *m;
    struct fiber *f;
    int r;

    r = fiber_spawn(fn, arg, &f);
    if (r < 0) {
        return r;
    }
    m = &f->member;
    m->group = g;
    m->prev = NULL;
    m->next = g->members;
    if (m->next) {
        m->next->prev = m;
    }
    g->members = m;
    g->count++;
    return 0;
}

void fgroup_cancel(struct fgroup *g)
{
    for (struct fgroup_member *m = g->members; m; m = m->next) {
        fiber_cancel((struct fiber *)(void *)((char *)m - offsetof(struct fiber, member)));
    }
}

void fgroup_wait(struct fgroup *g, bool cancel_with_me)
{
    assert(fiber_self() && !g->waiter);
    while (g->count > 0) {
        g->waiter = fiber_self();
        if (fiber_park(cancel_with_me, DEADLINE_NONE) == -ECANCELED) {
            fgroup_cancel(g);
            cancel_with_me = false;
        }
        g->waiter = NULL;
    }
}
