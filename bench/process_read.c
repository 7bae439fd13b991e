/* SPDX-License-Identifier: MIT */
/*
 * CLOCK_PROCESS_CPUTIME_ID from one thread of a process in which THREADS are alive, the others
 * asleep: what the kernel's walk over all threads costs when nobody competes for it.
 */
#include <time.h>

#include "client.h"

static int read_process(uint64_t value[]) {
        struct timespec ts;
        int r = clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);

        value[0] = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
        return r;
}

static void loop(struct client_thread *thread) {
        client_loop(thread, read_process, 1);
}

int main(int argc, char *argv[]) {
        return client_main(argc, argv, &(struct client){ .loop = loop, .one_reader = true });
}
