/* SPDX-License-Identifier: MIT */
/*
 * clock_gettime() and clock().
 *
 * Served here: the two CPU clocks of the caller, by their constants and by the dynamic ids that
 * pthread_getcpuclockid(3) and clock_getcpuclockid(3) give. A dynamic id is negative: bits 31..3
 * are the complement of a pid or tid, bit 2 says tid, bits 1..0 are the type, of which 2
 * (CPUCLOCK_SCHED) is the exact run time; 0 and 1 are the sampled ones, 3 is a descriptor.
 *
 * The kernel's, unchanged: ids of other processes, of threads that are gone, of the sampled types.
 * It looks them up, judges them and names the error. So does it for a process id that is the tid of
 * the caller's own thread, which Linux takes for a convenience and nobody uses.
 *
 * All other clocks go to the vDSO, exactly where libc would have gone. As with libc, a bad pointer
 * is EFAULT when the kernel is asked and a fault when it is not; here the CPU clocks, too, are of
 * the second kind.
 *
 * libc's clock() calls its clock_gettime() by a name that cannot be interposed, hence our own.
 * __clock_gettime is what libc's companions (librt, libpthread) called before 2.34.
 */
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "arch/vdso.h"
#include "base/nsec.h"
#include "clock/clock.h"
#include "cputime/clock.h"
#include "preload/preload.h"

#define CT_CPUCLOCK_TYPE_MASK 3

CT_EXPORT int clock_gettime(clockid_t clockid, struct timespec *ret_ts);
CT_EXPORT int __clock_gettime(clockid_t clockid, struct timespec *ret_ts)
        __attribute__((nothrow, leaf, nonnull(2), alias("clock_gettime")));
CT_EXPORT clock_t clock(void);

/* The core's record, which fork wipes, knows without a system call. */
static pid_t ct_own_pid(void) {
        struct ct_process *p = ct_process_get();

        return p ? ct_load(&p->pid) : getpid();
}

/* Whether the dynamic CLOCKID is one of ours; if so *ret_ns is its reading. */
static bool ct_dynamic_read(clockid_t clockid, uint64_t *ret_ns) {
        pid_t id = ~(clockid >> 3);

        if ((clockid & CT_CPUCLOCK_TYPE_MASK) != CT_CPUCLOCK_SCHED)
                return false;
        /* A child of vfork sees its parent's record; whose clock it means is the kernel's to say. */
        if (ct_self.vforked)
                return false;
        if (clockid & CT_CPUCLOCK_THREAD)
                return cputime_thread_ns_of(id, ret_ns) == 0;
        if (id != 0 && id != ct_own_pid())
                return false;
        *ret_ns = cputime_process_ns();
        return true;
}

int clock_gettime(clockid_t clockid, struct timespec *ret_ts) {
        uint64_t ns;
        int r;

        if (clockid == CLOCK_THREAD_CPUTIME_ID) {
                ct_nsec_to_timespec(cputime_thread_ns(), ret_ts);
                return 0;
        }
        if (clockid == CLOCK_PROCESS_CPUTIME_ID) {
                ct_nsec_to_timespec(cputime_process_ns(), ret_ts);
                return 0;
        }
        if (__builtin_expect(clockid < 0, 0) && ct_dynamic_read(clockid, &ns)) {
                ct_nsec_to_timespec(ns, ret_ts);
                return 0;
        }

        r = ct_vdso_clock_gettime(clockid, ret_ts);
        if (__builtin_expect(r < 0, 0)) {
                errno = -r;
                return -1;
        }
        return 0;
}

clock_t clock(void) {
        /* Microseconds; where clock_t has 32 bits this wraps after 72 minutes, as libc's does. */
        return (clock_t)(cputime_process_ns() / (CT_NSEC_PER_SEC / CLOCKS_PER_SEC));
}
