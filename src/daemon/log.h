/* SPDX-License-Identifier: MIT */
#ifndef CT_LOG_H
#define CT_LOG_H
/*
 * One line an event, for operators. Nothing that a client sent is ever in one: who it is comes from
 * the kernel, and is a number. A log that is not read costs lines and never time: what does not go
 * in at once is dropped, and the number of lines lost is told when it goes in again.
 */
#include <stdbool.h>
#include <stdint.h>

enum ct_log_level {
        CT_LOG_ERROR = 0,       /* somebody has to do something */
        CT_LOG_INFO = 1,        /* what an operator wants to know: few, whatever clients do */
        CT_LOG_CLIENT = 2,      /* each client's coming and going */
};

struct ct_log {
        int fd;                 /* -1: silent */
        enum ct_log_level level;
        bool priorities;        /* "<3>" and so on in front, see sd-daemon(3); else "cputimed: " */
        unsigned int lost;
};

void ct_log(struct ct_log *log, enum ct_log_level level, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

#endif /* CT_LOG_H */
