/* SPDX-License-Identifier: MIT */
/*
 * From a phase's samples to its verdict. No clock is read here.
 *
 * A phase passes when, for the thread clock and for the process clock, each on its own,
 *
 *   1. |error| <= CPUTIME_ERROR_NS + kernel / 1000 for at least 999 of 1,000 samples (and one
 *      sample beyond it is allowed where there are fewer),
 *   2. no read ever was less than one that had returned before it began,
 *   3. the error does not grow with the number of context switches,
 *
 * and, for both together, 4. the process clock was never behind the threads' clocks read before it.
 *
 * Drift (3). A clock that loses or gains a little at every switch shows in the trend of the signed
 * error over the switches so far, long before it shows in 1. The trend is a least-squares line, but
 * not through the samples: neighbours are alike (they build on the same kernel answer), which
 * would make the line look far more certain than it is, and a single pause of the CPU weighs more
 * than thousands of ordinary samples. Each thread's samples are cut into blocks, and the line goes
 * through the blocks' medians, each thread around its own mean. It is drift when the line rises or
 * falls by CPUTIME_ERROR_NS or more in 100,000 switches and by more than four of its standard
 * errors (once in 15,000 phases by chance); or when the medians of the first and the last tenth lie
 * that far apart, whatever the line.
 *
 * A pause near an outlier explains it, and the report says so; it does not excuse it: the bound is
 * for 99.9 % of the samples, pauses included.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/stats.h"
#include "cli/verify.h"

/* Blocks per thread: enough for the standard error, few enough for their medians to mean much. */
#define DRIFT_BLOCKS 32
#define DRIFT_SAMPLES_MIN (2 * DRIFT_BLOCKS)
#define DRIFT_SIGNIFICANT 4.0

void verify_fail(struct verify_result *result, const char *format, ...) {
        char *text = NULL;
        va_list ap;

        if (result->n_failures == VERIFY_FAILURES_MAX)
                return;
        va_start(ap, format);
        if (vasprintf(&text, format, ap) < 0)
                text = NULL;
        va_end(ap);
        result->failures[result->n_failures++] = text;
}

void verify_result_done(struct verify_result *result) {
        for (size_t i = 0; i < result->n_failures; i++)
                free(result->failures[i]);
        result->n_failures = 0;
        for (enum verify_clock clock = 0; clock < VERIFY_CLOCKS; clock++) {
                free(result->clocks[clock].outliers);
                result->clocks[clock].outliers = NULL;
        }
}

static int compare_double(const void *pa, const void *pb) {
        double a = *(const double *)pa, b = *(const double *)pb;

        return (a > b) - (a < b);
}

static int compare_switches(const void *pa, const void *pb) {
        const struct verify_sample *a = pa, *b = pb;

        return (a->switches > b->switches) - (a->switches < b->switches);
}

static int compare_wall(const void *pa, const void *pb) {
        const struct verify_sample *a = pa, *b = pb;

        return (a->wall_ns > b->wall_ns) - (a->wall_ns < b->wall_ns);
}

static void spread(struct verify_spread *spread, double *values, size_t n) {
        spread->n = n;
        if (n == 0)
                return;
        qsort(values, n, sizeof(*values), compare_double);
        spread->p50 = (uint64_t)cli_quantile(values, n, 0.5);
        spread->p90 = (uint64_t)cli_quantile(values, n, 0.9);
        spread->p99 = (uint64_t)cli_quantile(values, n, 0.99);
        spread->p999 = (uint64_t)cli_quantile(values, n, 0.999);
        spread->max = (uint64_t)values[n - 1];
}

static double median(double *values, size_t n) {
        qsort(values, n, sizeof(*values), compare_double);
        return cli_quantile(values, n, 0.5);
}

static uint64_t magnitude(int64_t error_ns) {
        return error_ns < 0 ? -(uint64_t)error_ns : (uint64_t)error_ns;
}

static uint64_t bound_ns(const struct verify_sample *sample) {
        return CPUTIME_ERROR_NS + sample->value_ns / VERIFY_VALUE_DIVISOR;
}

/* --- drift --- */

/* One thread's samples, or all of the process's, sorted by switches. */
struct drift_group {
        struct verify_sample *samples;
        size_t n;
};

static int drift_judge(struct verify_drift *drift, struct drift_group *groups, size_t n_groups,
                       size_t n_samples) {
        double sxx = 0, sxy = 0, syy = 0, free_blocks = -1;
        double *first, *last, *block;
        size_t n_first = 0, n_last = 0;

        /* Three scratch arrays in one; none can be longer than all samples. */
        first = calloc(3 * n_samples + 1, sizeof(*first));
        if (!first)
                return -ENOMEM;
        last = first + n_samples;
        block = last + n_samples;

        for (size_t g = 0; g < n_groups; g++) {
                struct verify_sample *samples = groups[g].samples;
                size_t n = groups[g].n;
                double x[DRIFT_BLOCKS], y[DRIFT_BLOCKS], x_mean = 0, y_mean = 0;

                if (n < DRIFT_SAMPLES_MIN)
                        continue;
                qsort(samples, n, sizeof(*samples), compare_switches);
                drift->switches += samples[n - 1].switches - samples[0].switches;

                for (size_t b = 0; b < DRIFT_BLOCKS; b++) {
                        size_t begin = n * b / DRIFT_BLOCKS, end = n * (b + 1) / DRIFT_BLOCKS;
                        double sum = 0;

                        for (size_t i = begin; i < end; i++) {
                                block[i - begin] = (double)samples[i].error_ns;
                                sum += samples[i].switches;
                        }
                        x[b] = sum / (double)(end - begin);
                        y[b] = median(block, end - begin);
                        x_mean += x[b] / DRIFT_BLOCKS;
                        y_mean += y[b] / DRIFT_BLOCKS;
                }
                for (size_t b = 0; b < DRIFT_BLOCKS; b++) {
                        sxx += (x[b] - x_mean) * (x[b] - x_mean);
                        sxy += (x[b] - x_mean) * (y[b] - y_mean);
                        syy += (y[b] - y_mean) * (y[b] - y_mean);
                }
                free_blocks += DRIFT_BLOCKS - 1;

                for (size_t i = 0; i < n / 10; i++) {
                        first[n_first++] = (double)samples[i].error_ns;
                        last[n_last++] = (double)samples[n - 1 - i].error_ns;
                }
        }

        if (sxx > 0) {
                double left = syy - sxy * sxy / sxx;

                drift->slope_ns = sxy / sxx;
                drift->slope_error_ns = left > 0 ? sqrt(left / free_blocks / sxx) : 0;
                drift->judged = drift->switches >= VERIFY_DRIFT_SWITCHES_MIN;
        }
        if (n_first > 0) {
                drift->first_median_ns = (int64_t)median(first, n_first);
                drift->last_median_ns = (int64_t)median(last, n_last);
        }
        free(first);
        return 0;
}

/* --- one clock --- */

static void explain(struct verify_outlier *outlier, const struct verify_pause *pauses, size_t n) {
        for (size_t i = 0; i < n; i++) {
                int64_t distance_ns = (int64_t)(outlier->sample.wall_ns - pauses[i].end_ns);

                if (distance_ns >= -(int64_t)(VERIFY_PAUSE_NEAR_NS + pauses[i].length_ns) &&
                    distance_ns <= VERIFY_PAUSE_NEAR_NS &&
                    pauses[i].length_ns > outlier->pause_ns) {
                        outlier->pause_ns = pauses[i].length_ns;
                        outlier->pause_distance_ns = distance_ns;
                }
        }
}

static int judge_distribution(struct verify_clock_result *clock, struct verify_sample *samples,
                              size_t n, const struct verify_run *run, size_t n_pauses) {
        double *absolute, *ahead, *behind, *bracket;
        size_t n_ahead = 0, n_behind = 0;

        absolute = calloc(4 * n + 1, sizeof(*absolute));
        clock->outliers = calloc(VERIFY_OUTLIERS_MAX, sizeof(*clock->outliers));
        if (!absolute || !clock->outliers) {
                free(absolute);
                return -ENOMEM;
        }
        bracket = absolute + n;
        ahead = bracket + n;
        behind = ahead + n;

        qsort(samples, n, sizeof(*samples), compare_wall);
        for (size_t i = 0; i < n; i++) {
                const struct verify_sample *sample = &samples[i];
                struct verify_outlier outlier = { .sample = *sample, .bound_ns = bound_ns(sample) };
                uint64_t e = magnitude(sample->error_ns);
                unsigned int bucket = e == 0 ? 0 : 64 - (unsigned int)__builtin_clzll(e);

                absolute[i] = (double)e;
                bracket[i] = sample->bracket_ns;
                if (sample->error_ns > 0)
                        ahead[n_ahead++] = (double)e;
                else if (e > 0)
                        behind[n_behind++] = (double)e;
                clock->histogram[sample->error_ns > 0][bucket]++;
                clock->kernel_served += sample->backend == CPUTIME_BACKEND_SYSCALL;
                if (sample->kernel_lag_ns > clock->largest_kernel_lag_ns)
                        clock->largest_kernel_lag_ns = sample->kernel_lag_ns;

                if (e <= outlier.bound_ns)
                        continue;
                explain(&outlier, run->pauses, n_pauses);
                clock->beyond++;
                clock->beyond_explained += outlier.pause_ns > 0;
                if (clock->n_outliers < VERIFY_OUTLIERS_MAX)
                        clock->outliers[clock->n_outliers++] = outlier;
        }
        spread(&clock->absolute, absolute, n);
        spread(&clock->ahead, ahead, n_ahead);
        spread(&clock->behind, behind, n_behind);
        spread(&clock->bracket, bracket, n);
        free(absolute);
        return 0;
}

static int judge_clock(struct verify_result *result, struct verify_run *run,
                       enum verify_clock which, size_t n_pauses) {
        struct verify_clock_result *clock = &result->clocks[which];
        struct drift_group *groups = NULL;
        struct verify_sample *all = NULL;
        size_t n = 0, n_groups = 0;
        int r = -ENOMEM;

        for (unsigned int i = 0; i < run->n_slots; i++) {
                const struct verify_tally *tally = &run->slots[i].tally[which];

                n += tally->n_samples;
                clock->reads += tally->reads;
                clock->backward_steps += tally->backward_steps;
                clock->kernel_backward_steps += tally->kernel_backward_steps;
                if (tally->largest_backward_ns > clock->largest_backward_ns)
                        clock->largest_backward_ns = tally->largest_backward_ns;
        }
        clock->samples = n;

        all = calloc(n + 1, sizeof(*all));
        groups = calloc(run->n_slots + 1, sizeof(*groups));
        if (!all || !groups)
                goto out;
        n = 0;
        for (unsigned int i = 0; i < run->n_slots; i++) {
                const struct verify_tally *tally = &run->slots[i].tally[which];

                memcpy(all + n, tally->samples, tally->n_samples * sizeof(*all));
                n += tally->n_samples;
                if (which == VERIFY_THREAD && !run->slots[i].fleeting)
                        groups[n_groups++] = (struct drift_group){ tally->samples,
                                                                   tally->n_samples };
        }

        r = judge_distribution(clock, all, n, run, n_pauses);
        if (r < 0)
                goto out;
        if (which == VERIFY_PROCESS)
                groups[n_groups++] = (struct drift_group){ all, n };
        r = drift_judge(&clock->drift, groups, n_groups, n);
out:
        free(all);
        free(groups);
        return r;
}

/* --- the verdict --- */

static void judge_verdict(struct verify_result *result, enum verify_clock which) {
        static const char *const names[] = { "thread", "process" };
        const struct verify_clock_result *clock = &result->clocks[which];
        const struct verify_drift *drift = &clock->drift;
        double drift_ns = fabs(drift->slope_ns) * VERIFY_DRIFT_SWITCHES;
        uint64_t moved_ns = magnitude(drift->last_median_ns - drift->first_median_ns);
        uint64_t allowed = clock->samples / VERIFY_SAMPLES_PER_OUTLIER;

        /* One among a few hundred samples does not tell 1 in 1,000 from more. */
        if (allowed == 0)
                allowed = 1;
        if (clock->samples == 0 && !result->interrupted)
                verify_fail(result, "the %s clock was never compared with the kernel's",
                            names[which]);
        if (clock->beyond > allowed)
                verify_fail(result,
                            "the %s clock was beyond the bound in %llu of %llu samples, %llu "
                            "allowed",
                            names[which], (unsigned long long)clock->beyond,
                            (unsigned long long)clock->samples, (unsigned long long)allowed);
        if (clock->backward_steps > 0)
                verify_fail(result, "the %s clock went backwards %llu times, by up to %llu ns",
                            names[which], (unsigned long long)clock->backward_steps,
                            (unsigned long long)clock->largest_backward_ns);
        if (drift->judged && drift_ns >= CPUTIME_ERROR_NS &&
            fabs(drift->slope_ns) > DRIFT_SIGNIFICANT * drift->slope_error_ns)
                verify_fail(result,
                            "the %s clock drifts by %.1f ns per context switch (standard error "
                            "%.1f ns)",
                            names[which], drift->slope_ns, drift->slope_error_ns);
        else if (moved_ns >= CPUTIME_ERROR_NS)
                verify_fail(result,
                            "the %s clock's median error moved from %lld to %lld ns during the "
                            "phase",
                            names[which], (long long)drift->first_median_ns,
                            (long long)drift->last_median_ns);
}

int verify_judge(struct verify_result *result, struct verify_run *run) {
        size_t n_pauses = atomic_load(&run->n_pauses);
        int r;

        result->pauses = n_pauses;
        if (n_pauses > VERIFY_PAUSES_MAX)
                n_pauses = VERIFY_PAUSES_MAX;
        for (size_t i = 0; i < n_pauses; i++) {
                result->total_pause_ns += run->pauses[i].length_ns;
                if (run->pauses[i].length_ns > result->longest_pause_ns)
                        result->longest_pause_ns = run->pauses[i].length_ns;
        }
        for (unsigned int i = 0; i < run->n_slots; i++) {
                const struct verify_slot *slot = &run->slots[i];

                result->cover_checks += slot->cover_checks;
                result->cover_violations += slot->cover_violations;
                if (slot->largest_uncovered_ns > result->largest_uncovered_ns)
                        result->largest_uncovered_ns = slot->largest_uncovered_ns;
        }
        result->threads = run->threads_started;
        result->duration_ns = run->end_ns - run->start_ns;
        result->stats = run->stats;

        for (enum verify_clock clock = 0; clock < VERIFY_CLOCKS; clock++) {
                r = judge_clock(result, run, clock, n_pauses);
                if (r < 0)
                        return r;
                judge_verdict(result, clock);
        }
        if (result->cover_violations > 0)
                verify_fail(result,
                            "the process clock was behind its threads in %llu of %llu checks, by "
                            "up to %llu ns",
                            (unsigned long long)result->cover_violations,
                            (unsigned long long)result->cover_checks,
                            (unsigned long long)result->largest_uncovered_ns);
        return 0;
}
