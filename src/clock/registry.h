/* SPDX-License-Identifier: MIT */
#ifndef CT_REGISTRY_H
#define CT_REGISTRY_H
/*
 * Who reads clocks in this process: one slot a thread, one record for the process.
 *
 * Everything here lives in one anonymous mapping that the kernel wipes in a forked child
 * (MADV_WIPEONFORK): however the child came to be, fork(2), a raw clone(2), it finds zeroes, which
 * mean "nothing enrolled", and begins anew. The perf mappings are not inherited at all; nobody
 * follows a pointer to them before an age limit that zeroes make fail.
 *
 * Ownership. A slot's upper two parts and its anchors are written by its thread alone, but for
 * floor_ns, which anybody may raise. Everything else is written under the process's lock. The lock
 * is only ever tried: who does not get it asks the kernel instead. It is held with all signals
 * blocked, so a handler never finds it held by the thread it interrupted.
 *
 * What a thread's fast path writes (`version`, `last_ns`, `group_version`, `group_last_ns`) no other
 * thread's fast path reads. Slow paths of others read the last values, to keep promises across
 * threads.
 *
 * The arena is address space for every slot's perf mappings. An event is taken down by moving a
 * poisoned page over it: addresses once handed out stay readable for ever, so a reader may follow
 * them without knowing whether the thread behind has ended.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/signals.h"
#include "clock/self.h"
#include "clock/timebase.h"
#include "cputime/clock.h"
#include "source/perf/perf-map.h"

/* Fast clocks need 64-bit loads that cannot tear. */
#define CT_FAST_CLOCKS (__SIZEOF_POINTER__ == 8)

/* Threads with a slot of their own at one time; the others are served by the kernel. */
#define CT_SLOTS_MAX 4096

/* Threads that one process clock watches; more, and the walk costs as much as the kernel's. */
#define CT_MEMBERS_MAX 512

/* Not an id: free once no visitor is left; and never again, its events could not be taken down. */
#define CT_TID_ENDED (-1)
#define CT_TID_STUCK (-2)

/* Threads that have just ended, remembered: see ct_thread_ending(). */
#define CT_ENDINGS 32

/* Anchors of a slot: one in force, the others for slow paths that interrupt each other. */
#define CT_ANCHORS 4

/*
 * "At counter value `start` the clock was `base_ns`, and it runs, until `limit` ticks have passed
 * or the change word differs." Filled in private, then put in force with one store, never changed
 * while in force: a signal handler that takes an anchor in the middle of another's slow path
 * cannot tear it.
 */
struct ct_anchor {
        uint64_t start;
        uint64_t limit;                 /* ticks; 0: not valid */
        uint64_t base_ns;
        const uint32_t *change_word;
        uint32_t change;
        uint32_t mult;
        uint32_t counter;
        uint32_t width;                 /* ticks that asking the kernel took, saturated */
        struct ct_time_pair pair;
};
_Static_assert(sizeof(struct ct_anchor) == 64, "an anchor is one cache line");

union ct_page_entry;
struct ct_page_slot;

struct ct_slot {
        /* The owner's fast paths. */
        _Atomic uint32_t current;       /* index of the anchor in force */
        _Atomic pid_t tid;              /* 0: free, or wiped by fork; CT_TID_ENDED, CT_TID_STUCK */
        _Atomic uint64_t version;       /* of the thread clock: bumped by every read */
        _Atomic uint64_t last_ns;       /* what the thread's clock returned last */
        _Atomic uint64_t floor_ns;      /* what anybody returned for it, and anchors must not undercut */
        _Atomic uint64_t group_version; /* the same for the process clock, read by this thread */
        _Atomic uint64_t group_last_ns;
        const struct ct_page_slot *_Atomic page;        /* where the page has this thread; NULL: no page */
        _Atomic uint64_t page_reads;    /* of either clock, served by it */

        /* The owner's slow path. */
        _Atomic uint32_t anchors_busy __attribute__((aligned(64)));  /* bit i: anchor i is in force or being filled */
        _Atomic uint32_t backend;       /* enum cputime_backend that serves the thread clock */
        _Atomic uint32_t sequence;      /* anchors put in force, for readers in other threads */
        uint32_t mode;                  /* the forced backend that this was decided under */
        int32_t balance;                /* fast reads gained minus switches paid for */
        uint32_t n_retreats;
        uint64_t enrol_at;              /* asked_thread at which enrolling pays */
        uint64_t version_at_anchor;
        _Atomic uint64_t asked_thread;  /* reads that the kernel served, by clock */
        _Atomic uint64_t asked_group;
        _Atomic uint64_t n_anchors;
        _Atomic uint64_t page_stale_ns;         /* since when the page has not served, coarse clock */
        _Atomic uint64_t page_stale_reads;      /* page_reads then, and one; 0: it has */
        _Atomic uint32_t page_led;      /* more has been returned than the page has yet */

        /* Under the lock. */
        _Atomic uint32_t header __attribute__((aligned(64)));   /* the header event is mapped */
        _Atomic uint32_t ring;          /* the ring event is mapped */
        uint32_t attached;              /* its thread knows of it; else made for a sibling */
        _Atomic uint64_t fast_before[CPUTIME_BACKEND_MAX];      /* fast reads by earlier backends */
        _Atomic uint64_t slow_versions; /* version bumps that were not fast reads */

        struct ct_anchor anchors[CT_ANCHORS] __attribute__((aligned(64)));
} __attribute__((aligned(64)));
_Static_assert(offsetof(struct ct_slot, anchors_busy) == 64, "the fast paths' part is one line");
_Static_assert(offsetof(struct ct_slot, anchors) % 64 == 0, "and an anchor one more");

/* One watched thread, as the process clock's readers walk them. */
struct ct_member {
        const uint32_t *_Atomic change_word;
        _Atomic uint32_t change;        /* as of the process anchor */
        uint32_t slot;
};

/* What the anchor in the making knows of the member. */
struct ct_look {
        uint32_t known, running;
        uint32_t head;
        pid_t tid;
};

struct ct_process {
        _Atomic uint32_t lock;
        _Atomic uint64_t locked_ns;     /* since when */
        _Atomic pid_t pid;              /* 0: not begun */
        uint64_t epoch;                 /* when, CLOCK_MONOTONIC_RAW in ns: no child has its parent's */
        _Atomic uint32_t n_visitors;    /* threads that are looking at others' slots */
        _Atomic uint32_t first_slot;

        /* The process clock's anchor; readers retry when `sequence` is odd or has moved. */
        _Atomic uint32_t sequence __attribute__((aligned(64)));
        _Atomic uint32_t n_watched;     /* the first so many members are walked by readers */
        _Atomic uint64_t start;
        _Atomic uint64_t limit;
        _Atomic uint64_t base_ns;
        _Atomic uint32_t nr_running;
        _Atomic uint32_t mult;
        _Atomic uint32_t counter;
        _Atomic uint32_t doubt;         /* bumped when the kernel's clock outran its extrapolation */
        _Atomic uint32_t anchor_doubt;  /* doubt, as of before the kernel was asked */
        _Atomic uint64_t floor_ns;      /* no process clock may be below */
        _Atomic uint32_t group;         /* the process clock is enrolled */

        /* The page, see page.h. */
        const union ct_page_entry *_Atomic page __attribute__((aligned(64)));   /* NULL: none */
        _Atomic uint32_t page_leads;    /* threads for which more has been returned than it has yet */
        _Atomic uint32_t page_leaving;  /* the floors are just being raised */
        uint32_t page_progress;         /* under the lock, as the rest */
        uint32_t page_retries;
        _Atomic uint64_t page_at_ns;    /* coarse clock before which not to try again */
        _Atomic uint64_t page_poll_ns;  /* before which not to look for an answer again */
        uint64_t page_asked_ns;

        /* Slow path only. */
        _Atomic uint64_t ended_last_ns __attribute__((aligned(64)));   /* last_ns of ended threads */
        _Atomic uint32_t slots_sequence;        /* odd while a slot is being released */
        _Atomic uint32_t enrolled;      /* threads or a group were ever enrolled */
        _Atomic uint32_t n_members;
        uint32_t n_cpus;                /* that this machine can ever have; 0: not known */
        uint32_t complete;              /* every live thread was a member at the last scan */
        int32_t balance;
        uint32_t n_retreats;
        uint64_t group_reads;           /* all threads' fast reads when the balance was last drawn */
        _Atomic uint64_t group_at_ns;   /* coarse clock before which not to try again */
        struct ct_time_pair pair;
        char *_Atomic arena;            /* NULL: no event was ever mapped */
        _Atomic uint64_t early_reads;   /* by threads without a slot */
        _Atomic uint64_t fast_ended[CPUTIME_BACKEND_MAX];
        _Atomic uint64_t group_ended;   /* of the ring's, those of the process clock */
        _Atomic uint64_t asked_ended;
        _Atomic uint64_t anchors_ended, group_anchors;
        _Atomic uint64_t enrolments, retreats, refusals;
        _Atomic int refusal_error;
        const char *_Atomic refusal_step;

        struct {
                pid_t tid;
                uint64_t at_ns;
        } endings[CT_ENDINGS];          /* threads that gave their slot back and are about to end */
        uint32_t n_endings;
        uint64_t reaped_ns;             /* when ended threads were last looked for */
        struct ct_look looks[CT_MEMBERS_MAX];
        struct ct_member members[CT_MEMBERS_MAX];
};

/* The process's record; NULL where there can be none. Maps it at the first call. */
struct ct_process *ct_process_get(void);

/* The same if it exists already. Hidden where it is declared, so that no table is gone through. */
extern _Atomic(struct ct_process *) ct_process __attribute__((visibility("hidden")));

static inline struct ct_process *ct_process_peek(void) {
        return atomic_load_explicit(&ct_process, memory_order_acquire);
}

/* Slot i, for ct_slots_first(p) <= i < ct_slots_end(). */
struct ct_slot *ct_slot_at(uint32_t i);
uint32_t ct_slots_end(void);

static inline uint32_t ct_slots_first(const struct ct_process *p) {
        return atomic_load_explicit(&p->first_slot, memory_order_relaxed);
}

/* The lock, taken with all signals blocked; false if it is held, see registry.c. */
bool ct_process_enter(struct ct_process *p, struct ct_signal_mask *ret_mask);
void ct_process_leave(struct ct_process *p, const struct ct_signal_mask *mask);

/* The calling thread's slot, made if it is due; NULL: none (yet). */
struct ct_slot *ct_slot_own(struct ct_process *p);

/* Under the lock: the slot of TID, NULL if none; a fresh one, NULL if there is no room. */
struct ct_slot *ct_slot_find(struct ct_process *p, pid_t tid);
struct ct_slot *ct_slot_new(struct ct_process *p, pid_t tid);

/* The slot of another thread, TID, made if there is none; not under the lock. NULL: no room. */
struct ct_slot *ct_slot_for(struct ct_process *p, pid_t tid);

/*
 * Under the lock: whether TID is, most likely, a thread that has run its last destructor and will
 * be gone in microseconds. An event opened on it would outlive it until the next process anchor.
 */
bool ct_thread_ending(const struct ct_process *p, pid_t tid);

/* Under the lock: events down, what it knew into the process's record, free. */
void ct_slot_release(struct ct_process *p, struct ct_slot *slot);

/* Under the lock: maps or takes down SLOT's event. Returns 0 or -errno (counted as a refusal). */
int ct_slot_map(struct ct_process *p, struct ct_slot *slot, enum ct_perf_kind kind);
void ct_slot_unmap(struct ct_process *p, struct ct_slot *slot, enum ct_perf_kind kind);

const uint32_t *ct_slot_change_word(struct ct_process *p, const struct ct_slot *slot,
                                    enum ct_perf_kind kind);

/* SLOT's ring mapping. */
const void *ct_slot_ring(struct ct_process *p, const struct ct_slot *slot);

void ct_process_refused(struct ct_process *p, int error, const char *step);

/*
 * Whether trying perf_event_open(2) could harm: under a seccomp filter an unexpected system call
 * may end the process, and nobody asked for one. A forced backend tries all the same.
 */
bool ct_sandboxed(void);

/* Set by ct_clock_disable(). */
extern _Atomic uint32_t ct_disabled __attribute__((visibility("hidden")));

/* The forced backend, or CPUTIME_BACKEND_AUTO; inherited by children. */
extern _Atomic uint32_t ct_mode __attribute__((visibility("hidden")));

/* Raises *FLOOR to VALUE. */
static inline void ct_raise(_Atomic uint64_t *floor, uint64_t value) {
        uint64_t old = atomic_load_explicit(floor, memory_order_relaxed);

        while (old < value && !atomic_compare_exchange_weak_explicit(
                       floor, &old, value, memory_order_release, memory_order_relaxed))
                ;
}

#define ct_load(p) atomic_load_explicit((p), memory_order_relaxed)
#define ct_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define ct_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define ct_store(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)

/* For counters with one writer. */
#define ct_count(p) ct_store((p), ct_load(p) + 1)

static inline uint64_t ct_max(uint64_t a, uint64_t b) {
        return a > b ? a : b;
}

/* A tick and a half, of this machine; set before any process has a page. */
extern _Atomic uint64_t ct_page_age_ns __attribute__((visibility("hidden")));

/* No thread's clock can have been shown to be further ahead of the kernel's than this. */
static inline uint64_t ct_ahead_max_ns(void) {
        return ct_max(2 * CPUTIME_ANCHOR_NS, 2 * ct_load(&ct_page_age_ns));
}

/* What anybody was shown for the clock of SLOT's thread; 0 for a slot that is nobody's. */
static inline uint64_t ct_slot_shown(const struct ct_slot *slot) {
        if (ct_acquire(&slot->tid) <= 0)
                return 0;
        return ct_max(ct_acquire(&slot->last_ns), ct_acquire(&slot->floor_ns));
}

#endif /* CT_REGISTRY_H */
