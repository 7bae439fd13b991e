/* SPDX-License-Identifier: MIT */
/*
 * The table of readers. libc's functions are called by their ordinary names, so that whoever is
 * preloaded gets them: the same code is the reader "libc", "dropin" and every liar.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

#include "contract.h"
#include "sandbox.h"
#include "source/page/page-read.h"

static uint64_t ns(const struct timespec *ts) {
        return (uint64_t)ts->tv_sec * NSEC_PER_SEC + (uint64_t)ts->tv_nsec;
}

/* --- libc, or whoever answers in its place --------------------------------------------------- */

static uint64_t libc_ns(clockid_t clockid) {
        struct timespec ts = { .tv_nsec = -1 };

        if (clock_gettime(clockid, &ts) < 0)
                broken("clock_gettime(%d) failed: %s", (int)clockid, strerror(errno));
        return ns(&ts);
}

static uint64_t libc_thread_ns(void) {
        return libc_ns(CLOCK_THREAD_CPUTIME_ID);
}

static uint64_t libc_process_ns(void) {
        return libc_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static bool libc_thread_ns_of(const struct peer *peer, uint64_t *ret_ns) {
        struct timespec ts;
        int saved_errno = errno;

        if (clock_gettime(peer->clockid, &ts) < 0) {
                if (errno != EINVAL && errno != ESRCH)
                        broken("clock_gettime of another thread's clock failed: %s", strerror(errno));
                errno = saved_errno;
                return false;
        }
        *ret_ns = ns(&ts);
        return true;
}

static struct reading libc_thread_alias(unsigned which) {
        clockid_t clockid = CLOCK_THREAD_CPUTIME_ID;

        if (which % 2 && pthread_getcpuclockid(pthread_self(), &clockid) != 0)
                broken("pthread_getcpuclockid of the calling thread failed");
        return (struct reading){ libc_ns(clockid), 1 };
}

static struct reading libc_process_alias(unsigned which) {
        clockid_t clockid = CLOCK_PROCESS_CPUTIME_ID;
        clock_t clocks;

        switch (which % 4) {
        case 0:
                if (clock_getcpuclockid(getpid(), &clockid) != 0)
                        broken("clock_getcpuclockid of the own process failed");
                break;
        case 1:
                if (clock_getcpuclockid(0, &clockid) != 0)
                        broken("clock_getcpuclockid of process 0 failed");
                break;
        case 2:
                clocks = clock();
                if (clocks == (clock_t)-1)
                        broken("clock() failed");
                return (struct reading){ (uint64_t)clocks * (NSEC_PER_SEC / CLOCKS_PER_SEC),
                                         NSEC_PER_SEC / CLOCKS_PER_SEC };
        default:
                break;
        }
        return (struct reading){ libc_ns(clockid), 1 };
}

static void libc_times(uint64_t *ret_user, uint64_t *ret_system) {
        struct tms tms;

        if (times(&tms) == (clock_t)-1)
                broken("times() failed");
        *ret_user = (uint64_t)tms.tms_utime;
        *ret_system = (uint64_t)tms.tms_stime;
}

/* --- libcputime ------------------------------------------------------------------------------ */

static bool lib_thread_ns_of(const struct peer *peer, uint64_t *ret_ns) {
        int r = cputime_thread_ns_of(peer->tid, ret_ns);

        if (r < 0 && r != -ESRCH)
                broken("cputime_thread_ns_of(%d) says %s", (int)peer->tid, strerror(-r));
        return r == 0;
}

static struct reading lib_thread_alias(unsigned which) {
        struct reading reading = { 0, 1 };
        struct cputime_sample sample;
        int r = 0;

        switch (which % 3) {
        case 0:
                r = cputime_thread_ns_of(0, &reading.ns);
                break;
        case 1:
                r = cputime_thread_ns_of((pid_t)syscall(SYS_gettid), &reading.ns);
                break;
        default:
                cputime_sample_read(&sample);
                if (sample.process_ns < sample.thread_ns)
                        broken("a sample's process clock does not cover its thread clock");
                reading.ns = sample.thread_ns;
                break;
        }
        if (r < 0)
                broken("cputime_thread_ns_of the caller says %s", strerror(-r));
        return reading;
}

static struct reading lib_process_alias(unsigned which) {
        struct cputime_sample sample;

        if (which % 2)
                return (struct reading){ cputime_process_ns(), 1 };
        cputime_sample_read(&sample);
        return (struct reading){ sample.process_ns, 1 };
}

/* libcputime has no user and system time: the kernel's have to fit its process clock. */
static void raw_times(uint64_t *ret_user, uint64_t *ret_system) {
        struct tms tms;

        (void)allowed_syscall(SYS_times, (long)&tms, 0, 0, 0, 0);
        *ret_user = (uint64_t)tms.tms_utime;
        *ret_system = (uint64_t)tms.tms_stime;
}

#define LIBRARY \
        .library = true, .thread_ns = cputime_thread_ns, .process_ns = cputime_process_ns, \
        .thread_ns_of = lib_thread_ns_of, .thread_alias = lib_thread_alias, \
        .process_alias = lib_process_alias, .times = raw_times

#define LIBC \
        .thread_ns = libc_thread_ns, .process_ns = libc_process_ns, \
        .thread_ns_of = libc_thread_ns_of, .thread_alias = libc_thread_alias, \
        .process_alias = libc_process_alias, .times = libc_times

#define LIAR(what, promise, description) \
        { .name = "liar-" what, .title = description, .preload = CONTRACT_LIAR, .lie = what, \
          .caught_by = promise, .backend = CPUTIME_BACKEND_SYSCALL, LIBC }

static const struct reader readers[] = {
        { .name = "libc", .title = "libc and the kernel alone",
          .backend = CPUTIME_BACKEND_SYSCALL, LIBC },
        { .name = "auto", .title = "libcputime, its own choice",
          .backend = CPUTIME_BACKEND_AUTO, LIBRARY },
        { .name = "syscall", .title = "libcputime, backend syscall",
          .backend = CPUTIME_BACKEND_SYSCALL, LIBRARY },
        { .name = "ring", .title = "libcputime, backend ring",
          .backend = CPUTIME_BACKEND_RING, LIBRARY },
        { .name = "header", .title = "libcputime, backend header",
          .backend = CPUTIME_BACKEND_HEADER, LIBRARY },
        { .name = "dropin", .title = "libc under the drop-in, its own choice",
          .preload = CONTRACT_DROPIN, .backend = CPUTIME_BACKEND_AUTO, LIBC },
        { .name = "dropin-ring", .title = "libc under the drop-in, backend ring",
          .preload = CONTRACT_DROPIN, .environment = "CPUTIME_BACKEND=ring",
          .backend = CPUTIME_BACKEND_RING, LIBC },
        { .name = "page", .title = "libcputime, backend page", .paged = true,
          .backend = CPUTIME_BACKEND_PAGE, LIBRARY },
        { .name = "auto-page", .title = "libcputime, its own choice beside a page server", .paged = true,
          .backend = CPUTIME_BACKEND_AUTO, LIBRARY },
        { .name = "dropin-page", .title = "libc under the drop-in, backend page", .paged = true,
          .preload = CONTRACT_DROPIN, .environment = "CPUTIME_BACKEND=page",
          .backend = CPUTIME_BACKEND_PAGE, LIBC },

        LIAR("back", "thread_clock_never_goes_backwards", "one reading in 1000 is 1 us late"),
        LIAR("peer", "thread_clock_never_goes_backwards",
             "a clock is told 20 us late under its dynamic number"),
        LIAR("back", "process_clock_never_goes_backwards", "one reading in 1000 is 1 us late"),
        LIAR("cache", "process_clock_never_goes_backwards",
             "each thread serves every second reading of P from its last"),
        LIAR("alone", "process_clock_covers_its_threads", "P is the calling thread's clock"),
        LIAR("ended", "process_clock_covers_its_threads", "P loses the time of ended threads"),
        LIAR("ahead", "error_is_bounded_and_does_not_grow", "both clocks are 3 ms ahead"),
        LIAR("drift", "error_is_bounded_and_does_not_grow", "T loses 5 us per switch"),
        LIAR("double", "error_is_bounded_and_does_not_grow", "P counts the calling thread twice"),
        LIAR("tick", "error_is_bounded_and_does_not_grow", "P moves once a tick"),
        LIAR("noisy", "reading_changes_nothing", "each reading makes one more system call"),
        LIAR("errno", "reading_changes_nothing", "a reading changes errno"),
        LIAR("leak", "reading_changes_nothing", "a reading allocates"),
        LIAR("early", "sleep_until_is_not_early", "both clocks are 2 ms behind"),
        LIAR("inherit", "child_starts_at_zero", "a child never reads less than its parent read"),
        LIAR("fragile", "no_fast_path_is_no_failure", "complains when perf is refused"),
        LIAR("eager", "idle_costs_nothing", "opens a descriptor when loaded"),
        LIAR("keep", "idle_costs_nothing", "keeps each thread's event after its end"),
        LIAR("split", "user_plus_system_is_runtime", "times() loses a tenth of the system time"),
        LIAR("swap", "user_plus_system_is_runtime",
             "times() now and then gives user time for system time"),
};
#define N_READERS (sizeof(readers) / sizeof(readers[0]))

const struct reader *reader_at(unsigned i) {
        return i < N_READERS ? &readers[i] : NULL;
}

const struct reader *reader_find(const char *name) {
        for (unsigned i = 0; i < N_READERS; i++)
                if (strcmp(readers[i].name, name) == 0)
                        return &readers[i];
        return NULL;
}

static bool usable(enum cputime_backend backend) {
        struct cputime_probe probe;

        return cputime_backend_probe(backend, &probe) == 0 && probe.error == 0;
}

/* Calls FUNCTION, if there is one, with each page that is mapped here; returns how many. */
static unsigned for_each_page(void (*function)(const union ct_page_entry *page, void *argument),
                              void *argument) {
        FILE *f = fopen("/proc/self/maps", "re");
        unsigned n = 0;
        char line[512];
        uintptr_t at;

        if (!f) {
                broken("the test could not read /proc/self/maps");
                return 0;
        }
        while (fgets(line, sizeof(line), f)) {
                if (!strstr(line, "anon_inode:bpf-map") || sscanf(line, "%" SCNxPTR, &at) != 1)
                        continue;
                n++;
                if (function)
                        function((const void *)at, argument);
        }
        fclose(f);
        return n;
}

unsigned pages_mapped(void) {
        return for_each_page(NULL, NULL);
}

static void answers(const union ct_page_entry *page, void *argument) {
        bool *any = argument;
        uint64_t now_ns;

        *any |= ct_page_group(page, &now_ns);
}

bool page_serves(void) {
        struct cputime_sample sample;
        bool any = false;

        if (reader->library) {
                cputime_sample_read(&sample);
                return sample.thread_backend == CPUTIME_BACKEND_PAGE &&
                       sample.process_backend == CPUTIME_BACKEND_PAGE;
        }
        /* The drop-in does not say who served; but a page that answers is taken by the next read. */
        (void)for_each_page(answers, &any);
        for (unsigned i = 0; i < 3; i++) {
                (void)reader->thread_ns();
                (void)reader->process_ns();
        }
        return any;
}

void await_page(void) {
        struct timespec nap = { .tv_nsec = 1000000 };

        if (!reader->paged)
                return;
        /* Of naps, not of time. A refusal is tried again after one second, two, and four. */
        for (unsigned i = 0; i < 20000; i++) {
                if (page_serves())
                        return;
                for (unsigned k = 0; k < 200; k++) {
                        (void)reader->thread_ns();
                        (void)reader->process_ns();
                }
                nanosleep(&nap, NULL);
        }
        broken("no page serves after 20000 naps of 1 ms, %u are mapped", pages_mapped());
        if (reader->library) {
                struct cputime_stats stats;

                cputime_stats_read(&stats);
                note("  the last refusal: %s: %s; %llu refusals, %llu retreats", stats.refusal_step,
                     strerror(stats.refusal_error), (unsigned long long)stats.refusals,
                     (unsigned long long)stats.retreats);
        }
}

bool reader_process_is_fast(void) {
        if (reader->paged)
                return true;
        return (reader->backend == CPUTIME_BACKEND_RING ||
                reader->backend == CPUTIME_BACKEND_AUTO) && usable(CPUTIME_BACKEND_RING);
}

bool reader_thread_is_fast(void) {
        return reader_process_is_fast() ||
               ((reader->backend == CPUTIME_BACKEND_HEADER ||
                 reader->backend == CPUTIME_BACKEND_AUTO) && usable(CPUTIME_BACKEND_HEADER));
}
