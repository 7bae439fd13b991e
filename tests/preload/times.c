/* SPDX-License-Identifier: MIT */
/* times(): remembered for a tick, never too old, never decreasing, children at once. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "preload-test.h"

enum {
        TICKS,
        USER,
        SYSTEM,
        CHILDREN_USER,
        CHILDREN_SYSTEM,
        N_FIELDS,
};

static const char *const field_names[] = { "the return value", "tms_utime", "tms_stime",
                                           "tms_cutime", "tms_cstime" };

struct fields {
        long v[N_FIELDS];
};

static struct fields fields_of(clock_t ticks, const struct tms *tms) {
        return (struct fields){ { ticks, tms->tms_utime, tms->tms_stime, tms->tms_cutime,
                                  tms->tms_cstime } };
}

static struct fields ours(void) {
        struct tms tms;
        clock_t ticks = times(&tms);

        return fields_of(ticks, &tms);
}

static struct fields kernels(void) {
        struct tms tms;
        clock_t ticks = (clock_t)syscall(SYS_times, &tms);

        return fields_of(ticks, &tms);
}

static void check_not_less(const struct fields *a, const struct fields *b, const char *what) {
        for (int i = 0; i < N_FIELDS; i++)
                CHECK(a->v[i] >= b->v[i], "%s: %s is %ld, expected %ld or more", what,
                      field_names[i], a->v[i], b->v[i]);
}

static uint64_t wait_for_tick(void) {
        uint64_t old = read_ns(CLOCK_MONOTONIC_COARSE), now;

        while ((now = read_ns(CLOCK_MONOTONIC_COARSE)) == old)
                ;
        return now;
}

static _Atomic bool stop;

static void *keep_remembered(void *arg) {
        while (!atomic_load(&stop))
                (void)ours();
        return NULL;
}

/* Not newer than the kernel's, not older than what the kernel said before this tick began. */
static void times_lags_by_a_tick_at_most(void) {
        pthread_t thread;

        CHECK(pthread_create(&thread, NULL, keep_remembered, NULL) == 0, "no thread");
        for (int i = 0; i < 200; i++) {
                struct fields before = kernels(), now, after;

                wait_for_tick();
                now = ours();
                after = kernels();
                check_not_less(&now, &before, "after a tick");
                check_not_less(&after, &now, "the kernel afterwards");
                for (int k = 0; k < 100; k++) {
                        now = ours();
                        after = kernels();
                        check_not_less(&after, &now, "the kernel afterwards");
                }
        }
        atomic_store(&stop, true);
        pthread_join(thread, NULL);
        CHECK(ours().v[USER] + ours().v[SYSTEM] > 5, "no time has passed");
}

static void times_takes_no_buffer(void) {
        clock_t start = (clock_t)syscall(SYS_times, NULL), before = start, now, after;
        uint64_t end = read_ns(CLOCK_MONOTONIC) + 100 * NS_PER_MS;

        do {
                now = times(NULL);
                CHECK(now >= before, "times(NULL) went back from %ld to %ld", before, now);
                before = now;
        } while (read_ns(CLOCK_MONOTONIC) < end);
        after = (clock_t)syscall(SYS_times, NULL);
        CHECK(now <= after, "times(NULL) is %ld, the kernel's %ld", now, after);
        now = times(NULL);
        CHECK(now >= start + 8, "times(NULL) moved by %ld in 100 ms", now - start);
        wait_for_tick();
        CHECK(times(NULL) >= after, "times(NULL) stands still");
}

/* What any thread got from a call that has ended. */
static _Atomic long largest[N_FIELDS];
static _Atomic int decreased = -1;

static void *check_never_decreases(void *arg) {
        while (!atomic_load(&stop)) {
                long before[N_FIELDS];
                struct fields now;

                for (int i = 0; i < N_FIELDS; i++)
                        before[i] = atomic_load(&largest[i]);
                now = ours();
                for (int i = 0; i < N_FIELDS; i++) {
                        long old = before[i];

                        if (now.v[i] < before[i])
                                atomic_store(&decreased, i);
                        while (old < now.v[i] &&
                               !atomic_compare_exchange_weak(&largest[i], &old, now.v[i]))
                                ;
                }
        }
        return NULL;
}

static void times_never_decreases_across_threads(void) {
        pthread_t threads[8];
        unsigned int n_children = 0;
        uint64_t end;

        for (int i = 0; i < 8; i++)
                CHECK(pthread_create(&threads[i], NULL, check_never_decreases, NULL) == 0,
                      "no thread");
        /* Children come and go: that is what makes the remembered answer change within a tick. */
        end = read_ns(CLOCK_MONOTONIC) + 2500 * NS_PER_MS;
        while ((read_ns(CLOCK_MONOTONIC) < end || n_children < 10) &&
               atomic_load(&decreased) < 0) {
                pid_t child = fork();

                if (child == 0) {
                        burn(12 * NS_PER_MS);
                        _exit(0);
                }
                reap(child, "a child");
                n_children++;
        }
        atomic_store(&stop, true);
        for (int i = 0; i < 8; i++)
                pthread_join(threads[i], NULL);
        CHECK(atomic_load(&decreased) < 0, "%s decreased", field_names[atomic_load(&decreased)]);
        CHECK(atomic_load(&largest[CHILDREN_USER]) + atomic_load(&largest[CHILDREN_SYSTEM]) > 2,
              "the children's time did not show");
}

#define N_CHILDREN 6

/* The calls that reap. Each gets a child that has burned 25 ms. */
static pid_t burning_child(void) {
        pid_t child = fork();

        if (child == 0) {
                burn(25 * NS_PER_MS);
                _exit(0);
        }
        CHECK(child > 0, "fork: %s", strerror(errno));
        return child;
}

static void by_wait(void) {
        int status;
        pid_t child = burning_child();

        CHECK(wait(&status) == child && status == 0, "wait: %s", strerror(errno));
}

static void by_waitpid(void) {
        int status;
        pid_t child = burning_child();

        CHECK(waitpid(child, &status, 0) == child && status == 0, "waitpid: %s", strerror(errno));
}

static void by_wait3(void) {
        struct rusage usage;
        int status;
        pid_t child = burning_child();

        CHECK(wait3(&status, 0, &usage) == child && status == 0, "wait3: %s", strerror(errno));
        CHECK(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec >= 20000, "no usage");
}

static void by_wait4(void) {
        struct rusage usage;
        int status;
        pid_t child = burning_child();

        CHECK(wait4(child, &status, 0, &usage) == child && status == 0, "wait4: %s",
              strerror(errno));
        CHECK(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec >= 20000, "no usage");
}

static void by_waitid(void) {
        siginfo_t info = {};
        pid_t child = burning_child();

        CHECK(waitid(P_PID, (id_t)child, &info, WEXITED) == 0 && info.si_pid == child,
              "waitid: %s", strerror(errno));
}

/* The shell burns 25 ms and more by itself: it is the child that is waited for. */
#define BURNING_COMMAND "i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done"

static void by_system(void) {
        int status = system(BURNING_COMMAND);

        CHECK(status == 0, "system: 0x%x, %s", status, strerror(errno));
}

static void by_pclose(void) {
        FILE *f = popen(BURNING_COMMAND "; echo done", "r");
        char text[16];
        int status;

        CHECK(f && fgets(text, sizeof(text), f) && strcmp(text, "done\n") == 0, "popen: %s",
              strerror(errno));
        status = pclose(f);
        CHECK(status == 0, "pclose: 0x%x, %s", status, strerror(errno));
}

static void children_show_at_once(void (*reap_by)(void)) {
        struct fields start = kernels(), end;
        pthread_t thread;

        /* Somebody else has the answer remembered, always anew when a tick begins. */
        CHECK(pthread_create(&thread, NULL, keep_remembered, NULL) == 0, "no thread");
        for (int i = 0; i < N_CHILDREN; i++) {
                struct fields kernel, mine;

                reap_by();
                kernel = kernels();
                mine = ours();
                CHECK(mine.v[CHILDREN_USER] >= kernel.v[CHILDREN_USER] &&
                      mine.v[CHILDREN_SYSTEM] >= kernel.v[CHILDREN_SYSTEM],
                      "child %d: times() says %ld + %ld, the kernel %ld + %ld", i,
                      mine.v[CHILDREN_USER], mine.v[CHILDREN_SYSTEM], kernel.v[CHILDREN_USER],
                      kernel.v[CHILDREN_SYSTEM]);
        }
        atomic_store(&stop, true);
        pthread_join(thread, NULL);
        end = ours();
        CHECK(end.v[CHILDREN_USER] + end.v[CHILDREN_SYSTEM] >=
                      start.v[CHILDREN_USER] + start.v[CHILDREN_SYSTEM] + N_CHILDREN,
              "the children used no time");
}

static void children_show_at_once_after_wait(void) {
        children_show_at_once(by_wait);
}

static void children_show_at_once_after_waitpid(void) {
        children_show_at_once(by_waitpid);
}

static void children_show_at_once_after_wait3(void) {
        children_show_at_once(by_wait3);
}

static void children_show_at_once_after_wait4(void) {
        children_show_at_once(by_wait4);
}

static void children_show_at_once_after_waitid(void) {
        children_show_at_once(by_waitid);
}

static void children_show_at_once_after_system(void) {
        children_show_at_once(by_system);
}

static void children_show_at_once_after_pclose(void) {
        children_show_at_once(by_pclose);
}

static void waits_fail_as_libcs(void) {
        siginfo_t info;
        int status;

        errno = 0;
        CHECK(wait(&status) == -1 && errno == ECHILD, "wait: %s", strerror(errno));
        errno = 0;
        CHECK(waitpid(-1, &status, 0) == -1 && errno == ECHILD, "waitpid: %s", strerror(errno));
        errno = 0;
        CHECK(waitpid(-1, &status, 0x40) == -1 && errno == EINVAL, "waitpid: %s", strerror(errno));
        errno = 0;
        CHECK(wait3(&status, WNOHANG, NULL) == -1 && errno == ECHILD, "wait3: %s",
              strerror(errno));
        errno = 0;
        CHECK(wait4(1, &status, 0, NULL) == -1 && errno == ECHILD, "wait4: %s", strerror(errno));
        errno = 0;
        CHECK(waitid(P_ALL, 0, &info, 0) == -1 && errno == EINVAL, "waitid: %s", strerror(errno));
        CHECK(system(NULL) != 0, "system(NULL)");
        CHECK(WEXITSTATUS(system("exit 3")) == 3, "system");
}

static void *wait_for_ever(void *arg) {
        (void)waitpid(*(pid_t *)arg, NULL, 0);
        return NULL;
}

static void waiting_can_be_cancelled(void) {
        pthread_t thread;
        void *result;
        pid_t child = fork();

        CHECK(child >= 0, "fork: %s", strerror(errno));
        if (child == 0) {
                pause();
                _exit(0);
        }
        CHECK(pthread_create(&thread, NULL, wait_for_ever, &child) == 0, "no thread");
        usleep(20000);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "no cancellation");
        CHECK(result == PTHREAD_CANCELED, "the wait was not cancelled");
        kill(child, SIGKILL);
        CHECK(waitpid(child, NULL, 0) == child, "waitpid: %s", strerror(errno));
}

#ifdef __x86_64__
static volatile unsigned int n_calls;

static void count_call(int sig, siginfo_t *info, void *context) {
        ucontext_t *uc = context;

        n_calls++;
        uc->uc_mcontext.gregs[REG_RAX] = 0;
}

static void trap_times(void) {
        struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_times, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };
        struct sigaction action = { .sa_sigaction = count_call, .sa_flags = SA_SIGINFO };

        CHECK(sigaction(SIGSYS, &action, NULL) == 0, "%s", strerror(errno));
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "%s", strerror(errno));
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
                SKIP("seccomp filters: %s", strerror(errno));
}
#endif

/* Each call that reaches the kernel is counted there, and answered with zeroes. */
static void times_asks_once_per_tick(void) {
#ifdef __x86_64__
        unsigned int n_ticks = 0;
        uint64_t tick, end, now, n_reads = 0;

        if (strcmp(under_test, "libc") == 0)
                SKIP("libc asks every time");
        trap_times();
        tick = wait_for_tick();
        end = tick + 300 * NS_PER_MS;
        n_calls = 0;
        do {
                for (int i = 0; i < 100; i++)
                        (void)ours();
                n_reads += 100;
                now = read_ns(CLOCK_MONOTONIC_COARSE);
                n_ticks += now != tick;
                tick = now;
        } while (now < end);
        /* Ticks that pass within a hundred reads count as one here but may as well be two. */
        CHECK(n_calls <= 2 * n_ticks + 2, "%u system calls in %u ticks", n_calls, n_ticks);
        CHECK(n_calls >= n_ticks / 2, "%u system calls in %u ticks: too few to be right", n_calls,
              n_ticks);
        CHECK(n_reads > 100 * (uint64_t)n_calls, "%llu reads made %u system calls",
              (unsigned long long)n_reads, n_calls);
#else
        SKIP("counting system calls in the process needs x86-64");
#endif
}

const struct promise promises_times[] = {
        { "times_lags_by_a_tick_at_most", times_lags_by_a_tick_at_most },
        { "times_takes_no_buffer", times_takes_no_buffer },
        { "times_never_decreases_across_threads", times_never_decreases_across_threads },
        { "times_asks_once_per_tick", times_asks_once_per_tick },
        { "children_show_at_once_after_wait", children_show_at_once_after_wait },
        { "children_show_at_once_after_waitpid", children_show_at_once_after_waitpid },
        { "children_show_at_once_after_wait3", children_show_at_once_after_wait3 },
        { "children_show_at_once_after_wait4", children_show_at_once_after_wait4 },
        { "children_show_at_once_after_waitid", children_show_at_once_after_waitid },
        { "children_show_at_once_after_system", children_show_at_once_after_system },
        { "children_show_at_once_after_pclose", children_show_at_once_after_pclose },
        { "waits_fail_as_libcs", waits_fail_as_libcs },
        { "waiting_can_be_cancelled", waiting_can_be_cancelled },
        {},
};
