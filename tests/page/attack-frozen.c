/* SPDX-License-Identifier: MIT */
/*
 * The program closes all its descriptors, the connection to cputimed among them, while its threads
 * look at each other's clocks and at P. The server takes the page away, which then says for a tick
 * and a half that whoever ran goes on running; then the page is left, and the kernel says less.
 * Whatever was told in between must stay: no T and no P steps back, and P covers all T.
 *
 * One of the threads never reads its own clock: what the page told others of it must be remembered
 * all the same. Each round is a process of its own, because a page once lost is not asked for again
 * for a second.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "cputime/clock.h"

#define ROUNDS 40
#define THREADS 3
#define SILENT 2        /* the one that reads no clock */

static _Atomic bool over;
static _Atomic pid_t tids[THREADS];
static _Atomic uint64_t seen_ns[THREADS], process_seen_ns;

static void raise_to(_Atomic uint64_t *max, uint64_t ns) {
        uint64_t old = atomic_load(max);

        while (old < ns && !atomic_compare_exchange_weak(max, &old, ns))
                ;
}

static void look_at(unsigned int i) {
        uint64_t before_ns = atomic_load(&seen_ns[i]), ns, sum_ns = 0;
        pid_t tid = atomic_load(&tids[i]);

        if (tid && cputime_thread_ns_of(tid, &ns) == 0) {
                CHECK(ns >= before_ns, "another thread's clock: %llu ns after %llu",
                      (unsigned long long)ns, (unsigned long long)before_ns);
                raise_to(&seen_ns[i], ns);
        }
        for (unsigned int k = 0; k < THREADS; k++)
                sum_ns += atomic_load(&seen_ns[k]);
        before_ns = atomic_load(&process_seen_ns);
        ns = cputime_process_ns();
        CHECK(ns >= before_ns, "the process clock: %llu ns after %llu", (unsigned long long)ns,
              (unsigned long long)before_ns);
        CHECK(ns >= sum_ns, "the process clock: %llu ns, its threads' %llu", (unsigned long long)ns,
              (unsigned long long)sum_ns);
        raise_to(&process_seen_ns, ns);
}

/* On a CPU and off it again, so that the frozen page is wrong about them. */
static void *thread_main(void *argument) {
        unsigned int i = (unsigned int)(uintptr_t)argument;
        struct timespec nap = { .tv_nsec = 200000 };

        atomic_store(&tids[i], (pid_t)syscall(SYS_gettid));
        while (!atomic_load(&over)) {
                if (i == SILENT)
                        for (volatile unsigned int k = 0; k < 200000; k++)
                                ;
                else
                        for (unsigned int k = 0; k < 20; k++)
                                look_at((i + 1 + k % 2) % THREADS);
                if (i != 0)
                        nanosleep(&nap, NULL);
        }
        return NULL;
}

static bool page_serves(void) {
        struct cputime_sample sample;

        cputime_sample_read(&sample);
        return sample.thread_backend == CPUTIME_BACKEND_PAGE &&
               sample.process_backend == CPUTIME_BACKEND_PAGE;
}

/* A round's exit status. */
static int round_main(void) {
        struct timespec nap = { .tv_nsec = 1000000 };
        struct cputime_stats stats;
        pthread_t threads[THREADS];
        unsigned int naps = 0;

        CHECK(cputime_backend_set(CPUTIME_BACKEND_PAGE) == 0, "no such backend");
        for (uintptr_t i = 0; i < THREADS; i++)
                CHECK(pthread_create(&threads[i], NULL, thread_main, (void *)i) == 0, "no thread");
        for (; !page_serves() && naps < 20000; naps++)
                nanosleep(&nap, NULL);
        if (naps == 20000) {
                cputime_stats_read(&stats);
                SKIP("no page: %s: %s", stats.refusal_step, strerror(stats.refusal_error));
        }
        for (unsigned int i = 0; i < 30; i++)
                nanosleep(&nap, NULL);
        CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0, "close_range: %s", strerror(errno));
        /* Until the page is left, and as long again. */
        for (unsigned int i = 0; i < 150; i++)
                nanosleep(&nap, NULL);
        atomic_store(&over, true);
        for (unsigned int i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
        return 0;
}

int main(void) {
        for (unsigned int i = 0; i < ROUNDS; i++) {
                int status = -1;
                pid_t pid = fork();

                if (pid == 0)
                        exit(round_main());
                CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "fork: %s", strerror(errno));
                if (WIFEXITED(status) && WEXITSTATUS(status) == CHECK_EXIT_SKIP)
                        return CHECK_EXIT_SKIP;
                CHECK(status == 0, "round %u: see above (status 0x%x)", i, status);
        }
        return 0;
}
