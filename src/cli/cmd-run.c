/* SPDX-License-Identifier: MIT */
/*
 * cputime run: starts a program with the drop-in in front of libc.
 *
 * It becomes the program, as env(1) does: the same process, exit status, signals and descriptors,
 * and nothing of ours is left but environment variables. LD_PRELOAD names the drop-in before
 * whatever it held, CPUTIME_BACKEND and CPUTIME_VERBOSE are how the drop-in, which has no command
 * line, learns what was asked for, CPUTIME_SOCKET is where it finds the server that root starts
 * for the page (page-server.h). The program's children inherit them all.
 *
 * The dynamic loader ignores LD_PRELOAD where it must (another user's authority) and never runs for
 * a static program. Neither is an error, since the program still works, with the kernel's clocks;
 * --verbose says so, because the statistics that the user expects will then not appear.
 *
 *      exit status     125     the drop-in is missing or cannot be named in LD_PRELOAD
 *                      126     CMD was found and cannot be executed
 *                      127     CMD was not found
 *                      2       unusable options
 *                      else    CMD's own
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/page-server.h"
#include "cputime/clock.h"

/* As env(1) and others have it. */
#define EXIT_CANCELED 125
#define EXIT_CANNOT_INVOKE 126
#define EXIT_ENOENT 127

/* The kernel follows as many "#!" lines before it gives up. */
#define INTERPRETERS_MAX 5

static void help(void) {
        printf("Usage: cputime run [OPTIONS] [--] CMD [ARGUMENTS]\n"
               "\n"
               "Runs CMD with clock_gettime() on CPU clocks, clock() and times() answered in user\n"
               "space wherever that is sure to be right; CMD need not be rebuilt.\n"
               "\n"
               "  --backend B   auto (the default), page, ring, header, or syscall: who answers\n"
               "  --verbose     at CMD's exit, on stderr: how many reads each backend served, and\n"
               "                why any fell back to the kernel\n"
               "  --help        this text\n"
               "\n"
               "As root it brings the BPF program of the page backend itself, for CMD and what CMD\n"
               "starts; other users have that where cputimed runs.\n"
               "\n"
               "Examples:\n"
               "  cputime run -- postgres -D data\n"
               "  cputime run --verbose -- ./prog --its-own-options\n"
               "  cputime run --backend ring -- ./prog   enrol each thread at its first read\n"
               "  perf stat cputime run -- ./prog        it becomes prog: wrap it as you wish\n"
               "\n"
               "Exit status: CMD's own; 127 CMD not found, 126 found but not executable, 125 the\n"
               "drop-in cannot be used, 2 unusable options.\n");
}

/* Where execvp() will find NAME; false if nowhere, or if that is beyond PATH_MAX. */
static bool find_program(const char *name, char ret_path[PATH_MAX]) {
        const char *directory = getenv("PATH");
        struct stat st;

        if (strchr(name, '/'))
                return snprintf(ret_path, PATH_MAX, "%s", name) < PATH_MAX;

        /* execvp()'s own default; an empty entry is the working directory. */
        for (directory = directory ? directory : "/bin:/usr/bin";;) {
                int length = (int)strcspn(directory, ":");

                if (snprintf(ret_path, PATH_MAX, "%.*s%s%s", length, directory, length ? "/" : "",
                             name) < PATH_MAX &&
                    access(ret_path, X_OK) == 0 && stat(ret_path, &st) == 0 && S_ISREG(st.st_mode))
                        return true;
                if (!directory[length])
                        return false;
                directory += length + 1;
        }
}

/* NULL: the loader will read LD_PRELOAD for this ELF file, or it cannot be told. */
static const char *why_not_elf(int fd) {
        ElfW(Ehdr) header;
        ElfW(Phdr) segment;

        if (pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header) ||
            memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
                return NULL;
        if (header.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32))
                return "has another word size than the drop-in";
        if (header.e_phentsize != sizeof(segment))
                return NULL;

        for (unsigned int i = 0; i < header.e_phnum; i++) {
                off_t offset = (off_t)(header.e_phoff + i * sizeof(segment));

                if (pread(fd, &segment, sizeof(segment), offset) != (ssize_t)sizeof(segment))
                        return NULL;
                if (segment.p_type == PT_INTERP)
                        return NULL;
        }
        return "is statically linked";
}

/* A script runs under the program that its first line names: that one counts. */
static bool interpreter(int fd, char ret_path[PATH_MAX]) {
        char line[PATH_MAX + 1];
        ssize_t n = pread(fd, line, sizeof(line) - 1, 0);
        char *begin;

        if (n < 2 || line[0] != '#' || line[1] != '!')
                return false;
        line[n] = '\0';
        begin = line + 2 + strspn(line + 2, " \t");
        begin[strcspn(begin, " \t\n")] = '\0';
        strcpy(ret_path, begin);
        return true;
}

static void warn_if_in_vain(const char *name) {
        char path[PATH_MAX];
        const char *why = NULL;

        if (!find_program(name, path))
                return;

        for (unsigned int i = 0; i < INTERPRETERS_MAX; i++) {
                int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
                struct stat st;
                bool again;

                if (fd < 0)
                        return;
                again = interpreter(fd, path);
                if (!again) {
                        why = why_not_elf(fd);
                        /* What makes the kernel set AT_SECURE, which makes the loader careful. */
                        if (!why && fstat(fd, &st) == 0 &&
                            (((st.st_mode & S_ISUID) && st.st_uid != getuid()) ||
                             ((st.st_mode & S_ISGID) && st.st_gid != getgid())))
                                why = "is setuid or setgid";
                        else if (!why && getuid() != 0 &&
                                 fgetxattr(fd, "security.capability", NULL, 0) > 0)
                                why = "has file capabilities";
                }
                (void)close(fd);
                if (!again)
                        break;
        }

        if (why)
                cli_error("'%s' %s: the drop-in cannot act in it, its CPU clocks stay the kernel's "
                          "and no statistics will follow", path, why);
}

static int set_environment(const char *backend, bool verbose) {
        const char *preload = cli_preload_path();
        const char *old = getenv("LD_PRELOAD");
        char *value;

        if (!preload) {
                cli_error("the drop-in libcputime-preload.so is neither beside this program nor "
                          "where it was to be installed; build or install it (`make`)");
                return -ENOENT;
        }

        /* The loader takes both for separators and knows no way to quote them. */
        if (strpbrk(preload, " :")) {
                cli_error("the drop-in's path '%s' has a blank or a colon in it, which LD_PRELOAD "
                          "cannot name; move the build tree or install to another prefix", preload);
                return -EINVAL;
        }

        if (asprintf(&value, "%s%s%s", preload, old && *old ? ":" : "", old ? old : "") < 0 ||
            setenv("LD_PRELOAD", value, 1) < 0 ||
            (backend && setenv("CPUTIME_BACKEND", backend, 1) < 0) ||
            (verbose && setenv("CPUTIME_VERBOSE", "1", 1) < 0)) {
                cli_error("cannot prepare the environment: %s", strerror(errno));
                return -ENOMEM;
        }
        free(value);
        return 0;
}

int cmd_run(int argc, char *argv[]) {
        static const struct option options[] = {
                { "backend", required_argument, NULL, 'b' },
                { "verbose", no_argument, NULL, 'v' },
                { "help", no_argument, NULL, 'h' },
                {},
        };
        const char *arg_backend = NULL;
        enum cputime_backend backend = CPUTIME_BACKEND_AUTO;
        bool arg_verbose = false;
        char path[PATH_MAX];
        const char *step;
        int option, error;

        /* '+': everything from CMD on is CMD's. */
        while ((option = cli_getopt(argc, argv, "+b:vh", options)) != -1) {
                switch (option) {
                case 'b':
                        if (cputime_backend_from_name(optarg, &backend) < 0)
                                return cli_usage("unknown backend '%s'; there are auto, page, "
                                                 "ring, header and syscall", optarg);
                        arg_backend = optarg;
                        break;
                case 'v':
                        arg_verbose = true;
                        break;
                case 'h':
                        help();
                        return 0;
                default:
                        return CLI_EXIT_USAGE;
                }
        }
        argv += optind;

        if (!argv[0])
                return cli_usage("no command to run; `cputime run -- CMD [ARGUMENTS]`");

        if (set_environment(arg_backend, arg_verbose) < 0)
                return EXIT_CANCELED;

        if (arg_verbose)
                warn_if_in_vain(argv[0]);

        /* Who asks for the page wants it from the first read on; else it comes when it comes. */
        if (backend == CPUTIME_BACKEND_AUTO || backend == CPUTIME_BACKEND_PAGE) {
                error = page_server_start(backend == CPUTIME_BACKEND_PAGE, &step);
                if (error < 0 && arg_verbose)
                        cli_error("no page: %s: %s", step, strerror(-error));
        }

        (void)execvp(argv[0], argv);
        error = errno;

        if (error == ENOENT && find_program(argv[0], path) && access(path, F_OK) == 0)
                cli_error("cannot run '%s': the interpreter or loader that it names is missing",
                          path);
        else
                cli_error("cannot run '%s': %s", argv[0], strerror(error));
        return error == ENOENT ? EXIT_ENOENT : EXIT_CANNOT_INVOKE;
}
