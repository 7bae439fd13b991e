/* SPDX-License-Identifier: MIT */
/*
 * The server's outside: sockets, pidfds, the loop. What clients are owed is clients.c.
 *
 * Who a client is. SO_PEERCRED names the process that connected, and from then on a pidfd holds it:
 * the kernel's own of the peer (SO_PEERPIDFD, Linux 6.5), else one opened for the number, which the
 * kernel may have given to another process meanwhile. Therefore a join counts only
 *
 *      if the queue was empty after the pidfd was opened: so it was sent later,
 *      by a process of that number (SCM_CREDENTIALS),
 *      and the pidfd's process has not ended when the join was acted upon, and the number's process
 *      has been enrolled:
 *
 * it had the number all that time, so it was the sender, and is who was enrolled. A connection that is handed to another
 * process is of no use to that one.
 *
 * A turn of the loop: what has happened, a bounded number of things; then ct_clients_settle(), which
 * has the kernel do for all clients at once what takes it long. A client costs the others its share
 * of a turn. Connections are taken in turns as well, and when there are no descriptors left none is
 * taken for CT_PAUSE_NS.
 */
#include "daemon/server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/nsec.h"
#include "daemon/alive.h"
#include "daemon/clients.h"
#include "source/page/page.h"

/* asm-generic/socket.h, of Linux 6.5; glibc 2.36 does not have it. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/*
 * In one turn, so that nobody waits for all of a flood. Connections that are refused take some us
 * each, and the faster they are taken the more room there is in the listening socket's queue.
 */
#define CT_EVENTS_MAX 256
#define CT_ACCEPTS_MAX 1024

/* Connections at once; each process that is enrolled has one. */
#define CT_CONNECTIONS_MAX (2 * CT_PAGE_REGIONS_MAX)

/* Descriptors for the program, its maps and a batch of regions. */
#define CT_DESCRIPTORS_SPARE (64 + CT_LOADER_BATCH)

/* For how long no connection is taken when there was no descriptor for one. */
#define CT_PAUSE_NS (100 * CT_NSEC_PER_MSEC)

#define CT_CHANGED_INTERVAL_NS CT_NSEC_PER_SEC

/* What an event is about: a client's connection or (tagged) its process; or one of these. */
#define CT_ABOUT_LISTEN UINT64_C(0)
#define CT_ABOUT_STOP UINT64_C(2)
#define CT_ABOUT_PROCESS UINT64_C(1)

struct ct_server {
        struct ct_server_options options;
        struct ct_clients clients;
        struct ct_loader *loader;
        struct ct_alive *alive;         /* NULL: not needed yet */
        int epoll_fd;
        unsigned int connections_max;
        uint64_t pause_until_ns;        /* 0: connections are taken */
        bool stopping;
        /* What was last told to options.changed. */
        bool told_attached;
        unsigned int told_enrolled;
        uint64_t told_ns;
        uint64_t warned_ns;
};

static uint64_t ct_now(void) {
        struct timespec ts;

        (void)clock_gettime(CLOCK_MONOTONIC, &ts);
        return ct_nsec_from_timespec(&ts);
}

static bool ct_warn(struct ct_server *server, uint64_t now_ns) {
        if (server->warned_ns && now_ns - server->warned_ns < CT_WARN_INTERVAL_NS)
                return false;
        server->warned_ns = now_ns;
        return true;
}

/* The outside, as clients.h has it. */

int ct_outside_load(struct ct_server *server, const char **ret_step) {
        return ct_loader_open(&server->loader, ret_step);
}

void ct_outside_unload(struct ct_server *server) {
        ct_loader_close(server->loader);
        server->loader = NULL;
}

void ct_outside_enrol(struct ct_server *server, struct ct_enrolment *enrolments, unsigned int n) {
        ct_loader_enrol(server->loader, enrolments, n);
}

void ct_outside_release(struct ct_server *server, uint32_t region) {
        ct_loader_release(server->loader, region);
}

void ct_outside_flush(struct ct_server *server) {
        ct_loader_flush(server->loader);
}

uint32_t ct_outside_table(struct ct_server *server) {
        return ct_loader_table_id(server->loader);
}

int ct_outside_look(struct ct_server *server) {
        int r = server->alive ? 0 : ct_alive_open(&server->alive);

        if (r == 0)
                r = ct_alive_look(server->alive);
        if (r < 0 && ct_warn(server, ct_now()))
                ct_log(&server->options.log, CT_LOG_ERROR, "cannot see which regions are still held, "
                       "all count: %s", strerror(-r));
        return r;
}

bool ct_outside_exists(struct ct_server *server, uint32_t map_id) {
        return ct_alive_has(server->alive, map_id);
}

void ct_outside_discard(struct ct_server *server, int map_fd) {
        (void)close(map_fd);
}

static int ct_send(int fd, const struct ct_message *message, const int *fds, unsigned int n) {
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(CT_LOADER_LINKS * sizeof(int))];
        } control = {};
        struct iovec iov = { .iov_base = (void *)message, .iov_len = sizeof(*message) };
        struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

        if (n > 0) {
                control.header.cmsg_level = SOL_SOCKET;
                control.header.cmsg_type = SCM_RIGHTS;
                control.header.cmsg_len = CMSG_LEN(n * sizeof(int));
                memcpy(CMSG_DATA(&control.header), fds, n * sizeof(int));
                msg.msg_control = &control;
                msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
        }
        return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int ct_outside_send(struct ct_client *client, const struct ct_message *message) {
        return ct_send(client->fd, message, NULL, 0);
}

int ct_outside_give(struct ct_client *client, const struct ct_message *reply, int map_fd,
                    const struct ct_message *hold) {
        int links[CT_LOADER_LINKS], r;

        r = ct_send(client->fd, reply, &map_fd, 1);
        (void)close(map_fd);
        if (r == 0) {
                ct_loader_links(client->clients->server->loader, links);
                r = ct_send(client->fd, hold, links, CT_LOADER_LINKS);
        }
        if (r == -ETOOMANYREFS)
                ct_log(client->clients->log, CT_LOG_ERROR, "clients hold more descriptors than "
                       "RLIMIT_NOFILE lets this user have under way: raise it (LimitNOFILE=)");
        return r;
}

bool ct_outside_alive(const struct ct_client *client) {
        struct pollfd fds[] = {
                { .fd = client->fd },           /* POLLHUP and POLLERR need not be asked for */
                { .fd = client->pidfd, .events = POLLIN },
        };

        return poll(fds, 2, 0) == 0;
}

bool ct_outside_unread(const struct ct_client *client) {
        int bytes;

        return ioctl(client->fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

void ct_outside_left(struct ct_client *client) {
        struct epoll_event event = {
                .events = EPOLLOUT | EPOLLET,   /* also comes when what was sent is gone */
                .data.u64 = (uintptr_t)client,
        };

        (void)shutdown(client->fd, SHUT_RDWR);
        (void)epoll_ctl(client->clients->server->epoll_fd, EPOLL_CTL_MOD, client->fd, &event);
        if (client->pidfd >= 0)
                (void)close(client->pidfd);
        client->pidfd = -1;
}

void ct_outside_close(struct ct_client *client) {
        if (client->pidfd >= 0)
                (void)close(client->pidfd);
        if (client->fd >= 0)
                (void)close(client->fd);
        client->fd = client->pidfd = -1;
}

/* Connections. */

static int ct_watch(struct ct_server *server, int fd, uint64_t about) {
        struct epoll_event event = { .events = EPOLLIN, .data.u64 = about };

        return epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static void ct_listen(struct ct_server *server, bool on) {
        struct epoll_event event = { .events = on ? EPOLLIN : 0, .data.u64 = CT_ABOUT_LISTEN };

        (void)epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, server->options.listen_fd, &event);
}

static void ct_pause(struct ct_server *server, int error, uint64_t now_ns) {
        server->pause_until_ns = now_ns + CT_PAUSE_NS;
        ct_listen(server, false);
        if (ct_warn(server, now_ns))
                ct_log(&server->options.log, CT_LOG_ERROR, "cannot take connections for now: %s",
                       strerror(error));
}

/* A descriptor for the process that connected. Returns it or -errno. */
static int ct_peer_pidfd(int fd, pid_t pid) {
        socklen_t length = sizeof(int);
        int pidfd;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0)
                return pidfd;
        if (errno != ENOPROTOOPT)
                return -errno;
        pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        return pidfd < 0 ? -errno : pidfd;
}

/* Takes over FD. Returns 0, or -errno: the connection was closed. */
static int ct_connected(struct ct_server *server, int fd, uint64_t now_ns) {
        struct ct_client *client;
        socklen_t length = sizeof(struct ucred);
        struct ucred peer;
        char byte;
        int one = 1, r;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) {
                r = -errno;
                (void)close(fd);
                return r;
        }
        if (ct_clients_total(&server->clients) >= server->connections_max) {
                if (ct_warn(server, now_ns))
                        ct_log(&server->options.log, CT_LOG_ERROR,
                               "%u connections, more are refused", server->connections_max);
                client = NULL;
        } else {
                client = ct_clients_connect(&server->clients, peer.pid, peer.uid, now_ns);
        }
        if (!client) {
                (void)close(fd);
                return 0;
        }
        client->fd = fd;
        r = setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)) < 0 ? -errno : 0;
        if (r == 0 && client->pid > 0) {
                r = ct_peer_pidfd(fd, client->pid);
                client->pidfd = r < 0 ? -1 : r;
        }
        if (r < 0)
                goto end;
        /* See above. The end of the connection is nothing that a client may begin with either. */
        if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN) {
                r = -EPROTO;
                goto end;
        }
        r = ct_watch(server, fd, (uintptr_t)client);
        if (r == 0 && client->pidfd >= 0)
                r = ct_watch(server, client->pidfd, (uintptr_t)client | CT_ABOUT_PROCESS);
        if (r < 0)
                goto end;
        ct_client_greet(client);
        return 0;
end:
        ct_client_end(client);
        return r;
}

static bool ct_exhausted(int error) {
        return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS ||
               error == ENOSPC;
}

static void ct_accept(struct ct_server *server, uint64_t now_ns) {
        for (unsigned int i = 0; i < CT_ACCEPTS_MAX; i++) {
                int fd = accept4(server->options.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), r;

                if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
                        continue;
                if (fd < 0 && errno == EAGAIN)
                        return;
                r = fd < 0 ? -errno : ct_connected(server, fd, now_ns);
                if (fd < 0 || ct_exhausted(-r)) {
                        ct_pause(server, -r, now_ns);
                        return;
                }
        }
}

static void ct_readable(struct ct_client *client, uint64_t now_ns) {
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(struct ucred))];   /* no room for descriptors: they are closed */
        } control = {};
        struct ct_message message = {};
        struct iovec iov = { .iov_base = &message, .iov_len = sizeof(message) };
        struct msghdr msg = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = sizeof(control),
        };
        struct ucred sender = {};
        struct cmsghdr *cmsg;
        ssize_t n;

        n = recvmsg(client->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        if (n <= 0) {
                ct_client_end(client);
                return;
        }
        cmsg = CMSG_FIRSTHDR(&msg);
        if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_CREDENTIALS &&
            cmsg->cmsg_len == CMSG_LEN(sizeof(sender)))
                memcpy(&sender, CMSG_DATA(cmsg), sizeof(sender));
        else
                msg.msg_flags |= MSG_CTRUNC;
        ct_client_receive(client, &message, (size_t)n, msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC),
                          sender.pid, now_ns);
}

/* The loop. */

static void ct_event(struct ct_server *server, const struct epoll_event *event, uint64_t now_ns) {
        struct ct_client *client = (void *)(uintptr_t)(event->data.u64 & ~CT_ABOUT_PROCESS);

        if (event->data.u64 == CT_ABOUT_LISTEN) {
                ct_accept(server, now_ns);
        } else if (event->data.u64 == CT_ABOUT_STOP) {
                server->stopping = true;
                (void)epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, server->options.stop_fd, NULL);
        } else if (client->state == CT_CLIENT_GONE || client->state == CT_CLIENT_KEPT) {
                /* Its other descriptor was heard of first. */
        } else if (client->state == CT_CLIENT_LEFT) {
                ct_client_changed(client);
        } else if ((event->data.u64 & CT_ABOUT_PROCESS) || !(event->events & EPOLLIN)) {
                ct_client_end(client);
        } else {
                ct_readable(client, now_ns);
        }
}

static void ct_tell(struct ct_server *server, uint64_t now_ns, uint64_t *next_ns) {
        bool attached = server->clients.loaded;
        unsigned int enrolled = server->clients.lists[CT_CLIENT_ENROLLED].n;

        if (!server->options.changed || (server->told_ns && attached == server->told_attached &&
                                         enrolled == server->told_enrolled))
                return;
        if (server->told_ns && now_ns - server->told_ns < CT_CHANGED_INTERVAL_NS) {
                if (*next_ns > server->told_ns + CT_CHANGED_INTERVAL_NS)
                        *next_ns = server->told_ns + CT_CHANGED_INTERVAL_NS;
                return;
        }
        server->told_ns = now_ns;
        server->told_attached = attached;
        server->told_enrolled = enrolled;
        server->options.changed(attached, enrolled);
}

static int ct_timeout_ms(uint64_t next_ns, uint64_t now_ns) {
        uint64_t ms;

        if (next_ns == UINT64_MAX)
                return -1;
        if (next_ns <= now_ns)
                return 0;
        ms = (next_ns - now_ns + CT_NSEC_PER_MSEC - 1) / CT_NSEC_PER_MSEC;
        return ms > INT_MAX ? INT_MAX : (int)ms;
}

static int ct_loop(struct ct_server *server) {
        struct epoll_event events[CT_EVENTS_MAX];

        for (;;) {
                uint64_t now_ns = ct_now(), next_ns;
                int n;

                next_ns = ct_clients_settle(&server->clients, now_ns);
                if (server->stopping &&
                    !(server->options.until_idle && ct_clients_present(&server->clients) > 0))
                        return 0;
                if (server->pause_until_ns && server->pause_until_ns <= now_ns) {
                        server->pause_until_ns = 0;
                        ct_listen(server, true);
                }
                if (server->pause_until_ns && server->pause_until_ns < next_ns)
                        next_ns = server->pause_until_ns;
                ct_tell(server, now_ns, &next_ns);

                n = epoll_wait(server->epoll_fd, events, CT_EVENTS_MAX,
                               ct_timeout_ms(next_ns, ct_now()));
                if (n < 0 && errno != EINTR) {
                        int r = -errno;

                        ct_log(&server->options.log, CT_LOG_ERROR, "epoll_wait failed: %s",
                               strerror(-r));
                        return r;
                }
                now_ns = ct_now();
                for (int i = 0; i < n; i++)
                        ct_event(server, &events[i], now_ns);
                /* Nobody's message is waiting while it is told that it came too late. */
                if (n >= 0 && n < CT_EVENTS_MAX)
                        ct_clients_expire(&server->clients, now_ns);
        }
}

static void ct_raise_nofile(struct ct_server *server) {
        struct rlimit limit = { .rlim_cur = 1024 };
        rlim_t n;

        if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
                limit.rlim_cur = limit.rlim_max;
                if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
                        (void)getrlimit(RLIMIT_NOFILE, &limit);
        }
        /* Each has a connection and a pidfd here, and three links and a region under way to it. */
        n = limit.rlim_cur > CT_DESCRIPTORS_SPARE ? (limit.rlim_cur - CT_DESCRIPTORS_SPARE) / 4 : 1;
        server->connections_max = n < CT_CONNECTIONS_MAX ? (unsigned int)n : CT_CONNECTIONS_MAX;
}

int ct_server_run(const struct ct_server_options *options) {
        struct ct_server *server;
        int r = -ENOMEM;

        server = calloc(1, sizeof(*server));
        if (!server)
                return -ENOMEM;
        server->options = *options;
        ct_raise_nofile(server);
        ct_clients_init(&server->clients, server, &server->options.log, options->per_user,
                        options->per_user_connections, options->prepared);
        server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (server->epoll_fd < 0 ||
            fcntl(options->listen_fd, F_SETFL, fcntl(options->listen_fd, F_GETFL) | O_NONBLOCK) < 0)
                r = -errno;
        else
                r = ct_watch(server, options->listen_fd, CT_ABOUT_LISTEN);
        if (r == 0 && options->stop_fd >= 0)
                r = ct_watch(server, options->stop_fd, CT_ABOUT_STOP);
        if (r < 0)
                ct_log(&server->options.log, CT_LOG_ERROR, "cannot serve: %s", strerror(-r));
        if (r == 0 && options->prepared)
                r = ct_clients_load(&server->clients, ct_now());
        if (r == 0)
                r = ct_loop(server);
        ct_clients_done(&server->clients);
        ct_alive_close(server->alive);
        if (server->epoll_fd >= 0)
                (void)close(server->epoll_fd);
        (void)close(options->listen_fd);
        free(server);
        return r;
}
