/* SPDX-License-Identifier: MIT */
/*
 * A drop-in that lies, to be preloaded: LIE names how. One lie for each way in which a clock could
 * break its promises, so that "contract --reader liars" can show that the suite sees each. The
 * lies are as small as the suite claims to see.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static char lie[16];
static void *volatile leaked;

static bool lies(const char *what) {
        return strcmp(lie, what) == 0;
}

__attribute__((constructor)) static void start(void) {
        const char *value = getenv("LIE");

        if (value)
                strncpy(lie, value, sizeof(lie) - 1);
        if (lies("eager"))
                (void)open("/dev/null", O_RDONLY);
}

static uint64_t raw(clockid_t clockid) {
        struct timespec ts = {};

        (void)syscall(SYS_clock_gettime, clockid, &ts);
        return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* The sum over the threads that are there: what a clock says that forgets the ended ones. */
static uint64_t living_threads_ns(void) {
        struct { uint64_t ino, off; uint16_t length; uint8_t type; char name[]; } *entry;
        _Alignas(8) char buffer[4096];
        uint64_t sum = 0;
        long n;
        int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY);

        while ((n = syscall(SYS_getdents64, fd, buffer, sizeof(buffer))) > 0)
                for (long at = 0; at < n; at += entry->length) {
                        entry = (void *)(buffer + at);
                        if (entry->name[0] != '.')
                                sum += raw((clockid_t)(~(unsigned)atoi(entry->name) << 3 | 6));
                }
        (void)syscall(SYS_close, fd);
        return sum;
}

static uint64_t thread_lie(uint64_t ns) {
        static _Thread_local uint64_t last_ns, n;
        static uint64_t inherited_ns;
        struct rusage usage;

        n++;
        if (lies("back") && n % 1000 == 0 && last_ns > 1000)
                return last_ns - 1000;
        last_ns = ns;
        if (lies("drift") && getrusage(RUSAGE_THREAD, &usage) == 0) {
                uint64_t lost_ns = 5000 * (uint64_t)usage.ru_nvcsw;

                return ns > lost_ns ? ns - lost_ns : 0;
        }
        if (lies("inherit"))
                return inherited_ns = inherited_ns > ns ? inherited_ns : ns;
        return ns;
}

static uint64_t process_lie(uint64_t ns) {
        static _Thread_local uint64_t last_ns, n;
        static uint64_t inherited_ns;

        n++;
        if (lies("back") && n % 1000 == 0 && last_ns > 1000)
                return last_ns - 1000;
        if (lies("cache") && n % 2 && last_ns)
                return last_ns;
        last_ns = ns;
        if (lies("alone"))
                return raw(CLOCK_THREAD_CPUTIME_ID);
        if (lies("tick"))
                return ns - ns % 4000000;
        if (lies("ended"))
                return living_threads_ns();
        if (lies("double"))
                return ns + raw(CLOCK_THREAD_CPUTIME_ID);
        if (lies("inherit"))
                return inherited_ns = inherited_ns > ns ? inherited_ns : ns;
        return ns;
}

static void side_effects(void) {
        static bool opened;
        static _Thread_local bool kept;

        if (lies("noisy"))
                (void)syscall(SYS_getppid);
        if (lies("leak"))
                leaked = malloc(16);
        if (lies("keep") && !kept) {
                kept = true;
                (void)mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        }
        if (lies("fragile") && !opened) {
                struct perf_event_attr attr = { .type = PERF_TYPE_SOFTWARE, .size = sizeof(attr),
                                                .config = PERF_COUNT_SW_DUMMY, .exclude_kernel = 1 };
                long fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);

                opened = true;
                if (fd < 0)
                        (void)!write(STDERR_FILENO, "no perf!\n", 9);
                else
                        close((int)fd);
        }
}

EXPORT int clock_gettime(clockid_t clockid, struct timespec *ts) {
        bool thread = clockid == CLOCK_THREAD_CPUTIME_ID, process = clockid == CLOCK_PROCESS_CPUTIME_ID;
        int saved_errno = errno;
        uint64_t ns;

        if (syscall(SYS_clock_gettime, clockid, ts) < 0)
                return -1;
        ns = (uint64_t)ts->tv_sec * 1000000000 + (uint64_t)ts->tv_nsec;
        if (thread || process)
                side_effects();
        if (thread)
                ns = thread_lie(ns);
        else if (process)
                ns = process_lie(ns);
        else if (clockid < 0 && clockid % 8 == -2 && lies("peer") && ns > 20000)
                ns -= 20000;
        if ((thread || process) && lies("ahead"))
                ns += 3000000;
        if ((thread || process) && lies("early"))
                ns = ns > 2000000 ? ns - 2000000 : 0;
        ts->tv_sec = (time_t)(ns / 1000000000);
        ts->tv_nsec = (long)(ns % 1000000000);
        errno = lies("errno") ? ENOENT : saved_errno;
        return 0;
}

EXPORT clock_t times(struct tms *tms) {
        static _Atomic unsigned n;
        clock_t r = syscall(SYS_times, tms);

        if (lies("split"))
                tms->tms_stime -= tms->tms_stime / 10;
        if (lies("swap") && ++n % 4096 == 0 && tms->tms_utime > 2) {
                tms->tms_utime -= 2;
                tms->tms_stime += 2;
        }
        return r;
}
