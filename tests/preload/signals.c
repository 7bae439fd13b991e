/* SPDX-License-Identifier: MIT */
/* Handlers that read clocks while the interrupted code is reading them, and that jump out. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

#include "preload-test.h"

#define STORM_INTERVAL_NS 50000
#define STORM_MS 1500

enum {
        THREAD,
        PROCESS,
        CLOCK,
        USER,
        SYSTEM,
        TICKS,
        N_CLOCKS,
};

/* The largest value that any read returned which had ended. Written by handler and main. */
static volatile uint64_t largest[N_CLOCKS];
static volatile sig_atomic_t decreased = -1, n_handled;
static volatile uint64_t decreased_by;
static volatile bool jump;
static sigjmp_buf jump_buf;

static void seen(int which, uint64_t before, uint64_t value) {
        if (value < before && decreased < 0) {
                decreased_by = before - value;
                decreased = which;
        }
        /* A handler between the two may store more: then less is stored over it. Harmless, the
         * check becomes weaker, not wrong. */
        if (value > largest[which])
                largest[which] = value;
}

static void read_all_clocks(void) {
        uint64_t before[N_CLOCKS], v;
        struct tms tms;

        v = largest[THREAD];
        seen(THREAD, v, read_ns(CLOCK_THREAD_CPUTIME_ID));
        v = largest[PROCESS];
        seen(PROCESS, v, read_ns(CLOCK_PROCESS_CPUTIME_ID));
        v = largest[CLOCK];
        seen(CLOCK, v, (uint64_t)clock());
        for (int i = USER; i <= TICKS; i++)
                before[i] = largest[i];
        v = (uint64_t)times(&tms);
        seen(TICKS, before[TICKS], v);
        seen(USER, before[USER], (uint64_t)tms.tms_utime);
        seen(SYSTEM, before[SYSTEM], (uint64_t)tms.tms_stime);
}

static void handler(int sig) {
        int saved_errno = errno;

        n_handled++;
        read_all_clocks();
        if (jump && n_handled % 16 == 0)
                siglongjmp(jump_buf, 1);
        errno = saved_errno;
}

static void storm(void) {
        struct sigaction action = { .sa_handler = handler, .sa_flags = SA_NODEFER };
        struct itimerspec interval = { { 0, STORM_INTERVAL_NS }, { 0, STORM_INTERVAL_NS } };
        struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
        volatile unsigned int n_jumps = 0;
        uint64_t end;
        timer_t timer;

        sigemptyset(&action.sa_mask);
        if (!jump)
                action.sa_flags = 0;
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0, "%s", strerror(errno));
        CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "%s", strerror(errno));
        warm_up();
        end = read_ns(CLOCK_MONOTONIC) + STORM_MS * NS_PER_MS;
        CHECK(timer_settime(timer, 0, &interval, NULL) == 0, "%s", strerror(errno));

        if (jump && sigsetjmp(jump_buf, 1))
                n_jumps++;
        while (read_ns(CLOCK_MONOTONIC) < end && decreased < 0)
                read_all_clocks();

        jump = false;
        timer_delete(timer);
        CHECK(decreased < 0, "reading %d decreased by %llu", (int)decreased,
              (unsigned long long)decreased_by);
        /* Half of what was asked for would do; a busy machine gives less. */
        CHECK(n_handled > 500, "only %d signals came", (int)n_handled);
        fprintf(stderr, "%d signals, %u jumps\n", (int)n_handled, n_jumps);
        check_own_clocks("after the storm");
}

static void signal_storm_never_decreases(void) {
        storm();
}

static void jumping_out_of_a_read_harms_nothing(void) {
        unsigned int n_maps, n_fds;

        warm_up();
        n_maps = count_maps();
        n_fds = count_fds();
        jump = true;
        storm();
        /*
         * A jump out of an enrolment may leave one mapping, once; not one a jump, of which there
         * are hundreds. A sanitizer's own mappings come and go by the dozen.
         */
        CHECK(count_maps() <= n_maps + 48, "%u mappings before, %u after", n_maps, count_maps());
        CHECK(count_fds() <= n_fds, "%u descriptors before, %u after", n_fds, count_fds());
}

const struct promise promises_signals[] = {
        { "signal_storm_never_decreases", signal_storm_never_decreases },
        { "jumping_out_of_a_read_harms_nothing", jumping_out_of_a_read_harms_nothing },
        {},
};
