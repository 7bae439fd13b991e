/* SPDX-License-Identifier: MIT */
#ifndef CPUTIME_CLOCK_H
#define CPUTIME_CLOCK_H
/*
 * CPU clocks that are read in user space.
 *
 * The two calls most programs want come first: cputime_thread_ns() is
 * CLOCK_THREAD_CPUTIME_ID, cputime_process_ns() is CLOCK_PROCESS_CPUTIME_ID, both in nanoseconds
 * and both without a system call once the library has judged that it pays. Whenever the library
 * cannot be sure, it asks the kernel: an answer may be slower, never less right.
 *
 * What is promised, with T the thread clock, P the process clock, K the kernel's answer:
 *
 *   thread_clock_never_goes_backwards    read r1 returns before read r2 of the same thread's clock
 *                                        begins => r1 <= r2, whoever reads
 *   process_clock_never_goes_backwards   the same for P, whichever threads read it
 *   process_clock_covers_its_threads     P, read after T1..Tn of threads of this process, is
 *                                        >= T1 + ... + Tn; threads that have ended stay counted
 *   error_is_bounded_and_does_not_grow   |T - K| <= CPUTIME_ERROR_NS + |K| / 1000 and likewise for
 *                                        P. While the process clock is enrolled, K for P is taken
 *                                        with what running siblings have not yet been charged,
 *                                        which clock_gettime(2) leaves out, up to a tick for each;
 *                                        a P that the kernel serves is what clock_gettime(2) says
 *   reading_changes_nothing              the fast path takes no lock, makes no system call and
 *                                        allocates nothing; it writes only to memory of the
 *                                        reading thread that no other fast path reads
 *   child_starts_at_zero                 after fork, clone, exec: the child's own clock; after
 *                                        vfork too under the drop-in, which wraps it, else the
 *                                        clocks must not be read between vfork and exec
 *   no_fast_path_is_no_failure           refusal of any kernel facility costs speed alone
 *   idle_costs_nothing                   nothing is opened before somebody reads
 *
 * "Begins" and "returns" are as ordered by the program's own synchronisation. Not promised: that
 * P, computed here, and clock_gettime(2) called beside it agree to the nanosecond; mixing the two
 * on one clock can show a step of up to the error bound.
 *
 * Thread safety: every function may be called from any thread at any time. Signal safety: the
 * clock readers are async-signal-safe and preserve errno, also in their slow paths; the other
 * functions say otherwise. A forked child may call everything; it starts anew, unenrolled.
 */
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library's ABI version, for programs that load it at run time. */
#define CPUTIME_VERSION_MAJOR 0
#define CPUTIME_VERSION_MINOR 1

/*
 * Published bound on |ours - kernel|, nanoseconds, beside 0.1 % of the value: what the clock can
 * have run ahead when a hypervisor paused the CPU, or interrupts that the kernel does not charge
 * came, since the kernel was last asked (at most CPUTIME_ANCHOR_NS ago), and as much again for the
 * scheduler's own work around a switch. docs/accuracy.md has the derivation.
 */
#define CPUTIME_ERROR_NS 1000000

/* How old, in nanoseconds of running, the kernel's answer may be that a fast read builds on. */
#define CPUTIME_ANCHOR_NS 500000

enum cputime_backend {
        CPUTIME_BACKEND_AUTO = 0,       /* the library chooses, and enrols only when it pays */
        CPUTIME_BACKEND_SYSCALL = 1,    /* the kernel, every time: the reference */
        CPUTIME_BACKEND_RING = 2,       /* switch records that the kernel writes to a mapped ring */
        CPUTIME_BACKEND_HEADER = 3,     /* the sequence count in the header page of a perf event */
        CPUTIME_BACKEND_PAGE = 4,       /* accounts that a BPF program publishes: needs cputimed */
};
#define CPUTIME_BACKEND_MAX 5

/*
 * CPU time that the calling thread has used, in nanoseconds since it began. Cannot fail.
 * System calls: none on the fast path; one after each context switch that is noticed and one per
 * CPUTIME_ANCHOR_NS of running, repeated up to twice where the asking itself was interrupted; one a
 * read until the thread is enrolled. With a page none at all, but where it was missed or is late.
 */
uint64_t cputime_thread_ns(void);

/*
 * CPU time that all threads of the calling process have used, the ended ones too, in nanoseconds.
 * Cannot fail. System calls: none on the fast path; on the slow path one for the process clock,
 * one for each running thread's clock, the caller's too, and two rt_sigprocmask(2).
 */
uint64_t cputime_process_ns(void);

/*
 * CPU time of the thread TID of the calling process; 0 means the caller. Other threads' clocks are
 * read from the page or, where there is none, from the kernel, one system call; and kept consistent
 * with what those threads read.
 * Returns 0, or
 *   -EINVAL  TID is negative
 *   -ESRCH   no such thread, or it is not a thread of the calling process
 * On failure *ret_ns is untouched.
 */
int cputime_thread_ns_of(pid_t tid, uint64_t *ret_ns);

/* Both clocks of the caller and which backend served each. */
struct cputime_sample {
        uint64_t thread_ns;
        uint64_t process_ns;    /* read after thread_ns, hence >= thread_ns */
        enum cputime_backend thread_backend;
        enum cputime_backend process_backend;
};

/* Reads both clocks; cannot fail. Cost: the two reads. */
void cputime_sample_read(struct cputime_sample *ret_sample);

/*
 * What the scheduler did with threads. A page (CPUTIME_BACKEND_PAGE) has it beside the clocks; where
 * there is none the kernel is asked, which has a file in /proc for each thread, and a page is asked for
 * as it is by reads of the clocks. oncpu_ns is the clock: with r a read of it by cputime_thread_ns() or
 * cputime_process_ns(), and s a stat,
 *
 *      r returns before s begins => r <= s.oncpu_ns,   s returns before r begins => s.oncpu_ns <= r
 *
 * and its error has the same bound. The rest are the kernel's own counts, as of the last switch. None
 * of them is less in a later stat than in an earlier one of the same backend, but for the process's
 * wait_ns from SYSCALL. Stats of different backends are not to be compared: see the process's below.
 */
struct cputime_thread_stat {
        uint64_t oncpu_ns;              /* on a CPU: the thread's clock */
        uint64_t wait_ns;               /* ready to run, waiting for a CPU; a wait counts when it ends */
        uint64_t voluntary_switches;    /* it left its CPU to wait for something */
        uint64_t involuntary_switches;  /* its CPU was given to another */
        int32_t cpu;                    /* the number of the CPU that it is on; -1: on none */
        enum cputime_backend backend;   /* PAGE, or SYSCALL: where all but oncpu_ns is from */
};

/*
 * The stat of the thread TID of the calling process; 0 means the caller. Asked of the kernel, a thread
 * that is about to run cannot be told from one that does: CPU is then where it will.
 * With a page all of it is of one instant. System calls: none then, but where it was missed or is
 * late; without one, those of cputime_thread_ns() and 4 for the caller, those of cputime_thread_ns_of()
 * and 12 to 16 for another. Async-signal-safe, preserves errno. Returns 0, or
 *   -EINVAL      TID is negative
 *   -ESRCH       no such thread, or it is not a thread of the calling process
 * and only where there is no page
 *   -EOPNOTSUPP  for another thread than the caller: /proc is that of another pid namespace
 *   -ENOENT      there is no /proc
 *   -EACCES -EMFILE -ENFILE -ENODATA ...  a file in it cannot be opened or read: the call's errno
 * On failure *ret_stat is untouched.
 */
int cputime_thread_stat_read(pid_t tid, struct cputime_thread_stat *ret_stat);

/*
 * The same, summed up over threads. Which ones:
 *
 *                         PAGE                                  SYSCALL
 *   oncpu_ns              all, the ended ones too               the same
 *   switches              alive when the page was made, with    all, the ended ones too
 *   wait_ns               all of theirs; born since, also if    alive now: it falls when one ends
 *                         they have ended
 *   nr_running            on a CPU                              or about to be
 *
 * (PAGE has the last switches of threads that end, one each and sometimes more, which come after the
 * kernel has added up their counts.)
 */
struct cputime_process_stat {
        uint64_t oncpu_ns;              /* the process's clock */
        uint64_t wait_ns;
        uint64_t voluntary_switches;
        uint64_t involuntary_switches;
        uint32_t nr_threads;            /* alive */
        uint32_t nr_running;            /* on a CPU, the caller included */
        enum cputime_backend backend;   /* as in struct cputime_thread_stat */
};

/*
 * The stat of the calling process. With a page a walk over the machine's CPUs that the process has ever
 * used, whatever the number of threads; without, over its threads.
 * System calls: as above none with a page; without, those of cputime_process_ns(), 5 and more, and 6
 * for each thread. Async-signal-safe, preserves errno. Returns 0, or
 *   -ENOENT -EACCES -EMFILE -ENFILE -ENODATA ...  without a page: as cputime_thread_stat_read()
 * On failure *ret_stat is untouched.
 */
int cputime_process_stat_read(struct cputime_process_stat *ret_stat);

/*
 * Forces a backend on the calling process and its threads, from the next read on; AUTO undoes it.
 * A forced backend is enrolled at the first read, whether it pays or not. Where the kernel refuses
 * it the kernel's clock serves, silently: cputime_backend_probe() tells. For HEADER, which cannot
 * see siblings run, the process clock is served by the kernel; for PAGE both are until the page is
 * there, some 10 ms, 0.1 s where nobody had one before.
 * Not async-signal-safe. Returns 0, or
 *   -EINVAL  BACKEND is not one of enum cputime_backend
 */
int cputime_backend_set(enum cputime_backend backend);

/* "auto", "syscall", "ring", "header", "page"; NULL for anything else. Static strings. */
const char *cputime_backend_name(enum cputime_backend backend);

/* The backend of that name. Returns 0, or -EINVAL; on failure *ret_backend is untouched. */
int cputime_backend_from_name(const char *name, enum cputime_backend *ret_backend);

/* Why a backend is usable here, or not. */
struct cputime_probe {
        int error;              /* 0: usable; otherwise the errno of the step that failed */
        const char *step;       /* the step: "perf_event_open", "connect to cputimed", ...; never NULL */
        const char *meaning;    /* what that errno means at this step; "usable" when error is 0 */
        const char *remedy;     /* what would change it; "" when there is nothing to change */
};

/*
 * Tries BACKEND in the calling thread, on the real kernel, and takes everything down again.
 * The strings are static. Not async-signal-safe. A few system calls, tens of microseconds; for PAGE,
 * where the process has none, cputimed is asked for one, tens of milliseconds, three seconds at most.
 * (That another thread may just be doing the same, unknown to us: one of the two has to ask again.)
 * Returns 0 when the probe was made (look at ret_probe->error), or
 *   -EINVAL  BACKEND is AUTO or unknown; *ret_probe is untouched
 */
int cputime_backend_probe(enum cputime_backend backend, struct cputime_probe *ret_probe);

/* What the clocks of this process have done so far; sums over its threads, live and ended. */
struct cputime_stats {
        uint64_t reads[CPUTIME_BACKEND_MAX];    /* served by each backend; [AUTO] stays 0 */
        uint64_t anchors;       /* times a fast clock asked the kernel anew */
        uint64_t enrolments;    /* events opened, pages got */
        uint64_t retreats;      /* threads or processes given back to the kernel: it did not pay, or a */
                                /* page came to its end */
        uint64_t refusals;      /* times the kernel refused an event, or cputimed a page */
        int refusal_error;      /* errno of the last refusal, 0 if none */
        const char *refusal_step;       /* its step, a static string; "" if none */
};

/*
 * Fills *ret_stats. Counts of running threads may be a few reads old. Not async-signal-safe; no
 * system call.
 */
void cputime_stats_read(struct cputime_stats *ret_stats);

#ifdef __cplusplus
}
#endif

#endif /* CPUTIME_CLOCK_H */
