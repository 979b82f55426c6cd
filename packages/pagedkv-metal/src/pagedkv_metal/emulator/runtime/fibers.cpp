// pkv_switch(&saved, next): keeps the caller's registers on its stack, the stack in `saved`, and
// goes on where the fiber with stack `next` left. Only what a call must preserve is kept.
#if defined(__x86_64__)
asm(R"(
    .text
    .globl pkv_switch
    .type pkv_switch, @function
pkv_switch:
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
    ret
    .size pkv_switch, . - pkv_switch
    .section .note.GNU-stack, "", @progbits
    .text
)");

// A stack on which pkv_switch "returns" into `entry`, which sees it 8 mod 16, as after a call.
extern "C" void* pkv_new_stack(void* top, void (*entry)()) {
    void** slot = static_cast<void**>(top) - 2;
    slot[0] = reinterpret_cast<void*>(entry);
    slot[1] = nullptr;
    for (int i = 1; i <= 6; i++) {
        slot[-i] = nullptr;
    }
    return slot - 6;
}
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl pkv_switch
    .type pkv_switch, %function
pkv_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
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
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size pkv_switch, . - pkv_switch
    .section .note.GNU-stack, "", %progbits
    .text
)");

// A stack on which pkv_switch "returns" into `entry` by way of the link register.
extern "C" void* pkv_new_stack(void* top, void (*entry)()) {
    void** frame = static_cast<void**>(top) - 20;
    for (int i = 0; i < 20; i++) {
        frame[i] = nullptr;
    }
    frame[11] = reinterpret_cast<void*>(entry);
    return frame;
}
#else
#error "fibers are written for x86-64 and aarch64"
#endif
