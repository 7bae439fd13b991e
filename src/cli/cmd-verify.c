/* SPDX-License-Identifier: MIT */
/*
 * cputime verify: does cputime agree with the kernel on this machine, within the published bounds?
 *
 * Each phase runs in a child of its own, forked from a parent that has never read a CPU clock: what
 * a phase finds does not depend on how the one before left the library enrolled. The parent only
 * sleeps while a phase runs, so that it takes no CPU from it. It is also what survives: a child
 * that crashes or hangs fails its phase, and the others still run. An interrupt ends the phase at
 * hand early, and what there is is reported, without a verdict.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arch/vdso.h"
#include "base/nsec.h"
#include "cli/cli.h"
#include "cli/verify.h"

#define SECONDS_DEFAULT 20
#define SECONDS_MIN 5
#define SECONDS_MAX 3600
/* How long after its time a child may take to end before it counts as hung. */
#define GRACE_NS (30 * CT_NSEC_PER_SEC)
#define EXIT_INTERRUPTED (128 + SIGINT)
/* Outliers listed on the terminal; the JSON has more. */
#define OUTLIERS_SHOWN 8

static enum cputime_backend arg_backend = CPUTIME_BACKEND_AUTO;
static uint64_t arg_seconds = SECONDS_DEFAULT;
static const char *arg_json;

static const char *const clock_names[VERIFY_CLOCKS] = { "thread", "process" };

static int help(void) {
        printf("Usage: cputime verify [--backend BACKEND] [--seconds N] [--json FILE]\n"
               "\n"
               "Compares cputime's clocks with the kernel's on this machine and says whether they\n"
               "agree within the published bounds.\n"
               "\n"
               "  -b, --backend BACKEND  auto (default), syscall, ring, header or page\n"
               "  -s, --seconds N        time for all phases together, %d..%d (default %d)\n"
               "  -j, --json FILE        write all of the result to FILE, \"-\" for stdout\n"
               "  -h, --help             show this and end\n"
               "\n"
               "Exit status: 0 pass, 1 fail, 2 usage, 130 interrupted.\n",
               SECONDS_MIN, SECONDS_MAX, SECONDS_DEFAULT);
        return 0;
}

/* Whether a file can be made beside PATH: better known before the measurement than after. */
static int check_json_path(const char *path) {
        char *copy, *directory;
        int r = 0;

        if (strcmp(path, "-") == 0)
                return 0;
        copy = strdup(path);
        if (!copy)
                return -ENOMEM;
        directory = dirname(copy);
        if (access(directory, W_OK | X_OK) < 0) {
                r = -errno;
                cli_error("cannot write %s: %s: %s; choose another place for --json", path,
                          directory, strerror(-r));
        }
        free(copy);
        return r;
}

/* 0, or the exit status after the line that says what is wrong; -1: --help was served. */
static int parse_arguments(int argc, char *argv[]) {
        static const struct option options[] = {
                { "backend", required_argument, NULL, 'b' },
                { "seconds", required_argument, NULL, 's' },
                { "json", required_argument, NULL, 'j' },
                { "help", no_argument, NULL, 'h' },
                {},
        };
        struct cputime_probe probe;
        int c;

        while ((c = cli_getopt(argc, argv, "b:s:j:h", options)) >= 0) {
                switch (c) {
                case 'b':
                        if (cputime_backend_from_name(optarg, &arg_backend) < 0)
                                return cli_usage("unknown backend \"%s\": give auto, syscall, ring, "
                                                 "header or page", optarg);
                        break;
                case 's':
                        if (cli_parse_u64(optarg, SECONDS_MIN, SECONDS_MAX, &arg_seconds) < 0)
                                return cli_usage("bad --seconds \"%s\": give a whole number, %d to "
                                                 "%d", optarg, SECONDS_MIN, SECONDS_MAX);
                        break;
                case 'j':
                        arg_json = optarg;
                        break;
                case 'h':
                        (void)help();
                        return -1;
                default:
                        return CLI_EXIT_USAGE;
                }
        }
        if (optind < argc)
                return cli_usage("verify takes no argument, but was given \"%s\"", argv[optind]);
        if (arg_json && check_json_path(arg_json) < 0)
                return CLI_EXIT_USAGE;

        /* The kernel's answers would agree with themselves: no verdict on the backend asked for. */
        if (cputime_backend_probe(arg_backend, &probe) == 0 && probe.error != 0)
                return cli_usage("backend %s cannot be verified here: %s: %s%s%s",
                                 cputime_backend_name(arg_backend), probe.step, probe.meaning,
                                 *probe.remedy ? "; " : "", probe.remedy);
        return 0;
}

/* --- one phase --- */

static struct verify_run *run_new(const struct verify_phase *phase, uint64_t duration_ns) {
        unsigned int n_cpus = verify_phase_cpus(phase), n_slots = phase->count_slots(n_cpus);
        uint32_t samples_max = VERIFY_SAMPLES_MAX / n_slots;
        size_t head = sizeof(struct verify_run) + n_slots * sizeof(struct verify_slot), size;
        struct verify_sample *samples;
        struct verify_run *run;

        size = head + (size_t)n_slots * VERIFY_CLOCKS * samples_max * sizeof(*samples);
        run = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
        if (run == MAP_FAILED)
                return NULL;

        run->size = size;
        run->duration_ns = duration_ns;
        run->backend = arg_backend;
        run->n_cpus = n_cpus;
        run->n_slots = n_slots;
        run->samples_max = samples_max;
        samples = (void *)((char *)run + head);
        for (unsigned int i = 0; i < n_slots; i++)
                for (enum verify_clock clock = 0; clock < VERIFY_CLOCKS; clock++) {
                        run->slots[i].tally[clock].samples = samples;
                        samples += samples_max;
                }
        return run;
}

/* Time that a hypervisor took from all CPUs so far, as far as it told the kernel; ms. */
static uint64_t read_steal_ms(void) {
        unsigned long long steal = 0;
        FILE *f = fopen("/proc/stat", "re");

        if (!f)
                return 0;
        if (fscanf(f, "cpu %*u %*u %*u %*u %*u %*u %*u %llu", &steal) != 1)
                steal = 0;
        (void)fclose(f);
        return steal * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
}

/* Waits for CHILD, showing how far it is; the time left is for all phases. */
static int phase_wait(pid_t child, struct verify_run *run, unsigned int i_phase) {
        uint64_t begin_ns = ct_vdso_raw_ns();
        const struct timespec nap = { .tv_nsec = 100000000 };
        int status;

        for (;;) {
                uint64_t elapsed_ns = ct_vdso_raw_ns() - begin_ns;
                uint64_t left_ns = run->duration_ns * (VERIFY_PHASES - i_phase);
                pid_t pid = waitpid(child, &status, WNOHANG);

                if (pid == child)
                        return status;
                if (pid < 0 && errno != EINTR)
                        return -errno;
                if (cli_interrupted)
                        atomic_store(&run->stop, true);
                if (elapsed_ns > run->duration_ns + GRACE_NS)
                        (void)kill(child, SIGKILL);
                left_ns = left_ns > elapsed_ns ? left_ns - elapsed_ns : 0;
                cli_progress("verify %u/%u: %s, %" PRIu64 " s left", i_phase + 1, VERIFY_PHASES,
                             verify_phases[i_phase].what,
                             (left_ns + CT_NSEC_PER_SEC - 1) / CT_NSEC_PER_SEC);
                (void)nanosleep(&nap, NULL);
        }
}

/* Runs one phase and judges it. Returns 0, or -errno when it could not be tried at all. */
static int phase_measure(unsigned int i_phase, struct verify_result *result) {
        const struct verify_phase *phase = &verify_phases[i_phase];
        struct verify_run *run;
        uint64_t steal_ms;
        int r, status;
        pid_t child;

        *result = (struct verify_result){ .phase = phase };
        run = run_new(phase, arg_seconds * CT_NSEC_PER_SEC / VERIFY_PHASES);
        if (!run)
                return -errno;
        result->n_cpus = run->n_cpus;

        (void)fflush(NULL);
        steal_ms = read_steal_ms();
        child = fork();
        if (child < 0) {
                r = -errno;
                goto out;
        }
        if (child == 0) {
                pid_t parent = getppid();

                (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (getppid() == parent)
                        verify_phase_run(phase, run);
                _exit(0);
        }
        status = phase_wait(child, run, i_phase);
        cli_progress(NULL);
        result->steal_ms = read_steal_ms() - steal_ms;
        result->interrupted = cli_interrupted;

        if (status < 0) {
                r = status;
                goto out;
        }
        if (WIFSIGNALED(status) && run->end_ns == run->start_ns && WTERMSIG(status) == SIGKILL)
                verify_fail(result, "the phase did not end in time and was killed");
        else if (WIFSIGNALED(status))
                verify_fail(result, "the phase was killed by signal %d (%s)", WTERMSIG(status),
                            strsignal(WTERMSIG(status)));
        else if (WEXITSTATUS(status) != 0)
                verify_fail(result, "the phase ended with status %d", WEXITSTATUS(status));
        else if (run->error != 0)
                verify_fail(result, "the phase could not run: %s: %s", run->failed_step,
                            strerror(run->error));
        r = verify_judge(result, run);
out:
        (void)munmap(run, run->size);
        return r;
}

/* --- the table --- */

static const char *format_ns(char buffer[static 16], uint64_t ns) {
        static const char *const units[] = { "us", "ms", "s" };
        double value = (double)ns;
        unsigned int unit = 0;

        if (ns < CT_NSEC_PER_USEC) {
                (void)snprintf(buffer, 16, "%" PRIu64 " ns", ns);
                return buffer;
        }
        for (value /= 1e3; value >= 999.95 && unit < 2; unit++)
                value /= 1e3;
        (void)snprintf(buffer, 16, "%.*f %s", value < 9.995 ? 2 : 1, value, units[unit]);
        return buffer;
}

static const char *paint(FILE *out, const char *colour) {
        return cli_colours(out) ? colour : "";
}

#define RED "\033[31m"
#define GREEN "\033[32m"
#define PLAIN "\033[0m"

/* "ring 99.8 %, syscall 0.2 %": who answered the reads of both clocks. */
static void format_served(char buffer[static 96], const struct cputime_stats *stats) {
        uint64_t total = 0;
        size_t at = 0;

        for (unsigned int i = 0; i < CPUTIME_BACKEND_MAX; i++)
                total += stats->reads[i];
        buffer[0] = '\0';
        for (unsigned int i = 0; i < CPUTIME_BACKEND_MAX && at < 96; i++)
                if (stats->reads[i] > 0)
                        at += (size_t)snprintf(buffer + at, 96 - at, "%s%s %.1f %%",
                                               at > 0 ? ", " : "", cputime_backend_name(i),
                                               100.0 * (double)stats->reads[i] / (double)total);
        if (total == 0)
                (void)snprintf(buffer, 96, "not known");
}

static void print_head(FILE *out) {
        fprintf(out,
                "cputime verify: backend %s, %" PRIu64 " s in %d phases\n"
                "bound: %d us + 0.1 %% of the value for 99.9 %% of the samples; no step back\n\n"
                "%-14s%-8s%9s%9s%9s%9s%10s%10s%8s%14s%6s\n",
                cputime_backend_name(arg_backend), arg_seconds, VERIFY_PHASES,
                CPUTIME_ERROR_NS / 1000, "phase", "clock", "samples", "p50", "p99", "p99.9",
                "ahead", "behind", "beyond", "ns/switch", "back");
}

static void print_clock(FILE *out, const struct verify_result *result, enum verify_clock which) {
        const struct verify_clock_result *clock = &result->clocks[which];
        char p50[16], p99[16], p999[16], ahead[16], behind[16], drift[32] = "-";

        if (clock->drift.judged)
                (void)snprintf(drift, sizeof(drift), "%.1f+-%.1f", clock->drift.slope_ns,
                               clock->drift.slope_error_ns);
        fprintf(out, "%-14s%-8s%9" PRIu64 "%9s%9s%9s%10s%10s%8" PRIu64 "%14s%6" PRIu64 "\n",
                which == VERIFY_THREAD ? result->phase->name : "", clock_names[which],
                clock->samples, format_ns(p50, clock->absolute.p50),
                format_ns(p99, clock->absolute.p99), format_ns(p999, clock->absolute.p999),
                format_ns(ahead, clock->ahead.max), format_ns(behind, clock->behind.max),
                clock->beyond, drift, clock->backward_steps);
}

static void print_outliers(FILE *out, const struct verify_result *result, enum verify_clock which) {
        const struct verify_clock_result *clock = &result->clocks[which];
        char lag[16];

        if (clock->kernel_backward_steps > 0)
                fprintf(out, "    the kernel's own %s clock went backwards %" PRIu64
                        " times; those samples are left out\n", clock_names[which],
                        clock->kernel_backward_steps);
        if (clock->largest_kernel_lag_ns > CPUTIME_ERROR_NS)
                fprintf(out, "    %s clock: answers of the kernel itself lacked up to %s of "
                        "running threads' time\n", clock_names[which],
                        format_ns(lag, clock->largest_kernel_lag_ns));
        if (clock->beyond == 0)
                return;
        fprintf(out, "    %s clock: %" PRIu64 " beyond the bound, %" PRIu64 " with a pause of the "
                "CPU within %d ms\n", clock_names[which], clock->beyond, clock->beyond_explained,
                VERIFY_PAUSE_NEAR_NS / 1000000);
        for (size_t i = 0; i < clock->n_outliers && i < OUTLIERS_SHOWN; i++) {
                const struct verify_outlier *outlier = &clock->outliers[i];
                char error[16], value[16], pause[16];
                int64_t e = outlier->sample.error_ns;

                fprintf(out, "      %s %s at %s", format_ns(error, (uint64_t)(e < 0 ? -e : e)),
                        e < 0 ? "behind" : "ahead", format_ns(value, outlier->sample.value_ns));
                if (outlier->sample.backend != CPUTIME_BACKEND_AUTO)
                        fprintf(out, ", served by %s",
                                cputime_backend_name(outlier->sample.backend));
                if (outlier->pause_ns > 0)
                        fprintf(out, ": the CPU was paused for %s, %.1f ms %s\n",
                                format_ns(pause, outlier->pause_ns),
                                (double)llabs(outlier->pause_distance_ns) / 1e6,
                                outlier->pause_distance_ns < 0 ? "later" : "before");
                else
                        fprintf(out, ": no pause seen\n");
        }
        if (clock->beyond > OUTLIERS_SHOWN)
                fprintf(out, "      ... and %" PRIu64 " more\n", clock->beyond - OUTLIERS_SHOWN);
}

static void print_phase(FILE *out, const struct verify_result *result) {
        char served[96], longest[16];

        for (enum verify_clock clock = 0; clock < VERIFY_CLOCKS; clock++)
                print_clock(out, result, clock);

        format_served(served, &result->stats);
        fprintf(out, "    served by %s\n", served);
        if (result->pauses > 0 || result->steal_ms > 0)
                fprintf(out, "    pauses of the CPU: %" PRIu64 ", the longest %s; stolen %" PRIu64
                        " ms\n", result->pauses, format_ns(longest, result->longest_pause_ns),
                        result->steal_ms);
        for (enum verify_clock clock = 0; clock < VERIFY_CLOCKS; clock++)
                print_outliers(out, result, clock);
        for (size_t i = 0; i < result->n_failures; i++)
                fprintf(out, "    %sFAIL%s: %s\n", paint(out, RED), paint(out, PLAIN),
                        result->failures[i] ?: "out of memory");
        (void)fflush(out);
}

/* --- the JSON --- */

/* Memory ran out somewhere in it: a report with holes is not written. */
static bool json_incomplete;

static void put(json_t *object, const char *key, json_t *value) {
        if (json_object_set_new(object, key, value) < 0)
                json_incomplete = true;
}

static void put_u64(json_t *object, const char *key, uint64_t value) {
        put(object, key, json_integer((json_int_t)value));
}

static void append(json_t *array, json_t *value) {
        if (json_array_append_new(array, value) < 0)
                json_incomplete = true;
}

static json_t *spread_json(const struct verify_spread *spread) {
        json_t *object = json_object();

        put_u64(object, "samples", spread->n);
        put_u64(object, "p50", spread->p50);
        put_u64(object, "p90", spread->p90);
        put_u64(object, "p99", spread->p99);
        put_u64(object, "p99_9", spread->p999);
        put_u64(object, "max", spread->max);
        return object;
}

static json_t *histogram_json(const struct verify_clock_result *clock) {
        json_t *array = json_array();

        for (unsigned int b = 0; b < 64; b++) {
                json_t *bucket;

                if (clock->histogram[0][b] + clock->histogram[1][b] == 0)
                        continue;
                bucket = json_object();
                put_u64(bucket, "below_ns", UINT64_C(1) << b);
                put_u64(bucket, "behind_samples", clock->histogram[0][b]);
                put_u64(bucket, "ahead_samples", clock->histogram[1][b]);
                append(array, bucket);
        }
        return array;
}

static json_t *outlier_json(const struct verify_outlier *outlier) {
        const struct verify_sample *sample = &outlier->sample;
        json_t *object = json_object();

        put_u64(object, "wall_ns", sample->wall_ns);
        put(object, "error_ns", json_integer(sample->error_ns));
        put_u64(object, "bound_ns", outlier->bound_ns);
        put_u64(object, "value_ns", sample->value_ns);
        put_u64(object, "bracket_ns", sample->bracket_ns);
        put_u64(object, "switches", sample->switches);
        if (sample->backend != CPUTIME_BACKEND_AUTO)
                put(object, "backend", json_string(cputime_backend_name(sample->backend)));
        put(object, "pause_seen", json_boolean(outlier->pause_ns > 0));
        if (outlier->pause_ns > 0) {
                put_u64(object, "pause_ns", outlier->pause_ns);
                put(object, "pause_distance_ns", json_integer(outlier->pause_distance_ns));
        }
        return object;
}

static json_t *drift_json(const struct verify_drift *drift) {
        json_t *object = json_object();

        put(object, "judged", json_boolean(drift->judged));
        put_u64(object, "switches", drift->switches);
        put(object, "slope_ns_per_switch", json_real(drift->slope_ns));
        put(object, "slope_standard_error_ns_per_switch", json_real(drift->slope_error_ns));
        put(object, "first_decile_median_ns", json_integer(drift->first_median_ns));
        put(object, "last_decile_median_ns", json_integer(drift->last_median_ns));
        return object;
}

static json_t *clock_json(const struct verify_result *result, enum verify_clock which) {
        const struct verify_clock_result *clock = &result->clocks[which];
        json_t *object = json_object(), *outliers = json_array();

        put(object, "clock", json_string(clock_names[which]));
        put_u64(object, "reads", clock->reads);
        put_u64(object, "samples", clock->samples);
        put(object, "absolute_error_ns", spread_json(&clock->absolute));
        put(object, "ahead_ns", spread_json(&clock->ahead));
        put(object, "behind_ns", spread_json(&clock->behind));
        put(object, "bracket_ns", spread_json(&clock->bracket));
        put(object, "histogram", histogram_json(clock));
        put(object, "drift", drift_json(&clock->drift));
        put_u64(object, "samples_beyond_bound", clock->beyond);
        put_u64(object, "samples_beyond_bound_near_pause", clock->beyond_explained);
        for (size_t i = 0; i < clock->n_outliers; i++)
                append(outliers, outlier_json(&clock->outliers[i]));
        put(object, "outliers", outliers);
        put_u64(object, "backward_steps", clock->backward_steps);
        put_u64(object, "largest_backward_ns", clock->largest_backward_ns);
        put_u64(object, "kernel_backward_steps", clock->kernel_backward_steps);
        if (which == VERIFY_PROCESS) {
                put_u64(object, "samples_served_by_kernel", clock->kernel_served);
                put_u64(object, "largest_kernel_lag_ns", clock->largest_kernel_lag_ns);
        }
        return object;
}

static json_t *stats_json(const struct cputime_stats *stats) {
        json_t *object = json_object(), *reads = json_object();

        for (unsigned int i = 1; i < CPUTIME_BACKEND_MAX; i++)
                put_u64(reads, cputime_backend_name(i), stats->reads[i]);
        put(object, "reads", reads);
        put_u64(object, "anchors", stats->anchors);
        put_u64(object, "enrolments", stats->enrolments);
        put_u64(object, "retreats", stats->retreats);
        put_u64(object, "refusals", stats->refusals);
        put(object, "refusal_errno", json_integer(stats->refusal_error));
        put(object, "refusal_step", json_string(stats->refusal_step ?: ""));
        return object;
}

static json_t *phase_json(const struct verify_result *result) {
        json_t *object = json_object(), *clocks = json_array(), *failures = json_array();
        json_t *covers = json_object(), *pauses = json_object();

        put(object, "phase", json_string(result->phase->name));
        put_u64(object, "cpus", result->n_cpus);
        put_u64(object, "threads", result->threads);
        put(object, "seconds", json_real((double)result->duration_ns / (double)CT_NSEC_PER_SEC));
        put(object, "interrupted", json_boolean(result->interrupted));
        put(object, "library", stats_json(&result->stats));
        for (enum verify_clock clock = 0; clock < VERIFY_CLOCKS; clock++)
                append(clocks, clock_json(result, clock));
        put(object, "clocks", clocks);

        put_u64(covers, "checks", result->cover_checks);
        put_u64(covers, "violations", result->cover_violations);
        put_u64(covers, "largest_ns", result->largest_uncovered_ns);
        put(object, "process_covers_threads", covers);

        put_u64(pauses, "count", result->pauses);
        put_u64(pauses, "longest_ns", result->longest_pause_ns);
        put_u64(pauses, "total_ns", result->total_pause_ns);
        put(object, "pauses", pauses);
        put_u64(object, "steal_ms", result->steal_ms);

        put(object, "pass", json_boolean(result->n_failures == 0 && !result->interrupted));
        for (size_t i = 0; i < result->n_failures; i++)
                append(failures, json_string(result->failures[i] ?: "out of memory"));
        put(object, "failures", failures);
        return object;
}

/* NULL: out of memory. */
static json_t *report_json(const struct verify_result *results, size_t n, const char *verdict) {
        json_t *object = json_object(), *bounds = json_object(), *phases = json_array();

        put(object, "schema", json_string("cputime-verify/1"));
        put(object, "machine", cli_machine_record());
        put(object, "backend", json_string(cputime_backend_name(arg_backend)));
        put_u64(object, "seconds", arg_seconds);

        put_u64(bounds, "error_ns", CPUTIME_ERROR_NS);
        put(bounds, "error_share_of_value", json_real(1.0 / VERIFY_VALUE_DIVISOR));
        put(bounds, "samples_share_within", json_real(1.0 - 1.0 / VERIFY_SAMPLES_PER_OUTLIER));
        put(bounds, "drift_ns_per_switch",
            json_real((double)CPUTIME_ERROR_NS / VERIFY_DRIFT_SWITCHES));
        put(object, "bounds", bounds);

        put(object, "verdict", json_string(verdict));
        for (size_t i = 0; i < n; i++)
                append(phases, phase_json(&results[i]));
        put(object, "phases", phases);
        if (json_incomplete) {
                json_decref(object);
                cli_error("cannot write %s: out of memory", arg_json);
                return NULL;
        }
        return object;
}

int cmd_verify(int argc, char *argv[]) {
        struct verify_result results[VERIFY_PHASES];
        FILE *out = stdout;
        const char *verdict, *colour;
        size_t n = 0, n_failures = 0;
        int r;

        r = parse_arguments(argc, argv);
        if (r != 0)
                return r < 0 ? 0 : r;
        if (arg_json && strcmp(arg_json, "-") == 0)
                out = stderr;

        cli_catch_interrupts();
        print_head(out);
        while (n < VERIFY_PHASES && !cli_interrupted) {
                r = phase_measure(n, &results[n]);
                n++;
                if (r < 0) {
                        cli_error("cannot run phase %s: %s; free some memory or processes and try "
                                  "again", verify_phases[n - 1].name, strerror(-r));
                        goto out;
                }
                print_phase(out, &results[n - 1]);
                n_failures += results[n - 1].n_failures;
        }

        verdict = n_failures > 0 ? "fail" : cli_interrupted ? "interrupted" : "pass";
        colour = n_failures > 0 ? RED : cli_interrupted ? "" : GREEN;
        fprintf(out, "\n%s%s%s: ", paint(out, colour), verdict, paint(out, *colour ? PLAIN : ""));
        if (n_failures > 0)
                fprintf(out, "%zu of the bounds do not hold on this machine with backend %s\n",
                        n_failures, cputime_backend_name(arg_backend));
        else if (cli_interrupted)
                fprintf(out, "no verdict; what was measured so far is above\n");
        else
                fprintf(out, "backend %s agrees with the kernel within the published bounds\n",
                        cputime_backend_name(arg_backend));

        r = cli_interrupted ? EXIT_INTERRUPTED : n_failures > 0 ? CLI_EXIT_FAILED : 0;
        if (arg_json) {
                json_t *report = report_json(results, n, verdict);

                if (!report || cli_json_write(arg_json, report) < 0)
                        r = CLI_EXIT_USAGE;
                json_decref(report);
        }
out:
        for (size_t i = 0; i < n; i++)
                verify_result_done(&results[i]);
        return r < 0 ? CLI_EXIT_FAILED : r;
}
