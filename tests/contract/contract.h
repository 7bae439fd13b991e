/* SPDX-License-Identifier: MIT */
#ifndef CT_CONTRACT_H
#define CT_CONTRACT_H
/*
 * The contract suite: the promises of <cputime/clock.h>, each one test of the same name, written
 * once against a table of readers. A reader is one way for a program to get at its CPU clocks:
 * libcputime with a backend forced, libc under the drop-in, libc alone. The kernel's own clocks
 * are a reader like any other: what they cannot keep, nobody can ask of us, and the test says so
 * at the place (search for "the kernel itself").
 *
 * Every test runs in a process of its own, started by exec, because a backend is chosen once per
 * process and the drop-in is chosen by the loader. Inside, a test calls broken() as often as it
 * likes; the process fails if it did.
 *
 * The reference is always the raw system call, which no drop-in sees. A reading OURS is judged by
 * brackets, K1 before and K2 after: OURS is wrong by max(0, K1 - OURS, OURS - K2), which needs no
 * assumption about how long anything took. For the process clock the kernel is not its own
 * reference: CLOCK_PROCESS_CPUTIME_ID brings only the caller's slice up to date and sums the
 * siblings as they stood at their last tick or switch, up to a tick (4 ms at HZ=250) ago each.
 * Reading a sibling's thread clock does bring it up to date. So the reference for P is: read every
 * live thread's clock, then P, which then holds the ended threads too; see reference_process_ns().
 *
 * Wall time decides how long a test stirs, never whether it passes.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cputime/clock.h"

#define NSEC_PER_USEC UINT64_C(1000)
#define NSEC_PER_MSEC UINT64_C(1000000)
#define NSEC_PER_SEC UINT64_C(1000000000)

#define EXIT_SKIP 77

/*
 * The thread sanitizer holds signals back, SIGSYS as well, turns vfork into fork and cannot follow
 * a raw clone: what is about exactly these is left to the other builds.
 */
#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER true
#endif
#endif
#ifndef THREAD_SANITIZER
#define THREAD_SANITIZER false
#endif

/* A thread, as others name it. CLOCKID is taken by the thread itself, while it surely lives. */
struct peer {
        pid_t tid;
        clockid_t clockid;
};

/*
 * READING is RESOLUTION_NS or less below the clock: clock() truncates to microseconds. What every
 * other name of a clock must satisfy is that it never contradicts the first.
 */
struct reading {
        uint64_t ns;
        uint64_t resolution_ns;
};

struct reader {
        const char *name;
        const char *title;
        const char *preload;            /* the object to preload, NULL for none */
        const char *lie;                /* the shim's LIE, for readers that must be caught */
        const char *caught_by;          /* and the test that must catch it */
        const char *environment;        /* one more NAME=VALUE for the process, NULL for none */
        bool library;                   /* libcputime, linked in, with BACKEND */
        bool paged;                     /* there is a server, and a page must serve it: await_page() */
        enum cputime_backend backend;   /* what it may use: decides what may be asked of it */

        uint64_t (*thread_ns)(void);
        uint64_t (*process_ns)(void);
        bool (*thread_ns_of)(const struct peer *peer, uint64_t *ret_ns);        /* false: gone */
        /* The other names of both clocks; WHICH is any number. */
        struct reading (*thread_alias)(unsigned which);
        struct reading (*process_alias)(unsigned which);
        /* User and system time of the process in clock ticks, of 1 / sysconf(_SC_CLK_TCK) s. */
        void (*times)(uint64_t *ret_user, uint64_t *ret_system);
};

extern const struct reader *reader;

const struct reader *reader_find(const char *name);
const struct reader *reader_at(unsigned i);     /* NULL past the end */

/*
 * Whether this machine lets READER serve the thread clock, the process clock, without a system
 * call. False, too, for readers that never do. Makes probes: call it before enrolling anything.
 */
bool reader_thread_is_fast(void);
bool reader_process_is_fast(void);

/*
 * A process gets its page bit by bit, a tick and a half after joining at the earliest, and the
 * kernel serves meanwhile. For readers that are to be served by it: reads until the page serves the
 * caller; a breach if it does not in a good while. Nothing for other readers.
 */
void await_page(void);

/* Whether the caller was just served by a page, in both clocks. Reads both. */
bool page_serves(void);

/* Mappings of this process that are pages, whether in use or not. */
unsigned pages_mapped(void);

/* Records one breach of the promise. The first ten are printed. Async-signal-safe in practice:
 * one snprintf of integers and one write. */
void broken(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool is_broken(void);
/* A line of figures for the log. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The kernel's answers, never through libc's clock functions; no errno, no switch. */
uint64_t raw_clock_ns(clockid_t clockid);       /* UINT64_MAX: no such clock (any more) */
uint64_t raw_thread_ns(void);
uint64_t raw_process_ns(void);
uint64_t raw_thread_ns_of(pid_t tid);
uint64_t raw_wall_ns(void);

/* All threads of TIDS brought up to date, the caller as well, then P. */
uint64_t reference_process_ns(const pid_t *tids, unsigned n_tids);

/* The kernel's tick: what a running thread's account may lag behind. */
uint64_t tick_ns(void);

/*
 * The published bound for a clock that stands at NS. A page goes on for a tick and a half when
 * nothing is published; in a test that is as short as these one pause can be the thousandth part.
 * How many readings of a longer run are beyond 1 ms is judged by `cputime verify`.
 */
static inline uint64_t bound_ns(uint64_t ns) {
        return CPUTIME_ERROR_NS + ns / 1000 + (reader->paged ? tick_ns() * 3 / 2 : 0);
}

unsigned cpus(void);            /* that this process may use, at start */
void pin(unsigned cpu_index);   /* the caller, on the Nth of them */
void unpin(void);
bool start_thread(pthread_t *ret_thread, void *(*function)(void *), void *argument);
struct peer peer_self(void);

/*
 * Uses at least DELTA_NS of the calling thread's CPU time, as the kernel counts it. Asking the
 * kernel brings the thread's account up to date all the time.
 */
void burn(uint64_t delta_ns);
/* Runs for about DELTA_NS without any call, so that the thread's account grows as old as it can. */
void spin(uint64_t delta_ns);

static inline uint64_t dice(uint64_t *state) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        return *state;
}

/* Raises *MAX to NS; whoever then sees the new maximum also sees that the read has returned. */
static inline void publish_max(_Atomic uint64_t *max, uint64_t ns) {
        uint64_t old = atomic_load_explicit(max, memory_order_relaxed);

        while (old < ns &&
               !atomic_compare_exchange_weak_explicit(max, &old, ns, memory_order_acq_rel,
                                                      memory_order_relaxed))
                ;
}

/*
 * Runs FUNCTION in a forked child; breaches there, a signal or a strange exit count as breaches
 * here. Returns EXIT_SKIP if the child called skip_child(), otherwise 0.
 */
int in_child(const char *what, void (*function)(const void *), const void *argument);
_Noreturn void skip_child(const char *why);

/*
 * The calling thread compares both clocks with the kernel N times, brackets against bounds, steps
 * against its last; OTHERS are the live threads beside it, whose time P must not overtake.
 * At most one sample in 1000 may lie beyond the bound, none may step back.
 */
struct tally {
        uint64_t samples, beyond;
        uint64_t worst_ns;
        uint64_t last_thread_ns, last_process_ns;
};
uint64_t sample_thread(struct tally *tally);
uint64_t sample_process(struct tally *tally, const pid_t *others, unsigned n_others,
                        unsigned n_lagging);
void tally_note(const struct tally *tally, const char *what);
void tally_judge(const struct tally *tally, const char *what);

/* The tests. They return nothing: see broken(); a test that cannot run returns through skip(). */
_Noreturn void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
void thread_clock_never_goes_backwards(void);
void process_clock_never_goes_backwards(void);
void process_clock_covers_its_threads(void);
void error_is_bounded_and_does_not_grow(void);
void reading_changes_nothing(void);
void sleep_until_is_not_early(void);
void child_starts_at_zero(void);
void no_fast_path_is_no_failure(void);
void idle_costs_nothing(void);
void user_plus_system_is_runtime(void);

/* Entered instead of a test by a process that a test starts by exec of itself. */
int child_after_exec(const char *argument);

/* The same, of no_fast_path_is_no_failure: with a server that does not give pages. */
int refused_by_server(void);

#endif /* CT_CONTRACT_H */
