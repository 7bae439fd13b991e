/* SPDX-License-Identifier: MIT */
#ifndef CT_ARCH_PSEUDOCODE_H
#define CT_ARCH_PSEUDOCODE_H
/*
 * What each architecture must provide; documentation, included by nobody.
 *
 * CT_COUNTER_EXISTS
 *      1 if user space can read a counter that runs at one constant rate on all CPUs and through
 *      idle states, at least while the kernel itself keeps time by it. 0: the vDSO's
 *      CLOCK_MONOTONIC_RAW serves, the functions below are never called.
 *
 * uint64_t ct_counter_read(void)
 *      The counter, possibly read a few dozen nanoseconds early or late against surrounding loads
 *      and stores of *memory*. Interrupts are precise: what is loaded before it in program order
 *      was loaded before an interrupt that came between, and that is all a thread needs that
 *      compares with its own events. A compiler barrier on both sides.
 *
 * uint64_t ct_counter_read_ordered(void)
 *      The counter, read after every earlier load has completed. A clock that several threads
 *      read needs this: without it the value can be older than a message that the thread has
 *      already received, and two threads that compare notes see time go backwards.
 *
 * CT_COUNTER_CLOCKSOURCES
 *      The kernel's clock sources (/sys/devices/system/clocksource) under which the counter is
 *      trusted; the kernel's watchdog takes the name away when the counter misbehaves.
 */
/*
 * bool ct_replace_local(_Atomic uint64_t *p, uint64_t expected, uint64_t value)
 *      Compares and replaces *p, in one step as far as signal handlers of the calling thread can
 *      tell. Other threads may read *p but do not write it. Never fails spuriously.
 */
#endif /* CT_ARCH_PSEUDOCODE_H */
