/* SPDX-License-Identifier: MIT */
#ifndef CT_PRELOAD_TEST_H
#define CT_PRELOAD_TEST_H
/*
 * Tests of the drop-in: an ordinary program that calls libc by its usual names, run under
 * LD_PRELOAD with each backend, and once on plain libc, which shows that the tests ask for nothing
 * that the kernel does not give. The kernel's answer is always at hand, by the raw system call.
 *
 * test-preload PROMISE runs one promise. Sanitizers cannot be preloaded into a program that was
 * built without them: there the same tests run with the drop-in's sources linked in.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "check.h"

#define NS_PER_MS UINT64_C(1000000)

struct promise {
        const char *name;
        void (*run)(void);
};

/* One table a file, ended by a NULL name. */
extern const struct promise promises_clocks[], promises_children[], promises_refused[],
        promises_signals[], promises_threads[], promises_times[], promises_start[];

/* What is under test: "preload", "linked" or "libc". */
extern const char *under_test;

static inline clockid_t dynamic_id(pid_t id, unsigned int bits) {
        return (clockid_t)(~(uint32_t)id << 3 | bits);
}

#define BITS_PROCESS 2          /* CPUCLOCK_SCHED */
#define BITS_THREAD 6           /* the same, per thread */

/* The kernel's answer; the test ends if there is none. */
uint64_t kernel_ns(clockid_t clockid);

/* clock_gettime() by its name; the test ends if it fails. */
uint64_t read_ns(clockid_t clockid);

/* Uses NS of CPU time in the calling thread, as the kernel counts it. */
void burn(uint64_t ns);

/* Reads so often that every backend has enrolled the thread and the process. */
void warm_up(void);

/* How far CLOCKID, read by name, is out of [kernel before, kernel after], in ns. */
uint64_t distance_from_kernel(clockid_t clockid);

/*
 * Whether CLOCKID agrees with the kernel within the published bound: 200 readings, of which
 * two may be off, because the machine under a virtual machine may pause.
 */
void check_agrees(clockid_t clockid, const char *what);

/* The same for both clocks of the caller and all their names. */
void check_own_clocks(const char *where);

/* Waits for child PID, which must exit with 0. */
void reap(pid_t pid, const char *what);

/* Lines of /proc/self/maps; open descriptors. */
unsigned int count_maps(void);
unsigned int count_fds(void);

/* Lets system call NR fail with ERROR from now on, in this process and its children. */
void deny_syscall(long nr, int error);

#endif /* CT_PRELOAD_TEST_H */
