/* SPDX-License-Identifier: MIT */
/*
 * cputimed: gives processes their page. What it is as a program: options, the socket, privileges,
 * signals, the service manager. Serving is server.c.
 *
 * The order in which things are given up: everything that takes privilege, the socket's place, is
 * done first; then the user and all capabilities but two; then most system calls; and only then the
 * first client is listened to.
 *
 *      exit status     0       stopped by SIGTERM or SIGINT
 *                      1       cannot serve; the log says why
 *                      2       unusable options
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#if CT_LIBSYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "cli-config.h"
#include "daemon/sandbox.h"
#include "daemon/server.h"
#include "source/page/page.h"
#include "source/page/protocol.h"

#define CT_USER "cputimed"
#define CT_SOCKET_DIRECTORY "/run/cputimed"

#define EXIT_USAGE 2

/* A quarter of what there is; as many as a large build has at once. */
#define PER_USER_DEFAULT (CT_PAGE_REGIONS_MAX / 4)

/* Of one user between connect and join, for milliseconds each. */
#define PER_USER_CONNECTIONS 64

static const char *arg_socket;
static unsigned long arg_per_user = PER_USER_DEFAULT;
static enum ct_log_level arg_log_level = CT_LOG_INFO;

static void help(void) {
        printf("Usage: cputimed [OPTIONS]\n"
               "\n"
               "Gives processes that ask for it a page with their CPU clocks, written by the kernel.\n"
               "Without a socket from the service manager it listens on one of its own.\n"
               "\n"
               "  --socket PATH      where; the default is %s\n"
               "  --per-user N       processes of one user at once, 1 to %d (%d); root is exempt\n"
               "  --log-level LEVEL  error, info (the default), or client: each client as well\n"
               "  --help             this text\n"
               "  --version          the version\n"
               "\n"
               "Examples:\n"
               "  systemctl enable --now cputimed.socket     as installed\n"
               "  cputimed --socket /run/c --log-level client\n"
               "                                             by hand, as root; then\n"
               "  CPUTIME_SOCKET=/run/c cputime run -- ./prog\n"
               "\n"
               "Exit status: 0 stopped, 1 cannot serve, 2 unusable options.\n",
               CT_SOCKET_PATH, CT_PAGE_REGIONS_MAX, PER_USER_DEFAULT);
}

__attribute__((format(printf, 1, 2)))
static int usage(const char *format, ...) {
        va_list args;

        fputs("cputimed: ", stderr);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fputs("; see `cputimed --help`\n", stderr);
        return EXIT_USAGE;
}

/* Returns -1 to go on, or the exit status. */
static int parse(int argc, char *argv[]) {
        static const struct option options[] = {
                { "socket", required_argument, NULL, 's' },
                { "per-user", required_argument, NULL, 'u' },
                { "log-level", required_argument, NULL, 'l' },
                { "help", no_argument, NULL, 'h' },
                { "version", no_argument, NULL, 'V' },
                {},
        };
        static const char *const levels[] = { "error", "info", "client" };
        size_t level;
        int option;
        char *end;

        opterr = 0;
        while ((option = getopt_long(argc, argv, ":s:u:l:hV", options, NULL)) != -1) {
                switch (option) {
                case 's':
                        if (!*optarg || strlen(optarg) >= sizeof(((struct sockaddr_un *)0)->sun_path))
                                return usage("'%s' cannot be the path of a socket", optarg);
                        arg_socket = optarg;
                        break;
                case 'u':
                        errno = 0;
                        arg_per_user = strtoul(optarg, &end, 10);
                        if (*optarg < '0' || *optarg > '9' || *end || errno != 0 ||
                            arg_per_user < 1 || arg_per_user > CT_PAGE_REGIONS_MAX)
                                return usage("--per-user takes a number from 1 to %d, not '%s'",
                                             CT_PAGE_REGIONS_MAX, optarg);
                        break;
                case 'l':
                        for (level = 0; level < 3 && strcmp(optarg, levels[level]) != 0; level++)
                                ;
                        if (level == 3)
                                return usage("unknown log level '%s'; there are error, info and client",
                                             optarg);
                        arg_log_level = (enum ct_log_level)level;
                        break;
                case 'h':
                        help();
                        return fflush(stdout) == 0 ? 0 : 1;
                case 'V':
                        printf("cputimed %s\n", CLI_VERSION);
                        return fflush(stdout) == 0 ? 0 : 1;
                case ':':
                        return usage("option '%s' needs a value", argv[optind - 1]);
                default:
                        return usage("option '%s' cannot be used so", argv[optind - 1]);
                }
        }
        if (optind < argc)
                return usage("'%s' is one argument too many", argv[optind]);
        return -1;
}

/* A socket that was left behind by a server that is gone may be replaced; nothing else may. */
static int remove_stale(const struct sockaddr_un *address) {
        struct stat st;
        int fd, r;

        if (lstat(address->sun_path, &st) < 0)
                return errno == ENOENT ? 0 : -errno;
        if (!S_ISSOCK(st.st_mode))
                return -EEXIST;
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        r = connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? errno : 0;
        (void)close(fd);
        if (r != ECONNREFUSED)
                return -EADDRINUSE;
        return unlink(address->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}

/* A socket that everybody may connect to. Returns it or -errno. */
static int listen_on(const char *path) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        mode_t mask;
        int fd, r;

        strcpy(address.sun_path, path);
        r = remove_stale(&address);
        if (r < 0)
                return r;
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        mask = umask(0111);
        r = bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
            listen(fd, SOMAXCONN) < 0 ? -errno : 0;
        (void)umask(mask);
        if (r < 0) {
                (void)close(fd);
                return r;
        }
        return fd;
}

/* The service manager's socket. Returns it, -ENOENT if there is none, -EINVAL if it is of no use. */
static int listen_inherited(void) {
#if CT_LIBSYSTEMD
        int n = sd_listen_fds(1);

        if (n == 0)
                return -ENOENT;
        if (n == 1 && sd_is_socket_unix(SD_LISTEN_FDS_START, SOCK_SEQPACKET, 1, NULL, 0) > 0)
                return SD_LISTEN_FDS_START;
        return n < 0 ? n : -EINVAL;
#else
        return -ENOENT;
#endif
}

static void changed(bool attached, unsigned int enrolled) {
#if CT_LIBSYSTEMD
        (void)sd_notifyf(0, "READY=1\nSTATUS=%u processes enrolled, the program is %s.", enrolled,
                         attached ? "attached" : "not attached");
#endif
}

int main(int argc, char *argv[]) {
        struct ct_server_options options = {
                .log = { .fd = STDERR_FILENO },
                .per_user_connections = PER_USER_CONNECTIONS,
                .changed = changed,
        };
        const char *user = NULL;
        sigset_t signals;
        int r;

        r = parse(argc, argv);
        if (r >= 0)
                return r;
        options.per_user = (uint32_t)arg_per_user;
        options.log.level = arg_log_level;
        options.log.priorities = !isatty(STDERR_FILENO);

        (void)sigemptyset(&signals);
        (void)sigaddset(&signals, SIGTERM);
        (void)sigaddset(&signals, SIGINT);
        (void)sigprocmask(SIG_BLOCK, &signals, NULL);
        options.stop_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
        if (options.stop_fd < 0) {
                ct_log(&options.log, CT_LOG_ERROR, "signalfd failed: %s", strerror(errno));
                return 1;
        }

        options.listen_fd = arg_socket ? -ENOENT : listen_inherited();
        if (options.listen_fd == -ENOENT) {
                if (!arg_socket) {
                        arg_socket = CT_SOCKET_PATH;
                        /* By hand; the service manager has done that. */
                        (void)mkdir(CT_SOCKET_DIRECTORY, 0755);
                }
                options.listen_fd = listen_on(arg_socket);
        }
        if (options.listen_fd < 0) {
                ct_log(&options.log, CT_LOG_ERROR, "cannot listen on %s: %s",
                       arg_socket ? arg_socket : "the service manager's socket (it takes "
                                                 "ListenSequentialPacket= with one path)",
                       strerror(-options.listen_fd));
                return 1;
        }

        r = ct_sandbox_drop(CT_USER, &user);
        if (r < 0) {
                ct_log(&options.log, CT_LOG_ERROR, "cannot drop privileges: %s%s", strerror(-r),
                       r == -EPERM ? "; run it as root, or with CAP_BPF and CAP_PERFMON" : "");
                return 1;
        }
        if (geteuid() == 0)
                ct_log(&options.log, CT_LOG_INFO, "there is no user " CT_USER ": running as root, "
                       "without root's capabilities");
        r = ct_sandbox_filter();
        if (r < 0) {
                ct_log(&options.log, CT_LOG_ERROR, "cannot filter system calls: %s", strerror(-r));
                return 1;
        }

        ct_log(&options.log, CT_LOG_INFO, "serving on %s, %lu processes a user at most",
               arg_socket ? arg_socket : "the service manager's socket", arg_per_user);
        r = ct_server_run(&options);
#if CT_LIBSYSTEMD
        (void)sd_notify(0, "STOPPING=1");
#endif
        /* Where this user may not, the next server does it. */
        if (arg_socket)
                (void)unlink(arg_socket);
        ct_log(&options.log, CT_LOG_INFO, "stopped");
        return r < 0 ? 1 : 0;
}
