/* SPDX-License-Identifier: MIT */
/*
 * The child of cputime verify: threads that read our clocks and hold them against the kernel's.
 *
 * Error. A sample is one read of ours between two of the kernel's, by raw system call. True CPU
 * time only grows, so the truth at the moment of our read lies between a lower bound LO and an
 * upper bound HI, and the error is the distance from [LO, HI]: no sample has to be thrown away
 * because it was interrupted, an interruption only widens its bracket, which is recorded too.
 *
 *   thread clock    LO = K1, HI = K2, the readings before and after.
 *   process clock   The kernel adds up the runtimes of all threads but brings only the caller's
 *                   up to date: what each running sibling has used since it was last charged, up
 *                   to a tick (4 ms at 250 Hz), is missing from the sum. Reading a sibling's own
 *                   clock makes the kernel charge it. So after our read each sibling is read, then
 *                   K2, and HI = K2 holds. Touching them before our read as well would hide just
 *                   the error that is looked for, a clock that forgets its running siblings.
 *                   Instead, with t1, t2 the wall clock around it all and c the number of CPUs
 *                   the process can have been running on: LO = max(K1, K2 - c * (t2 - t1)).
 *                   A read that the library left to the kernel is the kernel's own answer, and so
 *                   may lack what that lacks: LO = K1. What it did lack is recorded beside it.
 *
 * Backward steps. Every read is checked, sampled or not, against the greatest value that any
 * thread had been given before this read began: loaded (acquire) before the read, raised (release)
 * after it; the two pair with each other. That is the promise of clock.h with the order made by
 * one variable. Likewise the process clock against the caller's thread clock read just before it,
 * and, in the last phase, against the sum of all threads.
 *
 * Pauses. All time between two looks at the wall clock was spent in a few instructions, in a
 * context switch (then the kernel counted one), in an interrupt, or with the CPU taken away by a
 * hypervisor. A long gap without a context switch is therefore one of the latter two, which the
 * kernel may not charge and no clock in user space can see. A gap with a switch says nothing and
 * is not recorded: outliers are explained too seldom rather than too often. The one exception is a
 * system call of the library's that takes as long (enrolling a thread can).
 *
 * Not promised: a thread that has just begun or is about to end, and is not in the list of
 * siblings, can be missing from HI by the few microseconds it runs unlisted.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arch/vdso.h"
#include "base/nsec.h"
#include "cli/verify.h"

/* More CPUs would make a sample of the process clock, which reads all siblings, coarse. */
#define PHASE_CPUS_MAX 8

/* How long the library waits for a page, and a little more. */
#define PAGE_WAIT_MS 1500

#define OVERCOMMIT 4
#define FLEETING_SLOTS 2

/* One thread at work on its slot. */
struct reader {
        struct verify_run *run;
        struct verify_slot *slot;
        uint64_t deadline_ns;
        uint64_t wall_ns;               /* when it last looked */
        long switches;                  /* its own, when it last counted */
        uint64_t rng;
        unsigned int stride;            /* reads per sample, on average */
        unsigned int reads_left[VERIFY_CLOCKS]; /* until a sample is due ... */
        uint64_t due_ns[VERIFY_CLOCKS];         /* ... not before this time */
};

static uint64_t kernel_ns(clockid_t clockid) {
        struct timespec ts = {};

        (void)ct_sys_clock_gettime(clockid, &ts);
        return ct_nsec_from_timespec(&ts);
}

/* The kernel's clock id for one thread: ~tid << 3, "per thread" (4) and "scheduler's clock" (2). */
static clockid_t thread_clockid(pid_t tid) {
        return (clockid_t)(~(unsigned int)tid << 3 | 4 | 2);
}

static long count_switches(int who) {
        struct rusage usage = {};

        (void)getrusage(who, &usage);
        return usage.ru_nvcsw + usage.ru_nivcsw;
}

/* xorshift64: the same sequence in every run, which makes a failure easier to see again. */
static uint64_t reader_random(struct reader *reader, uint64_t limit) {
        reader->rng ^= reader->rng << 13;
        reader->rng ^= reader->rng >> 7;
        reader->rng ^= reader->rng << 17;
        return reader->rng % limit;
}

static uint64_t reader_between(struct reader *reader, uint64_t min, uint64_t max) {
        return min + reader_random(reader, max - min + 1);
}

/* After something that was meant to block: the gap that follows is no pause. */
static void reader_resume(struct reader *reader) {
        reader->switches = count_switches(RUSAGE_THREAD);
        reader->wall_ns = ct_vdso_raw_ns();
}

static void reader_look(struct reader *reader) {
        struct verify_run *run = reader->run;
        uint64_t now = ct_vdso_raw_ns(), gap = now - reader->wall_ns;

        if (gap >= VERIFY_PAUSE_MIN_NS) {
                long switches = count_switches(RUSAGE_THREAD);

                if (switches == reader->switches) {
                        uint32_t i = atomic_fetch_add(&run->n_pauses, 1);

                        if (i < VERIFY_PAUSES_MAX)
                                run->pauses[i] = (struct verify_pause){ now, gap };
                }
                reader->switches = switches;
        }
        reader->wall_ns = now;
}

static bool reader_over(struct reader *reader) {
        return reader->wall_ns >= reader->deadline_ns ||
               atomic_load_explicit(&reader->run->stop, memory_order_relaxed);
}

static void reader_schedule(struct reader *reader, enum verify_clock clock) {
        struct verify_run *run = reader->run;
        uint64_t gap = run->duration_ns / run->samples_max;

        reader->reads_left[clock] = (unsigned int)reader_random(reader, 2 * reader->stride);
        reader->due_ns[clock] = reader->wall_ns + reader_between(reader, gap / 2, 2 * gap);
}

static void reader_init(struct reader *reader, struct verify_run *run, unsigned int i_slot,
                        unsigned int stride) {
        *reader = (struct reader){
                .run = run,
                .slot = &run->slots[i_slot],
                .deadline_ns = run->start_ns + run->duration_ns,
                .stride = stride,
                .rng = UINT64_C(0x9e3779b97f4a7c15) * (i_slot + 1),
        };
        reader_resume(reader);
        for (enum verify_clock clock = 0; clock < VERIFY_CLOCKS; clock++)
                reader_schedule(reader, clock);
        atomic_store(&reader->slot->tid, (pid_t)syscall(SYS_gettid));
}

static void reader_done(struct reader *reader) {
        atomic_store(&reader->slot->tid, 0);
        atomic_store(&reader->slot->ended, true);
}

/*
 * A sample of the process clock makes the kernel charge all siblings, and so hides for a while what
 * the clock under test may fail to ask for. With siblings, therefore, all threads share one
 * schedule: gaps of 20 us to 10 ms, short and long ones alike (evenly spread on a log scale).
 */
static bool reader_takes_process_turn(struct reader *reader) {
        uint64_t due_ns = atomic_load(&reader->run->process_due_ns), gap;

        if (reader->wall_ns < due_ns)
                return false;
        gap = reader_between(reader, 20000, 40000) << reader_random(reader, 9);
        return atomic_compare_exchange_strong(&reader->run->process_due_ns, &due_ns,
                                              reader->wall_ns + gap);
}

static bool reader_sample_is_due(struct reader *reader, enum verify_clock clock) {
        struct verify_run *run = reader->run;

        if (reader->slot->tally[clock].n_samples == run->samples_max)
                return false;
        if (clock == VERIFY_PROCESS && run->n_slots > 1)
                return reader_takes_process_turn(reader);
        if (reader->reads_left[clock] > 0) {
                reader->reads_left[clock]--;
                return false;
        }
        return reader->wall_ns >= reader->due_ns[clock];
}

/* Makes the kernel charge the siblings that are running; returns how many threads there are. */
static unsigned int reader_touch_siblings(struct reader *reader) {
        struct verify_run *run = reader->run;
        unsigned int n = 1;

        for (unsigned int i = 0; i < run->n_slots; i++) {
                pid_t tid = atomic_load(&run->slots[i].tid);

                if (tid != 0 && &run->slots[i] != reader->slot) {
                        (void)kernel_ns(thread_clockid(tid));
                        n++;
                }
        }
        return n;
}

static void slot_check_cover(struct verify_slot *slot, uint64_t threads_ns, uint64_t process_ns) {
        slot->cover_checks++;
        if (process_ns >= threads_ns)
                return;
        slot->cover_violations++;
        if (threads_ns - process_ns > slot->largest_uncovered_ns)
                slot->largest_uncovered_ns = threads_ns - process_ns;
}

static uint64_t reader_sample(struct reader *reader, enum verify_clock clock) {
        clockid_t clockid = clock == VERIFY_THREAD ? CLOCK_THREAD_CPUTIME_ID
                                                   : CLOCK_PROCESS_CPUTIME_ID;
        struct verify_tally *tally = &reader->slot->tally[clock];
        struct verify_sample *sample = &tally->samples[tally->n_samples];
        struct cputime_sample both = {};
        uint64_t t1, ours, lo, hi, kernel_lag_ns = 0;

        t1 = ct_vdso_raw_ns();
        lo = kernel_ns(clockid);
        if (clock == VERIFY_THREAD) {
                ours = cputime_thread_ns();
                hi = kernel_ns(clockid);
                reader_look(reader);
        } else {
                unsigned int n_threads;
                uint64_t most, least;

                cputime_sample_read(&both);
                n_threads = reader_touch_siblings(reader);
                hi = kernel_ns(clockid);
                reader_look(reader);

                ours = both.process_ns;
                slot_check_cover(reader->slot, both.thread_ns, ours);
                if (n_threads > reader->run->n_cpus)
                        n_threads = reader->run->n_cpus;
                most = n_threads * (reader->wall_ns - t1);
                least = hi > most ? hi - most : 0;
                if (both.process_backend != CPUTIME_BACKEND_SYSCALL && least > lo)
                        lo = least;
                else if (least > ours)
                        kernel_lag_ns = least - ours;
        }
        if (hi < lo) {
                tally->kernel_backward_steps++;
                return ours;
        }

        *sample = (struct verify_sample){
                .wall_ns = reader->wall_ns,
                .error_ns = ours > hi   ? (int64_t)(ours - hi)
                            : ours < lo ? -(int64_t)(lo - ours)
                                        : 0,
                .value_ns = hi,
                .bracket_ns = hi - lo > UINT32_MAX ? UINT32_MAX : (uint32_t)(hi - lo),
                .kernel_lag_ns = kernel_lag_ns > UINT32_MAX ? UINT32_MAX : (uint32_t)kernel_lag_ns,
                .backend = both.process_backend,
        };
        if (clock == VERIFY_THREAD)
                reader->switches = count_switches(RUSAGE_THREAD);
        sample->switches = (uint32_t)(clock == VERIFY_THREAD ? reader->switches
                                                             : count_switches(RUSAGE_SELF));
        tally->n_samples++;
        reader_schedule(reader, clock);
        return ours;
}

static void raise_to(_Atomic uint64_t *seen, uint64_t value) {
        uint64_t old = atomic_load_explicit(seen, memory_order_relaxed);

        while (old < value && !atomic_compare_exchange_weak_explicit(seen, &old, value,
                                                                     memory_order_release,
                                                                     memory_order_relaxed))
                ;
}

static void tally_read(struct verify_tally *tally, uint64_t floor_ns, uint64_t value_ns) {
        tally->reads++;
        if (value_ns >= floor_ns)
                return;
        tally->backward_steps++;
        if (floor_ns - value_ns > tally->largest_backward_ns)
                tally->largest_backward_ns = floor_ns - value_ns;
}

/* Reads the process clock, checks it against what was given before. */
static uint64_t reader_read_process(struct reader *reader) {
        _Atomic uint64_t *seen = &reader->run->process_seen_ns;
        uint64_t floor_ns, value_ns;

        /* pairs with the release in raise_to() */
        floor_ns = atomic_load_explicit(seen, memory_order_acquire);
        value_ns = reader_sample_is_due(reader, VERIFY_PROCESS)
                           ? reader_sample(reader, VERIFY_PROCESS)
                           : cputime_process_ns();
        raise_to(seen, value_ns);
        tally_read(&reader->slot->tally[VERIFY_PROCESS], floor_ns, value_ns);
        return value_ns;
}

/* One step of every phase: read both clocks, check them, now and then measure them. */
static void reader_read(struct reader *reader) {
        struct verify_slot *slot = reader->slot;
        uint64_t floor_ns, value_ns;

        reader_look(reader);

        /* pairs with the release in raise_to() */
        floor_ns = atomic_load_explicit(&slot->seen_ns, memory_order_acquire);
        value_ns = reader_sample_is_due(reader, VERIFY_THREAD)
                           ? reader_sample(reader, VERIFY_THREAD)
                           : cputime_thread_ns();
        raise_to(&slot->seen_ns, value_ns);
        tally_read(&slot->tally[VERIFY_THREAD], floor_ns, value_ns);

        slot_check_cover(slot, value_ns, reader_read_process(reader));
}

static void reader_sleep(struct reader *reader, uint64_t ns) {
        struct timespec ts;

        ct_nsec_to_timespec(ns, &ts);
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
        reader_resume(reader);
}

/* Runs without reading a CPU clock, as the program between two reads would. */
static void reader_burn(struct reader *reader, uint64_t ns) {
        uint64_t end_ns = reader->wall_ns + ns;

        while (reader->wall_ns < end_ns)
                reader_look(reader);
}

static void reader_read_for(struct reader *reader, uint64_t ns) {
        uint64_t end_ns = reader->wall_ns + ns;

        while (reader->wall_ns < end_ns)
                reader_read(reader);
}

/* Reads back to back, then works for up to twice the age that the kernel's answer may have. */
static void reader_work(struct reader *reader) {
        reader_read_for(reader, reader_between(reader, 10000, 1000000));
        reader_burn(reader, reader_random(reader, 2 * CPUTIME_ANCHOR_NS));
}

/* Seldom reads: a sibling that runs for ticks and asks nothing is what a process clock misses. */
static void reader_toil(struct reader *reader) {
        reader_read_for(reader, reader_between(reader, 10000, 300000));
        reader_burn(reader, reader_random(reader, 20000000));
}

/* A short burst of reads and a sleep some ten times as long. */
static void reader_nap(struct reader *reader) {
        reader_read_for(reader, reader_between(reader, 20000, 300000));
        reader_sleep(reader, reader_between(reader, 300000, 3000000));
}

/* --- the phases --- */

/* A thread with a function and a slot to run on. */
struct worker {
        struct verify_run *run;
        unsigned int i_slot;
        void (*work)(struct worker *worker, struct reader *reader);
        unsigned int stride;            /* as in struct reader */
        int fds[2];                     /* ping-pong: read from, write to */
        bool serves;                    /* ping-pong: writes first */
        pthread_t thread;
};

static void *worker_main(void *arg) {
        struct worker *worker = arg;
        struct reader reader;

        reader_init(&reader, worker->run, worker->i_slot, worker->stride);
        worker->work(worker, &reader);
        reader_done(&reader);
        return NULL;
}

static int worker_start(struct worker *worker) {
        int r = pthread_create(&worker->thread, NULL, worker_main, worker);

        if (r == 0) {
                worker->run->threads_started++;
                return 0;
        }
        worker->run->failed_step = "starting a thread";
        return -r;
}

/* Starts all of WORKERS, or none that keeps running, and waits for them. */
static int workers_run(struct worker *workers, unsigned int n_workers) {
        unsigned int n = 0;
        int r = 0;

        while (n < n_workers && r == 0) {
                r = worker_start(&workers[n]);
                if (r == 0)
                        n++;
        }
        if (r < 0)
                atomic_store(&workers->run->stop, true);
        for (unsigned int i = 0; i < n; i++)
                (void)pthread_join(workers[i].thread, NULL);
        return r;
}

static unsigned int one_slot(unsigned int n_cpus) {
        return 1;
}

/* Mostly asleep: what is at stake is the first read after a wake-up. */
static int run_idle(struct verify_run *run) {
        struct reader reader;

        reader_init(&reader, run, 0, 8);
        run->threads_started++;
        while (!reader_over(&reader))
                reader_nap(&reader);
        reader_done(&reader);
        return 0;
}

/* Hardly ever switched: what is at stake is how far it runs from the kernel's last answer. */
static int run_busy(struct verify_run *run) {
        struct reader reader;

        reader_init(&reader, run, 0, 50);
        run->threads_started++;
        while (!reader_over(&reader))
                reader_work(&reader);
        reader_done(&reader);
        return 0;
}

static unsigned int two_slots(unsigned int n_cpus) {
        return 2;
}

static void ping_pong(struct worker *worker, struct reader *reader) {
        bool holds = worker->serves;
        char byte = 0;

        while (!reader_over(reader)) {
                for (uint64_t n = reader_random(reader, 4); n > 0; n--)
                        reader_read(reader);
                if (holds && write(worker->fds[1], &byte, 1) != 1)
                        break;
                holds = true;
                if (read(worker->fds[0], &byte, 1) != 1)
                        break;
                reader_resume(reader);
        }
        (void)close(worker->fds[1]);    /* the other one's read ends */
}

/* As many switches as the machine can do: what is at stake is drift. */
static int run_ping_pong(struct verify_run *run) {
        struct worker workers[2] = {
                { .run = run, .i_slot = 0, .stride = 8, .work = ping_pong, .serves = true },
                { .run = run, .i_slot = 1, .stride = 8, .work = ping_pong },
        };
        int r;

        for (unsigned int i = 0; i < 2; i++) {
                int fds[2];

                if (pipe2(fds, O_CLOEXEC) < 0) {
                        run->failed_step = "making a pipe";
                        return -errno;
                }
                workers[i].fds[0] = fds[0];
                workers[!i].fds[1] = fds[1];
        }
        r = workers_run(workers, 2);
        (void)close(workers[0].fds[0]);
        (void)close(workers[1].fds[0]);
        return r;
}

static unsigned int overcommitted_slots(unsigned int n_cpus) {
        return OVERCOMMIT * n_cpus;
}

static void keep_working(struct worker *worker, struct reader *reader) {
        while (!reader_over(reader))
                reader_work(reader);
}

/* More to run than CPUs: involuntary switches at any point, siblings running, migrations. */
static int run_overcommitted(struct verify_run *run) {
        struct worker workers[OVERCOMMIT * PHASE_CPUS_MAX] = {};

        for (unsigned int i = 0; i < run->n_slots; i++)
                workers[i] = (struct worker){
                        .run = run, .i_slot = i, .stride = 50, .work = keep_working
                };
        return workers_run(workers, run->n_slots);
}

/* The main thread, and for each CPU one busy and one that mostly sleeps; then the fleeting ones. */
static unsigned int threads_slots(unsigned int n_cpus) {
        return 1 + 2 * n_cpus + FLEETING_SLOTS;
}

static void keep_toiling(struct worker *worker, struct reader *reader) {
        while (!reader_over(reader))
                reader_toil(reader);
}

static void keep_napping(struct worker *worker, struct reader *reader) {
        while (!reader_over(reader))
                reader_nap(reader);
}

/* A thread that lives for 0.1 to 10 ms; the seed of its length is the time it began. */
static void live_briefly(struct worker *worker, struct reader *reader) {
        reader->rng ^= reader->wall_ns;
        reader_read_for(reader, reader_between(reader, 100000, 10000000));
}

/*
 * P >= the sum of all threads read before it. A thread that ended has its last value counted: it is
 * never less than what anybody was given of it. ENDED_NS is that of the threads joined.
 */
static void check_sum(struct reader *reader, uint64_t ended_ns) {
        struct verify_run *run = reader->run;
        uint64_t sum_ns = ended_ns;

        for (unsigned int i = 0; i < run->n_slots; i++) {
                struct verify_slot *slot = &run->slots[i];
                pid_t tid = atomic_load(&slot->tid);
                /* pairs with the release in raise_to() */
                uint64_t floor_ns = atomic_load_explicit(&slot->seen_ns, memory_order_acquire);
                uint64_t value_ns;

                if (tid == 0 || cputime_thread_ns_of(tid, &value_ns) < 0) {
                        sum_ns += atomic_load_explicit(&slot->seen_ns, memory_order_acquire);
                        continue;
                }
                raise_to(&slot->seen_ns, value_ns);
                tally_read(&reader->slot->tally[VERIFY_THREAD], floor_ns, value_ns);
                sum_ns += value_ns;
        }
        slot_check_cover(reader->slot, sum_ns, reader_read_process(reader));
}

/* Threads of all kinds, starting and ending: what is at stake is that the process has them all. */
static int run_threads(struct verify_run *run) {
        struct worker workers[1 + 2 * PHASE_CPUS_MAX + FLEETING_SLOTS] = {};
        bool alive[1 + 2 * PHASE_CPUS_MAX + FLEETING_SLOTS] = {};
        unsigned int first_fleeting = run->n_slots - FLEETING_SLOTS;
        uint64_t ended_ns = 0;
        struct reader reader;
        int r = 0;

        reader_init(&reader, run, 0, 8);
        run->threads_started++;
        for (unsigned int i = 1; i < run->n_slots; i++) {
                workers[i] = (struct worker){
                        .run = run,
                        .i_slot = i,
                        .stride = 50,
                        .work = i >= first_fleeting ? live_briefly
                                : i % 2 == 0        ? keep_napping
                                                    : keep_toiling,
                };
                run->slots[i].fleeting = i >= first_fleeting;
        }

        while (!reader_over(&reader) && r == 0) {
                for (unsigned int i = 1; i < run->n_slots && r == 0; i++) {
                        struct verify_slot *slot = &run->slots[i];

                        if (alive[i] && slot->fleeting && atomic_load(&slot->ended)) {
                                (void)pthread_join(workers[i].thread, NULL);
                                alive[i] = false;
                                ended_ns += atomic_load(&slot->seen_ns);
                                atomic_store(&slot->seen_ns, 0);
                                atomic_store(&slot->ended, false);
                        }
                        if (!alive[i]) {
                                r = worker_start(&workers[i]);
                                alive[i] = r == 0;
                        }
                }
                reader_resume(&reader);
                check_sum(&reader, ended_ns);
                reader_read_for(&reader, reader_between(&reader, 5000, 100000));
                check_sum(&reader, ended_ns);
                reader_sleep(&reader, reader_between(&reader, 100000, 6000000));
        }

        if (r < 0)
                atomic_store(&run->stop, true);
        for (unsigned int i = 1; i < run->n_slots; i++)
                if (alive[i])
                        (void)pthread_join(workers[i].thread, NULL);
        check_sum(&reader, ended_ns);
        reader_done(&reader);
        return r;
}

const struct verify_phase verify_phases[VERIFY_PHASES] = {
        { "idle", "a thread that mostly sleeps", one_slot, false, run_idle },
        { "busy", "a thread that never sleeps", one_slot, false, run_busy },
        { "ping_pong", "two threads exchange bytes", two_slots, false, run_ping_pong },
        { "overcommitted", "four busy threads per CPU", overcommitted_slots, true,
          run_overcommitted },
        { "threads", "the process against its threads, which come and go", threads_slots, true,
          run_threads },
};

unsigned int verify_phase_cpus(const struct verify_phase *phase) {
        cpu_set_t allowed;
        int n = 1;

        if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0)
                n = CPU_COUNT(&allowed);
        else
                n = (int)sysconf(_SC_NPROCESSORS_ONLN);         /* more than CPU_SETSIZE of them */
        if (n < 1)
                n = 1;
        return phase->confined && n > PHASE_CPUS_MAX ? PHASE_CPUS_MAX : (unsigned int)n;
}

/* Keeps the process on the first N_CPUS of those it may use. */
static int confine(unsigned int n_cpus) {
        cpu_set_t allowed, few;

        CPU_ZERO(&few);
        if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
                return -errno;
        for (int cpu = 0; cpu < CPU_SETSIZE && (unsigned int)CPU_COUNT(&few) < n_cpus; cpu++)
                if (CPU_ISSET(cpu, &allowed))
                        CPU_SET(cpu, &few);
        return sched_setaffinity(0, sizeof(few), &few) < 0 ? -errno : 0;
}

/*
 * A page is made while the kernel serves, whose answers would agree with themselves. Returns 0 when
 * it is there, or why it is not, -errno.
 */
static int await_page(void) {
        const struct timespec nap = { .tv_nsec = CT_NSEC_PER_MSEC };
        struct cputime_sample sample;
        struct cputime_stats stats;

        for (unsigned int ms = 0; ms < PAGE_WAIT_MS; ms++) {
                cputime_sample_read(&sample);
                if (sample.thread_backend == CPUTIME_BACKEND_PAGE &&
                    sample.process_backend == CPUTIME_BACKEND_PAGE)
                        return 0;
                (void)nanosleep(&nap, NULL);
        }
        cputime_stats_read(&stats);
        return stats.refusals > 0 ? -stats.refusal_error : -ETIMEDOUT;
}

void verify_phase_run(const struct verify_phase *phase, struct verify_run *run) {
        int r;

        /* The parent hears of an interrupt and says stop; dying here would lose the record. */
        (void)signal(SIGINT, SIG_IGN);
        (void)signal(SIGTERM, SIG_IGN);
        (void)signal(SIGPIPE, SIG_IGN);

        run->failed_step = "choosing the backend";
        r = cputime_backend_set(run->backend);
        if (r == 0 && phase->confined) {
                run->failed_step = "keeping to some of the CPUs";
                r = confine(run->n_cpus);
        }
        if (r == 0 && run->backend == CPUTIME_BACKEND_PAGE) {
                run->failed_step = "getting a page from cputimed";
                r = await_page();
        }
        run->start_ns = run->end_ns = ct_vdso_raw_ns();
        if (r == 0)
                r = phase->run(run);
        run->end_ns = ct_vdso_raw_ns();
        cputime_stats_read(&run->stats);
        run->error = -r;
}
