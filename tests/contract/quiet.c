/* SPDX-License-Identifier: MIT */
/*
 * reading_changes_nothing: the fast path makes no system call, allocates nothing, leaves errno
 * alone and may be interrupted anywhere by a handler that reads as well.
 *
 * The calls are counted, by a filter that turns each into a signal (sandbox.h), and compared with
 * what the header grants: one after each context switch and one per CPUTIME_ANCHOR_NS of running
 * for the thread clock; one for the process clock, one per running sibling and one membarrier(2)
 * for P. Each trapped call costs running time, which is in the figure.
 *
 * The kernel itself has no fast path: readers it serves are granted one call a read, exactly.
 */
#include <errno.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "contract.h"
#include "sandbox.h"

#define READS_FAST 1000000
#define READS_SLOW 20000
#define WARM_UP 20000   /* far beyond what a lazy library waits for before it enrols */
/* Calls per anchor of P, as the header promises: P, the caller's clock, two masks; then siblings. */
#define PROCESS_CALLS 4
#define SLACK 16        /* a switch or an anchor at either end, per call of them */
/* An asking that took long is repeated, twice at most: now and then; in an emulated machine, mostly. */
#define ASKINGS 3
#define ROUNDS_OF_A_PAGE 5

static bool thread_is_fast, process_is_fast;
static _Atomic bool sibling_over;
static _Atomic pid_t sibling_tid;

struct usage {
        uint64_t calls, switches, cpu_ns;
        uint64_t by_number[SANDBOX_NUMBERS];
};

static struct usage usage_now(void) {
        struct rusage r = {};
        pid_t tid = atomic_load(&sibling_tid);
        struct usage usage = {};

        (void)allowed_syscall(SYS_getrusage, RUSAGE_SELF, (long)&r, 0, 0, 0);
        usage.switches = (uint64_t)(r.ru_nvcsw + r.ru_nivcsw);
        usage.cpu_ns = reference_process_ns(&tid, tid != 0);
        for (unsigned i = 0; i < SANDBOX_NUMBERS; i++)
                usage.calls += usage.by_number[i] = atomic_load(&sandbox_calls[i]);
        return usage;
}

static void expect_calls(const char *what, uint64_t (*read_clock)(void), bool is_fast,
                         unsigned calls_per_anchor) {
        unsigned n = is_fast ? READS_FAST : READS_SLOW;
        struct usage before = usage_now(), after;
        uint64_t granted, calls;

        for (unsigned i = 0; i < n; i++)
                (void)read_clock();
        after = usage_now();

        calls = after.calls - before.calls;
        /* A library that chooses may look now and then whether it can do better. */
        granted = reader->backend == CPUTIME_BACKEND_AUTO ? n + SLACK : n;
        if (is_fast)
                granted = ASKINGS * calls_per_anchor * (after.switches - before.switches + SLACK +
                                                        (after.cpu_ns - before.cpu_ns) /
                                                                CPUTIME_ANCHOR_NS);
        note("%s: %llu system calls in %u reads, %llu switches, %llu us", what,
             (unsigned long long)calls, n, (unsigned long long)(after.switches - before.switches),
             (unsigned long long)((after.cpu_ns - before.cpu_ns) / 1000));
        if (calls > granted)
                broken("%s: %llu system calls in %u reads, %llu granted", what,
                       (unsigned long long)calls, n, (unsigned long long)granted);
        for (unsigned i = 0; calls > granted && i < SANDBOX_NUMBERS; i++)
                if (after.by_number[i] != before.by_number[i])
                        note("  %llu of system call number %u",
                             (unsigned long long)(after.by_number[i] - before.by_number[i]), i);
}

/*
 * A page is published by whoever switches: its reader never calls, a switch or no switch. But when
 * its hypervisor stops a CPU in the middle of that, or for longer than a publication may be built
 * upon, the kernel is asked: one clean round out of a few is wanted.
 */
static void expect_no_calls(const char *what, uint64_t (*read_clock)(void), bool switching) {
        unsigned rounds = 0;
        uint64_t calls;

        do {
                struct timespec nap = { .tv_nsec = 1 };
                struct usage before = usage_now(), after;

                for (unsigned i = 0; i < READS_FAST; i++) {
                        (void)read_clock();
                        if (switching && i % 1000 == 0)
                                (void)allowed_syscall(SYS_nanosleep, (long)&nap, 0, 0, 0, 0);
                }
                after = usage_now();
                calls = after.calls - before.calls;
                note("%s: %llu system calls in %u reads of a page, %llu switches", what,
                     (unsigned long long)calls, READS_FAST,
                     (unsigned long long)(after.switches - before.switches));
        } while (calls > 0 && ++rounds < ROUNDS_OF_A_PAGE);
        if (calls > 0)
                broken("%s: system calls in each of %u times %u reads of a page, %llu in the last",
                       what, ROUNDS_OF_A_PAGE, READS_FAST, (unsigned long long)calls);
}

static void expect_calls_or_none(const char *what, uint64_t (*read_clock)(void), bool is_fast,
                                 unsigned calls_per_anchor) {
        if (!reader->paged) {
                expect_calls(what, read_clock, is_fast, calls_per_anchor);
                return;
        }
        expect_no_calls(what, read_clock, false);
        expect_no_calls(what, read_clock, true);
}

static void warm_up(void) {
        for (unsigned i = 0; i < WARM_UP; i++) {
                (void)reader->thread_ns();
                (void)reader->process_ns();
        }
        await_page();
}

/* Reads one of the clocks all the time and never the other: that must be enough to enrol. */
static void count_one(const void *argument) {
        bool process = *(const bool *)argument;
        uint64_t (*read_clock)(void) = process ? reader->process_ns : reader->thread_ns;
        struct timespec nap = { .tv_nsec = 1000000 };

        for (unsigned i = 0; i < WARM_UP; i++) {
                (void)read_clock();
                /* As await_page(), which would read both. */
                if (reader->paged && i % 20 == 0)
                        nanosleep(&nap, NULL);
        }
        if (THREAD_SANITIZER || !sandbox_count())
                skip_child("system calls cannot be counted here: no seccomp filter with signals");
        expect_calls_or_none(process ? "process clock alone" : "thread clock alone", read_clock,
                             process ? process_is_fast : thread_is_fast, process ? PROCESS_CALLS : 1);
}

static void count_both(const void *argument) {
        warm_up();
        if (THREAD_SANITIZER || !sandbox_count())
                skip_child("system calls cannot be counted here: no seccomp filter with signals");
        expect_calls_or_none("thread clock", reader->thread_ns, thread_is_fast, 1);
        expect_calls_or_none("process clock", reader->process_ns, process_is_fast, PROCESS_CALLS);
}

/*
 * In a sandbox from the start on a library that chooses leaves everything alone: then a read costs
 * what the kernel's own costs, one call, and no look at the sandbox each time.
 */
static void count_sandboxed(const void *argument) {
        if (THREAD_SANITIZER || !sandbox_count())
                skip_child("system calls cannot be counted here: no seccomp filter with signals");
        for (unsigned i = 0; i < WARM_UP; i++) {
                (void)reader->thread_ns();
                (void)reader->process_ns();
        }
        expect_calls("thread clock, in a sandbox", reader->thread_ns, false, 1);
        expect_calls("process clock, in a sandbox", reader->process_ns, false, 1);
}

static void *sibling_main(void *argument) {
        if (*(const bool *)argument)
                warm_up();
        atomic_store(&sibling_tid, peer_self().tid);
        while (!atomic_load(&sibling_over))
                ;
        return NULL;
}

static void count_with_sibling(const void *argument) {
        bool reads = *(const bool *)argument;
        pthread_t sibling;

        if (!start_thread(&sibling, sibling_main, &reads))
                return;
        while (!atomic_load(&sibling_tid))
                ;
        warm_up();
        if (THREAD_SANITIZER || !sandbox_count())
                skip_child("system calls cannot be counted here: no seccomp filter with signals");
        expect_calls_or_none(reads ? "thread clock, a reading sibling" : "thread clock, a silent sibling",
                             reader->thread_ns, thread_is_fast, 1);
        expect_calls_or_none(reads ? "process clock, a reading sibling"
                                   : "process clock, a silent sibling",
                             reader->process_ns, process_is_fast, PROCESS_CALLS + 1);
        atomic_store(&sibling_over, true);
        pthread_join(sibling, NULL);
}

/* --- threads that only look at others -------------------------------------------------------- */

static void *silent_main(void *argument) {
        await_page();
        atomic_store(&sibling_tid, peer_self().tid);
        while (!atomic_load(&sibling_over))
                ;
        return NULL;
}

/* Has never read a clock of its own, and so has no place where its reads could be remembered. */
static void *looker_main(void *argument) {
        struct timespec nap = { .tv_nsec = 1000000 };
        pid_t tid = atomic_load(&sibling_tid);
        uint64_t ns;

        while (!atomic_load(&sibling_over)) {
                if (cputime_thread_ns_of(tid, &ns) < 0)
                        broken("another thread's clock could not be read");
                nanosleep(&nap, NULL);
        }
        return NULL;
}

/*
 * What others are told of a thread by the kernel must not keep P from the page until that thread
 * reads its own clock, which it may never do again. The library counts who served.
 */
static void looked_at(const void *argument) {
        struct cputime_stats before, after;
        struct timespec nap = { .tv_nsec = 100000 };
        pthread_t silent, looker;
        uint64_t fast, slow;

        if (!start_thread(&silent, silent_main, NULL))
                return;
        while (!atomic_load(&sibling_tid))
                sched_yield();
        await_page();
        if (!start_thread(&looker, looker_main, NULL))
                return;
        cputime_stats_read(&before);
        for (unsigned i = 0; i < 5000; i++) {
                for (unsigned k = 0; k < 20; k++)
                        (void)reader->process_ns();
                nanosleep(&nap, NULL);
        }
        cputime_stats_read(&after);
        atomic_store(&sibling_over, true);
        pthread_join(looker, NULL);
        pthread_join(silent, NULL);
        fast = after.reads[CPUTIME_BACKEND_PAGE] - before.reads[CPUTIME_BACKEND_PAGE];
        slow = after.reads[CPUTIME_BACKEND_SYSCALL] - before.reads[CPUTIME_BACKEND_SYSCALL];
        note("process clock, a sibling that looks at another: %llu reads by the page, %llu by the kernel",
             (unsigned long long)fast, (unsigned long long)slow);
        if (slow > 5000 || after.retreats > before.retreats)
                broken("process clock, a sibling that looks at another: %llu of 100000 reads by the kernel,"
                       " %llu retreats", (unsigned long long)slow,
                       (unsigned long long)(after.retreats - before.retreats));
}

/* --- memory and errno ------------------------------------------------------------------------ */

static void expect_untouched(void) {
        static const int values[] = { 0, 1, EINTR, 4095 };
        struct mallinfo2 before, after;
        struct peer self = peer_self();
        uint64_t ns;
        int now;

        /* From the very first reads on, so that enrolling and falling back are among them. */
        before = mallinfo2();
        for (unsigned i = 0; i < 60000; i++) {
                errno = values[i % 4];
                (void)reader->thread_ns();
                (void)reader->process_ns();
                if (i % 8 == 0) {
                        (void)reader->thread_ns_of(&self, &ns);
                        (void)reader->thread_alias(i / 8);
                        (void)reader->process_alias(i / 8);
                }
                now = errno;
                if (now != values[i % 4])
                        broken("read %u made errno %d out of %d", i, now, values[i % 4]);
        }
        after = mallinfo2();
        if (after.uordblks != before.uordblks || after.hblkhd != before.hblkhd ||
            after.arena != before.arena)
                broken("60000 rounds of reads allocated %lld bytes",
                       (long long)(after.uordblks - before.uordblks) +
                       (long long)(after.hblkhd - before.hblkhd));
}

/* --- signals --------------------------------------------------------------------------------- */

static _Atomic uint64_t thread_max_ns, process_max_ns, n_handled;
static _Atomic bool storm_over;

static void read_both(const char *where) {
        uint64_t before, now;

        before = atomic_load(&thread_max_ns);
        now = reader->thread_ns();
        if (now < before)
                broken("%s: the thread clock stepped back %llu ns", where,
                       (unsigned long long)(before - now));
        publish_max(&thread_max_ns, now);
        before = atomic_load(&process_max_ns);
        now = reader->process_ns();
        if (now < before)
                broken("%s: the process clock stepped back %llu ns", where,
                       (unsigned long long)(before - now));
        publish_max(&process_max_ns, now);
}

static void on_storm(int sig) {
        int saved_errno = errno;

        errno = 4095;
        read_both("in a handler");
        if (errno != 4095)
                broken("reading in a handler changed errno to %d", errno);
        atomic_fetch_add(&n_handled, 1);
        errno = saved_errno;
}

static void *storm_main(void *argument) {
        const pthread_t *target = argument;

        pin(1);
        while (!atomic_load(&storm_over)) {
                (void)pthread_kill(*target, SIGUSR1);
                (void)pthread_kill(*target, SIGUSR2);
        }
        return NULL;
}

static void storm(const void *argument) {
        /* Two signals, each blocking only itself: handlers interrupt handlers, two deep. */
        struct sigaction action = { .sa_handler = on_storm, .sa_flags = SA_RESTART };
        pthread_t self = pthread_self(), thread;
        uint64_t end_ns = raw_wall_ns() + 1500 * NSEC_PER_MSEC;
        unsigned n = 0;

        (void)sigaction(SIGUSR1, &action, NULL);
        (void)sigaction(SIGUSR2, &action, NULL);
        await_page();
        pin(0);
        if (!start_thread(&thread, storm_main, &self))
                return;
        for (; atomic_load(&n_handled) < 100 || raw_wall_ns() < end_ns; n++)
                read_both("interrupted");
        atomic_store(&storm_over, true);
        pthread_join(thread, NULL);
        note("%u interrupted rounds of reads, %llu handlers", n,
             (unsigned long long)atomic_load(&n_handled));
}

void reading_changes_nothing(void) {
        static const bool no = false, yes = true;

        thread_is_fast = reader_thread_is_fast();
        process_is_fast = reader_process_is_fast();

        expect_untouched();
        (void)in_child("counting calls, the thread clock alone", count_one, &no);
        (void)in_child("counting calls, the process clock alone", count_one, &yes);
        (void)in_child("counting calls, both clocks", count_both, NULL);
        if (reader->backend == CPUTIME_BACKEND_AUTO || reader->backend == CPUTIME_BACKEND_SYSCALL)
                (void)in_child("counting calls in a sandbox", count_sandboxed, NULL);
        (void)in_child("counting calls beside a sibling that reads", count_with_sibling, &yes);
        (void)in_child("counting calls beside a sibling that does not", count_with_sibling, &no);
        if (reader->paged && reader->library)
                (void)in_child("a sibling that looks at another", looked_at, NULL);
        /* A handler that reads a clock which takes locks would hang, not fail. */
        if (!is_broken())
                (void)in_child("signals", storm, NULL);
}
