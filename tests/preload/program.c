/* SPDX-License-Identifier: MIT */
/* An ordinary small program: reads its CPU clocks three times, and ends. */
#include <stdio.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char *argv[]) {
        struct timespec ts;
        struct tms tms;

        /* With an argument it reads nothing at all. */
        for (int i = 0; argc == 1 && i < 3; i++)
                if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts) < 0 ||
                    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts) < 0 || clock() == -1 ||
                    times(&tms) == -1 || (ts.tv_sec == 0 && ts.tv_nsec == 0))
                        return 1;
        return 0;
}
