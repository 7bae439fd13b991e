/* SPDX-License-Identifier: MIT */
#ifndef CT_SANDBOX_H
#define CT_SANDBOX_H
/*
 * Seccomp filters that take system calls away, or count them, on any kernel and as any user. They
 * cannot be removed: install them in a forked child. All of a process' threads are put under them.
 *
 * A call that carries SANDBOX_COOKIE in its sixth argument, which calls of up to five arguments do
 * not look at, is never refused nor counted: that is how the tests themselves still get at the
 * kernel.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SANDBOX_COOKIE 0x0c0de715L

/* A call of up to five arguments that no filter touches; returns as syscall(2), errno untouched. */
long allowed_syscall(long number, long a, long b, long c, long d, long e);

enum sandbox_when {
        SANDBOX_ALWAYS,
        SANDBOX_WITH_FD,        /* the fifth argument is not -1: mmap of a file */
};

struct sandbox_rule {
        long number;
        int error;              /* the errno it fails with; 0: the process is killed */
        enum sandbox_when when;
};

/* Each returns false where the kernel or the architecture does not support it. */
bool sandbox_refuse(const struct sandbox_rule *rules, unsigned n_rules);
/* Refuses, with ERROR, whatever is not needed to read clocks the slow way and to report. */
bool sandbox_refuse_nearly_everything(int error);
bool sandbox_count(void);

/* System calls since sandbox_count(), by number; what is beyond goes to the last. */
#define SANDBOX_NUMBERS 512
extern _Atomic uint64_t sandbox_calls[SANDBOX_NUMBERS];

#endif /* CT_SANDBOX_H */
