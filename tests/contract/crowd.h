/* SPDX-License-Identifier: MIT */
#ifndef CT_CROWD_H
#define CT_CROWD_H
/*
 * A crowd of threads that read clocks, disturb each other and end: they hop between CPUs, yield,
 * block, are interrupted by signals whose handlers read as well, and short-lived threads come and
 * go beside them. What they read and compare is the test's: act().
 *
 * Each thread that ever lived has a slot of its own, never used again, so that a sum over the
 * slots covers the ended threads. SEEN_NS is the highest reading of that thread's clock that has
 * returned anywhere, handed over with release and acquire.
 */
#include "contract.h"

struct member {
        struct peer peer;               /* valid once LIVE was seen true */
        _Atomic bool live;
        _Atomic uint64_t seen_ns;
        uint64_t dice;
};

#define CROWD_MAX 6000

extern struct member crowd[CROWD_MAX];
extern _Atomic unsigned crowd_size;     /* slots used so far */

struct crowd_plan {
        unsigned n_members;     /* that stay until the end; they come first in crowd[] */
        unsigned ms;            /* how long to stir */
        bool signals;           /* a thread interrupts the members all the time */
        bool churn;             /* others begin, act a little and end, all the time */
        void (*act)(struct member *self, uint64_t roll);
};

/* Runs the plan and joins everybody; the caller has slot 0 and only waits. */
void crowd_run(const struct crowd_plan *plan);

/* The calling thread's slot. */
struct member *crowd_self(void);

/* A live slot, other than the caller's; NULL if the one picked is not. */
struct member *crowd_pick(struct member *self, uint64_t roll);

#endif /* CT_CROWD_H */
