/* SPDX-License-Identifier: MIT */
/*
 * Why a backend works here or does not: tries it, and says what the kernel's answer means.
 *
 * The same calls as enrolment makes, on the calling thread, so that there is no second opinion.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "clock/clock.h"
#include "source/perf/perf-map.h"

struct ct_verdict {
        const char *step;
        int error;
        const char *meaning;
        const char *remedy;
};

static const struct ct_verdict ct_verdicts[] = {
        { "perf_event_open", EACCES,
          "perf events on own threads are not allowed to this user (perf_event_paranoid above 2)",
          "sysctl kernel.perf_event_paranoid=2, or run with CAP_PERFMON" },
        { "perf_event_open", EPERM,
          "perf events are forbidden here: by a seccomp filter, a security module or a container",
          "allow perf_event_open(2) in the sandbox's profile, or run with CAP_PERFMON" },
        { "perf_event_open", ENOSYS,
          "this kernel has no perf events, or a sandbox hides them",
          "a kernel with CONFIG_PERF_EVENTS" },
        { "perf_event_open", EMFILE,
          "no free file descriptor: one is needed for an instant",
          "raise the limit of open files (ulimit -n) by one" },
        { "perf_event_open", ENFILE,
          "the machine has no free file descriptor",
          "sysctl fs.file-max" },
        { "perf_event_open", EINVAL,
          "this kernel is too old for switch records (Linux 4.3)",
          "a newer kernel" },
        { "perf_event_open", ENOMEM, "the kernel has no memory for the event", "free memory" },
        { "mmap", EPERM,
          "the locked-memory quota for perf buffers is used up, by this or another program of the user",
          "raise kernel.perf_event_mlock_kb or the limit of locked memory (ulimit -l)" },
        { "mmap", ENOMEM,
          "no address space left for the perf page",
          "raise the limit of address space (ulimit -v)" },
        { "madvise", EINVAL,
          "this kernel cannot wipe memory in a forked child (MADV_WIPEONFORK, Linux 4.14)",
          "a newer kernel" },
        { "pointers", EOPNOTSUPP,
          "fast clocks need a 64-bit program",
          "build for a 64-bit target" },
};

static void ct_verdict_find(const char *step, int error, struct cputime_probe *ret_probe) {
        ret_probe->step = step;
        ret_probe->error = error;
        ret_probe->meaning = "the kernel refused";
        ret_probe->remedy = "";
        for (size_t i = 0; i < sizeof(ct_verdicts) / sizeof(ct_verdicts[0]); i++) {
                if (ct_verdicts[i].error == error && strcmp(ct_verdicts[i].step, step) == 0) {
                        ret_probe->meaning = ct_verdicts[i].meaning;
                        ret_probe->remedy = ct_verdicts[i].remedy;
                }
        }
}

/* Whether fork can be survived: without it there is no fast clock at all. */
static int ct_probe_wipe(void) {
        size_t size = ct_perf_page_size();
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int r = 0;

        if (p == MAP_FAILED)
                return -errno;
        if (madvise(p, size, MADV_WIPEONFORK) < 0)
                r = -errno;
        (void)munmap(p, size);
        return r;
}

__attribute__((visibility("default")))
int cputime_backend_probe(enum cputime_backend backend, struct cputime_probe *ret_probe) {
        struct cputime_probe usable = { .step = "", .meaning = "usable", .remedy = "" };
        enum ct_perf_kind kind;
        const char *step = "";
        void *address;
        int r;

        switch (backend) {
        case CPUTIME_BACKEND_SYSCALL:
                *ret_probe = usable;
                return 0;
        case CPUTIME_BACKEND_RING:
                kind = CT_PERF_RING;
                break;
        case CPUTIME_BACKEND_HEADER:
                kind = CT_PERF_HEADER;
                break;
        default:
                return -EINVAL;
        }

        if (!CT_FAST_CLOCKS) {
                ct_verdict_find("pointers", EOPNOTSUPP, ret_probe);
                return 0;
        }
        r = ct_probe_wipe();
        if (r < 0) {
                ct_verdict_find("madvise", -r, ret_probe);
                return 0;
        }
        r = ct_perf_map(kind, 0, NULL, &address, &step);
        if (r < 0) {
                ct_verdict_find(step, -r, ret_probe);
                return 0;
        }
        ct_perf_unmap(kind, address);
        *ret_probe = usable;
        return 0;
}
