/* SPDX-License-Identifier: MIT */
/* Which clocks are served, and that all others are libc's and the kernel's own. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload-test.h"

static void *burn_and_end(void *arg) {
        burn(20 * NS_PER_MS);
        return NULL;
}

static void own_clock_ids_agree(void) {
        pthread_t thread;
        clockid_t clockid;

        burn(20 * NS_PER_MS);
        /* So that the process's clock and the thread's are not the same. */
        CHECK(pthread_create(&thread, NULL, burn_and_end, NULL) == 0, "no thread");
        pthread_join(thread, NULL);
        check_own_clocks("cold");
        warm_up();
        check_own_clocks("warm");

        CHECK(pthread_getcpuclockid(pthread_self(), &clockid) == 0, "no clock of this thread");
        check_agrees(clockid, "pthread_getcpuclockid");
        CHECK(clock_getcpuclockid(0, &clockid) == 0, "no clock of process 0");
        check_agrees(clockid, "clock_getcpuclockid(0)");
        CHECK(clock_getcpuclockid(getpid(), &clockid) == 0, "no clock of this process");
        check_agrees(clockid, "clock_getcpuclockid(getpid())");
}

/* One clock, whatever it is called: in any order of names the readings do not decrease. */
static void names_of_one_clock_are_one_clock(void) {
        clockid_t threads[] = { CLOCK_THREAD_CPUTIME_ID, dynamic_id(0, BITS_THREAD),
                                dynamic_id(gettid(), BITS_THREAD) };
        clockid_t processes[] = { CLOCK_PROCESS_CPUTIME_ID, dynamic_id(0, BITS_PROCESS),
                                  dynamic_id(getpid(), BITS_PROCESS) };
        uint64_t thread = 0, process = 0, random = 88172645463325252;

        for (int i = 0; i < 300000; i++) {
                clockid_t t = threads[check_random(&random) % 3];
                clockid_t p = processes[check_random(&random) % 3];
                uint64_t ns = read_ns(t);

                CHECK(ns >= thread, "clock %d went back by %llu ns", t,
                      (unsigned long long)(thread - ns));
                thread = ns;
                ns = read_ns(p);
                CHECK(ns >= process, "clock %d went back by %llu ns", p,
                      (unsigned long long)(process - ns));
                CHECK(ns >= thread, "the process %llu is behind its thread %llu",
                      (unsigned long long)ns, (unsigned long long)thread);
                process = ns;
        }
}

static _Atomic bool stop;
static _Atomic pid_t sibling_tid;

static void *run_as_sibling(void *arg) {
        burn(30 * NS_PER_MS);
        atomic_store(&sibling_tid, gettid());
        while (!atomic_load(&stop))
                burn(NS_PER_MS);
        return NULL;
}

static void siblings_clock_agrees(void) {
        pthread_t thread;
        clockid_t clockid;
        struct timespec ts;
        int r;

        CHECK(pthread_create(&thread, NULL, run_as_sibling, NULL) == 0, "no thread");
        while (!atomic_load(&sibling_tid))
                usleep(1000);
        CHECK(pthread_getcpuclockid(thread, &clockid) == 0, "no clock of a sibling");
        check_agrees(clockid, "a running sibling");
        CHECK(read_ns(clockid) >= 30 * NS_PER_MS, "that is not the sibling's clock");
        atomic_store(&stop, true);
        pthread_join(thread, NULL);

        errno = 0;
        do      /* joined is not gone: the kernel may take a moment more */
                r = clock_gettime(clockid, &ts);
        while (r == 0);
        CHECK(r == -1 && errno == EINVAL, "the clock of an ended thread: %d, %s", r,
              strerror(errno));
}

/* The result by name and the kernel's: same value or same errno; *TS stays as it was on failure. */
static void check_same_as_kernel(clockid_t clockid, bool stands_still) {
        struct timespec before, ours = { 12, 34 }, after;
        int kernel_r, kernel_errno, r, saved_errno;

        errno = 0;
        kernel_r = (int)syscall(SYS_clock_gettime, clockid, &before);
        kernel_errno = errno;
        errno = 0;
        r = clock_gettime(clockid, &ours);
        saved_errno = errno;
        CHECK(r == kernel_r && saved_errno == kernel_errno, "clock %d: %d, %s; the kernel: %d, %s",
              clockid, r, strerror(saved_errno), kernel_r, strerror(kernel_errno));
        if (r < 0) {
                CHECK(ours.tv_sec == 12 && ours.tv_nsec == 34, "clock %d failed and wrote",
                      clockid);
                return;
        }
        CHECK(syscall(SYS_clock_gettime, clockid, &after) == 0, "%s", strerror(errno));
        CHECK((ours.tv_sec > before.tv_sec ||
               (ours.tv_sec == before.tv_sec && ours.tv_nsec >= before.tv_nsec)) &&
              (ours.tv_sec < after.tv_sec ||
               (ours.tv_sec == after.tv_sec && ours.tv_nsec <= after.tv_nsec)),
              "clock %d is not between two readings of the kernel's", clockid);
        if (stands_still)
                CHECK(ours.tv_sec == before.tv_sec && ours.tv_nsec == before.tv_nsec,
                      "clock %d of a stopped process moves", clockid);
}

static void foreign_clock_ids_are_the_kernels(void) {
        int status;
        pid_t child = fork();

        CHECK(child >= 0, "fork: %s", strerror(errno));
        if (child == 0) {
                burn(20 * NS_PER_MS);
                raise(SIGSTOP);
                _exit(0);
        }
        CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status), "not stopped");
        warm_up();
        for (unsigned int bits = 0; bits < 8; bits++)
                check_same_as_kernel(dynamic_id(child, bits), true);
        CHECK(read_ns(dynamic_id(child, BITS_PROCESS)) >= 20 * NS_PER_MS, "not the child's clock");

        kill(child, SIGCONT);
        reap(child, "the stopped child");
        for (unsigned int bits = 0; bits < 8; bits++)
                check_same_as_kernel(dynamic_id(child, bits), false);   /* dead */
        check_same_as_kernel(dynamic_id(1, BITS_PROCESS), false);
        check_same_as_kernel(dynamic_id(1, BITS_THREAD), false);
        check_same_as_kernel(dynamic_id((1 << 28) - 1, BITS_PROCESS), false);
}

static void sampled_types_are_the_kernels(void) {
        pid_t ids[] = { 0, getpid(), gettid() };

        burn(30 * NS_PER_MS);
        warm_up();
        for (size_t i = 0; i < 3; i++)
                for (unsigned int bits = 0; bits < 8; bits++)
                        if ((bits & 3) != 2)
                                check_same_as_kernel(dynamic_id(ids[i], bits), false);
}

static void other_clocks_are_untouched(void) {
        /* CLOCK_REALTIME .. CLOCK_TAI, those that do not exist, extremes. */
        static const clockid_t extremes[] = { 12, 16, 31, 100, 1 << 20, INT32_MAX, INT32_MIN };
        struct timespec ours, kernels;

        warm_up();
        for (clockid_t clockid = 0; clockid < 12; clockid++)
                if (clockid != CLOCK_PROCESS_CPUTIME_ID && clockid != CLOCK_THREAD_CPUTIME_ID)
                        check_same_as_kernel(clockid, false);
        for (size_t i = 0; i < sizeof(extremes) / sizeof(extremes[0]); i++)
                check_same_as_kernel(extremes[i], false);

        /* No clock promises a finer grain than the kernel gives, nor a coarser one. */
        for (clockid_t clockid = -8; clockid < 12; clockid++) {
                int kernel_r, kernel_errno, r;

                memset(&ours, 0, sizeof(ours));
                memset(&kernels, 0, sizeof(kernels));
                errno = 0;
                kernel_r = (int)syscall(SYS_clock_getres, clockid, &kernels);
                kernel_errno = errno;
                errno = 0;
                r = clock_getres(clockid, &ours);
                CHECK(r == kernel_r && errno == kernel_errno && ours.tv_sec == kernels.tv_sec &&
                      ours.tv_nsec == kernels.tv_nsec,
                      "clock_getres(%d): %d, %s, %ld ns; the kernel: %d, %s, %ld ns", clockid, r,
                      strerror(errno), ours.tv_nsec, kernel_r, strerror(kernel_errno),
                      kernels.tv_nsec);
        }
}

static void clock_is_the_process_clock(void) {
        clock_t last = 0;

        for (int i = 0; i < 100000; i++) {
                uint64_t before = read_ns(CLOCK_PROCESS_CPUTIME_ID), after;
                clock_t now = clock();

                after = read_ns(CLOCK_PROCESS_CPUTIME_ID);
                CHECK(now != (clock_t)-1, "clock() failed");
                CHECK((uint64_t)now >= before / 1000 && (uint64_t)now <= after / 1000,
                      "clock() is %ld us; the process clock before %llu ns, after %llu ns",
                      (long)now, (unsigned long long)before, (unsigned long long)after);
                CHECK(now >= last, "clock() went back by %ld us", (long)(last - now));
                last = now;
        }
}

static void errno_is_preserved(void) {
        clockid_t own[] = { CLOCK_THREAD_CPUTIME_ID, CLOCK_PROCESS_CPUTIME_ID,
                            dynamic_id(getpid(), BITS_PROCESS), dynamic_id(gettid(), BITS_THREAD),
                            CLOCK_MONOTONIC };
        struct tms tms;

        /* Long enough for enrolment, anchors, switches and ticks to come by. */
        for (int i = 0; i < 200000; i++) {
                if (i % 20000 == 0)
                        usleep(100);
                errno = E2BIG;
                (void)read_ns(own[i % 5]);
                CHECK(errno == E2BIG, "clock_gettime(%d) set errno to %s", own[i % 5],
                      strerror(errno));
                (void)clock();
                CHECK(errno == E2BIG, "clock() set errno to %s", strerror(errno));
                (void)times(&tms);
                CHECK(errno == E2BIG, "times() set errno to %s", strerror(errno));
        }
}

const struct promise promises_clocks[] = {
        { "own_clock_ids_agree", own_clock_ids_agree },
        { "names_of_one_clock_are_one_clock", names_of_one_clock_are_one_clock },
        { "siblings_clock_agrees", siblings_clock_agrees },
        { "foreign_clock_ids_are_the_kernels", foreign_clock_ids_are_the_kernels },
        { "sampled_types_are_the_kernels", sampled_types_are_the_kernels },
        { "other_clocks_are_untouched", other_clocks_are_untouched },
        { "clock_is_the_process_clock", clock_is_the_process_clock },
        { "errno_is_preserved", errno_is_preserved },
        {},
};
