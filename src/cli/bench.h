/* SPDX-License-Identifier: MIT */
#ifndef CT_BENCH_H
#define CT_BENCH_H
/*
 * The file that `cputime bench` writes and `cputime compare` reads:
 *
 *      { "schema": "cputime-bench/1",
 *        "machine": { ... },
 *        "results": [ { "bench": "pound_times", "backend": "ring", "threads": 2,
 *                       "unit": "ns/call", "samples": [ ... ], "median": .., "lo": .., "hi": ..,
 *                       "errors": 0 }, ... ] }
 *
 * Samples are raw and in the order in which they were taken. lo..hi is the interval for the median
 * (stats.h). errors counts readings that decreased. Besides a backend, "backend" is one of
 */
#define BENCH_SCHEMA "cputime-bench/1"
#define BENCH_AGAIN " (again)"          /* appended: the same once more, to see what noise does */
#define BENCH_FLOOR "vdso floor"        /* the same loop on CLOCK_MONOTONIC */
#define BENCH_EMPTY "empty loop"        /* the same loop and no clock */

/* How many threads a bench program starts at most; above that no machine has been tried. */
#define BENCH_THREADS_MAX 4096

#endif /* CT_BENCH_H */
