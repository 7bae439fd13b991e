/* SPDX-License-Identifier: MIT */
/*
 * A C library with broken CPU clocks, to preload into the workload programs: what the environment
 * variable WARP names is broken, wall time never is.
 *
 *   within   one reading in 5000 is behind the one before in the same thread
 *   across   each thread's readings increase, but the later a thread began to read the further it
 *            is behind the others
 *   user     times(): user time steps back now and then, user plus system does not
 *   fail     the calls fail
 *   none     nothing
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static const char *warp;
static _Atomic uint64_t nr_threads;
static _Thread_local uint64_t base, nr_reads;

__attribute__((constructor)) static void init(void) {
        warp = getenv("WARP");
        if (!warp)
                abort();
}

/* Nanoseconds, far from zero so that steps back do not wrap. */
static uint64_t reading(void) {
        if (base == 0) {
                uint64_t behind = strcmp(warp, "across") == 0 ? atomic_fetch_add(&nr_threads, 1)
                                                              : 0;

                base = UINT64_C(1000000000000000) - behind * UINT64_C(1000000000000);
        }
        nr_reads++;
        if (strcmp(warp, "within") == 0 && nr_reads % 5000 == 0)
                return base;
        return strcmp(warp, "across") == 0 ? base + nr_reads : UINT64_C(2000000000000000);
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *ts) {
        uint64_t ns;

        if (clock != CLOCK_PROCESS_CPUTIME_ID && clock != CLOCK_THREAD_CPUTIME_ID)
                return (int)syscall(SYS_clock_gettime, clock, ts);
        ns = reading();
        ts->tv_sec = (time_t)(ns / 1000000000);
        ts->tv_nsec = (long)(ns % 1000000000);
        if (strcmp(warp, "fail") == 0) {
                errno = EINVAL;
                return -1;
        }
        return 0;
}

EXPORT clock_t times(struct tms *tms) {
        uint64_t user = reading() / 10000000, system = 1000;

        if (strcmp(warp, "user") == 0 && nr_reads % 5000 == 0) {
                user--;
                system++;
        }
        *tms = (struct tms){ .tms_utime = (clock_t)user, .tms_stime = (clock_t)system };
        if (strcmp(warp, "fail") == 0) {
                errno = EFAULT;
                return -1;
        }
        return 1;
}
