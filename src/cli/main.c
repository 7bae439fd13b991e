/* SPDX-License-Identifier: MIT */
/*
 * The cputime program: finds the verb and hands over.
 *
 * A verb is one file cmd-NAME.c with cmd_NAME(), one line in the table below and one in
 * src/meson.build. It answers its own --help, on stdout with exit status 0, because the options are
 * known best where they are parsed; `cputime help VERB` is the same call.
 *
 * What a verb prints on stdout is flushed and checked here, once: a full disk behind a redirection
 * must not pass for success.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli-config.h"
#include "cli/cli.h"

struct verb {
        const char *name;
        int (*run)(int argc, char *argv[]);
        const char *summary;
};

/* In the order in which a newcomer needs them. New verbs: add the line here. */
static const struct verb verbs[] = {
        { "doctor", cmd_doctor, "what this machine offers, what a read costs, what would help" },
        { "run", cmd_run, "run a program with CPU clocks that need no system call" },
        { "verify", cmd_verify, "whether the clocks agree with the kernel's on this machine" },
        { "bench", cmd_bench, "what reading CPU clocks costs, the kernel's beside cputime's" },
        { "compare", cmd_compare, "what changed between two such measurements" },
};

static const struct verb *verb_find(const char *name) {
        for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
                if (strcmp(verbs[i].name, name) == 0)
                        return &verbs[i];
        return NULL;
}

static void help(void) {
        printf("cputime - CPU clocks of threads and processes, read without system calls\n"
               "\n"
               "Usage: cputime COMMAND [OPTIONS] [ARGUMENTS]\n"
               "       cputime help COMMAND\n"
               "\n"
               "Commands:\n");
        for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
                printf("  %-9s %s\n", verbs[i].name, verbs[i].summary);
        printf("\n"
               "Examples, in the order in which to try them:\n"
               "  cputime doctor                    is there a fast clock here, and how fast?\n"
               "  cputime run -- ./prog             prog's clock_gettime() on CPU clocks, clock()\n"
               "                                    and times() answered in user space\n"
               "  cputime run --verbose -- ./prog   the same, and at its exit who answered\n"
               "  cputime run --backend syscall -- ./prog\n"
               "                                    the kernel's own answers, to compare with\n"
               "  cputime verify                    do the clocks agree with the kernel's here?\n"
               "  cputime bench thread_read --threads 1\n"
               "                                    what do they buy?\n"
               "\n"
               "Exit status: 0 done, 1 what was measured did not hold, 2 unusable arguments or\n"
               "input; `cputime run` passes on the program's own.\n"
               "\n"
               "More: `cputime help COMMAND`, cputime(1).\n");
}

static int dispatch(int argc, char *argv[]) {
        const struct verb *verb;
        const char *name = argc > 1 ? argv[1] : NULL;

        if (!name)
                return cli_usage("no command given; `cputime --help` lists them");

        if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
                printf("cputime %s\n", CLI_VERSION);
                return 0;
        }

        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 ||
            (strcmp(name, "help") == 0 && argc == 2)) {
                help();
                return 0;
        }

        if (strcmp(name, "help") == 0) {
                char help_option[] = "--help";
                char *help_argv[] = { argv[2], help_option, NULL };

                if (argc > 3)
                        return cli_usage("'%s' is one argument too many: `cputime help COMMAND`",
                                         argv[3]);
                verb = verb_find(argv[2]);
                if (!verb)
                        return cli_usage("unknown command '%s'; `cputime --help` lists them",
                                         argv[2]);
                return verb->run(2, help_argv);
        }

        verb = verb_find(name);
        if (verb)
                return verb->run(argc - 1, argv + 1);

        return cli_usage("unknown %s '%s'; `cputime --help` lists the commands",
                         name[0] == '-' ? "option" : "command", name);
}

int main(int argc, char *argv[]) {
        int status = dispatch(argc, argv);

        if (fflush(stdout) != 0 || ferror(stdout)) {
                cli_error("cannot write to stdout: %s", strerror(errno));
                if (status == 0)
                        status = CLI_EXIT_FAILED;
        }
        return status;
}
