/* SPDX-License-Identifier: MIT */
#ifndef CT_CLOCK_PAGE_H
#define CT_CLOCK_PAGE_H
/*
 * The clocks of a process that has a page (source/page/page.h): fast paths here, and how a process
 * comes to its page and leaves it again in page.c.
 *
 *      T  =  max(floor, T of the page)         floor: the thread's own, p->floor_ns
 *      P  =  max(floor, P of the page)
 *
 * Nothing is written but a count of the reads: what has been returned can be worked out from the
 * page, so it needs no trace. Where the page does not answer, or does not know that the thread
 * runs (an event was lost), the kernel does, and that does leave one: `floor_ns` is raised to it.
 * P must cover such a T too, though the page has less for it: until the page has caught up,
 * `page_leads` says that there is such a thread, slot->page of that one is NULL, and reads of P and
 * of its T come by the slow path, which adds what is missing.
 */
#include "clock/clock.h"
#include "source/page/page-read.h"

/* Whether SLOT's thread, the caller, has a page, and what that says. */
static inline __attribute__((always_inline)) bool
ct_thread_page_fast(struct ct_slot *slot, const struct ct_page_slot *own, uint64_t *ret_ns) {
        bool running = false;
        uint64_t ns = 0;

        if (__builtin_expect(!ct_page_thread(own, ct_load(&ct_page_age_ns), &ns, &running) || !running, 0))
                return false;
        ns = ct_max(ns, ct_load(&slot->floor_ns));
        /* If the page is being left, what it says now is too late to be remembered. */
        if (__builtin_expect(ct_load(&slot->page) != own, 0))
                return false;
        ct_count(&slot->page_reads);
        *ret_ns = ns;
        return true;
}

static inline __attribute__((always_inline)) bool
ct_group_page_fast(struct ct_process *p, struct ct_slot *slot, const union ct_page_entry *page,
                   uint64_t *ret_ns) {
        const struct ct_page_slot *own = ct_load(&slot->page);
        uint64_t ns = 0;

        /* Who reads is running: a page that does not say so has missed it, and P would too. */
        if (__builtin_expect(!own || ct_page_acquire(&own->cpu) < 0 || ct_acquire(&p->page_leads) ||
                             !ct_page_group(page, &ns), 0))
                return false;
        ns = ct_max(ns, ct_acquire(&p->floor_ns));
        if (__builtin_expect(ct_load(&p->page) != page, 0))
                return false;
        ct_count(&slot->page_reads);
        *ret_ns = ns;
        return true;
}

/*
 * Goes one step further on the way to a page; makes a few system calls and never waits. To be
 * called when enrolling is due, until it returns false: there is no page to be had now. True:
 * p->page is there, or it may be soon and the kernel serves meanwhile.
 */
bool ct_page_try(struct ct_process *p);

/* The clocks when the fast path of a process with a page has failed; false: it has none any more. */
bool ct_thread_page_slow(struct ct_process *p, struct ct_slot *slot, uint64_t *ret_ns,
                         enum cputime_backend *ret_backend);
bool ct_group_page_slow(struct ct_process *p, struct ct_slot *slot, uint64_t *ret_ns,
                        enum cputime_backend *ret_backend);

/*
 * The clock of another thread of the process, TID, without a system call. False: the page does
 * not tell, ask the kernel and say so with ct_thread_page_shown().
 */
bool ct_thread_page_of(struct ct_process *p, pid_t tid, uint64_t *ret_ns);

/* The kernel's NS is about to be returned for the clock of SLOT's thread. */
void ct_thread_page_shown(struct ct_process *p, struct ct_slot *slot, uint64_t ns);

/* The least that P must be now so as not to be below what the page can have said; 0 without one. */
uint64_t ct_group_page_bound(struct ct_process *p);

/* The same for the thread TID. */
uint64_t ct_thread_page_bound(struct ct_process *p, pid_t tid);

/* The page has caught up with what was returned for SLOT's thread, or the thread ends. */
void ct_page_lead_end(struct ct_process *p, struct ct_slot *slot);

/* The page's slot of TID, NULL if there is none. */
const struct ct_page_slot *ct_page_find(const union ct_page_entry *page, pid_t tid);

/* Gives the page back; the kernel or another backend serves from now on. Not under the lock. */
void ct_page_leave(struct ct_process *p);

/* In a forked child, of its parent's page: lets the connection go, makes the place readable. */
void ct_page_forked(void);

/* Where the server is asked for a page, from the environment. Before anything else. */
void ct_page_begin(void);

/* The same, for who asks by another way. */
const char *ct_page_socket_path(void);

#endif /* CT_CLOCK_PAGE_H */
