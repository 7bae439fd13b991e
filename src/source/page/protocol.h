/* SPDX-License-Identifier: MIT */
#ifndef CT_PROTOCOL_H
#define CT_PROTOCOL_H
/*
 * How a process gets its page: three messages over a Unix socket of type SOCK_SEQPACKET.
 *
 *      client                                   server
 *      connect        ------------------------>
 *                     <------------------------ hello: versions; the peer is known (SO_PEERCRED)
 *      join           ------------------------>          by then, and held by a pidfd
 *                     <------------------------ reply, with the region's descriptor if error is 0
 *                     <------------------------ hold, with the links' descriptors: NOT to be read
 *
 * The hold message stays in the client's receive queue. Descriptors in a queue are alive: as long
 * as the client keeps the connection open the program stays attached, whatever becomes of the
 * server; and it takes one descriptor. When the client closes the connection, or ends, the server
 * gives the region back. Nothing else is ever sent. (Why hello comes first: a join that answers it
 * was sent by a process that was alive when the server held it by a pidfd already, so its id cannot
 * have been given to another one in between.)
 *
 * A process can only join itself: what it sends names nobody, the kernel says who it is.
 *
 * The server closes the connection without an answer where the peer does not keep to this.
 */
#include <stdint.h>

/* Where cputimed listens. CPUTIME_SOCKET in the environment names another place. */
#define CT_SOCKET_PATH "/run/cputimed/socket"
#define CT_SOCKET_VARIABLE "CPUTIME_SOCKET"

#define CT_PROTOCOL_MAGIC 0x63707531u   /* "cpu1", and so the version of this protocol */

enum ct_message_type {
        CT_MESSAGE_HELLO = 1,
        CT_MESSAGE_JOIN = 2,
        CT_MESSAGE_REPLY = 3,
        CT_MESSAGE_HOLD = 4,
};

struct ct_message {
        uint32_t magic;
        uint32_t type;          /* enum ct_message_type */
        uint32_t page_version;  /* hello, join: CT_PAGE_VERSION; the server serves its own alone */
        int32_t error;          /* reply: 0, or an errno value: */
                                /*   EPROTONOSUPPORT  another page version */
                                /*   ESRCH EPERM      not a process that can be served from here: */
                                /*                    another pid namespace than the server's */
                                /*   EDQUOT           the user's processes are too many already */
                                /*   ENOSPC E2BIG ENOMEM EAGAIN  see loader.h */
                                /*   others           the program could not be loaded */
        uint32_t generation;    /* reply: which must be the page's */
        uint32_t entries;       /* reply: of the region */
};

_Static_assert(sizeof(struct ct_message) == 24, "the wire has no holes");

#endif /* CT_PROTOCOL_H */
