/* SPDX-License-Identifier: MIT */
#ifndef CT_ALIVE_H
#define CT_ALIVE_H
/*
 * Which BPF maps of the machine are alive. A client can keep its region, or the program with its
 * tables, after it has left: by a mapping, a descriptor anywhere, a pin in a bpf file system of its
 * own. The kernel tells who has a map only to CAP_SYS_ADMIN, but an iterator program, for which
 * CAP_BPF and CAP_PERFMON do, sees whether it exists.
 */
#include <stdbool.h>
#include <stdint.h>

struct ct_alive;

/* Returns 0 or -errno. */
int ct_alive_open(struct ct_alive **ret_alive);

/* NULL is fine. */
void ct_alive_close(struct ct_alive *alive);

/* Looks. Returns 0 or -errno. */
int ct_alive_look(struct ct_alive *alive);

/* Whether there was a map of this id at the last look. */
bool ct_alive_has(const struct ct_alive *alive, uint32_t id);

#endif /* CT_ALIVE_H */
