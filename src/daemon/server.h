/* SPDX-License-Identifier: MIT */
#ifndef CT_SERVER_H
#define CT_SERVER_H
/*
 * The page's server: cputimed is this with a socket from the system, `cputime run` as root is this
 * with a socket of its own for the tree of one command. The protocol is source/page/protocol.h.
 *
 * The BPF program is loaded and attached when the first client joins and let go when the last one
 * has left, unless `prepared`. One thread, one epoll loop, no call that can wait for a client; what
 * is waited for is the kernel, 0.1 s while the program is loaded and 10 ms or so for a batch of
 * clients to be enrolled.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/log.h"

struct ct_server_options {
        int listen_fd;          /* a listening SOCK_SEQPACKET Unix socket; becomes the server's */
        int stop_fd;            /* readable (a pidfd, a signalfd, an eventfd): stop; -1: never */
        bool until_idle;        /* on stop_fd: go on until the last client has left */
        bool prepared;          /* load and attach at once and keep it so; fail if that cannot be */
        uint32_t per_user;      /* processes a user other than root may have enrolled at once */
        uint32_t per_user_connections;  /* and connections that have not joined */
        struct ct_log log;
        /* Called when it begins to serve, and after a change, at most once a second; or NULL. */
        void (*changed)(bool attached, unsigned int enrolled);
};

/*
 * Serves until stopped. Raises the soft limit of open files to the hard one. Ignores SIGPIPE by not
 * causing it. Returns 0, or -errno if it cannot even begin, which it has logged.
 */
int ct_server_run(const struct ct_server_options *options);

#endif /* CT_SERVER_H */
