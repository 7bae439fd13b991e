/* SPDX-License-Identifier: MIT */
#ifndef CT_SERVER_H
#define CT_SERVER_H
/*
 * The page's server: cputimed is this with a socket from the system, `cputime run` as root is this
 * with a socket of its own for the tree of one command.
 *
 * The BPF program is loaded and attached when the first client joins and let go when the last one
 * has left, unless `prepared`. One thread, one epoll loop, no call that can block on a client.
 */
#include <stdbool.h>
#include <stdint.h>

struct ct_server_options {
        int listen_fd;          /* a listening SOCK_SEQPACKET Unix socket; becomes the server's */
        int stop_fd;            /* readable (a pidfd, a signalfd, an eventfd): stop when idle (see until_idle), else now; -1: never */
        bool until_idle;        /* stop_fd: go on until the last client has left */
        bool prepared;          /* load and attach at once and keep it so */
        uint32_t per_user;      /* processes a user other than root may have enrolled at once */
        uint32_t per_user_connections;  /* and connections that have not joined */
        int log_fd;             /* one line an event; -1: silent */
        uint32_t log_level;     /* 0 errors, 1 and what an operator wants to know, 2 and each client */
};

/* Serves until stopped. Returns 0, or -errno if it cannot even begin. */
int ct_server_run(const struct ct_server_options *options);

#endif /* CT_SERVER_H */
