/* SPDX-License-Identifier: MIT */
/*
 * contract --reader NAME [TEST...]: runs the promises' tests over one reader, TAP on stdout.
 * contract --reader liars: runs each lying shim against the test that must catch it; here a test
 * that passes is the failure, so that the suite cannot rot into one that never fails.
 *
 * Exit: 0 all kept, 1 some broken, 77 this machine refuses the reader (the line says what is
 * missing), 2 bad usage.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "contract.h"
#include "sandbox.h"

/* A test that hangs is a failure; this is far beyond what the slowest sanitizer needs. */
#define TEST_SECONDS 240

static const struct test {
        const char *name;
        void (*run)(void);
} tests[] = {
#define TEST(name) { #name, name }
        TEST(thread_clock_never_goes_backwards),
        TEST(process_clock_never_goes_backwards),
        TEST(process_clock_covers_its_threads),
        TEST(error_is_bounded_and_does_not_grow),
        TEST(reading_changes_nothing),
        TEST(sleep_until_is_not_early),
        TEST(child_starts_at_zero),
        TEST(no_fast_path_is_no_failure),
        TEST(idle_costs_nothing),
        TEST(user_plus_system_is_runtime),
};
#define N_TESTS (sizeof(tests) / sizeof(tests[0]))

const struct reader *reader;

/* --- what tests use -------------------------------------------------------------------------- */

static _Atomic unsigned n_broken;
static cpu_set_t all_cpus;

__attribute__((format(printf, 2, 0)))
static void say(const char *prefix, const char *format, va_list args) {
        char line[512];
        int n = snprintf(line, sizeof(line), "# %s", prefix);

        n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
        if (n > (int)sizeof(line) - 2)
                n = (int)sizeof(line) - 2;
        line[n++] = '\n';
        /* By the raw call: a test may be counting, or refusing, system calls. */
        (void)allowed_syscall(SYS_write, STDOUT_FILENO, (long)line, n, 0, 0);
}

void broken(const char *format, ...) {
        int saved_errno = errno;
        va_list args;

        if (atomic_fetch_add(&n_broken, 1) < 10) {
                va_start(args, format);
                say("BROKEN: ", format, args);
                va_end(args);
        }
        errno = saved_errno;
}

bool is_broken(void) {
        return atomic_load(&n_broken) > 0;
}

void note(const char *format, ...) {
        va_list args;

        va_start(args, format);
        say("", format, args);
        va_end(args);
}

void skip(const char *format, ...) {
        va_list args;

        va_start(args, format);
        say("SKIP ", format, args);
        va_end(args);
        _exit(EXIT_SKIP);
}

uint64_t raw_clock_ns(clockid_t clockid) {
        struct timespec ts = {};

        if (allowed_syscall(SYS_clock_gettime, clockid, (long)&ts, 0, 0, 0) < 0)
                return UINT64_MAX;
        return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

uint64_t raw_thread_ns(void) {
        return raw_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t raw_process_ns(void) {
        return raw_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

uint64_t raw_thread_ns_of(pid_t tid) {
        return raw_clock_ns((clockid_t)(~(unsigned)tid << 3 | 6));      /* CPUCLOCK_PERTHREAD */
}

uint64_t raw_wall_ns(void) {
        return raw_clock_ns(CLOCK_MONOTONIC);
}

uint64_t reference_process_ns(const pid_t *tids, unsigned n_tids) {
        for (unsigned i = 0; i < n_tids; i++)
                (void)raw_thread_ns_of(tids[i]);
        /*
         * The caller too: while a process CPU timer is armed the kernel keeps P in a running sum
         * that nobody's read brings up to date, not even the caller's own.
         */
        (void)raw_thread_ns();
        return raw_process_ns();
}

uint64_t tick_ns(void) {
        struct timespec ts = {};

        (void)allowed_syscall(SYS_clock_getres, CLOCK_MONOTONIC_COARSE, (long)&ts, 0, 0, 0);
        return (uint64_t)ts.tv_nsec;
}

unsigned cpus(void) {
        return (unsigned)CPU_COUNT(&all_cpus);
}

void pin(unsigned cpu_index) {
        cpu_set_t one;
        int cpu = -1;

        for (unsigned left = cpu_index % cpus() + 1; left; left--)
                for (cpu++; !CPU_ISSET(cpu, &all_cpus); cpu++)
                        ;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof(one), &one);
}

void unpin(void) {
        (void)sched_setaffinity(0, sizeof(all_cpus), &all_cpus);
}

bool start_thread(pthread_t *ret_thread, void *(*function)(void *), void *argument) {
        int r = pthread_create(ret_thread, NULL, function, argument);

        if (r)
                broken("the test could not start a thread: %s", strerror(r));
        return r == 0;
}

struct peer peer_self(void) {
        struct peer peer = { .tid = (pid_t)syscall(SYS_gettid) };

        if (pthread_getcpuclockid(pthread_self(), &peer.clockid) != 0)
                broken("pthread_getcpuclockid of the calling thread failed");
        return peer;
}

void burn(uint64_t delta_ns) {
        uint64_t end_ns = raw_thread_ns() + delta_ns;

        do {
                for (volatile unsigned i = 0; i < 2000; i++)
                        ;
        } while (raw_thread_ns() < end_ns);
}

void spin(uint64_t delta_ns) {
        struct timespec ts;
        uint64_t now_ns, end_ns = 0;

        do {
                /* The vDSO's, which the drop-in passes through: no system call. */
                (void)clock_gettime(CLOCK_MONOTONIC, &ts);
                now_ns = (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
                if (!end_ns)
                        end_ns = now_ns + delta_ns;
        } while (now_ns < end_ns);
}

int in_child(const char *what, void (*function)(const void *), const void *argument) {
        int status;
        pid_t pid;

        pid = fork();
        if (pid < 0) {
                broken("%s: the test could not fork: %s", what, strerror(errno));
                return 0;
        }
        if (pid == 0) {
                atomic_store(&n_broken, 0);
                (void)prctl(PR_SET_PDEATHSIG, SIGKILL);         /* none outlives a hung test */
                function(argument);
                (void)allowed_syscall(SYS_exit_group, is_broken(), 0, 0, 0, 0);
                _exit(is_broken());
        }
        if (waitpid(pid, &status, 0) != pid)
                broken("%s: the test could not wait: %s", what, strerror(errno));
        else if (WIFSIGNALED(status))
                broken("%s: killed by signal %d (%s)", what, WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
        else if (WEXITSTATUS(status) == EXIT_SKIP)
                return EXIT_SKIP;
        else if (WEXITSTATUS(status) != 0)
                broken("%s: see above", what);
        return 0;
}

void skip_child(const char *why) {
        note("not tried: %s", why);
        _exit(EXIT_SKIP);
}

static uint64_t bracket_error(uint64_t low_ns, uint64_t ours_ns, uint64_t high_ns) {
        return ours_ns < low_ns ? low_ns - ours_ns : ours_ns > high_ns ? ours_ns - high_ns : 0;
}

static void tally_add(struct tally *tally, uint64_t error_ns, uint64_t allowed_ns) {
        tally->samples++;
        if (error_ns > allowed_ns)
                tally->beyond++;
        if (error_ns > tally->worst_ns)
                tally->worst_ns = error_ns;
}

uint64_t sample_thread(struct tally *tally) {
        uint64_t k1, ours, k2, error_ns;

        k1 = raw_thread_ns();
        ours = reader->thread_ns();
        k2 = raw_thread_ns();
        if (ours < tally->last_thread_ns)
                broken("the thread clock stepped back %llu ns, from %llu",
                       (unsigned long long)(tally->last_thread_ns - ours),
                       (unsigned long long)tally->last_thread_ns);
        tally->last_thread_ns = ours;
        error_ns = bracket_error(k1, ours, k2);
        tally_add(tally, error_ns, bound_ns(k2));
        return error_ns;
}

/*
 * K1 cannot be read before ours here: reading it would bring the siblings' accounts up to date
 * and so hide that ours is not. The lower bracket is K2 less all that the CPUs can have added
 * meanwhile; a pause in between only makes it more lenient.
 *
 * N_LAGGING is the number of threads whose account the kernel itself does not bring up to date; it
 * is granted, a tick each, to readers that the kernel serves.
 */
uint64_t sample_process(struct tally *tally, const pid_t *others, unsigned n_others,
                        unsigned n_lagging) {
        uint64_t w0, ours, k2, elapsed_ns, low_ns, error_ns, allowed_ns;
        unsigned n_running = n_others + 1 < cpus() ? n_others + 1 : cpus();
        bool served_fast = reader->library && reader->backend == CPUTIME_BACKEND_RING;
        bool varies = reader->backend == CPUTIME_BACKEND_AUTO || reader->backend == CPUTIME_BACKEND_PAGE;

        w0 = raw_wall_ns();
        if (reader->library && varies) {
                struct cputime_sample sample;

                cputime_sample_read(&sample);
                ours = sample.process_ns;
                served_fast = sample.process_backend != CPUTIME_BACKEND_SYSCALL;
        } else {
                ours = reader->process_ns();
        }
        k2 = reference_process_ns(others, n_others);
        elapsed_ns = (raw_wall_ns() - w0) * n_running;
        low_ns = k2 > elapsed_ns ? k2 - elapsed_ns : 0;

        if (ours < tally->last_process_ns)
                broken("the process clock stepped back %llu ns, from %llu",
                       (unsigned long long)(tally->last_process_ns - ours),
                       (unsigned long long)tally->last_process_ns);
        tally->last_process_ns = ours;
        error_ns = bracket_error(low_ns, ours, k2);
        allowed_ns = bound_ns(k2);
        if (ours < low_ns && !served_fast)
                allowed_ns += n_lagging * tick_ns();
        tally_add(tally, error_ns, allowed_ns);
        return error_ns;
}

void tally_note(const struct tally *tally, const char *what) {
        note("%s: %llu samples, worst %llu us, %llu beyond the bound", what,
             (unsigned long long)tally->samples, (unsigned long long)(tally->worst_ns / 1000),
             (unsigned long long)tally->beyond);
}

void tally_judge(const struct tally *tally, const char *what) {
        /*
         * A hypervisor that stops the CPU between our read and the kernel's looks like an error
         * of ours: one sample in a thousand, and at least one, is granted to it.
         */
        if (tally->beyond > (tally->samples + 999) / 1000)
                broken("%s: %llu of %llu samples are beyond %u ns + 0.1 %%, the worst %llu ns",
                       what, (unsigned long long)tally->beyond,
                       (unsigned long long)tally->samples, CPUTIME_ERROR_NS,
                       (unsigned long long)tally->worst_ns);
}

/* --- running them ---------------------------------------------------------------------------- */

static const struct test *test_find(const char *name) {
        for (unsigned i = 0; i < N_TESTS; i++)
                if (strcmp(tests[i].name, name) == 0)
                        return &tests[i];
        return NULL;
}

static int run_inside(const struct test *test) {
        if (reader->library) {
                int r = cputime_backend_set(reader->backend);

                if (r < 0) {
                        note("cputime_backend_set(%s) says %s", reader->name, strerror(-r));
                        return 1;
                }
        }
        test->run();
        /*
         * Whatever the test did, a page is there again: it is lost for a second at most, or two. But
         * a library that chooses takes events meanwhile, and stays with them.
         */
        if (reader->backend == CPUTIME_BACKEND_PAGE)
                await_page();
        return is_broken();
}

/* Whether a server gives this machine's processes pages. If not, *RET_STATS says what it was. */
static bool page_is_there(struct cputime_stats *ret_stats) {
        struct timespec nap = { .tv_nsec = 10000000 };

        (void)cputime_backend_set(CPUTIME_BACKEND_PAGE);
        for (unsigned i = 0; i < 1000; i++) {
                struct cputime_sample sample;

                cputime_sample_read(&sample);
                if (sample.thread_backend == CPUTIME_BACKEND_PAGE)
                        return true;
                nanosleep(&nap, NULL);
        }
        cputime_stats_read(ret_stats);
        return false;
}

/* In a child, so that the server has had its first client and its last one before the tests. */
static bool skip_without_page(void) {
        int status = 1;
        pid_t pid;

        fflush(stdout);
        pid = fork();
        if (pid == 0) {
                struct cputime_stats stats;

                if (page_is_there(&stats))
                        _exit(0);
                printf("1..0 # SKIP %s: no page from the server at %s: %s: %s\n", reader->name,
                       getenv("CPUTIME_SOCKET") ? getenv("CPUTIME_SOCKET") : "its usual place",
                       stats.refusal_step, strerror(stats.refusal_error));
                fflush(stdout);
                _exit(EXIT_SKIP);
        }
        return pid > 0 && waitpid(pid, &status, 0) == pid && status != 0;
}

/* Returns the exit status of the test's process, or 128 + the signal that ended it. */
static int run_outside(const struct reader *r, const struct test *test) {
        pid_t pid;
        int status;

        fflush(stdout);
        pid = fork();
        if (pid == 0) {
                /* A machine may have a server: it is not for readers that do not speak of it. */
                if (!r->paged)
                        setenv("CPUTIME_SOCKET", "/nonexistent", 1);
                if (r->preload)
                        setenv("LD_PRELOAD", r->preload, 1);
                if (r->lie)
                        setenv("LIE", r->lie, 1);
                if (r->environment)
                        (void)putenv((char *)(uintptr_t)r->environment);
                alarm(TEST_SECONDS);
                execl("/proc/self/exe", "contract", "--reader", r->name, "--inside", test->name,
                      NULL);
                _exit(127);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
                return 127;
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int run_liars(void) {
        const struct reader *r;
        unsigned n = 0;
        int exit_status = 0, status;

        for (unsigned i = 0; (r = reader_at(i)); i++) {
                if (!r->lie)
                        continue;
                status = run_outside(r, test_find(r->caught_by));
                printf("%sok %u - %s catches %s (%s)\n", status == 1 ? "" : "not ", ++n,
                       r->caught_by, r->name, r->title);
                if (status != 1) {
                        printf("# its process ended with %d; 1, a breach found, was wanted\n", status);
                        exit_status = 1;
                }
        }
        printf("1..%u\n", n);
        return exit_status;
}

static int usage(const char *what, const char *which) {
        fprintf(stderr, "contract: %s%s%s; use: contract --reader ", what, which ? " " : "",
                which ? which : "");
        for (unsigned i = 0; reader_at(i); i++)
                if (!reader_at(i)->lie)
                        fprintf(stderr, "%s|", reader_at(i)->name);
        fprintf(stderr, "liars [TEST...]\n");
        return 2;
}

int main(int argc, char *argv[]) {
        struct cputime_probe probe;
        unsigned n = 0;
        int exit_status = 0;

        (void)sched_getaffinity(0, sizeof(all_cpus), &all_cpus);

        if (argc < 3 || strcmp(argv[1], "--reader") != 0)
                return usage("which reader?", NULL);
        if (strcmp(argv[2], "liars") == 0)
                return argc == 3 ? run_liars() : usage("liars bring their own tests, not", argv[3]);
        reader = reader_find(argv[2]);
        if (!reader)
                return usage("no reader", argv[2]);

        if (argc == 5 && strcmp(argv[3], "--inside") == 0) {
                if (strncmp(argv[4], "child:", 6) == 0)
                        return child_after_exec(argv[4] + 6);
                return test_find(argv[4]) ? run_inside(test_find(argv[4])) : 2;
        }
        for (int i = 3; i < argc; i++)
                if (!test_find(argv[i]))
                        return usage("no test", argv[i]);

        if (reader->paged && skip_without_page())
                return EXIT_SKIP;
        if (reader->backend != CPUTIME_BACKEND_AUTO &&
            cputime_backend_probe(reader->backend, &probe) == 0 && probe.error) {
                printf("1..0 # SKIP %s: %s: %s: %s%s%s\n", reader->name, probe.step,
                       strerror(probe.error), probe.meaning, *probe.remedy ? "; " : "",
                       probe.remedy);
                return EXIT_SKIP;
        }

        printf("# %s\n", reader->title);
        for (unsigned i = 0; i < N_TESTS; i++) {
                bool wanted = argc == 3;
                int status;

                for (int k = 3; k < argc; k++)
                        wanted |= strcmp(argv[k], tests[i].name) == 0;
                if (!wanted)
                        continue;
                status = run_outside(reader, &tests[i]);
                printf("%sok %u - %s%s\n", status == 0 || status == EXIT_SKIP ? "" : "not ", ++n,
                       tests[i].name, status == EXIT_SKIP ? " # SKIP see above" : "");
                if (status > 1 && status != EXIT_SKIP)
                        printf("# its process ended with %d%s\n", status,
                               status == 128 + SIGALRM ? ": it hung" : "");
                if (status != 0 && status != EXIT_SKIP)
                        exit_status = 1;
        }
        printf("1..%u\n", n);
        return exit_status;
}
