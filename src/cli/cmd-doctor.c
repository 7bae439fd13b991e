/* SPDX-License-Identifier: MIT */
/*
 * cputime doctor: what this machine and this process allow, what it is worth, what would help.
 *
 * Whether a backend is usable is asked of the kernel by trying it, and what it costs is measured,
 * because neither follows from version numbers. Each backend is measured in a forked child of its
 * own: a process can force one backend only, and the child starts unenrolled whatever this process
 * has done. The children take turns, a batch of about a millisecond each, round after round, so
 * that a slow phase of the machine falls on all rows alike; a row is the median of its batches.
 *
 *      parent                      child (floor | syscall | ring | header | auto)
 *        | -- one byte ------------> |
 *        |                           | a batch of reads of the one clock, then of the other
 *        | <------ struct batch ---- |
 *        | -- ... to the next child, and again from the first, ROUNDS times
 *
 * The auto row is no backend: it is what a program gets that asks for nothing, and tells which
 * backend AUTO takes for a thread and for a process with one thread.
 *
 * Two rows are the floor, CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW through the vDSO: a clock that
 * is read in user space has to read one of them, or the counter beneath.
 *
 * Not promised: that the costs hold under load, or for threads that are switched often. That is
 * what `cputime bench` and cputime-run(1) --verbose are for.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arch/vdso.h"
#include "base/nsec.h"
#include "cli/cli.h"
#include "cli/machine.h"
#include "cli/stats.h"
#include "cputime/clock.h"

#define SCHEMA "cputime-doctor/1"

/* Odd, so that the median is a batch; enough for 5 rows to be done in a quarter of a second. */
#define ROUNDS 21

/* Long enough to drown the wake-up before it, short enough to escape most preemptions. */
#define BATCH_NS CT_NSEC_PER_MSEC

/* More than AUTO wants to see before it enrols a thread, and cheap even for the kernel's clock. */
#define WARM_UP_READS 2000

/* After the backends, which have their own numbers: the two clocks of the vDSO. */
#define ROW_FLOOR CPUTIME_BACKEND_MAX
#define ROWS (CPUTIME_BACKEND_MAX + 1)

enum clock_column {
        THREAD,         /* on the floor row: CLOCK_MONOTONIC */
        PROCESS,        /* on the floor row: CLOCK_MONOTONIC_RAW */
        COLUMNS,
};

static const char *const column_names[COLUMNS] = { "thread", "process" };
static const char *const floor_names[COLUMNS] = { "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW" };

struct batch {
        double ns[COLUMNS];     /* per read */
        enum cputime_backend served_by[COLUMNS];
};

struct row {
        struct cputime_probe probe;     /* of backends proper */
        int fd;                 /* to the child, -1: not measured */
        pid_t pid;
        size_t rounds;          /* so many of ns[] are there */
        double ns[COLUMNS][ROUNDS];
        double median[COLUMNS];
        enum cputime_backend served_by[COLUMNS];
};

static uint64_t monotonic_ns(void) {
        struct timespec ts = {};

        (void)ct_vdso_clock_gettime(CLOCK_MONOTONIC, &ts);
        return ct_nsec_from_timespec(&ts);
}

static uint64_t monotonic_raw_ns(void) {
        struct timespec ts = {};

        (void)ct_vdso_clock_gettime(CLOCK_MONOTONIC_RAW, &ts);
        return ct_nsec_from_timespec(&ts);
}

static double ns_per_read(uint64_t (*read_clock)(void), uint64_t reads) {
        uint64_t begin = monotonic_raw_ns();

        for (uint64_t i = 0; i < reads; i++)
                (void)read_clock();
        return (double)(monotonic_raw_ns() - begin) / (double)reads;
}

static _Noreturn void child(unsigned int row, int fd) {
        uint64_t (*read_clock[COLUMNS])(void) = { cputime_thread_ns, cputime_process_ns };
        uint64_t reads[COLUMNS];
        char go;

        if (row == ROW_FLOOR) {
                read_clock[THREAD] = monotonic_ns;
                read_clock[PROCESS] = monotonic_raw_ns;
        } else if (cputime_backend_set((enum cputime_backend)row) < 0) {
                _exit(1);
        }

        for (unsigned int c = 0; c < COLUMNS; c++) {
                (void)ns_per_read(read_clock[c], WARM_UP_READS);
                reads[c] = 1 + (uint64_t)((double)BATCH_NS / (1 + ns_per_read(read_clock[c], 100)));
        }

        while (recv(fd, &go, sizeof(go), 0) == (ssize_t)sizeof(go)) {
                struct batch batch = {};
                struct cputime_sample sample;

                for (unsigned int c = 0; c < COLUMNS; c++)
                        batch.ns[c] = ns_per_read(read_clock[c], reads[c]);
                if (row != ROW_FLOOR) {
                        cputime_sample_read(&sample);
                        batch.served_by[THREAD] = sample.thread_backend;
                        batch.served_by[PROCESS] = sample.process_backend;
                }
                if (send(fd, &batch, sizeof(batch), MSG_NOSIGNAL) != (ssize_t)sizeof(batch))
                        break;
        }
        _exit(0);
}

static void start(struct row *row, unsigned int number) {
        int fds[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) {
                cli_error("cannot measure: socketpair: %s", strerror(errno));
                return;
        }

        /* What is still buffered would be written by both. */
        (void)fflush(stdout);
        row->pid = fork();
        if (row->pid == 0) {
                (void)close(fds[0]);
                child(number, fds[1]);
        }
        (void)close(fds[1]);
        if (row->pid < 0) {
                cli_error("cannot measure: fork: %s", strerror(errno));
                (void)close(fds[0]);
                return;
        }
        row->fd = fds[0];
}

static void round_trip(struct row *row) {
        struct batch batch;
        char go = 0;

        if (send(row->fd, &go, sizeof(go), MSG_NOSIGNAL) != (ssize_t)sizeof(go) ||
            recv(row->fd, &batch, sizeof(batch), 0) != (ssize_t)sizeof(batch))
                return;

        for (unsigned int c = 0; c < COLUMNS; c++) {
                row->ns[c][row->rounds] = batch.ns[c];
                row->served_by[c] = batch.served_by[c];
        }
        row->rounds++;
}

static void finish(struct row *row, const char *name) {
        struct cli_summary summary;
        int status;

        /* Rather than close() alone: later children have inherited our end. */
        (void)shutdown(row->fd, SHUT_RDWR);
        (void)close(row->fd);
        while (waitpid(row->pid, &status, 0) < 0 && errno == EINTR)
                ;

        if (row->rounds < ROUNDS) {
                cli_error("measuring %s ended early, %s %d: its costs are missing", name,
                          WIFSIGNALED(status) ? "by signal" : "with exit status",
                          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
                row->rounds = 0;
                return;
        }
        for (unsigned int c = 0; c < COLUMNS; c++) {
                cli_summarise(row->ns[c], row->rounds, &summary);
                row->median[c] = summary.median;
        }
}

static void examine(struct row rows[ROWS]) {
        for (unsigned int i = 0; i < ROWS; i++) {
                rows[i].fd = -1;
                /* AUTO and the floor have no probe: nothing can refuse them. */
                if (i < CPUTIME_BACKEND_MAX)
                        (void)cputime_backend_probe((enum cputime_backend)i, &rows[i].probe);
        }
        for (unsigned int i = 0; i < ROWS; i++)
                if (rows[i].probe.error == 0)
                        start(&rows[i], i);
        for (unsigned int round = 0; round < ROUNDS; round++)
                for (unsigned int i = 0; i < ROWS; i++)
                        if (rows[i].fd >= 0 && rows[i].rounds == round)
                                round_trip(&rows[i]);
        for (unsigned int i = 0; i < ROWS; i++)
                if (rows[i].fd >= 0)
                        finish(&rows[i], i == ROW_FLOOR ? "the floor"
                                                        : cputime_backend_name(i));
}

/* How many times as fast as the kernel; 0 if either was not measured. */
static double speedup(const struct row rows[ROWS], unsigned int i, unsigned int c) {
        const struct row *kernel = &rows[CPUTIME_BACKEND_SYSCALL];

        return kernel->rounds && rows[i].rounds ? kernel->median[c] / rows[i].median[c] : 0;
}

/* "none", "strict" or "filter"; NULL: not known. */
static const char *seccomp_mode(void) {
        static const char *const modes[] = { "none", "strict", "filter" };
        char text[16];
        uint64_t mode;

        if (!cli_read_field("/proc/self/status", "Seccomp", text, sizeof(text)) ||
            cli_parse_u64(text, 0, 2, &mode) < 0)
                return NULL;
        return modes[mode];
}

static const char *error_name(int error) {
        const char *name = strerrorname_np(error);

        return name ? name : "unknown";
}

static json_t *real_or_null(double value, int decimals) {
        double scale = decimals == 1 ? 10 : 100;

        return value > 0 ? json_real((double)(int64_t)(value * scale + 0.5) / scale) : json_null();
}

static void add_costs(json_t *object, const struct row rows[ROWS], unsigned int i) {
        for (unsigned int c = 0; c < COLUMNS; c++) {
                const char *name = column_names[c];
                bool measured = rows[i].rounds > 0;
                char key[64];

                (void)snprintf(key, sizeof(key), "%s_read_ns", name);
                (void)json_object_set_new(object, key, real_or_null(rows[i].median[c], 1));
                (void)snprintf(key, sizeof(key), "%s_speedup_ratio", name);
                (void)json_object_set_new(object, key, real_or_null(speedup(rows, i, c), 2));
                (void)snprintf(key, sizeof(key), "%s_served_by", name);
                (void)json_object_set_new(object, key, !measured ? json_null() :
                        json_string(cputime_backend_name(rows[i].served_by[c])));
        }
}

static json_t *report(const struct row rows[ROWS], bool usable) {
        json_t *root = json_object(), *automatic = json_object();
        json_t *floors = json_array(), *backends = json_array();
        const char *seccomp = seccomp_mode();

        for (unsigned int c = 0; c < COLUMNS; c++) {
                json_t *entry = json_object();

                (void)json_object_set_new(entry, "clock", json_string(floor_names[c]));
                (void)json_object_set_new(entry, "read_ns",
                                          real_or_null(rows[ROW_FLOOR].median[c], 1));
                (void)json_array_append_new(floors, entry);
        }

        for (unsigned int i = CPUTIME_BACKEND_AUTO + 1; i < CPUTIME_BACKEND_MAX; i++) {
                const struct cputime_probe *probe = &rows[i].probe;
                json_t *entry = json_object();

                (void)json_object_set_new(entry, "backend", json_string(cputime_backend_name(i)));
                (void)json_object_set_new(entry, "usable", json_boolean(probe->error == 0));
                (void)json_object_set_new(entry, "error", probe->error == 0 ? json_null() :
                                          json_string(error_name(probe->error)));
                (void)json_object_set_new(entry, "step", json_string(probe->step));
                (void)json_object_set_new(entry, "meaning", json_string(probe->meaning));
                (void)json_object_set_new(entry, "remedy", json_string(probe->remedy));
                add_costs(entry, rows, i);
                (void)json_array_append_new(backends, entry);
        }
        add_costs(automatic, rows, CPUTIME_BACKEND_AUTO);

        (void)json_object_set_new(root, "schema", json_string(SCHEMA));
        (void)json_object_set_new(root, "machine", cli_machine_record());
        (void)json_object_set_new(root, "perf_event_mlock_kb",
                                  cli_read_integer("/proc/sys/kernel/perf_event_mlock_kb"));
        (void)json_object_set_new(root, "seccomp", seccomp ? json_string(seccomp) : json_null());
        (void)json_object_set_new(root, "usable_beyond_syscall", json_boolean(usable));
        (void)json_object_set_new(root, "auto", automatic);
        (void)json_object_set_new(root, "backends", backends);
        (void)json_object_set_new(root, "floors", floors);
        return root;
}

static void print_fact(const char *label, const json_t *value) {
        printf("  %-21s ", label);
        if (json_is_string(value))
                puts(json_string_value(value));
        else if (json_is_integer(value))
                printf("%" JSON_INTEGER_FORMAT "\n", json_integer_value(value));
        else
                puts("unknown");
}

/* "29.4 ns  45.6x", and who answered where the row does not say it. */
static void format_cost(const struct row rows[ROWS], unsigned int i, unsigned int c,
                        char *ret_text, size_t size) {
        const struct row *row = &rows[i];
        char gain[16] = "";
        bool other = i == CPUTIME_BACKEND_AUTO || row->served_by[c] != i;

        if (!row->rounds) {
                (void)snprintf(ret_text, size, "%7s", "-");
                return;
        }
        if (speedup(rows, i, c) > 0 && i != CPUTIME_BACKEND_SYSCALL)
                (void)snprintf(gain, sizeof(gain), "%.1fx", speedup(rows, i, c));
        (void)snprintf(ret_text, size, "%7.1f ns %7s %s", row->median[c], gain,
                       other ? cputime_backend_name(row->served_by[c]) : "");
}

static void print_costs(const struct row rows[ROWS], unsigned int i) {
        char thread[64], process[64];

        format_cost(rows, i, THREAD, thread, sizeof(thread));
        format_cost(rows, i, PROCESS, process, sizeof(process));
        for (size_t end = strlen(process); end > 0 && process[end - 1] == ' '; end--)
                process[end - 1] = '\0';
        printf(" %-28s %s\n", thread, process);
}

static void print_table(const struct row rows[ROWS], const json_t *root, bool usable) {
        const json_t *machine = json_object_get(root, "machine");
        bool colours = cli_colours(stdout);

        printf("This machine and this process\n");
        print_fact("kernel", json_object_get(machine, "kernel"));
        print_fact("cpus", json_object_get(machine, "cpus"));
        print_fact("hypervisor", json_object_get(machine, "hypervisor"));
        print_fact("clocksource", json_object_get(machine, "clocksource"));
        print_fact("perf_event_paranoid", json_object_get(machine, "perf_event_paranoid"));
        print_fact("perf_event_mlock_kb", json_object_get(root, "perf_event_mlock_kb"));
        print_fact("seccomp", json_object_get(root, "seccomp"));

        printf("\nA read, measured now, one thread, and how many times as fast as the kernel\n");
        printf("  %-8s %-7s %-28s %s\n", "backend", "usable", "  thread clock",
               "  process clock");
        for (unsigned int i = CPUTIME_BACKEND_AUTO + 1; i < CPUTIME_BACKEND_MAX; i++) {
                bool yes = rows[i].probe.error == 0;

                printf("  %-8s %s%-7s%s", cputime_backend_name(i),
                       colours ? (yes ? "\033[32m" : "\033[31m") : "", yes ? "yes" : "no",
                       colours ? "\033[0m" : "");
                print_costs(rows, i);
        }
        printf("  %-8s %-7s", "auto", "");
        print_costs(rows, CPUTIME_BACKEND_AUTO);
        printf("\nThe floor, wall clocks through the vDSO\n");
        for (unsigned int c = 0; c < COLUMNS; c++) {
                printf("  %-20s", floor_names[c]);
                if (rows[ROW_FLOOR].rounds)
                        printf(" %7.1f ns\n", rows[ROW_FLOOR].median[c]);
                else
                        printf(" %7s\n", "-");
        }

        for (unsigned int i = CPUTIME_BACKEND_AUTO + 1; i < CPUTIME_BACKEND_MAX; i++) {
                const struct cputime_probe *probe = &rows[i].probe;

                if (probe->error == 0)
                        continue;
                printf("\n%s is not usable: %s at %s\n  it means:         %s\n",
                       cputime_backend_name(i), error_name(probe->error), probe->step,
                       probe->meaning);
                printf("  what would help:  %s\n",
                       *probe->remedy ? probe->remedy : "nothing known");
        }

        puts(usable ? "\nNext: `cputime run --verbose -- PROGRAM`"
                    : "\nOnly the kernel's own clocks are usable here: programs under `cputime run` "
                      "work as before,\nno faster.");
}

static void help(void) {
        printf("Usage: cputime doctor [--json FILE]\n"
               "\n"
               "Tries every backend on this machine, in this process's situation, measures what a\n"
               "read costs beside the kernel, and says for each refusal what it means and what\n"
               "would change it. Takes about half a second.\n"
               "\n"
               "  --json FILE   the same as JSON, too; '-' is stdout, instead of the table\n"
               "  --help        this text\n"
               "\n"
               "Examples:\n"
               "  cputime doctor\n"
               "  cputime doctor --json - | jq '.backends[] | {backend, usable, thread_read_ns}'\n"
               "  setpriv --reuid=nobody cputime doctor     what an unprivileged user has\n"
               "\n"
               "Exit status: 0 something faster than a system call is usable, 1 nothing is,\n"
               "2 unusable options or an unwritable FILE.\n");
}

int cmd_doctor(int argc, char *argv[]) {
        static const struct option options[] = {
                { "json", required_argument, NULL, 'j' },
                { "help", no_argument, NULL, 'h' },
                {},
        };
        static struct row rows[ROWS];
        const char *arg_json = NULL;
        bool usable = false;
        json_t *root;
        int option, r = 0;

        while ((option = cli_getopt(argc, argv, "j:h", options)) != -1) {
                switch (option) {
                case 'j':
                        arg_json = optarg;
                        break;
                case 'h':
                        help();
                        return 0;
                default:
                        return CLI_EXIT_USAGE;
                }
        }
        if (optind < argc)
                return cli_usage("'%s' is not an option, and doctor takes nothing else; "
                                 "see `cputime help doctor`", argv[optind]);

        examine(rows);
        for (unsigned int i = CPUTIME_BACKEND_SYSCALL + 1; i < CPUTIME_BACKEND_MAX; i++)
                usable |= rows[i].probe.error == 0;

        root = report(rows, usable);
        if (arg_json)
                r = cli_json_write(arg_json, root);
        if (r == 0 && (!arg_json || strcmp(arg_json, "-") != 0))
                print_table(rows, root, usable);
        json_decref(root);

        if (r < 0)
                return CLI_EXIT_USAGE;
        return usable ? 0 : CLI_EXIT_FAILED;
}
