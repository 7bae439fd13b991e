/* SPDX-License-Identifier: MIT */
/* Dispatch, and what the promises share: see preload-test.h. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cputime/clock.h"
#include "preload-test.h"

const char *under_test;

uint64_t kernel_ns(clockid_t clockid) {
        struct timespec ts;
        long r = syscall(SYS_clock_gettime, clockid, &ts);

        CHECK(r == 0, "the kernel refuses clock %d: %s", clockid, strerror(errno));
        return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

uint64_t read_ns(clockid_t clockid) {
        struct timespec ts;
        int r = clock_gettime(clockid, &ts);

        CHECK(r == 0, "clock %d: %s", clockid, strerror(errno));
        CHECK(ts.tv_nsec >= 0 && ts.tv_nsec < 1000000000, "tv_nsec is %ld", ts.tv_nsec);
        return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

void burn(uint64_t ns) {
        uint64_t end = kernel_ns(CLOCK_THREAD_CPUTIME_ID) + ns;

        while (kernel_ns(CLOCK_THREAD_CPUTIME_ID) < end)
                for (volatile int i = 0; i < 1000; i++)
                        ;
}

void warm_up(void) {
        for (int i = 0; i < 1000; i++) {
                (void)read_ns(CLOCK_THREAD_CPUTIME_ID);
                (void)read_ns(CLOCK_PROCESS_CPUTIME_ID);
        }
}

uint64_t distance_from_kernel(clockid_t clockid) {
        uint64_t before = kernel_ns(clockid), ours = read_ns(clockid), after = kernel_ns(clockid);

        return ours < before ? before - ours : ours > after ? ours - after : 0;
}

void check_agrees(clockid_t clockid, const char *what) {
        unsigned int n_off = 0;
        uint64_t worst = 0;

        for (int i = 0; i < 200; i++) {
                uint64_t bound = CPUTIME_ERROR_NS + kernel_ns(clockid) / 1000;
                uint64_t distance = distance_from_kernel(clockid);

                n_off += distance > bound;
                worst = distance > worst ? distance : worst;
        }
        CHECK(n_off <= 2, "%s: %u of 200 readings are off the kernel's, by up to %llu ns", what,
              n_off, (unsigned long long)worst);
}

void check_own_clocks(const char *where) {
        static const struct {
                const char *what;
                bool of_pid, of_tid;
                clockid_t clockid;
                unsigned int bits;
        } clocks[] = {
                { "CLOCK_THREAD_CPUTIME_ID", false, false, CLOCK_THREAD_CPUTIME_ID, 0 },
                { "CLOCK_PROCESS_CPUTIME_ID", false, false, CLOCK_PROCESS_CPUTIME_ID, 0 },
                { "thread 0", false, false, 0, BITS_THREAD },
                { "process 0", false, false, 0, BITS_PROCESS },
                { "own pid", true, false, 0, BITS_PROCESS },
                { "own tid", false, true, 0, BITS_THREAD },
                { "own tid as a process", false, true, 0, BITS_PROCESS },
        };
        char what[128];

        for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
                pid_t id = clocks[i].of_pid   ? (pid_t)syscall(SYS_getpid)
                           : clocks[i].of_tid ? (pid_t)syscall(SYS_gettid)
                                              : 0;

                snprintf(what, sizeof(what), "%s, %s", where, clocks[i].what);
                check_agrees(clocks[i].bits ? dynamic_id(id, clocks[i].bits) : clocks[i].clockid,
                             what);
        }
}

void reap(pid_t pid, const char *what) {
        int status;
        pid_t r;

        CHECK(pid > 0, "%s: no child: %s", what, strerror(errno));
        do
                r = waitpid(pid, &status, 0);
        while (r < 0 && errno == EINTR);
        CHECK(r == pid, "%s: waitpid: %s", what, strerror(errno));
        CHECK(status == 0, "%s: the child ended with status 0x%x", what, status);
}

unsigned int count_maps(void) {
        FILE *f = fopen("/proc/self/maps", "re");
        unsigned int n = 0;
        int c;

        CHECK(f, "/proc/self/maps: %s", strerror(errno));
        while ((c = getc(f)) != EOF)
                n += c == '\n';
        fclose(f);
        return n;
}

unsigned int count_fds(void) {
        DIR *dir = opendir("/proc/self/fd");
        unsigned int n = 0;

        CHECK(dir, "/proc/self/fd: %s", strerror(errno));
        while (readdir(dir))
                n++;
        closedir(dir);
        return n;
}

void deny_syscall(long nr, int error) {
        struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)nr, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "%s", strerror(errno));
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
                SKIP("seccomp filters: %s", strerror(errno));
}

/* A test of the drop-in that runs without it would pass for the wrong reason. */
static void check_who_serves(void) {
        void *symbol = dlsym(RTLD_DEFAULT, "clock_gettime");
        Dl_info info;

        under_test = getenv("CT_UNDER_TEST");
        if (!under_test)
                under_test = "libc";
        if (strcmp(under_test, "linked") == 0)
                return;
        CHECK(symbol && dladdr(symbol, &info), "who defines clock_gettime?");
        CHECK(!strstr(info.dli_fname, "cputime-preload") == (strcmp(under_test, "libc") == 0),
              "clock_gettime is from %s while %s is to be tested", info.dli_fname, under_test);
}

int main(int argc, char *argv[]) {
        static const struct promise *const tables[] = {
                promises_clocks, promises_children, promises_refused, promises_signals,
                promises_threads, promises_times, promises_start,
        };

        if (argc < 2) {
                fputs("usage: test-preload PROMISE\n", stderr);
                return 2;
        }
        check_who_serves();
        for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
                for (const struct promise *p = tables[i]; p->name; p++)
                        if (strcmp(p->name, argv[1]) == 0) {
                                p->run();
                                return 0;
                        }
        fprintf(stderr, "test-preload: there is no promise '%s'\n", argv[1]);
        return 2;
}
