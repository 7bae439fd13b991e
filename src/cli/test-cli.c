/* SPDX-License-Identifier: MIT */
/*
 * Numbers, options and JSON files as cli.c takes them: what is refused, and with which line. The
 * lines go to stderr, so that is a file here while a function that may complain runs.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../tests/check.h"
#include "cli/cli.h"

static char directory[] = "/tmp/test-cli.XXXXXX";
static char complaint[16384];
static int real_stderr, capture;

static void listen_to_stderr(void) {
        CHECK(ftruncate(capture, 0) == 0 && lseek(capture, 0, SEEK_SET) == 0, "capture");
        CHECK(dup2(capture, STDERR_FILENO) >= 0, "dup2: %m");
}

static const char *heard(void) {
        ssize_t n = pread(capture, complaint, sizeof(complaint) - 1, 0);

        CHECK(dup2(real_stderr, STDERR_FILENO) >= 0, "dup2: %m");
        CHECK(n >= 0, "pread: %m");
        complaint[n] = '\0';
        return complaint;
}

static void numbers_are_whole_and_in_range(void) {
        static const char *const not_numbers[] = {
                "", " 1", "1 ", "+1", "-1", "0x10", "1e3", "1.5", "one", "99999999999999999999999x",
        };
        uint64_t value = 7;

        for (size_t i = 0; i < sizeof(not_numbers) / sizeof(not_numbers[0]); i++)
                CHECK(cli_parse_u64(not_numbers[i], 0, UINT64_MAX, &value) == -EINVAL, "'%s'",
                      not_numbers[i]);
        CHECK(cli_parse_u64("18446744073709551616", 0, UINT64_MAX, &value) == -ERANGE, "2^64");
        CHECK(cli_parse_u64("99999999999999999999", 0, UINT64_MAX, &value) == -ERANGE, "20 nines");
        CHECK(cli_parse_u64("1", 2, 5, &value) == -ERANGE, "below");
        CHECK(cli_parse_u64("6", 2, 5, &value) == -ERANGE, "above");
        CHECK(value == 7, "touched on failure: %ju", (uintmax_t)value);
        CHECK(cli_parse_u64("18446744073709551615", 0, UINT64_MAX, &value) == 0 &&
              value == UINT64_MAX, "2^64 - 1: %ju", (uintmax_t)value);
        CHECK(cli_parse_u64("0005", 5, 5, &value) == 0 && value == 5, "5: %ju", (uintmax_t)value);
}

/* Parses "verb ARGS..." to the end or to the first mistake, and returns the line about it. */
static const char *options_of(const char *args, const char *shortopts) {
        static const struct option options[] = {
                { "file", required_argument, NULL, 'f' },
                { "verbose", no_argument, NULL, 'v' },
                { "version", no_argument, NULL, 'V' },
                {},
        };
        static char text[256];
        char *argv[16] = { text };
        int argc = 0, option;

        (void)snprintf(text, sizeof(text), "verb%s%s", *args ? " " : "", args);
        for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
                argv[argc++] = word;
        argv[argc] = NULL;

        optind = 0;     /* begin anew, in getopt's own words */
        listen_to_stderr();
        do {
                option = cli_getopt(argc, argv, shortopts, options);
        } while (option != -1 && option != '?');
        return heard();
}

static void each_mistake_in_options_has_its_line(void) {
        static const struct {
                const char *args;
                const char *line;
        } cases[] = {
                { "-v --file x operand", "" },
                { "operand --file=x -v", "" },
                { "--file", "option '--file' needs a value" },
                { "-v -f", "option '-f' needs a value" },
                { "-vf", "option '-f' needs a value" },
                { "operand --verbose --nope=3", "unknown or ambiguous option '--nope'" },
                { "--ver", "unknown or ambiguous option '--ver'" },
                { "operand --verbose=3", "option '--verbose' takes no value, and '3' gives one" },
                { "--verbose -xv", "unknown option '-x'" },
                { "--verbose operand -vx", "unknown option '-x'" },
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                char want[256] = "";

                if (*cases[i].line)
                        (void)snprintf(want, sizeof(want),
                                       "cputime: %s; see `cputime help verb`\n", cases[i].line);
                CHECK(strcmp(options_of(cases[i].args, "f:v"), want) == 0, "'%s' gave: %s",
                      cases[i].args, complaint);
        }
        CHECK(strcmp(options_of("operand --nope", "+f:v"), "") == 0, "'+' is lost: %s", complaint);
        CHECK(strstr(options_of("-f", "+f:v"), "needs a value"), "with '+': %s", complaint);
}

static const char *path_of(const char *name) {
        static char path[256];

        (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
        return path;
}

static void put(const char *path, const char *text, size_t size) {
        FILE *f = fopen(path, "w");

        CHECK(f && fwrite(text, 1, size, f) == size && fclose(f) == 0, "cannot write %s", path);
}

static void malformed_json_is_located_in_one_line(void) {
        static const struct {
                const char *text;
                const char *where;      /* after the path */
        } cases[] = {
                { "", ":1:0: not JSON: " },
                { "{\n  \"a\": 1,\n  b\n}", ":3:3: not JSON: " },
                { "{\"a\": 1", ":1:7: not JSON: " },
                { "{\"a\": \"\n\"}", ":1:7: not JSON: " },
                { "{\"a\": 1, \"a\": 2}", ":1:12: not JSON: " },
                { "{} {}", ":1:4: not JSON: " },
                { "{\"a\": \"\xff\"}", ":1:7: not JSON: " },
                { "{\"\033[2J", ":1:2: not JSON: " },
                { "{\"a\": 1e999}", ":1:11: not JSON: " },
                { "[1]", ":1:1: a JSON object is needed, and this is an array" },
                { "17", ":1:1: a JSON object is needed, and this is a single value" },
        };
        const char *path = path_of("in.json");
        char want[512];
        json_t *value;

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                put(path, cases[i].text, strlen(cases[i].text));
                listen_to_stderr();
                value = cli_json_read(path);
                (void)heard();
                (void)snprintf(want, sizeof(want), "cputime: %s%s", path, cases[i].where);
                CHECK(!value, "case %zu was read", i);
                CHECK(strncmp(complaint, want, strlen(want)) == 0, "case %zu, not '%s': %s", i,
                      want, complaint);
                CHECK(strchr(complaint, '\n') == complaint + strlen(complaint) - 1,
                      "case %zu, not one line: %s", i, complaint);
                CHECK(!strchr(complaint, '\033'), "case %zu reaches the terminal", i);
        }

        listen_to_stderr();
        CHECK(!cli_json_read(directory), "a directory was read");
        CHECK(strstr(heard(), "Is a directory"), "%s", complaint);
        listen_to_stderr();
        CHECK(!cli_json_read(path_of("no\nne\033[2J")), "what is not there was read");
        CHECK(strstr(heard(), "no?ne?[2J': No such file"), "%s", complaint);

        path = path_of("in.json");
        put(path, " {\"a\": [1, 2.5, null]}\n", 23);
        value = cli_json_read(path);
        CHECK(value && json_array_size(json_object_get(value, "a")) == 3, "not read");
        json_decref(value);
}

static void a_number_survives_the_file(void) {
        static const double reals[] = { 29.4375, 1.0 / 3, 5e-3, 123456789.25 };
        json_t *array = json_array(), *value = json_object(), *again;

        for (size_t i = 0; i < 4; i++)
                (void)json_array_append_new(array, json_real(reals[i]));
        (void)json_object_set_new(value, "reals", array);
        (void)json_object_set_new(value, "large", json_integer(INT64_MAX));
        CHECK(cli_json_write(path_of("out.json"), value) == 0, "cannot write");
        json_decref(value);

        again = cli_json_read(path_of("out.json"));
        CHECK(again, "cannot read it again");
        CHECK(json_integer_value(json_object_get(again, "large")) == INT64_MAX, "INT64_MAX");
        for (size_t i = 0; i < 4; i++) {
                double got = json_real_value(json_array_get(json_object_get(again, "reals"), i));

                CHECK(got > reals[i] * (1 - 1e-11) && got < reals[i] * (1 + 1e-11),
                      "%.17g is %.17g", reals[i], got);
        }
        json_decref(again);

        listen_to_stderr();
        CHECK(cli_json_write(path_of("null.json"), NULL) == -ENOMEM, "NULL was written");
        CHECK(access(path_of("null.json"), F_OK) < 0 && strstr(heard(), "null.json"), "%s",
              complaint);
}

static void the_first_interrupt_is_a_request(void) {
        struct sigaction action;

        cli_catch_interrupts();
        CHECK(!cli_interrupted, "before any signal");
        CHECK(raise(SIGINT) == 0 && cli_interrupted, "SIGINT went unnoticed");
        CHECK(sigaction(SIGINT, NULL, &action) == 0 && action.sa_handler == SIG_DFL,
              "a second SIGINT would not end the program");
}

int main(void) {
        CHECK(mkdtemp(directory), "mkdtemp: %m");
        real_stderr = dup(STDERR_FILENO);
        capture = open(path_of("stderr"), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        CHECK(real_stderr >= 0 && capture >= 0, "cannot capture stderr: %m");

        numbers_are_whole_and_in_range();
        each_mistake_in_options_has_its_line();
        malformed_json_is_located_in_one_line();
        a_number_survives_the_file();
        the_first_interrupt_is_a_request();

        (void)unlink(path_of("stderr"));
        (void)unlink(path_of("in.json"));
        (void)unlink(path_of("out.json"));
        (void)rmdir(directory);
        return 0;
}
