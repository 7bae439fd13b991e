/* SPDX-License-Identifier: MIT */
#ifndef CT_CLI_H
#define CT_CLI_H
/*
 * What the verbs of the cputime program share: one file cmd-NAME.c per verb, each with
 * cmd_NAME(argc, argv), argv[0] being the verb. The return value is the exit status: 0 done,
 * 1 the thing measured or run did not hold, 2 the caller's input was not usable; cputime run
 * passes on its command's.
 */
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

int cmd_bench(int argc, char *argv[]);
int cmd_compare(int argc, char *argv[]);
int cmd_doctor(int argc, char *argv[]);
int cmd_run(int argc, char *argv[]);
int cmd_verify(int argc, char *argv[]);

#define CLI_EXIT_FAILED 1
#define CLI_EXIT_USAGE 2

/* Prints "cputime: MESSAGE" and a newline on stderr, after clearing a progress line. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same, and returns CLI_EXIT_USAGE: `return cli_usage("...")`. */
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * getopt_long() with one clear line for every mistake. Returns the option, -1 at the end, or '?'
 * after the line has been printed (exit with CLI_EXIT_USAGE).
 */
struct option;
int cli_getopt(int argc, char *argv[], const char *shortopts, const struct option *longopts);

/* A whole decimal number MIN..MAX, nothing around it. Returns 0 or -EINVAL, -ERANGE. */
int cli_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value);

/* Whether to colour F: a terminal, NO_COLOR not set or empty, TERM not "dumb". */
bool cli_colours(FILE *f);

/* A progress line on stderr, rewritten in place, only when stderr is a terminal. NULL clears it. */
void cli_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * Writes VALUE, indented, to PATH ("-": stdout) so that a reader sees the old file or the whole
 * new one: a temporary file beside it, then rename. Prints its own error. Returns 0 or -errno.
 */
int cli_json_write(const char *path, const json_t *value);

/* Reads a JSON object from PATH; NULL after one line that says what is wrong and where. */
json_t *cli_json_read(const char *path);

/* The machine record of DESIGN "benchmarks": kernel, CPUs, clocksource, hypervisor, ... */
json_t *cli_machine_record(void);

/* Set by SIGINT and SIGTERM once cli_catch_interrupts() ran: finish up and keep the results. */
extern volatile bool cli_interrupted;
void cli_catch_interrupts(void);

/* The drop-in's path: beside the program in a build tree, else the installed one. NULL: none. */
const char *cli_preload_path(void);

#endif /* CT_CLI_H */
