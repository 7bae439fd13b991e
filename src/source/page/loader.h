/* SPDX-License-Identifier: MIT */
#ifndef CT_LOADER_H
#define CT_LOADER_H
/*
 * Loads and attaches the page's program, and enrols processes in it. For whoever has the
 * privilege: cputimed, and `cputime run` as root. Links libbpf.
 *
 * The program stays attached as long as anybody holds the links' descriptors, whatever becomes of
 * the loader: ct_loader_links() gives them, to be passed to clients, so that a client's page
 * outlives a daemon that is killed.
 *
 * Not thread-safe: one loader belongs to one thread.
 */
#include <stdint.h>
#include <sys/types.h>

struct ct_loader;

/* sched_switch, hrtimer_expire_exit, task_newtask */
#define CT_LOADER_LINKS 3

/* What a client gets: the region's descriptor, read-only, its own to close, and how to map it. */
struct ct_region_info {
        int map_fd;
        uint32_t region;        /* for ct_loader_release() */
        uint32_t generation;
        uint32_t entries;
        uint64_t size;          /* bytes to map */
};

/*
 * Loads and attaches. Needs CAP_BPF and CAP_PERFMON in the initial user namespace. Returns 0, or
 *   -EPERM          without them; or the kernel is locked down
 *   -EOPNOTSUPP     not in the initial pid namespace, in which alone process ids are the kernel's
 *   -ENOENT -EINVAL -ENOSYS -ESRCH  this kernel is too old or was built without what it takes
 *   -ENOMEM
 * On failure *ret_step is what failed, a static string.
 */
int ct_loader_open(struct ct_loader **ret_loader, const char **ret_step);

/* Detaches, unless clients hold the links. NULL is fine. */
void ct_loader_close(struct ct_loader *loader);

/*
 * Enrols the process TGID, with room for as many threads again as it has, CT_PAGE_THREADS_MAX at
 * most. It is served from a tick later on. An earlier enrolment of the process is replaced; its
 * region stays as it is and has to be released all the same. Returns 0, or
 *   -ESRCH          no such process
 *   -E2BIG          it has too many threads
 *   -ENOSPC         CT_PAGE_REGIONS_MAX processes are enrolled
 *   -EAGAIN         its threads were switched while they were looked at, several times over
 *   -ENOMEM, or what bpf(2) gave
 */
int ct_loader_enrol(struct ct_loader *loader, pid_t tgid, struct ct_region_info *ret_info);

/* Ends an enrolment. The client's mapping stays as it is, without news from now on. */
void ct_loader_release(struct ct_loader *loader, uint32_t region);

/* The descriptors that keep the program attached; they remain the loader's. */
void ct_loader_links(const struct ct_loader *loader, int ret_fds[CT_LOADER_LINKS]);

#endif /* CT_LOADER_H */
