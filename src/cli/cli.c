/* SPDX-License-Identifier: MIT */
/*
 * What every verb needs and none should write twice: messages, options, numbers, JSON files.
 *
 * The one rule behind the messages: a user sees one line for one mistake. Whatever a line quotes,
 * file names and pieces of malformed input included, has its control characters replaced, so that
 * input can neither start a second line nor steer the terminal.
 *
 * A progress line is state of the terminal, not of the program: it is there from cli_progress()
 * until somebody else writes to stderr, which therefore goes through cli_error(), and is gone then.
 * All of this belongs to the one thread that talks to the user; only cli_interrupted is set from a
 * signal handler, which does nothing else. A second SIGINT or SIGTERM ends the program as usual.
 *
 * The machine record lives in machine.c.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli-config.h"
#include "cli/cli.h"

/* Longer messages are cut; PATH_MAX bytes of a file name still fit. */
#define MESSAGE_MAX 8192

/* Where a terminal does not tell its width. */
#define COLUMNS_DEFAULT 80

/*
 * Raw samples have the resolution of a nanosecond clock divided by a batch of calls: 12 digits keep
 * all of it and leave out the noise of the binary representation.
 */
#define JSON_FLAGS (JSON_INDENT(2) | JSON_REAL_PRECISION(12))

#define DROP_IN "libcputime-preload.so"

volatile bool cli_interrupted;

static bool progress_shown;

static void one_line(char *text) {
        for (; *text; text++)
                if (iscntrl((unsigned char)*text))
                        *text = '?';
}

__attribute__((format(printf, 1, 0)))
static void message(const char *format, va_list args) {
        char text[MESSAGE_MAX];

        (void)vsnprintf(text, sizeof(text), format, args);
        one_line(text);
        cli_progress(NULL);
        fprintf(stderr, "cputime: %s\n", text);
}

void cli_error(const char *format, ...) {
        va_list args;

        va_start(args, format);
        message(format, args);
        va_end(args);
}

int cli_usage(const char *format, ...) {
        va_list args;

        va_start(args, format);
        message(format, args);
        va_end(args);
        return CLI_EXIT_USAGE;
}

/*
 * getopt tells a missing value from an unknown option only if the option string begins with ':'
 * (after '+' or '-'); the verbs need not know that.
 */
int cli_getopt(int argc, char *argv[], const char *shortopts, const struct option *longopts) {
        char options[128];
        const char *mode = *shortopts == '+' || *shortopts == '-' ? shortopts : "";
        const char *text;
        int option, index_before = optind;

        (void)snprintf(options, sizeof(options), "%.*s:%s", *mode ? 1 : 0, mode,
                       *mode ? shortopts + 1 : shortopts);
        opterr = 0;
        option = getopt_long(argc, argv, options, longopts, NULL);
        if (option != '?' && option != ':')
                return option;

        /* A long option has been stepped over, a bundle of short ones perhaps not yet. */
        text = argv[optind > index_before ? optind - 1 : optind];
        if (strncmp(text, "--", 2) == 0) {
                int length = (int)strcspn(text, "=");

                if (option == ':')
                        cli_error("option '%.*s' needs a value; see `cputime help %s`", length,
                                  text, argv[0]);
                else if (optopt != 0)
                        cli_error("option '%.*s' takes no value, and '%s' gives one; "
                                  "see `cputime help %s`", length, text, text + length + 1,
                                  argv[0]);
                else
                        cli_error("unknown or ambiguous option '%.*s'; see `cputime help %s`",
                                  length, text, argv[0]);
        } else if (option == ':') {
                cli_error("option '-%c' needs a value; see `cputime help %s`", optopt, argv[0]);
        } else {
                cli_error("unknown option '-%c'; see `cputime help %s`", optopt, argv[0]);
        }
        return '?';
}

int cli_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value) {
        uint64_t value = 0;
        bool too_large = false;

        if (!*text)
                return -EINVAL;

        for (; *text; text++) {
                if (*text < '0' || *text > '9')
                        return -EINVAL;
                /* On to the end: "99999999999999999999x" is no number, rather than a large one. */
                too_large |= __builtin_mul_overflow(value, 10, &value) ||
                             __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value);
        }

        if (too_large || value < min || value > max)
                return -ERANGE;
        *ret_value = value;
        return 0;
}

static bool terminal_is_dumb(void) {
        const char *term = getenv("TERM");

        return !term || strcmp(term, "dumb") == 0;
}

bool cli_colours(FILE *f) {
        const char *no_color = getenv("NO_COLOR");

        return !(no_color && *no_color) && !terminal_is_dumb() && isatty(fileno(f));
}

void cli_progress(const char *format, ...) {
        struct winsize size;
        char text[256];
        int columns = COLUMNS_DEFAULT;
        va_list args;

        if (!format) {
                if (progress_shown)
                        fputs("\r\033[K", stderr);
                progress_shown = false;
                return;
        }

        if (terminal_is_dumb() || !isatty(STDERR_FILENO))
                return;

        if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
                columns = size.ws_col;

        va_start(args, format);
        (void)vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        one_line(text);
        /* A line that wraps cannot be rewritten in place. */
        fprintf(stderr, "\r%.*s\033[K", columns - 1, text);
        progress_shown = true;
}

static int dump(int fd, const json_t *value) {
        char *text = json_dumps(value, JSON_FLAGS);
        size_t size, done = 0;
        int r = 0;

        if (!text)
                return -ENOMEM;

        size = strlen(text);
        text[size++] = '\n';    /* in the place of the terminator, which nobody needs any more */
        while (done < size) {
                ssize_t n = write(fd, text + done, size - done);

                if (n >= 0) {
                        done += (size_t)n;
                } else if (errno != EINTR) {
                        r = -errno;
                        break;
                }
        }
        free(text);
        return r;
}

/* What is no ordinary file, a pipe or /dev/null, must be written to and never be replaced. */
static int write_in_place(const char *path, const json_t *value) {
        int fd, r;

        fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return -errno;

        r = dump(fd, value);
        if (close(fd) < 0 && r == 0)
                r = -errno;
        return r;
}

static int write_and_rename(const char *path, mode_t mode, const json_t *value) {
        char temporary[PATH_MAX];
        int fd, r;

        if (snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path) >= (int)sizeof(temporary))
                return -ENAMETOOLONG;

        fd = mkostemp(temporary, O_CLOEXEC);
        if (fd < 0)
                return -errno;

        r = dump(fd, value);
        if (r == 0 && fchmod(fd, mode) < 0)
                r = -errno;
        if (close(fd) < 0 && r == 0)
                r = -errno;
        if (r == 0 && rename(temporary, path) < 0)
                r = -errno;
        if (r < 0)
                (void)unlink(temporary);
        return r;
}

int cli_json_write(const char *path, const json_t *value) {
        char target[PATH_MAX];
        struct stat st;
        int r;

        if (!value) {
                r = -ENOMEM;
        } else if (strcmp(path, "-") == 0) {
                /* What stdio still holds was written first. */
                r = fflush(stdout) == 0 ? dump(STDOUT_FILENO, value) : -errno;
        } else if (stat(path, &st) == 0) {
                if (!S_ISREG(st.st_mode))
                        r = write_in_place(path, value);
                /* Through a symbolic link to the file: the link itself is not ours to replace. */
                else if (!realpath(path, target))
                        r = -errno;
                else
                        r = write_and_rename(target, st.st_mode & 07777, value);
        } else {
                mode_t mask = umask(0);

                (void)umask(mask);
                r = write_and_rename(path, 0666 & ~mask, value);
        }

        if (r < 0)
                cli_error("cannot write JSON to %s%s%s: %s", strcmp(path, "-") ? "'" : "",
                          strcmp(path, "-") ? path : "stdout", strcmp(path, "-") ? "'" : "",
                          strerror(-r));
        return r;
}

/* json_load_callback() takes a failed read for the end; this keeps the reason. */
struct source {
        int fd;
        int error;
};

static size_t source_read(void *buffer, size_t size, void *userdata) {
        struct source *source = userdata;
        ssize_t n;

        do {
                n = read(source->fd, buffer, size);
        } while (n < 0 && errno == EINTR);

        if (n < 0) {
                source->error = errno;
                return (size_t)-1;
        }
        return (size_t)n;
}

json_t *cli_json_read(const char *path) {
        struct source source = {};
        json_error_t error;
        json_t *value;

        source.fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (source.fd < 0) {
                cli_error("cannot read '%s': %s", path, strerror(errno));
                return NULL;
        }

        value = json_load_callback(source_read, &source,
                                   JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
        (void)close(source.fd);

        if (source.error != 0) {
                cli_error("cannot read '%s': %s", path, strerror(source.error));
                json_decref(value);
                return NULL;
        }
        if (!value) {
                cli_error("%s:%d:%d: not JSON: %s", path, error.line, error.column, error.text);
                return NULL;
        }
        if (!json_is_object(value)) {
                cli_error("%s:1:1: a JSON object is needed, and this is %s", path,
                          json_is_array(value) ? "an array" : "a single value");
                json_decref(value);
                return NULL;
        }
        return value;
}

static void interrupt(int signal_number) {
        cli_interrupted = true;
}

void cli_catch_interrupts(void) {
        /* No SA_RESTART: a wait must end so that its caller can look at the flag. */
        struct sigaction action = { .sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND };

        (void)sigaction(SIGINT, &action, NULL);
        (void)sigaction(SIGTERM, &action, NULL);
}

const char *cli_preload_path(void) {
        static char beside[PATH_MAX];
        static const char installed[] = CLI_LIBDIR "/" DROP_IN;
        ssize_t length = readlink("/proc/self/exe", beside, sizeof(beside) - sizeof(DROP_IN));

        if (length > 0) {
                beside[length] = '\0';
                strcpy(strrchr(beside, '/') + 1, DROP_IN);
                if (access(beside, R_OK) == 0)
                        return beside;
        }
        return access(installed, R_OK) == 0 ? installed : NULL;
}
