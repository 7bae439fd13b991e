/* SPDX-License-Identifier: MIT */
/*
 * The frame around a workload program: arguments, threads, the barrier, wall time, the line.
 *
 * Every thread stamps its own beginning and end with CLOCK_MONOTONIC, after the barrier and before
 * it ends; the sample is the span of all of them. Starting and joining threads, which costs more
 * than many thousand reads, is therefore not in it, but the waking of the threads at the barrier
 * is: that is what a program with as many threads lives with too.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client.h"

#define THREADS_MAX 4096
#define CALLS_MAX UINT64_C(1000000000000)

/* Enough for a loop and the C library's own use, and 4096 of them fit everywhere. */
#define STACK_BYTES (256 * 1024)

static void (*client_body)(struct client_thread *thread);
static pthread_barrier_t barrier_begin, barrier_end;

static uint64_t wall_ns(void) {
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static int read_monotonic(uint64_t value[]) {
        return client_read_clock(CLOCK_MONOTONIC, value);
}

static void loop_monotonic(struct client_thread *thread) {
        client_loop(thread, read_monotonic, 1);
}

/*
 * The floor under the floor: a constant that the compiler must take for news. Not a counter of the
 * thread's own, which would lag behind other threads' maximum and be called a decreasing clock.
 */
static int read_nothing(uint64_t value[]) {
        value[0] = 1;
        __asm__ volatile("" : "+r"(value[0]));
        return 0;
}

static void loop_nothing(struct client_thread *thread) {
        client_loop(thread, read_nothing, 1);
}

static void measure(struct client_thread *thread) {
        thread->begin_ns = wall_ns();
        client_body(thread);
        thread->end_ns = wall_ns();
}

static void *reader(void *arg) {
        pthread_barrier_wait(&barrier_begin);
        measure(arg);
        return NULL;
}

static void *sleeper(void *arg) {
        pthread_barrier_wait(&barrier_begin);
        pthread_barrier_wait(&barrier_end);
        return NULL;
}

static bool parse(const char *text, uint64_t max, uint64_t *ret_value) {
        char *end;

        if (*text < '0' || *text > '9')
                return false;
        errno = 0;
        *ret_value = strtoull(text, &end, 10);
        return errno == 0 && *end == '\0' && *ret_value >= 1 && *ret_value <= max;
}

int client_main(int argc, char *argv[], const struct client *client) {
        static _Atomic uint64_t maximum[CLIENT_VALUES_MAX];
        uint64_t nr_threads, calls, begin_ns = UINT64_MAX, end_ns = 0, errors = 0;
        const char *mode = argc > 3 ? argv[3] : "cpu";
        struct client_thread *threads;
        pthread_attr_t attr;
        pthread_t *ids;
        uint64_t first, nr_readers;

        if (argc < 3 || argc > 4 || !parse(argv[1], THREADS_MAX, &nr_threads) ||
            !parse(argv[2], CALLS_MAX, &calls)) {
                fprintf(stderr, "%s: expected THREADS (1..%d) CALLS [cpu|monotonic|empty]\n",
                        argv[0], THREADS_MAX);
                return 2;
        }
        if (strcmp(mode, "cpu") == 0) {
                client_body = client->loop;
        } else if (strcmp(mode, "monotonic") == 0) {
                client_body = loop_monotonic;
        } else if (strcmp(mode, "empty") == 0) {
                client_body = loop_nothing;
        } else {
                fprintf(stderr, "%s: '%s' is none of cpu, monotonic, empty\n", argv[0], mode);
                return 2;
        }

        threads = calloc(nr_threads, sizeof(*threads));
        ids = calloc(nr_threads, sizeof(*ids));
        if (!threads || !ids) {
                fprintf(stderr, "%s: no memory for %" PRIu64 " threads\n", argv[0], nr_threads);
                return 2;
        }

        /* With one reader main is thread 0, and one of the THREADS; else it is one more. */
        first = client->one_reader ? 1 : 0;
        nr_readers = client->one_reader ? 1 : nr_threads;
        for (uint64_t i = 0; i < nr_threads; i++) {
                threads[i].maximum = maximum;
                if (i < nr_readers)
                        threads[i].calls = calls / nr_readers + (i < calls % nr_readers);
        }

        pthread_barrier_init(&barrier_begin, NULL, (unsigned)(nr_threads - first + 1));
        pthread_barrier_init(&barrier_end, NULL, (unsigned)nr_threads);
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, STACK_BYTES);

        for (uint64_t i = first; i < nr_threads; i++) {
                int r = pthread_create(&ids[i], &attr, client->one_reader ? sleeper : reader,
                                       &threads[i]);

                if (r != 0) {
                        fprintf(stderr,
                                "%s: cannot start thread %" PRIu64 " of %" PRIu64 ": %s; "
                                "ask for fewer threads or raise `ulimit -u`\n",
                                argv[0], i + 1, nr_threads, strerror(r));
                        return 2;
                }
        }

        pthread_barrier_wait(&barrier_begin);
        if (client->one_reader) {
                measure(&threads[0]);
                pthread_barrier_wait(&barrier_end);
        }
        for (uint64_t i = first; i < nr_threads; i++)
                pthread_join(ids[i], NULL);

        for (uint64_t i = 0; i < nr_readers; i++) {
                errors += threads[i].errors;
                if (begin_ns > threads[i].begin_ns)
                        begin_ns = threads[i].begin_ns;
                if (end_ns < threads[i].end_ns)
                        end_ns = threads[i].end_ns;
        }

        printf("ns_per_call=%.4f errors=%" PRIu64 " threads=%" PRIu64 " calls=%" PRIu64
               " elapsed_ns=%" PRIu64 "\n",
               (double)(end_ns - begin_ns) / (double)calls, errors, nr_threads, calls,
               end_ns - begin_ns);

        pthread_attr_destroy(&attr);
        free(threads);
        free(ids);
        return errors > 0;
}
