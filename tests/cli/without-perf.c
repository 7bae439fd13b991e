/* SPDX-License-Identifier: MIT */
/*
 * without-perf CMD [ARGUMENTS]: runs CMD in a sandbox in which perf_event_open(2) fails with
 * EACCES, as in many containers. Exit status 77 where the kernel has no such filters.
 */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../check.h"
#include "../contract/sandbox.h"

int main(int argc, char *argv[]) {
        static const struct sandbox_rule rule = { SYS_perf_event_open, EACCES, SANDBOX_ALWAYS };

        CHECK(argc > 1, "usage: without-perf CMD [ARGUMENTS]");
        if (!sandbox_refuse(&rule, 1))
                SKIP("no seccomp filters on this kernel or architecture");
        (void)execvp(argv[1], argv + 1);
        return 127;
}
