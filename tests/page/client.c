/* SPDX-License-Identifier: MIT */
/*
 * For test-daemon.py, which is the client: what has to be looked at fast enough, the page. A shared
 * library; addresses are those of the calling process. Each function returns 0, or a negative
 * number after a line on stderr.
 *
 * A reading is right if it is within a tick and a half (age_ns) of what the kernel says just before
 * and just after it: so much a page may be off when something is lost. How close it is otherwise is
 * what the contract suite measures.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/nsec.h"
#include "source/page/page-read.h"

#define EXPORT __attribute__((visibility("default")))

/* Of looks at something that comes with a tick, with another one each microsecond. */
#define LOOKS_MAX 20000000

EXPORT int client_wait_live(const union ct_page_entry *page);
EXPORT int client_agree(const union ct_page_entry *page, unsigned int n);
EXPORT int client_goes_stale(const union ct_page_entry *page);

static uint64_t ask(clockid_t clock) {
        struct timespec ts = {};

        (void)ct_sys_clock_gettime(clock, &ts);
        return ct_nsec_from_timespec(&ts);
}

static const struct ct_page_slot *own_slot(const union ct_page_entry *page) {
        pid_t tid = (pid_t)syscall(SYS_gettid);

        for (uint32_t i = CT_PAGE_FIRST_CELL + page->group.nr_cpus; i < page->group.entries; i++)
                if (ct_page_acquire(&page[i].slot.tid) == tid)
                        return &page[i].slot;
        return NULL;
}

/* Until both clocks can be read. */
int client_wait_live(const union ct_page_entry *page) {
        const struct ct_page_slot *slot;
        uint64_t ns;
        bool running;

        for (unsigned int i = 0; i < LOOKS_MAX; i++) {
                slot = own_slot(page);
                if (slot && ct_page_thread(slot, page->group.age_ns, &ns, &running) && running &&
                    ct_page_group(page, &ns))
                        return 0;
        }
        fprintf(stderr, "not live: state %u, why %u, %u threads\n", page->group.state,
                page->group.why, page->group.nr_tasks);
        return -ETIMEDOUT;
}

/* 1: read and right. 0: not read. Negative: wrong. */
static int look(const union ct_page_entry *page, const struct ct_page_slot *slot, uint64_t last[2]) {
        uint64_t age_ns = page->group.age_ns, before, after, ns;
        bool running = false, thread, process;

        /* That this thread, which reads, is on no CPU: then it has not been followed lately. */
        before = ask(CLOCK_THREAD_CPUTIME_ID);
        thread = ct_page_thread(slot, age_ns, &ns, &running) && running;
        after = ask(CLOCK_THREAD_CPUTIME_ID);
        if (thread && (ns + age_ns < before || ns > after + age_ns || ns < last[0])) {
                fprintf(stderr, "thread: page %llu, before %llu, kernel %llu to %llu\n",
                        (unsigned long long)ns, (unsigned long long)last[0],
                        (unsigned long long)before, (unsigned long long)after);
                return -EDOM;
        }
        if (thread)
                last[0] = ns;
        before = ask(CLOCK_PROCESS_CPUTIME_ID);
        process = thread && ct_page_group(page, &ns);
        after = ask(CLOCK_PROCESS_CPUTIME_ID);
        if (process && (ns + age_ns < before || ns > after + age_ns || ns < last[1])) {
                fprintf(stderr, "process: page %llu, before %llu, kernel %llu to %llu\n",
                        (unsigned long long)ns, (unsigned long long)last[1],
                        (unsigned long long)before, (unsigned long long)after);
                return -EDOM;
        }
        if (process)
                last[1] = ns;
        return thread && process;
}

/* Reads N times; half of them at least give an answer. */
int client_agree(const union ct_page_entry *page, unsigned int n) {
        const struct ct_page_slot *slot = own_slot(page);
        uint64_t last[2] = {};
        unsigned int answers = 0;

        for (unsigned int i = 0; slot && i < n; i++) {
                int r = look(page, slot, last);

                if (r < 0)
                        return r;
                answers += (unsigned int)r;
        }
        if (answers >= (n + 1) / 2)
                return 0;
        fprintf(stderr, "%u answers of %u\n", answers, n);
        return -ETIME;
}

/* Reads until there is no answer any more, and on: there must not be one again. */
int client_goes_stale(const union ct_page_entry *page) {
        const struct ct_page_slot *slot = own_slot(page);
        unsigned int silent = 0;
        uint64_t last[2] = {};

        for (unsigned int i = 0; slot && i < LOOKS_MAX; i++) {
                int r = look(page, slot, last);

                if (r < 0)
                        return r;
                silent = r == 0 ? silent + 1 : 0;
                if (silent == 100000)
                        return 0;
        }
        fprintf(stderr, "still read\n");
        return -ETIME;
}
