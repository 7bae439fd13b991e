/* SPDX-License-Identifier: MIT */
#ifndef CPUTIME_CPUTIME_H
#define CPUTIME_CPUTIME_H
/* Everything that libcputime offers. */
#include <cputime/clock.h>

#endif /* CPUTIME_CPUTIME_H */
