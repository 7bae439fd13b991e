/* SPDX-License-Identifier: MIT */
/* Placeholder until the fast clocks land: the kernel's answer, every time. */
#include <errno.h>
#include <string.h>
#include "arch/vdso.h"
#include "base/nsec.h"
#include "cputime/clock.h"
#pragma GCC visibility push(default)
static uint64_t rd(clockid_t c) { struct timespec t = {}; ct_sys_clock_gettime(c, &t); return ct_nsec_from_timespec(&t); }
uint64_t cputime_thread_ns(void) { return rd(CLOCK_THREAD_CPUTIME_ID); }
uint64_t cputime_process_ns(void) { return rd(CLOCK_PROCESS_CPUTIME_ID); }
int cputime_thread_ns_of(pid_t tid, uint64_t *ret_ns) { struct timespec t = {}; int r; if (tid < 0) return -EINVAL; r = ct_sys_clock_gettime(tid ? (clockid_t)(~(unsigned)tid << 3 | 6) : CLOCK_THREAD_CPUTIME_ID, &t); if (r < 0) return -ESRCH; *ret_ns = ct_nsec_from_timespec(&t); return 0; }
void cputime_sample_read(struct cputime_sample *s) { s->thread_ns = cputime_thread_ns(); s->process_ns = cputime_process_ns(); s->thread_backend = s->process_backend = CPUTIME_BACKEND_SYSCALL; }
int cputime_backend_set(enum cputime_backend b) { return b < CPUTIME_BACKEND_MAX ? 0 : -EINVAL; }
static const char *const names[] = { "auto", "syscall", "ring", "header" };
const char *cputime_backend_name(enum cputime_backend b) { return b < CPUTIME_BACKEND_MAX ? names[b] : NULL; }
int cputime_backend_from_name(const char *n, enum cputime_backend *b) { for (unsigned i = 0; i < CPUTIME_BACKEND_MAX; i++) if (!strcmp(n, names[i])) { *b = i; return 0; } return -EINVAL; }
int cputime_backend_probe(enum cputime_backend b, struct cputime_probe *p) { if (b == CPUTIME_BACKEND_AUTO || b >= CPUTIME_BACKEND_MAX) return -EINVAL; *p = (struct cputime_probe){ b == CPUTIME_BACKEND_SYSCALL ? 0 : ENOSYS, "none", b == CPUTIME_BACKEND_SYSCALL ? "usable" : "not built yet", "" }; return 0; }
void cputime_stats_read(struct cputime_stats *s) { memset(s, 0, sizeof *s); s->refusal_step = ""; }
#pragma GCC visibility pop
