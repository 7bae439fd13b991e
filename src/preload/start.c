/* SPDX-License-Identifier: MIT */
/*
 * What the environment may ask of the drop-in.
 *
 *   CPUTIME_BACKEND=NAME   forces a backend; without it the library chooses. A name that does not
 *                          exist costs a line on stderr, never the program.
 *   CPUTIME_VERBOSE=1      one report per process on stderr, at exit, if it read a clock. A process
 *                          that ends by _exit(2), a signal or exec does not come by here and
 *                          reports nothing.
 *
 * Without these the constructor makes no system call and prints nothing. LD_PRELOAD and both
 * variables are inherited, so programs that the program starts are treated alike.
 *
 * The report goes to descriptor 2 with write(2): no stream of the program's is flushed, locked or
 * found closed. A program may have put something else in that place since, a data file even, so it
 * is written only if descriptor 2 still is the file that it was at the start.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock/self.h"
#include "cputime/clock.h"
#include "preload/preload.h"

_Static_assert(offsetof(struct ct_self, slot) == CT_SELF_SLOT &&
               offsetof(struct ct_self, vforked) == CT_SELF_VFORKED &&
               (sizeof(void *) != 8 || (CT_SELF_SLOT == 0 && CT_SELF_VFORKED == 8)),
               "vfork-x86-64.S knows these offsets");

bool ct_preload_verbose;
static dev_t ct_stderr_dev;
static ino_t ct_stderr_ino;

static void ct_say(const char *text) {
        size_t size = strlen(text);
        int saved_errno = errno;

        while (size > 0) {
                ssize_t n = write(STDERR_FILENO, text, size);

                if (n < 0 && errno != EINTR)
                        break;
                if (n > 0) {
                        text += n;
                        size -= (size_t)n;
                }
        }
        errno = saved_errno;
}

static void ct_start_backend(const char *name) {
        enum cputime_backend backend;
        char text[256];

        if (cputime_backend_from_name(name, &backend) < 0) {
                (void)snprintf(text, sizeof(text),
                               "cputime: CPUTIME_BACKEND=%.100s is no backend (auto, syscall, "
                               "ring, header, page): going on with auto\n", name);
                ct_say(text);
        } else {
                (void)cputime_backend_set(backend);
        }
}

static __attribute__((constructor)) void ct_start(void) {
        const char *backend = getenv("CPUTIME_BACKEND"), *verbose = getenv("CPUTIME_VERBOSE");
        struct stat st;

        if (backend && *backend)
                ct_start_backend(backend);
        if (verbose && strcmp(verbose, "1") == 0 && fstat(STDERR_FILENO, &st) == 0) {
                ct_stderr_dev = st.st_dev;
                ct_stderr_ino = st.st_ino;
                ct_preload_verbose = true;
        }
}

static __attribute__((destructor)) void ct_end(void) {
        struct ct_process_page *page;
        struct cputime_stats stats;
        uint64_t n_reads = 0;
        struct stat st;
        char text[1024];
        int n;

        if (!ct_preload_verbose || ct_self.vforked || fstat(STDERR_FILENO, &st) < 0 ||
            st.st_dev != ct_stderr_dev || st.st_ino != ct_stderr_ino)
                return;

        cputime_stats_read(&stats);
        page = ct_process_page_peek();
        for (unsigned int b = 0; b < CPUTIME_BACKEND_MAX; b++)
                n_reads += stats.reads[b];
        if (page)
                n_reads += atomic_load(&page->n_times_cached) + atomic_load(&page->n_times_asked);
        if (n_reads == 0)
                return;
        n = snprintf(text, sizeof(text),
                     "cputime: process %d: reads: %llu page, %llu ring, %llu header, "
                     "%llu syscall\n"
                     "cputime: process %d: %llu anchors, %llu enrolments, %llu retreats, "
                     "%llu refusals",
                     (int)getpid(), (unsigned long long)stats.reads[CPUTIME_BACKEND_PAGE],
                     (unsigned long long)stats.reads[CPUTIME_BACKEND_RING],
                     (unsigned long long)stats.reads[CPUTIME_BACKEND_HEADER],
                     (unsigned long long)stats.reads[CPUTIME_BACKEND_SYSCALL], (int)getpid(),
                     (unsigned long long)stats.anchors, (unsigned long long)stats.enrolments,
                     (unsigned long long)stats.retreats, (unsigned long long)stats.refusals);
        if (stats.refusals > 0) {
                const char *name = strerrorname_np(stats.refusal_error);

                n += snprintf(text + n, sizeof(text) - (size_t)n, " (last: %s at %s)",
                              name ? name : "unknown error", stats.refusal_step);
        }
        (void)snprintf(text + n, sizeof(text) - (size_t)n,
                       "\ncputime: process %d: times(): %llu remembered, %llu asked of the "
                       "kernel\n", (int)getpid(),
                       (unsigned long long)(page ? atomic_load(&page->n_times_cached) : 0),
                       (unsigned long long)(page ? atomic_load(&page->n_times_asked) : 0));
        ct_say(text);
}
