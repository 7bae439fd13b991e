/* SPDX-License-Identifier: MIT */
#ifndef CT_STATS_H
#define CT_STATS_H
/*
 * What a handful of timings say. Timings have a hard floor and a long tail, so nothing here
 * assumes a distribution: the middle is the median, the spread is the interquartile range, and the
 * interval for the median comes from order statistics alone.
 *
 * The interval: each sample is below the true median with probability 1/2, so the number of
 * samples below it is binomial(n, 1/2), and the k-th smallest to the k-th largest sample holds the
 * true median with probability 1 - 2 P(fewer than k below). k is the largest that leaves at least
 * 95 %. With fewer than 6 samples no k does; the interval is then the whole range, and covers
 * says how much that is worth.
 *
 *      lo <= median <= hi,  lo <= hi are samples,  covers = 1 - 2^(1-n) sum_{i<k} C(n, i)
 *
 * Not promised: that samples are independent. Neighbours in time often are not, which is why the
 * measuring program has to interleave them.
 */
#include <stdbool.h>
#include <stddef.h>

/* 2^-n must stay a normal double. */
#define CLI_SAMPLES_MAX 1000

/* Below this many samples no interval covers the median with 95 %. */
#define CLI_SAMPLES_FOR_95 6

struct cli_summary {
        double median;
        double lo, hi;          /* the interval */
        double covers;          /* probability that it holds the true median */
        double q1, q3;          /* quartiles */
};

/* The P-quantile, 0 <= P <= 1, of N >= 1 ascending values, linear between neighbours. */
double cli_quantile(const double *sorted, size_t n, double p);

/* Summarises 1 <= N <= CLI_SAMPLES_MAX samples, and sorts them in place. Cannot fail. */
void cli_summarise(double *samples, size_t n, struct cli_summary *ret_summary);

/* Whether the intervals A and B have a point in common. */
bool cli_intervals_meet(double a_lo, double a_hi, double b_lo, double b_hi);

#endif /* CT_STATS_H */
