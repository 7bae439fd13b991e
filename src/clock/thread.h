/* SPDX-License-Identifier: MIT */
#ifndef CT_THREAD_H
#define CT_THREAD_H
/*
 * The thread clock's fast path.
 *
 *      T(now) = base + (now - start)   while the thread has not been switched since `start`
 *
 * The order in it matters: first the time, then the change word. A switch that comes between shows
 * in the word; the other way round the time off the CPU would be counted. Both are the thread's
 * own, and interrupts are precise, so no barrier but the compiler's is needed.
 *
 * A signal handler may read the clock in the middle of a read. It may take a new anchor; it bumps
 * `version`, and the interrupted read sees that and is made anew. Or it comes later, when that has
 * been checked: then it leaves a later `last_ns`, which the interrupted read must not replace by its
 * own, hence the compare-and-replace: what stands there is never less than what was returned, and
 * nothing less is returned after it, whichever of two interleaved slow paths put its anchor last.
 */
#include "account/runtime.h"
#include "clock/clock.h"

#define ct_compiler_barrier() __asm__ volatile("" : : : "memory")

static inline __attribute__((always_inline)) bool ct_thread_fast(struct ct_slot *slot, uint64_t *ret_ns) {
        uint64_t version = ct_load(&slot->version), last_ns = ct_load(&slot->last_ns);
        const volatile uint32_t *word;
        const struct ct_anchor *anchor;
        uint64_t age, floor_ns, ns;

        ct_compiler_barrier();
        anchor = &slot->anchors[ct_load(&slot->current)];
        /*
         * In a forked child the slot is all zeroes, from one instant to the next if a handler has
         * forked in the middle of this: then a word that was found before can still be looked at
         * (registry.c), and one found later fails at the limit.
         */
        word = anchor->change_word;
        ct_compiler_barrier();
        age = ct_time_now(anchor->counter) - anchor->start;
        if (__builtin_expect(age >= anchor->limit, 0))
                return false;
        if (__builtin_expect(*word != anchor->change, 0))
                return false;
        ns = ct_runtime_at(anchor->base_ns, 1, ct_ticks_to_ns(age, anchor->mult));
        floor_ns = ct_load(&slot->floor_ns);
        if (__builtin_expect(ns < floor_ns, 0))
                ns = floor_ns;
        if (__builtin_expect(ns < last_ns, 0))
                ns = last_ns;
        ct_compiler_barrier();
        if (__builtin_expect(ct_load(&slot->version) != version, 0))
                return false;
        if (__builtin_expect(!ct_replace_local(&slot->last_ns, last_ns, ns), 0))
                return false;
        ct_store(&slot->version, version + 1);
        *ret_ns = ns;
        return true;
}

#endif /* CT_THREAD_H */
