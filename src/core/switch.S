/*
 * void penstock_context_swap(void **save_sp, void *load_sp)
 *
 * Pushes the registers that the ABI says a call preserves, changes stacks, pops them again:
 * System V x86-64 psABI section 3.2.1, AAPCS64 section 6.1. penstock_context_start is where a new
 * context begins: it calls the function with the argument that context.c laid out in the frame.
 * Other CPUs get nothing from this file and use ucontext.
 */
#if defined(__x86_64__)

    .text
    .globl penstock_context_swap
    .hidden penstock_context_swap
    .type penstock_context_swap, @function
    .p2align 4
penstock_context_swap:
    .cfi_startproc
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    /* not ret: its prediction would always be wrong here */
    popq %rcx
    jmp *%rcx
    .cfi_endproc
    .size penstock_context_swap, .-penstock_context_swap

    .globl penstock_context_start
    .hidden penstock_context_start
    .type penstock_context_start, @function
    .p2align 4
penstock_context_start:
    .cfi_startproc
    .cfi_undefined rip
    movq %r12, %rdi
    callq *%rbx
    ud2
    .cfi_endproc
    .size penstock_context_start, .-penstock_context_start

#elif defined(__aarch64__)

    .text
    .globl penstock_context_swap
    .hidden penstock_context_swap
    .type penstock_context_swap, %function
    .p2align 4
penstock_context_swap:
    .cfi_startproc
    stp x19, x20, [sp, #-160]!
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x19, x20, [sp], #160
    ret
    .cfi_endproc
    .size penstock_context_swap, .-penstock_context_swap

    .globl penstock_context_start
    .hidden penstock_context_start
    .type penstock_context_start, %function
    .p2align 4
penstock_context_start:
    .cfi_startproc
    .cfi_undefined x30
    mov x0, x20
    blr x19
    brk #1
    .cfi_endproc
    .size penstock_context_start, .-penstock_context_start

#endif

    .section .note.GNU-stack, "", %progbits
