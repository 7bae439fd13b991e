/* SPDX-License-Identifier: MIT */
#ifndef CT_PERF_MAP_H
#define CT_PERF_MAP_H
/*
 * Two ways to have the kernel tell a thread, through memory alone, that it was switched.
 *
 * header: one page of a software event that counts nothing. The kernel rewrites the page whenever
 *     the event comes back onto a CPU with its thread, and bumps a sequence count around that. The
 *     count is the same as long as the thread has not been switched out and in. It says nothing
 *     at switch-out, so it serves the thread itself only.
 * ring: the same event, which in addition logs every switch, in and out, fork and exit, to a
 *     one-page ring. Mapped read-only the ring is overwritten for ever, data_head only grows. Its
 *     head tells other threads too, and its last record whether the thread runs.
 *
 * The descriptor is closed as soon as the event is mapped: the mapping holds the event, so there
 * is no descriptor for a program that closes them all to find, and none to run out of.
 *
 * In each the "change word" is the low 32 bits of a counter that differs after any switch. That
 * 32 bits suffice does not rest on luck: 2^27 switches with the count coming back to the very
 * value take minutes, and whoever compares also checks an age limit of under a millisecond.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum ct_perf_kind {
        CT_PERF_HEADER,
        CT_PERF_RING,
};

/* What no change word ever is: sequence counts at rest are even, heads are multiples of eight. */
#define CT_PERF_POISON UINT32_MAX

size_t ct_perf_page_size(void);

/* Bytes that a mapping of KIND takes: one page, or two. */
size_t ct_perf_size(enum ct_perf_kind kind);

/*
 * Opens an event on TID (0: the caller) and maps it at PLACE, which must be ct_perf_size(KIND)
 * bytes of the caller's address space; their old content is replaced in one step. PLACE NULL: the
 * kernel chooses. Async-signal-safe, three to five system calls, preserves errno. Returns 0 with
 * *ret_address set, or -errno with *ret_step set to the name of what failed:
 *   -EPERM, -EACCES     perf_event_open: perf_event_paranoid or a security policy, mmap: the
 *                       locked-memory quota is used up
 *   -ENOSYS             no perf in this kernel, or a sandbox
 *   -ESRCH              no such thread (any more)
 *   -EMFILE, -ENFILE    no free descriptor
 *   -ENOMEM, -ENOSPC    no memory, address space, or room for another event
 */
int ct_perf_map(enum ct_perf_kind kind, pid_t tid, void *place, void **ret_address,
                const char **ret_step);

/* Unmaps for good: nobody may look at the address any more. */
void ct_perf_unmap(enum ct_perf_kind kind, void *address);

/*
 * Takes the event down but leaves readable memory in its place in which the change word is
 * CT_PERF_POISON, so that a thread that is just comparing sees a change and never a fault.
 * Returns 0 or -errno; on failure the event stays.
 */
int ct_perf_poison(enum ct_perf_kind kind, void *address);

/* Where the change word of a mapping is. */
const uint32_t *ct_perf_change_word(enum ct_perf_kind kind, const void *address);

/* Whether the last record of the ring at ADDRESS says that its thread ended. */
bool ct_perf_exited(const void *address);

/* What a ring's records since OLD_HEAD say. */
struct ct_perf_news {
        uint32_t head;          /* the change word that this is the news up to */
        uint32_t n_switches;
        bool lost;              /* more came than the ring holds; the rest is from the tail alone */
        bool known;             /* whether `running` could be told */
        bool running;           /* the last switch record was "in" */
        bool forked;            /* the thread made a thread or a process */
        bool exited;            /* the thread is ending */
};

/*
 * Reads the records of the ring at ADDRESS from OLD_HEAD on. The caller compares the change word
 * with ret_news->head afterwards: if it moved, the news may be torn and must be dropped.
 */
void ct_perf_read_news(const void *address, uint32_t old_head, struct ct_perf_news *ret_news);

#endif /* CT_PERF_MAP_H */
