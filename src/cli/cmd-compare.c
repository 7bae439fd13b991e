/* SPDX-License-Identifier: MIT */
/*
 * cputime compare: what changed between measurements that `cputime bench` has written.
 *
 * A row is one (bench, backend, threads); rows of two files are matched by these three. A file
 * that holds a single backend, as `cputime bench --backend NAME --json FILE` writes it, may also be
 * set beside a file that holds a single other one: then bench and threads match, which is how the
 * kernel is compared with cputime.
 *
 *      gain = (before - after) / before        where less is better (ns/call)
 *      gain = (after - before) / before        where more is better (a unit that ends in "/s")
 *
 * so a plus is always good news. A star stands only where the two intervals for the medians have
 * no point in common; without it the difference may be chance.
 *
 * The files come from anywhere, so every field that is used is checked before the first line is
 * printed: either the whole table comes out or one line that names the file and the field.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/stats.h"

#define NAME_MAX_BYTES 64
#define RESULTS_MAX 10000       /* far above any sweep; rows are matched pair by pair */

struct row {
        const char *bench, *backend, *unit;     /* owned by the file's root */
        unsigned nr_threads;
        double median, lo, hi;
        uint64_t nr_errors;
};

struct file {
        const char *path;
        json_t *root;
        struct row *rows;
        size_t nr_rows;
        const char *only;       /* its one backend, NULL when it has several */
};

enum kind { STRING, NUMBER, INTEGER, ARRAY, OBJECT };

/* The member NAME of OBJECT, which stands at WHERE in the file; NULL after a line about it. */
static json_t *member(const struct file *file, const char *where, const json_t *object,
                      const char *name, enum kind kind) {
        static const char *const kinds[] = {
                [STRING] = "a string", [NUMBER] = "a number", [INTEGER] = "a whole number",
                [ARRAY] = "a list", [OBJECT] = "an object",
        };
        json_t *value = json_object_get(object, name);

        if (!value) {
                cli_usage("compare: %s: %s%s is missing", file->path, where, name);
                return NULL;
        }
        if ((kind == STRING && json_is_string(value)) ||
            (kind == NUMBER && json_is_number(value)) ||
            (kind == INTEGER && json_is_integer(value)) ||
            (kind == ARRAY && json_is_array(value)) || (kind == OBJECT && json_is_object(value)))
                return value;
        cli_usage("compare: %s: %s%s is not %s", file->path, where, name, kinds[kind]);
        return NULL;
}

/* Names are printed, so they must be printable, and fit a line. */
static int read_name(const struct file *file, const char *where, const json_t *object,
                     const char *name, const char **ret_text) {
        const json_t *value = member(file, where, object, name, STRING);
        const char *text;
        size_t length;

        if (!value)
                return -EINVAL;
        text = json_string_value(value);
        length = json_string_length(value);
        for (size_t i = 0; i < length; i++)
                if (text[i] < ' ' || text[i] > '~')
                        length = 0;
        if (length == 0 || length > NAME_MAX_BYTES) {
                cli_usage("compare: %s: %s%s is not a name: 1 to %d ASCII characters", file->path,
                          where, name, NAME_MAX_BYTES);
                return -EINVAL;
        }
        *ret_text = text;
        return 0;
}

static int read_positive(const struct file *file, const char *where, const json_t *object,
                         const char *name, double *ret_number) {
        const json_t *value = member(file, where, object, name, NUMBER);

        if (!value)
                return -EINVAL;
        if (!(json_number_value(value) > 0)) {
                cli_usage("compare: %s: %s%s is not above 0", file->path, where, name);
                return -EINVAL;
        }
        *ret_number = json_number_value(value);
        return 0;
}

static int read_whole(const struct file *file, const char *where, const json_t *object,
                      const char *name, json_int_t min, json_int_t max, json_int_t *ret_number) {
        const json_t *value = member(file, where, object, name, INTEGER);

        if (!value)
                return -EINVAL;
        if (json_integer_value(value) < min || json_integer_value(value) > max) {
                cli_usage("compare: %s: %s%s is not within %" JSON_INTEGER_FORMAT
                          " to %" JSON_INTEGER_FORMAT, file->path, where, name, min, max);
                return -EINVAL;
        }
        *ret_number = json_integer_value(value);
        return 0;
}

static int read_row(const struct file *file, size_t index, const json_t *object,
                    struct row *ret_row) {
        json_int_t nr_threads, nr_errors;
        struct row row;
        json_t *samples;
        char where[64];

        snprintf(where, sizeof(where), "results[%zu]", index);
        if (!json_is_object(object)) {
                cli_usage("compare: %s: %s is not an object", file->path, where);
                return -EINVAL;
        }
        strcat(where, ".");

        if (read_name(file, where, object, "bench", &row.bench) < 0 ||
            read_name(file, where, object, "backend", &row.backend) < 0 ||
            read_whole(file, where, object, "threads", 1, BENCH_THREADS_MAX, &nr_threads) < 0 ||
            read_name(file, where, object, "unit", &row.unit) < 0 ||
            (samples = member(file, where, object, "samples", ARRAY)) == NULL ||
            read_positive(file, where, object, "median", &row.median) < 0 ||
            read_positive(file, where, object, "lo", &row.lo) < 0 ||
            read_positive(file, where, object, "hi", &row.hi) < 0 ||
            read_whole(file, where, object, "errors", 0, INT64_MAX, &nr_errors) < 0)
                return -EINVAL;

        if (json_array_size(samples) == 0) {
                cli_usage("compare: %s: %ssamples is empty", file->path, where);
                return -EINVAL;
        }
        for (size_t k = 0; k < json_array_size(samples); k++) {
                const json_t *sample = json_array_get(samples, k);

                if (!json_is_number(sample) || !(json_number_value(sample) > 0)) {
                        cli_usage("compare: %s: %ssamples[%zu] is not a number above 0", file->path,
                                  where, k);
                        return -EINVAL;
                }
        }
        if (!(row.lo <= row.median && row.median <= row.hi)) {
                cli_usage("compare: %s: %smedian is not within lo to hi", file->path, where);
                return -EINVAL;
        }

        row.nr_threads = (unsigned)nr_threads;
        row.nr_errors = (uint64_t)nr_errors;
        *ret_row = row;
        return 0;
}

static bool same_row(const struct row *a, const struct row *b) {
        return strcmp(a->bench, b->bench) == 0 && strcmp(a->backend, b->backend) == 0 &&
               a->nr_threads == b->nr_threads;
}

/* What follows PREFIX in TEXT, NULL when TEXT does not begin with it. */
static const char *after(const char *text, const char *prefix) {
        size_t n = strlen(prefix);

        return strncmp(text, prefix, n) == 0 ? text + n : NULL;
}

/* Its one backend, apart from itself again and the floors. */
static const char *only_backend(const struct file *file) {
        const char *only = NULL;

        for (size_t i = 0; i < file->nr_rows; i++) {
                const char *backend = file->rows[i].backend;
                size_t length = strlen(backend), again = strlen(BENCH_AGAIN);

                if (strcmp(backend, BENCH_FLOOR) == 0 || strcmp(backend, BENCH_EMPTY) == 0 ||
                    (length > again && strcmp(backend + length - again, BENCH_AGAIN) == 0))
                        continue;
                if (only && strcmp(only, backend) != 0)
                        return NULL;
                only = backend;
        }
        return only;
}

static int file_open(const char *path, struct file *ret_file) {
        struct file *file = ret_file;
        const char *schema;
        json_t *results;

        *file = (struct file){ .path = path, .root = cli_json_read(path) };
        if (!file->root || read_name(file, "", file->root, "schema", &schema) < 0)
                return -EINVAL;
        if (strcmp(schema, BENCH_SCHEMA) != 0) {
                cli_usage("compare: %s: schema is %s, not " BENCH_SCHEMA, path, schema);
                return -EINVAL;
        }
        if (!member(file, "", file->root, "machine", OBJECT) ||
            (results = member(file, "", file->root, "results", ARRAY)) == NULL)
                return -EINVAL;
        if (json_array_size(results) == 0 || json_array_size(results) > RESULTS_MAX) {
                cli_usage("compare: %s: results has %zu rows, not 1 to %d", path,
                          json_array_size(results), RESULTS_MAX);
                return -EINVAL;
        }

        file->rows = calloc(json_array_size(results), sizeof(*file->rows));
        if (!file->rows) {
                cli_usage("compare: %s: no memory for %zu results", path, json_array_size(results));
                return -ENOMEM;
        }
        for (size_t i = 0; i < json_array_size(results); i++) {
                if (read_row(file, i, json_array_get(results, i), &file->rows[i]) < 0)
                        return -EINVAL;
                for (size_t k = 0; k < i; k++)
                        if (same_row(&file->rows[i], &file->rows[k])) {
                                cli_usage("compare: %s: results[%zu] repeats the bench, backend "
                                          "and threads of results[%zu]", path, i, k);
                                return -EINVAL;
                        }
                file->nr_rows++;
        }
        file->only = only_backend(file);
        return 0;
}

static void file_close(struct file *file) {
        free(file->rows);
        json_decref(file->root);
}

/* BASE has one backend, FILE has one, and they are two: kernel and "auto", say. */
static bool across(const struct file *base, const struct file *file) {
        return base->only && file->only && strcmp(base->only, file->only) != 0;
}

static const struct row *counterpart(const struct file *base, const struct row *row,
                                     const struct file *file) {
        for (size_t i = 0; i < file->nr_rows; i++) {
                const struct row *other = &file->rows[i];
                const char *a, *b;

                if (same_row(row, other))
                        return other;
                if (!across(base, file) || strcmp(row->bench, other->bench) != 0 ||
                    row->nr_threads != other->nr_threads)
                        continue;

                /* "kernel" with "auto", and "kernel (again)" with "auto (again)". */
                a = after(row->backend, base->only);
                b = after(other->backend, file->only);
                if (a && b && strcmp(a, b) == 0)
                        return other;
        }
        return NULL;
}

/* Every row must be comparable, and at least one of each file, before anything is printed. */
static int check(const struct file *base, const struct file *file) {
        size_t nr_matched = 0;

        for (size_t i = 0; i < base->nr_rows; i++) {
                const struct row *before = &base->rows[i], *now = counterpart(base, before, file);

                if (!now)
                        continue;
                nr_matched++;
                if (strcmp(before->unit, now->unit) != 0)
                        return cli_usage("compare: %s: unit of %s, %u threads, is %s, not %s as in "
                                         "%s", file->path, now->bench, now->nr_threads, now->unit,
                                         before->unit, base->path);
        }
        if (nr_matched == 0)
                return cli_usage("compare: %s: results has no bench, backend and threads in common "
                                 "with %s", file->path, base->path);
        return 0;
}

static bool more_is_better(const char *unit) {
        size_t n = strlen(unit);

        return n > 2 && strcmp(unit + n - 2, "/s") == 0;
}

static double gain_percent(const struct row *before, const struct row *now) {
        double gained = before->median - now->median;

        return 100.0 * (more_is_better(before->unit) ? -gained : gained) / before->median;
}

static int width_of(const char *heading) {
        return strlen(heading) < 24 ? 24 : (int)strlen(heading);
}

static void print(const struct file *files, size_t nr_files) {
        const struct file *base = &files[0];

        printf("Medians, and the gain beside %s; * where the intervals do not meet\n", base->path);
        printf("%-20s %7s  %-16s %-8s %12s", "bench", "threads", "backend", "unit", base->path);
        for (size_t k = 1; k < nr_files; k++)
                printf("  %-*s", width_of(files[k].path), files[k].path);
        putchar('\n');

        for (size_t i = 0; i < base->nr_rows; i++) {
                const struct row *before = &base->rows[i];

                printf("%-20s %7u  %-16s %-8s %*.1f", before->bench, before->nr_threads,
                       before->backend, before->unit,
                       strlen(base->path) < 12 ? 12 : (int)strlen(base->path), before->median);
                for (size_t k = 1; k < nr_files; k++) {
                        const struct row *now = counterpart(base, before, &files[k]);
                        char text[512] = "-";

                        if (now)
                                snprintf(text, sizeof(text), "%.1f (%.2f %%)%s", now->median,
                                         gain_percent(before, now),
                                         cli_intervals_meet(before->lo, before->hi, now->lo,
                                                            now->hi) ? "" : " *");
                        printf("  %-*s", width_of(files[k].path), text);
                }
                putchar('\n');
        }

        for (size_t k = 1; k < nr_files; k++) {
                size_t nr_alone = 0;

                for (size_t j = 0; j < files[k].nr_rows; j++) {
                        bool matched = false;

                        for (size_t i = 0; i < base->nr_rows && !matched; i++)
                                matched = counterpart(base, &base->rows[i], &files[k]) ==
                                          &files[k].rows[j];
                        nr_alone += !matched;
                }
                if (across(base, &files[k]))
                        printf("%s: %s, compared with %s in %s\n", files[k].path, files[k].only,
                               base->only, base->path);
                if (nr_alone > 0)
                        printf("%s: %zu rows have no counterpart in %s\n", files[k].path, nr_alone,
                               base->path);
        }
}

/* Figures of a clock that went backwards compare nothing. */
static int print_errors(const struct file *file) {
        int status = 0;

        for (size_t i = 0; i < file->nr_rows; i++) {
                const struct row *row = &file->rows[i];

                if (row->nr_errors == 0)
                        continue;
                printf("ERROR: %s: %s with %u threads, %s: %" PRIu64 " readings decreased\n",
                       file->path, row->bench, row->nr_threads, row->backend, row->nr_errors);
                status = CLI_EXIT_FAILED;
        }
        return status;
}

static const struct option options[] = {
        { "help", no_argument, NULL, 'h' },
        {},
};

int cmd_compare(int argc, char *argv[]) {
        struct file *files;
        size_t nr_files;
        int opt, status = 0;

        while ((opt = cli_getopt(argc, argv, "h", options)) != -1) {
                if (opt != 'h')
                        return CLI_EXIT_USAGE;
                printf("Usage: cputime compare BASE.json NEW.json...\n"
                       "\n"
                       "Compares files that `cputime bench --json` has written. BASE is the first\n"
                       "column; a positive gain is an improvement; * marks differences where the\n"
                       "intervals do not meet.\n");
                return 0;
        }
        if (argc - optind < 2)
                return cli_usage("compare: needs BASE.json and at least one NEW.json");

        nr_files = (size_t)(argc - optind);
        files = calloc(nr_files, sizeof(*files));
        if (!files)
                return cli_usage("compare: no memory for %zu files", nr_files);

        for (size_t i = 0; i < nr_files && status == 0; i++) {
                if (file_open(argv[optind + (int)i], &files[i]) < 0)
                        status = CLI_EXIT_USAGE;
                else if (i > 0)
                        status = check(&files[0], &files[i]);
        }
        if (status == 0) {
                print(files, nr_files);
                for (size_t i = 0; i < nr_files; i++)
                        status |= print_errors(&files[i]);
        }

        for (size_t i = 0; i < nr_files; i++)
                file_close(&files[i]);
        free(files);
        return status;
}
