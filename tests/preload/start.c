/* SPDX-License-Identifier: MIT */
/* What the environment asks for, and the report at exit. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload-test.h"

/* Runs PROMISE of this program with NAME=VALUE added; what it says on stderr lands in TEXT. */
static int run_with(const char *name, const char *value, const char *promise, char *text,
                    size_t size) {
        int fds[2], status;
        size_t n = 0;
        ssize_t r;
        pid_t child;

        CHECK(pipe(fds) == 0, "%s", strerror(errno));
        child = fork();
        if (child == 0) {
                dup2(fds[1], STDERR_FILENO);
                close(fds[0]);
                close(fds[1]);
                setenv(name, value, 1);
                execl("/proc/self/exe", "test-preload", promise, NULL);
                _exit(9);
        }
        close(fds[1]);
        while (n + 1 < size && (r = read(fds[0], text + n, size - 1 - n)) > 0)
                n += (size_t)r;
        text[n] = 0;
        close(fds[0]);
        CHECK(waitpid(child, &status, 0) == child, "%s", strerror(errno));
        return status;
}

static void child_reads(void) {
        struct tms tms;

        warm_up();
        for (int i = 0; i < 1000; i++)
                (void)times(&tms);
        check_own_clocks("a child with another environment");
}

/* A file of the program's own, where descriptor 2 then is. */
#define DATA_FILE 9

static void child_loses_stderr(void) {
        warm_up();
        CHECK(dup2(DATA_FILE, STDERR_FILENO) == STDERR_FILENO, "%s", strerror(errno));
}

static void child_exits_at_once(void) {
        warm_up();
        _exit(0);
}

static void child_reads_nothing(void) {
}

static void report_tells_what_served(void) {
        char text[4096];
        unsigned long long page, ring, header, syscalls, remembered, asked;
        int pid, n;

        if (strcmp(under_test, "libc") == 0)
                SKIP("libc does not report");
        CHECK(run_with("CPUTIME_VERBOSE", "1", "child_reads", text, sizeof(text)) == 0,
              "the child failed: %s", text);
        n = sscanf(text, "cputime: process %d: reads: %llu page, %llu ring, %llu header, "
                   "%llu syscall", &pid, &page, &ring, &header, &syscalls);
        CHECK(n == 5, "the report: %s", text);
        CHECK(page + ring + header + syscalls >= 2000, "%llu reads of 2000 and more",
              page + ring + header + syscalls);
        CHECK(strstr(text, "anchors,") && strstr(text, "enrolments,") && strstr(text, "retreats,") &&
              strstr(text, "refusals"), "the report: %s", text);
        CHECK(strstr(text, "times():") && sscanf(strstr(text, "times():"),
                                                "times(): %llu remembered, %llu asked",
                                                &remembered, &asked) == 2, "the report: %s", text);
        CHECK(remembered + asked == 1000 && asked >= 1 && asked < 500,
              "times(): %llu remembered, %llu asked", remembered, asked);
        CHECK(strchr(text, '\n') && text[strlen(text) - 1] == '\n', "no line end");
}

static void report_only_when_asked(void) {
        char text[4096];
        int fd;

        CHECK(run_with("CPUTIME_VERBOSE", "0", "child_reads", text, sizeof(text)) == 0 && !*text,
              "CPUTIME_VERBOSE=0: %s", text);
        CHECK(run_with("CPUTIME_VERBOSE", "", "child_reads", text, sizeof(text)) == 0 && !*text,
              "CPUTIME_VERBOSE=: %s", text);
        CHECK(run_with("CPUTIME_VERBOSE", "1", "child_exits_at_once", text, sizeof(text)) == 0 &&
              !*text, "_exit: %s", text);

        CHECK(run_with("CPUTIME_VERBOSE", "1", "child_reads_nothing", text, sizeof(text)) == 0 &&
              !*text, "nothing was read: %s", text);

        fd = memfd_create("data", 0);
        CHECK(fd >= 0 && dup2(fd, DATA_FILE) == DATA_FILE, "%s", strerror(errno));
        CHECK(run_with("CPUTIME_VERBOSE", "1", "child_loses_stderr", text, sizeof(text)) == 0 &&
              !*text, "descriptor 2 is another file now: %s", text);
        CHECK(lseek(DATA_FILE, 0, SEEK_END) == 0, "the report went into the program's own file");
}

static void unknown_backend_costs_one_line(void) {
        const char *line = "cputime: CPUTIME_BACKEND=nonsense is no backend (auto, syscall, ring, "
                           "header, page): going on with auto\n";
        char text[4096], long_name[3000];

        if (strcmp(under_test, "libc") == 0)
                SKIP("libc knows no backends");
        CHECK(run_with("CPUTIME_BACKEND", "nonsense", "child_reads", text, sizeof(text)) == 0,
              "the program failed: %s", text);
        CHECK(strcmp(text, line) == 0, "it said: %s", text);
        CHECK(run_with("CPUTIME_BACKEND", "", "child_reads", text, sizeof(text)) == 0 && !*text,
              "an empty name: %s", text);

        memset(long_name, 'x', sizeof(long_name) - 1);
        long_name[sizeof(long_name) - 1] = 0;
        CHECK(run_with("CPUTIME_BACKEND", long_name, "child_reads", text, sizeof(text)) == 0 &&
              strlen(text) < 300 && strstr(text, "going on"), "a long name: %s", text);
}

/* The backend that was asked for is the one that serves, where the kernel lets it. */
static void forced_backend_serves(void) {
        char text[4096];
        unsigned long long n[3], refusals = 0;
        static const char *const names[] = { "ring", "header", "syscall" };

        if (strcmp(under_test, "libc") == 0)
                SKIP("libc does not report");
        setenv("CPUTIME_VERBOSE", "1", 1);
        for (int i = 0; i < 3; i++) {
                CHECK(run_with("CPUTIME_BACKEND", names[i], "child_reads", text,
                               sizeof(text)) == 0, "the child failed: %s", text);
                CHECK(sscanf(text, "cputime: process %*d: reads: %*u page, %llu ring, %llu header, "
                             "%llu syscall", &n[0], &n[1], &n[2]) == 3, "the report: %s", text);
                CHECK(strstr(text, "retreats, "), "the report: %s", text);
                sscanf(strstr(text, "retreats, "), "retreats, %llu", &refusals);
                CHECK(n[i] >= 900 || refusals > 0, "%s was not refused and served %llu reads",
                      names[i], n[i]);
                for (int k = 0; k < 2; k++)
                        CHECK(k == i || n[k] == 0, "%s was asked for, %s served %llu reads",
                              names[i], names[k], n[k]);
        }
}

const struct promise promises_start[] = {
        { "report_tells_what_served", report_tells_what_served },
        { "report_only_when_asked", report_only_when_asked },
        { "unknown_backend_costs_one_line", unknown_backend_costs_one_line },
        { "forced_backend_serves", forced_backend_serves },
        /* Run by the above. */
        { "child_reads", child_reads },
        { "child_loses_stderr", child_loses_stderr },
        { "child_exits_at_once", child_exits_at_once },
        { "child_reads_nothing", child_reads_nothing },
        {},
};
