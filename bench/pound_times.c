/* SPDX-License-Identifier: MIT */
/*
 * times() from THREADS threads at once, 5,000,000 calls split over them when published. Its user
 * time, its system time and its return value, wall time in ticks, must each never decrease, within
 * and across threads: user and system time come from a division of one exact clock in the ratio of
 * two sampled ones, and a reader that divides afresh each time lets one of them step back.
 */
#include <errno.h>
#include <sys/times.h>

#include "client.h"

static int read_times(uint64_t value[]) {
        struct tms tms;
        clock_t wall;

        /* -1 may be a valid tick count, just before it wraps: only errno tells. */
        errno = 0;
        wall = times(&tms);
        value[0] = (uint64_t)tms.tms_utime;
        value[1] = (uint64_t)tms.tms_stime;
        value[2] = (uint64_t)wall;
        return wall == (clock_t)-1 && errno != 0;
}

static void loop(struct client_thread *thread) {
        client_loop(thread, read_times, 3);
}

int main(int argc, char *argv[]) {
        return client_main(argc, argv, &(struct client){ .loop = loop });
}
