/* SPDX-License-Identifier: MIT */
/*
 * How much CPU time does a function use? Read the thread's clock before and after: what other
 * threads and other programs do in between is not counted, sleeping is not either.
 *
 *      cc measure.c $(pkg-config --cflags --libs libcputime)
 */
#include <cputime/cputime.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

static volatile double sink;

static void work(void) {
        double sum = 0;

        for (unsigned i = 1; i < 2000000; i++)
                sum += 1.0 / i;
        sink = sum;
}

static void rest(void) {
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
}

static void measure(const char *name, void (*function)(void)) {
        uint64_t before_ns = cputime_thread_ns();

        function();
        printf("%s: %" PRIu64 " us of CPU time\n", name, (cputime_thread_ns() - before_ns) / 1000);
}

int main(void) {
        struct cputime_sample sample;

        measure("work", work);
        measure("rest", rest);

        cputime_sample_read(&sample);
        printf("this thread: %" PRIu64 " us, read from the %s backend; the process: %" PRIu64
               " us, from %s\n",
               sample.thread_ns / 1000, cputime_backend_name(sample.thread_backend),
               sample.process_ns / 1000, cputime_backend_name(sample.process_backend));
        return 0;
}
