/* SPDX-License-Identifier: MIT */
/* The public face: fast paths first, everything else behind a call. */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock/clock.h"
#include "clock/group.h"
#include "clock/page.h"
#include "clock/thread.h"
#include "cputime/clock.h"

#define CT_PUBLIC __attribute__((visibility("default")))

/* The fast paths; false: none serves now. */
static inline __attribute__((always_inline)) bool
ct_thread_read(struct ct_slot *slot, uint64_t *ret_ns, enum cputime_backend *ret_backend) {
        const struct ct_page_slot *own;

        if (!CT_FAST_CLOCKS || __builtin_expect(!slot, 0))
                return false;
        own = ct_load(&slot->page);
        if (own) {
                *ret_backend = CPUTIME_BACKEND_PAGE;
                return ct_thread_page_fast(slot, own, ret_ns);
        }
        *ret_backend = ct_load(&slot->backend);
        return ct_thread_fast(slot, ret_ns);
}

static inline __attribute__((always_inline)) bool
ct_process_read(struct ct_slot *slot, uint64_t *ret_ns, enum cputime_backend *ret_backend) {
        const union ct_page_entry *page;
        struct ct_process *p;

        if (!CT_FAST_CLOCKS || __builtin_expect(!slot, 0))
                return false;
        p = ct_process_peek();
        page = ct_acquire(&p->page);
        if (page) {
                *ret_backend = CPUTIME_BACKEND_PAGE;
                return ct_group_page_fast(p, slot, page, ret_ns);
        }
        *ret_backend = CPUTIME_BACKEND_RING;
        return ct_group_fast(p, slot, ret_ns);
}

CT_PUBLIC uint64_t cputime_thread_ns(void) {
        enum cputime_backend backend;
        uint64_t ns;

        return ct_thread_read(ct_self.slot, &ns, &backend) ? ns : ct_thread_slow(NULL);
}

CT_PUBLIC uint64_t cputime_process_ns(void) {
        enum cputime_backend backend;
        uint64_t ns;

        return ct_process_read(ct_self.slot, &ns, &backend) ? ns : ct_process_slow(NULL);
}

CT_PUBLIC int cputime_thread_ns_of(pid_t tid, uint64_t *ret_ns) {
        struct ct_process *p;
        struct ct_slot *slot;
        uint64_t ns = 0, shown_ns;
        int r;

        if (tid < 0)
                return -EINVAL;
        if (tid == 0 || (ct_self.slot && ct_load(&ct_self.slot->tid) == tid)) {
                *ret_ns = cputime_thread_ns();
                return 0;
        }
        p = ct_self.vforked ? NULL : ct_process_get();
        if (!p) {
                if (ct_ask_thread_of(tid, &ns) < 0)
                        return -ESRCH;
                *ret_ns = ns;
                return 0;
        }

        atomic_fetch_add_explicit(&p->n_visitors, 1, memory_order_seq_cst);
        if (ct_thread_page_of(p, tid, ret_ns)) {
                atomic_fetch_sub_explicit(&p->n_visitors, 1, memory_order_release);
                return 0;
        }
        /* Before asking: what its thread was shown before this call began. */
        slot = ct_slot_find(p, tid);
        shown_ns = ct_max(slot ? ct_slot_shown(slot) : 0, ct_thread_page_bound(p, tid));
        r = ct_ask_thread_of(tid, &ns);
        /* It may have taken its first anchor just before we asked, a little behind our answer. */
        if (!slot)
                slot = ct_slot_find(p, tid);
        /* With a page, or while one is coming, it may read less than that, and has to know. */
        if (!slot && r == 0 &&
            (ct_load(&p->page) || (ct_load(&p->enrolled) && !ct_load(&p->arena))))
                slot = ct_slot_for(p, tid);
        /* More than a thread can be ahead: the slot is of one that had the id before. */
        if (r == 0 && slot && shown_ns <= ns + ct_ahead_max_ns()) {
                ns = ct_max(ns, shown_ns);
                ct_thread_page_shown(p, slot, ns);
                ct_raise(&slot->floor_ns, ns);
        }
        atomic_fetch_sub_explicit(&p->n_visitors, 1, memory_order_release);
        if (r < 0)
                return -ESRCH;
        ct_group_doubt(p);
        *ret_ns = ns;
        return 0;
}

CT_PUBLIC void cputime_sample_read(struct cputime_sample *ret_sample) {
        if (!ct_thread_read(ct_self.slot, &ret_sample->thread_ns, &ret_sample->thread_backend))
                ret_sample->thread_ns = ct_thread_slow(&ret_sample->thread_backend);
        if (!ct_process_read(ct_self.slot, &ret_sample->process_ns, &ret_sample->process_backend))
                ret_sample->process_ns = ct_process_slow(&ret_sample->process_backend);
}

CT_PUBLIC int cputime_backend_set(enum cputime_backend backend) {
        if ((unsigned int)backend >= CPUTIME_BACKEND_MAX)
                return -EINVAL;
        ct_store(&ct_mode, (uint32_t)backend);
        if (backend != CPUTIME_BACKEND_AUTO && backend != CPUTIME_BACKEND_PAGE && !ct_self.vforked &&
            ct_process_peek())
                ct_page_leave(ct_process_peek());
        return 0;
}

static const char *const ct_backend_names[CPUTIME_BACKEND_MAX] = {
        [CPUTIME_BACKEND_AUTO] = "auto",
        [CPUTIME_BACKEND_SYSCALL] = "syscall",
        [CPUTIME_BACKEND_RING] = "ring",
        [CPUTIME_BACKEND_HEADER] = "header",
        [CPUTIME_BACKEND_PAGE] = "page",
};

CT_PUBLIC const char *cputime_backend_name(enum cputime_backend backend) {
        return (unsigned int)backend < CPUTIME_BACKEND_MAX ? ct_backend_names[backend] : NULL;
}

CT_PUBLIC int cputime_backend_from_name(const char *name, enum cputime_backend *ret_backend) {
        for (unsigned int b = 0; b < CPUTIME_BACKEND_MAX; b++) {
                if (strcmp(name, ct_backend_names[b]) == 0) {
                        *ret_backend = b;
                        return 0;
                }
        }
        return -EINVAL;
}

CT_PUBLIC void cputime_stats_read(struct cputime_stats *ret_stats) {
        struct ct_process *p = ct_process_peek();
        struct cputime_stats stats = { .refusal_step = "" };
        uint64_t reads[CPUTIME_BACKEND_MAX];

        if (p && ct_acquire(&p->pid)) {
                for (unsigned int b = 0; b < CPUTIME_BACKEND_MAX; b++)
                        stats.reads[b] = ct_load(&p->fast_ended[b]);
                stats.reads[CPUTIME_BACKEND_SYSCALL] +=
                        ct_load(&p->early_reads) + ct_load(&p->asked_ended);
                stats.anchors = ct_load(&p->anchors_ended) + ct_load(&p->group_anchors);
                for (uint32_t i = ct_slots_first(p); i < ct_slots_end(); i++) {
                        const struct ct_slot *slot = ct_slot_at(i);

                        ct_slot_fast_reads(slot, reads);
                        for (unsigned int b = 0; b < CPUTIME_BACKEND_MAX; b++)
                                stats.reads[b] += reads[b];
                        stats.reads[CPUTIME_BACKEND_SYSCALL] +=
                                ct_load(&slot->asked_thread) + ct_load(&slot->asked_group);
                        stats.anchors += ct_load(&slot->n_anchors);
                }
                stats.enrolments = ct_load(&p->enrolments);
                stats.retreats = ct_load(&p->retreats);
                stats.refusals = ct_load(&p->refusals);
                stats.refusal_error = ct_load(&p->refusal_error);
                if (stats.refusals)
                        stats.refusal_step = ct_load(&p->refusal_step);
        }
        *ret_stats = stats;
}
