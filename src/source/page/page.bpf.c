// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The kernel's side of the page: what page.h describes is written here, at every switch of an
 * enrolled thread and at the tick of the CPU it runs on.
 *
 *      sched_switch         who leaves the CPU, who comes; threads that end, in their last one
 *      hrtimer_expire_exit  the CPU's tick has just charged whoever runs
 *      task_newtask         a thread is born into an enrolled process
 *      iter/task            run by the loader once for each process: the threads it has already
 *
 * Membership is task storage: a thread that has none costs one look-up. Its ct_ref there holds its
 * accounts; its slot is only where they are published, and a cell is the same for the process on
 * one CPU. Both are written in sched_switch and at the tick alone, where interrupts are off, by the
 * CPU that the thread is on: one writer at a time, which can neither be preempted nor interrupted
 * by another. Nobody waits for anybody, so a virtual CPU that its hypervisor stops in here delays
 * those readers only that look at what it was about to change, and they ask the kernel.
 *
 * Order, against readers: the count is made odd before the stamp is taken, and readers take their
 * time before they look at the count. So who has found the old state has a time before the stamp,
 * and the new state begins with no less than the old one was worth then.
 *
 * Every publication takes E, the kernel's own sum_exec_runtime, which is exact here: the scheduler
 * has charged the thread just before. So a lost event is healed by the next.
 */
#include <stdbool.h>
#include <stddef.h>

#include "page.h"

#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual MIT/GPL";

/* The few fields of the kernel's that are read; CO-RE finds where they are. */
#define ct_kernel __attribute__((preserve_access_index))

struct upid {
        int nr;
} ct_kernel;

struct pid {
        unsigned int level;
        struct upid numbers[1];
} ct_kernel;

struct rq {
        uint64_t clock;
} ct_kernel;

struct cfs_rq {
        struct rq *rq;
} ct_kernel;

struct sched_entity {
        uint64_t sum_exec_runtime;
        struct cfs_rq *cfs_rq;          /* with CONFIG_FAIR_GROUP_SCHED */
} ct_kernel;

struct sched_info {
        unsigned long long run_delay;
        unsigned long long last_queued;
} ct_kernel;

struct sighand_struct;

struct signal_struct {
        unsigned long long sum_sched_runtime;
        int nr_threads;
} ct_kernel;

struct mm_struct;

struct task_struct {
        unsigned int __state;
        unsigned int flags;
        struct mm_struct *mm;
        int pid;
        int tgid;
        struct sched_entity se;
        struct sched_info sched_info;
        unsigned long nvcsw;
        unsigned long nivcsw;
        struct signal_struct *signal;
        struct sighand_struct *sighand;
        struct pid *thread_pid;
} ct_kernel;

struct hrtimer {
        void *function;
} ct_kernel;

struct bpf_iter_meta {
        uint64_t seq_num;
} ct_kernel;

struct bpf_iter__task {
        struct bpf_iter_meta *meta;
        struct task_struct *task;
} ct_kernel;

/* linux/sched.h */
#define TASK_DEAD 0x80
#define PF_KTHREAD 0x00200000
#define CLONE_THREAD 0x00010000

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

/*
 * The scheduler charges a thread from its own look at the clock on, early in the switch or tick; we
 * are called later: by half a microsecond or so; by ten where the tick is busy; by milliseconds when
 * a hypervisor stopped the CPU in between. How late we are is what the stamp is ahead of the
 * scheduler's clock by, less what it is at least: the least of two windows of that is kept, so that
 * it holds whatever the two clocks drift apart (NTP slews by 500 ppm at most, so that a lag may be
 * taken for 0.25 ms more than it is, and the clock is ahead by that). The lead on top is for what
 * even the least has, and where there is no least yet: the page must never be behind the kernel, or
 * a sleep on a CPU clock looks early. Not added up: each publication starts from E.
 */
#define CT_LEAD_NS 6000
#define CT_LAG_WINDOW_NS 250000000

/* Where the scheduler's clock cannot be had: the tick, with what it does before we are called. */
#define CT_TICK_LEAD_NS 20000

/*
 * By how much a reader's time can be later than a publication that it has not seen: its look at
 * the sequence count is not held up by the reading of the counter. Tens of ns in fact.
 */
#define CT_SKEW_NS 250

/* Attempts at the stack of free entries, which threads of one process that begin or end share. */
#define CT_STACK_TRIES 16

/* Ticks in a row with a number of threads that is not the kernel's before a group is given up. */
#define CT_MISMATCH_MAX 16

const volatile uint64_t ct_tick_ns = 4000000;

/* What the iterator is asked to do, and what came of it. */
uint32_t ct_join_tgid;
uint32_t ct_join_region;
uint32_t ct_join_generation;
uint32_t ct_join_entries;
uint32_t ct_join_cpus;
uint32_t ct_join_failed;        /* threads for which there was no memory, or no room */
uint32_t ct_join_raced;         /* threads that were switched while being found */

struct ct_ref {
        uint32_t generation;    /* 0: not enrolled */
        uint32_t region;
        uint32_t entry;         /* 0: none yet */
        uint16_t mismatches;
        uint16_t running;
        uint64_t used_ns;
        uint64_t start_ns;
        uint64_t last_ns;
        uint64_t wait_ns;
        uint64_t nvcsw;
        uint64_t nivcsw;
};

struct {
        __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
        __uint(map_flags, BPF_F_NO_PREALLOC);
        __type(key, int);
        __type(value, struct ct_ref);
} ct_tasks SEC(".maps");

/* A region is an array of these: a look-up costs as much as a small chunk of work, so fewer of them. */
struct ct_chunk {
        union ct_page_entry entries[CT_PAGE_CHUNK_ENTRIES];
};

struct ct_region {
        __uint(type, BPF_MAP_TYPE_ARRAY);
        __uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
        __uint(max_entries, 1);
        __uint(key_size, sizeof(uint32_t));
        __uint(value_size, sizeof(struct ct_chunk));
};

struct {
        __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
        __uint(max_entries, CT_PAGE_REGIONS_MAX);
        __type(key, uint32_t);
        __array(values, struct ct_region);
} ct_regions SEC(".maps");

static __always_inline struct ct_chunk *ct_chunk_of(void *region, uint32_t entry) {
        uint32_t chunk = entry / CT_PAGE_CHUNK_ENTRIES;

        return bpf_map_lookup_elem(region, &chunk);
}

static __always_inline union ct_page_entry *ct_entry_in(struct ct_chunk *chunk, uint32_t entry) {
        return &chunk->entries[entry % CT_PAGE_CHUNK_ENTRIES];
}

static __always_inline struct ct_page_slot *ct_slot_of(void *region, uint32_t entry) {
        struct ct_chunk *chunk = ct_chunk_of(region, entry);

        return chunk ? &ct_entry_in(chunk, entry)->slot : NULL;
}

static __always_inline void ct_break(struct ct_page_group *g, enum ct_page_why why) {
        WRITE_ONCE(g->why, why);
        WRITE_ONCE(g->state, CT_PAGE_BROKEN);
}

/* Makes the count odd. Seen by others at the latest when ct_barrier() is passed. */
static __always_inline void ct_open(uint32_t *seq) {
        WRITE_ONCE(*seq, *seq + 1);
        barrier();
}

/* The same, and a full barrier: all counts opened so far are odd for everybody from here on. */
static __always_inline void ct_open_ordered(uint32_t *seq) {
        uint32_t old = __sync_fetch_and_add(seq, 1);

        asm volatile("" : : "r"(old));  /* a fetch is a barrier, a mere add would not be */
}

/* Makes it even, after all that was written. x86 keeps stores in order; elsewhere a full barrier. */
static __always_inline void ct_close(uint32_t *seq) {
#ifdef __TARGET_ARCH_x86
        barrier();
        WRITE_ONCE(*seq, *seq + 1);
        barrier();
#else
        ct_open_ordered(seq);
#endif
}

static __always_inline int ct_tid(struct task_struct *task) {
        struct pid *pid = BPF_CORE_READ(task, thread_pid);
        unsigned int level;
        struct upid upid = {};

        if (!pid)
                return 0;
        level = BPF_CORE_READ(pid, level);
        if (level > 32)         /* MAX_PID_NS_LEVEL */
                return 0;
        bpf_probe_read_kernel(&upid, sizeof(upid),
                              (char *)__builtin_preserve_access_index(&pid->numbers[0]) +
                                      level * bpf_core_type_size(struct upid));
        return upid.nr;
}

/* A published entry for a thread that has none. Failing that it is tried again at its next switch. */
static __noinline int ct_slot_alloc(struct ct_chunk *first, struct ct_ref *ref, struct task_struct *task) {
        struct ct_page_books *books = &first->entries[CT_PAGE_BOOKS].books;
        struct ct_page_group *g = &first->entries[0].group;
        uint32_t entry = 0;
        struct ct_page_slot *slot;
        void *region;

        region = bpf_map_lookup_elem(&ct_regions, &ref->region);
        if (!region)
                return 0;
        for (int i = 0; i < CT_STACK_TRIES; i++) {
                uint64_t head = READ_ONCE(books->free_entry);

                entry = (uint32_t)head;
                if (!entry)
                        break;
                slot = ct_slot_of(region, entry);
                if (!slot)
                        return 0;
                /* The tag tells if the stack has moved on meanwhile, and next_free with it. */
                if (__sync_val_compare_and_swap(&books->free_entry, head,
                                                ((head >> 32) + 1) << 32 | slot->next_free) == head)
                        break;
                if (i == CT_STACK_TRIES - 1)
                        return 0;
        }
        if (!entry)
                entry = __sync_fetch_and_add(&books->next_entry, 1);
        slot = ct_slot_of(region, entry);
        if (!slot) {
                ct_break(g, CT_PAGE_FULL);
                return 0;
        }
        slot->cpu = -1;
        ref->entry = entry;
        barrier();
        WRITE_ONCE(slot->tid, ct_tid(task));
        return 0;
}

/* SLOT, open, is nobody's from now on. */
static __always_inline void ct_slot_free(struct ct_page_books *books, struct ct_page_slot *slot,
                                         struct ct_ref *ref) {
        slot->tid = 0;
        slot->cpu = -1;
        slot->used_ns = 0;
        slot->wait_ns = 0;
        slot->nvcsw = 0;
        slot->nivcsw = 0;
        ct_close(&slot->seq);
        for (int i = 0; i < CT_STACK_TRIES; i++) {
                uint64_t head = READ_ONCE(books->free_entry);

                slot->next_free = (uint32_t)head;
                if (__sync_val_compare_and_swap(&books->free_entry, head,
                                                ((head >> 32) + 1) << 32 | ref->entry) == head)
                        break;  /* else the entry is lost, until the next enrolment */
        }
}

/* Runnable but not running, the wait that ends with this switch included: it is charged later. */
static __always_inline uint64_t ct_wait(struct task_struct *task, bool comes) {
        uint64_t wait_ns = task->sched_info.run_delay, queued = task->sched_info.last_queued;

        if (comes && queued && bpf_core_field_exists(task->se.cfs_rq)) {
                uint64_t clock = task->se.cfs_rq->rq->clock;

                if (clock > queued)
                        wait_ns += clock - queued;
        }
        return wait_ns;
}

static __always_inline void ct_count(struct ct_ref *ref, struct task_struct *task, bool comes,
                                     uint64_t *wait_ns, uint64_t *nvcsw, uint64_t *nivcsw) {
        uint64_t wait = ct_wait(task, comes), voluntary = task->nvcsw, involuntary = task->nivcsw;

        *wait_ns += wait - ref->wait_ns;
        *nvcsw += voluntary - ref->nvcsw;
        *nivcsw += involuntary - ref->nivcsw;
        ref->wait_ns = wait;
        ref->nvcsw = voluntary;
        ref->nivcsw = involuntary;
}

/* From when on TASK, which comes or goes on, has been charged, or will be, beyond its E. */
static __always_inline uint64_t ct_charged_from(struct ct_page_cell *cell, struct task_struct *task,
                                                uint64_t now, bool tick) {
        uint64_t offset, least;

        if (!bpf_core_field_exists(task->se.cfs_rq))
                return now - (tick ? CT_TICK_LEAD_NS : CT_LEAD_NS);
        offset = now - task->se.cfs_rq->rq->clock;
        if (now - cell->offset_since_ns > CT_LAG_WINDOW_NS) {
                cell->offset_ns[1] = now - cell->offset_since_ns > 2 * CT_LAG_WINDOW_NS ?
                        offset : cell->offset_ns[0];
                cell->offset_ns[0] = offset;
                cell->offset_since_ns = now;
        } else if ((int64_t)(offset - cell->offset_ns[0]) < 0) {
                cell->offset_ns[0] = offset;
        }
        least = cell->offset_ns[0];
        if ((int64_t)(cell->offset_ns[1] - least) < 0)
                least = cell->offset_ns[1];
        return now - (offset - least) - CT_LEAD_NS;
}

/* The most that USED_NS with START_NS can have been taken for until now. */
static __always_inline uint64_t ct_told(uint64_t used_ns, uint64_t start_ns, uint64_t last_ns,
                                        uint64_t age_ns, uint64_t now) {
        uint64_t until = now + CT_SKEW_NS;

        if (until > last_ns + age_ns)
                until = last_ns + age_ns;
        return until > start_ns ? used_ns + (until - start_ns) : used_ns;
}

/*
 * What TASK has used until now; it runs on from `start` (the kernel charges it from there), or (0)
 * does not. Returns by how much T has grown: what is told to have been used, never less than before.
 */
static __always_inline uint64_t ct_settle(struct ct_page_group *g, struct ct_ref *ref,
                                          struct task_struct *task, uint64_t now, uint64_t start) {
        uint64_t e = task->se.sum_exec_runtime, before = ref->used_ns, used = before;

        if (ref->running)
                used = ct_told(used, ref->start_ns, ref->last_ns, g->age_ns, now);
        if (used < e)
                used = e;
        ref->used_ns = used;
        ref->start_ns = start + (used - e);
        ref->last_ns = now;
        ref->running = start != 0;
        return used - before;
}

/* Into SLOT, open, and closes it. */
static __always_inline void ct_publish(struct ct_page_slot *slot, const struct ct_ref *ref, int cpu) {
        slot->cpu = cpu;
        slot->used_ns = ref->used_ns;
        slot->start_ns = ref->start_ns;
        slot->last_ns = ref->last_ns;
        slot->wait_ns = ref->wait_ns;
        slot->nvcsw = ref->nvcsw;
        slot->nivcsw = ref->nivcsw;
        ct_close(&slot->seq);
}

/*
 * TASK has left its CPU for good. The kernel has moved E into the process's sum of ended threads a
 * little while ago, less than what we have by the thread's last microseconds. To stay with the
 * kernel, P follows its sum; but other threads may just be between the two, counted there and still
 * by us. Then the kernel's sum has grown by more than all of ours that ended since it was followed
 * last, and P keeps ours for now. (By less, and still somebody between: a thread smaller than the
 * last microseconds of the others is counted twice until it gets here.) Returns what P has too much.
 */
static __always_inline uint64_t ct_end(struct ct_chunk *first, struct ct_page_slot *slot,
                                       struct ct_ref *ref, struct task_struct *task) {
        struct ct_page_books *books = &first->entries[CT_PAGE_BOOKS].books;
        struct ct_page_group *g = &first->entries[0].group;
        uint64_t ended, grown, excess = 0;

        if (task->sighand) {
                /* Not released: the first thread stays until the process ends; else a tracer's. */
                if (task->pid != task->tgid)
                        ct_break(g, CT_PAGE_TRACED);
                if (slot)
                        ct_publish(slot, ref, -1);
                return 0;
        }
        if (g->state >= CT_PAGE_GOING) {
                __sync_fetch_and_add(&books->ended_ns, ref->used_ns);
                /* Who does not get it leaves its sum to whoever ends next. */
                if (__sync_val_compare_and_swap(&books->ended_lock, 0, 1) == 0) {
                        ended = READ_ONCE(books->ended_ns);
                        grown = task->signal->sum_sched_runtime - books->ended_kernel_ns;
                        if (grown <= ended) {
                                excess = ended - grown;
                                books->ended_kernel_ns += grown;
                                __sync_fetch_and_sub(&books->ended_ns, ended);
                        }
                        WRITE_ONCE(books->ended_lock, 0);
                }
        } else {
                excess = ref->used_ns;  /* the kernel's sum will have it when the group goes live */
        }
        if (slot)
                ct_slot_free(books, slot, ref);
        __sync_fetch_and_sub(&g->nr_tasks, 1);
        ref->generation = 0;
        ref->entry = 0;
        return excess;
}

/* By any event after all threads were found, if none was born or has ended unseen. */
static __always_inline void ct_go_live(struct ct_chunk *first, struct task_struct *task, uint64_t now) {
        struct ct_page_books *books = &first->entries[CT_PAGE_BOOKS].books;
        struct ct_page_group *g = &first->entries[0].group;
        uint64_t ended_ns = task->signal->sum_sched_runtime;

        if ((uint32_t)task->signal->nr_threads != READ_ONCE(g->nr_tasks) ||
            task->signal->sum_sched_runtime != ended_ns ||
            __sync_val_compare_and_swap(&g->state, CT_PAGE_JOINED, CT_PAGE_GOING) != CT_PAGE_JOINED)
                return;
        books->ended_kernel_ns = ended_ns;
        g->base_ns = books->joined_ns + ended_ns;
        /* Others that run have not been seen yet, but will be at their tick. */
        g->valid_ns = g->nr_tasks == 1 ? now : now + g->age_ns;
        __sync_val_compare_and_swap(&g->state, CT_PAGE_GOING, CT_PAGE_LIVE);
}

/* PREV leaves the CPU and NEXT comes, or one of them (the other's ref is NULL), in one process. */
static __noinline int ct_change(struct ct_ref *out, struct task_struct *prev, struct ct_ref *in,
                                struct task_struct *next, struct hrtimer *tick) {
        struct ct_ref *ref = out ? out : in;
        uint32_t cpu = bpf_get_smp_processor_id(), entry = CT_PAGE_FIRST_CELL + cpu;
        uint64_t now, start, told, used, debt, grown = 0, wait_ns, nvcsw, nivcsw;
        struct ct_page_slot *out_slot = NULL, *in_slot = NULL;
        struct ct_chunk *first, *chunk;
        struct ct_page_group *g;
        struct ct_page_cell *cell;
        void *region;

        region = bpf_map_lookup_elem(&ct_regions, &ref->region);
        if (!region)
                return 0;
        first = ct_chunk_of(region, 0);
        if (!first)
                return 0;
        g = &first->entries[0].group;
        if (g->generation != ref->generation || g->state == CT_PAGE_BROKEN || cpu >= g->nr_cpus)
                return 0;
        chunk = entry < CT_PAGE_CHUNK_ENTRIES ? first : ct_chunk_of(region, entry);
        if (!chunk)
                return 0;
        cell = &ct_entry_in(chunk, entry)->cell;
        if (!(g->cpus[cpu / 64 % (CT_PAGE_CPUS_MAX / 64)] >> cpu % 64 & 1))
                __sync_fetch_and_or(&g->cpus[cpu / 64 % (CT_PAGE_CPUS_MAX / 64)], 1ULL << cpu % 64);

        chunk = NULL;
        if (out) {
                if (!out->entry)
                        ct_slot_alloc(first, out, prev);
                chunk = ct_chunk_of(region, out->entry);
                if (out->entry && chunk) {
                        out_slot = &ct_entry_in(chunk, out->entry)->slot;
                        ct_open(&out_slot->seq);
                }
        }
        if (in) {
                if (!in->entry)
                        ct_slot_alloc(first, in, next);
                if (!out || in->entry / CT_PAGE_CHUNK_ENTRIES != out->entry / CT_PAGE_CHUNK_ENTRIES)
                        chunk = ct_chunk_of(region, in->entry);
                if (in->entry && chunk) {
                        in_slot = &ct_entry_in(chunk, in->entry)->slot;
                        ct_open(&in_slot->seq);
                }
        }
        ct_open_ordered(&cell->seq);
        now = bpf_ktime_get_ns();

        used = cell->used_ns;
        told = cell->running ? ct_told(used, cell->start_ns, cell->last_ns, g->age_ns, now) : used;
        debt = cell->debt_ns;
        wait_ns = cell->wait_ns;
        nvcsw = cell->nvcsw;
        nivcsw = cell->nivcsw;
        if (out) {
                grown += ct_settle(g, out, prev, now, 0);
                ct_count(out, prev, false, &wait_ns, &nvcsw, &nivcsw);
        }
        if (in) {
                start = ct_charged_from(cell, next, now, tick != NULL);
                grown += ct_settle(g, in, next, now, start);
                ct_count(in, next, !tick, &wait_ns, &nvcsw, &nivcsw);
        }

        /* As ct_settle(): the sum of the threads' is the cell's used_ns less its debt. */
        used = used + grown - debt;
        debt = 0;
        if ((int64_t)(told - used) > 0 && g->state >= CT_PAGE_GOING) {
                debt = told - used;
                used = told;
        }
        cell->used_ns = used;
        cell->debt_ns = debt;
        cell->start_ns = in ? in->start_ns + debt : now;
        cell->last_ns = now;
        cell->running = in != NULL;
        cell->wait_ns = wait_ns;
        cell->nvcsw = nvcsw;
        cell->nivcsw = nivcsw;
        ct_close(&cell->seq);

        /* After the cell: who has read this T finds it in P. */
        if (out) {
                if (prev->__state & TASK_DEAD)
                        cell->debt_ns = debt + ct_end(first, out_slot, out, prev);
                else if (out_slot)
                        ct_publish(out_slot, out, -1);
        }
        if (in && in_slot)
                ct_publish(in_slot, in, (int)cpu);
        if (g->state == CT_PAGE_JOINED)
                ct_go_live(first, in ? next : prev, now);
        if (tick) {
                if ((uint32_t)next->signal->nr_threads == g->nr_tasks)
                        in->mismatches = 0;
                else if (++in->mismatches > CT_MISMATCH_MAX)
                        ct_break(g, CT_PAGE_LOST);
        }
        return 0;
}

static __always_inline struct ct_ref *ct_ref_of(struct task_struct *task) {
        struct ct_ref *ref;

        if (!task->pid)
                return NULL;
        ref = bpf_task_storage_get(&ct_tasks, task, NULL, 0);
        return ref && ref->generation ? ref : NULL;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(ct_switch, bool preempt, struct task_struct *prev, struct task_struct *next) {
        struct ct_ref *out = ct_ref_of(prev), *in = ct_ref_of(next);

        /* One by one: compilers make "or" of two pointers, which no verifier likes. */
        if (!out) {
                if (in)
                        ct_change(NULL, NULL, in, next, NULL);
                return 0;
        }
        if (in && out->region == in->region && out->generation == in->generation) {
                ct_change(out, prev, in, next, NULL);
                return 0;
        }
        ct_change(out, prev, NULL, NULL, NULL);
        if (in)
                ct_change(NULL, NULL, in, next, NULL);
        return 0;
}

/* The tick's function, known once it has been seen; the loader cannot know it without CAP_SYSLOG. */
uint64_t ct_tick_function;

/* bpf_strncmp() came with Linux 5.17. */
static __always_inline bool ct_equal(const char *a, const char *b, unsigned int size) {
        for (unsigned int i = 0; i < size; i++)
                if (a[i] != b[i])
                        return false;
        return true;
}

static __always_inline bool ct_is_tick(struct hrtimer *timer) {
        /* linux/kernel/time/tick-sched.c: before, and since, Linux 6.8 */
        const char before[] = "tick_sched_timer", since[] = "tick_nohz_handler";
        unsigned long long function = (unsigned long long)timer->function;
        char name[sizeof(since) + 1] = {};

        if (ct_tick_function)
                return function == ct_tick_function;
        bpf_snprintf(name, sizeof(name), "%ps", &function, sizeof(function));
        if (!ct_equal(name, before, sizeof(before)) && !ct_equal(name, since, sizeof(since)))
                return false;
        ct_tick_function = function;
        return true;
}

SEC("tp_btf/hrtimer_expire_exit")
int BPF_PROG(ct_tick, struct hrtimer *timer) {
        struct task_struct *task;
        struct ct_ref *in;

        /* Any other timer's end says nothing about when the running thread was charged. */
        if (!ct_is_tick(timer))
                return 0;
        task = bpf_get_current_task_btf();
        in = ct_ref_of(task);
        if (in)
                ct_change(NULL, NULL, in, task, timer);
        return 0;
}

/* In the parent, when nothing can fail any more and the child has not run. */
SEC("tp_btf/task_newtask")
int BPF_PROG(ct_newtask, struct task_struct *task, unsigned long clone_flags) {
        struct ct_page_group *g;
        struct ct_ref *parent, *ref;
        struct ct_chunk *first;
        void *region;

        if (!(clone_flags & CLONE_THREAD))
                return 0;
        parent = ct_ref_of(bpf_get_current_task_btf());
        if (!parent)
                return 0;
        region = bpf_map_lookup_elem(&ct_regions, &parent->region);
        if (!region)
                return 0;
        first = ct_chunk_of(region, 0);
        if (!first)
                return 0;
        g = &first->entries[0].group;
        if (g->generation != parent->generation)
                return 0;
        ref = bpf_task_storage_get(&ct_tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
        if (!ref) {
                ct_break(g, CT_PAGE_NO_MEMORY);
                return 0;
        }
        __sync_fetch_and_add(&g->nr_tasks, 1);
        __builtin_memset(ref, 0, sizeof(*ref));
        ref->region = parent->region;
        barrier();
        WRITE_ONCE(ref->generation, parent->generation);
        return 0;
}

SEC("iter/task")
int ct_join(struct bpf_iter__task *ctx) {
        struct task_struct *task = ctx->task;
        struct ct_page_books *books;
        struct ct_page_slot *slot;
        struct ct_page_group *g;
        struct ct_chunk *first;
        uint32_t entry;
        unsigned long switches;
        struct ct_ref *ref;
        uint64_t e;
        void *region;

        region = bpf_map_lookup_elem(&ct_regions, &ct_join_region);
        if (!region)
                return 0;
        first = ct_chunk_of(region, 0);
        if (!first)
                return 0;
        g = &first->entries[0].group;
        books = &first->entries[CT_PAGE_BOOKS].books;
        if (!g->version) {
                g->version = CT_PAGE_VERSION;
                g->entries = ct_join_entries;
                g->nr_cpus = ct_join_cpus;
                g->tgid = ct_join_tgid;
                g->age_ns = ct_tick_ns + ct_tick_ns / 2;
                books->next_entry = CT_PAGE_FIRST_CELL + ct_join_cpus;
                g->state = CT_PAGE_JOINING;
                barrier();
                g->generation = ct_join_generation;
        }
        if (!task) {
                /* The end of the list. */
                if (!ct_join_failed && !ct_join_raced && g->state == CT_PAGE_JOINING)
                        WRITE_ONCE(g->state, CT_PAGE_JOINED);
                return 0;
        }
        if ((uint32_t)task->tgid != ct_join_tgid || !task->sighand)
                return 0;
        ref = bpf_task_storage_get(&ct_tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
        if (!ref) {
                ct_join_failed++;
                return 0;
        }
        if (ref->generation == ct_join_generation)
                return 0;
        ref->generation = 0;
        entry = __sync_fetch_and_add(&books->next_entry, 1);
        slot = ct_slot_of(region, entry);
        if (!slot) {
                ct_join_failed++;
                return 0;
        }
        switches = task->nvcsw + task->nivcsw;
        barrier();
        e = task->se.sum_exec_runtime;
        ref->running = 0;
        ref->used_ns = e;
        ref->wait_ns = task->sched_info.run_delay;
        ref->nvcsw = task->nvcsw;
        ref->nivcsw = task->nivcsw;
        ref->entry = entry;
        ct_open(&slot->seq);
        slot->tid = ct_tid(task);
        ct_publish(slot, ref, -1);
        /* One iterator at a time, and nobody else's. */
        books->joined_ns += e;
        books->joined_wait_ns += ref->wait_ns;
        books->joined_nvcsw += ref->nvcsw;
        books->joined_nivcsw += ref->nivcsw;
        __sync_fetch_and_add(&g->nr_tasks, 1);
        ref->region = ct_join_region;
        barrier();
        WRITE_ONCE(ref->generation, ct_join_generation);
        barrier();
        /*
         * Events are seen from here on. One before would leave e behind until the next; one of an
         * earlier enrolment that was still at it has left its own marks.
         */
        if (READ_ONCE(task->nvcsw) + READ_ONCE(task->nivcsw) != switches || READ_ONCE(ref->running) ||
            READ_ONCE(ref->used_ns) != e)
                ct_join_raced++;
        return 0;
}
