/* SPDX-License-Identifier: MIT */
/*
 * CLOCK_THREAD_CPUTIME_ID from one thread of a process in which THREADS are alive, the others
 * asleep. A thread's clock has no reason to cost more for having siblings.
 */
#include "client.h"

static int read_thread(uint64_t value[]) {
        return client_read_clock(CLOCK_THREAD_CPUTIME_ID, value);
}

static void loop(struct client_thread *thread) {
        client_loop(thread, read_thread, 1);
}

int main(int argc, char *argv[]) {
        return client_main(argc, argv, &(struct client){ .loop = loop, .one_reader = true });
}
