/* SPDX-License-Identifier: MIT */
#ifndef CT_GROUP_H
#define CT_GROUP_H
/*
 * Runtime of a group of tasks (a process) in constant time, whatever their number.
 *
 * Let every ended slice count (out - in), and every slice in progress (now - in). Sorting that sum
 * by what depends on now:
 *
 *      P(now) = sum of outs - sum of ins + n * now  =  S + n * now
 *
 * with n the number of slices in progress. A switch in subtracts its stamp from S and adds one to
 * n, a switch out does the opposite; nothing is walked, by writers or readers. S is kept modulo
 * 2^64 and is "negative" while something runs. A task that ends leaves its slices in S.
 *
 *      last_ns   the latest stamp published: a reader whose own stamp is older uses this one, as
 *                S + n * now does not hold for an instant before the state it was read from
 *
 * Promised, for any stamps, of tasks that are switched through this file only:
 *      P(now) == sum of R(now) over all tasks ever switched + what was charged beside them, for
 *      now >= last_ns and nobody inside a switch: to the nanosecond, after any number of switches;
 *      P, read with a stamp >= those of reads T1..Tn that were made before it, is
 *      >= T1 + ... + Tn: a switch in is published to the group before the task, so that the group
 *      is never the one behind;
 *      S, n and last_ns are of one publication.
 * Never backwards: as in task.h, a reader's stamp used before an older stamp of a writer is
 * published lets that read be ahead by as long; stamps taken inside the sections exclude it.
 *
 * Any number of writers, which exclude each other through the group's sequence count (one
 * compare-and-swap a switch), any number of readers. Zeroed memory is a group that has not run.
 */
#include "account/task.h"

struct ct_group {
        struct ct_seqcount seq;
        struct ct_u32 nr_running;
        struct ct_u64 sum_ns;           /* S */
        struct ct_u64 last_ns;
};

/* The state change for one more running task, inside the caller's write section. */
static inline void ct_group_in(struct ct_group *group, uint64_t now_ns) {
        ct_u64_set(&group->sum_ns, ct_u64_get(&group->sum_ns) - now_ns);
        ct_u32_set(&group->nr_running, ct_u32_get(&group->nr_running) + 1);
        if (now_ns > ct_u64_get(&group->last_ns))
                ct_u64_set(&group->last_ns, now_ns);
}

/* The state change for one running task less, inside the caller's write section. */
static inline void ct_group_out(struct ct_group *group, uint64_t now_ns) {
        ct_u64_set(&group->sum_ns, ct_u64_get(&group->sum_ns) + now_ns);
        ct_u32_set(&group->nr_running, ct_u32_get(&group->nr_running) - 1);
        if (now_ns > ct_u64_get(&group->last_ns))
                ct_u64_set(&group->last_ns, now_ns);
}

/* P(now_ns), inside a section of either kind. Garbage if the section turns out invalid. */
static inline uint64_t ct_group_peek(const struct ct_group *group, uint64_t now_ns) {
        uint64_t last_ns = ct_u64_get(&group->last_ns);

        return ct_runtime_at(ct_u64_get(&group->sum_ns), ct_u32_get(&group->nr_running),
                             now_ns > last_ns ? now_ns : last_ns);
}

/* Adds time that was used before the group was kept here: its tasks were enrolled late. */
static inline void ct_group_charge(struct ct_group *group, uint64_t ns) {
        ct_seqcount_write_lock(&group->seq);
        ct_u64_set(&group->sum_ns, ct_u64_get(&group->sum_ns) + ns);
        ct_seqcount_write_end(&group->seq);
}

/* A task of the group begins to run at now_ns. In on a running task: nothing. */
static inline void ct_group_switch_in(struct ct_group *group, struct ct_task *task,
                                      uint64_t now_ns) {
        if (ct_u32_get(&task->running))
                return;
        ct_seqcount_write_lock(&group->seq);
        ct_group_in(group, now_ns);
        ct_seqcount_write_end(&group->seq);
        ct_task_switch_in(task, now_ns);
}

/* A task of the group leaves its CPU at now_ns. Out when not running: nothing. */
static inline void ct_group_switch_out(struct ct_group *group, struct ct_task *task,
                                       uint64_t now_ns) {
        uint64_t start_ns = ct_u64_get(&task->exec_start_ns);

        if (!ct_u32_get(&task->running))
                return;
        ct_task_switch_out(task, now_ns);
        ct_seqcount_write_lock(&group->seq);
        /* Charge what the task was charged: a slice that ended before it began is 0 ns in both. */
        ct_group_out(group, now_ns > start_ns ? now_ns : start_ns);
        ct_seqcount_write_end(&group->seq);
}

/* As ct_task_try_read(): false, and *ret_ns untouched, when a writer stands still. */
static inline bool ct_group_try_read(const struct ct_group *group, uint64_t now_ns,
                                     uint64_t *ret_ns) {
        for (unsigned i = 0; i < CT_READ_TRIES; i++) {
                uint32_t start = ct_seqcount_read_begin(&group->seq);
                uint64_t ns = ct_group_peek(group, now_ns);

                if (ct_seqcount_read_valid(&group->seq, start)) {
                        *ret_ns = ns;
                        return true;
                }
        }
        return false;
}

/* P(now_ns). Retries while it is overtaken; not for code that may have interrupted a writer. */
static inline uint64_t ct_group_read(const struct ct_group *group, uint64_t now_ns) {
        uint64_t ns;

        while (!ct_group_try_read(group, now_ns, &ns))
                ;
        return ns;
}

#endif /* CT_GROUP_H */
