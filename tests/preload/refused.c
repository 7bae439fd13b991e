/* SPDX-License-Identifier: MIT */
/* no_fast_path_is_no_failure: what the fast paths need is taken away, the answers stay right. */
#include <errno.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <unistd.h>

#include "preload-test.h"

static void check_all(const char *where) {
        struct tms tms;
        uint64_t last_thread = 0, last_process = 0;

        for (int i = 0; i < 20000; i++) {
                uint64_t ns = read_ns(CLOCK_THREAD_CPUTIME_ID);

                CHECK(ns >= last_thread, "%s: the thread clock went back", where);
                last_thread = ns;
                ns = read_ns(CLOCK_PROCESS_CPUTIME_ID);
                CHECK(ns >= last_process, "%s: the process clock went back", where);
                last_process = ns;
        }
        check_own_clocks(where);
        CHECK(times(&tms) != -1, "%s: times() failed", where);
        CHECK(clock() != -1, "%s: clock() failed", where);
}

static void refused(int error) {
        burn(20 * NS_PER_MS);
        deny_syscall(SYS_perf_event_open, error);
        check_all("perf_event_open refused");
}

static void perf_refused_with_EPERM(void) {
        refused(EPERM);
}

static void perf_refused_with_EACCES(void) {
        refused(EACCES);
}

static void perf_refused_with_ENOSYS(void) {
        refused(ENOSYS);
}

static void perf_refused_with_EMFILE(void) {
        refused(EMFILE);
}

static void perf_refused_in_the_middle(void) {
        warm_up();
        check_all("perf_event_open allowed");
        refused(EPERM);
}

static void madvise_refused(void) {
        deny_syscall(SYS_madvise, EINVAL);
        burn(20 * NS_PER_MS);
        check_all("madvise refused");
}

static void mmap_refused(void) {
        struct rlimit limit = { 0, 0 };

        CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "%s", strerror(errno));
        burn(20 * NS_PER_MS);
        check_all("no address space");
}

static void no_descriptor_is_free(void) {
        struct rlimit old, limit;

        for (int fd = 3; fd < 1024; fd++)
                close(fd);
        CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0, "%s", strerror(errno));
        limit = (struct rlimit){ 3, old.rlim_max };
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "%s", strerror(errno));
        burn(20 * NS_PER_MS);
        check_all("RLIMIT_NOFILE is 3");
        /* A sanitizer opens files at exit. */
        CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0, "%s", strerror(errno));
}

/* A user nobody else is, so that his quota is nobody else's. */
static void become_nobody(void) {
        struct rlimit limit = { 0, 0 };
        uid_t uid = 1000000 + (uid_t)getpid();

        if (geteuid() != 0)
                SKIP("not root, cannot become another user");
        CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "%s", strerror(errno));
        CHECK(setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0, "%s",
              strerror(errno));
}

static void no_locked_memory_allowed(void) {
        become_nobody();
        burn(20 * NS_PER_MS);
        check_all("RLIMIT_MEMLOCK is 0");
}

static void locked_memory_quota_is_used_up(void) {
        struct perf_event_attr attr = {
                .type = PERF_TYPE_SOFTWARE,
                .size = sizeof(attr),
                .config = PERF_COUNT_SW_DUMMY,
                .exclude_kernel = 1,
                .exclude_hv = 1,
        };
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        unsigned int n = 0;

        become_nobody();
        for (;;) {
                int fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);

                if (fd < 0 && n == 0)
                        SKIP("perf_event_open: %s", strerror(errno));
                CHECK(fd >= 0 && n < 100000, "%u events and no quota: %s", n, strerror(errno));
                if (mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED) {
                        CHECK(errno == EPERM, "mmap: %s", strerror(errno));
                        close(fd);
                        break;
                }
                close(fd);
                n++;
        }
        burn(20 * NS_PER_MS);
        check_all("the quota is used up");
}

const struct promise promises_refused[] = {
        { "perf_refused_with_EPERM", perf_refused_with_EPERM },
        { "perf_refused_with_EACCES", perf_refused_with_EACCES },
        { "perf_refused_with_ENOSYS", perf_refused_with_ENOSYS },
        { "perf_refused_with_EMFILE", perf_refused_with_EMFILE },
        { "perf_refused_in_the_middle", perf_refused_in_the_middle },
        { "madvise_refused", madvise_refused },
        { "mmap_refused", mmap_refused },
        { "no_descriptor_is_free", no_descriptor_is_free },
        { "no_locked_memory_allowed", no_locked_memory_allowed },
        { "locked_memory_quota_is_used_up", locked_memory_quota_is_used_up },
        {},
};
