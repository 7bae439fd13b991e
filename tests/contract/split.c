/* SPDX-License-Identifier: MIT */
/*
 * user_plus_system_is_runtime: user + system is the process clock, and each of the three is
 * monotone, whichever threads read.
 *
 * In units: times() truncates both to clock ticks (10 ms at CLK_TCK=100), so their sum is up to two
 * ticks below the clock, never above. The split is the kernel's estimate, made at its tick: it may
 * be one kernel tick (4 ms) old for each CPU, and a process clock of ours may differ from the
 * kernel's by the published bound.
 */
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <unistd.h>

#include "crowd.h"
#include "sandbox.h"

static _Atomic uint64_t user_max, system_max;
static uint64_t clock_tick_ns, slack_ns;

static void raw_times(uint64_t *ret_user, uint64_t *ret_system) {
        struct tms tms;

        (void)allowed_syscall(SYS_times, (long)&tms, 0, 0, 0, 0);
        *ret_user = (uint64_t)tms.tms_utime;
        *ret_system = (uint64_t)tms.tms_stime;
}

static void expect_within(const char *which, uint64_t low, uint64_t now, uint64_t high) {
        /* Two clock ticks: one each for the truncations, together with the age of the split. */
        if (now + 2 < low || now > high + 2)
                broken("%s time is %llu clock ticks, the kernel says %llu to %llu", which,
                       (unsigned long long)now, (unsigned long long)low, (unsigned long long)high);
}

static void compare(void) {
        uint64_t user_before = atomic_load_explicit(&user_max, memory_order_acquire);
        uint64_t system_before = atomic_load_explicit(&system_max, memory_order_acquire);
        uint64_t k_user[2], k_system[2], p_before, p_after, user, system, sum_ns;

        raw_times(&k_user[0], &k_system[0]);
        p_before = reader->process_ns();
        reader->times(&user, &system);
        p_after = reader->process_ns();
        raw_times(&k_user[1], &k_system[1]);

        if (user < user_before)
                broken("user time stepped back from %llu clock ticks to %llu",
                       (unsigned long long)user_before, (unsigned long long)user);
        if (system < system_before)
                broken("system time stepped back from %llu clock ticks to %llu",
                       (unsigned long long)system_before, (unsigned long long)system);
        publish_max(&user_max, user);
        publish_max(&system_max, system);

        sum_ns = (user + system) * clock_tick_ns;
        if (sum_ns > p_after + bound_ns(p_after))
                broken("user + system is %llu ns, the process clock only %llu",
                       (unsigned long long)sum_ns, (unsigned long long)p_after);
        if (sum_ns + 2 * clock_tick_ns + slack_ns + bound_ns(p_before) < p_before)
                broken("user + system is %llu ns, the process clock already %llu",
                       (unsigned long long)sum_ns, (unsigned long long)p_before);
        expect_within("user", k_user[0], user, k_user[1]);
        expect_within("system", k_system[0], system, k_system[1]);
}

static void act(struct member *self, uint64_t roll) {
        compare();
        /* Threads of both kinds, so that the split moves all the time. */
        if (roll % 8 < 4)
                for (volatile unsigned i = 0; i < 4000; i++)
                        ;
        else
                for (unsigned i = 0; i < 40; i++)
                        (void)syscall(SYS_getppid);
}

void user_plus_system_is_runtime(void) {
        struct crowd_plan plan = { .n_members = 4, .ms = 900, .act = act };
        uint64_t end_ns;

        clock_tick_ns = NSEC_PER_SEC / (uint64_t)sysconf(_SC_CLK_TCK);
        slack_ns = cpus() * tick_ns();
        await_page();

        /* One thread: a phase in user mode, one in the kernel, one in user mode again. */
        for (unsigned phase = 0; phase < 3; phase++)
                for (end_ns = raw_thread_ns() + 150 * NSEC_PER_MSEC; raw_thread_ns() < end_ns;) {
                        compare();
                        for (volatile unsigned i = 0; phase != 1 && i < 20000; i++)
                                ;
                        for (unsigned i = 0; phase == 1 && i < 200; i++)
                                (void)syscall(SYS_getppid);
                }
        crowd_run(&plan);
        plan.churn = plan.signals = true;
        crowd_run(&plan);
}
