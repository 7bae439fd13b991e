/* SPDX-License-Identifier: MIT */
/*
 * cputime_thread_stat_read() and cputime_process_stat_read(): the kernel's counts, from the kernel and from
 * the page, and oncpu_ns the same clock as the others'.
 *
 * Counts only grow, so a stat between two looks at the kernel's files is right if it is between the
 * two. Each case has a process of its own. The second half needs a page server in CPUTIME_SOCKET; an
 * event can be missed by the page, by design, so among thousands of stats from it a few may be behind.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../check.h"
#include "../contract/sandbox.h"
#include "cputime/clock.h"

#define ROUNDS 3000
#define MISSED_MAX (ROUNDS / 100)

/* Stats until a page must be there, with a nap after each; a machine that is busy makes them longer. */
#define LOOKS_MAX 20000

struct counts {
        uint64_t wait_ns, voluntary, involuntary;
};

/* --- what the kernel says --- */

static uint64_t read_wait(pid_t tid) {
        unsigned long long oncpu_ns, wait_ns;
        char path[64];
        FILE *f;

        (void)snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", tid);
        f = fopen(path, "re");
        CHECK(f && fscanf(f, "%llu %llu", &oncpu_ns, &wait_ns) == 2, "%s: %s", path, strerror(errno));
        (void)fclose(f);
        return wait_ns;
}

static uint64_t read_status(pid_t tid, const char *field) {
        char path[64], line[256], format[64];
        unsigned long long value = 0;
        bool found = false;
        FILE *f;

        (void)snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
        (void)snprintf(format, sizeof(format), "%s: %%llu", field);
        f = fopen(path, "re");
        CHECK(f, "%s: %s", path, strerror(errno));
        while (!found && fgets(line, sizeof(line), f))
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                found = sscanf(line, format, &value) == 1;
#pragma GCC diagnostic pop
        CHECK(found, "no %s in %s", field, path);
        (void)fclose(f);
        return value;
}

static struct counts kernel_counts(pid_t tid) {
        return (struct counts){
                .wait_ns = read_wait(tid),
                .voluntary = read_status(tid, "voluntary_ctxt_switches"),
                .involuntary = read_status(tid, "nonvoluntary_ctxt_switches"),
        };
}

static struct rusage usage(void) {
        struct rusage r = {};

        CHECK(getrusage(RUSAGE_SELF, &r) == 0, "getrusage: %s", strerror(errno));
        return r;
}

static pid_t self(void) {
        return (pid_t)syscall(SYS_gettid);
}

/* --- threads --- */

enum what { BLOCK, SPIN, END };

struct thread {
        pthread_t thread;
        enum what what;
        pthread_barrier_t begun, over;
        _Atomic(pid_t) tid;
        _Atomic bool stop;
};

static void *thread_main(void *argument) {
        struct thread *t = argument;

        /* The name is made to be taken for the end of the second field of its stat. */
        (void)prctl(PR_SET_NAME, "x) S 1 (y) 2");
        atomic_store(&t->tid, self());
        (void)pthread_barrier_wait(&t->begun);
        while (t->what == SPIN && !atomic_load(&t->stop))
                ;
        if (t->what != END)
                (void)pthread_barrier_wait(&t->over);
        return NULL;
}

static void thread_start(struct thread *t, enum what what) {
        *t = (struct thread){ .what = what };
        CHECK(pthread_barrier_init(&t->begun, NULL, 2) == 0 &&
              pthread_barrier_init(&t->over, NULL, 2) == 0 &&
              pthread_create(&t->thread, NULL, thread_main, t) == 0, "no thread");
        (void)pthread_barrier_wait(&t->begun);
}

/* Until the kernel has added up its counts, which is later than what pthread_join() waits for. */
static void thread_end(struct thread *t) {
        atomic_store(&t->stop, true);
        if (t->what != END)
                (void)pthread_barrier_wait(&t->over);
        (void)pthread_join(t->thread, NULL);
        while (syscall(SYS_tgkill, getpid(), atomic_load(&t->tid), 0) == 0)
                (void)sched_yield();
}

/* Until it is off its CPU for good: the kernel says that it sleeps, and twice the same counts. */
static struct counts blocked_counts(pid_t tid) {
        struct counts before = {}, now = kernel_counts(tid);
        char path[64], state = 0;

        (void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
        while (state != 'S' || memcmp(&before, &now, sizeof(now)) != 0) {
                FILE *f = fopen(path, "re");
                char text[256];

                CHECK(f && fgets(text, sizeof(text), f), "%s: %s", path, strerror(errno));
                (void)fclose(f);
                CHECK(strrchr(text, ')'), "%s: %s", path, text);
                state = strrchr(text, ')')[2];
                before = now;
                now = kernel_counts(tid);
                (void)sched_yield();
        }
        return now;
}

/* Switches of both kinds, and waits. */
static void be_switched(unsigned int i) {
        const struct timespec nap = { .tv_nsec = 1000 };

        if (i % 2)
                (void)sched_yield();
        else
                (void)nanosleep(&nap, NULL);
}

/* --- cases that hold for both --- */

static bool between(const struct counts *before, const struct cputime_thread_stat *stat,
                    const struct counts *after) {
        return before->wait_ns <= stat->wait_ns && stat->wait_ns <= after->wait_ns &&
               before->voluntary <= stat->voluntary_switches &&
               stat->voluntary_switches <= after->voluntary &&
               before->involuntary <= stat->involuntary_switches &&
               stat->involuntary_switches <= after->involuntary;
}

static struct cputime_thread_stat thread_stat(pid_t tid) {
        struct cputime_thread_stat stat;
        int r = cputime_thread_stat_read(tid, &stat);

        CHECK(r == 0, "cputime_thread_stat_read(%d): %s", tid, strerror(-r));
        return stat;
}

static struct cputime_process_stat process_stat(void) {
        struct cputime_process_stat stat;
        int r = cputime_process_stat_read(&stat);

        CHECK(r == 0, "cputime_process_stat_read(): %s", strerror(-r));
        return stat;
}

static void expect_own_counts(enum cputime_backend backend) {
        struct cputime_thread_stat stat, last = {};
        unsigned int missed = 0;

        for (unsigned int i = 0; i < ROUNDS; i++) {
                struct counts before = kernel_counts(self()), after;

                stat = thread_stat(i % 3 ? 0 : self());
                after = kernel_counts(self());
                missed += stat.backend != backend || !between(&before, &stat, &after);
                CHECK(stat.wait_ns <= after.wait_ns && stat.voluntary_switches <= after.voluntary &&
                      stat.involuntary_switches <= after.involuntary,
                      "waited %llu of %llu ns, %llu of %llu and %llu of %llu switches",
                      (unsigned long long)stat.wait_ns, (unsigned long long)after.wait_ns,
                      (unsigned long long)stat.voluntary_switches, (unsigned long long)after.voluntary,
                      (unsigned long long)stat.involuntary_switches,
                      (unsigned long long)after.involuntary);
                CHECK(stat.cpu >= 0 && stat.cpu < CPU_SETSIZE, "on CPU %d", stat.cpu);
                CHECK(stat.backend != last.backend || stat.wait_ns >= last.wait_ns,
                      "wait fell from %llu to %llu ns", (unsigned long long)last.wait_ns,
                      (unsigned long long)stat.wait_ns);
                last = stat;
                be_switched(i);
        }
        CHECK(last.voluntary_switches >= ROUNDS / 4, "%llu switches",
              (unsigned long long)last.voluntary_switches);
        fprintf(stderr, "  %u of %u stats were not within the kernel's of just before and after\n", missed,
                ROUNDS);
        CHECK(missed <= (backend == CPUTIME_BACKEND_PAGE ? MISSED_MAX : 0), "%u missed", missed);
}

static void expect_others_counts(enum cputime_backend backend) {
        struct cputime_thread_stat stat;
        struct thread blocked, spinning;
        struct counts counts;
        uint64_t ns;
        bool seen = false;

        thread_start(&blocked, BLOCK);
        counts = blocked_counts(blocked.tid);
        stat = thread_stat(blocked.tid);
        CHECK(stat.backend == backend, "from %s", cputime_backend_name(stat.backend));
        CHECK(between(&counts, &stat, &counts), "%llu %llu %llu, the kernel %llu %llu %llu",
              (unsigned long long)stat.wait_ns, (unsigned long long)stat.voluntary_switches,
              (unsigned long long)stat.involuntary_switches, (unsigned long long)counts.wait_ns,
              (unsigned long long)counts.voluntary, (unsigned long long)counts.involuntary);
        CHECK(stat.cpu == -1, "it is blocked and on CPU %d", stat.cpu);
        CHECK(cputime_thread_ns_of(blocked.tid, &ns) == 0 && ns == stat.oncpu_ns,
              "%llu ns by its clock, %llu by its stat", (unsigned long long)ns,
              (unsigned long long)stat.oncpu_ns);
        thread_end(&blocked);

        thread_start(&spinning, SPIN);
        for (unsigned int i = 0; i < LOOKS_MAX && !seen; i++) {
                seen = thread_stat(spinning.tid).cpu >= 0;
                be_switched(0);
        }
        CHECK(seen, "a thread that spins was never seen on a CPU");
        thread_end(&spinning);
}

static void *spin(void *argument) {
        const _Atomic bool *over = argument;

        while (!atomic_load(over))
                (void)cputime_process_ns();
        return NULL;
}

/* The clock and the stat's, in turns, while a sibling reads, too. */
static void expect_one_clock(void) {
        uint64_t thread_ns = 0, process_ns = 0, other_ns = 0, ns;
        _Atomic bool over = false;
        struct thread spinning;
        pthread_t sibling;

        thread_start(&spinning, SPIN);
        CHECK(pthread_create(&sibling, NULL, spin, &over) == 0, "no thread");
        for (unsigned int i = 0; i < 20000; i++) {
                ns = i % 2 ? cputime_thread_ns() : thread_stat(0).oncpu_ns;
                CHECK(ns >= thread_ns, "the thread's clock fell from %llu to %llu ns, %s",
                      (unsigned long long)thread_ns, (unsigned long long)ns, i % 2 ? "clock" : "stat");
                thread_ns = ns;
                ns = i % 2 ? process_stat().oncpu_ns : cputime_process_ns();
                CHECK(ns >= process_ns, "the process's clock fell from %llu to %llu ns, %s",
                      (unsigned long long)process_ns, (unsigned long long)ns, i % 2 ? "stat" : "clock");
                CHECK(ns >= thread_ns, "the process's clock is behind");
                process_ns = ns;
                if (i % 2)
                        CHECK(cputime_thread_ns_of(spinning.tid, &ns) == 0, "no clock");
                else
                        ns = thread_stat(spinning.tid).oncpu_ns;
                CHECK(ns >= other_ns, "another's clock fell from %llu to %llu ns, %s",
                      (unsigned long long)other_ns, (unsigned long long)ns, i % 2 ? "clock" : "stat");
                other_ns = ns;
        }
        atomic_store(&over, true);
        (void)pthread_join(sibling, NULL);
        thread_end(&spinning);
}

static void expect_refusals(void) {
        struct cputime_thread_stat stat, untouched;
        struct thread ended;

        thread_start(&ended, END);
        thread_end(&ended);
        /* The page knows of it until its last switch. */
        for (unsigned int i = 0; i < LOOKS_MAX && cputime_thread_stat_read(ended.tid, &stat) == 0; i++)
                be_switched(1);
        memset(&stat, 0x5a, sizeof(stat));
        untouched = stat;
        errno = 4095;
        CHECK(cputime_thread_stat_read(ended.tid, &stat) == -ESRCH, "a thread that has ended");
        CHECK(cputime_thread_stat_read(-1, &stat) == -EINVAL, "-1 is a thread");
        CHECK(cputime_thread_stat_read(getppid(), &stat) == -ESRCH, "another process's thread");
        CHECK(memcmp(&stat, &untouched, sizeof(stat)) == 0, "a failure left something");
        CHECK(errno == 4095, "errno is %d", errno);
}

static _Atomic unsigned int n_handled;

static void on_signal(int sig) {
        struct cputime_thread_stat thread;
        struct cputime_process_stat process;

        errno = 4095;
        if (cputime_thread_stat_read(0, &thread) < 0 || cputime_process_stat_read(&process) < 0 || errno != 4095)
                abort();
        atomic_fetch_add(&n_handled, 1);
        errno = 0;
}

static void expect_signal_safe(void) {
        struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
        struct itimerval timer = { .it_interval.tv_usec = 200, .it_value.tv_usec = 200 };

        CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0,
              "no timer");
        while (atomic_load(&n_handled) < 500) {
                (void)thread_stat(0);
                (void)process_stat();
        }
        timer = (struct itimerval){};
        (void)setitimer(ITIMER_REAL, &timer, NULL);
}

/* --- from the kernel --- */

static void kernel_thread_counts(void) {
        CHECK(cputime_backend_set(CPUTIME_BACKEND_SYSCALL) == 0, "no backend");
        expect_own_counts(CPUTIME_BACKEND_SYSCALL);
        expect_others_counts(CPUTIME_BACKEND_SYSCALL);
        expect_refusals();
        expect_signal_safe();
}

static void kernel_process_counts(void) {
        struct cputime_process_stat stat;
        struct thread threads[3];

        CHECK(cputime_backend_set(CPUTIME_BACKEND_SYSCALL) == 0, "no backend");
        for (unsigned int i = 0; i < 3; i++) {
                thread_start(&threads[i], BLOCK);
                (void)blocked_counts(threads[i].tid);
        }
        for (unsigned int i = 0; i < 300; i++) {
                struct rusage before = usage(), after;

                stat = process_stat();
                after = usage();
                CHECK((uint64_t)before.ru_nvcsw <= stat.voluntary_switches &&
                      stat.voluntary_switches <= (uint64_t)after.ru_nvcsw &&
                      (uint64_t)before.ru_nivcsw <= stat.involuntary_switches &&
                      stat.involuntary_switches <= (uint64_t)after.ru_nivcsw, "switches");
                CHECK(stat.backend == CPUTIME_BACKEND_SYSCALL, "from %s",
                      cputime_backend_name(stat.backend));
                CHECK(stat.nr_threads == 4 && stat.nr_running == 1, "%u threads, %u of them running",
                      stat.nr_threads, stat.nr_running);
                be_switched(i);
        }
        stat = process_stat();
        CHECK(stat.wait_ns >= read_wait(threads[0].tid) + read_wait(threads[1].tid) +
              read_wait(threads[2].tid), "%llu ns of waiting", (unsigned long long)stat.wait_ns);
        for (unsigned int i = 0; i < 3; i++)
                thread_end(&threads[i]);
}

static void kernel_one_clock(void) {
        CHECK(cputime_backend_set(CPUTIME_BACKEND_SYSCALL) == 0, "no backend");
        expect_one_clock();
}

/* As AUTO does it: the clocks are other backends' meanwhile. */
static void kernel_one_fast_clock(void) {
        expect_one_clock();
}

static void kernel_without_descriptors(void) {
        struct cputime_process_stat process, untouched;
        struct cputime_thread_stat thread;
        struct rlimit limit = {};

        CHECK(cputime_backend_set(CPUTIME_BACKEND_SYSCALL) == 0 && setrlimit(RLIMIT_NOFILE, &limit) == 0,
              "no limit");
        memset(&process, 0x5a, sizeof(process));
        untouched = process;
        errno = 4095;
        CHECK(cputime_thread_stat_read(0, &thread) == -EMFILE, "a file was opened");
        CHECK(cputime_process_stat_read(&process) == -EMFILE, "a file was opened");
        CHECK(memcmp(&process, &untouched, sizeof(process)) == 0, "a failure left something");
        CHECK(errno == 4095, "errno is %d", errno);
}

/* --- from the page --- */

static void await_thread_page(void) {
        unsigned int i = 0;

        while (thread_stat(0).backend != CPUTIME_BACKEND_PAGE) {
                struct cputime_stats stats;

                if (++i < LOOKS_MAX) {
                        be_switched(0);
                        continue;
                }
                cputime_stats_read(&stats);
                CHECK(false, "no page: error %d at %s", stats.refusal_error, stats.refusal_step);
        }
}

static void page_thread_counts(void) {
        await_thread_page();
        expect_own_counts(CPUTIME_BACKEND_PAGE);
        expect_others_counts(CPUTIME_BACKEND_PAGE);
        expect_refusals();
        expect_signal_safe();
}

/* Of a process with one thread, some have ended before, and some do later. */
static void page_process_counts(void) {
        uint64_t wait_ns, voluntary, involuntary, waited_ns = 0;
        struct cputime_process_stat stat, last = {};
        struct thread threads[3];
        unsigned int missed = 0;
        struct rusage before, after;

        for (unsigned int i = 0; i < 3; i++)
                thread_start(&threads[i], BLOCK);
        for (unsigned int i = 0; i < 3; i++)
                thread_end(&threads[i]);
        /* What those have that the page will not know of. */
        after = usage();
        voluntary = (uint64_t)after.ru_nvcsw - read_status(self(), "voluntary_ctxt_switches");
        involuntary = (uint64_t)after.ru_nivcsw;
        involuntary -= read_status(self(), "nonvoluntary_ctxt_switches");
        after = usage();
        await_thread_page();

        for (unsigned int i = 0; i < ROUNDS; i++) {
                before = usage();
                wait_ns = read_wait(self());
                stat = process_stat();
                after = usage();
                missed += stat.backend != CPUTIME_BACKEND_PAGE ||
                          stat.voluntary_switches + voluntary < (uint64_t)before.ru_nvcsw ||
                          stat.voluntary_switches + voluntary > (uint64_t)after.ru_nvcsw ||
                          stat.involuntary_switches + involuntary < (uint64_t)before.ru_nivcsw ||
                          stat.involuntary_switches + involuntary > (uint64_t)after.ru_nivcsw ||
                          stat.wait_ns < wait_ns || stat.wait_ns > read_wait(self()) ||
                          stat.nr_threads != 1 || stat.nr_running != 1;
                be_switched(i);
        }
        fprintf(stderr, "  %u of %u stats were not within the kernel's of just before and after\n", missed,
                ROUNDS);
        CHECK(missed <= MISSED_MAX, "%u missed", missed);

        /*
         * Threads born since count, and what they had stays. The kernel adds a thread's counts up before
         * it has quite ended: each has its last switch more here, and may have a few.
         */
        for (unsigned int i = 0; i < 3; i++) {
                thread_start(&threads[i], BLOCK);
                waited_ns += blocked_counts(threads[i].tid).wait_ns;
        }
        last = process_stat();
        CHECK(last.nr_threads == 4 && last.wait_ns >= read_wait(self()) / 2 + waited_ns,
              "%u threads, %llu ns of waiting", last.nr_threads, (unsigned long long)last.wait_ns);
        for (unsigned int i = 0; i < 3; i++)
                thread_end(&threads[i]);
        while (process_stat().nr_threads > 1)
                be_switched(0);
        before = usage();
        stat = process_stat();
        after = usage();
        CHECK(stat.wait_ns >= last.wait_ns, "waiting fell from %llu to %llu ns",
              (unsigned long long)last.wait_ns, (unsigned long long)stat.wait_ns);
        CHECK(stat.voluntary_switches + stat.involuntary_switches + voluntary + involuntary >=
                      (uint64_t)(before.ru_nvcsw + before.ru_nivcsw) &&
              stat.voluntary_switches + stat.involuntary_switches + voluntary + involuntary <=
                      (uint64_t)(after.ru_nvcsw + after.ru_nivcsw) + 3 * 4, "%llu and %llu switches, the kernel "
              "%ld and %ld", (unsigned long long)(stat.voluntary_switches + voluntary),
              (unsigned long long)(stat.involuntary_switches + involuntary), after.ru_nvcsw,
              after.ru_nivcsw);
}

/* The thread onto the Nth CPU that this process may use. */
static bool pin(pid_t tid, unsigned int n) {
        static cpu_set_t allowed;
        cpu_set_t set;

        if (CPU_COUNT(&allowed) == 0)
                (void)sched_getaffinity(0, sizeof(allowed), &allowed);
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
                if (!CPU_ISSET(cpu, &allowed) || n-- > 0)
                        continue;
                CPU_ZERO(&set);
                CPU_SET(cpu, &set);
                return sched_setaffinity(tid, sizeof(set), &set) == 0;
        }
        return false;
}

static void page_sees_who_runs(void) {
        struct cputime_process_stat stat = {};
        struct thread spinning;
        bool two = pin(getpid(), 0), seen = false;

        await_thread_page();
        thread_start(&spinning, SPIN);
        two = two && pin(spinning.tid, 1);
        for (unsigned int i = 0; i < LOOKS_MAX && !seen; i++) {
                stat = process_stat();
                CHECK(stat.nr_threads == 2 && stat.nr_running <= 2, "%u threads, %u of them running",
                      stat.nr_threads, stat.nr_running);
                seen = stat.nr_running == (two ? 2 : 1);
                be_switched(0);
        }
        CHECK(seen, "%u running", stat.nr_running);
        thread_end(&spinning);
}

static void page_one_clock(void) {
        await_thread_page();
        expect_one_clock();
}

/* The thread's stat is what finds its place on the page; the process's has to do without. */
static void page_for_the_process_alone(void) {
        unsigned int n_page = 0;

        for (unsigned int i = 0; i < LOOKS_MAX; i++) {
                n_page += process_stat().backend == CPUTIME_BACKEND_PAGE;
                if (n_page == 0)
                        be_switched(0);
        }
        CHECK(n_page > LOOKS_MAX / 2 && process_stat().backend == CPUTIME_BACKEND_PAGE,
              "%u of %u stats were from the page", n_page, LOOKS_MAX);
}

static void page_needs_no_system_call(void) {
        uint64_t calls = 0, other_ns = 0;
        const unsigned int n = 200000;
        struct thread blocked;

        thread_start(&blocked, BLOCK);
        (void)blocked_counts(blocked.tid);
        await_thread_page();
        if (!sandbox_count())
                SKIP("system calls cannot be counted here: no seccomp filter with signals");
        for (unsigned int i = 0; i < SANDBOX_NUMBERS; i++)
                calls -= atomic_load(&sandbox_calls[i]);
        for (unsigned int i = 0; i < n; i++) {
                (void)thread_stat(0);
                (void)process_stat();
                other_ns += thread_stat(blocked.tid).oncpu_ns;
        }
        for (unsigned int i = 0; i < SANDBOX_NUMBERS; i++)
                calls += atomic_load(&sandbox_calls[i]);
        fprintf(stderr, "  %llu system calls in 3 * %u stats\n", (unsigned long long)calls, n);
        for (unsigned int i = 0; i < SANDBOX_NUMBERS; i++)
                if (atomic_load(&sandbox_calls[i]) > 0)
                        fprintf(stderr, "  number %u: %llu\n", i,
                                (unsigned long long)atomic_load(&sandbox_calls[i]));
        /* A page that is missed or late for once costs up to 30; a call for each would be 600,000. */
        CHECK(calls <= 3000 && other_ns > 0, "%llu system calls", (unsigned long long)calls);
        thread_end(&blocked);
}

/* --- */

static bool run(const char *name, void (*test)(void)) {
        int status;
        pid_t pid;

        (void)fflush(NULL);
        pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) {
                (void)alarm(120);
                test();
                exit(0);
        }
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
        if (WIFEXITED(status) && WEXITSTATUS(status) == CHECK_EXIT_SKIP)
                return true;
        fprintf(stderr, "%s %s (wait status %#x)\n", status == 0 ? "ok" : "not ok", name, (unsigned int)status);
        return status == 0;
}

#define RUN(test) (argc > 1 && strcmp(argv[1], #test) != 0 ? true : run(#test, test))

/* With an argument: only the case of that name. */
int main(int argc, char *argv[]) {
        struct cputime_probe probe = {};
        bool passed = true;

        passed &= RUN(kernel_thread_counts);
        passed &= RUN(kernel_process_counts);
        passed &= RUN(kernel_one_clock);
        passed &= RUN(kernel_one_fast_clock);
        passed &= RUN(kernel_without_descriptors);
        if (!passed)
                return 1;

        if (!getenv("CPUTIME_SOCKET"))
                SKIP("no page server in CPUTIME_SOCKET; the kernel's part passed");
        CHECK(cputime_backend_probe(CPUTIME_BACKEND_PAGE, &probe) == 0 && probe.error == 0,
              "no page: %s: %s; %s", probe.step, probe.meaning, probe.remedy);
        passed &= RUN(page_thread_counts);
        passed &= RUN(page_process_counts);
        passed &= RUN(page_sees_who_runs);
        passed &= RUN(page_one_clock);
        passed &= RUN(page_for_the_process_alone);
        passed &= RUN(page_needs_no_system_call);
        return !passed;
}
