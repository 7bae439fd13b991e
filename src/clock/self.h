/* SPDX-License-Identifier: MIT */
#ifndef CT_SELF_H
#define CT_SELF_H
/*
 * What a thread keeps about itself in thread-local storage: where its slot is, and little else.
 *
 * Ordinary memory, so a forked child inherits it: the slot it points to reads as all zeroes there
 * (see registry.h) and the first read notices. A child of vfork(2) does not inherit but share it,
 * with a parent that is suspended meanwhile: the drop-in's vfork sets `vforked` and takes the slot
 * away before, and gives both back in the parent. The assembly there knows the offsets.
 */
#include <stdint.h>

struct ct_slot;

struct ct_self {
        struct ct_slot *slot;           /* NULL: not registered; the fast paths need it */
        uint32_t vforked;               /* not 0: a foreign process may be running on this memory */
        uint32_t n_early;               /* reads before registering */
        uint64_t floor_ns;              /* thread clock: the last value returned without a slot, */
        uint64_t epoch;                 /* in the process whose record says so; a child's says another */
        uint32_t ended;                 /* past the thread's own clean-up: never register again */
};

#define CT_SELF_SLOT 0
#define CT_SELF_VFORKED 8

extern _Thread_local struct ct_self ct_self __attribute__((visibility("hidden")));

#endif /* CT_SELF_H */
