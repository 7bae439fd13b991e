/* SPDX-License-Identifier: MIT */
/*
 * The process's record, the slots and their life: see the header for who owns what.
 *
 * Slots are numbered from a counter in ordinary, inherited memory. A forked child goes on counting
 * where its parent was: a thread-local slot pointer that came over with the fork can so never
 * point to a slot that the child has meanwhile given to another of its threads. (After fork()
 * proper the child handler clears pointer and counter; a raw clone(2) runs no handler.)
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/nsec.h"
#include "base/signals.h"
#include "clock/clock.h"
#include "clock/page.h"
#include "clock/registry.h"

/* Reads that a thread makes before it gets a slot: most threads of most programs never do. */
#define CT_EARLY_READS 16

/* Once in so many new slots, look for those whose threads ended without a word. */
#define CT_REAP_EVERY 64

/* And not more often than this: with the table full, every read of a thread without would. */
#define CT_REAP_NS (100 * CT_NSEC_PER_MSEC)

_Thread_local struct ct_self ct_self __attribute__((tls_model("initial-exec")));

_Atomic uint32_t ct_disabled, ct_mode;

/* Layout of the wiped mapping: the process's record, then the slots. */
_Atomic(struct ct_process *) ct_process;
static _Atomic uint32_t ct_next_slot;

/* How a thread's end is told; where it is not usable that is left to the reaper. */
static pthread_key_t ct_end_key;
static bool ct_end_key_usable;

/* The arena, in inherited memory: a forked child has its parent's until it makes its own. */
static char *ct_arena_place;

static size_t ct_slots_offset(void) {
        return (sizeof(struct ct_process) + 63) / 64 * 64;
}

struct ct_slot *ct_slot_at(uint32_t i) {
        char *base = (char *)atomic_load_explicit(&ct_process, memory_order_relaxed);

        return (struct ct_slot *)(void *)(base + ct_slots_offset()) + i;
}

uint32_t ct_slots_end(void) {
        uint32_t n = ct_load(&ct_next_slot);

        return n < CT_SLOTS_MAX ? n : CT_SLOTS_MAX;
}

/*
 * Who finds the lock held asks the kernel instead. It is held for a few microseconds, for tens per
 * event that is opened; longer, and the scheduler took the CPU away from its holder. In a crowd of
 * runnable threads its turn may come in a fifth of a second, while all of them ask the kernel; it
 * comes at once if those who find the lock held let it pass.
 */
#define CT_LOCK_NS (100 * CT_NSEC_PER_USEC)

bool ct_process_enter(struct ct_process *p, struct ct_signal_mask *ret_mask) {
        /* Before any system call, since the common case is somebody else's microseconds. */
        if (ct_load(&p->lock)) {
                if (ct_vdso_raw_ns() - ct_load(&p->locked_ns) > CT_LOCK_NS)
                        (void)syscall(SYS_sched_yield);
                if (ct_load(&p->lock))
                        return false;
        }
        ct_signals_block(ret_mask);
        if (atomic_exchange_explicit(&p->lock, 1, memory_order_acquire)) {
                ct_signals_restore(ret_mask);
                return false;
        }
        ct_store(&p->locked_ns, ct_vdso_raw_ns());
        return true;
}

void ct_process_leave(struct ct_process *p, const struct ct_signal_mask *mask) {
        atomic_store_explicit(&p->lock, 0, memory_order_release);
        ct_signals_restore(mask);
}

struct ct_process *ct_process_get(void) {
        struct ct_process *p = ct_process_peek(), *expected = NULL;
        size_t size = ct_slots_offset() + CT_SLOTS_MAX * sizeof(struct ct_slot);
        int saved_errno = errno;

        if (!CT_FAST_CLOCKS)
                return NULL;
        if (__builtin_expect(!p, 0)) {
                p = mmap(NULL, size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
                if (p == MAP_FAILED) {
                        errno = saved_errno;
                        return NULL;
                }
                /* Without this a child would take its parent's clocks for its own. */
                if (madvise(p, size, MADV_WIPEONFORK) < 0 ||
                    !atomic_compare_exchange_strong(&ct_process, &expected, p)) {
                        (void)munmap(p, size);
                        p = expected;
                }
                errno = saved_errno;
                if (!p)
                        return NULL;
        }
        if (__builtin_expect(!ct_acquire(&p->pid), 0)) {
                struct ct_signal_mask mask;

                if (ct_process_enter(p, &mask)) {
                        pid_t pid = (pid_t)syscall(SYS_getpid);

                        errno = saved_errno;

                        /* A sandbox may forbid to ask. */
                        if (!ct_load(&p->pid) && pid > 0) {
                                ct_store(&p->first_slot, ct_slots_end());
                                /* What a slow path left that a forking handler interrupted. */
                                ct_store(&p->floor_ns, 0);
                                ct_store(&p->ended_last_ns, 0);
                                p->epoch = ct_vdso_raw_ns();
                                atomic_store_explicit(&p->pid, pid, memory_order_release);
                        }
                        ct_process_leave(p, &mask);
                }
                if (!ct_acquire(&p->pid))
                        return NULL;
        }
        return p;
}

void ct_process_refused(struct ct_process *p, int error, const char *step) {
        atomic_fetch_add_explicit(&p->refusals, 1, memory_order_relaxed);
        ct_store(&p->refusal_error, error);
        ct_store(&p->refusal_step, step);
}

bool ct_sandboxed(void) {
        int saved_errno = errno;
        long r = prctl(PR_GET_SECCOMP);

        errno = saved_errno;
        return r > 0;
}

static size_t ct_arena_size(void) {
        return CT_SLOTS_MAX * (ct_perf_size(CT_PERF_HEADER) + ct_perf_size(CT_PERF_RING));
}

/* Address space for all perf mappings: a page for the header and two for the ring, by slot. */
static char *ct_arena(struct ct_process *p) {
        size_t size = ct_arena_size();

        if (!ct_load(&p->arena)) {
                void *a = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

                if (a == MAP_FAILED)
                        return NULL;
                (void)madvise(a, size, MADV_DONTFORK);
                ct_arena_place = a;
                ct_store(&p->arena, a);
        }
        return ct_load(&p->arena);
}

static char *ct_slot_place(struct ct_process *p, const struct ct_slot *slot, enum ct_perf_kind kind) {
        size_t i = (size_t)(slot - ct_slot_at(0));
        size_t header = ct_perf_size(CT_PERF_HEADER);

        return ct_arena_place + i * (header + ct_perf_size(CT_PERF_RING)) +
               (kind == CT_PERF_RING ? header : 0);
}

const uint32_t *ct_slot_change_word(struct ct_process *p, const struct ct_slot *slot,
                                    enum ct_perf_kind kind) {
        return ct_perf_change_word(kind, ct_slot_place(p, slot, kind));
}

const void *ct_slot_ring(struct ct_process *p, const struct ct_slot *slot) {
        return ct_slot_place(p, slot, CT_PERF_RING);
}

int ct_slot_map(struct ct_process *p, struct ct_slot *slot, enum ct_perf_kind kind) {
        const char *step = "mmap";
        void *address;
        int r = -ENOMEM, saved_errno = errno;

        if (ct_arena(p))
                r = ct_perf_map(kind, ct_load(&slot->tid), ct_slot_place(p, slot, kind), &address, &step);
        errno = saved_errno;
        if (r < 0) {
                if (r != -ESRCH)
                        ct_process_refused(p, -r, step);
                /* At this step it is the locked-memory quota, and that can pass. */
                return r == -EPERM && strcmp(step, "mmap") == 0 ? -ENOMEM : r;
        }
        ct_release(kind == CT_PERF_RING ? &slot->ring : &slot->header, 1);
        ct_store(&p->enrolled, 1);
        atomic_fetch_add_explicit(&p->enrolments, 1, memory_order_relaxed);
        return 0;
}

void ct_slot_unmap(struct ct_process *p, struct ct_slot *slot, enum ct_perf_kind kind) {
        _Atomic uint32_t *mapped = kind == CT_PERF_RING ? &slot->ring : &slot->header;

        if (ct_load(mapped) && ct_perf_poison(kind, ct_slot_place(p, slot, kind)) == 0)
                ct_store(mapped, 0);
}

struct ct_slot *ct_slot_find(struct ct_process *p, pid_t tid) {
        for (uint32_t i = ct_slots_first(p); i < ct_slots_end(); i++)
                /* After a visitor has counted itself: pairs with the exchange in ct_slot_release(). */
                if (atomic_load_explicit(&ct_slot_at(i)->tid, memory_order_seq_cst) == tid)
                        return ct_slot_at(i);
        return NULL;
}

/* Threads that ended without running their thread-specific destructors: raw clone(2), mostly. */
static void ct_slots_reap(struct ct_process *p) {
        int saved_errno = errno;

        for (uint32_t i = ct_slots_first(p); i < ct_slots_end(); i++) {
                struct ct_slot *slot = ct_slot_at(i);
                pid_t tid = ct_load(&slot->tid);

                if (tid > 0 && syscall(SYS_tgkill, ct_load(&p->pid), tid, 0) < 0 && errno == ESRCH)
                        ct_slot_release(p, slot);
        }
        errno = saved_errno;
}

/*
 * A slot that nobody holds. A visitor who still looks at an ended thread's may raise its floor,
 * which must not meet the next owner; one who comes later does not find the slot. Visitors count
 * themselves before they look, slots are marked as ended before visitors are counted.
 */
static struct ct_slot *ct_slot_unused(struct ct_process *p) {
        bool visited = atomic_load_explicit(&p->n_visitors, memory_order_seq_cst) > 0;

        for (uint32_t i = ct_slots_first(p); i < ct_slots_end(); i++) {
                pid_t tid = ct_load(&ct_slot_at(i)->tid);

                if (tid == 0 || (tid == CT_TID_ENDED && !visited))
                        return ct_slot_at(i);
        }
        return NULL;
}

struct ct_slot *ct_slot_new(struct ct_process *p, pid_t tid) {
        struct ct_slot *slot = ct_slot_unused(p);
        uint32_t next = ct_load(&ct_next_slot);

        if (!slot && next > ct_slots_first(p) && next % CT_REAP_EVERY == 0 &&
            ct_vdso_raw_ns() - p->reaped_ns > CT_REAP_NS) {
                p->reaped_ns = ct_vdso_raw_ns();
                ct_slots_reap(p);
                slot = ct_slot_unused(p);
        }
        if (!slot) {
                if (next >= CT_SLOTS_MAX)
                        return NULL;
                slot = ct_slot_at(next);
                ct_store(&ct_next_slot, next + 1);
        }
        ct_store(&slot->floor_ns, 0);
        /* All of this is 0 already, but for what ct_process_get() speaks of. */
        ct_store(&slot->last_ns, 0);
        ct_store(&slot->group_last_ns, 0);
        ct_store(&slot->current, 0);
        for (unsigned int i = 0; i < CT_ANCHORS; i++)
                slot->anchors[i].limit = 0;
        ct_store(&slot->anchors_busy, 1);       /* anchor 0, in force and invalid */
        ct_store(&slot->backend, CPUTIME_BACKEND_SYSCALL);
        slot->mode = ct_load(&ct_mode);
        atomic_store_explicit(&slot->tid, tid, memory_order_release);
        return slot;
}

struct ct_slot *ct_slot_for(struct ct_process *p, pid_t tid) {
        struct ct_signal_mask mask;
        struct ct_slot *slot;

        while (!ct_process_enter(p, &mask))
                (void)syscall(SYS_sched_yield);
        slot = ct_slot_find(p, tid);
        if (!slot && !ct_thread_ending(p, tid))
                slot = ct_slot_new(p, tid);
        ct_process_leave(p, &mask);
        return slot;
}

void ct_slot_release(struct ct_process *p, struct ct_slot *slot) {
        uint64_t fast[CPUTIME_BACKEND_MAX];

        ct_slot_fast_reads(slot, fast);
        for (unsigned int b = 0; b < CPUTIME_BACKEND_MAX; b++)
                atomic_fetch_add_explicit(&p->fast_ended[b], fast[b], memory_order_relaxed);
        atomic_fetch_add_explicit(&p->asked_ended,
                                  ct_load(&slot->asked_thread) + ct_load(&slot->asked_group),
                                  memory_order_relaxed);
        atomic_fetch_add_explicit(&p->group_ended, ct_load(&slot->group_version), memory_order_relaxed);
        atomic_fetch_add_explicit(&p->anchors_ended, ct_load(&slot->n_anchors), memory_order_relaxed);
        ct_raise(&p->floor_ns, ct_load(&slot->group_last_ns));
        /* Whoever adds up the threads meanwhile would count this one twice: see ct_threads_last. */
        atomic_fetch_add_explicit(&p->slots_sequence, 1, memory_order_seq_cst);
        atomic_fetch_add_explicit(&p->ended_last_ns, ct_slot_shown(slot), memory_order_release);
        ct_slot_unmap(p, slot, CT_PERF_HEADER);
        ct_slot_unmap(p, slot, CT_PERF_RING);

        for (unsigned int i = 0; i < CT_ANCHORS; i++)
                __atomic_store_n(&slot->anchors[i].limit, 0, __ATOMIC_RELEASE);
        ct_store(&slot->current, 0);
        ct_release(&slot->last_ns, 0);
        atomic_fetch_add_explicit(&p->slots_sequence, 1, memory_order_release);
        ct_store(&slot->version, 0);
        ct_store(&slot->group_version, 0);
        ct_release(&slot->group_last_ns, 0);
        ct_store(&slot->slow_versions, 0);
        ct_store(&slot->asked_thread, 0);
        ct_store(&slot->asked_group, 0);
        ct_store(&slot->n_anchors, 0);
        ct_store(&slot->page, NULL);
        ct_store(&slot->page_reads, 0);
        ct_store(&slot->page_stale_reads, 0);
        ct_page_lead_end(p, slot);
        for (unsigned int b = 0; b < CPUTIME_BACKEND_MAX; b++)
                ct_store(&slot->fast_before[b], 0);
        slot->balance = 0;
        slot->n_retreats = 0;
        slot->enrol_at = 0;
        slot->version_at_anchor = 0;
        slot->attached = 0;
        /* A slot whose event could not be taken down is never used again. */
        atomic_exchange_explicit(&slot->tid, ct_load(&slot->header) || ct_load(&slot->ring) ?
                                 CT_TID_STUCK : CT_TID_ENDED, memory_order_seq_cst);
}

struct ct_slot *ct_slot_own(struct ct_process *p) {
        struct ct_slot *slot = ct_self.slot;
        struct ct_signal_mask mask;
        int saved_errno;
        pid_t tid;

        if (slot) {
                if (__builtin_expect(ct_load(&slot->tid) != 0, 1))
                        return slot;
                /* Wiped: this is a child, and the pointer its parent's. */
                ct_self.slot = NULL;
                ct_self.n_early = 0;
        }
        if (ct_self.ended)
                return NULL;
        /* With a page nobody is served without a slot: what the kernel says must leave a trace. */
        if (ct_load(&ct_mode) == CPUTIME_BACKEND_AUTO && !ct_load(&p->page) &&
            ++ct_self.n_early < CT_EARLY_READS)
                return NULL;

        while (!ct_process_enter(p, &mask)) {
                if (!ct_load(&p->page))
                        return NULL;
                /* What the kernel would say has no trace, and the page may say less at the next read. */
                (void)syscall(SYS_sched_yield);
        }
        saved_errno = errno;
        tid = (pid_t)syscall(SYS_gettid);
        errno = saved_errno;
        for (unsigned int i = 0; i < CT_ENDINGS; i++)
                if (p->endings[i].tid == tid)
                        p->endings[i].tid = 0;
        slot = tid > 0 ? ct_slot_find(p, tid) : NULL;
        /* Made by a sibling; if for a thread that had the id before, its event is not this one's. */
        if (slot && !slot->attached && !ct_load(&slot->ring) &&
            ct_load(&slot->floor_ns) <= ct_ask_thread() + CPUTIME_ERROR_NS) {
                /* A sibling has read this thread's clock, and that is what it left. */
        } else if (slot && (slot->attached || !ct_load(&slot->ring) ||
                            ct_perf_exited(ct_slot_ring(p, slot)))) {
                ct_slot_release(p, slot);
                p->complete = 0;
                slot = NULL;
        }
        if (!slot && tid > 0)
                slot = ct_slot_new(p, tid);
        if (slot) {
                slot->attached = 1;
                if (ct_self.epoch == p->epoch)
                        ct_raise(&slot->floor_ns, ct_self.floor_ns);
        }
        ct_self.slot = slot;
        ct_process_leave(p, &mask);
        if (slot && ct_end_key_usable)
                (void)pthread_setspecific(ct_end_key, slot);
        return slot;
}

/* So long an ended thread's id is believed to be still its own, and not a new thread's. */
#define CT_ENDING_NS (20 * CT_NSEC_PER_MSEC)

bool ct_thread_ending(const struct ct_process *p, pid_t tid) {
        uint64_t now_ns = ct_vdso_raw_ns();

        for (unsigned int i = 0; i < CT_ENDINGS; i++)
                if (p->endings[i].tid == tid && now_ns - p->endings[i].at_ns < CT_ENDING_NS)
                        return true;
        return false;
}

/* Runs in the ending thread. Later readers in it, other destructors, are served by the kernel. */
static void ct_thread_end(void *unused) {
        struct ct_slot *slot = ct_self.slot;
        struct ct_process *p = ct_process_peek();
        struct ct_signal_mask mask;

        ct_self.ended = 1;
        if (!slot || !p || !ct_load(&slot->tid))
                return;
        ct_self.slot = NULL;
        ct_raise(&slot->floor_ns, ct_thread_page_bound(p, ct_load(&slot->tid)));
        ct_self.floor_ns = ct_slot_shown(slot);
        ct_self.epoch = p->epoch;
        /*
         * Readers of this thread's clock have the kernel alone to ask from here on. Where the
         * thread was ahead of it, by no more than an anchor's life, it stays until it is not.
         */
        for (unsigned int i = 0; i < 4096 && ct_ask_thread() < ct_self.floor_ns; i++)
                ;
        /* Its holder wants microseconds, and may have been preempted; else the reaper finds us. */
        for (unsigned int i = 0; i < 1000; i++) {
                struct timespec ts = { .tv_nsec = 100 * (long)CT_NSEC_PER_USEC };

                if (ct_process_enter(p, &mask)) {
                        uint32_t n = p->n_endings++ % CT_ENDINGS;

                        p->endings[n].tid = ct_load(&slot->tid);
                        p->endings[n].at_ns = ct_vdso_raw_ns();
                        ct_slot_release(p, slot);
                        p->complete = 0;
                        ct_process_leave(p, &mask);
                        break;
                }
                if (i < 20)
                        (void)syscall(SYS_sched_yield);
                else
                        (void)syscall(SYS_nanosleep, &ts, NULL);
        }
}

static void ct_forked_child(void) {
        struct ct_process *p = ct_process_peek();

        /* A handler of somebody else's, which ran before, read a clock: the child has begun. */
        if (p && ct_load(&p->pid)) {
                ct_self.ended = 0;
                ct_self.floor_ns = 0;
                return;
        }
        /*
         * A handler may have forked in the middle of a read, and the child goes on with that: what
         * it may be about to look at reads as zeroes, as all the rest.
         */
        ct_page_forked();
        if (ct_arena_place)
                (void)mmap(ct_arena_place, ct_arena_size(), PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE, -1, 0);
        ct_self = (struct ct_self){};
        ct_store(&ct_next_slot, 0);
}

__attribute__((constructor)) static void ct_registry_begin(void) {
        /* The first keys need no memory in pthread_setspecific(), which a signal handler that
         * reads a clock may end up in; glibc keeps 32 of them in the thread itself. */
        if (pthread_key_create(&ct_end_key, ct_thread_end) == 0)
                ct_end_key_usable = ct_end_key < 32;
        (void)pthread_atfork(NULL, NULL, ct_forked_child);
        ct_page_begin();
}
