/* SPDX-License-Identifier: MIT */
#ifndef CT_NSEC_H
#define CT_NSEC_H
/* Nanoseconds inside, struct timespec at the edge. */
#include <stdint.h>
#include <time.h>

#define CT_NSEC_PER_USEC UINT64_C(1000)
#define CT_NSEC_PER_MSEC UINT64_C(1000000)
#define CT_NSEC_PER_SEC UINT64_C(1000000000)

static inline uint64_t ct_nsec_from_timespec(const struct timespec *ts) {
        return (uint64_t)ts->tv_sec * CT_NSEC_PER_SEC + (uint64_t)ts->tv_nsec;
}

static inline void ct_nsec_to_timespec(uint64_t ns, struct timespec *ret_ts) {
        ret_ts->tv_sec = (time_t)(ns / CT_NSEC_PER_SEC);
        ret_ts->tv_nsec = (long)(ns % CT_NSEC_PER_SEC);
}

#endif /* CT_NSEC_H */
