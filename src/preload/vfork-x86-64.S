/* SPDX-License-Identifier: MIT */
/*
 * vfork(): libc's, with the thread's record put aside while the child borrows it.
 *
 * The child runs on the parent's memory, stack and thread-local storage while the parent's thread
 * is suspended. What ct_self says is true of the parent alone, so before the system call `vforked`
 * is set and the slot taken away: without a slot no fast path, with the flag every slow path asks
 * the kernel and touches nothing. The parent puts back what it had, which need not be zero: a child
 * of vfork may call vfork.
 *
 * All of that happens in the parent, so there is no instruction of the child at which a handler
 * could still see the parent's record. A handler in the parent between two of the stores sees flag
 * and slot (its own, valid) or flag without slot (the kernel serves), never neither: without either
 * it would register the thread anew.
 *
 * The child returns over the parent's stack and may overwrite the return address before the parent
 * comes to use it. So the address travels in a register, as do the two values; a system call on
 * x86-64 keeps all but rax, rcx and r11:
 *
 *      rdi  return address     rsi  thread's offset of ct_self     rdx  slot       r8d  vforked
 *
 * This is not marked as fit for shadow stacks, which the child's return would upset. A process that
 * has the drop-in loaded therefore runs without them.
 *
 * Other architectures keep libc's vfork: there the clocks must not be read between vfork and exec.
 */
#include <sys/syscall.h>

/* struct ct_self; start.c asserts these. */
#define CT_SELF_SLOT 0
#define CT_SELF_VFORKED 8

        .text
        .globl  vfork, __vfork
        .type   vfork, @function
        .type   __vfork, @function
        .p2align 4
vfork:
__vfork:
        .cfi_startproc
        endbr64
        movq    ct_self@gottpoff(%rip), %rsi
        movl    %fs:CT_SELF_VFORKED(%rsi), %r8d
        movq    %fs:CT_SELF_SLOT(%rsi), %rdx
        movl    $1, %fs:CT_SELF_VFORKED(%rsi)
        movq    $0, %fs:CT_SELF_SLOT(%rsi)

        popq    %rdi
        .cfi_adjust_cfa_offset -8
        .cfi_register %rip, %rdi
        movl    $SYS_vfork, %eax
        syscall
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %rip, 0

        testl   %eax, %eax
        jz      1f
        movq    %rdx, %fs:CT_SELF_SLOT(%rsi)
        movl    %r8d, %fs:CT_SELF_VFORKED(%rsi)
        js      2f
1:      ret

2:      negl    %eax
        pushq   %rax
        .cfi_adjust_cfa_offset 8
        call    __errno_location@PLT
        popq    %rcx
        .cfi_adjust_cfa_offset -8
        movl    %ecx, (%rax)
        orl     $-1, %eax
        ret
        .cfi_endproc
        .size   vfork, . - vfork
        .size   __vfork, . - __vfork

        .section .note.GNU-stack, "", @progbits
