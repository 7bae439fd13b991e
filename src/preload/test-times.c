/* SPDX-License-Identifier: MIT */
/*
 * times_never_decreases, where it is decided: what times() remembers, with a kernel and a tick of
 * the test's own in place of the real ones. Here the tick moves all the time, every field moves
 * with every question, answers overtake each other, and children are reaped without pause, so that
 * what takes hours with the real ones takes a fraction of a second.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <unistd.h>

#include "../../tests/check.h"

static long test_syscall(long nr, struct tms *ret_tms);
static uint64_t test_coarse_ns(void);
static void test_pause(void);

/*
 * What times.c is to see instead of the world. Between any two of its steps other threads may get
 * in; the order of its memory accesses is ThreadSanitizer's business, not this test's.
 */
#include "arch/vdso.h"
#include "base/signals.h"
#include "preload/preload.h"
#pragma push_macro("atomic_load_explicit")
#pragma push_macro("atomic_store_explicit")
#undef atomic_load_explicit
#define atomic_load_explicit(p, order) (test_pause(), *(p))
#undef atomic_store_explicit
#define atomic_store_explicit(p, v, order) ((void)(test_pause(), *(p) = (v)))
#define syscall(nr, arg) test_syscall(nr, arg)
#define ct_vdso_coarse_ns test_coarse_ns
#define times test_times
#include "times.c"
#undef times
#undef syscall
#pragma pop_macro("atomic_load_explicit")
#pragma pop_macro("atomic_store_explicit")

#define N_THREADS 4
#define N_READS 50000

static struct ct_process_page page;
_Atomic(struct ct_process_page *) ct_page;
_Thread_local struct ct_self ct_self;
bool ct_preload_verbose = true;

struct ct_process_page *ct_process_page_make(void) {
        atomic_store(&ct_page, &page);
        return &page;
}

struct ct_process_page *ct_process_page_peek(void) {
        return atomic_load(&ct_page);
}

static _Atomic long kernel[5];
static _Atomic uint64_t coarse_ns = UINT32_MAX - 1000;       /* the halves must not be mixed up */
static _Thread_local uint64_t random_state;

/* From -5000 on: past -1, and through the values that syscall() would take for errors. */
static _Atomic long ticks = -5000;

static void test_pause(void) {
        if (check_random(&random_state) % 64 == 0)
                sched_yield();
}

static long test_syscall(long nr, struct tms *ret_tms) {
        long v;

        if (nr != SYS_times)
                abort();
        v = atomic_fetch_add(&ticks, 1);
        /* Equal in every answer, hence in the maximum of any: unless a copy was torn. */
        ret_tms->tms_utime = ret_tms->tms_stime = atomic_fetch_add(&kernel[1], 1);
        ret_tms->tms_cutime = atomic_fetch_add(&kernel[3], 1);
        ret_tms->tms_cstime = atomic_fetch_add(&kernel[4], 1);
        test_pause();
        if (v < 0 && v >= -4095) {
                errno = (int)-v;
                return -1;
        }
        return v;
}

static uint64_t test_coarse_ns(void) {
        return check_random(&random_state) % 4 == 0 ? atomic_fetch_add(&coarse_ns, 1) + 1
                                                    : atomic_load(&coarse_ns);
}

static _Atomic long largest[5] = { -5000 };
static _Atomic unsigned int n_like_errors;

static void *read_all(void *arg) {
        random_state = (uint64_t)(uintptr_t)arg;
        for (int i = 0; i < N_READS; i++) {
                long before[5], now[5];
                struct tms tms;

                for (int k = 0; k < 5; k++)
                        before[k] = atomic_load(&largest[k]);
                errno = 4711;
                now[0] = test_times(&tms);
                CHECK(errno == 4711, "errno is %d", errno);
                now[1] = tms.tms_utime;
                now[2] = tms.tms_stime;
                now[3] = tms.tms_cutime;
                now[4] = tms.tms_cstime;
                CHECK(now[1] == now[2], "half of one answer, %ld, and of another, %ld", now[1],
                      now[2]);
                if (now[0] < -1 && now[0] > -4096)
                        atomic_fetch_add(&n_like_errors, 1);
                for (int k = 0; k < 5; k++) {
                        long old = before[k];

                        /* The one tick that is called 0, for libc's sake. */
                        if (k == 0 && now[k] == 0)
                                continue;
                        CHECK(now[k] >= before[k], "field %d: %ld after %ld", k, now[k],
                              before[k]);
                        while (old < now[k] &&
                               !atomic_compare_exchange_weak(&largest[k], &old, now[k]))
                                ;
                }
                /* A child is reaped: what the kernel knows by now must be told from now on. */
                if (check_random(&random_state) % 16 == 0) {
                        long child = atomic_fetch_add(&kernel[3], 1);

                        ct_times_invalidate();
                        (void)test_times(&tms);
                        CHECK(tms.tms_cutime > child, "children's time is %ld, reaped at %ld",
                              tms.tms_cutime, child);
                }
        }
        return NULL;
}

int main(int argc, char *argv[]) {
        pthread_t threads[N_THREADS];
        uint64_t seed = check_seed(argc, argv);

        for (unsigned int i = 0; i < N_THREADS; i++)
                CHECK(pthread_create(&threads[i], NULL, read_all,
                                     (void *)(uintptr_t)(seed + 2 * i)) == 0, "no thread");
        for (unsigned int i = 0; i < N_THREADS; i++)
                pthread_join(threads[i], NULL);
        CHECK(atomic_load(&n_like_errors) > 1000, "ticks that look like errors got lost");
        CHECK(atomic_load(&page.times_cache.sequence) % 2 == 0, "the store was not given back");
        CHECK(atomic_load(&page.n_times_cached) > N_READS / 10, "nothing was remembered");
        CHECK(atomic_load(&page.n_times_asked) > N_READS / 10, "nothing was asked");
        return 0;
}
