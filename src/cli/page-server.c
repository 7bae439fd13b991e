/* SPDX-License-Identifier: MIT */
#include "cli/page-server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock/page.h"
#include "daemon/server.h"
#include "source/page/protocol.h"

/* The tree of one command is its owner's: no limit but that of the regions. */
#define PER_USER UINT32_MAX

/* What the starter is told, in a pipe: 0, or why there is no server. */
static int ready_fd = -1;

static void tell(int error) {
        if (ready_fd >= 0) {
                (void)!write(ready_fd, &error, sizeof(error));
                (void)close(ready_fd);
                ready_fd = -1;
        }
}

static void changed(bool attached, unsigned int enrolled) {
        (void)attached, (void)enrolled;
        tell(0);
}

static int connect_to(const char *path) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd, r = 0;

        if (strlen(path) >= sizeof(address.sun_path))
                return -ENAMETOOLONG;
        strcpy(address.sun_path, path);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
                r = -errno;
        (void)close(fd);
        return r;
}

/* A socket in a directory of its own that anybody in the tree can pass, whatever user it becomes. */
static int listen_somewhere(struct sockaddr_un *ret_address) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        char directory[] = "/run/cputime-XXXXXX";
        int fd;

        if (!mkdtemp(directory))
                return -errno;
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", directory);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
            chmod(address.sun_path, 0666) < 0 || chmod(directory, 0711) < 0 || listen(fd, SOMAXCONN) < 0) {
                int r = -errno;

                if (fd >= 0)
                        (void)close(fd);
                (void)unlink(address.sun_path);
                (void)rmdir(directory);
                return r;
        }
        *ret_address = address;
        return fd;
}

static void remove_socket(struct sockaddr_un *address) {
        (void)unlink(address->sun_path);
        *strrchr(address->sun_path, '/') = '\0';
        (void)rmdir(address->sun_path);
}

/* In the server's process: keeps what it needs of what it has inherited. */
static void settle(int *fds[], unsigned int n) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC), high[4], first = 3;

        for (int i = 0; i < 3 && null >= 0; i++)
                (void)dup2(null, i);
        for (unsigned int i = 0; i < n; i++)
                high[i] = fcntl(*fds[i], F_DUPFD_CLOEXEC, 16);
        for (unsigned int i = 0; i < n; i++) {
                *fds[i] = dup3(high[i], first, O_CLOEXEC);
                first++;
        }
        (void)close_range((unsigned int)first, UINT_MAX, 0);
        (void)setsid();
        (void)signal(SIGPIPE, SIG_IGN);         /* the starter may not wait */
        (void)chdir("/");
}

static void serve(int listen_fd, int starter_fd, int tell_fd, struct sockaddr_un *address)
        __attribute__((noreturn));
static void serve(int listen_fd, int starter_fd, int tell_fd, struct sockaddr_un *address) {
        struct ct_server_options options = {
                .until_idle = true,
                .prepared = true,
                .per_user = PER_USER,
                .per_user_connections = PER_USER,
                .changed = changed,
                .log = { .fd = -1 },
        };
        int r;

        settle((int *[]){ &listen_fd, &starter_fd, &tell_fd }, 3);
        ready_fd = tell_fd;
        options.listen_fd = listen_fd;
        options.stop_fd = starter_fd;
        r = ct_server_run(&options);
        remove_socket(address);
        tell(-r);
        _exit(r < 0);
}

static int start(bool wait, const char **ret_step) {
        struct sockaddr_un address;
        int listen_fd, starter_fd, ready[2], error = 0;
        pid_t pid;

        *ret_step = "a socket in /run";
        listen_fd = listen_somewhere(&address);
        if (listen_fd < 0)
                return listen_fd;
        *ret_step = "pidfd_open";
        starter_fd = pidfd_open(getpid(), 0);
        if (starter_fd < 0 || pipe2(ready, O_CLOEXEC) < 0) {
                error = errno;
                remove_socket(&address);
                (void)close(listen_fd);
                if (starter_fd >= 0)
                        (void)close(starter_fd);
                return -error;
        }
        *ret_step = "fork";
        pid = fork();
        if (pid == 0) {
                pid = fork();
                if (pid == 0)
                        serve(listen_fd, starter_fd, ready[1], &address);
                _exit(pid < 0);
        }
        (void)close(ready[1]);
        (void)close(listen_fd);
        (void)close(starter_fd);
        if (pid < 0)
                error = errno;
        else if (waitpid(pid, &error, 0) == pid && error != 0)
                error = EAGAIN;
        if (error == 0 && wait) {
                *ret_step = "loading the BPF program";
                if (read(ready[0], &error, sizeof(error)) != sizeof(error))
                        error = ECONNRESET;
        }
        (void)close(ready[0]);
        if (error != 0)
                return -error;
        *ret_step = "setenv";
        if (setenv(CT_SOCKET_VARIABLE, address.sun_path, 1) < 0)
                return -errno;
        ct_page_begin();
        return 0;
}

int page_server_start(bool wait, const char **ret_step) {
        const char *path = getenv(CT_SOCKET_VARIABLE);

        *ret_step = "connecting to cputimed";
        if (path && *path)
                return connect_to(path);
        if (connect_to(CT_SOCKET_PATH) == 0)
                return 0;
        *ret_step = "root, or cputimed";
        if (geteuid() != 0)
                return -EPERM;
        return start(wait, ret_step);
}
