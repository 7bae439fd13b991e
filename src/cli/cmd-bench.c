/* SPDX-License-Identifier: MIT */
/*
 * cputime bench: workload programs, with the kernel's clocks and with ours, side by side.
 *
 * The programs (bench/) are ordinary clients of libc. A sample is one run of one of them in a fresh
 * process: a backend is that program with the drop-in preloaded, the kernel is the same program
 * without, so nothing but the clock differs. Two more columns tell how far down it can go: the same
 * loop on CLOCK_MONOTONIC, and the same loop around nothing.
 *
 * pipe is about the other side of it, what a switch of an accounted thread costs. Its program puts
 * itself under an accounting, and a column may need something attached to the kernel meanwhile
 * (bench-hook.h). The differences looked for are a few percent, less than what two processes of the
 * same program differ by; so its samples are short and many, and a column is compared with another
 * round by round: what is told is the median of the ratios of samples taken within the same
 * fraction of a second, and the interval of that.
 *
 * Machines drift: frequency, neighbours, the host of a virtual machine. So all cells of the table
 * (row x column) are measured once in each round, in a new random order, and a drift falls on
 * all of them alike. The first round is dropped. One column is there twice, under another label:
 * where the two intervals do not meet, the difference between the others means as little.
 *
 * Ownership: the cells own their samples, main memory only, until the end; then the table is
 * printed and the file written, whole. An interruption or a failing program ends the measuring
 * early and keeps what was measured, save for the sample under way. A decreasing reading anywhere,
 * the dropped round included, makes the exit status 1: a fast clock that is wrong is no result.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli-config.h"
#include "cli/bench.h"
#include "cli/bench-hook.h"
#include "cli/cli.h"
#include "cli/page-server.h"
#include "cli/stats.h"
#include "cputime/clock.h"

#define EXIT_INTERRUPTED 130
#define COLUMNS_MAX 9           /* six backends, one of them again, two floors; pipe has 7 */
#define ROWS_MAX 64
#define CALLS_MAX UINT64_C(1000000000000)
#define PIPE_BYTES_MAX UINT64_C(1000000000)

/* Of the samples, by default. A run of the pipe is short beside the starting of its program. */
#define CALLS 5000000
#define REPEAT 7
#define PIPE_BYTES 2000
#define PIPE_REPEAT 300

#define PIPE_BASE "nothing"

struct column {
        char label[32];
        const char *backend;    /* CPUTIME_BACKEND of the drop-in; NULL: no drop-in */
        const char *mode;       /* what the program's loop reads, or the pipe's accounting */
        enum bench_hook hook;   /* what is attached while the program runs */
};

struct row {
        const char *bench;      /* its name in the file */
        char label[32];
        char argument[16];      /* the program's first: N, or where the pipe's threads are */
        unsigned nr_threads;
};

struct cell {
        const struct row *row;
        const struct column *column;
        double *samples;        /* [arg_repeat], in the order taken */
        size_t nr_samples;
        uint64_t nr_errors;
        struct cli_summary summary;
};

static const char *const benches[] = {
        "pound_clock_gettime", "pound_times", "thread_read", "process_read", "pipe",
};

static const char *const backends[] = { "kernel", "auto", "page", "ring", "header", "syscall" };

/* The accountings of the pipe; the first is what the others are compared with. */
static const char *const accountings[] = {
        PIPE_BASE, "ring", "header", "empty", "page-others", "page",
};

static const char *arg_bench;
static bool arg_is_pipe;
static unsigned arg_threads[ROWS_MAX] = { 2, 5, 8, 12, 21, 30, 48, 79, 110, 128 };
static size_t arg_nr_threads = 10;
static const char *arg_backends[COLUMNS_MAX] = { "kernel", "auto" };
static size_t arg_nr_backends = 2;
static bool arg_backends_given;
static uint64_t arg_calls;
static uint64_t arg_repeat;
static const char *arg_json;

static struct row rows[ROWS_MAX];
static size_t nr_rows;
static struct column columns[COLUMNS_MAX];
static size_t nr_columns;
static struct cell cells[ROWS_MAX * COLUMNS_MAX];
static size_t nr_cells;
static char program_path[PATH_MAX];

/* Accountings that do not work here, and why. */
static struct {
        const char *name;
        char why[128];
} absent[COLUMNS_MAX];
static size_t nr_absent;

static const char *known(const char *name, const char *const names[], size_t n) {
        for (size_t i = 0; i < n; i++)
                if (strcmp(name, names[i]) == 0)
                        return names[i];
        return NULL;
}
#define KNOWN(name, names) known(name, names, sizeof(names) / sizeof(*(names)))

/* Takes the next item off a comma-separated list; an empty one is an item too. */
static char *next_item(char **list) {
        return strsep(list, ",");
}

static int parse_threads(char *list) {
        char *item;

        arg_nr_threads = 0;
        while ((item = next_item(&list)) != NULL) {
                uint64_t n;

                if (cli_parse_u64(item, 1, BENCH_THREADS_MAX, &n) < 0)
                        return cli_usage("--threads: '%s' is not a number of threads, 1 to %d",
                                         item, BENCH_THREADS_MAX);
                if (arg_nr_threads == ROWS_MAX)
                        return cli_usage("--threads: more than %d numbers in the list", ROWS_MAX);
                for (size_t i = 0; i < arg_nr_threads; i++)
                        if (arg_threads[i] == n)
                                return cli_usage("--threads: %s is in the list twice", item);
                arg_threads[arg_nr_threads++] = (unsigned)n;
        }
        return 0;
}

static int parse_backends(char *list) {
        char *item;

        arg_nr_backends = 0;
        while ((item = next_item(&list)) != NULL) {
                const char *name = arg_is_pipe ? KNOWN(item, accountings) : KNOWN(item, backends);

                if (!name)
                        return cli_usage("--backend: '%s' is none of %s", item, arg_is_pipe ?
                                         "nothing, ring, header, empty, page-others, page" :
                                         "kernel, auto, ring, header, syscall");
                if (known(name, arg_backends, arg_nr_backends))
                        return cli_usage("--backend: %s is in the list twice", item);
                arg_backends[arg_nr_backends++] = name;
        }
        return 0;
}

/*
 * A measurement may take half an hour, so what would spoil its end is looked for before it begins:
 * that the file can be made where cli_json_write() will make it.
 */
static int check_writable(const char *path) {
        static char beside[PATH_MAX], target[PATH_MAX];
        struct stat st;
        int fd, r;

        if (strcmp(path, "-") == 0)
                return 0;
        if (stat(path, &st) == 0) {
                if (access(path, W_OK) < 0)
                        return cli_usage("--json: cannot write %s: %s", path, strerror(errno));
                if (S_ISDIR(st.st_mode))
                        return cli_usage("--json: %s is a directory", path);
                if (!S_ISREG(st.st_mode))
                        return 0;
                if (!realpath(path, target))
                        return cli_usage("--json: cannot write %s: %s", path, strerror(errno));
                path = target;
        }
        r = snprintf(beside, sizeof(beside), "%s.XXXXXX", path);
        if (r < 0 || (size_t)r >= sizeof(beside))
                return cli_usage("--json: the path is too long");
        fd = mkstemp(beside);
        if (fd < 0)
                return cli_usage("--json: cannot write %s: %s", path, strerror(errno));
        close(fd);
        unlink(beside);
        return 0;
}

static const struct option options[] = {
        { "threads", required_argument, NULL, 't' },
        { "repeat", required_argument, NULL, 'r' },
        { "backend", required_argument, NULL, 'b' },
        { "calls", required_argument, NULL, 'c' },
        { "json", required_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        {},
};

static void print_help(void) {
        printf("Usage: cputime bench NAME [OPTION...]\n"
               "\n"
               "Runs a workload program with the kernel's CPU clocks and with cputime's, and\n"
               "prints nanoseconds per call: median, 95 %% interval, spread, gain.\n"
               "\n"
               "NAME is one of\n"
               "  pound_clock_gettime  N threads read the process clock\n"
               "  pound_times          N threads call times()\n"
               "  thread_read          one thread reads its clock, N alive\n"
               "  process_read         one thread reads the process clock, N alive\n"
               "  pipe                 two threads hand a byte to and fro, on one CPU and not:\n"
               "                       what a switch costs, and what is added to it by\n"
               "    nothing            no accounting: the base, always there\n"
               "    ring, header       both threads enrolled with that backend\n"
               "    empty              an empty BPF program on sched_switch: any hook's floor\n"
               "    page-others        the page's program there, for another process\n"
               "    page               both threads enrolled in the page\n"
               "\n"
               "  --threads LIST   values of N [2,5,8,12,21,30,48,79,110,128]\n"
               "  --backend LIST   of kernel, auto, page, ring, header, syscall [kernel,auto]\n"
               "                   pipe: of those above [all that work here; the last three\n"
               "                   need root, or CAP_BPF and CAP_PERFMON]\n"
               "  --repeat N       samples of each, after one that is dropped [%d; pipe %d]\n"
               "  --calls N        calls a sample, over all threads [%d];\n"
               "                   pipe: bytes each way [%d]\n"
               "  --json FILE      also write the raw samples; '-' is stdout\n"
               "\n"
               "An interrupt (^C) ends the measuring and keeps what was measured.\n",
               REPEAT, PIPE_REPEAT, CALLS, PIPE_BYTES);
}

/* Returns 0, or an exit status after saying why. */
static int parse(int argc, char *argv[]) {
        bool threads_given = false;
        char *backend_list = NULL;
        unsigned most = 0;
        int opt, r = 0;

        while ((opt = cli_getopt(argc, argv, "h", options)) != -1) {
                switch (opt) {
                case 't':
                        r = parse_threads(optarg);
                        threads_given = true;
                        break;
                case 'b':
                        backend_list = optarg;
                        break;
                case 'r':
                        if (cli_parse_u64(optarg, 1, CLI_SAMPLES_MAX, &arg_repeat) < 0)
                                r = cli_usage("--repeat: '%s' is not a number, 1 to %d", optarg,
                                              CLI_SAMPLES_MAX);
                        break;
                case 'c':
                        if (cli_parse_u64(optarg, 1, CALLS_MAX, &arg_calls) < 0)
                                r = cli_usage("--calls: '%s' is not a number, 1 to %" PRIu64,
                                              optarg, CALLS_MAX);
                        break;
                case 'j':
                        arg_json = optarg;
                        break;
                case 'h':
                        print_help();
                        exit(0);
                default:
                        return CLI_EXIT_USAGE;
                }
                if (r != 0)
                        return r;
        }

        if (optind == argc)
                return cli_usage("bench: which one? pound_clock_gettime, pound_times, thread_read, "
                                 "process_read or pipe");
        arg_bench = KNOWN(argv[optind], benches);
        if (!arg_bench)
                return cli_usage("bench: '%s' is none of pound_clock_gettime, pound_times, "
                                 "thread_read, process_read, pipe", argv[optind]);
        if (optind + 1 < argc)
                return cli_usage("bench: one at a time, '%s' is one too many", argv[optind + 1]);

        arg_is_pipe = strcmp(arg_bench, "pipe") == 0;
        if (backend_list) {
                r = parse_backends(backend_list);
                if (r != 0)
                        return r;
                arg_backends_given = true;
        }
        if (arg_repeat == 0)
                arg_repeat = arg_is_pipe ? PIPE_REPEAT : REPEAT;
        if (arg_calls == 0)
                arg_calls = arg_is_pipe ? PIPE_BYTES : CALLS;

        if (arg_is_pipe) {
                if (threads_given)
                        return cli_usage("--threads: pipe always has two");
                if (arg_calls > PIPE_BYTES_MAX)
                        return cli_usage("--calls: %" PRIu64 " bytes each way are more than pipe's "
                                         "%" PRIu64, arg_calls, PIPE_BYTES_MAX);
        } else {
                for (size_t i = 0; i < arg_nr_threads; i++)
                        if (most < arg_threads[i])
                                most = arg_threads[i];
                if (arg_calls < most)
                        return cli_usage("--calls: %" PRIu64 " calls are too few for %u threads",
                                         arg_calls, most);
        }
        return arg_json ? check_writable(arg_json) : 0;
}

/* The program stands in bench/ beside ours in a build tree, else where it was installed. */
static int find_program(void) {
        ssize_t n = readlink("/proc/self/exe", program_path, sizeof(program_path) - 1);

        if (n > 0) {
                char *slash;

                program_path[n] = '\0';
                slash = strrchr(program_path, '/');
                n = snprintf(slash, sizeof(program_path) - (size_t)(slash - program_path),
                             "/bench/%s", arg_bench);
                if ((size_t)n < sizeof(program_path) - (size_t)(slash - program_path) &&
                    access(program_path, X_OK) == 0)
                        return 0;
        }

        snprintf(program_path, sizeof(program_path), "%s/cputime/%s", CLI_LIBEXECDIR,
                 arg_bench);
        if (access(program_path, X_OK) == 0)
                return 0;
        cli_error("bench: the workload program %s cannot be run: %s; build cputime, or install it "
                  "again", program_path, strerror(errno));
        return CLI_EXIT_FAILED;
}

/*
 * That each backend is what its label says: a named one that the kernel refuses would silently be
 * the kernel under another name.
 */
static int check_backends(void) {
        for (size_t i = 0; i < arg_nr_backends; i++) {
                const char *name = arg_backends[i];
                enum cputime_backend backend;
                struct cputime_probe probe;
                const char *step;

                if (strcmp(name, "kernel") == 0)
                        continue;
                if (!cli_preload_path() || access(cli_preload_path(), R_OK) < 0) {
                        cli_error("bench: the drop-in libcputime-preload.so cannot be read; build "
                                  "cputime or install it again, or measure --backend kernel");
                        return CLI_EXIT_FAILED;
                }
                /* As `cputime run` does it for root; else the probe says why there is no page. */
                if (strcmp(name, "auto") == 0 || strcmp(name, "page") == 0)
                        (void)page_server_start(true, &step);
                if (cputime_backend_from_name(name, &backend) == 0 &&
                    cputime_backend_probe(backend, &probe) == 0 && probe.error != 0)
                        return cli_usage("--backend: %s does not work here: %s: %s (%s); see "
                                         "`cputime doctor`", name, probe.step, probe.meaning,
                                         strerror(probe.error));
        }
        return 0;
}

static struct column *add_column(const char *label, const char *suffix, const char *backend,
                                 const char *mode) {
        struct column *c = &columns[nr_columns++];

        snprintf(c->label, sizeof(c->label), "%s%s", label, suffix);
        c->backend = backend;
        c->mode = mode;
        return c;
}

/* Whether the pipe can be put under that accounting; else ret_why, of SIZE, says why not. */
static bool accounting_works(const char *name, enum bench_hook hook, char *ret_why, size_t size) {
        enum cputime_backend backend;
        struct cputime_probe probe;
        const char *why;

        if (hook != BENCH_HOOK_NONE) {
                if (bench_hook_attach(hook, &why) < 0) {
                        snprintf(ret_why, size, "%s", why);
                        return false;
                }
                bench_hook_detach(hook);
        } else if (cputime_backend_from_name(name, &backend) == 0 &&
                   cputime_backend_probe(backend, &probe) == 0 && probe.error != 0) {
                snprintf(ret_why, size, "%s: %s; see `cputime doctor`", probe.step, probe.meaning);
                return false;
        }
        return true;
}

/*
 * Column 0 is the base, and 1 the base again, whatever was asked for. What works for this user is
 * all, unless it was asked for by name.
 */
static int lay_out_pipe(void) {
        static const struct {
                const char *name, *mode;
                enum bench_hook hook;
        } kinds[] = {
                { "ring", "ring", BENCH_HOOK_NONE },
                { "header", "header", BENCH_HOOK_NONE },
                { "empty", PIPE_BASE, BENCH_HOOK_EMPTY },
                { "page-others", PIPE_BASE, BENCH_HOOK_PAGE_OTHERS },
                { "page", "page", BENCH_HOOK_PAGE },
        };
        static const char *const places[] = { "pinned", "unpinned" };

        add_column(PIPE_BASE, "", NULL, PIPE_BASE);
        add_column(PIPE_BASE, BENCH_AGAIN, NULL, PIPE_BASE);
        for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
                char why[sizeof(absent->why)];

                if (arg_backends_given && !known(kinds[i].name, arg_backends, arg_nr_backends))
                        continue;
                if (accounting_works(kinds[i].name, kinds[i].hook, why, sizeof(why))) {
                        add_column(kinds[i].name, "", NULL, kinds[i].mode)->hook = kinds[i].hook;
                        continue;
                }
                if (arg_backends_given)
                        return cli_usage("--backend: %s does not work here: %s", kinds[i].name, why);
                absent[nr_absent].name = kinds[i].name;
                memcpy(absent[nr_absent++].why, why, sizeof(why));
        }

        for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
                struct row *row = &rows[nr_rows++];

                row->bench = i == 0 ? "pipe_pinned" : "pipe_unpinned";
                row->nr_threads = 2;
                snprintf(row->label, sizeof(row->label), "%s", places[i]);
                snprintf(row->argument, sizeof(row->argument), "%s", places[i]);
        }
        return 0;
}

static void lay_out_clocks(void) {
        for (size_t i = 0; i < arg_nr_backends; i++) {
                const char *name = arg_backends[i];
                const char *backend = strcmp(name, "kernel") == 0 ? NULL : name;

                add_column(name, "", backend, "cpu");
                if (i == 0)
                        add_column(name, BENCH_AGAIN, backend, "cpu");
        }
        add_column(BENCH_FLOOR, "", NULL, "monotonic");
        add_column(BENCH_EMPTY, "", NULL, "empty");

        for (size_t t = 0; t < arg_nr_threads; t++) {
                struct row *row = &rows[nr_rows++];

                row->bench = arg_bench;
                row->nr_threads = arg_threads[t];
                snprintf(row->label, sizeof(row->label), "%u threads", arg_threads[t]);
                snprintf(row->argument, sizeof(row->argument), "%u", arg_threads[t]);
        }
}

static int lay_out(void) {
        int r;

        if (arg_is_pipe) {
                r = lay_out_pipe();
                if (r != 0)
                        return r;
        } else {
                r = check_backends();
                if (r != 0)
                        return r;
                lay_out_clocks();
        }

        for (size_t t = 0; t < nr_rows; t++) {
                for (size_t c = 0; c < nr_columns; c++) {
                        struct cell *cell = &cells[nr_cells++];

                        cell->row = &rows[t];
                        cell->column = &columns[c];
                        cell->samples = calloc(arg_repeat, sizeof(*cell->samples));
                        if (!cell->samples) {
                                cli_error("bench: no memory for %" PRIu64 " samples", arg_repeat);
                                return CLI_EXIT_FAILED;
                        }
                }
        }
        return 0;
}

/* In the child: nothing of ours, or of the caller's, reaches the program but what is measured. */
static _Noreturn void become_program(const struct cell *cell, int out) {
        char calls[32];

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        unsetenv("LD_PRELOAD");
        unsetenv("CPUTIME_BACKEND");
        if (cell->column->backend) {
                setenv("LD_PRELOAD", cli_preload_path(), 1);
                setenv("CPUTIME_BACKEND", cell->column->backend, 1);
        }
        snprintf(calls, sizeof(calls), "%" PRIu64, arg_calls);
        dup2(out, STDOUT_FILENO);
        execl(program_path, program_path, cell->row->argument, calls, cell->column->mode,
              (char *)NULL);
        _exit(127);
}

/* All that PID writes to FD, up to a line's worth. Returns 0, or -EINTR when interrupted. */
static int read_line(int fd, char *line, size_t size) {
        size_t length = 0;

        for (;;) {
                struct pollfd p = { .fd = fd, .events = POLLIN };
                ssize_t n;

                if (cli_interrupted)
                        return -EINTR;

                /* An interruption just before the wait is seen after it: hence not for ever. */
                if (poll(&p, 1, 200) <= 0)
                        continue;
                n = read(fd, line + length, size - 1 - length);
                if (n <= 0)
                        break;
                length += (size_t)n;
        }
        line[length] = '\0';
        return 0;
}

/* One run. Returns 0, -EINTR when interrupted, or -EIO after saying what the program did. */
static int run_program(const struct cell *cell, double *ret_ns, uint64_t *ret_errors) {
        uint64_t nr_errors;
        int fds[2], status, r, end = 0;
        char line[256];
        double ns;
        pid_t pid;

        if (pipe2(fds, O_CLOEXEC) < 0 || (pid = fork()) < 0) {
                cli_error("bench: cannot start %s: %s", program_path, strerror(errno));
                return -EIO;
        }
        if (pid == 0)
                become_program(cell, fds[1]);
        close(fds[1]);

        r = read_line(fds[0], line, sizeof(line));
        close(fds[0]);
        if (r < 0)
                kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;

        /* The terminal's ^C reaches the program as well, and may reach it first. */
        if (r < 0 || cli_interrupted)
                return -EINTR;

        /* 1 is the program's own verdict on its readings, and comes with the line. */
        if (!WIFEXITED(status)) {
                cli_error("bench: %s, %s, %s, was killed by signal %d (%s)", arg_bench,
                          cell->row->label, cell->column->label, WTERMSIG(status),
                          strsignal(WTERMSIG(status)));
                return -EIO;
        }
        if (WEXITSTATUS(status) > 1 ||
            sscanf(line, "ns_per_call=%lf errors=%" SCNu64 " %n", &ns, &nr_errors, &end) != 2 ||
            end == 0 || !(ns > 0)) {
                cli_error("bench: %s, %s, %s, exited with %d and no figures; run %s %s %" PRIu64
                          " %s to see why", arg_bench, cell->row->label, cell->column->label,
                          WEXITSTATUS(status), program_path, cell->row->argument, arg_calls,
                          cell->column->mode);
                return -EIO;
        }
        *ret_ns = ns;
        *ret_errors = nr_errors;
        return 0;
}

/* One sample: a run, under what its column attaches. Returns as run_program(). */
static int measure(const struct cell *cell, double *ret_ns, uint64_t *ret_errors) {
        const char *why;
        int r;

        if (bench_hook_attach(cell->column->hook, &why) < 0) {
                cli_error("bench: %s can no longer be attached: %s", cell->column->label, why);
                return -EIO;
        }
        r = run_program(cell, ret_ns, ret_errors);
        bench_hook_detach(cell->column->hook);
        return r;
}

static void shuffle(size_t order[], size_t n, uint64_t *seed) {
        for (size_t i = n; i > 1; i--) {
                size_t j, kept = order[i - 1];

                *seed ^= *seed << 13;
                *seed ^= *seed >> 7;
                *seed ^= *seed << 17;
                j = (size_t)(*seed % i);
                order[i - 1] = order[j];
                order[j] = kept;
        }
}

/* All rounds. Returns 0, -EINTR or -EIO; the cells have what was measured in any case. */
static int measure_all(void) {
        static size_t order[ROWS_MAX * COLUMNS_MAX];
        size_t done = 0, all = nr_cells * (arg_repeat + 1);
        struct timespec now;
        uint64_t seed;

        clock_gettime(CLOCK_REALTIME, &now);
        seed = ((uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec) | 1;
        for (size_t i = 0; i < nr_cells; i++)
                order[i] = i;

        for (uint64_t round = 0; round <= arg_repeat; round++) {
                /* The pipe's samples are compared within a row: the nearer in time the better. */
                if (arg_is_pipe)
                        for (size_t t = 0; t < nr_rows; t++)
                                shuffle(order + t * nr_columns, nr_columns, &seed);
                else
                        shuffle(order, nr_cells, &seed);
                for (size_t i = 0; i < nr_cells; i++) {
                        struct cell *cell = &cells[order[i]];
                        uint64_t nr_errors;
                        double ns;
                        int r;

                        cli_progress("%s: sample %zu of %zu%s, %s, %s", arg_bench, ++done, all,
                                     round == 0 ? " (warm-up)" : "", cell->row->label,
                                     cell->column->label);
                        r = measure(cell, &ns, &nr_errors);
                        if (r < 0) {
                                cli_progress(NULL);
                                return r;
                        }
                        cell->nr_errors += nr_errors;
                        if (round > 0)
                                cell->samples[cell->nr_samples++] = ns;
                }
        }
        cli_progress(NULL);
        return 0;
}

static const struct cell *cell_at(size_t row, size_t column) {
        return &cells[row * nr_columns + column];
}

/* The column of that label, or SIZE_MAX. */
static size_t column_of(const char *label) {
        for (size_t c = 0; c < nr_columns; c++)
                if (strcmp(columns[c].label, label) == 0)
                        return c;
        return SIZE_MAX;
}

static void print_summary(FILE *f, const struct cell *cell) {
        const struct cli_summary *s = &cell->summary;
        char interval[64];

        snprintf(interval, sizeof(interval), "%.1f .. %.1f", s->lo, s->hi);
        fprintf(f, "  %-16s %10.1f  %21s %5.1f %% %4zu", cell->column->label, s->median, interval,
                100.0 * (s->q3 - s->q1) / s->median, cell->nr_samples);
}

static void print_clocks(FILE *f) {
        size_t base = column_of("kernel");

        /* The column that the gain is told against: the kernel, where it was measured. */
        if (base == SIZE_MAX)
                base = 0;
        fprintf(f, "%s, ns per call: wall time over all calls, %" PRIu64 " calls a sample\n",
                arg_bench, arg_calls);
        fprintf(f, "%7s  %-16s %10s  %21s %7s %4s  beside %s\n", "threads", "backend", "median",
                "95 % interval", "spread", "n", columns[base].label);

        for (size_t t = 0; t < nr_rows; t++) {
                const struct cell *b = cell_at(t, base);

                for (size_t c = 0; c < nr_columns; c++) {
                        const struct cell *cell = cell_at(t, c);

                        if (cell->nr_samples == 0)
                                continue;
                        fprintf(f, "%7u", rows[t].nr_threads);
                        print_summary(f, cell);
                        if (c != base && b->nr_samples > 0 &&
                            strcmp(cell->column->label, BENCH_EMPTY) != 0)
                                fprintf(f, "  %.2f times as fast",
                                        b->summary.median / cell->summary.median);
                        fputc('\n', f);
                }
        }
        fprintf(f, "spread: interquartile range / median\n");
}

/* What CELL takes more than BASE, of 1, over the rounds that have both. False: there is none. */
static bool added(const struct cell *cell, const struct cell *base, struct cli_summary *ret_added) {
        static double ratios[CLI_SAMPLES_MAX];
        size_t n = 0;

        while (n < cell->nr_samples && n < base->nr_samples) {
                ratios[n] = cell->samples[n] / base->samples[n] - 1.0;
                n++;
        }
        if (n == 0)
                return false;
        cli_summarise(ratios, n, ret_added);
        return true;
}

static void print_pipe(FILE *f) {
        size_t floor = column_of("empty");

        fprintf(f, "%s, ns per switch: wall time over all bytes handed over, %" PRIu64 " bytes each "
                "way a sample\n", arg_bench, arg_calls);
        fprintf(f, "%8s  %-16s %10s  %21s %7s %4s  %-26s%s\n", "threads", "accounting", "median",
                "95 % interval", "spread", "n", "adds to " PIPE_BASE,
                floor != SIZE_MAX ? "  adds to empty" : "");

        for (size_t t = 0; t < nr_rows; t++) {
                for (size_t c = 0; c < nr_columns; c++) {
                        const struct cell *cell = cell_at(t, c);
                        struct cli_summary s;
                        char text[64];

                        if (cell->nr_samples == 0)
                                continue;
                        fprintf(f, "%8s", rows[t].label);
                        print_summary(f, cell);
                        if (c != 0 && added(cell, cell_at(t, 0), &s)) {
                                snprintf(text, sizeof(text), "%+.1f %% (%+.1f .. %+.1f)",
                                         100.0 * s.median, 100.0 * s.lo, 100.0 * s.hi);
                                fprintf(f, "  %-*s", floor != SIZE_MAX && c > floor ? 26 : 0, text);
                        }
                        if (c > floor && added(cell, cell_at(t, floor), &s))
                                fprintf(f, "  %+.1f %% (%+.1f .. %+.1f)", 100.0 * s.median,
                                        100.0 * s.lo, 100.0 * s.hi);
                        fputc('\n', f);
                }
        }
        fprintf(f, "spread: interquartile range / median\n"
                "adds: median, and 95 %% interval, of the ratios of samples of the same round\n");
        for (size_t i = 0; i < nr_absent; i++)
                fprintf(f, "%s is left out: %s\n", absent[i].name, absent[i].why);
}

/*
 * Column 1 is column 0 again. Compared is as the table compares: rounds for the pipe, else medians.
 */
static void print_again(FILE *f, size_t t) {
        const struct cell *a = cell_at(t, 0), *again = cell_at(t, 1);
        struct cli_summary s;

        if (a->nr_samples == 0 || again->nr_samples == 0)
                return;
        if (arg_is_pipe) {
                if (added(again, a, &s) && (s.lo > 0.0 || s.hi < 0.0))
                        fprintf(f, "A/A differs: %s, %s measured twice differs by %.1f %%: what is "
                                "added by no more\nthan that means nothing.\n", rows[t].label,
                                columns[0].label, 100.0 * s.median);
        } else if (!cli_intervals_meet(a->summary.lo, a->summary.hi, again->summary.lo,
                                       again->summary.hi)) {
                fprintf(f, "A/A differs: at N = %u, %s measured twice gave %.1f and "
                        "%.1f, and the\nintervals do not meet: differences of that size "
                        "in this row mean nothing.\n", rows[t].nr_threads, columns[0].label,
                        a->summary.median, again->summary.median);
        }
}

static void print_table(FILE *f, uint64_t nr_samples) {
        size_t fewest = SIZE_MAX;
        double covers = 1.0;

        if (arg_is_pipe)
                print_pipe(f);
        else
                print_clocks(f);
        if (nr_samples < nr_cells * arg_repeat)
                fprintf(f, "Ended early, with %" PRIu64 " of %" PRIu64 " samples.\n", nr_samples,
                        nr_cells * arg_repeat);

        for (size_t i = 0; i < nr_cells; i++) {
                if (cells[i].nr_samples == 0)
                        continue;
                if (fewest > cells[i].nr_samples)
                        fewest = cells[i].nr_samples;
                if (covers > cells[i].summary.covers)
                        covers = cells[i].summary.covers;
        }
        if (fewest < CLI_SAMPLES_FOR_95)
                fprintf(f, "Fewer than %d samples cannot give a 95 %% interval: those printed are "
                        "whole ranges,\nand the narrowest holds its median with %.1f %% only.\n",
                        CLI_SAMPLES_FOR_95, 100.0 * covers);

        for (size_t t = 0; t < nr_rows; t++)
                print_again(f, t);
        for (size_t i = 0; i < nr_cells; i++)
                if (cells[i].nr_errors > 0)
                        fprintf(f, "ERROR: %s, %s: %" PRIu64 " readings decreased\n",
                                cells[i].row->label, cells[i].column->label, cells[i].nr_errors);
}

static json_t *to_json(void) {
        json_t *results = json_array();

        for (size_t i = 0; i < nr_cells; i++) {
                const struct cell *cell = &cells[i];
                json_t *samples;

                if (cell->nr_samples == 0)
                        continue;
                samples = json_array();
                for (size_t k = 0; k < cell->nr_samples; k++)
                        json_array_append_new(samples, json_real(cell->samples[k]));
                json_array_append_new(results, json_pack(
                        "{s:s, s:s, s:i, s:s, s:o, s:f, s:f, s:f, s:I}", "bench",
                        cell->row->bench, "backend", cell->column->label, "threads",
                        (int)cell->row->nr_threads, "unit",
                        arg_is_pipe ? "ns/switch" : "ns/call", "samples", samples, "median", cell->summary.median, "lo",
                        cell->summary.lo, "hi", cell->summary.hi, "errors",
                        (json_int_t)cell->nr_errors));
        }
        return json_pack("{s:s, s:o, s:o}", "schema", BENCH_SCHEMA, "machine", cli_machine_record(),
                         "results", results);
}

/* Summaries, table, file. Returns the exit status as far as the results decide it. */
static int report(void) {
        static double sorted[CLI_SAMPLES_MAX];
        uint64_t nr_samples = 0, nr_errors = 0;

        for (size_t i = 0; i < nr_cells; i++) {
                struct cell *cell = &cells[i];

                nr_samples += cell->nr_samples;
                nr_errors += cell->nr_errors;
                if (cell->nr_samples == 0)
                        continue;
                memcpy(sorted, cell->samples, cell->nr_samples * sizeof(*sorted));
                cli_summarise(sorted, cell->nr_samples, &cell->summary);
        }
        if (nr_samples == 0) {
                cli_error("bench: ended before the first sample after the warm-up: no results%s",
                          arg_json ? ", no file written" : "");
        } else {
                print_table(arg_json && strcmp(arg_json, "-") == 0 ? stderr : stdout, nr_samples);
                if (arg_json) {
                        json_t *value = to_json();
                        int r = cli_json_write(arg_json, value);

                        json_decref(value);
                        if (r < 0)
                                return CLI_EXIT_FAILED;
                }
        }
        if (nr_errors > 0)
                cli_error("bench: %" PRIu64 " readings decreased; run `cputime verify`", nr_errors);
        return nr_errors > 0 ? CLI_EXIT_FAILED : 0;
}

int cmd_bench(int argc, char *argv[]) {
        int r, status;

        r = parse(argc, argv);
        if (r == 0)
                r = find_program();
        if (r == 0)
                r = lay_out();
        if (r != 0)
                return r;

        cli_catch_interrupts();
        r = measure_all();
        status = report();
        bench_hook_done();

        for (size_t i = 0; i < nr_cells; i++)
                free(cells[i].samples);
        if (status != 0)
                return status;
        if (r == -EINTR)
                return EXIT_INTERRUPTED;
        return r < 0 ? CLI_EXIT_FAILED : 0;
}
