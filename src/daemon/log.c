/* SPDX-License-Identifier: MIT */
#include "daemon/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

/* A pipe or a socket that can be written to at all takes this much without a wait. */
#define LINE_MAX_SIZE 512

static bool ct_log_write(const struct ct_log *log, const char *line, int length) {
        struct pollfd p = { .fd = log->fd, .events = POLLOUT };

        return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) &&
               write(log->fd, line, (size_t)length) == length;
}

__attribute__((format(printf, 3, 0)))
static bool ct_log_line(const struct ct_log *log, enum ct_log_level level, const char *format,
                        va_list args) {
        static const char *const priorities[] = { "<3>", "<6>", "<7>" };
        char line[LINE_MAX_SIZE];
        int length, r;

        length = snprintf(line, sizeof(line), "%s",
                          log->priorities ? priorities[level] : "cputimed: ");
        r = vsnprintf(line + length, sizeof(line) - (size_t)length, format, args);
        if (r < 0)
                return false;
        length += r;
        if (length > (int)sizeof(line) - 1)
                length = (int)sizeof(line) - 1;
        line[length++] = '\n';          /* in the place of the terminator */
        return ct_log_write(log, line, length);
}

__attribute__((format(printf, 3, 4)))
static bool ct_log_one(const struct ct_log *log, enum ct_log_level level, const char *format, ...) {
        va_list args;
        bool done;

        va_start(args, format);
        done = ct_log_line(log, level, format, args);
        va_end(args);
        return done;
}

void ct_log(struct ct_log *log, enum ct_log_level level, const char *format, ...) {
        int saved_errno = errno;
        va_list args;

        if (log->fd < 0 || level > log->level)
                return;
        if (log->lost > 0 &&
            ct_log_one(log, CT_LOG_ERROR, "%u lines of this log were lost", log->lost))
                log->lost = 0;
        va_start(args, format);
        if (log->lost > 0 || !ct_log_line(log, level, format, args))
                log->lost++;
        va_end(args);
        errno = saved_errno;
}
