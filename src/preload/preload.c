/* SPDX-License-Identifier: MIT */
#include "arch/vdso.h"
__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *ts) { return ct_vdso_clock_gettime(id, ts); }
