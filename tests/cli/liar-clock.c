/* SPDX-License-Identifier: MIT */
/*
 * Built on the kernel's clocks. The honest process clock first reads each thread's clock, which
 * makes the kernel charge the running ones, and asks for the sum after that; so it is right to the
 * nanosecond, if slow. Each lie is added to that, and only that is wrong.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arch/vdso.h"
#include "base/nsec.h"
#include "cputime/clock.h"
#include "liar-clock.h"

#define LAG_NS 2000000
#define UNCOVERED_NS 100000
#define STEP_NS 20000

enum liar liar;

static _Atomic uint64_t n_reads;

static uint64_t kernel_ns(clockid_t clockid) {
        struct timespec ts = {};

        (void)ct_sys_clock_gettime(clockid, &ts);
        return ct_nsec_from_timespec(&ts);
}

static clockid_t thread_clockid(pid_t tid) {
        return (clockid_t)(~(unsigned int)tid << 3 | 6);
}

static uint64_t honest_process_ns(void) {
        DIR *tasks = opendir("/proc/self/task");
        struct dirent *entry;

        if (!tasks)
                abort();
        while ((entry = readdir(tasks)))
                if (entry->d_name[0] != '.')
                        (void)kernel_ns(thread_clockid((pid_t)atoi(entry->d_name)));
        (void)closedir(tasks);
        return kernel_ns(CLOCK_PROCESS_CPUTIME_ID);
}

/* What each thread's own last read gave; entries of ended threads are never used again. */
static struct {
        _Atomic(pid_t) tid;
        _Atomic uint64_t last_ns;
} own_reads[4096];
static _Atomic uint32_t n_own_reads;
static _Thread_local uint32_t own_index = UINT32_MAX;

static void note_own_read(uint64_t ns) {
        if (own_index == UINT32_MAX) {
                own_index = atomic_fetch_add(&n_own_reads, 1);
                if (own_index >= sizeof(own_reads) / sizeof(own_reads[0]))
                        abort();
                atomic_store(&own_reads[own_index].tid, (pid_t)syscall(SYS_gettid));
        }
        atomic_store(&own_reads[own_index].last_ns, ns);
}

static uint64_t unread_by_siblings_ns(void) {
        uint64_t sum = 0;

        for (uint32_t i = 0; i < atomic_load(&n_own_reads); i++) {
                pid_t tid = atomic_load(&own_reads[i].tid);
                uint64_t last_ns = atomic_load(&own_reads[i].last_ns);
                struct timespec ts;

                if (i == own_index || tid == 0 || last_ns == 0)
                        continue;
                if (ct_sys_clock_gettime(thread_clockid(tid), &ts) < 0)
                        atomic_store(&own_reads[i].tid, 0);
                else
                        sum += ct_nsec_from_timespec(&ts) - last_ns;
        }
        return sum;
}

static uint64_t switches(int who) {
        struct rusage usage = {};

        (void)getrusage(who, &usage);
        return (uint64_t)(usage.ru_nvcsw + usage.ru_nivcsw);
}

static uint64_t lie(uint64_t true_ns, int who) {
        switch (liar) {
        case LIAR_LAGS:
                return true_ns > LAG_NS ? true_ns - LAG_NS : 0;
        case LIAR_RUNS_AHEAD:
                return true_ns + LAG_NS + true_ns / 1000;
        case LIAR_DRIFTS:
                return true_ns + 5000 * switches(who);
        case LIAR_DRIFTS_SLOWLY:
                return true_ns + 30 * switches(who);
        case LIAR_CRASHES:
                if (atomic_fetch_add(&n_reads, 1) == 1000)
                        (void)raise(SIGABRT);
                return true_ns;
        default:
                return true_ns;
        }
}

uint64_t cputime_thread_ns(void) {
        static _Thread_local uint64_t last_ns;
        uint64_t ns = lie(kernel_ns(CLOCK_THREAD_CPUTIME_ID), RUSAGE_THREAD);

        if (liar == LIAR_STEPS_BACK && last_ns > STEP_NS &&
            atomic_fetch_add(&n_reads, 1) % 500 == 499)
                return last_ns - STEP_NS;
        last_ns = ns;
        if (liar == LIAR_ADDS_UP_READS)
                note_own_read(ns);
        return ns;
}

uint64_t cputime_process_ns(void) {
        uint64_t unread_ns = liar == LIAR_ADDS_UP_READS ? unread_by_siblings_ns() : 0;
        uint64_t ns = lie(honest_process_ns(), RUSAGE_SELF);

        if (liar == LIAR_ADDS_UP_READS)
                return ns - unread_ns;
        if (liar == LIAR_UNCOVERED)
                return ns > UNCOVERED_NS ? ns - UNCOVERED_NS : 0;
        return ns;
}

int cputime_thread_ns_of(pid_t tid, uint64_t *ret_ns) {
        struct timespec ts;

        if (ct_sys_clock_gettime(thread_clockid(tid), &ts) < 0)
                return -ESRCH;
        *ret_ns = ct_nsec_from_timespec(&ts);
        return 0;
}

/* It claims a fast backend, for which no excuse of the kernel's counts. */
void cputime_sample_read(struct cputime_sample *ret_sample) {
        ret_sample->thread_ns = cputime_thread_ns();
        ret_sample->process_ns = cputime_process_ns();
        ret_sample->thread_backend = ret_sample->process_backend = CPUTIME_BACKEND_RING;
}

int cputime_backend_set(enum cputime_backend backend) {
        return 0;
}

const char *cputime_backend_name(enum cputime_backend backend) {
        static const char *const names[] = { "auto", "syscall", "ring", "header", "page" };

        return names[backend];
}

int cputime_backend_from_name(const char *name, enum cputime_backend *ret_backend) {
        *ret_backend = CPUTIME_BACKEND_AUTO;
        return 0;
}

int cputime_backend_probe(enum cputime_backend backend, struct cputime_probe *ret_probe) {
        return -EINVAL;
}

void cputime_stats_read(struct cputime_stats *ret_stats) {
        memset(ret_stats, 0, sizeof(*ret_stats));
        ret_stats->refusal_step = "";
}
