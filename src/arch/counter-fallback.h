/* SPDX-License-Identifier: MIT */
#ifndef CT_COUNTER_FALLBACK_H
#define CT_COUNTER_FALLBACK_H
#include <stdint.h>

#define CT_COUNTER_EXISTS 0
#define CT_COUNTER_CLOCKSOURCES { 0 }

static inline uint64_t ct_counter_read(void) {
        return 0;
}

static inline uint64_t ct_counter_read_ordered(void) {
        return 0;
}

#endif /* CT_COUNTER_FALLBACK_H */
