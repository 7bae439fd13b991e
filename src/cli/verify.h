/* SPDX-License-Identifier: MIT */
#ifndef CT_VERIFY_H
#define CT_VERIFY_H
/*
 * What the three parts of cputime verify share.
 *
 *   cmd-verify.c      the parent: options, one forked child per phase, progress, table, JSON
 *   verify-phases.c   the child: threads that read, compare with the kernel, and record
 *   verify-judge.c    arithmetic on a finished record: distribution, drift, verdict
 *
 * A phase's record is one shared mapping, made by the parent before it forks, so that it survives
 * whatever happens to the child, at the same address in both:
 *
 *   +------------+---------+-----+-----------+------------------------------------------------+
 *   | verify_run | slot[0] | ... | slot[n-1] | samples: slot 0 thread, process, slot 1 thread, ..|
 *   +------------+---------+-----+-----------+------------------------------------------------+
 *
 * A slot belongs to one thread at a time and only that thread writes it, apart from the members
 * that are atomic. Where threads come and go, the next owner is created after the last was joined.
 * The parent reads none but the atomic members before the child has ended.
 */
#include <jansson.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cputime/clock.h"

enum verify_clock {
        VERIFY_THREAD,
        VERIFY_PROCESS,
        VERIFY_CLOCKS,
};

/* The published bound as a share: |ours - kernel| <= CPUTIME_ERROR_NS + kernel / 1000, ... */
#define VERIFY_VALUE_DIVISOR 1000
/* ... for all but one sample in so many ... */
#define VERIFY_SAMPLES_PER_OUTLIER 1000
/* ... and a drift that would stay below CPUTIME_ERROR_NS over so many switches. */
#define VERIFY_DRIFT_SWITCHES 100000
/*
 * Over fewer switches than this, a slope says more about the phase's noise than about drift: with so
 * many, the least that is drift has moved the error by 100 us, what a busy machine does by itself.
 */
#define VERIFY_DRIFT_SWITCHES_MIN 10000

/* A gap in a thread's view of the wall clock, without a context switch, that counts as a pause. */
#define VERIFY_PAUSE_MIN_NS 200000
/* How near to an outlier a pause must have been to explain it. */
#define VERIFY_PAUSE_NEAR_NS 20000000

/* Samples of one clock in one phase, all threads together: 1,000 make the 99.9 % worth quoting. */
#define VERIFY_SAMPLES_MAX (1U << 18)
#define VERIFY_PAUSES_MAX 4096

/* One read between two readings of the kernel. */
struct verify_sample {
        uint64_t wall_ns;       /* CLOCK_MONOTONIC_RAW after it */
        int64_t error_ns;       /* ours - kernel: > 0 ahead, < 0 behind, 0 between the two */
        uint64_t value_ns;      /* the kernel's second reading */
        uint32_t bracket_ns;    /* CPU time between the two: how finely this sample can tell */
        uint32_t switches;      /* of the thread, or process, since it began */
        uint32_t kernel_lag_ns; /* what a process clock served by the kernel lacked; no error */
        enum cputime_backend backend;   /* that served a process clock; AUTO: not known */
};

struct verify_pause {
        uint64_t end_ns;        /* CLOCK_MONOTONIC_RAW */
        uint64_t length_ns;
};

/* What one slot's threads found about one clock. */
struct verify_tally {
        uint64_t reads;
        uint64_t backward_steps;
        uint64_t largest_backward_ns;
        uint64_t kernel_backward_steps; /* of the reference itself; such samples are not used */
        struct verify_sample *samples;
        uint32_t n_samples;
};

struct verify_slot {
        alignas(64)
        _Atomic(pid_t) tid;             /* 0: nobody that could be running */
        _Atomic uint64_t seen_ns;       /* the greatest value of this thread's clock given so far */
        _Atomic bool ended;             /* to be joined; for slots whose threads come and go */
        bool fleeting;                  /* its threads come and go: no drift can be told from it */
        struct verify_tally tally[VERIFY_CLOCKS];
        uint64_t cover_checks;          /* process clock against threads' clocks read before */
        uint64_t cover_violations;
        uint64_t largest_uncovered_ns;
};

struct verify_run {
        /* Set by the parent. */
        uint64_t duration_ns;
        uint64_t start_ns;              /* CLOCK_MONOTONIC_RAW; the child sets it when it begins */
        enum cputime_backend backend;
        unsigned int n_cpus;            /* that the phase may use */
        unsigned int n_slots;
        uint32_t samples_max;           /* per slot and clock */
        _Atomic bool stop;              /* end early, keep what there is */
        size_t size;                    /* of the whole mapping */

        _Atomic uint64_t process_seen_ns;       /* as verify_slot.seen_ns, for the process */
        _Atomic uint64_t process_due_ns;        /* when it is next to be sampled */

        _Atomic uint32_t n_pauses;      /* may exceed VERIFY_PAUSES_MAX: the rest is not kept */
        struct verify_pause pauses[VERIFY_PAUSES_MAX];

        /* The child's last words. */
        uint64_t end_ns;
        unsigned int threads_started;
        struct cputime_stats stats;
        int error;                      /* errno of FAILED_STEP, 0 if all went well */
        const char *failed_step;

        struct verify_slot slots[];
};

struct verify_phase {
        const char *name;               /* also in the JSON */
        const char *what;               /* for the progress line */
        unsigned int (*count_slots)(unsigned int n_cpus);
        bool confined;                  /* threads in proportion to CPUs: keep to a few of them */
        int (*run)(struct verify_run *run);
};

#define VERIFY_PHASES 5
extern const struct verify_phase verify_phases[VERIFY_PHASES];

/* How many CPUs PHASE will use here. */
unsigned int verify_phase_cpus(const struct verify_phase *phase);

/* The child's life: runs PHASE until its time is over or run->stop, and fills in *RUN. */
void verify_phase_run(const struct verify_phase *phase, struct verify_run *run);

/* Quantiles of something that is never negative, in ns. */
struct verify_spread {
        uint64_t n;
        uint64_t p50, p90, p99, p999, max;
};

struct verify_drift {
        bool judged;                    /* there were switches enough */
        uint64_t switches;              /* that the samples span, all threads together */
        double slope_ns;                /* per switch */
        double slope_error_ns;          /* its standard error */
        int64_t first_median_ns;        /* of the errors in the first tenth of the switches ... */
        int64_t last_median_ns;         /* ... and in the last */
};

struct verify_outlier {
        struct verify_sample sample;
        uint64_t bound_ns;
        uint64_t pause_ns;              /* the longest pause near it, 0: none was seen */
        int64_t pause_distance_ns;      /* sample - that pause's end */
};

#define VERIFY_OUTLIERS_MAX 1000

struct verify_clock_result {
        uint64_t reads, samples;
        struct verify_spread absolute, ahead, behind, bracket;
        uint64_t histogram[2][64];      /* [0] behind, [1] ahead; bucket b: 2^(b-1) <= |e| < 2^b */
        uint64_t beyond, beyond_explained;
        struct verify_outlier *outliers;        /* the first VERIFY_OUTLIERS_MAX, in time order */
        size_t n_outliers;
        struct verify_drift drift;
        uint64_t backward_steps, largest_backward_ns, kernel_backward_steps;
        uint64_t kernel_served;         /* samples of the process clock that the kernel answered */
        uint64_t largest_kernel_lag_ns;
};

#define VERIFY_FAILURES_MAX 16

struct verify_result {
        const struct verify_phase *phase;
        unsigned int n_cpus, threads;
        uint64_t duration_ns;
        bool interrupted;
        struct verify_clock_result clocks[VERIFY_CLOCKS];
        uint64_t cover_checks, cover_violations, largest_uncovered_ns;
        uint64_t pauses, longest_pause_ns, total_pause_ns;
        uint64_t steal_ms;
        struct cputime_stats stats;
        char *failures[VERIFY_FAILURES_MAX];    /* one sentence each; none: the phase passed */
        size_t n_failures;
};

/*
 * Judges a phase whose child has ended. RESULT has phase, n_cpus, interrupted and steal_ms set;
 * verify_result_done() releases what is added. An interrupted phase may have no samples.
 * Returns 0 or -ENOMEM.
 */
int verify_judge(struct verify_result *result, struct verify_run *run);

/* Adds a sentence to RESULT's failures. */
void verify_fail(struct verify_result *result, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

void verify_result_done(struct verify_result *result);

#endif /* CT_VERIFY_H */
