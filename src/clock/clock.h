/* SPDX-License-Identifier: MIT */
#ifndef CT_CLOCK_H
#define CT_CLOCK_H
/* What the parts of the clock ask of each other, and the drop-in of the clock. */
#include <stdbool.h>
#include <stdint.h>

#include "clock/registry.h"
#include "cputime/clock.h"

/* What the kernel adds to a clock id: (~id << 3), the type, and 4 for a thread (linux/posix-timers). */
#define CT_CPUCLOCK_SCHED 2
#define CT_CPUCLOCK_THREAD 4

static inline clockid_t ct_thread_clockid(pid_t tid) {
        return (clockid_t)(~(uint32_t)tid << 3 | CT_CPUCLOCK_THREAD | CT_CPUCLOCK_SCHED);
}

/* The kernel's answers. The thread's and process's own clocks cannot fail. */
uint64_t ct_ask_thread(void);
uint64_t ct_ask_process(void);
int ct_ask_thread_of(pid_t tid, uint64_t *ret_ns);

/* The clocks when the fast path does not serve. */
uint64_t ct_thread_slow(enum cputime_backend *ret_backend);
uint64_t ct_process_slow(enum cputime_backend *ret_backend);

/*
 * By how much the anchor of SLOT's thread, which is running, is now ahead of the thread's last
 * reading; 0 if none is in force. May be called from any thread.
 */
uint64_t ct_slot_thread_ahead(const struct ct_slot *slot);

/* Fast reads that SLOT's thread made, by backend. */
void ct_slot_fast_reads(const struct ct_slot *slot, uint64_t ret_reads[CPUTIME_BACKEND_MAX]);

/* To be called before a thread clock is returned that may be ahead of what its anchor said. */
void ct_group_doubt(struct ct_process *p);

/* A refusal to open an event, -errno, that no amount of waiting changes. */
bool ct_refused_for_good(int r);

/* The process clock from the kernel, made consistent with what was read before. SLOT may be NULL. */
uint64_t ct_group_ask(struct ct_process *p, struct ct_slot *slot);

/*
 * From now on the kernel serves every slow path in this memory, for good: another process is about
 * to share it, and with it the calling thread's storage, maybe, whose fast path ends at once.
 * Fast paths of other threads go on until their anchors end. Async-signal-safe.
 */
void ct_clock_disable(void);

#endif /* CT_CLOCK_H */
