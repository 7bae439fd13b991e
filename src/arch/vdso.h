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
#include <stdint.h>
#include <time.h>

/*
 * clock_gettime through the vDSO, or the raw system call where there is no vDSO or it declines.
 * Returns 0 or -errno.
 */
int ct_vdso_clock_gettime(clockid_t clockid, struct timespec *ret_ts);

/* The raw system call, always. Returns 0 or -errno. */
int ct_sys_clock_gettime(clockid_t clockid, struct timespec *ret_ts);

/* CLOCK_MONOTONIC_RAW in nanoseconds, the time base of switch records. */
uint64_t ct_vdso_raw_ns(void);

/* CLOCK_MONOTONIC in nanoseconds, the time base of the page. */
uint64_t ct_vdso_monotonic_ns(void);

/* CLOCK_MONOTONIC_COARSE in nanoseconds: moves once per kernel tick, costs a few loads. */
uint64_t ct_vdso_coarse_ns(void);

#endif /* CT_VDSO_H */
