/* SPDX-License-Identifier: MIT */
/*
 * child_starts_at_zero, in every way a child can come to be. "Zero" is what the kernel says: the
 * parent has burned 100 ms before, so a child that reads its parent's clock is far off.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload-test.h"

extern char **environ;

static void burn_and_warm_up(void) {
        struct tms tms;

        burn(100 * NS_PER_MS);
        warm_up();
        (void)times(&tms);
}

static void check_child_is_new(const char *how) {
        struct tms tms;

        CHECK(read_ns(CLOCK_THREAD_CPUTIME_ID) < 90 * NS_PER_MS, "%s: not the child's thread", how);
        CHECK(read_ns(CLOCK_PROCESS_CPUTIME_ID) < 90 * NS_PER_MS, "%s: not the child's time", how);
        CHECK(clock() < 90000, "%s: clock() is not the child's", how);
        CHECK(times(&tms) != -1 && tms.tms_utime + tms.tms_stime < 9 && tms.tms_cutime == 0,
              "%s: times() is not the child's: %ld + %ld", how, (long)tms.tms_utime,
              (long)tms.tms_stime);
        check_own_clocks(how);
        warm_up();
        check_own_clocks(how);
}

static void fork_child_starts_at_zero(void) {
        pid_t child;

        burn_and_warm_up();
        child = fork();
        if (child == 0) {
                check_child_is_new("fork");
                child = fork();
                if (child == 0) {
                        check_child_is_new("fork of a fork");
                        _exit(0);
                }
                reap(child, "fork of a fork");
                _exit(0);
        }
        reap(child, "fork");
        check_own_clocks("the parent");
}

static void fork_child_of_many_threads_starts_at_zero(void);

/* No handler sees this one. */
static void raw_clone_child_starts_at_zero(void) {
        pid_t child;

        burn_and_warm_up();
        child = (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
        if (child == 0) {
                check_child_is_new("raw clone");
                _exit(0);
        }
        reap(child, "raw clone");
        check_own_clocks("the parent");
}

/* Everything a vfork child may not do but programs do, without touching the parent's stdio. */
struct vfork_view {
        uint64_t before, ours, after, pid_before, pid_ours, pid_after;
        uint64_t parents_thread;
        clock_t user_and_system;
        int dynamic_errno;
};

static volatile struct vfork_view view;

static void look(clockid_t parents_clock) {
        struct timespec ts;
        struct tms tms;

        for (int i = 0; i < 1000; i++) {
                view.before = kernel_ns(CLOCK_THREAD_CPUTIME_ID);
                view.ours = read_ns(CLOCK_THREAD_CPUTIME_ID);
                view.after = kernel_ns(CLOCK_THREAD_CPUTIME_ID);
                view.pid_before = kernel_ns(CLOCK_PROCESS_CPUTIME_ID);
                view.pid_ours = read_ns(CLOCK_PROCESS_CPUTIME_ID);
                view.pid_after = kernel_ns(CLOCK_PROCESS_CPUTIME_ID);
                if (view.ours < view.before || view.ours > view.after ||
                    view.pid_ours < view.pid_before || view.pid_ours > view.pid_after)
                        break;
        }
        (void)times(&tms);
        view.user_and_system = tms.tms_utime + tms.tms_stime;
        errno = 0;
        (void)clock_gettime(parents_clock, &ts);
        view.dynamic_errno = errno;
}

static void check_view(const char *how) {
        CHECK(view.before <= view.ours && view.ours <= view.after,
              "%s: the child's thread clock is %llu, the kernel's %llu..%llu", how,
              (unsigned long long)view.ours, (unsigned long long)view.before,
              (unsigned long long)view.after);
        CHECK(view.pid_before <= view.pid_ours && view.pid_ours <= view.pid_after,
              "%s: the child's process clock is %llu, the kernel's %llu..%llu", how,
              (unsigned long long)view.pid_ours, (unsigned long long)view.pid_before,
              (unsigned long long)view.pid_after);
        CHECK(view.user_and_system < 9, "%s: times() in the child is %ld", how,
              (long)view.user_and_system);
        CHECK(view.dynamic_errno == EINVAL, "%s: the child reads its parent's thread clock: %s",
              how, strerror(view.dynamic_errno));
}

static void vfork_child_starts_at_zero(void) {
        volatile uint64_t last;
        volatile pid_t child;

        burn_and_warm_up();
        last = read_ns(CLOCK_THREAD_CPUTIME_ID);
        for (volatile int i = 0; i < 20; i++) {
                clockid_t parents_clock = dynamic_id(gettid(), BITS_THREAD);

                child = vfork();
                if (child == 0) {
                        look(parents_clock);
                        _exit(0);
                }
                reap(child, "vfork");
                check_view("vfork");
                /* And the parent has its own again. */
                CHECK(read_ns(CLOCK_THREAD_CPUTIME_ID) >= last, "the parent's clock went back");
                last = read_ns(CLOCK_THREAD_CPUTIME_ID);
                check_own_clocks("the parent after vfork");
        }
}

static void vfork_of_vfork_starts_at_zero(void) {
        volatile pid_t child;

        burn_and_warm_up();
        child = vfork();
        if (child == 0) {
                volatile pid_t grandchild = vfork();

                if (grandchild == 0)
                        _exit(0);
                /* Still a child of vfork. */
                look(dynamic_id(1, BITS_THREAD));
                _exit(0);
        }
        reap(child, "vfork of vfork");
        check_view("vfork of vfork");
        check_own_clocks("the parent");
}

static void vfork_is_libcs(void) {
        volatile pid_t child;
        int status;

        burn_and_warm_up();
        child = vfork();
        if (child == 0) {
                execl("/nonexistent/program", "program", NULL);
                _exit(errno == ENOENT ? 7 : 8);
        }
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "status 0x%x",
              status);

        deny_syscall(SYS_vfork, EAGAIN);
        errno = 0;
        child = vfork();
        CHECK(child == -1 && errno == EAGAIN, "vfork without processes: %d, %s", child,
              strerror(errno));
        check_own_clocks("after a vfork that failed");
}

/* Runs this program again; the other side is reached through the tables below. */
static void child_of_exec(void) {
        check_own_clocks("exec");
        warm_up();
        check_own_clocks("exec");
}

static void exec_keeps_the_kernels_time(void) {
        pid_t child = fork();

        if (child == 0) {
                burn_and_warm_up();
                execl("/proc/self/exe", "test-preload", "child_of_exec", NULL);
                _exit(9);
        }
        reap(child, "exec");
}

static void child_of_spawn(void) {
        check_child_is_new("posix_spawn");
}

static void spawn_child_starts_at_zero(void) {
        char *argv[] = { (char[]){ "test-preload" }, (char[]){ "child_of_spawn" }, NULL };
        pid_t child;
        int r;

        burn_and_warm_up();
        for (int i = 0; i < 5; i++) {
                r = posix_spawn(&child, "/proc/self/exe", NULL, NULL, argv, environ);
                CHECK(r == 0, "posix_spawn: %s", strerror(r));
                reap(child, "posix_spawn");
                check_own_clocks("the parent after posix_spawn");
        }
}

static int look_as_clone(void *arg) {
        look(*(clockid_t *)arg);
        return 0;
}

static void clone_child(int flags, const char *how) {
        static char stack[256 * 1024] __attribute__((aligned(64)));
        clockid_t parents_clock = dynamic_id(gettid(), BITS_THREAD);
        pid_t child;

        memset((void *)&view, 0, sizeof(view));
        child = clone(look_as_clone, stack + sizeof(stack), flags | SIGCHLD, &parents_clock);
        if (!(flags & CLONE_VFORK))
                /* At the same time on the same memory: it must not disturb its parent either. */
                for (int i = 0; i < 1000; i++)
                        (void)kernel_ns(CLOCK_THREAD_CPUTIME_ID);
        reap(child, how);
        if (flags & CLONE_VM)
                check_view(how);
}

static void clone_vm_child_starts_at_zero(void) {
        uint64_t last;

        burn_and_warm_up();
        clone_child(0, "clone");
        check_own_clocks("the parent after clone");
        clone_child(CLONE_VM | CLONE_VFORK, "clone with CLONE_VM and CLONE_VFORK");
        check_own_clocks("the parent after CLONE_VFORK");
        last = read_ns(CLOCK_THREAD_CPUTIME_ID);
        clone_child(CLONE_VM, "clone with CLONE_VM");
        CHECK(read_ns(CLOCK_THREAD_CPUTIME_ID) >= last, "the parent's clock went back");
        check_own_clocks("the parent after CLONE_VM");
        CHECK(clone(look_as_clone, NULL, 0, NULL) == -1 && errno == EINVAL, "clone without a stack");
}

/* CLONE_VM children that read while the parent reads as well, for long. */
static _Atomic bool child_started, parent_done;

static int read_beside_parent(void *arg) {
        uint64_t last = 0;

        atomic_store(&child_started, true);
        while (!atomic_load(&parent_done)) {
                uint64_t before = kernel_ns(CLOCK_PROCESS_CPUTIME_ID);
                uint64_t ns = read_ns(CLOCK_PROCESS_CPUTIME_ID);

                if (ns < last || ns < before || ns > kernel_ns(CLOCK_PROCESS_CPUTIME_ID))
                        return 3;
                last = ns;
                before = kernel_ns(CLOCK_THREAD_CPUTIME_ID);
                ns = read_ns(CLOCK_THREAD_CPUTIME_ID);
                if (ns < before || ns > kernel_ns(CLOCK_THREAD_CPUTIME_ID))
                        return 4;
        }
        return 0;
}

static void clone_vm_child_and_parent_read_at_once(void) {
        static char stack[256 * 1024] __attribute__((aligned(64)));
        pid_t child;

        burn_and_warm_up();
        child = clone(read_beside_parent, stack + sizeof(stack), CLONE_VM | SIGCHLD, NULL);
        CHECK(child > 0, "clone: %s", strerror(errno));
        while (!atomic_load(&child_started))
                sched_yield();
        for (int i = 0; i < 100; i++) {
                uint64_t t = read_ns(CLOCK_THREAD_CPUTIME_ID);
                uint64_t p = read_ns(CLOCK_PROCESS_CPUTIME_ID);

                check_agrees(CLOCK_THREAD_CPUTIME_ID, "the parent beside its CLONE_VM child");
                check_agrees(CLOCK_PROCESS_CPUTIME_ID, "the parent beside its CLONE_VM child");
                CHECK(read_ns(CLOCK_THREAD_CPUTIME_ID) >= t, "the parent's thread went back");
                CHECK(read_ns(CLOCK_PROCESS_CPUTIME_ID) >= p, "the parent went back");
        }
        atomic_store(&parent_done, true);
        reap(child, "the CLONE_VM child");
}

static _Atomic bool stop;

static void *read_all_the_time(void *arg) {
        struct tms tms;

        while (!atomic_load(&stop)) {
                (void)read_ns(CLOCK_THREAD_CPUTIME_ID);
                (void)read_ns(CLOCK_PROCESS_CPUTIME_ID);
                (void)times(&tms);
        }
        return NULL;
}

/* The child inherits whatever half-done state the other threads were in. */
static void fork_child_of_many_threads_starts_at_zero(void) {
        pthread_t threads[4];

        for (int i = 0; i < 4; i++)
                CHECK(pthread_create(&threads[i], NULL, read_all_the_time, NULL) == 0, "thread");
        burn_and_warm_up();
        for (int i = 0; i < 30; i++) {
                /* ThreadSanitizer must see the fork of a process with threads. */
                pid_t child = i % 2 || strcmp(under_test, "linked") == 0
                                      ? fork()
                                      : (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);

                if (child == 0) {
                        struct tms tms, kernels;

                        (void)times(&tms);
                        (void)syscall(SYS_times, &kernels);
                        if (distance_from_kernel(CLOCK_PROCESS_CPUTIME_ID) > 50 * NS_PER_MS ||
                            tms.tms_utime > kernels.tms_utime || tms.tms_stime > kernels.tms_stime)
                                _exit(3);
                        for (int k = 0; k < 2000; k++) {
                                (void)read_ns(CLOCK_THREAD_CPUTIME_ID);
                                (void)times(&tms);
                        }
                        if (distance_from_kernel(CLOCK_THREAD_CPUTIME_ID) > 50 * NS_PER_MS)
                                _exit(4);
                        _exit(0);
                }
                reap(child, "fork beside readers");
        }
        atomic_store(&stop, true);
        for (int i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
}

static void daemon_reads_its_own_clocks(void) {
        int pipe_fds[2];
        pid_t child;
        char c = 1;

        burn_and_warm_up();
        CHECK(pipe(pipe_fds) == 0, "%s", strerror(errno));
        child = fork();
        if (child == 0) {
                if (setsid() < 0 || fork() != 0)
                        _exit(0);
                /* The daemon: nothing but the pipe stays open; nobody waits for it. */
                CHECK(dup2(pipe_fds[1], 9) == 9, "%s", strerror(errno));
                for (int fd = 0; fd < 4096; fd++)
                        if (fd != 9 && fd != STDERR_FILENO)
                                close(fd);
                check_child_is_new("daemon");
                c = 0;
                (void)!write(9, &c, 1);
                _exit(0);
        }
        close(pipe_fds[1]);
        reap(child, "the daemon's parent");
        CHECK(read(pipe_fds[0], &c, 1) == 1 && c == 0, "the daemon failed");
}

static void closing_all_descriptors_changes_nothing(void) {
        uint64_t last;

        burn_and_warm_up();
        for (int round = 0; round < 3; round++) {
                last = read_ns(CLOCK_THREAD_CPUTIME_ID);
                for (int fd = 3; fd < 65536; fd++)
                        close(fd);
                CHECK(read_ns(CLOCK_THREAD_CPUTIME_ID) >= last, "the clock went back");
                check_own_clocks("all descriptors closed");
                burn(20 * NS_PER_MS);
                check_own_clocks("all descriptors closed");
        }
}

const struct promise promises_children[] = {
        { "fork_child_starts_at_zero", fork_child_starts_at_zero },
        { "fork_child_of_many_threads_starts_at_zero", fork_child_of_many_threads_starts_at_zero },
        { "raw_clone_child_starts_at_zero", raw_clone_child_starts_at_zero },
        { "vfork_child_starts_at_zero", vfork_child_starts_at_zero },
        { "vfork_of_vfork_starts_at_zero", vfork_of_vfork_starts_at_zero },
        { "vfork_is_libcs", vfork_is_libcs },
        { "exec_keeps_the_kernels_time", exec_keeps_the_kernels_time },
        { "spawn_child_starts_at_zero", spawn_child_starts_at_zero },
        { "clone_vm_child_starts_at_zero", clone_vm_child_starts_at_zero },
        { "clone_vm_child_and_parent_read_at_once", clone_vm_child_and_parent_read_at_once },
        { "daemon_reads_its_own_clocks", daemon_reads_its_own_clocks },
        { "closing_all_descriptors_changes_nothing", closing_all_descriptors_changes_nothing },
        /* Run by the above. */
        { "child_of_exec", child_of_exec },
        { "child_of_spawn", child_of_spawn },
        {},
};
