/* SPDX-License-Identifier: MIT */
#ifndef CT_CLOCK_GROUP_H
#define CT_CLOCK_GROUP_H
/*
 * The process clock's fast path.
 *
 *      P(now) = base + nr_running * (now - start)
 *
 * while no watched thread has been switched since `start`, and nobody has `doubt` (thread.c). Watched are all threads: a thread that
 * is born shows as a fork record in the ring of the thread that made it.
 *
 * Order, against a slow path in another thread that replaces the anchor: the time is read after
 * `sequence` and the anchor; `sequence` again after the value was stored in group_last_ns. Who
 * finds it unchanged read a time from before the replacement, and the slow path, which makes
 * `sequence` odd before it looks at the clock, starts no lower than the old anchor gave then.
 */
#include "account/runtime.h"
#include "clock/clock.h"
#include "clock/thread.h"

static inline bool ct_group_fast(struct ct_process *p, struct ct_slot *slot, uint64_t *ret_ns) {
        uint64_t version = ct_load(&slot->group_version), age, limit, ns, floor_ns;
        uint32_t sequence, n;

        sequence = atomic_load_explicit(&p->sequence, memory_order_acquire);
        limit = ct_load(&p->limit);
        age = ct_time_now_ordered(ct_load(&p->counter)) - ct_load(&p->start);
        if (__builtin_expect(age >= limit || (sequence & 1), 0))
                return false;
        if (__builtin_expect(ct_load(&p->doubt) != ct_load(&p->anchor_doubt), 0))
                return false;
        n = atomic_load_explicit(&p->n_members, memory_order_acquire);
        for (uint32_t i = 0; i < n; i++)
                if (__builtin_expect(*(const volatile uint32_t *)p->members[i].change_word !=
                                     ct_load(&p->members[i].change), 0))
                        return false;
        ns = ct_runtime_at(ct_load(&p->base_ns), ct_load(&p->nr_running),
                           ct_ticks_to_ns(age, ct_load(&p->mult)));
        floor_ns = atomic_load_explicit(&p->floor_ns, memory_order_relaxed);
        if (__builtin_expect(ns < floor_ns, 0))
                ns = floor_ns;
        ct_store(&slot->group_last_ns, ns);
        /* Orders the loads above before the check; the store before it in the compiler's eyes. */
        ct_compiler_barrier();
        atomic_thread_fence(memory_order_acquire);
        if (__builtin_expect(ct_load(&p->sequence) != sequence ||
                             ct_load(&slot->group_version) != version, 0))
                return false;
        ct_store(&slot->group_version, version + 1);
        *ret_ns = ns;
        return true;
}

#endif /* CT_CLOCK_GROUP_H */
