/* SPDX-License-Identifier: MIT */
#ifndef CT_PAGE_READ_H
#define CT_PAGE_READ_H
/*
 * Reading the page: pure functions of what it says and what time it is, see page.h. They write
 * nothing, wait for nobody and cannot fail but by saying so: false means ask the kernel.
 *
 * The time is taken before anything is looked at, by a clock that later loads do not overtake.
 * So the state that is found is never one that had been replaced at that time, and the publication
 * that replaces it starts with no less than what is computed here (page.bpf.c). A state that is
 * newer than the time is no harm: what it adds from start_ns on is 0 then.
 */
#include <stdbool.h>
#include <stdint.h>

#include "account/runtime.h"
#include "arch/vdso.h"
#include "source/page/page.h"

/* Looks at a publication that is going on: one takes 0.1 us or so, a look a nanosecond. */
#define CT_PAGE_TRIES 2000

#define ct_page_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define ct_page_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)

/* What has been used by NOW where START_NS says from when on more is. */
static inline uint64_t ct_page_at(uint64_t used_ns, bool running, uint64_t start_ns, uint64_t now) {
        return ct_runtime_at(used_ns, running && now > start_ns, now - start_ns);
}

/*
 * T of SLOT's thread. *ret_running: whether it is on a CPU. False: it is, and nothing has been
 * published for too long.
 */
static inline bool ct_page_thread(const struct ct_page_slot *slot, uint64_t age_ns, uint64_t *ret_ns,
                                  bool *ret_running) {
        uint64_t now = ct_vdso_monotonic_ns();

        for (unsigned int i = 0; i < CT_PAGE_TRIES; i++) {
                uint32_t seq = ct_page_acquire(&slot->seq);
                bool running = ct_page_acquire(&slot->cpu) >= 0;
                uint64_t used_ns = ct_page_acquire(&slot->used_ns);
                uint64_t start_ns = ct_page_acquire(&slot->start_ns);
                uint64_t last_ns = ct_page_acquire(&slot->last_ns);

                if (__builtin_expect((seq & 1) || ct_page_load(&slot->seq) != seq, 0))
                        continue;
                if (__builtin_expect(running && now > last_ns + age_ns, 0))
                        return false;
                *ret_running = running;
                *ret_ns = ct_page_at(used_ns, running, start_ns, now);
                return true;
        }
        return false;
}

/* P. False: not live (yet, any more), too old, or a cell stays in the middle of a change. */
static inline bool ct_page_group(const union ct_page_entry *page, uint64_t *ret_ns) {
        const struct ct_page_group *group = &page->group;
        uint64_t now = ct_vdso_monotonic_ns(), age_ns = group->age_ns;
        uint64_t ns = ct_page_acquire(&group->base_ns);

        if (__builtin_expect(ct_page_acquire(&group->state) != CT_PAGE_LIVE ||
                             now < ct_page_acquire(&group->valid_ns), 0))
                return false;
        for (uint32_t word = 0; word * 64 < group->nr_cpus; word++) {
                for (uint64_t cpus = ct_page_acquire(&group->cpus[word]); cpus; cpus &= cpus - 1) {
                        const struct ct_page_cell *cell =
                                &page[CT_PAGE_FIRST_CELL + word * 64 + (uint32_t)__builtin_ctzll(cpus)].cell;
                        unsigned int tries = CT_PAGE_TRIES;
                        uint64_t used_ns, start_ns, last_ns;
                        uint32_t seq, running;

                        do {
                                if (__builtin_expect(tries-- == 0, 0))
                                        return false;
                                seq = ct_page_acquire(&cell->seq);
                                running = ct_page_acquire(&cell->running);
                                used_ns = ct_page_acquire(&cell->used_ns);
                                start_ns = ct_page_acquire(&cell->start_ns);
                                last_ns = ct_page_acquire(&cell->last_ns);
                        } while (__builtin_expect((seq & 1) || ct_page_load(&cell->seq) != seq, 0));
                        if (__builtin_expect(running && now > last_ns + age_ns, 0))
                                return false;
                        ns += ct_page_at(used_ns, running, start_ns, now);
                }
        }
        *ret_ns = ns;
        return true;
}

/* What is published beside the clocks. */
struct ct_page_account {
        uint64_t oncpu_ns;
        uint64_t wait_ns;
        uint64_t nvcsw;
        uint64_t nivcsw;
};

/*
 * T of SLOT's thread and the rest of its account, of one publication. *ret_cpu: where it is, or -1.
 * False: as ct_page_thread(), or the slot is not TID's.
 */
static inline bool ct_page_thread_account(const struct ct_page_slot *slot, int32_t tid, uint64_t age_ns,
                                          struct ct_page_account *ret_account, int32_t *ret_cpu) {
        uint64_t now = ct_vdso_monotonic_ns();

        for (unsigned int i = 0; i < CT_PAGE_TRIES; i++) {
                uint32_t seq = ct_page_acquire(&slot->seq);
                bool own = ct_page_acquire(&slot->tid) == tid;
                int32_t cpu = ct_page_acquire(&slot->cpu);
                uint64_t used_ns = ct_page_acquire(&slot->used_ns);
                uint64_t start_ns = ct_page_acquire(&slot->start_ns);
                uint64_t last_ns = ct_page_acquire(&slot->last_ns);
                struct ct_page_account account = {
                        .oncpu_ns = ct_page_at(used_ns, cpu >= 0, start_ns, now),
                        .wait_ns = ct_page_acquire(&slot->wait_ns),
                        .nvcsw = ct_page_acquire(&slot->nvcsw),
                        .nivcsw = ct_page_acquire(&slot->nivcsw),
                };

                if (__builtin_expect((seq & 1) || ct_page_load(&slot->seq) != seq, 0))
                        continue;
                if (__builtin_expect(!own || (cpu >= 0 && now > last_ns + age_ns), 0))
                        return false;
                /* It has not run yet: what else stands there is its predecessor's. */
                if (cpu < 0 && used_ns == 0)
                        account = (struct ct_page_account){};
                *ret_account = account;
                *ret_cpu = cpu;
                return true;
        }
        return false;
}

/*
 * P and the sums of the rest, each cell's of one publication; *ret_running is how many threads are on
 * a CPU. False: as ct_page_group().
 */
static inline bool ct_page_group_account(const union ct_page_entry *page, struct ct_page_account *ret_account,
                                         uint32_t *ret_running) {
        const struct ct_page_group *group = &page->group;
        const struct ct_page_books *books = &page[CT_PAGE_BOOKS].books;
        uint64_t now = ct_vdso_monotonic_ns();
        struct ct_page_account sum = {};
        uint32_t n_running = 0;

        if (__builtin_expect(ct_page_acquire(&group->state) != CT_PAGE_LIVE ||
                             now < ct_page_acquire(&group->valid_ns), 0))
                return false;
        /* What threads had when they were found is in the books, the cells have what came since. */
        sum.oncpu_ns = ct_page_acquire(&group->base_ns);
        sum.wait_ns = ct_page_acquire(&books->joined_wait_ns);
        sum.nvcsw = ct_page_acquire(&books->joined_nvcsw);
        sum.nivcsw = ct_page_acquire(&books->joined_nivcsw);
        for (uint32_t word = 0; word * 64 < group->nr_cpus; word++) {
                for (uint64_t cpus = ct_page_acquire(&group->cpus[word]); cpus; cpus &= cpus - 1) {
                        const struct ct_page_cell *cell =
                                &page[CT_PAGE_FIRST_CELL + word * 64 + (uint32_t)__builtin_ctzll(cpus)].cell;
                        unsigned int tries = CT_PAGE_TRIES;
                        uint64_t start_ns, last_ns;
                        struct ct_page_account on;
                        uint32_t seq, running;

                        do {
                                if (__builtin_expect(tries-- == 0, 0))
                                        return false;
                                seq = ct_page_acquire(&cell->seq);
                                running = ct_page_acquire(&cell->running);
                                on.oncpu_ns = ct_page_acquire(&cell->used_ns);
                                start_ns = ct_page_acquire(&cell->start_ns);
                                last_ns = ct_page_acquire(&cell->last_ns);
                                on.wait_ns = ct_page_acquire(&cell->wait_ns);
                                on.nvcsw = ct_page_acquire(&cell->nvcsw);
                                on.nivcsw = ct_page_acquire(&cell->nivcsw);
                        } while (__builtin_expect((seq & 1) || ct_page_load(&cell->seq) != seq, 0));
                        if (__builtin_expect(running && now > last_ns + group->age_ns, 0))
                                return false;
                        sum.oncpu_ns += ct_page_at(on.oncpu_ns, running, start_ns, now);
                        sum.wait_ns += on.wait_ns;
                        sum.nvcsw += on.nvcsw;
                        sum.nivcsw += on.nivcsw;
                        n_running += running != 0;
                }
        }
        *ret_account = sum;
        *ret_running = n_running;
        return true;
}

#endif /* CT_PAGE_READ_H */
