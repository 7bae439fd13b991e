/* SPDX-License-Identifier: MIT */
/*
 * page_agrees                  the page and the kernel, on the kernel that runs here: the program
 *                              is loaded and attached, this process enrolled, and both clocks are
 *                              held against the kernel's, with one thread, several, sleeping ones,
 *                              and 5,000 that come and go; then the program is let go
 * page_agrees --tickless CPU   where the tick of the CPU stops (nohz_full): nobody publishes for
 *                              who runs on, so the page must say that it does not know
 * page_agrees --library CPU    the same for libcputime, with a server at CPUTIME_SOCKET: the kernel
 *                              answers then
 *
 * Prints "ok - POINT" or "not ok - POINT" for each point, as tools/vm/guests.sh counts them, and
 * figures behind "#". Exit status 0, or 1 where nothing more could be tested.
 *
 * Each reading is taken between two of the kernel's, which it must not leave by more than SLACK_NS
 * and 0.1 %, in 99 of 100 cases: an emulated CPU is stopped for milliseconds now and then, in the
 * middle of whatever it does. The kernel's process clock counts other running threads as of their
 * last tick; so they are asked first, which charges them. Going back, and a P below its T, have no
 * excuse, and are looked for across threads.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "arch/vdso.h"
#include "base/nsec.h"
#include "cputime/cputime.h"
#include "source/page/loader.h"
#include "source/page/page-read.h"

#include "../check.h"

/* The published bound, CPUTIME_ERROR_NS, beside 0.1 %. */
#define SLACK_NS CPUTIME_ERROR_NS

/* What the middle one of all readings may be off by: a system call of an emulated machine takes 5 us. */
#define MEDIAN_NS (100 * (int64_t)CT_NSEC_PER_USEC)

#define ENROL_TRIES 100
#define SAMPLES 10000
#define SAMPLES_MAX (2 * SAMPLES)
#define CLOSE_READS 200000
#define SLEEPS 2000
#define OTHERS 4                /* more than there are CPUs in the guest: they push each other away */
#define SHORT_THREADS 5000
#define SHORT_READS 4           /* of each */
#define ROUNDS 40
#define ROUND_READS 2000     /* in a round: 10 ms of an emulated CPU at least, or two ticks and a half */
#define ATTACHED (CT_LOADER_LINKS + 1)  /* and the iterator */

/* Looks, and naps, until something has happened that is about to; not reached. */
#define LOOKS 10000000u
#define NAPS 100000u

/* --- points ---------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3)))
__attribute__((format(printf, 2, 3)))
static bool point(bool passed, const char *format, ...) {
        va_list args;

        fputs(passed ? "ok - " : "not ok - ", stdout);
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        putchar('\n');
        fflush(stdout);
        return passed;
}

/* --- the kernel ------------------------------------------------------------------------------- */

static uint64_t kernel_ns(clockid_t clockid) {
        struct timespec ts;
        int r = ct_sys_clock_gettime(clockid, &ts);

        CHECK(r == 0, "clock %d: %s", (int)clockid, strerror(-r));
        return ct_nsec_from_timespec(&ts);
}

static void pin(unsigned int cpu) {
        cpu_set_t set;

        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        CHECK(sched_setaffinity(0, sizeof(set), &set) == 0, "CPU %u: %s", cpu, strerror(errno));
}

static void nap(void) {
        struct timespec ts = { .tv_nsec = 50 * (long)CT_NSEC_PER_USEC };

        (void)nanosleep(&ts, NULL);
}

/* How many objects of a kind there are in this kernel, by the call that goes from one to the next. */
static unsigned int bpf_objects(int (*next)(__u32 id, __u32 *ret_next)) {
        unsigned int n = 0;
        __u32 id = 0;

        while (next(id, &id) == 0)
                n++;
        return n;
}

/* --- the page --------------------------------------------------------------------------------- */

static struct ct_loader *loader;
static struct ct_region_info region;
static const union ct_page_entry *page;

static bool load(void) {
        const char *step = "";
        int r = ct_loader_open(&loader, &step);

        if (!point(r == 0, "the program passes the verifier and attaches"))
                printf("# %s failed: %s\n", step, strerror(-r));
        return r == 0;
}

static bool enrol(void) {
        struct ct_enrolment enrolment = { .tgid = getpid() };
        unsigned int tries = 0;
        bool live;

        do
                ct_loader_enrol(loader, &enrolment, 1);
        while (enrolment.error == -EAGAIN && ++tries < ENROL_TRIES);
        if (!point(enrolment.error == 0, "a process is enrolled")) {
                printf("# %s\n", strerror(-enrolment.error));
                return false;
        }
        region = enrolment.info;
        page = mmap(NULL, region.size, PROT_READ, MAP_SHARED, region.map_fd, 0);
        if (!point(page != MAP_FAILED, "its page is mapped")) {
                printf("# %s\n", strerror(errno));
                return false;
        }
        for (unsigned int i = 0; i < LOOKS && page->group.state != CT_PAGE_LIVE; i++)
                (void)kernel_ns(CLOCK_THREAD_CPUTIME_ID);
        live = page->group.state == CT_PAGE_LIVE;
        while (live && ct_vdso_monotonic_ns() < page->group.valid_ns)
                ;
        return point(live, "it goes live");
}

static const struct ct_page_slot *slot_of(pid_t tid) {
        for (uint32_t i = CT_PAGE_FIRST_CELL + page->group.nr_cpus; i < region.entries; i++)
                if (__atomic_load_n(&page[i].slot.tid, __ATOMIC_ACQUIRE) == tid)
                        return &page[i].slot;
        return NULL;
}

/* --- comparing -------------------------------------------------------------------------------- */

/* Readings of one clock: by how much each is below (-) or above its two of the kernel's. */
struct tally {
        int64_t off_ns[SAMPLES_MAX];
        unsigned int n, unanswered, wrong;
};

/*
 * Each of THREADS that waits for a CPU may stand ahead by what its last switch took, until it is on
 * one again; in a clock that counts them all, that adds up.
 */
static void count(struct tally *tally, unsigned int threads, bool answered, uint64_t low, uint64_t ns,
                  uint64_t high) {
        int64_t off_ns = ns < low ? -(int64_t)(low - ns) : ns > high ? (int64_t)(ns - high) : 0;

        if (!answered) {
                tally->unanswered++;
                return;
        }
        CHECK(tally->n < SAMPLES_MAX, "too many readings");
        tally->off_ns[tally->n++] = off_ns;
        tally->wrong += (uint64_t)llabs(off_ns) > SLACK_NS * threads + high / 1000;
}

static void merge(struct tally *into, const struct tally *from) {
        CHECK(into->n + from->n <= SAMPLES_MAX, "too many readings");
        memcpy(into->off_ns + into->n, from->off_ns, from->n * sizeof(from->off_ns[0]));
        into->n += from->n;
        into->unanswered += from->unanswered;
        into->wrong += from->wrong;
}

static int by_size(const void *a, const void *b) {
        int64_t x = llabs(*(const int64_t *)a), y = llabs(*(const int64_t *)b);

        return x < y ? -1 : x > y;
}

static int64_t rank_ns(const struct tally *tally, unsigned int percent) {
        return tally->n ? tally->off_ns[(uint64_t)(tally->n - 1) * percent / 100] : 0;
}

/* Sorts, and says what there is. */
static void figures(const char *name, const char *clock, struct tally *tally) {
        qsort(tally->off_ns, tally->n, sizeof(tally->off_ns[0]), by_size);
        printf("# %s, %s: %u readings of %u were answered; off by %+.1f us (median), %+.1f us (99 %%), "
               "%+.1f us at most\n", name, clock, tally->n, tally->n + tally->unanswered,
               (double)rank_ns(tally, 50) / 1e3, (double)rank_ns(tally, 99) / 1e3,
               (double)rank_ns(tally, 100) / 1e3);
}

/* A tick that comes late leaves readings unanswered: many where the host is busy. */
static bool agrees(const struct tally *tally, unsigned int threads) {
        return tally->n > 0 && tally->n * 4 >= tally->unanswered && tally->wrong * 100 <= tally->n &&
               llabs(rank_ns(tally, 50)) <= MEDIAN_NS * threads;
}

/* --- readers ---------------------------------------------------------------------------------- */

/* The first thread is the first of them, all the time; each other belongs to one thread at a time. */
struct reader {
        const struct ct_page_slot *slot;
        struct tally thread, process;
        unsigned int back_thread, back_process, uncovered;
        _Atomic clockid_t clockid;      /* for others, who charge it; 0: nobody's */
        _Atomic uint64_t thread_ns;     /* the highest T that anybody has read */
};

static struct reader readers[1 + OTHERS];
static unsigned int crowd_size = 1;     /* of them that read now */

/* What the kernel says of readers that have ended, in all; and the highest P that anybody has read. */
static _Atomic uint64_t ended_ns, highest_ns;

/* Until the calling thread ends, SELF is its. */
static void begin(struct reader *self) {
        clockid_t clockid;

        self->slot = NULL;
        for (unsigned int i = 0; i < LOOKS && !self->slot; i++)
                self->slot = slot_of(gettid());
        CHECK(self->slot, "thread %d has no slot; state %u, why %u", gettid(), page->group.state,
              page->group.why);
        CHECK(pthread_getcpuclockid(pthread_self(), &clockid) == 0, "no clock of an own thread");
        atomic_store(&self->clockid, clockid);
}

/*
 * The kernel's sum of ended threads has them as they were charged last, up to a tick ago, and P goes
 * by that sum. So SELF has itself charged, and of what the page told beyond that P keeps nothing.
 */
static void end(struct reader *self) {
        uint64_t ns = kernel_ns(CLOCK_THREAD_CPUTIME_ID);

        atomic_store(&self->clockid, 0);
        /* In this order it is missing for a moment; in the other it would be there twice. */
        atomic_store(&self->thread_ns, 0);
        atomic_fetch_add(&ended_ns, ns);
}

static void raise_to(_Atomic uint64_t *highest, uint64_t ns) {
        uint64_t old = atomic_load_explicit(highest, memory_order_relaxed);

        while (old < ns && !atomic_compare_exchange_weak_explicit(highest, &old, ns, memory_order_release,
                                                                  memory_order_relaxed))
                ;
}

/* The clock of WHOSE thread, which may be on no CPU; SELF looks at it. */
static bool read_thread(struct reader *self, struct reader *whose, uint64_t *ret_ns) {
        uint64_t floor_ns = atomic_load_explicit(&whose->thread_ns, memory_order_acquire);
        bool running = false;

        if (!ct_page_thread(whose->slot, page->group.age_ns, ret_ns, &running) || (self == whose && !running))
                return false;
        self->back_thread += *ret_ns < floor_ns;
        raise_to(&whose->thread_ns, *ret_ns);
        return true;
}

static bool read_process(struct reader *self, uint64_t *ret_ns) {
        uint64_t sum_ns = atomic_load_explicit(&ended_ns, memory_order_acquire), floor_ns;

        for (unsigned int i = 0; i < 1 + OTHERS; i++)
                sum_ns += atomic_load_explicit(&readers[i].thread_ns, memory_order_acquire);
        floor_ns = atomic_load_explicit(&highest_ns, memory_order_acquire);
        /* Who reads is running: a page that does not say so has missed it, and P would too. */
        if (ct_page_acquire(&self->slot->cpu) < 0 || !ct_page_group(page, ret_ns))
                return false;
        self->back_process += *ret_ns < floor_ns;
        self->uncovered += *ret_ns < sum_ns;
        raise_to(&highest_ns, *ret_ns);
        return true;
}

static void charge(const struct reader *self) {
        for (struct reader *other = readers; other < readers + 1 + OTHERS; other++) {
                clockid_t clockid = atomic_load_explicit(&other->clockid, memory_order_relaxed);

                if (other != self && clockid)
                        (void)kernel_ns(clockid);
        }
}

/* Reads both clocks and holds them against the kernel's. */
static void sample(struct reader *self) {
        uint64_t low, ns = 0, high;
        bool answered;

        low = kernel_ns(CLOCK_THREAD_CPUTIME_ID);
        answered = read_thread(self, self, &ns);
        high = kernel_ns(CLOCK_THREAD_CPUTIME_ID);
        count(&self->thread, 1, answered, low, ns, high);

        charge(self);
        low = kernel_ns(CLOCK_PROCESS_CPUTIME_ID);
        answered = read_process(self, &ns);
        charge(self);
        high = kernel_ns(CLOCK_PROCESS_CPUTIME_ID);
        count(&self->process, crowd_size, answered, low, ns, high);
}

/* Takes what all readers have counted together into the first, and says so. */
static struct reader *collect(const char *name) {
        struct reader *all = &readers[0];

        for (struct reader *reader = readers + 1; reader < readers + 1 + OTHERS; reader++) {
                merge(&all->thread, &reader->thread);
                merge(&all->process, &reader->process);
                all->back_thread += reader->back_thread;
                all->back_process += reader->back_process;
                all->uncovered += reader->uncovered;
        }
        if (all->thread.n + all->thread.unanswered) {
                figures(name, "T", &all->thread);
                figures(name, "P", &all->process);
        }
        if (all->back_thread || all->back_process || all->uncovered)
                printf("# T back %u times, P %u times, P below the sum of T %u times\n",
                       all->back_thread, all->back_process, all->uncovered);
        if (page->group.state != CT_PAGE_LIVE)
                printf("# state %u, why %u\n", page->group.state, page->group.why);
        return all;
}

static void judge_order(const char *name, const struct reader *all) {
        point(!all->back_thread && !all->back_process, "%s: no clock goes back", name);
        point(!all->uncovered, "%s: the process clock covers its threads", name);
        for (struct reader *reader = readers; reader < readers + 1 + OTHERS; reader++) {
                reader->thread.n = reader->thread.unanswered = reader->thread.wrong = 0;
                reader->process.n = reader->process.unanswered = reader->process.wrong = 0;
                reader->back_thread = reader->back_process = reader->uncovered = 0;
        }
}

static void judge(const char *name, unsigned int threads) {
        const struct reader *all = collect(name);

        point(agrees(&all->thread, 1), "%s: the thread clock agrees with the kernel", name);
        point(agrees(&all->process, threads), "%s: the process clock agrees with the kernel", name);
        judge_order(name, all);
}

/* --- the phases ------------------------------------------------------------------------------- */

static pthread_t start(void *(*act)(void *), struct reader *reader) {
        pthread_t thread;
        int r = pthread_create(&thread, NULL, act, reader);

        CHECK(r == 0, "pthread_create: %s", strerror(r));
        return thread;
}

static void join(pthread_t thread) {
        int r = pthread_join(thread, NULL);

        CHECK(r == 0, "pthread_join: %s", strerror(r));
}

static void one_thread(const char *name) {
        for (unsigned int i = 0; i < SAMPLES; i++)
                sample(&readers[0]);
        judge(name, 1);
}

static pthread_barrier_t barrier;
static void (*crowd_act)(struct reader *self);

static void *join_crowd(void *data) {
        struct reader *self = data;

        if (self != readers)
                begin(self);
        /* Nobody compares while somebody runs who is not known yet, or no longer. */
        (void)pthread_barrier_wait(&barrier);
        crowd_act(self);
        (void)pthread_barrier_wait(&barrier);
        if (self != readers)
                end(self);
        return NULL;
}

/* All readers do ACT. */
static void crowd(void (*act)(struct reader *self)) {
        pthread_t threads[OTHERS];

        crowd_act = act;
        crowd_size = 1 + OTHERS;
        CHECK(pthread_barrier_init(&barrier, NULL, 1 + OTHERS) == 0, "no barrier");
        for (unsigned int i = 0; i < OTHERS; i++)
                threads[i] = start(join_crowd, &readers[1 + i]);
        (void)join_crowd(&readers[0]);
        for (unsigned int i = 0; i < OTHERS; i++)
                join(threads[i]);
        (void)pthread_barrier_destroy(&barrier);
        crowd_size = 1;
}

static void compare(struct reader *self) {
        for (unsigned int i = 0; i < SAMPLES / OTHERS; i++)
                sample(self);
}

/*
 * So quickly that a step back of a microsecond is seen, which a system call would hide; and others'
 * clocks too, since nobody reads the own one while being switched.
 */
static void read_closely(struct reader *self) {
        uint64_t ns;

        for (unsigned int i = 0; i < CLOSE_READS; i++) {
                (void)read_thread(self, &readers[i % (1 + OTHERS)], &ns);
                (void)read_process(self, &ns);
        }
}

static void several_threads(void) {
        crowd(compare);
        judge("several threads", 1 + OTHERS);
        crowd(read_closely);
        judge_order("read closely", collect("read closely"));
}

/* Each reading follows a switch; and how many there were is known exactly. */
static void sleeping(void) {
        struct reader *self = &readers[0];
        unsigned int compared = 0, miscounted = 0;

        for (unsigned int i = 0; i < SLEEPS; i++) {
                struct rusage before, after;
                uint64_t voluntary, involuntary;

                nap();
                sample(self);
                CHECK(getrusage(RUSAGE_THREAD, &before) == 0, "getrusage: %s", strerror(errno));
                voluntary = __atomic_load_n(&self->slot->nvcsw, __ATOMIC_ACQUIRE);
                involuntary = __atomic_load_n(&self->slot->nivcsw, __ATOMIC_ACQUIRE);
                CHECK(getrusage(RUSAGE_THREAD, &after) == 0, "getrusage: %s", strerror(errno));
                if (before.ru_nvcsw != after.ru_nvcsw || before.ru_nivcsw != after.ru_nivcsw)
                        continue;
                compared++;
                miscounted += voluntary != (uint64_t)after.ru_nvcsw ||
                              involuntary != (uint64_t)after.ru_nivcsw;
        }
        judge("sleeping", 1);
        point(compared > SLEEPS / 2 && !miscounted, "sleeping: its switches are counted");
}

/* Looks for what holds at any time: it goes on while others begin and end. */
static void *live_shortly(void *data) {
        struct reader *self = data;
        uint64_t ns;

        begin(self);
        for (unsigned int i = 0; i < SHORT_READS; i++) {
                (void)read_thread(self, self, &ns);
                (void)read_process(self, &ns);
        }
        end(self);
        return NULL;
}

/* Several at once, so that their ends meet; compared with the kernel when they are all gone. */
static void come_and_go(void) {
        unsigned int held = 0;

        for (unsigned int i = 0; i < SHORT_THREADS; i += OTHERS) {
                pthread_t threads[OTHERS];

                for (unsigned int k = 0; k < OTHERS; k++)
                        threads[k] = start(live_shortly, &readers[1 + k]);
                for (unsigned int k = 0; k < OTHERS; k++)
                        join(threads[k]);
                /* Who was joined may still be on its way out, and leaves its entry last. */
                for (unsigned int n = 0; n < LOOKS && page->group.nr_tasks != 1; n++)
                        (void)sched_yield();
                sample(&readers[0]);
        }
        judge("threads that come and go", 1);
        for (uint32_t i = CT_PAGE_FIRST_CELL + page->group.nr_cpus; i < region.entries; i++)
                held += page[i].slot.tid != 0;
        if (!point(page->group.state == CT_PAGE_LIVE && page->group.nr_tasks == 1 && held == 1,
                   "of %u short threads no entry is left", SHORT_THREADS))
                printf("# state %u, why %u; %u threads, %u entries\n", page->group.state,
                       page->group.why, page->group.nr_tasks, held);
        one_thread("after them");
}

static void read_only(void) {
        union ct_page_entry entries[CT_PAGE_CHUNK_ENTRIES] = {};
        void *writable = mmap(NULL, region.size, PROT_READ | PROT_WRITE, MAP_SHARED, region.map_fd, 0);
        __u32 zero = 0;

        point(writable == MAP_FAILED, "the page cannot be mapped for writing");
        point(mprotect((void *)(uintptr_t)page, region.size, PROT_READ | PROT_WRITE) < 0,
              "nor can its mapping be made so");
        point(bpf_map_update_elem(region.map_fd, &zero, entries, BPF_ANY) < 0,
              "nor is it written by bpf(2)");
}

/* A page that nobody writes any more must be known for that. */
static void let_go(void) {
        const struct ct_page_slot *slot = readers[0].slot;
        unsigned int links, programs, answered = 0;
        bool running = true, group;
        uint64_t last_ns, ns;

        links = bpf_objects(bpf_link_get_next_id);
        programs = bpf_objects(bpf_prog_get_next_id);
        if (!point(links == ATTACHED && programs == ATTACHED,
                   "while the loader is open its %u programs are attached", ATTACHED))
                printf("# %u links, %u programs\n", links, programs);
        (void)close(region.map_fd);
        ct_loader_close(loader);
        last_ns = slot->last_ns;
        nap();
        while (answered < LOOKS && running && ct_page_thread(slot, page->group.age_ns, &ns, &running))
                answered++;
        group = ct_page_group(page, &ns);
        if (!point(answered < LOOKS && !group && slot->last_ns == last_ns,
                   "with the loader closed the page goes stale"))
                printf("# P %s, the last news are %lld ns newer\n", group ? "answers" : "does not answer",
                       (long long)(slot->last_ns - last_ns));
        links = bpf_objects(bpf_link_get_next_id);
        programs = bpf_objects(bpf_prog_get_next_id);
        if (!point(links == 0 && programs == 0, "with the loader closed nothing is attached"))
                printf("# %u links, %u programs\n", links, programs);
}

/* --- where the tick stops --------------------------------------------------------------------- */

static unsigned int tickless_cpu;

/* Each round begins with a switch, so with a publication, and goes on until that is too old. */
static void read_tickless(void) {
        struct reader *self = &readers[0];
        unsigned int stale = 0;

        pin(tickless_cpu);
        for (unsigned int round = 0; round < ROUNDS; round++) {
                unsigned int unanswered = self->thread.unanswered;

                nap();
                for (unsigned int i = 0; i < ROUND_READS && self->thread.unanswered == unanswered &&
                     self->thread.n < SAMPLES_MAX; i++)
                        sample(self);
                stale += self->thread.unanswered != unanswered;
        }
        judge("without ticks", 1);
        if (!point(stale >= ROUNDS / 2, "without ticks: the page goes stale"))
                printf("# in %u rounds of %u\n", stale, ROUNDS);
}

static _Atomic bool stop;

static void *burn_tickless(void *data) {
        struct reader *self = data;

        pin(tickless_cpu);
        begin(self);
        (void)pthread_barrier_wait(&barrier);
        while (!atomic_load_explicit(&stop, memory_order_relaxed))
                ;
        end(self);
        return NULL;
}

static void tickless(void) {
        const struct reader *all;
        pthread_t thread;

        read_tickless();

        /* Now from a CPU that has ticks, while somebody runs where there are none. */
        pin(tickless_cpu == 0);
        CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0, "no barrier");
        thread = start(burn_tickless, &readers[1]);
        (void)pthread_barrier_wait(&barrier);
        for (unsigned int i = 0; i < SAMPLES; i++)
                sample(&readers[0]);
        atomic_store(&stop, true);
        join(thread);
        all = collect("beside");
        point(agrees(&all->thread, 1), "beside: the thread clock agrees with the kernel");
        point(all->process.unanswered > all->process.n && all->process.wrong * 100 <= SAMPLES,
              "beside: the process clock is stale");
        judge_order("beside", all);

        one_thread("afterwards");
}

/*
 * libcputime, as a program uses it. Its own count says that the page was read, and the bounds that
 * the kernel was asked where it was stale.
 */
static void library(unsigned int cpu) {
        static struct tally tally;
        struct cputime_stats before, after;
        uint64_t last_ns = 0;
        unsigned int back = 0;

        pin(cpu);
        CHECK(cputime_backend_set(CPUTIME_BACKEND_PAGE) == 0, "no backend page");
        /* Each nap is a switch: without one the page would not be seen to be served. */
        do {
                nap();
                (void)cputime_thread_ns();
                cputime_stats_read(&after);
        } while (!after.reads[CPUTIME_BACKEND_PAGE] && after.reads[CPUTIME_BACKEND_SYSCALL] < NAPS);
        if (!point(after.reads[CPUTIME_BACKEND_PAGE] > 0, "the library gets a page")) {
                printf("# %s: %s\n", after.refusal_step, strerror(after.refusal_error));
                return;
        }
        before = after;
        for (unsigned int i = 0; i < SAMPLES; i++) {
                uint64_t low, ns, high;

                if (i % ROUND_READS == 0)
                        nap();
                low = kernel_ns(CLOCK_THREAD_CPUTIME_ID);
                ns = cputime_thread_ns();
                high = kernel_ns(CLOCK_THREAD_CPUTIME_ID);
                count(&tally, 1, true, low, ns, high);
                back += ns < last_ns;
                last_ns = ns;
        }
        cputime_stats_read(&after);
        figures("the library", "T", &tally);
        printf("# by the page %llu, by the kernel %llu, retreats %llu\n",
               (unsigned long long)(after.reads[CPUTIME_BACKEND_PAGE] - before.reads[CPUTIME_BACKEND_PAGE]),
               (unsigned long long)(after.reads[CPUTIME_BACKEND_SYSCALL] -
                                    before.reads[CPUTIME_BACKEND_SYSCALL]),
               (unsigned long long)(after.retreats - before.retreats));
        point(after.reads[CPUTIME_BACKEND_SYSCALL] - before.reads[CPUTIME_BACKEND_SYSCALL] > SAMPLES / 20,
              "without ticks the library asks the kernel");
        point(agrees(&tally, 1), "without ticks the library agrees with the kernel");
        point(!back, "without ticks the library's clock does not go back");
}

int main(int argc, char *argv[]) {
        unsigned int cpu = argc == 3 ? (unsigned int)atoi(argv[2]) : 0;

        if (argc == 3 && strcmp(argv[1], "--library") == 0) {
                library(cpu);
                return 0;
        }
        if (argc != 1 && (argc != 3 || strcmp(argv[1], "--tickless") != 0)) {
                fputs("page_agrees: use: page_agrees [--tickless CPU | --library CPU]\n", stderr);
                return 2;
        }
        if (!load() || !enrol())
                return 1;
        begin(&readers[0]);
        if (argc == 3) {
                tickless_cpu = cpu;
                tickless();
        } else {
                read_only();
                one_thread("one thread");
                several_threads();
                sleeping();
                come_and_go();
        }
        let_go();
        return 0;
}
