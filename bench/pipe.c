/* SPDX-License-Identifier: MIT */
/*
 * What a context switch costs, and what it costs more once its threads are accounted for: two
 * threads hand one byte to and fro over two pipes, BYTES each way.
 *
 *      pipe pinned|unpinned BYTES [nothing|ring|header|page]
 *
 * Pinned, both threads are on one CPU (the last of those allowed, as the first has most of the
 * interrupts), and each byte handed over is exactly one switch. Unpinned, the kernel places them: on
 * one CPU as well, since each wakes the other and sleeps, or on two, and then each byte wakes an
 * idle one. One line on stdout, the other programs':
 *
 *      ns_per_call=F errors=U threads=2 calls=U elapsed_ns=U
 *
 * A call is one byte handed over, so calls = 2 * BYTES. No clock is read meanwhile.
 *
 * This program alone is linked with cputime. "nothing" never calls it. In the other modes that
 * backend is forced, and each thread reads its own clock and the process's until the backend serves
 * both, before the exchange and once more after it: a figure under a backend's name is one of that
 * backend, or there is none. A header cannot serve the process clock, so there the kernel must.
 *
 * Exit status: 0; 1 when a clock read after the exchange was below the one before (the line is
 * printed); 2 when the input is unusable or the backend does not serve (it is not).
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cputime/clock.h"

#define BYTES_MAX UINT64_C(1000000000)

/* Bytes handed over before time is taken: caches, branch predictors, the CPU's frequency. */
#define WARM_UP 500

/* How long a backend may take to serve. The page's program is loaded first, and then goes a tick. */
#define SERVE_MAX_NS UINT64_C(2000000000)
#define SERVE_POLL_NS 200000

struct mode {
        const char *name;
        enum cputime_backend thread, process;   /* who must serve; AUTO: no clock is read */
};

static const struct mode modes[] = {
        { "nothing", CPUTIME_BACKEND_AUTO, CPUTIME_BACKEND_AUTO },
        { "ring", CPUTIME_BACKEND_RING, CPUTIME_BACKEND_RING },
        { "header", CPUTIME_BACKEND_HEADER, CPUTIME_BACKEND_SYSCALL },
        { "page", CPUTIME_BACKEND_PAGE, CPUTIME_BACKEND_PAGE },
};

static const struct mode *mode = &modes[0];
static uint64_t nr_bytes;
static int there[2], back[2];
static pthread_barrier_t both_enrolled;

static uint64_t wall_ns(void) {
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* What has failed one thread soon fails the other: the first tells, and ends both. */
static void begin_failing(void) {
        static atomic_flag failing = ATOMIC_FLAG_INIT;

        while (atomic_flag_test_and_set(&failing))
                pause();
}

static _Noreturn void fail(const char *what, int error) {
        begin_failing();
        fprintf(stderr, "pipe: %s: %s\n", what, strerror(error));
        exit(2);
}

/* Reads the caller's clocks until they are served as they must be. */
static void read_served(struct cputime_sample *ret_sample) {
        uint64_t begin_ns = wall_ns();
        struct cputime_stats stats;

        do {
                cputime_sample_read(ret_sample);
                if (ret_sample->thread_backend == mode->thread &&
                    ret_sample->process_backend == mode->process)
                        return;
                nanosleep(&(struct timespec){ .tv_nsec = SERVE_POLL_NS }, NULL);
        } while (wall_ns() - begin_ns < SERVE_MAX_NS);

        begin_failing();
        cputime_stats_read(&stats);
        fprintf(stderr, "pipe: %s does not serve: the thread's clock is read by %s, the process's by %s",
                mode->name, cputime_backend_name(ret_sample->thread_backend),
                cputime_backend_name(ret_sample->process_backend));
        if (stats.refusal_error)
                fprintf(stderr, "; %s: %s", stats.refusal_step, strerror(stats.refusal_error));
        fputc('\n', stderr);
        exit(2);
}

/* In each thread: puts it under the accounting that is measured. */
static void enrol(struct cputime_sample *ret_sample) {
        if (mode->thread != CPUTIME_BACKEND_AUTO)
                read_served(ret_sample);
        pthread_barrier_wait(&both_enrolled);
}

/* In each thread: that it still is. Returns how many of its clocks went backwards. */
static unsigned check(const struct cputime_sample *before) {
        struct cputime_sample after;
        struct cputime_stats stats;

        if (mode->thread == CPUTIME_BACKEND_AUTO)
                return 0;
        read_served(&after);
        cputime_stats_read(&stats);
        if (stats.retreats > 0) {
                begin_failing();
                fprintf(stderr, "pipe: %s was given up meanwhile\n", mode->name);
                exit(2);
        }
        return (after.thread_ns < before->thread_ns) + (after.process_ns < before->process_ns);
}

static void give(int fd) {
        if (write(fd, "", 1) != 1)
                fail("cannot write to a pipe", errno);
}

static void take(int fd) {
        char byte;

        if (read(fd, &byte, 1) != 1)
                fail("cannot read from a pipe", errno);
}

static void *echo(void *arg) {
        unsigned *ret_errors = arg;
        struct cputime_sample before;

        enrol(&before);
        for (uint64_t i = 0; i < WARM_UP + nr_bytes; i++) {
                take(there[0]);
                give(back[1]);
        }
        *ret_errors = check(&before);
        return NULL;
}

/* The thread that is created later inherits it. */
static void pin(void) {
        cpu_set_t set;
        int cpu = CPU_SETSIZE - 1;

        if (sched_getaffinity(0, sizeof(set), &set) < 0)
                fail("cannot ask for the CPUs allowed", errno);
        while (cpu > 0 && !CPU_ISSET(cpu, &set))
                cpu--;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        if (sched_setaffinity(0, sizeof(set), &set) < 0)
                fail("cannot stay on one CPU", errno);
}

static bool parse(int argc, char *argv[], bool *ret_pinned) {
        char *end;

        if (argc < 3 || argc > 4 || *argv[2] < '0' || *argv[2] > '9')
                return false;
        *ret_pinned = strcmp(argv[1], "pinned") == 0;
        if (!*ret_pinned && strcmp(argv[1], "unpinned") != 0)
                return false;
        errno = 0;
        nr_bytes = strtoull(argv[2], &end, 10);
        if (errno != 0 || *end != '\0' || nr_bytes < 1 || nr_bytes > BYTES_MAX)
                return false;
        if (argc == 3)
                return true;
        for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++)
                if (strcmp(argv[3], modes[i].name) == 0) {
                        mode = &modes[i];
                        return true;
                }
        return false;
}

int main(int argc, char *argv[]) {
        unsigned errors, echo_errors = 0;
        uint64_t begin_ns = 0, end_ns;
        struct cputime_sample before;
        pthread_t other;
        bool pinned;
        int r;

        if (!parse(argc, argv, &pinned)) {
                fprintf(stderr, "%s: expected pinned|unpinned BYTES (1..%" PRIu64 ") "
                        "[nothing|ring|header|page]\n", argv[0], BYTES_MAX);
                return 2;
        }
        if (pinned)
                pin();
        if (pipe(there) < 0 || pipe(back) < 0)
                fail("cannot make a pipe", errno);
        if (mode->thread != CPUTIME_BACKEND_AUTO)
                cputime_backend_set(mode->thread);
        pthread_barrier_init(&both_enrolled, NULL, 2);
        r = pthread_create(&other, NULL, echo, &echo_errors);
        if (r != 0)
                fail("cannot start a thread", r);

        enrol(&before);
        for (uint64_t i = 0; i < WARM_UP + nr_bytes; i++) {
                if (i == WARM_UP)
                        begin_ns = wall_ns();
                give(there[1]);
                take(back[0]);
        }
        end_ns = wall_ns();
        errors = check(&before);
        pthread_join(other, NULL);
        errors += echo_errors;

        printf("ns_per_call=%.4f errors=%u threads=2 calls=%" PRIu64 " elapsed_ns=%" PRIu64 "\n",
               (double)(end_ns - begin_ns) / (double)(2 * nr_bytes), errors, 2 * nr_bytes,
               end_ns - begin_ns);
        return errors > 0;
}
