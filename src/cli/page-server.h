/* SPDX-License-Identifier: MIT */
#ifndef PAGE_SERVER_H
#define PAGE_SERVER_H
/*
 * The page without a daemon, for root: a server of one's own, for this process and whatever it runs.
 *
 * The server is a process of its own, nobody's child, so that a program that is run by exec(2) does
 * not find a child that it has not made. It ends when the process that started it, or has become
 * something else by exec(2), has ended and the last of its clients has.
 */
#include <stdbool.h>

/*
 * Starts the server and names it in the environment (CPUTIME_SOCKET), for this process too, unless
 * that names one already or cputimed is there. Returns 0 when there is a server or may soon be; with
 * `wait` only when it serves. Otherwise -errno, and *ret_step is what could not be done, static:
 *      -EPERM  not root, and no cputimed; else as in source/page/loader.h
 */
int page_server_start(bool wait, const char **ret_step);

#endif /* PAGE_SERVER_H */
