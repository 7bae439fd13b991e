/* SPDX-License-Identifier: MIT */
/*
 * Prints what the kernel says in the page of a software event about reading its time in user space
 * ("cap_user_time=1 cap_user_time_zero=1 time_shift=31 time_mult=..."), straight from
 * perf_event_open(2): what the library's probe answers can be held against it.
 *
 * Exit: 0 printed, 77 the kernel refuses the event.
 */
#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../check.h"

int main(void) {
        struct perf_event_attr attr = {
                .type = PERF_TYPE_SOFTWARE,
                .size = sizeof(attr),
                .config = PERF_COUNT_SW_DUMMY,
                .exclude_kernel = 1,
                .exclude_hv = 1,
        };
        volatile struct perf_event_mmap_page *page;
        int fd;

        fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
        if (fd < 0)
                SKIP("perf_event_open: %s; see /proc/sys/kernel/perf_event_paranoid",
                     strerror(errno));
        page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED)
                SKIP("mmap of the event's page: %s; see /proc/sys/kernel/perf_event_mlock_kb",
                     strerror(errno));

        printf("cap_user_time=%u cap_user_time_zero=%u time_shift=%u time_mult=%u\n",
               (unsigned)page->cap_user_time, (unsigned)page->cap_user_time_zero,
               (unsigned)page->time_shift, (unsigned)page->time_mult);
        return 0;
}
