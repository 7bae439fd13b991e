/* SPDX-License-Identifier: MIT */
/*
 * times(): the kernel's own answer, asked for at most once per kernel tick.
 *
 * What times() tells is counted in units of 10 ms (USER_HZ = 100), and the kernel itself does not
 * know it better than to the tick: it learns of user and system time by sampling at the tick, it
 * has charged the threads that run on other CPUs up to their last tick, and the return value is its
 * tick counter. An answer that was right when the current tick began therefore lags by no more than
 * what the kernel's own answer may lag by. CLOCK_MONOTONIC_COARSE is moved by the same code that
 * counts the tick; reading it costs a few loads.
 *
 * Children's times are another matter: they move when a child is waited for, and a program looks at
 * them right then. So wait() and its kin bump `generation` (wait.c).
 *
 * The rule. What is remembered carries the tick c and the generation g in which its answer was
 * asked for, and every field is at least what that answer was. It is returned when c and g are the
 * current ones. The fields only grow:
 *
 *      stored = max(stored, kernel's answer)           field by field
 *
 * so an answer that was overtaken on its way never takes anything back, its labels merely make the
 * next reader ask again.
 *
 *   times_never_decreases   times() returns r1 before another, in whichever thread, begins and
 *                           returns r2 => r1 <= r2 in each field
 *
 * because r2 is either asked of the kernel after r1 was, or was remembered. If r1 was stored, the
 * store only grew since. If it was not, because the store was taken, then `generation` was bumped
 * before r1 returned, and what was asked for before does not count for r2.
 *
 * Nobody waits. A reader who finds the sequence odd, or moved when he has his copy, asks the
 * kernel. A writer takes the store if it is free, with all signals blocked, so that no handler sees
 * it taken by the thread it interrupted and nobody jumps out with siglongjmp(3). Fields are read
 * with acquire and written with release: a reader who saw any of a writer's fields also sees his
 * sequence.
 *
 * Not promised: that the fields belong to one instant. The kernel does not promise that either, it
 * reads own and children's times one after another.
 */
#include <errno.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <unistd.h>

#include "arch/vdso.h"
#include "base/signals.h"
#include "clock/self.h"
#include "preload/preload.h"

CT_EXPORT clock_t times(struct tms *ret_tms);

struct ct_times {
        struct tms tms;
        clock_t ticks;
};

/* clock_t wraps where it has 32 bits, so "later" is the sign of the distance. */
static clock_t ct_later(clock_t a, clock_t b) {
        return (clock_t)((unsigned long)a - (unsigned long)b) > 0 ? a : b;
}

static void ct_times_ask(struct ct_times *ret_times) {
        struct ct_times t = {};
        int saved_errno = errno;

        /* Any value is a good one; syscall() took those from -4095 to -1 for errors. */
        t.ticks = syscall(SYS_times, &t.tms);
        if (t.ticks == -1)
                t.ticks = -(clock_t)errno;
        errno = saved_errno;
        *ret_times = t;
}

static bool ct_times_recall(struct ct_times_cache *cache, uint64_t coarse_ns,
                            struct ct_times *ret_times) {
        uint32_t sequence = atomic_load_explicit(&cache->sequence, memory_order_acquire);
        uint32_t generation = atomic_load_explicit(&cache->generation, memory_order_acquire);

        if (sequence & 1)
                return false;
        if (atomic_load_explicit(&cache->filled_low, memory_order_acquire) != (uint32_t)coarse_ns ||
            atomic_load_explicit(&cache->filled_high, memory_order_acquire) != coarse_ns >> 32 ||
            atomic_load_explicit(&cache->filled_generation, memory_order_acquire) != generation)
                return false;
        ret_times->ticks = atomic_load_explicit(&cache->ticks, memory_order_acquire);
        ret_times->tms.tms_utime = atomic_load_explicit(&cache->user, memory_order_acquire);
        ret_times->tms.tms_stime = atomic_load_explicit(&cache->system, memory_order_acquire);
        ret_times->tms.tms_cutime = atomic_load_explicit(&cache->children_user,
                                                         memory_order_acquire);
        ret_times->tms.tms_cstime = atomic_load_explicit(&cache->children_system,
                                                         memory_order_acquire);
        return atomic_load_explicit(&cache->sequence, memory_order_relaxed) == sequence;
}

/* For the owner of the odd sequence: stores the later of *FIELD and VALUE. */
static void ct_times_raise(_Atomic clock_t *field, clock_t value) {
        clock_t old = atomic_load_explicit(field, memory_order_relaxed);

        atomic_store_explicit(field, ct_later(value, old), memory_order_release);
}

static void ct_times_store(struct ct_times_cache *cache, uint64_t coarse_ns, uint32_t generation,
                           const struct ct_times *times) {
        struct ct_signal_mask mask;
        uint32_t sequence;

        ct_signals_block(&mask);
        sequence = atomic_load_explicit(&cache->sequence, memory_order_relaxed);
        if ((sequence & 1) ||
            !atomic_compare_exchange_strong_explicit(&cache->sequence, &sequence, sequence + 1,
                                                     memory_order_acquire, memory_order_relaxed)) {
                /* Pairs with the reader's load: who comes after us must not be told less. */
                atomic_fetch_add_explicit(&cache->generation, 1, memory_order_release);
                goto out;
        }

        ct_times_raise(&cache->ticks, times->ticks);
        ct_times_raise(&cache->user, times->tms.tms_utime);
        ct_times_raise(&cache->system, times->tms.tms_stime);
        ct_times_raise(&cache->children_user, times->tms.tms_cutime);
        ct_times_raise(&cache->children_system, times->tms.tms_cstime);

        atomic_store_explicit(&cache->filled_low, (uint32_t)coarse_ns, memory_order_release);
        atomic_store_explicit(&cache->filled_high, (uint32_t)(coarse_ns >> 32),
                              memory_order_release);
        atomic_store_explicit(&cache->filled_generation, generation, memory_order_release);
        atomic_store_explicit(&cache->sequence, sequence + 2, memory_order_release);
out:
        ct_signals_restore(&mask);
}

/* Out of line, for the way without a system call to stay short. */
static __attribute__((noinline)) void ct_times_slow(struct ct_process_page *page,
                                                    uint64_t coarse_ns,
                                                    struct ct_times *ret_times) {
        uint32_t generation;

        if (!page) {
                ct_times_ask(ret_times);
                return;
        }
        /* This and the coarse clock from before the question is put: an answer can only be newer
         * than its labels. */
        generation = atomic_load_explicit(&page->times_cache.generation, memory_order_acquire);
        ct_times_ask(ret_times);
        ct_times_store(&page->times_cache, coarse_ns, generation, ret_times);
        if (ct_preload_verbose)
                atomic_fetch_add_explicit(&page->n_times_asked, 1, memory_order_relaxed);
}

clock_t times(struct tms *ret_tms) {
        struct ct_process_page *page = NULL;
        struct ct_times times;
        uint64_t coarse_ns = 0;

        /* In a child of vfork the page is the parent's. */
        if (__builtin_expect(!ct_self.vforked, 1))
                page = ct_process_page_get();
        if (__builtin_expect(page != NULL, 1))
                coarse_ns = ct_vdso_coarse_ns();
        if (__builtin_expect(!page || !ct_times_recall(&page->times_cache, coarse_ns, &times), 0))
                ct_times_slow(page, coarse_ns, &times);
        else if (__builtin_expect(ct_preload_verbose, 0))
                atomic_fetch_add_explicit(&page->n_times_cached, 1, memory_order_relaxed);

        if (ret_tms)
                *ret_tms = times.tms;
        /* libc keeps -1 for errors, of which there are none, and says 0 for that one tick. */
        return times.ticks == -1 ? 0 : times.ticks;
}

void ct_times_invalidate(void) {
        /*
         * No page yet: then nobody has asked yet either. Whoever publishes it later asks after our
         * child was reaped: publication and this look are sequentially consistent.
         */
        struct ct_process_page *page = ct_process_page_peek();

        if (page)
                atomic_fetch_add_explicit(&page->times_cache.generation, 1, memory_order_release);
}
