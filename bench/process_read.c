/* SPDX-License-Identifier: MIT */
/*
 * CLOCK_PROCESS_CPUTIME_ID from one thread of a process in which THREADS are alive, the others
 * asleep: what the kernel's walk over all threads costs when nobody competes for it.
 */
#include "client.h"

static int read_process(uint64_t value[]) {
        return client_read_clock(CLOCK_PROCESS_CPUTIME_ID, value);
}

static void loop(struct client_thread *thread) {
        client_loop(thread, read_process, 1);
}

int main(int argc, char *argv[]) {
        return client_main(argc, argv, &(struct client){ .loop = loop, .one_reader = true });
}
