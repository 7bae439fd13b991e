/* SPDX-License-Identifier: MIT */
#ifndef CT_SANDBOX_H
#define CT_SANDBOX_H
/* What cputimed gives up before it talks to anybody. */

/*
 * Leaves CAP_BPF and CAP_PERFMON, and nothing else; started as root becomes USER if there is such a
 * user, *ret_user telling so. For good: no_new_privs. Returns 0, or
 *   -EPERM     the two are not there to be kept
 *   or what the kernel, or the user database, gave
 */
int ct_sandbox_drop(const char *user, const char **ret_user);

/*
 * Only the system calls of src/daemon, and of libbpf for it, from now on; all others fail with
 * ENOSYS, as on a kernel that has not got them. Returns 0 or -errno.
 */
int ct_sandbox_filter(void);

#endif /* CT_SANDBOX_H */
