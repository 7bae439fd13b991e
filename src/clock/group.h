/* SPDX-License-Identifier: MIT */
#ifndef CT_CLOCK_GROUP_H
#define CT_CLOCK_GROUP_H
/*
 * The process clock's fast path.
 *
 *      P(now) = base + nr_running * (now - start)
 *
 * while no watched thread has been switched since `start`, and nobody has `doubt` (thread.c).
 * Watched are all threads: a thread that is born shows as a fork record in the ring of the thread
 * that made it. With a thread of the process on every CPU of the machine, those are enough: another
 * can only come onto a CPU when one of them leaves it.
 *
 * Order, against a slow path in another thread that replaces the anchor: the time is read after
 * `sequence` and the anchor. `sequence` is looked at again before the value is stored in
 * group_last_ns, where others look for it, since a value from half an anchor must not get there;
 * and once more after. Who finds it unchanged read a time from before the replacement, and the slow
 * path, which makes `sequence` odd before it looks at the clock, starts no lower than the old
 * anchor gave then. Against signal handlers: see thread.h.
 */
#include "account/runtime.h"
#include "clock/clock.h"
#include "clock/thread.h"

static inline __attribute__((always_inline)) bool
ct_group_fast(struct ct_process *p, struct ct_slot *slot, uint64_t *ret_ns) {
        uint64_t version = ct_load(&slot->group_version), last_ns = ct_load(&slot->group_last_ns);
        uint64_t age, limit, ns, floor_ns;
        uint32_t sequence, n;

        sequence = ct_acquire(&p->sequence);
        limit = ct_acquire(&p->limit);
        age = ct_time_now_ordered(ct_acquire(&p->counter)) - ct_acquire(&p->start);
        if (__builtin_expect(age >= limit || (sequence & 1), 0))
                return false;
        if (__builtin_expect(ct_acquire(&p->doubt) != ct_acquire(&p->anchor_doubt), 0))
                return false;
        n = ct_acquire(&p->n_watched);
        for (uint32_t i = 0; i < n; i++) {
                const volatile uint32_t *word = ct_acquire(&p->members[i].change_word);

                /* NULL: a handler has forked in the middle of this, and here is the child. */
                if (__builtin_expect(!word || *word != ct_acquire(&p->members[i].change), 0))
                        return false;
        }
        ns = ct_runtime_at(ct_acquire(&p->base_ns), ct_acquire(&p->nr_running),
                           ct_ticks_to_ns(age, ct_acquire(&p->mult)));
        floor_ns = ct_acquire(&p->floor_ns);
        if (__builtin_expect(ns < floor_ns, 0))
                ns = floor_ns;
        if (__builtin_expect(ns < last_ns, 0))
                ns = last_ns;
        /* After all of the above: each of those loads is an acquire. */
        if (__builtin_expect(ct_load(&p->sequence) != sequence ||
                             ct_load(&slot->group_version) != version, 0))
                return false;
        if (__builtin_expect(!ct_replace_local(&slot->group_last_ns, last_ns, ns), 0))
                return false;
        if (__builtin_expect(ct_load(&p->sequence) != sequence, 0))
                return false;
        ct_store(&slot->group_version, version + 1);
        *ret_ns = ns;
        return true;
}

#endif /* CT_CLOCK_GROUP_H */
