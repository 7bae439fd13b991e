/* SPDX-License-Identifier: MIT */
#ifndef CT_TASK_H
#define CT_TASK_H
/*
 * Runtime of one task: what it was charged for ended slices, and since when it runs now.
 *
 *      runtime_ns       sum over ended slices of (switched out - switched in)
 *      exec_start_ns    when the slice in progress began; meaningless while not running
 *
 * With t = the latest published stamp, a read at now answers
 *
 *      R(now) = runtime_ns                                         not running
 *      R(now) = runtime_ns + max(now, exec_start_ns) - exec_start_ns      running
 *
 * Reading computes the slice in progress and changes nothing: no task, no run queue is updated.
 *
 * Promised, for any stamps:
 *      switching in or out does not change R at its own stamp: there is no drift, after any number
 *      of switches R is the exact sum of the slices;
 *      runtime_ns never decreases: a slice that seems to end before it began (stamps of two CPUs)
 *      counts as 0 ns;
 *      R(a) <= R(b) for a <= b and the same publication.
 *
 * Never backwards, over publications too, needs one thing of the caller: a reader's stamp taken
 * after a writer's must not be used before the writer has published. If it is, that read can be
 * ahead by the time between stamp and publication, tens of nanoseconds unless the writer is
 * interrupted there. Who cannot accept that takes both stamps inside the sections: the writer
 * between ct_seqcount_write_begin() and ct_task_in() or ct_task_out(), the reader between
 * ct_seqcount_read_begin() and ct_seqcount_read_valid(), with a clock read that neither earlier
 * nor later memory accesses pass. Then r1 <= r2 whenever r1 returned before r2 began.
 *
 * One writer at a time, ordered by the scheduler that moves the task between CPUs; any number of
 * readers. Zeroed memory is a task that has not run. No libc, no division, no floating point.
 */
#include "account/runtime.h"
#include "base/seqcount.h"

/* Attempts of a bounded read: enough to outlast a writer on another CPU, not one that stands still. */
#define CT_READ_TRIES 64

struct ct_task {
        struct ct_seqcount seq;
        struct ct_u32 running;          /* 0 or 1 */
        struct ct_u64 runtime_ns;
        struct ct_u64 exec_start_ns;
        struct ct_u64 nr_switches;      /* times it was given a CPU */
};

/* The state change of a switch in, inside the caller's write section. In on a running task: nothing. */
static inline void ct_task_in(struct ct_task *task, uint64_t now_ns) {
        if (ct_u32_get(&task->running))
                return;
        ct_u64_set(&task->exec_start_ns, now_ns);
        ct_u64_set(&task->nr_switches, ct_u64_get(&task->nr_switches) + 1);
        ct_u32_set(&task->running, 1);
}

/* R(now_ns), inside a section of either kind. Garbage if the section turns out invalid. */
static inline uint64_t ct_task_peek(const struct ct_task *task, uint64_t now_ns) {
        uint64_t start_ns = ct_u64_get(&task->exec_start_ns);

        return ct_runtime_at(ct_u64_get(&task->runtime_ns), ct_u32_get(&task->running),
                             now_ns > start_ns ? now_ns - start_ns : 0);
}

/* The state change of a switch out, inside the caller's write section. Out when not running: nothing. */
static inline void ct_task_out(struct ct_task *task, uint64_t now_ns) {
        ct_u64_set(&task->runtime_ns, ct_task_peek(task, now_ns));
        ct_u32_set(&task->running, 0);
}

/* The task begins to run at now_ns. */
static inline void ct_task_switch_in(struct ct_task *task, uint64_t now_ns) {
        ct_seqcount_write_begin(&task->seq);
        ct_task_in(task, now_ns);
        ct_seqcount_write_end(&task->seq);
}

/* The task leaves its CPU at now_ns and is charged the slice. */
static inline void ct_task_switch_out(struct ct_task *task, uint64_t now_ns) {
        ct_seqcount_write_begin(&task->seq);
        ct_task_out(task, now_ns);
        ct_seqcount_write_end(&task->seq);
}

/*
 * R(now_ns) without waiting for a writer that does not move on: false, and *ret_ns untouched, when
 * CT_READ_TRIES attempts met an open section. For signal handlers, which may have interrupted the
 * writer.
 */
static inline bool ct_task_try_read(const struct ct_task *task, uint64_t now_ns, uint64_t *ret_ns) {
        for (unsigned i = 0; i < CT_READ_TRIES; i++) {
                uint32_t start = ct_seqcount_read_begin(&task->seq);
                uint64_t ns = ct_task_peek(task, now_ns);

                if (ct_seqcount_read_valid(&task->seq, start)) {
                        *ret_ns = ns;
                        return true;
                }
        }
        return false;
}

/* R(now_ns). Retries while it is overtaken; not for code that may have interrupted the writer. */
static inline uint64_t ct_task_read(const struct ct_task *task, uint64_t now_ns) {
        uint64_t ns;

        while (!ct_task_try_read(task, now_ns, &ns))
                ;
        return ns;
}

#endif /* CT_TASK_H */
