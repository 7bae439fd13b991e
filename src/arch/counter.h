/* SPDX-License-Identifier: MIT */
#ifndef CT_COUNTER_H
#define CT_COUNTER_H
/* The time stamp counter, where there is one: see pseudocode.h for the contract. */
#if defined(__x86_64__)
#include "arch/counter-x86-64.h"        /* IWYU pragma: export */
#else
#include "arch/counter-fallback.h"      /* IWYU pragma: export */
#endif

#endif /* CT_COUNTER_H */
