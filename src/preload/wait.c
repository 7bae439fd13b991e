/* SPDX-License-Identifier: MIT */
/*
 * wait() and its kin, system() and pclose(): libc's own, and then the children's times that times()
 * remembers are forgotten.
 *
 * Nothing else changes: arguments, result, errno and the cancellation points are libc's, called
 * through the next definition of the same name. It is looked up when the library is loaded, since
 * waitpid() is called from SIGCHLD handlers and the look-up is not made for that; a constructor
 * that ran before ours has it looked up on the spot.
 *
 * Forgetting is cheap, so it is done whatever the result was. A thread that is cancelled inside
 * one of these, after its child was reaped, leaves that child's time to show at the next tick.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "preload/preload.h"

#define CT_NEXT(name) static _Atomic(__typeof__(&name)) ct_next_##name

CT_NEXT(wait);
CT_NEXT(waitpid);
CT_NEXT(wait3);
CT_NEXT(wait4);
CT_NEXT(waitid);
CT_NEXT(system);
CT_NEXT(pclose);

/* Everybody finds the same, so it does not matter who stores it. */
#define CT_LOOK_UP(name)                                                                        \
        atomic_store_explicit(&ct_next_##name, (__typeof__(&name))dlsym(RTLD_NEXT, #name),      \
                              memory_order_release)

static __attribute__((constructor)) void ct_wait_look_up(void) {
        CT_LOOK_UP(wait);
        CT_LOOK_UP(waitpid);
        CT_LOOK_UP(wait3);
        CT_LOOK_UP(wait4);
        CT_LOOK_UP(waitid);
        CT_LOOK_UP(system);
        CT_LOOK_UP(pclose);
}

#define CT_WRAP(type, name, parameters, arguments)                                              \
        CT_EXPORT type name parameters {                                                        \
                __typeof__(&name) next = atomic_load_explicit(&ct_next_##name,                  \
                                                              memory_order_acquire);            \
                type result;                                                                    \
                                                                                                \
                if (__builtin_expect(!next, 0)) {                                               \
                        ct_wait_look_up();                                                      \
                        next = atomic_load_explicit(&ct_next_##name, memory_order_acquire);     \
                        if (!next) {                                                            \
                                errno = ENOSYS;                                                 \
                                return -1;                                                      \
                        }                                                                       \
                }                                                                               \
                result = next arguments;                                                        \
                ct_times_invalidate();                                                          \
                return result;                                                                  \
        }

CT_WRAP(pid_t, wait, (int *ret_status), (ret_status))
CT_WRAP(pid_t, waitpid, (pid_t pid, int *ret_status, int options), (pid, ret_status, options))
CT_WRAP(pid_t, wait3, (int *ret_status, int options, struct rusage *ret_usage),
        (ret_status, options, ret_usage))
CT_WRAP(pid_t, wait4, (pid_t pid, int *ret_status, int options, struct rusage *ret_usage),
        (pid, ret_status, options, ret_usage))
CT_WRAP(int, waitid, (idtype_t type, id_t id, siginfo_t *ret_info, int options),
        (type, id, ret_info, options))
CT_WRAP(int, system, (const char *command), (command))
CT_WRAP(int, pclose, (FILE *stream), (stream))

/* libc's other names for two of them. */
CT_EXPORT pid_t __wait(int *ret_status) __attribute__((alias("wait")));
CT_EXPORT pid_t __waitpid(pid_t pid, int *ret_status, int options)
        __attribute__((alias("waitpid")));
