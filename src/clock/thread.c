/* SPDX-License-Identifier: MIT */
/*
 * The thread clock's slow path: asking the kernel, enrolling, anchors, and when to give up.
 *
 * An anchor is the kernel's answer K and a time read after it, so the fast clock is never ahead of
 * the kernel's by the cost of asking; it can be ahead by what the kernel does not charge: time that
 * a hypervisor took, or interrupts under CONFIG_IRQ_TIME_ACCOUNTING, since the anchor. That is
 * bounded by the anchor's age, and taken back by standing still: at the next anchor the clock stays
 * where it was, at `last_ns`, until K has caught up.
 *
 * The kernel's clock can also run ahead of its extrapolation: a hypervisor that moves a virtual CPU
 * may set the scheduler's clock a microsecond forward against the counter. The thread's next
 * anchor follows, and would leave the process clock's, taken before, behind. `doubt` makes the
 * process clock take a new one: it is raised whenever a thread clock comes from the kernel and
 * has not been shown to be where the last anchor said.
 *
 * Enrolling costs tens of microseconds, an enrolled thread pays for each switch (bench pipe:
 * header +0.3, ring +0.5 us on the machine in the README), and a fast read saves about as much as
 * a switch costs. So: enrol after CT_ENROL_READS answers of the kernel, keep a balance of fast
 * reads minus switches, and retreat when it says that the thread lost by it.
 */
#include <errno.h>
#include <unistd.h>

#include "base/nsec.h"
#include "base/signals.h"
#include "clock/clock.h"
#include "clock/page.h"
#include "clock/thread.h"

#define CT_ENROL_READS 128

/* Asking the kernel takes a microsecond or less, some twenty in an emulated machine. */
#define CT_ASK_NS (50 * CT_NSEC_PER_USEC)
#define CT_BALANCE_MAX 4096
#define CT_BALANCE_RETREAT (-1024)

/* After a refusal that can pass (descriptors, memory, quota), and after a retreat, this many more. */
#define CT_RETRY_READS 4096

/* For ct_slot_thread_ahead(), which may be looking from another thread. Pairs with its loads. */
#define ct_publish(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define ct_observe(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)

static uint64_t ct_ask(clockid_t clockid) {
        struct timespec ts = {};

        (void)ct_sys_clock_gettime(clockid, &ts);
        return ct_nsec_from_timespec(&ts);
}

uint64_t ct_ask_thread(void) {
        return ct_ask(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t ct_ask_process(void) {
        return ct_ask(CLOCK_PROCESS_CPUTIME_ID);
}

int ct_ask_thread_of(pid_t tid, uint64_t *ret_ns) {
        struct timespec ts;
        int r;

        r = ct_sys_clock_gettime(ct_thread_clockid(tid), &ts);
        if (r < 0)
                return r;
        *ret_ns = ct_nsec_from_timespec(&ts);
        return 0;
}

static uint64_t ct_slot_fast_count(const struct ct_slot *slot) {
        uint64_t slow = ct_acquire(&slot->slow_versions);

        return ct_load(&slot->version) - slow;
}

void ct_slot_fast_reads(const struct ct_slot *slot, uint64_t ret_reads[CPUTIME_BACKEND_MAX]) {
        uint64_t rest = ct_slot_fast_count(slot);

        for (unsigned int b = 0; b < CPUTIME_BACKEND_MAX; b++) {
                ret_reads[b] = ct_load(&slot->fast_before[b]);
                rest -= ret_reads[b];
        }
        ret_reads[ct_load(&slot->backend)] += rest;
        ret_reads[CPUTIME_BACKEND_RING] += ct_load(&slot->group_version);
        ret_reads[CPUTIME_BACKEND_PAGE] += ct_load(&slot->page_reads);
}

static void ct_thread_set_backend(struct ct_slot *slot, enum cputime_backend backend) {
        uint64_t before = 0;

        for (unsigned int b = 0; b < CPUTIME_BACKEND_MAX; b++)
                before += ct_load(&slot->fast_before[b]);
        ct_store(&slot->fast_before[ct_load(&slot->backend)],
                 ct_load(&slot->fast_before[ct_load(&slot->backend)]) + ct_slot_fast_count(slot) - before);
        ct_store(&slot->backend, backend);
        slot->balance = 0;
        slot->version_at_anchor = ct_load(&slot->version);
        ct_publish(&slot->anchors[ct_load(&slot->current)].limit, 0);
}

static enum ct_perf_kind ct_slot_kind(const struct ct_slot *slot) {
        return ct_load(&slot->backend) == CPUTIME_BACKEND_RING ? CT_PERF_RING : CT_PERF_HEADER;
}

/* Every slow read ends here: the value that is returned, made monotone, and the counts. */
static uint64_t ct_thread_return(struct ct_slot *slot, uint64_t ns) {
        ns = ct_max(ns, ct_load(&slot->last_ns));
        ns = ct_max(ns, ct_load(&slot->floor_ns));
        ct_raise(&slot->last_ns, ns);
        /* In this order, so that who subtracts them never gets less than nothing. */
        ct_release(&slot->version, ct_load(&slot->version) + 1);
        ct_release(&slot->slow_versions, ct_load(&slot->slow_versions) + 1);
        return ns;
}

/* The process clock's anchor may be behind what is about to be returned for a thread's. */
void ct_group_doubt(struct ct_process *p) {
        if (atomic_load_explicit(&p->group, memory_order_relaxed))
                atomic_fetch_add_explicit(&p->doubt, 1, memory_order_release);
}

static int ct_anchor_alloc(struct ct_slot *slot) {
        for (unsigned int i = 0; i < CT_ANCHORS; i++) {
                uint32_t bit = UINT32_C(1) << i;

                if (!(ct_load(&slot->anchors_busy) & bit) &&
                    !(atomic_fetch_or_explicit(&slot->anchors_busy, bit, memory_order_relaxed) & bit))
                        return (int)i;
        }
        /* Handlers that jumped out of the slow path keep what they had; this deep, ask the kernel. */
        return -1;
}

static void ct_anchor_free(struct ct_slot *slot, int i) {
        atomic_fetch_and_explicit(&slot->anchors_busy, ~(UINT32_C(1) << i), memory_order_relaxed);
}

/*
 * Takes a new anchor and returns the kernel's answer. False: switched three times while asking, or
 * the event is gone. *ret_switched is how many switches there were since the last anchor.
 */
static bool ct_thread_anchor(struct ct_process *p, struct ct_slot *slot, uint64_t *ret_ns,
                             uint32_t *ret_switched) {
        enum ct_perf_kind kind = ct_slot_kind(slot);
        const volatile uint32_t *word = ct_slot_change_word(p, slot, kind);
        const struct ct_anchor *old = &slot->anchors[ct_load(&slot->current)];
        uint32_t old_change = old->limit ? old->change : *word, change = 0;
        struct ct_time_pair last = old->pair;
        struct ct_timebase timebase;
        struct ct_anchor *anchor;
        uint64_t ns = 0, before, start = 0, width = 0;
        bool sure = false;
        int i;

        i = ct_anchor_alloc(slot);
        if (i < 0)
                return false;
        for (unsigned int try = 0;; try++) {
                if (try == 3 || *word == CT_PERF_POISON) {
                        ct_anchor_free(slot, i);
                        return false;
                }
                change = *word;
                ct_timebase_get(CPUTIME_ANCHOR_NS, &last, &timebase);
                before = ct_time_now(timebase.counter);
                ns = ct_ask_thread();
                start = ct_time_now(timebase.counter);
                width = start - before;
                /* A pause while asking would put the clock behind for as long as the anchor lives. */
                if (width <= UINT32_MAX && try < 2 &&
                    ct_ticks_to_ns(width, timebase.mult) > CT_ASK_NS)
                        continue;
                if (*word == change)
                        break;
        }

        /* The old anchor was at most its width behind; more is the kernel's clock gone ahead. */
        if (old->limit && old->change_word == word && old->change == change &&
            old->counter == timebase.counter && start - old->start <= UINT32_MAX)
                sure = ns <= ct_runtime_at(old->base_ns, 1,
                                           ct_ticks_to_ns(start - old->start + old->width, old->mult));
        if (!sure)
                ct_group_doubt(p);

        anchor = &slot->anchors[i];
        ct_publish(&anchor->start, start);
        ct_publish(&anchor->limit, timebase.max_age);
        ct_publish(&anchor->base_ns, ns);
        ct_publish(&anchor->change_word, (const uint32_t *)word);
        ct_publish(&anchor->change, change);
        ct_publish(&anchor->mult, timebase.mult);
        ct_publish(&anchor->counter, timebase.counter);
        anchor->width = width < UINT32_MAX ? (uint32_t)width : UINT32_MAX;
        anchor->pair = timebase.pair;
        i = (int)atomic_exchange_explicit(&slot->current, (uint32_t)i, memory_order_release);
        atomic_store_explicit(&slot->sequence, ct_load(&slot->sequence) + 1, memory_order_release);
        ct_anchor_free(slot, i);
        ct_count(&slot->n_anchors);

        *ret_switched = (change - old_change) / (kind == CT_PERF_RING ? 32 : 2);
        *ret_ns = ns;
        return true;
}

uint64_t ct_slot_thread_ahead(const struct ct_slot *slot) {
        for (unsigned int try = 0; try < 3; try++) {
                uint32_t sequence = ct_acquire(&slot->sequence);
                uint32_t current = ct_acquire(&slot->current);
                const struct ct_anchor *anchor = &slot->anchors[current];
                uint64_t start = ct_observe(&anchor->start), limit = ct_observe(&anchor->limit);
                uint64_t base_ns = ct_observe(&anchor->base_ns);
                const volatile uint32_t *word = ct_observe(&anchor->change_word);
                uint32_t change = ct_observe(&anchor->change);
                uint32_t mult = ct_observe(&anchor->mult), counter = ct_observe(&anchor->counter);
                uint64_t age, ns, last_ns;

                if (ct_acquire(&slot->sequence) != sequence)
                        continue;
                age = ct_time_now_ordered(counter) - start;
                if (age >= limit || *word != change)
                        break;
                last_ns = ct_acquire(&slot->last_ns);
                ns = ct_runtime_at(base_ns, 1, ct_ticks_to_ns(age, mult));
                return ns > last_ns ? ns - last_ns : 0;
        }
        return 0;
}

bool ct_refused_for_good(int r) {
        return r == -EPERM || r == -EACCES || r == -ENOSYS || r == -ENOENT || r == -EOPNOTSUPP ||
               r == -ENODEV || r == -EINVAL;
}

static bool ct_thread_enrol(struct ct_process *p, struct ct_slot *slot) {
        bool ring = slot->mode == CPUTIME_BACKEND_RING || ct_acquire(&slot->ring);
        enum ct_perf_kind kind = ring ? CT_PERF_RING : CT_PERF_HEADER;
        struct ct_signal_mask mask;
        int r = 0;

        if (slot->mode == CPUTIME_BACKEND_AUTO && ct_sandboxed()) {
                ct_process_refused(p, EPERM, "prctl(PR_GET_SECCOMP)");
                slot->enrol_at = UINT64_MAX;
                return false;
        }
        if (!ct_process_enter(p, &mask))
                return false;           /* at the next read */
        if (!ct_load(ring ? &slot->ring : &slot->header)) {
                r = ct_slot_map(p, slot, kind);
                if (r == 0 && ring)
                        p->complete = 0;        /* the group may have watched an older event */
        }
        ct_process_leave(p, &mask);
        if (r < 0) {
                slot->enrol_at = ct_refused_for_good(r) ?
                        UINT64_MAX : ct_load(&slot->asked_thread) + CT_RETRY_READS;
                return false;
        }
        ct_thread_set_backend(slot, ring ? CPUTIME_BACKEND_RING : CPUTIME_BACKEND_HEADER);
        return true;
}

/* Gives the thread clock back to the kernel; a ring that the process clock uses stays. */
static void ct_thread_retreat(struct ct_process *p, struct ct_slot *slot) {
        struct ct_signal_mask mask;

        ct_thread_set_backend(slot, CPUTIME_BACKEND_SYSCALL);
        if (ct_process_enter(p, &mask)) {
                ct_slot_unmap(p, slot, CT_PERF_HEADER);
                if (!ct_load(&p->group))
                        ct_slot_unmap(p, slot, CT_PERF_RING);
                ct_process_leave(p, &mask);
        }
}

/* Reads gained and switches paid for since the last anchor; false when it no longer pays. */
static bool ct_thread_pays(struct ct_slot *slot, uint32_t switched) {
        uint64_t gained = ct_load(&slot->version) - slot->version_at_anchor;
        int64_t balance = slot->balance;

        slot->version_at_anchor = ct_load(&slot->version) + 1;  /* this read is not a gain */
        balance += gained < CT_BALANCE_MAX ? (int64_t)gained : CT_BALANCE_MAX;
        balance -= switched < CT_BALANCE_MAX ? (int64_t)switched : CT_BALANCE_MAX;
        if (balance < 2 * CT_BALANCE_RETREAT)
                balance = 2 * CT_BALANCE_RETREAT;
        slot->balance = balance > CT_BALANCE_MAX ? CT_BALANCE_MAX : (int32_t)balance;
        return slot->mode != CPUTIME_BACKEND_AUTO || slot->balance > CT_BALANCE_RETREAT;
}

static bool ct_thread_serve(struct ct_process *p, struct ct_slot *slot, uint64_t *ret_ns) {
        uint32_t mode = ct_load(&ct_mode), switched;

        if (__builtin_expect(slot->mode != mode, 0)) {
                slot->mode = mode;
                slot->enrol_at = 0;
                if (ct_load(&slot->backend) != CPUTIME_BACKEND_SYSCALL)
                        ct_thread_retreat(p, slot);
        }
        if (mode == CPUTIME_BACKEND_SYSCALL)
                return false;

        if (ct_load(&slot->backend) == CPUTIME_BACKEND_RING && !ct_acquire(&slot->ring)) {
                /* The group gave up; the thread's own reads had paid for an event of its own. */
                ct_thread_set_backend(slot, CPUTIME_BACKEND_SYSCALL);
                slot->enrol_at = 0;
        } else if (ct_load(&slot->backend) == CPUTIME_BACKEND_HEADER && !ct_load(&slot->header)) {
                /* A handler enrolled in the middle of a retreat. */
                ct_thread_set_backend(slot, CPUTIME_BACKEND_SYSCALL);
        } else if (ct_load(&slot->backend) == CPUTIME_BACKEND_HEADER && mode == CPUTIME_BACKEND_AUTO &&
                   ct_acquire(&slot->ring)) {
                /* One event is enough, and the group needs the ring. */
                struct ct_signal_mask mask;

                ct_thread_set_backend(slot, CPUTIME_BACKEND_RING);
                if (ct_process_enter(p, &mask)) {
                        ct_slot_unmap(p, slot, CT_PERF_HEADER);
                        ct_process_leave(p, &mask);
                }
        }
        if (ct_load(&slot->backend) == CPUTIME_BACKEND_SYSCALL) {
                uint64_t asked = ct_load(&slot->asked_thread);

                if (slot->enrol_at == 0 && slot->n_retreats == 0 && mode == CPUTIME_BACKEND_AUTO)
                        slot->enrol_at = CT_ENROL_READS;
                if (asked < slot->enrol_at)
                        return false;
                /* A page is better, if there is one, and serves at the next read then. */
                if ((mode == CPUTIME_BACKEND_PAGE || mode == CPUTIME_BACKEND_AUTO) &&
                    (ct_page_try(p) || mode == CPUTIME_BACKEND_PAGE))
                        return false;
                if (!ct_thread_enrol(p, slot))
                        return false;
        }

        if (!ct_thread_anchor(p, slot, ret_ns, &switched))
                return false;
        if (!ct_thread_pays(slot, switched)) {
                unsigned int shift = slot->n_retreats < 8 ? slot->n_retreats : 8;

                ct_thread_retreat(p, slot);
                slot->n_retreats++;
                slot->enrol_at = ct_load(&slot->asked_thread) + ((uint64_t)CT_RETRY_READS << shift);
                atomic_fetch_add_explicit(&p->retreats, 1, memory_order_relaxed);
        }
        return true;
}

uint64_t ct_thread_slow(enum cputime_backend *ret_backend) {
        enum cputime_backend backend = CPUTIME_BACKEND_SYSCALL;
        struct ct_process *p;
        struct ct_slot *slot;
        uint64_t ns;

        if (ret_backend)
                *ret_backend = CPUTIME_BACKEND_SYSCALL;
        if (__builtin_expect(ct_self.vforked || ct_load(&ct_disabled), 0)) {
                /* The parent's thread, or a process that borrowed its memory? */
                ns = ct_ask_thread();
                p = ct_process_peek();
                if (!p || ct_load(&p->pid) != getpid())
                        return ns;
                slot = ct_self.slot;
                return slot ? ct_thread_return(slot, ct_max(ns, ct_thread_page_bound(p, ct_load(&slot->tid)))) :
                        ct_max(ns, ct_self.floor_ns);
        }
        p = ct_process_get();
        slot = p ? ct_slot_own(p) : NULL;
        if (!slot) {
                if (p)
                        atomic_fetch_add_explicit(&p->early_reads, 1, memory_order_relaxed);
                ns = ct_ask_thread();
                if (!p)
                        return ns;
                ct_group_doubt(p);
                /* Its slot, if it gets one, goes on from there. */
                if (ct_self.epoch != p->epoch) {
                        ct_self.epoch = p->epoch;
                        ct_self.floor_ns = 0;
                }
                ct_self.floor_ns = ct_max(ns, ct_self.floor_ns);
                return ct_self.floor_ns;
        }
        if (ct_thread_page_slow(p, slot, &ns, &backend)) {
                if (ret_backend)
                        *ret_backend = backend;
                return ns;
        }
        if (!ct_thread_serve(p, slot, &ns)) {
                ns = ct_ask_thread();
                ct_group_doubt(p);
                ct_count(&slot->asked_thread);
        } else if (ret_backend) {
                *ret_backend = ct_load(&slot->backend);
        }
        return ct_thread_return(slot, ns);
}

void ct_clock_disable(void) {
        struct ct_slot *slot = ct_self.slot;

        if (slot)
                ct_self.floor_ns = ct_max(ct_max(ct_load(&slot->last_ns), ct_load(&slot->floor_ns)),
                                          ct_thread_page_bound(ct_process_peek(), ct_load(&slot->tid)));
        ct_self.vforked = 1;
        ct_self.slot = NULL;
        ct_store(&ct_disabled, 1);
}
