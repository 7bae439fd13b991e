/* SPDX-License-Identifier: MIT */
/* Which time to count between anchors, and how fast it runs: see the header. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/nsec.h"
#include "clock/timebase.h"

enum {
        CT_TIME_UNKNOWN,
        CT_TIME_COUNTER,
        CT_TIME_RAW,            /* no counter, or distrusted: for good */
};

static _Atomic uint32_t ct_time_kind;

#if CT_COUNTER_EXISTS

/* Pairs of both times closer together than this are a measurement; in ticks of 0.2..1 ns. */
#define CT_PAIR_TICKS 1000

/* An anchor may live for this fraction of the base line. */
#define CT_BASELINE_LIVES 8

/* The start of the base line; written by the constructor, before there are threads. */
static struct ct_time_pair ct_first;

/* The rate, once the base line was longer than a second; 0 before. */
static _Atomic uint32_t ct_final_mult;

/* Both times at one instant, to within CT_PAIR_TICKS; false if something came between. */
static bool ct_time_pair_read(struct ct_time_pair *ret_pair) {
        uint64_t before = ct_counter_read_ordered();
        uint64_t raw_ns = ct_vdso_raw_ns();
        uint64_t after = ct_counter_read_ordered();

        if (after - before > CT_PAIR_TICKS)
                return false;
        ret_pair->ticks = before + (after - before) / 2;
        ret_pair->raw_ns = raw_ns;
        return true;
}

__attribute__((constructor)) static void ct_timebase_begin(void) {
        for (unsigned int i = 0; i < 3; i++)
                if (ct_time_pair_read(&ct_first))
                        return;
        /* Never mind: without a base line the counter is not used. */
        ct_first.ticks = 0;
}

static bool ct_clocksource_trusted(void) {
        static const char *const trusted[] = CT_COUNTER_CLOCKSOURCES;
        int saved_errno = errno;
        char name[32] = "";
        long fd, n = 0;

        fd = syscall(SYS_openat, AT_FDCWD,
                     "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                     O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
                n = syscall(SYS_read, fd, name, sizeof(name) - 1);
                (void)syscall(SYS_close, fd);
        }
        errno = saved_errno;
        if (n <= 0)
                return false;
        name[strcspn(name, "\n")] = '\0';
        for (unsigned int i = 0; i < sizeof(trusted) / sizeof(trusted[0]); i++)
                if (strcmp(name, trusted[i]) == 0)
                        return true;
        return false;
}

/* Whether both times say the same about what has passed since LAST, if that can be told. */
static bool ct_counter_in_step(const struct ct_time_pair *last, const struct ct_time_pair *now,
                               uint32_t mult) {
        uint64_t ticks = now->ticks - last->ticks, raw_ns = now->raw_ns - last->raw_ns, ns;

        if (last->ticks == 0 || ticks > UINT32_MAX)
                return true;
        ns = ct_ticks_to_ns(ticks, mult);
        return (ns > raw_ns ? ns - raw_ns : raw_ns - ns) <= 20 * CT_NSEC_PER_USEC + raw_ns / 512;
}

void ct_timebase_get(uint64_t age_ns, const struct ct_time_pair *last,
                     struct ct_timebase *ret_timebase) {
        uint32_t kind = atomic_load_explicit(&ct_time_kind, memory_order_relaxed);
        uint32_t mult = atomic_load_explicit(&ct_final_mult, memory_order_relaxed);
        struct ct_time_pair now = {};
        uint64_t ticks, raw_ns;

        if (kind == CT_TIME_UNKNOWN) {
                kind = ct_first.ticks && ct_clocksource_trusted() ? CT_TIME_COUNTER : CT_TIME_RAW;
                atomic_store_explicit(&ct_time_kind, kind, memory_order_relaxed);
        }
        if (kind != CT_TIME_COUNTER || !ct_time_pair_read(&now))
                goto raw;
        ticks = now.ticks - ct_first.ticks;
        raw_ns = now.raw_ns - ct_first.raw_ns;
        if (mult == 0) {
                uint64_t m, t = ticks, ns = raw_ns;

                for (; ns > UINT64_MAX >> CT_MULT_SHIFT; ns >>= 1)
                        t >>= 1;
                m = t ? (ns << CT_MULT_SHIFT) / t : 0;
                if (m == 0 || m > UINT32_MAX)
                        goto distrust;
                mult = (uint32_t)m;
                if (raw_ns > CT_NSEC_PER_SEC)
                        atomic_store_explicit(&ct_final_mult, mult, memory_order_relaxed);
        } else if (!ct_counter_in_step(last, &now, mult)) {
                goto distrust;
        }
        *ret_timebase = (struct ct_timebase){
                .pair = now,
                .counter = 1,
                .mult = mult,
                .max_age = (age_ns << CT_MULT_SHIFT) / mult,
        };
        if (ret_timebase->max_age > ticks / CT_BASELINE_LIVES)
                ret_timebase->max_age = ticks / CT_BASELINE_LIVES;
        return;

distrust:
        atomic_store_explicit(&ct_time_kind, CT_TIME_RAW, memory_order_relaxed);
raw:
        *ret_timebase = (struct ct_timebase){
                .pair = now,
                .mult = CT_MULT_NS,
                .max_age = age_ns,
        };
}

#else

void ct_timebase_get(uint64_t age_ns, const struct ct_time_pair *last,
                     struct ct_timebase *ret_timebase) {
        *ret_timebase = (struct ct_timebase){ .mult = CT_MULT_NS, .max_age = age_ns };
}

#endif
