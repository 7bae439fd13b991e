/* SPDX-License-Identifier: MIT */
#ifndef CT_RUNTIME_H
#define CT_RUNTIME_H
/*
 * The one rule that every reader of a CPU clock applies, whoever wrote the accounts.
 *
 * A writer publishes what has been charged up to some instant t0, and how many tasks run from
 * there on. Nobody publishes again until one of them is switched; a reader at t >= t0 adds what
 * the running ones have used since:
 *
 *      clock(t) = published(t0) + nr_running * (t - t0)
 *
 * A thread's clock is the case nr_running = 0 or 1, a process's clock has one for each thread on a
 * CPU. With t0 = 0, published becomes the sum of the ended slices minus the sum of the start times
 * of the running ones (ct_group): the same line then needs no instant to be stored.
 *
 * Everything is modulo 2^64, so that published may be "negative"; the result is right whenever the
 * true clock is below 2^64 ns, 584 years. Monotone in elapsed_ns as long as that holds. The rule
 * is pure: it reads nothing, and it is the caller's business that published_ns and nr_running
 * belong to the same instant, and that elapsed_ns is not negative.
 */
#include <stdint.h>

static inline uint64_t ct_runtime_at(uint64_t published_ns, uint32_t nr_running,
                                     uint64_t elapsed_ns) {
        return published_ns + nr_running * elapsed_ns;
}

#endif /* CT_RUNTIME_H */
