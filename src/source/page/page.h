/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#ifndef CT_PAGE_H
#define CT_PAGE_H
/*
 * The page: the accounts of one process, written by the kernel's side (page.bpf.c) at every switch
 * of its threads, mapped read-only by that process alone. This layout is an ABI between programs
 * that may have been built at different times; CT_PAGE_VERSION changes with it.
 *
 *      entry 0           the process                       struct ct_page_group
 *      entry 1           the writers' own books            struct ct_page_books
 *      entry 2..         one for each CPU the machine can have     struct ct_page_cell
 *      after those       one for each thread               struct ct_page_slot
 *
 *      byte 0             128        256                 320     384
 *           | group       | books    | cell of CPU 0     | spare | cell of CPU 1 ... | slot | spare |
 *           +- settled ---+          +- one writer: that CPU ---------------------------+- its CPU -+
 *
 * Entries are two cache lines wide, so that two CPUs do not pull one line back and forth (adjacent
 * lines are fetched together on many CPUs). What readers look at fills the first line.
 *
 * All stamps are CLOCK_MONOTONIC in ns as the initial time namespace has it.
 *
 * A thread. The kernel's own sum_exec_runtime, E, is exact at a switch and right after a tick.
 *
 *      used_ns    what anybody can have been told at the last publication, and at least E
 *      start_ns   when E catches up with that, if the thread runs on
 *      T(now)  =  used_ns                                      not on a CPU
 *      T(now)  =  used_ns + max(0, now - start_ns)             on one
 *
 * There is no drift: each publication starts from E again. What was told can be ahead of E (a
 * hypervisor took the CPU, interrupts that are not charged, the page's lead): then start_ns lies in
 * the future, and T stands still until E is there.
 *
 * The process: the same, summed up by CPU. At most one of its threads runs on a CPU, so a cell has
 * used_ns and start_ns too, the former being the sum of what T of threads grew by on that CPU:
 *
 *      P(now)  =  base_ns + sum over CPUs of (used_ns [+ max(0, now - start_ns) if one runs])
 *
 * base_ns is what was used before the process was enrolled. P is constant time, whatever the number
 * of threads: with one `now` it is the sum of all T, plus what threads that ended have used. A cell
 * is written by its own CPU alone, with interrupts off: nobody waits for anybody.
 *
 * Promised, under the protocol of page.bpf.c and page-read.h, modelled in page.pml: neither T nor P
 * steps back for whoever is ordered after a reader, since each cell and slot never does; P covers
 * all T read before it.
 *
 * Nothing is promised by a group that is not CT_PAGE_LIVE, before valid_ns, or when last_ns of
 * somebody who runs is longer ago than age_ns: the publisher may be gone. The reader asks the
 * kernel then. age_ns is a tick and a half: the tick of a CPU publishes for who runs there.
 */
#include <stdint.h>

#define CT_PAGE_VERSION 1
#define CT_PAGE_ENTRY_SIZE 128

/* Threads of one process at most; one with more is not served. */
#define CT_PAGE_THREADS_MAX 8191

/* CPUs of the machine, at most. */
#define CT_PAGE_CPUS_MAX 512

/* Processes at once. */
#define CT_PAGE_REGIONS_MAX 1024

enum ct_page_state {
        CT_PAGE_NEW = 0,        /* zeroed memory */
        CT_PAGE_JOINING = 1,    /* its threads are being found */
        CT_PAGE_JOINED = 2,     /* all found; live as soon as their number is the kernel's */
        CT_PAGE_GOING = 3,      /* going live */
        CT_PAGE_LIVE = 4,
        CT_PAGE_BROKEN = 5,     /* given up, for good */
};

/* Why a group is broken; for people. */
enum ct_page_why {
        CT_PAGE_WHOLE = 0,
        CT_PAGE_FULL = 1,       /* more threads than the region has room for */
        CT_PAGE_NO_MEMORY = 2,  /* for a thread's task storage */
        CT_PAGE_TRACED = 3,     /* a thread ended and waits to be released by its tracer */
        CT_PAGE_LOST = 4,       /* the kernel has another number of threads than we */
};

struct ct_page_group {
        uint32_t version;       /* CT_PAGE_VERSION */
        uint32_t state;         /* enum ct_page_state */
        uint32_t generation;    /* which enrolment this is; never 0 */
        uint32_t nr_cpus;       /* cells */
        uint64_t base_ns;
        uint64_t age_ns;        /* how long a publication may be built upon */
        uint64_t valid_ns;      /* from when on P may be read */
        uint32_t entries;       /* of the region */
        uint32_t nr_tasks;      /* threads that are followed */
        int32_t tgid;           /* in the initial pid namespace */
        uint32_t why;           /* enum ct_page_why */
        uint64_t spare;
        uint64_t cpus[CT_PAGE_CPUS_MAX / 64];   /* which cells have ever been used, a bit each */
};

struct ct_page_books {
        uint32_t next_entry;    /* entries never used begin here */
        uint32_t ended_lock;    /* of the two sums about ended threads */
        uint64_t free_entry;    /* a stack of those given back: entry, and a tag in the upper half */
        uint64_t joined_ns;     /* sum of E over the threads when they were found */
        uint64_t joined_wait_ns;
        uint64_t joined_nvcsw;
        uint64_t joined_nivcsw;
        uint64_t ended_kernel_ns;       /* the kernel's sum over ended threads that P has followed */
        uint64_t ended_ns;      /* of ended threads since, as the cells have it */
        uint64_t spare[8];
};

struct ct_page_cell {
        uint32_t seq;           /* odd while being changed */
        uint32_t running;       /* 1: a thread of the process is on this CPU */
        uint64_t used_ns;
        uint64_t start_ns;
        uint64_t last_ns;       /* stamp of the last publication */
        uint64_t wait_ns;       /* as in the slot, of all threads, on this CPU */
        uint64_t nvcsw;
        uint64_t nivcsw;
        uint64_t debt_ns;       /* the writer's own from here on: used_ns beyond the threads' sum */
        uint64_t offset_ns[2];  /* the least that stamps were ahead of the scheduler's clock, modulo */
        uint64_t offset_since_ns;       /* 2^64: since then, and in the time before */
        uint64_t spare[5];
};

struct ct_page_slot {
        uint32_t seq;           /* odd while being changed */
        int32_t tid;            /* as the thread itself sees it; 0: nobody's */
        int32_t cpu;            /* -1: on none */
        uint32_t next_free;     /* of the books' stack */
        uint64_t used_ns;
        uint64_t start_ns;
        uint64_t last_ns;       /* stamp of the last publication */
        uint64_t wait_ns;       /* runnable but not running, up to this stay on a CPU */
        uint64_t nvcsw;         /* voluntary switches */
        uint64_t nivcsw;        /* involuntary ones */
        uint64_t spare[8];
};

union ct_page_entry {
        struct ct_page_group group;
        struct ct_page_books books;
        struct ct_page_cell cell;
        struct ct_page_slot slot;
};

/* A region is a whole number of chunks, a page of memory each on most machines. */
#define CT_PAGE_CHUNK_ENTRIES 32

#define CT_PAGE_BOOKS 1
#define CT_PAGE_FIRST_CELL 2

_Static_assert(sizeof(struct ct_page_group) == CT_PAGE_ENTRY_SIZE, "ABI");
_Static_assert(sizeof(struct ct_page_books) == CT_PAGE_ENTRY_SIZE, "ABI");
_Static_assert(sizeof(struct ct_page_cell) == CT_PAGE_ENTRY_SIZE, "ABI");
_Static_assert(sizeof(struct ct_page_slot) == CT_PAGE_ENTRY_SIZE, "ABI");
_Static_assert(sizeof(union ct_page_entry) == CT_PAGE_ENTRY_SIZE, "ABI");
_Static_assert(__builtin_offsetof(struct ct_page_group, base_ns) == 16, "ABI");
_Static_assert(__builtin_offsetof(struct ct_page_group, entries) == 40, "ABI");
_Static_assert(__builtin_offsetof(struct ct_page_group, cpus) == 64, "ABI");
_Static_assert(__builtin_offsetof(struct ct_page_cell, used_ns) == 8, "ABI");
_Static_assert(__builtin_offsetof(struct ct_page_cell, offset_ns) == 64, "ABI");
_Static_assert(__builtin_offsetof(struct ct_page_slot, used_ns) == 16, "ABI");
_Static_assert(__builtin_offsetof(struct ct_page_slot, spare) == 64, "one line is written");

#endif /* CT_PAGE_H */
