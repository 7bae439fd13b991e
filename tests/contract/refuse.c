/* SPDX-License-Identifier: MIT */
/*
 * no_fast_path_is_no_failure: whatever the kernel refuses, the clocks stay the kernel's, within the
 * bound, and nobody hears of it: not a line on stderr, no signal.
 *
 * Each refusal hits twice: a process that has read nothing yet, and one that is enrolled and whose
 * new threads and children are then refused. Refused for real: by seccomp, by limits, by an empty
 * root directory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "contract.h"
#include "sandbox.h"

static const struct refusal {
        const char *what;
        struct sandbox_rule rules[4];
        bool (*otherwise)(void);        /* instead of rules; false: cannot be tried here */
        bool alone;                     /* threads cannot be started under it */
        bool unless_forced;             /* see below, at the one that kills */
        unsigned n_threads;             /* 0: two */
} refusals[];

static char empty_directory[] = "/tmp/contract-XXXXXX";

static bool no_descriptors(void) {
        struct rlimit none = { 0, 0 };

        return setrlimit(RLIMIT_NOFILE, &none) == 0;
}

/*
 * Each user may lock perf_event_mlock_kb (516) per CPU for event buffers, then memory counts
 * against RLIMIT_MEMLOCK; root is exempt from both.
 */
static bool no_locked_memory(void) {
        struct rlimit none = { 0, 0 };

        return setrlimit(RLIMIT_MEMLOCK, &none) == 0 &&
               (geteuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0));
}

static bool empty_root(void) {
        return chroot(empty_directory) == 0 && chdir("/") == 0;
}

static bool strict_enosys(void) {
        return !THREAD_SANITIZER && sandbox_refuse_nearly_everything(ENOSYS);
}

static bool strict_eperm(void) {
        return !THREAD_SANITIZER && sandbox_refuse_nearly_everything(EPERM);
}

#define PERF(name) \
        { .what = "perf_event_open says " #name, .rules = { { SYS_perf_event_open, name, 0 } } }

static const struct refusal refusals[] = {
        PERF(EPERM), PERF(EACCES), PERF(ENOSYS), PERF(EMFILE), PERF(ENOSPC), PERF(ENODEV),
        PERF(EINVAL), PERF(ENOENT), PERF(EOPNOTSUPP), PERF(EBUSY), PERF(E2BIG),
        /*
         * As under a service manager's call filter, whose default is to kill. Nothing can be tried
         * there, so a library that chooses must not; who forces a backend has asked for the call.
         */
        { .what = "perf_event_open kills", .rules = { { SYS_perf_event_open, 0, 0 } },
          .unless_forced = true },
        { .what = "mmap of a file says EPERM", .rules = { { SYS_mmap, EPERM, SANDBOX_WITH_FD } } },
        { .what = "mmap of a file says ENOMEM",
          .rules = { { SYS_mmap, ENOMEM, SANDBOX_WITH_FD } } },
        { .what = "madvise says EINVAL", .rules = { { SYS_madvise, EINVAL, 0 } } },
        { .what = "madvise says ENOSYS", .rules = { { SYS_madvise, ENOSYS, 0 } } },
        { .what = "membarrier says ENOSYS", .rules = { { SYS_membarrier, ENOSYS, 0 } } },
        { .what = "membarrier says EPERM", .rules = { { SYS_membarrier, EPERM, 0 } } },
        { .what = "gettid says EPERM", .rules = { { SYS_gettid, EPERM, 0 } } },
        { .what = "getpid says EPERM", .rules = { { SYS_getpid, EPERM, 0 } } },
        { .what = "prctl and ioctl say EPERM",
          .rules = { { SYS_prctl, EPERM, 0 }, { SYS_ioctl, EPERM, 0 } } },
        { .what = "rt_sigprocmask says EPERM", .rules = { { SYS_rt_sigprocmask, EPERM, 0 } },
          .alone = true },
        { .what = "no descriptors", .otherwise = no_descriptors },
        { .what = "no locked memory", .otherwise = no_locked_memory, .n_threads = 160 },
        { .what = "an empty root directory", .otherwise = empty_root },
        { .what = "nearly everything says ENOSYS", .otherwise = strict_enosys, .alone = true },
        { .what = "nearly everything says EPERM", .otherwise = strict_eperm, .alone = true },
};

struct attempt {
        const struct refusal *refusal;
        bool enrolled_before;
        int quiet_fd;           /* becomes stderr */
};

static _Atomic uint64_t sum_of_threads_ns;

static void *thread_main(void *argument) {
        const unsigned *n_samples = argument;
        struct tally t = {};

        for (unsigned i = 0; i < *n_samples; i++)
                (void)sample_thread(&t);
        tally_judge(&t, "a thread's clock");
        atomic_fetch_add(&sum_of_threads_ns, t.last_thread_ns);
        return NULL;
}

static void workload(const struct refusal *refusal) {
        unsigned n_threads = refusal->alone ? 0 : refusal->n_threads ? refusal->n_threads : 2;
        unsigned n_started = 0, n_samples = n_threads > 2 ? 200 : 2000;
        static pthread_t threads[160];
        struct tally t = {}, p = {};
        uint64_t sum_ns, now_ns;

        for (; n_started < n_threads; n_started++)
                if (!start_thread(&threads[n_started], thread_main, &n_samples))
                        break;
        for (unsigned i = 0; i < 1500; i++) {
                (void)sample_thread(&t);
                /* Its siblings' numbers are not known: only the caller may be judged beside them. */
                if (!n_threads)
                        (void)sample_process(&p, NULL, 0, 0);
                else
                        (void)reader->process_ns();
        }
        for (unsigned i = 0; i < n_started; i++)
                pthread_join(threads[i], NULL);
        for (unsigned i = 0; i < 1500; i++)
                (void)sample_process(&p, NULL, 0, 0);

        sum_ns = atomic_load(&sum_of_threads_ns) + reader->thread_ns();
        now_ns = reader->process_ns();
        if (now_ns < sum_ns)
                broken("the process clock says %llu ns, its threads had said %llu",
                       (unsigned long long)now_ns, (unsigned long long)sum_ns);
        tally_judge(&t, "the thread clock");
        tally_judge(&p, "the process clock");
}

static void grandchild(const void *argument) {
        struct refusal alone = { .alone = true };

        atomic_store(&sum_of_threads_ns, 0);    /* those threads were the parent's */
        workload(&alone);
}

static void attempt(const void *argument) {
        const struct attempt *a = argument;
        const struct refusal *r = a->refusal;
        unsigned n_rules = 0;

        if (dup2(a->quiet_fd, STDERR_FILENO) < 0)
                broken("the test could not replace stderr");
        if (a->enrolled_before)
                for (unsigned i = 0; i < 3000; i++) {
                        (void)reader->thread_ns();
                        (void)reader->process_ns();
                }
        while (n_rules < 4 && (r->rules[n_rules].number || r->rules[n_rules].error))
                n_rules++;
        if (!(r->otherwise ? r->otherwise() : sandbox_refuse(r->rules, n_rules)))
                skip_child(r->what);
        workload(r);
        if (!r->alone)
                (void)in_child("a child forked under it", grandchild, NULL);
}

void no_fast_path_is_no_failure(void) {
        char what[128];
        int quiet_fd = memfd_create("contract-stderr", MFD_CLOEXEC);
        struct stat st;

        if (quiet_fd < 0 || !mkdtemp(empty_directory)) {
                broken("the test could not make a file and a directory: %s", strerror(errno));
                return;
        }
        (void)chmod(empty_directory, 0755);
        for (unsigned i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
                for (unsigned enrolled = 0; enrolled < 2; enrolled++) {
                        struct attempt a = { &refusals[i], enrolled, quiet_fd };

                        if (refusals[i].unless_forced && (reader->backend == CPUTIME_BACKEND_RING ||
                                                          reader->backend == CPUTIME_BACKEND_HEADER))
                                continue;
                        snprintf(what, sizeof(what), "%s%s", refusals[i].what,
                                 enrolled ? ", to a process that is enrolled" : "");
                        (void)in_child(what, attempt, &a);
                        if (fstat(quiet_fd, &st) == 0 && st.st_size > 0) {
                                broken("%s: something was written to stderr", what);
                                (void)ftruncate(quiet_fd, 0);
                                (void)lseek(quiet_fd, 0, SEEK_SET);
                        }
                }
        (void)rmdir(empty_directory);
        close(quiet_fd);
}
