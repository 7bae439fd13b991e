/* SPDX-License-Identifier: MIT */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H
/*
 * What the workload programs share. Each is an ordinary program that knows nothing of cputime: it
 * asks libc for a CPU clock in a loop, as databases and language runtimes do, and is measured with
 * and without the drop-in. `cputime bench` runs one process for each sample, so that no sample
 * inherits anything from another.
 *
 *      PROGRAM THREADS CALLS [cpu|monotonic|empty]
 *
 * CALLS is the total, split over the threads that read. "monotonic" runs the same loop on
 * CLOCK_MONOTONIC (the floor of anything that reads a clock in user space), "empty" runs it on a
 * counter (what the loop and its checks cost). One line on stdout:
 *
 *      ns_per_call=F errors=U threads=U calls=U elapsed_ns=U
 *
 * elapsed_ns is wall time from the first thread's first call to the last thread's last one, and
 * ns_per_call is elapsed_ns / CALLS: threads that run side by side make it smaller than one call.
 *
 * A reading that decreases is an error and is always looked for, because a fast clock that steps
 * back is worthless:
 *
 *   within a thread     each reading >= the one before
 *   across threads      each reading >= every reading that was published before it began; threads
 *                       publish and pick up a shared maximum every CLIENT_HANDOVER calls, rarely
 *                       enough to add less than 0.1 ns to a call
 *
 * Exit status: 0, 1 after errors in readings (the line is printed), 2 when the input is unusable or
 * threads cannot be started (it is not).
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* Calls between two looks at what the other threads have read. */
#define CLIENT_HANDOVER 1024

/* A reading is up to this many values, none of which may ever decrease. */
#define CLIENT_VALUES_MAX 3

struct client_thread {
        uint64_t calls;
        _Atomic uint64_t *maximum;      /* [CLIENT_VALUES_MAX], shared by all threads */
        uint64_t errors;
        uint64_t begin_ns;
        uint64_t end_ns;
};

struct client {
        void (*loop)(struct client_thread *thread);
        bool one_reader;        /* THREADS are alive, main alone reads and the others sleep;
                                   otherwise THREADS read while main waits for them */
};

int client_main(int argc, char *argv[], const struct client *client);

/*
 * The loop that is measured. READ and NR_VALUES are constants to the compiler once this is
 * inlined, so that every program, and the two floors, have the same code around the one call.
 * READ returns 0, or anything else for a call that failed: an error as well.
 */
static inline __attribute__((always_inline)) void
client_loop(struct client_thread *thread, int (*read)(uint64_t value[]), unsigned nr_values) {
        uint64_t last[CLIENT_VALUES_MAX] = {}, errors = 0;

        for (uint64_t left = thread->calls; left > 0;) {
                uint64_t chunk = left < CLIENT_HANDOVER ? left : CLIENT_HANDOVER;

                left -= chunk;

                /* Pairs with the release below: what was published had been read by then. */
                for (unsigned k = 0; k < nr_values; k++) {
                        uint64_t others = atomic_load_explicit(&thread->maximum[k],
                                                               memory_order_acquire);

                        if (last[k] < others)
                                last[k] = others;
                }

                for (; chunk > 0; chunk--) {
                        uint64_t value[CLIENT_VALUES_MAX];

                        errors += read(value) != 0;
                        for (unsigned k = 0; k < nr_values; k++) {
                                errors += value[k] < last[k];
                                last[k] = value[k];
                        }
                }

                for (unsigned k = 0; k < nr_values; k++) {
                        uint64_t others = atomic_load_explicit(&thread->maximum[k],
                                                               memory_order_relaxed);

                        while (others < last[k] &&
                               !atomic_compare_exchange_weak_explicit(&thread->maximum[k], &others,
                                                                      last[k],
                                                                      memory_order_release,
                                                                      memory_order_relaxed))
                                ;
                }
        }

        thread->errors = errors;
}

/* A clock's reading in nanoseconds, for client_loop(); the same code for each clock compared. */
static inline __attribute__((always_inline)) int client_read_clock(clockid_t clockid,
                                                                   uint64_t value[]) {
        struct timespec ts;
        int r = clock_gettime(clockid, &ts);

        value[0] = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
        return r;
}

#endif /* BENCH_CLIENT_H */
