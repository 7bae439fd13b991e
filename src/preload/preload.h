/* SPDX-License-Identifier: MIT */
#ifndef CT_PRELOAD_H
#define CT_PRELOAD_H
/*
 * The drop-in, libcputime-preload.so: libc's functions by their own names, served from user space.
 *
 * One file per family of calls: clock-gettime.c, times.c, wait.c, clone.c and vfork-x86-64.S;
 * start.c reads the environment and, when asked to, reports at exit. The core is linked in, hidden:
 * a program may use libcputime beside it, each keeps its own accounts.
 *
 * clock_getres() is left to libc on purpose. The kernel promises 1 ns for CPU clocks, all backends
 * count in nanoseconds, so the kernel's answer is true of them, and it is not ours to change.
 *
 * Everything here preserves errno where libc does, allocates nothing and takes no lock on the way
 * to an answer, and may run in a signal handler, before any constructor, and after destructors.
 *
 * Programs that no drop-in reaches: statically linked ones, Go's (they make their system calls
 * themselves), set-user-id ones. A program built by gcc with -fsanitize=address refuses to start
 * unless its run-time library comes first: LD_PRELOAD="libasan.so.8 libcputime-preload.so", or
 * ASAN_OPTIONS=verify_asan_link_order=0; clang's, and gcc's with -static-libasan, just work.
 *
 * Not seen, and what follows: raw system calls go past us and get the kernel's answer; children
 * reaped by a raw wait4(2), or by libc inside a call that is not wrapped, show in times() at the
 * next tick; a raw clone(2) or vfork(2) that shares memory with another process gives a child in
 * which the clocks are not to be read.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/times.h>
#include <sys/types.h>

#define CT_EXPORT __attribute__((visibility("default")))

/*
 * What times() remembers. Written by whoever holds the odd sequence; every field is an atomic, so a
 * copy that was torn is detected, never undefined. See times.c.
 */
struct ct_times_cache {
        _Atomic uint32_t sequence;      /* odd: being written */
        _Atomic uint32_t generation;    /* bumped when what is remembered may be too old */
        _Atomic uint32_t filled_generation;     /* of the answer that is remembered */
        _Atomic uint32_t filled_low;    /* coarse clock before the kernel was asked, ns, low half */
        _Atomic uint32_t filled_high;
        _Atomic clock_t ticks;          /* the return value */
        _Atomic clock_t user, system, children_user, children_system;
};

/*
 * One page that belongs to this process alone: a forked child, however it was made, finds zeroes
 * (MADV_WIPEONFORK). Zero means "not known yet" in every field.
 */
struct ct_process_page {
        struct ct_times_cache times_cache;
        /* Counted when the report was asked for, and not otherwise: it is shared by all threads. */
        _Atomic uint64_t n_times_cached __attribute__((aligned(64)));
        _Atomic uint64_t n_times_asked;
};
_Static_assert(sizeof(struct ct_process_page) <= 4096, "it is one page");

/* NULL: nobody has asked yet. CT_PAGE_NONE: there is none, or it would be another process's too. */
#define CT_PAGE_NONE ((struct ct_process_page *)1)
extern _Atomic(struct ct_process_page *) ct_page;

struct ct_process_page *ct_process_page_make(void);

/* The page, mapped at the first call; NULL: do without. */
static inline struct ct_process_page *ct_process_page_get(void) {
        struct ct_process_page *page = atomic_load_explicit(&ct_page, memory_order_acquire);

        if (__builtin_expect((uintptr_t)page <= (uintptr_t)CT_PAGE_NONE, 0))
                return page ? (struct ct_process_page *)0 : ct_process_page_make();
        return page;
}

/* The same if it is there already; never makes a system call. */
struct ct_process_page *ct_process_page_peek(void);

/* Never use the page again: another process is about to write to it. */
void ct_process_page_abandon(void);

/* A child may have been reaped: its time must show at once. Async-signal-safe. */
void ct_times_invalidate(void);

/* Whether CPUTIME_VERBOSE=1. Set before main(), constant from then on. */
extern bool ct_preload_verbose;

#endif /* CT_PRELOAD_H */
