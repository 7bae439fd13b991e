/* SPDX-License-Identifier: MIT */
#ifndef CT_TIMEBASE_H
#define CT_TIMEBASE_H
/*
 * The time that is added between two answers of the kernel.
 *
 * Where the kernel keeps time by the counter that user space can read too, the counter itself:
 * half the cost of the vDSO. Its rate is taken from CLOCK_MONOTONIC_RAW, over a base line that
 * began when the library was loaded. Elsewhere CLOCK_MONOTONIC_RAW through the vDSO.
 *
 * The rate needs no great precision, since an anchor lives half a millisecond: two pairs that are
 * off by 250 ns each, over a base line of B, put elapsed time e off by 500 ns * e / B, and an
 * anchor lives for at most an eighth of its base line (`max_age`): by 60 ns.
 *
 * The counter is distrusted for good once it and CLOCK_MONOTONIC_RAW disagree about the time that
 * passed between two anchors by more than 0.2 % and 20 us: another time source was chosen, the
 * machine was suspended or moved.
 */
#include <stdbool.h>
#include <stdint.h>

#include "arch/counter.h"
#include "arch/vdso.h"

/* One tick of either time, in ns, times 2^31: fits 32 bits for counters of 0.5 GHz and more. */
#define CT_MULT_SHIFT 31
#define CT_MULT_NS (UINT32_C(1) << CT_MULT_SHIFT)

/* Both times at one instant. */
struct ct_time_pair {
        uint64_t ticks;         /* of the counter; 0: not read */
        uint64_t raw_ns;
};

/* A rate of conversion, taken at an anchor and fixed for it. */
struct ct_timebase {
        struct ct_time_pair pair;       /* when it was taken */
        uint32_t counter;       /* 1: the counter, 0: CLOCK_MONOTONIC_RAW */
        uint32_t mult;          /* ns = ticks * mult >> CT_MULT_SHIFT, for ticks < 2^32 */
        uint64_t max_age;       /* ticks for which it may be used */
};

/*
 * The time base for an anchor that is to live for AGE_NS < 2^32, after one that was taken at LAST
 * (zeroes: none). Async-signal-safe; no system call but at the process's first.
 */
void ct_timebase_get(uint64_t age_ns, const struct ct_time_pair *last,
                     struct ct_timebase *ret_timebase);

/* Now, in ticks of the time base, for comparisons with the thread's own events. */
static inline uint64_t ct_time_now(uint32_t counter) {
        if (CT_COUNTER_EXISTS && __builtin_expect(counter != 0, 1))
                return ct_counter_read();
        return ct_vdso_raw_ns();
}

/* Now, not older than anything this thread has seen of others. */
static inline uint64_t ct_time_now_ordered(uint32_t counter) {
        if (CT_COUNTER_EXISTS && __builtin_expect(counter != 0, 1))
                return ct_counter_read_ordered();
        return ct_vdso_raw_ns();        /* the vDSO orders its own reading */
}

static inline uint64_t ct_ticks_to_ns(uint64_t ticks, uint32_t mult) {
        return ticks * mult >> CT_MULT_SHIFT;
}

#endif /* CT_TIMEBASE_H */
