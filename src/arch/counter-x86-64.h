/* SPDX-License-Identifier: MIT */
#ifndef CT_COUNTER_X86_64_H
#define CT_COUNTER_X86_64_H
#include <stdint.h>

#define CT_COUNTER_EXISTS 1
#define CT_COUNTER_CLOCKSOURCES { "tsc" }

static inline uint64_t ct_counter_read(void) {
        uint32_t low, high;

        __asm__ volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
        return (uint64_t)high << 32 | low;
}

/*
 * LFENCE does not complete before all earlier instructions have (Intel SDM 4.3, RDTSC; on AMD
 * Linux sets the bit that makes it so). RDTSCP would wait for them too and costs the same.
 */
static inline uint64_t ct_counter_read_ordered(void) {
        uint32_t low, high;

        __asm__ volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
        return (uint64_t)high << 32 | low;
}

#endif /* CT_COUNTER_X86_64_H */
