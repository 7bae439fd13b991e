/* SPDX-License-Identifier: MIT */
/*
 * cputime doctor: what this machine and this process allow, what it is worth, what would help.
 *
 * Whether a backend is usable is asked of the kernel by trying it, and what it costs is measured,
 * because neither follows from version numbers. Each clock with each backend is a cell, measured in
 * a forked child of its own: a process can force one backend only, what it reads of one clock bears
 * on the other, and a child starts unenrolled whatever this process has done. The children take
 * turns, a batch of about a millisecond each, round after round, so that a slow phase of the
 * machine falls on all cells alike; a cell is the median of its batches.
 *
 *      parent                      child (floor | auto | syscall | ring | header | page) x clock
 *        | -- one byte ------------> |
 *        |                           | a batch of reads
 *        | <------ struct batch ---- |
 *        | -- ... to the next child, and again from the first, ROUNDS times
 *
 * A batch is timed with the kernel's own thread clock, so that being preempted on a busy machine
 * does not count as cost. Its two system calls are one thousandth of the batch.
 *
 * The auto row is no backend: it is what a program gets that asks for nothing, and tells which
 * backend AUTO takes for a thread that reads its own clock, and for a process with one thread that
 * reads the process clock.
 *
 * A page is made while the kernel serves: a child that may get one first waits for it.
 *
 * Two more cells are the floor, CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW through the vDSO: the
 * clocks that are read in user space anyway. A backend that reads the counter itself may undercut
 * them.
 *
 * Not promised: that the costs hold for threads that are switched often. That is what
 * `cputime bench` and cputime-run(1) --verbose are for.
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

/* Odd, so that the median is a batch; enough for all cells to be done in a quarter of a second. */
#define ROUNDS 21

/* Long enough to drown the anchor that the wake-up before it costs, and the timing itself. */
#define BATCH_NS CT_NSEC_PER_MSEC

/* More than AUTO wants to see before it enrols a thread, and cheap even for the kernel's clock. */
#define WARM_UP_READS 2000

/* How long the library waits for a page, and how many reads it wants to see before it asks for one. */
#define PAGE_WAIT_MS 1000
#define PAGE_READS 512

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
        double ns;              /* per read */
        enum cputime_backend served_by; /* most of it; of no meaning on the floor row */
};

struct cell {
        int fd;                 /* to the child, -1: not measured */
        pid_t pid;
        size_t rounds;          /* so many of ns[] are there; 0 after finish(): no result */
        double ns[ROUNDS];
        double median;
        enum cputime_backend served_by;
};

struct row {
        struct cputime_probe probe;     /* of backends proper; "usable" elsewhere */
        struct cell cells[COLUMNS];
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

static uint64_t own_cpu_ns(void) {
        struct timespec ts = {};

        (void)ct_sys_clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        return ct_nsec_from_timespec(&ts);
}

static double ns_per_read(uint64_t (*read_clock)(void), uint64_t reads) {
        uint64_t begin = own_cpu_ns();

        for (uint64_t i = 0; i < reads; i++)
                (void)read_clock();
        return (double)(own_cpu_ns() - begin) / (double)reads;
}

/* The backend that served most reads between the two. */
static enum cputime_backend main_server(const struct cputime_stats *before,
                                        const struct cputime_stats *after) {
        enum cputime_backend most = CPUTIME_BACKEND_SYSCALL;

        for (unsigned int i = CPUTIME_BACKEND_SYSCALL; i < CPUTIME_BACKEND_MAX; i++)
                if (after->reads[i] - before->reads[i] > after->reads[most] - before->reads[most])
                        most = (enum cputime_backend)i;
        return most;
}

static void await_page(uint64_t (*read_clock)(void)) {
        const struct timespec nap = { .tv_nsec = CT_NSEC_PER_MSEC };

        for (unsigned int ms = 0; ms < PAGE_WAIT_MS; ms++) {
                struct cputime_stats before, after;

                cputime_stats_read(&before);
                (void)ns_per_read(read_clock, PAGE_READS);
                cputime_stats_read(&after);
                if (main_server(&before, &after) == CPUTIME_BACKEND_PAGE)
                        break;
                (void)nanosleep(&nap, NULL);
        }
}

static _Noreturn void child(unsigned int row, unsigned int column, int fd, bool page) {
        static uint64_t (*const clocks[COLUMNS])(void) = { cputime_thread_ns, cputime_process_ns };
        static uint64_t (*const floors[COLUMNS])(void) = { monotonic_ns, monotonic_raw_ns };
        uint64_t (*read_clock)(void) = row == ROW_FLOOR ? floors[column] : clocks[column];
        uint64_t reads;
        char go;

        if (row != ROW_FLOOR && cputime_backend_set((enum cputime_backend)row) < 0)
                _exit(1);

        if (page && (row == CPUTIME_BACKEND_PAGE || row == CPUTIME_BACKEND_AUTO))
                await_page(read_clock);
        (void)ns_per_read(read_clock, WARM_UP_READS);
        reads = 1 + (uint64_t)((double)BATCH_NS / (1 + ns_per_read(read_clock, WARM_UP_READS)));

        while (recv(fd, &go, sizeof(go), 0) == (ssize_t)sizeof(go)) {
                struct cputime_stats before, after;
                struct batch batch;

                cputime_stats_read(&before);
                batch.ns = ns_per_read(read_clock, reads);
                cputime_stats_read(&after);
                batch.served_by = main_server(&before, &after);
                if (send(fd, &batch, sizeof(batch), MSG_NOSIGNAL) != (ssize_t)sizeof(batch))
                        break;
        }
        _exit(0);
}

/* PAGE: a page is to be had. */
static void start(struct cell *cell, unsigned int row, unsigned int column, bool page) {
        int fds[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) {
                cli_error("cannot measure: socketpair: %s", strerror(errno));
                return;
        }

        cell->pid = fork();
        if (cell->pid == 0) {
                (void)close(fds[0]);
                child(row, column, fds[1], page);
        }
        (void)close(fds[1]);
        if (cell->pid < 0) {
                cli_error("cannot measure: fork: %s", strerror(errno));
                (void)close(fds[0]);
                return;
        }
        cell->fd = fds[0];
}

static void round_trip(struct cell *cell) {
        struct batch batch;
        char go = 0;

        if (send(cell->fd, &go, sizeof(go), MSG_NOSIGNAL) != (ssize_t)sizeof(go) ||
            recv(cell->fd, &batch, sizeof(batch), 0) != (ssize_t)sizeof(batch))
                return;

        cell->ns[cell->rounds++] = batch.ns;
        cell->served_by = batch.served_by;
}

static void finish(struct cell *cell, unsigned int row) {
        struct cli_summary summary;
        int status;

        /* Rather than close() alone: later children have inherited our end. */
        (void)shutdown(cell->fd, SHUT_RDWR);
        (void)close(cell->fd);
        while (waitpid(cell->pid, &status, 0) < 0 && errno == EINTR)
                ;

        if (cell->rounds < ROUNDS) {
                cli_error("measuring %s ended early, %s %d: its cost is missing",
                          row == ROW_FLOOR ? "the floor" : cputime_backend_name(row),
                          WIFSIGNALED(status) ? "by signal" : "with exit status",
                          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
                cell->rounds = 0;
                return;
        }
        cli_summarise(cell->ns, cell->rounds, &summary);
        cell->median = summary.median;
}

static void examine(struct row rows[ROWS]) {
        for (unsigned int i = 0; i < CPUTIME_BACKEND_MAX; i++)
                /* AUTO has no probe: nothing can refuse it. */
                (void)cputime_backend_probe((enum cputime_backend)i, &rows[i].probe);

        for (unsigned int i = 0; i < ROWS; i++)
                for (unsigned int c = 0; c < COLUMNS; c++) {
                        rows[i].cells[c].fd = -1;
                        if (rows[i].probe.error == 0)
                                start(&rows[i].cells[c], i, c,
                                      rows[CPUTIME_BACKEND_PAGE].probe.error == 0);
                }
        for (unsigned int round = 0; round < ROUNDS; round++)
                for (unsigned int i = 0; i < ROWS; i++)
                        for (unsigned int c = 0; c < COLUMNS; c++)
                                if (rows[i].cells[c].fd >= 0 && rows[i].cells[c].rounds == round)
                                        round_trip(&rows[i].cells[c]);
        for (unsigned int i = 0; i < ROWS; i++)
                for (unsigned int c = 0; c < COLUMNS; c++)
                        if (rows[i].cells[c].fd >= 0)
                                finish(&rows[i].cells[c], i);
}

/* How many times as fast as the kernel; 0 if either was not measured. */
static double speedup(const struct row rows[ROWS], unsigned int i, unsigned int c) {
        const struct cell *kernel = &rows[CPUTIME_BACKEND_SYSCALL].cells[c];
        const struct cell *ours = &rows[i].cells[c];

        return kernel->rounds && ours->rounds ? kernel->median / ours->median : 0;
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
                const struct cell *cell = &rows[i].cells[c];
                const char *name = column_names[c];
                char key[64];

                (void)snprintf(key, sizeof(key), "%s_read_ns", name);
                (void)json_object_set_new(object, key, real_or_null(cell->median, 1));
                (void)snprintf(key, sizeof(key), "%s_speedup_ratio", name);
                (void)json_object_set_new(object, key, real_or_null(speedup(rows, i, c), 2));
                (void)snprintf(key, sizeof(key), "%s_served_by", name);
                (void)json_object_set_new(object, key, !cell->rounds ? json_null() :
                        json_string(cputime_backend_name(cell->served_by)));
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
                                          real_or_null(rows[ROW_FLOOR].cells[c].median, 1));
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
        const struct cell *cell = &rows[i].cells[c];
        char gain[16] = "";
        bool other = i == CPUTIME_BACKEND_AUTO || cell->served_by != i;

        if (!cell->rounds) {
                (void)snprintf(ret_text, size, "%7s", "-");
                return;
        }
        if (speedup(rows, i, c) > 0 && i != CPUTIME_BACKEND_SYSCALL)
                (void)snprintf(gain, sizeof(gain), "%.1fx", speedup(rows, i, c));
        (void)snprintf(ret_text, size, "%7.1f ns %7s %s", cell->median, gain,
                       other ? cputime_backend_name(cell->served_by) : "");
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

        printf("\nCPU time of a read, measured now, and how many times as fast as the kernel\n");
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
                if (rows[ROW_FLOOR].cells[c].rounds)
                        printf(" %7.1f ns\n", rows[ROW_FLOOR].cells[c].median);
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
                    : "\nOnly the kernel's own clocks are usable here: programs under "
                      "`cputime run` work as\nbefore, no faster.");
}

static void help(void) {
        printf("Usage: cputime doctor [--json FILE]\n"
               "\n"
               "Tries every backend on this machine, in this process's situation, measures what a\n"
               "read costs beside the kernel, and says for each refusal what it means and what\n"
               "would change it. Takes about a second on an idle machine.\n"
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
