/* SPDX-License-Identifier: MIT */
/*
 * Known answers. The ranks k and coverages are those of published tables of nonparametric
 * confidence intervals for the median, and the coverages can be worked out by hand: for 6 samples
 * 1 - 2/64, for 9 samples and k = 2 1 - 2 (1 + 9) / 512.
 */
#include <math.h>
#include <stdio.h>

#include "cli/stats.h"

static int nr_failed;

static void expect(const char *what, size_t n, double got, double want, double within) {
        if (fabs(got - want) <= within)
                return;
        fprintf(stderr, "%s of %zu: got %.10g, expected %.10g\n", what, n, got, want);
        nr_failed++;
}

/* 1..n in an order that is not sorted, for any n: odd numbers up, even ones down. */
static void shuffled(double *samples, size_t n) {
        size_t odd = 1, even = n - n % 2;

        for (size_t i = 0; i < n; i++) {
                if (odd <= n && (i % 2 == 0 || even == 0)) {
                        samples[i] = (double)odd;
                        odd += 2;
                } else {
                        samples[i] = (double)even;
                        even -= 2;
                }
        }
}

int main(void) {
        static const struct {
                size_t n, k;
                double covers;
        } known[] = {
                { 1, 1, 0.0 },          { 2, 1, 0.5 },          { 5, 1, 0.9375 },
                { 6, 1, 0.96875 },      { 7, 1, 0.984375 },     { 8, 1, 0.9921875 },
                { 9, 2, 0.9609375 },    { 10, 2, 0.978515625 }, { 11, 2, 0.98828125 },
                { 12, 3, 0.9614257812 }, { 15, 4, 0.9648437500 }, { 17, 5, 0.9509582520 },
                { 20, 6, 0.9586105347 }, { 25, 8, 0.9567147493 }, { 30, 10, 0.9572260547 },
                { 40, 14, 0.9615226917 }, { 100, 40, 0.9647997998 },
                /* k by the normal approximation, (n + 1) / 2 - 1.96 sqrt(n) / 2 = 469.5 */
                { 1000, 469, 0.9537 },
        };
        static double samples[CLI_SAMPLES_MAX];
        struct cli_summary s;

        for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
                size_t n = known[i].n, k = known[i].k;

                shuffled(samples, n);
                cli_summarise(samples, n, &s);
                expect("median", n, s.median, (double)(n + 1) / 2, 1e-9);
                expect("lo", n, s.lo, (double)k, 0);
                expect("hi", n, s.hi, (double)(n + 1 - k), 0);
                expect("covers", n, s.covers, known[i].covers, n == 1000 ? 1e-4 : 1e-9);
        }

        /* Quartiles, linear between neighbours: the example of every textbook. */
        cli_summarise((double[]){ 7, 15, 36, 39, 40, 41 }, 6, &s);
        expect("q1", 6, s.q1, 20.25, 1e-12);
        expect("median", 6, s.median, 37.5, 1e-12);
        expect("q3", 6, s.q3, 39.75, 1e-12);
        expect("q0", 3, cli_quantile((double[]){ 1, 2, 4 }, 3, 0.0), 1, 0);
        expect("q1.0", 3, cli_quantile((double[]){ 1, 2, 4 }, 3, 1.0), 4, 0);

        expect("meet: apart", 2, cli_intervals_meet(1, 2, 3, 4), 0, 0);
        expect("meet: apart, swapped", 2, cli_intervals_meet(3, 4, 1, 2), 0, 0);
        expect("meet: one point", 2, cli_intervals_meet(1, 2, 2, 4), 1, 0);
        expect("meet: one point, swapped", 2, cli_intervals_meet(2, 4, 1, 2), 1, 0);
        expect("meet: one inside the other", 2, cli_intervals_meet(1, 9, 2, 4), 1, 0);

        return nr_failed > 0;
}
