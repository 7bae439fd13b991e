/* SPDX-License-Identifier: MIT */
/*
 * verify_catches_a_wrong_clock: cputime verify, linked with clocks that lie (liar-clock.h), must
 * fail each of them for the reason that it is wrong for, and pass the one that is right.
 *
 * Five seconds, the shortest that the command allows, are enough for most.
 */
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../check.h"
#include "cli/cli.h"
#include "liar-clock.h"

static const struct {
        enum liar liar;
        const char *name;
        const char *seconds;
        const char *phase;      /* where it must show, NULL: no matter; and ... */
        const char *failure;    /* ... part of how; NULL: it must pass */
} liars[] = {
        { LIAR_HONEST, "honest", "5", NULL, NULL },
        { LIAR_LAGS, "lags", "5", "busy", "the thread clock was beyond the bound" },
        { LIAR_RUNS_AHEAD, "runs ahead", "5", "busy", "the process clock was beyond the bound" },
        { LIAR_DRIFTS, "drifts", "5", "ping_pong", " clock drifts by" },
        { LIAR_DRIFTS_SLOWLY, "drifts slowly", "5", "ping_pong", " clock drifts by" },
        { LIAR_STEPS_BACK, "steps back", "5", "busy", "the thread clock went backwards" },
        { LIAR_UNCOVERED, "uncovered", "5", "idle", "the process clock was behind its threads" },
        { LIAR_ADDS_UP_READS, "adds up reads", "5", "threads",
          "the process clock was beyond the bound" },
        { LIAR_CRASHES, "crashes", "5", "idle", "the phase was killed by signal 6" },
};

/* Runs verify as a program of its own; the JSON lands in PATH. Returns the exit status. */
static int run_verify(enum liar which, const char *seconds, const char *path) {
        char *argv[] = { (char *)"verify", (char *)"--seconds", (char *)seconds, (char *)"--json",
                         (char *)path, NULL };
        int status;
        pid_t pid = fork();

        CHECK(pid >= 0, "cannot fork");
        if (pid == 0) {
                int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

                (void)dup2(null, STDOUT_FILENO);
                liar = which;
                exit(cmd_verify(5, argv));
        }
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "wait status %#x", status);
        return WEXITSTATUS(status);
}

static bool has_failure(const json_t *report, const char *phase, const char *part) {
        size_t i, k;
        json_t *p, *failure;

        json_array_foreach(json_object_get(report, "phases"), i, p) {
                if (phase && strcmp(json_string_value(json_object_get(p, "phase")), phase) != 0)
                        continue;
                json_array_foreach(json_object_get(p, "failures"), k, failure)
                        if (strstr(json_string_value(failure), part))
                                return true;
        }
        return false;
}

/* With an argument: only the liar of that name. */
int main(int argc, char *argv[]) {
        char path[] = "/tmp/test-verify-liar-XXXXXX";
        int fd = mkstemp(path);

        CHECK(fd >= 0, "cannot make %s", path);
        (void)close(fd);
        for (size_t i = 0; i < sizeof(liars) / sizeof(liars[0]); i++) {
                int status, expected = liars[i].failure ? CLI_EXIT_FAILED : 0;
                json_t *report;

                if (argc > 1 && strcmp(argv[1], liars[i].name) != 0)
                        continue;
                status = run_verify(liars[i].liar, liars[i].seconds, path);
                report = json_load_file(path, 0, NULL);
                CHECK(report, "%s: no JSON", liars[i].name);
                if (status != expected ||
                    (liars[i].failure && !has_failure(report, liars[i].phase, liars[i].failure)))
                        (void)json_dumpf(json_object_get(report, "phases"), stderr, JSON_INDENT(1));
                CHECK(status == expected, "%s: status %d", liars[i].name, status);
                CHECK(!liars[i].failure ||
                              has_failure(report, liars[i].phase, liars[i].failure),
                      "%s: phase %s does not say \"%s\"", liars[i].name, liars[i].phase ?: "any",
                      liars[i].failure);
                fprintf(stderr, "%s: as it should be\n", liars[i].name);
                json_decref(report);
        }
        (void)unlink(path);
        return 0;
}
