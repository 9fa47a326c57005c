/*
 * A context: registers and a stack. Private to src/core.
 *
 * context_switch() saves the callee-saved registers on the stack that is left and loads those of
 * the other (switch.S; ucontext on CPUs that switch.S does not know). The floating-point control
 * words are not switched: nothing in penstock changes them. ASan and TSan are told of each switch.
 */
#ifndef CORE_CONTEXT_H
#define CORE_CONTEXT_H

#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CONTEXT_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define CONTEXT_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(CONTEXT_ASAN)
#define CONTEXT_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__) && !defined(CONTEXT_TSAN)
#define CONTEXT_TSAN 1
#endif
#ifndef CONTEXT_ASAN
#define CONTEXT_ASAN 0
#endif
#ifndef CONTEXT_TSAN
#define CONTEXT_TSAN 0
#endif

#ifndef CONTEXT_UCONTEXT /* may be asked for, to test it */
#if defined(__x86_64__) || defined(__aarch64__)
#define CONTEXT_UCONTEXT 0
#else
#define CONTEXT_UCONTEXT 1
#endif
#endif
#if CONTEXT_UCONTEXT
#include <ucontext.h>
#endif

struct context {
    void *sp;          /* saved stack pointer, while it is not running */
    const void *stack; /* lowest address; of a thread's own stack only ASan's view is known */
    size_t stack_size;
    void *fake_stack; /* ASan's, while it is not running */
    void *tsan;       /* TSan's fiber: dear, so it is kept for the next use of the stack */
    unsigned tsan_uses;
#if CONTEXT_UCONTEXT
    ucontext_t uc;
#endif
};

/*
 * Makes c ready to run entry(arg) on the stack when it is first switched to. entry begins with
 * context_entered() and never returns: it ends with context_leave(). c is zeroed, or has been left.
 */
void context_init(struct context *c, void *stack, size_t size, void (*entry)(void *arg), void *arg);
/* c has been left, and its stack is about to be unmapped. */
void context_done(struct context *c);

/* The running code's own stack, as a context to be switched away from. */
void context_adopt(struct context *c);

void context_switch(struct context *from, struct context *to);
/* The first thing on a new context; from: the one that switched to it. */
void context_entered(struct context *from);
/* The last switch of a context: from's stack may be used anew after it. */
void context_leave(struct context *from, struct context *to) __attribute__((noreturn));

#endif
