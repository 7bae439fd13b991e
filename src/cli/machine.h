/* SPDX-License-Identifier: MIT */
#ifndef CT_MACHINE_H
#define CT_MACHINE_H
/* Small files of /proc and /sys, as the machine record and cputime doctor read them. */
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* The first line of PATH without its end, cut at SIZE. False if there is none. */
bool cli_read_line(const char *path, char *ret_line, size_t size);

/* What follows "KEY:" or "KEY <blanks> :" on the first such line of PATH. False if there is none. */
bool cli_read_field(const char *path, const char *key, char *ret_value, size_t size);

/* The decimal number that is the first line of PATH, or JSON null. */
json_t *cli_read_integer(const char *path);

#endif /* CT_MACHINE_H */
