/* SPDX-License-Identifier: MIT */
/*
 * sleep_until_is_not_early: once the kernel says that a CPU clock has reached a deadline, the
 * reader must not say otherwise.
 *
 * The kernel looks at CPU timers once a tick, so a random deadline is overshot by some random part
 * of 4 ms and a clock that is a little behind gets away with it. Three kinds of deadline are
 * therefore mixed: just ahead (a clock that is behind has the kernel return at once), just short
 * of one tick after the last firing (the kernel then fires at that tick, with next to no
 * overshoot), and anywhere within a tick.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "contract.h"

#define ROUNDS 120

static _Atomic bool over;

static uint64_t next_deadline(uint64_t now_ns, uint64_t *state) {
        uint64_t roll = dice(state);

        switch (roll % 3) {
        case 0:
                return now_ns + 1 + (roll >> 8) % (30 * NSEC_PER_USEC);
        case 1:
                return now_ns + tick_ns() - (roll >> 8) % (60 * NSEC_PER_USEC);
        default:
                return now_ns + 1 + (roll >> 8) % tick_ns();
        }
}

static struct timespec timespec_of(uint64_t ns) {
        return (struct timespec){ (time_t)(ns / NSEC_PER_SEC), (long)(ns % NSEC_PER_SEC) };
}

static void expect_reached(const char *what, uint64_t deadline_ns, uint64_t now_ns) {
        if (now_ns < deadline_ns)
                broken("%s: the kernel says %llu ns are reached, the clock says %llu: %llu early",
                       what, (unsigned long long)deadline_ns, (unsigned long long)now_ns,
                       (unsigned long long)(deadline_ns - now_ns));
}

/* --- sleeping -------------------------------------------------------------------------------- */

static struct peer burner;
static _Atomic bool burner_ready;

static void *burner_main(void *argument) {
        burner = peer_self();
        atomic_store(&burner_ready, true);
        while (!atomic_load(&over))
                (void)reader->thread_ns();
        return NULL;
}

static void sleep_on_clocks(void) {
        uint64_t state = 31415, now_ns, deadline_ns;
        struct timespec until;
        pthread_t thread;
        int r;

        if (!start_thread(&thread, burner_main, NULL))
                return;
        while (!atomic_load(&burner_ready))
                ;
        for (unsigned i = 0; i < 2 * ROUNDS; i++) {
                bool process = i % 2;

                if (process)
                        now_ns = reader->process_ns();
                else if (!reader->thread_ns_of(&burner, &now_ns))
                        broken("the other thread's clock could not be read");
                deadline_ns = next_deadline(now_ns, &state);
                until = timespec_of(deadline_ns);
                do
                        r = clock_nanosleep(process ? CLOCK_PROCESS_CPUTIME_ID : burner.clockid,
                                            TIMER_ABSTIME, &until, NULL);
                while (r == EINTR);
                if (r != 0) {
                        broken("clock_nanosleep on a CPU clock failed: %s", strerror(r));
                        break;
                }
                if (process)
                        now_ns = reader->process_ns();
                else
                        (void)reader->thread_ns_of(&burner, &now_ns);
                expect_reached(process ? "sleeping on the process clock"
                                       : "sleeping on another thread's clock", deadline_ns, now_ns);
        }
        atomic_store(&over, true);
        pthread_join(thread, NULL);
}

/* --- timers ---------------------------------------------------------------------------------- */

static _Atomic uint64_t timer_deadline_ns, timer_fired_ns;
static _Atomic bool timer_on_process;

static void on_timer(int sig) {
        bool process = atomic_load(&timer_on_process);
        int saved_errno = errno;
        uint64_t now_ns = process ? reader->process_ns() : reader->thread_ns();

        expect_reached(process ? "a process CPU timer fired" : "a thread CPU timer fired",
                       atomic_load(&timer_deadline_ns), now_ns);
        atomic_store(&timer_fired_ns, now_ns);
        errno = saved_errno;
}

static void timers(bool process) {
        struct sigaction action = { .sa_handler = on_timer, .sa_flags = SA_RESTART };
        struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1 };
        uint64_t state = 27182;
        timer_t timer;

        /* To this thread: it is the one that runs, and whose fast clock is in question. */
        event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
        atomic_store(&timer_on_process, process);
        (void)sigaction(SIGUSR1, &action, NULL);
        if (timer_create(process ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_THREAD_CPUTIME_ID, &event,
                         &timer) < 0) {
                broken("timer_create on a CPU clock failed: %s", strerror(errno));
                return;
        }
        atomic_store(&timer_fired_ns, process ? reader->process_ns() : reader->thread_ns());
        for (unsigned i = 0; i < ROUNDS; i++) {
                uint64_t from_ns = atomic_load(&timer_fired_ns), deadline_ns;
                struct itimerspec spec = {};

                deadline_ns = next_deadline(from_ns, &state);
                spec.it_value = timespec_of(deadline_ns);
                atomic_store(&timer_deadline_ns, deadline_ns);
                atomic_store(&timer_fired_ns, 0);
                if (timer_settime(timer, TIMER_ABSTIME, &spec, NULL) < 0) {
                        broken("timer_settime on a CPU clock failed: %s", strerror(errno));
                        break;
                }
                while (!atomic_load(&timer_fired_ns))
                        (void)(process ? reader->process_ns() : reader->thread_ns());
        }
        (void)timer_delete(timer);
}

void sleep_until_is_not_early(void) {
        await_page();
        sleep_on_clocks();
        timers(false);
        timers(true);
}
