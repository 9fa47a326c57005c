/*
 * Contexts for C: what goes around the switch of registers in switch.S.
 *
 * A new context's stack is laid out as if it had called context_swap() itself: the trampoline in
 * switch.S is the return address, entry and arg lie where the saved registers are.
 */
#include "core/context.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if CONTEXT_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if CONTEXT_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if CONTEXT_TSAN
/* TSan takes fibers that are kept for reuse for running threads, and lets every program that has
 * some sleep a second at its end. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0";
}
#endif

#if CONTEXT_UCONTEXT

static void start_ucontext(unsigned entry_hi, unsigned entry_lo, unsigned arg_hi, unsigned arg_lo)
{
    uint64_t entry_bits = (uint64_t)entry_hi << 32 | entry_lo;
    uint64_t arg_bits = (uint64_t)arg_hi << 32 | arg_lo;
    void (*entry)(void *) = (void (*)(void *))(uintptr_t)entry_bits;

    entry((void *)(uintptr_t)arg_bits);
    abort();
}

static void lay_out(struct context *c, void *stack, size_t size, void (*entry)(void *), void *arg)
{
    uint64_t entry_bits = (uintptr_t)entry;
    uint64_t arg_bits = (uintptr_t)arg;

    getcontext(&c->uc);
    c->uc.uc_stack.ss_sp = stack;
    c->uc.uc_stack.ss_size = size;
    c->uc.uc_link = NULL;
    makecontext(&c->uc, (void (*)(void))start_ucontext, 4, (unsigned)(entry_bits >> 32),
                (unsigned)entry_bits, (unsigned)(arg_bits >> 32), (unsigned)arg_bits);
}

static inline void swap(struct context *from, struct context *to)
{
    swapcontext(&from->uc, &to->uc);
}

#else

/* switch.S */
void penstock_context_swap(void **save_sp, void *load_sp);
void penstock_context_start(void);

static void lay_out(struct context *c, void *stack, size_t size, void (*entry)(void *), void *arg)
{
    uintptr_t top = ((uintptr_t)stack + size) & ~(uintptr_t)15;
#if defined(__x86_64__)
    /* r15 r14 r13 r12 rbx rbp, return address: the trampoline starts 16 bytes below the top */
    void **frame = (void **)(top - 72);

    memset(frame, 0, 72);
    frame[3] = arg;
    frame[4] = (void *)(uintptr_t)entry;
    frame[6] = (void *)(uintptr_t)penstock_context_start;
#else
    /* x19 .. x28, x29, x30, d8 .. d15 */
    void **frame = (void **)(top - 160);

    memset(frame, 0, 160);
    frame[0] = (void *)(uintptr_t)entry;
    frame[1] = arg;
    frame[11] = (void *)(uintptr_t)penstock_context_start;
#endif
    c->sp = frame;
}

static inline void swap(struct context *from, struct context *to)
{
    penstock_context_swap(&from->sp, to->sp);
}

#endif

void context_init(struct context *c, void *stack, size_t size, void (*entry)(void *arg), void *arg)
{
    c->stack = stack;
    c->stack_size = size;
    c->fake_stack = NULL;
    lay_out(c, stack, size, entry, arg);
#if CONTEXT_TSAN
    /* Each use leaves two frames on TSan's own stack, which has room for 65536. */
    if (c->tsan_uses++ % 10000 == 0) {
        context_done(c);
        c->tsan = __tsan_create_fiber(0);
    }
#endif
}

void context_done(struct context *c)
{
#if CONTEXT_TSAN
    if (c->tsan) {
        __tsan_destroy_fiber(c->tsan);
        c->tsan = NULL;
    }
#else
    (void)c;
#endif
}

void context_adopt(struct context *c)
{
#if CONTEXT_TSAN
    c->tsan = __tsan_get_current_fiber();
#else
    (void)c;
#endif
}

void context_switch(struct context *from, struct context *to)
{
#if CONTEXT_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_size);
#endif
#if CONTEXT_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    swap(from, to);
#if CONTEXT_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

void context_entered(struct context *from)
{
#if CONTEXT_ASAN
    __sanitizer_finish_switch_fiber(NULL, &from->stack, &from->stack_size);
#else
    (void)from;
#endif
}

void context_leave(struct context *from, struct context *to)
{
#if CONTEXT_ASAN
    __sanitizer_start_switch_fiber(NULL, to->stack, to->stack_size);
#endif
#if CONTEXT_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    swap(from, to);
    abort();
}
