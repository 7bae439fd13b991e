/* SPDX-License-Identifier: MIT */
/*
 * CLOCK_PROCESS_CPUTIME_ID from THREADS threads at once: the load with which the cost of the
 * kernel's process clock was first shown, 5,000,000 calls split over 2 to 128 threads. Every
 * reader asks about all of them, so readers meet each other in the kernel's accounts. The
 * published program had its check for decreasing time compiled out; here it always runs, within
 * and across threads.
 */
#include "client.h"

static int read_process(uint64_t value[]) {
        return client_read_clock(CLOCK_PROCESS_CPUTIME_ID, value);
}

static void loop(struct client_thread *thread) {
        client_loop(thread, read_process, 1);
}

int main(int argc, char *argv[]) {
        return client_main(argc, argv, &(struct client){ .loop = loop });
}
