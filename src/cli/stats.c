/* SPDX-License-Identifier: MIT */
/* See stats.h for the reasoning. */
#include <math.h>
#include <stdlib.h>

#include "cli/stats.h"

static int ascending(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

double cli_quantile(const double *sorted, size_t n, double p) {
        double at = p * (double)(n - 1), below = floor(at);
        size_t i = (size_t)below;

        if (i + 1 >= n)
                return sorted[n - 1];
        return sorted[i] + (at - below) * (sorted[i + 1] - sorted[i]);
}

void cli_summarise(double *samples, size_t n, struct cli_summary *ret_summary) {
        double term = ldexp(1.0, -(int)n);      /* P(exactly i below), i = 0 */
        double tail = term;                     /* P(at most i below) */
        double covers = 1.0 - 2.0 * tail;
        size_t k = 1;

        qsort(samples, n, sizeof(*samples), ascending);

        /* Give up one sample more on either side for as long as 95 % stay. */
        for (size_t i = 1; 2 * (i + 1) <= n; i++) {
                term = term * (double)(n - i + 1) / (double)i;
                tail += term;
                if (1.0 - 2.0 * tail < 0.95)
                        break;
                covers = 1.0 - 2.0 * tail;
                k = i + 1;
        }

        *ret_summary = (struct cli_summary){
                .median = cli_quantile(samples, n, 0.5),
                .lo = samples[k - 1],
                .hi = samples[n - k],
                .covers = covers,
                .q1 = cli_quantile(samples, n, 0.25),
                .q3 = cli_quantile(samples, n, 0.75),
        };
}

bool cli_intervals_meet(double a_lo, double a_hi, double b_lo, double b_hi) {
        return a_lo <= b_hi && b_lo <= a_hi;
}
