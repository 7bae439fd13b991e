/* SPDX-License-Identifier: MIT */
/* Many threads, threads that end, and what they leave behind. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "cputime/clock.h"
#include "preload-test.h"

#define N_MANY 2000

static pthread_barrier_t barrier;
static _Atomic uint64_t sum_ns;
static _Atomic unsigned int n_off;

static void start_thread(pthread_t *ret_thread, void *(*run)(void *)) {
        pthread_attr_t attr;
        int r;

        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, 64 * 1024);
        r = pthread_create(ret_thread, &attr, run, NULL);
        pthread_attr_destroy(&attr);
        CHECK(r == 0, "pthread_create: %s", strerror(r));
}

static void *read_once(void *arg) {
        uint64_t before, ns;

        before = kernel_ns(CLOCK_THREAD_CPUTIME_ID);
        ns = read_ns(CLOCK_THREAD_CPUTIME_ID);
        if (ns < before || ns > kernel_ns(CLOCK_THREAD_CPUTIME_ID) + CPUTIME_ERROR_NS)
                atomic_fetch_add(&n_off, 1);
        pthread_barrier_wait(&barrier);         /* all alive at once */
        (void)read_ns(CLOCK_PROCESS_CPUTIME_ID);
        atomic_fetch_add(&sum_ns, read_ns(CLOCK_THREAD_CPUTIME_ID));
        return NULL;
}

static void two_thousand_threads_read_once(void) {
        static pthread_t threads[N_MANY];
        uint64_t process;

        pthread_barrier_init(&barrier, NULL, N_MANY);
        for (int i = 0; i < N_MANY; i++)
                start_thread(&threads[i], read_once);
        for (int i = 0; i < N_MANY; i++)
                pthread_join(threads[i], NULL);
        process = read_ns(CLOCK_PROCESS_CPUTIME_ID);
        /* A pause of the machine may show as one or two. */
        CHECK(atomic_load(&n_off) <= N_MANY / 500, "%u threads read another clock than theirs",
              atomic_load(&n_off));
        CHECK(process >= atomic_load(&sum_ns), "the process %llu is behind its threads' sum %llu",
              (unsigned long long)process, (unsigned long long)atomic_load(&sum_ns));
        check_own_clocks("after 2,000 threads");
}

static void *burn_and_read(void *arg) {
        burn(10 * NS_PER_MS);
        for (int i = 0; i < 500; i++)
                (void)read_ns(CLOCK_THREAD_CPUTIME_ID);
        atomic_fetch_add(&sum_ns, read_ns(CLOCK_THREAD_CPUTIME_ID));
        return NULL;
}

static void ended_threads_stay_counted(void) {
        pthread_t threads[4];
        uint64_t start, before;

        warm_up();
        start = read_ns(CLOCK_PROCESS_CPUTIME_ID);
        for (int round = 0; round < 5; round++) {
                for (int i = 0; i < 4; i++)
                        start_thread(&threads[i], burn_and_read);
                for (int i = 0; i < 4; i++) {
                        before = read_ns(CLOCK_PROCESS_CPUTIME_ID);
                        pthread_join(threads[i], NULL);
                        CHECK(read_ns(CLOCK_PROCESS_CPUTIME_ID) >= before,
                              "the process clock went back when a thread ended");
                }
                CHECK(read_ns(CLOCK_PROCESS_CPUTIME_ID) - start >= atomic_load(&sum_ns),
                      "the process clock lost time of its threads");
        }
        CHECK(atomic_load(&sum_ns) >= 200 * NS_PER_MS, "the threads did not run");
        check_own_clocks("after the threads ended");
}

static void *read_and_end(void *arg) {
        for (int i = 0; i < 500; i++)
                (void)read_ns(CLOCK_THREAD_CPUTIME_ID);
        (void)read_ns(CLOCK_PROCESS_CPUTIME_ID);
        return NULL;
}

static void thread_churn_leaks_nothing(void) {
        unsigned int n_maps = 0, n_fds = 0;
        pthread_t threads[8];

        for (int round = 0; round < 60; round++) {
                for (int i = 0; i < 8; i++)
                        start_thread(&threads[i], read_and_end);
                for (int i = 0; i < 8; i++)
                        pthread_join(threads[i], NULL);
                if (round == 10) {      /* by now everything is there that is made but once */
                        n_maps = count_maps();
                        n_fds = count_fds();
                }
        }
        /* A sanitizer maps memory of its own. */
        CHECK(count_maps() <= n_maps + 16 || strcmp(under_test, "linked") == 0, "400 threads left %u mappings", count_maps() - n_maps);
        CHECK(count_fds() == n_fds, "%u descriptors before, %u after", n_fds, count_fds());
}

const struct promise promises_threads[] = {
        { "two_thousand_threads_read_once", two_thousand_threads_read_once },
        { "ended_threads_stay_counted", ended_threads_stay_counted },
        { "thread_churn_leaks_nothing", thread_churn_leaks_nothing },
        {},
};
