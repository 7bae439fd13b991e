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
 * Processes are enrolled many at a time: putting a region where the program finds it, or taking it
 * away, waits for an RCU grace period in the kernel, 8 to 20 ms, and it is the same one for all.
 *
 * Not thread-safe: one loader belongs to one thread.
 */
#include <stdint.h>
#include <sys/types.h>

struct ct_loader;

/* sched_switch, hrtimer_expire_exit, task_newtask */
#define CT_LOADER_LINKS 3

/* Enrolments in one call, at most. */
#define CT_LOADER_BATCH 64

/* What a client gets: the region's descriptor, read-only, its own to close, and how to map it. */
struct ct_region_info {
        int map_fd;
        uint32_t region;        /* for ct_loader_release() */
        uint32_t map_id;        /* the kernel's */
        uint32_t generation;
        uint32_t entries;
        uint64_t size;          /* bytes to map */
};

/* One process to be enrolled, and what came of it: info is only there if error is 0. */
struct ct_enrolment {
        pid_t tgid;
        int error;
        struct ct_region_info info;
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
 * Enrols N processes, CT_LOADER_BATCH at most, each with room for as many threads again as it has,
 * CT_PAGE_THREADS_MAX at most. They are served from a tick later on. An earlier enrolment of a
 * process is replaced; its region stays as it is and has to be released all the same. Each error is
 * 0 or
 *   -ESRCH          no such process
 *   -E2BIG          it has too many threads, or the machine too many CPUs
 *   -ENOSPC         CT_PAGE_REGIONS_MAX processes are enrolled
 *   -EAGAIN         its threads were switched while they were looked at: try again
 *   -ENOMEM, or what bpf(2) gave
 */
void ct_loader_enrol(struct ct_loader *loader, struct ct_enrolment *enrolments, unsigned int n);

/*
 * Ends an enrolment. The client's mapping stays as it is, without news from the next
 * ct_loader_enrol() or ct_loader_flush() on.
 */
void ct_loader_release(struct ct_loader *loader, uint32_t region);
void ct_loader_flush(struct ct_loader *loader);

/* The descriptors that keep the program attached; they remain the loader's. */
void ct_loader_links(const struct ct_loader *loader, int ret_fds[CT_LOADER_LINKS]);

/* The kernel's id of the program's table of regions, which exists as long as the program does. */
uint32_t ct_loader_table_id(const struct ct_loader *loader);

#endif /* CT_LOADER_H */
