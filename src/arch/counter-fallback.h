/* SPDX-License-Identifier: MIT */
#ifndef CT_COUNTER_FALLBACK_H
#define CT_COUNTER_FALLBACK_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CT_COUNTER_EXISTS 0
#define CT_COUNTER_CLOCKSOURCES { 0 }

static inline uint64_t ct_counter_read(void) {
        return 0;
}

static inline uint64_t ct_counter_read_ordered(void) {
        return 0;
}

static inline bool ct_replace_local(_Atomic uint64_t *p, uint64_t expected, uint64_t value) {
        return atomic_compare_exchange_strong_explicit(p, &expected, value, memory_order_relaxed,
                                                       memory_order_relaxed);
}

#endif /* CT_COUNTER_FALLBACK_H */
