/* SPDX-License-Identifier: MIT */
#ifndef CT_VDSO_H
#define CT_VDSO_H
/*
 * The kernel's own user-space clock code, found through the auxiliary vector.
 *
 * libc's clock_gettime() would do, but inside the drop-in that name is ours, and going through
 * dlsym() would allocate and lock on somebody's first read. All functions here are
 * async-signal-safe, preserve errno and may be called before any constructor has run.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "base/nsec.h"

typedef int ct_clock_gettime_fn(clockid_t, struct timespec *);
extern _Atomic(ct_clock_gettime_fn *) ct_vdso_fn __attribute__((visibility("hidden")));

/*
 * clock_gettime through the vDSO, or the raw system call where there is no vDSO or it declines.
 * Returns 0 or -errno.
 */
static inline int ct_vdso_clock_gettime(clockid_t clockid, struct timespec *ret_ts) {
        /* The vDSO, too, returns -errno. */
        return atomic_load_explicit(&ct_vdso_fn, memory_order_relaxed)(clockid, ret_ts);
}

/* The raw system call, always. Returns 0 or -errno. */
int ct_sys_clock_gettime(clockid_t clockid, struct timespec *ret_ts);

/* CLOCK_MONOTONIC_RAW in nanoseconds, the time base of switch records. */
uint64_t ct_vdso_raw_ns(void);

/* CLOCK_MONOTONIC in nanoseconds, the time base of the page. */
static inline uint64_t ct_vdso_monotonic_ns(void) {
        struct timespec ts = {};

        (void)ct_vdso_clock_gettime(CLOCK_MONOTONIC, &ts);
        return ct_nsec_from_timespec(&ts);
}

/* CLOCK_MONOTONIC_COARSE in nanoseconds: moves once per kernel tick, costs a few loads. */
uint64_t ct_vdso_coarse_ns(void);

#endif /* CT_VDSO_H */
