/* SPDX-License-Identifier: MIT */
#ifndef CT_SEQCOUNT_H
#define CT_SEQCOUNT_H
/*
 * Sequence counts: one writer publishes several words, any number of readers see all of one
 * publication or none of it, and never write.
 *
 * The count is even at rest and odd while a write section is open. A reader notes the count, copies
 * the data and looks at the count again: its copy is good when both were the same even number.
 *
 *      copy valid  <=>  seq before == seq after  and  seq even
 *
 * Readers never block the writer. A reader retries as often as it is overtaken; one that may have
 * interrupted the writer itself (a signal handler) must not wait for it: it asks
 * ct_seqcount_read_valid() a bounded number of times and gives up.
 *
 * Writers either are one by construction (write_begin), or exclude each other through the count
 * itself (write_lock). A section is a handful of stores; a lock holder that is preempted inside it
 * delays the other writers and the readers for as long. A signal handler may not write what the
 * code it interrupts writes.
 *
 * The data lie in ct_u32 and ct_u64 and are read and written with relaxed atomics, so that an
 * overtaken copy is garbage in the number but no undefined behaviour. A ct_u64 is two halves where
 * registers have 32 bits: it can tear there, which the count detects, and needs no help from a
 * library. Outside a section its readers must expect that.
 *
 * The count wraps after 2^31 sections; a reader is fooled if it sleeps between its two looks for
 * exactly a multiple of that, at a million sections a second for 36 minutes to within one section.
 * Accepted: its copy then still passed through one consistent state or is off by one slice.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ct_u32 {
        _Atomic uint32_t value;
};

struct ct_u64 {
#if UINTPTR_MAX > UINT32_MAX
        _Atomic uint64_t value;
#else
        _Atomic uint32_t half[2];
#endif
};

struct ct_seqcount {
        _Atomic uint32_t seq;   /* 0 at rest: zeroed memory is a valid count */
};

static inline uint32_t ct_u32_get(const struct ct_u32 *v) {
        return atomic_load_explicit(&v->value, memory_order_relaxed);
}

static inline void ct_u32_set(struct ct_u32 *v, uint32_t value) {
        atomic_store_explicit(&v->value, value, memory_order_relaxed);
}

static inline uint64_t ct_u64_get(const struct ct_u64 *v) {
#if UINTPTR_MAX > UINT32_MAX
        return atomic_load_explicit(&v->value, memory_order_relaxed);
#else
        return atomic_load_explicit(&v->half[0], memory_order_relaxed) |
               (uint64_t)atomic_load_explicit(&v->half[1], memory_order_relaxed) << 32;
#endif
}

static inline void ct_u64_set(struct ct_u64 *v, uint64_t value) {
#if UINTPTR_MAX > UINT32_MAX
        atomic_store_explicit(&v->value, value, memory_order_relaxed);
#else
        atomic_store_explicit(&v->half[0], (uint32_t)value, memory_order_relaxed);
        atomic_store_explicit(&v->half[1], (uint32_t)(value >> 32), memory_order_relaxed);
#endif
}

/* The count to hand to ct_seqcount_read_valid() after copying; may be odd. Never waits. */
static inline uint32_t ct_seqcount_read_begin(const struct ct_seqcount *s) {
        /* Acquire: pairs with the release in write_end(), the copy is at least that new. */
        return atomic_load_explicit(&s->seq, memory_order_acquire);
}

/* Whether what was copied since read_begin() returned START is one whole publication. */
static inline bool ct_seqcount_read_valid(const struct ct_seqcount *s, uint32_t start) {
        /*
         * Acquire: pairs with the release fence in write_begin(). If the copy saw a store of a
         * later section, the load below sees that section's odd count, or a later one.
         */
        atomic_thread_fence(memory_order_acquire);
        return !(start & 1) && atomic_load_explicit(&s->seq, memory_order_relaxed) == start;
}

/* Opens a section. The caller is the only writer. */
static inline void ct_seqcount_write_begin(struct ct_seqcount *s) {
        uint32_t seq = atomic_load_explicit(&s->seq, memory_order_relaxed);

        atomic_store_explicit(&s->seq, seq + 1, memory_order_relaxed);
        /* Release: pairs with the acquire fence in read_valid(). */
        atomic_thread_fence(memory_order_release);
}

/* Opens a section, waiting for other writers that use write_lock() to close theirs. */
static inline void ct_seqcount_write_lock(struct ct_seqcount *s) {
        uint32_t seq = atomic_load_explicit(&s->seq, memory_order_relaxed);

        for (;;) {
                if (seq & 1)
                        seq = atomic_load_explicit(&s->seq, memory_order_relaxed);
                /* Acquire: pairs with the previous writer's write_end(); we add to its data. */
                else if (atomic_compare_exchange_weak_explicit(&s->seq, &seq, seq + 1,
                                                               memory_order_acquire,
                                                               memory_order_relaxed))
                        break;
        }
        /* Release: pairs with the acquire fence in read_valid(). */
        atomic_thread_fence(memory_order_release);
}

/* Closes the section, either kind. */
static inline void ct_seqcount_write_end(struct ct_seqcount *s) {
        uint32_t seq = atomic_load_explicit(&s->seq, memory_order_relaxed);

        /* Release: pairs with the acquire in read_begin() and in write_lock(). */
        atomic_store_explicit(&s->seq, seq + 1, memory_order_release);
}

#endif /* CT_SEQCOUNT_H */
