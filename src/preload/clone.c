/* SPDX-License-Identifier: MIT */
/*
 * clone(): what a child shares decides.
 *
 * Without CLONE_VM it is a fork, and the memory that fork wipes takes care. A thread that brings
 * its own thread-local storage is like any other thread. What is left shares more than the
 * accounts can bear:
 *
 * - A child that borrows the memory and the thread-local storage while its parent waits
 *   (CLONE_VFORK) is a child of vfork: it reads the kernel's clocks meanwhile.
 * - Any other process in our memory, and any thread that shares its thread-local storage with
 *   another: two would answer to one name, at the same time. There is no saying when that ends, so
 *   from here on the kernel serves this memory's clocks, for ever.
 */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>

#include "clock/clock.h"
#include "preload/preload.h"

typedef int ct_clone_fn(int (*fn)(void *), void *stack, int flags, void *arg, ...);

static _Atomic(ct_clone_fn *) ct_next_clone;

static __attribute__((constructor)) void ct_clone_look_up(void) {
        atomic_store_explicit(&ct_next_clone, (ct_clone_fn *)dlsym(RTLD_NEXT, "clone"),
                              memory_order_release);
}

CT_EXPORT int clone(int (*fn)(void *), void *stack, int flags, void *arg, ...) {
        ct_clone_fn *next = atomic_load_explicit(&ct_next_clone, memory_order_acquire);
        struct ct_slot *slot = ct_self.slot;
        uint32_t vforked = ct_self.vforked;
        bool borrows = false;
        void *parent_tid = NULL, *tls = NULL, *child_tid = NULL;
        const int tid_flags = CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
        va_list ap;
        int r;

        /* Optional arguments are there up to the last that a flag asks for. */
        va_start(ap, arg);
        if (flags & (CLONE_PARENT_SETTID | CLONE_PIDFD | CLONE_SETTLS | tid_flags))
                parent_tid = va_arg(ap, void *);
        if (flags & (CLONE_SETTLS | tid_flags))
                tls = va_arg(ap, void *);
        if (flags & tid_flags)
                child_tid = va_arg(ap, void *);
        va_end(ap);

        if (__builtin_expect(!next, 0)) {
                ct_clone_look_up();
                next = atomic_load_explicit(&ct_next_clone, memory_order_acquire);
                if (!next) {
                        errno = ENOSYS;
                        return -1;
                }
        }

        if (flags & CLONE_VM) {
                borrows = (flags & CLONE_VFORK) && !(flags & CLONE_SETTLS);
                if (!borrows && (flags & (CLONE_THREAD | CLONE_SETTLS)) !=
                                        (CLONE_THREAD | CLONE_SETTLS)) {
                        ct_process_page_abandon();
                        ct_clock_disable();
                }
        }

        /* As in vfork-x86-64.S, which says why in this order. */
        if (borrows) {
                *(volatile uint32_t *)&ct_self.vforked = 1;
                *(struct ct_slot *volatile *)&ct_self.slot = NULL;
        }
        r = next(fn, stack, flags, arg, parent_tid, tls, child_tid);
        if (borrows) {
                *(struct ct_slot *volatile *)&ct_self.slot = slot;
                *(volatile uint32_t *)&ct_self.vforked = vforked;
        }
        return r;
}

CT_EXPORT int __clone(int (*fn)(void *), void *stack, int flags, void *arg, ...)
        __attribute__((nothrow, leaf, alias("clone")));
