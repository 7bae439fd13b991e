/* SPDX-License-Identifier: MIT */
/*
 * no_fast_path_is_no_failure: whatever the kernel refuses, the clocks stay the kernel's, within the
 * bound, and nobody hears of it: not a line on stderr, no signal.
 *
 * Each refusal hits twice: a process that has read nothing yet, and one that is enrolled and whose
 * new threads and children are then refused. Refused for real: by seccomp, by limits, by an empty
 * root directory, by servers that give no page.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contract.h"
#include "sandbox.h"
#include "source/page/page.h"
#include "source/page/protocol.h"

static const struct refusal {
        const char *what;
        struct sandbox_rule rules[4];
        bool (*otherwise)(void);        /* instead of rules; false: cannot be tried here */
        bool alone;                     /* threads cannot be started under it */
        bool unless_forced;             /* see below, at the one that kills */
        bool of_a_page;                 /* what only a page needs */
        unsigned n_threads;             /* 0: two */
} refusals[];

static char empty_directory[] = "/tmp/contract-XXXXXX";

static bool no_descriptors(void) {
        struct rlimit none = { 0, 0 };

        return setrlimit(RLIMIT_NOFILE, &none) == 0;
}

/*
 * Each user may lock perf_event_mlock_kb (516) per CPU for event buffers, then memory counts
 * against RLIMIT_MEMLOCK; root is exempt from both.
 */
static bool no_locked_memory(void) {
        struct rlimit none = { 0, 0 };

        return setrlimit(RLIMIT_MEMLOCK, &none) == 0 &&
               (geteuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0));
}

static bool empty_root(void) {
        return chroot(empty_directory) == 0 && chdir("/") == 0;
}

static bool strict_enosys(void) {
        return !THREAD_SANITIZER && sandbox_refuse_nearly_everything(ENOSYS);
}

static bool strict_eperm(void) {
        return !THREAD_SANITIZER && sandbox_refuse_nearly_everything(EPERM);
}

#define PAGE(call, name) \
        { .what = #call " says " #name, .rules = { { SYS_##call, name, 0 } }, .of_a_page = true }

#define PERF(name) \
        { .what = "perf_event_open says " #name, .rules = { { SYS_perf_event_open, name, 0 } } }

static const struct refusal refusals[] = {
        PERF(EPERM), PERF(EACCES), PERF(ENOSYS), PERF(EMFILE), PERF(ENOSPC), PERF(ENODEV),
        PERF(EINVAL), PERF(ENOENT), PERF(EOPNOTSUPP), PERF(EBUSY), PERF(E2BIG),
        /*
         * As under a service manager's call filter, whose default is to kill. Nothing can be tried
         * there, so a library that chooses must not; who forces a backend has asked for the call.
         */
        { .what = "perf_event_open kills", .rules = { { SYS_perf_event_open, 0, 0 } },
          .unless_forced = true },
        PAGE(socket, EPERM), PAGE(socket, EAFNOSUPPORT), PAGE(socket, EMFILE),
        PAGE(connect, EACCES), PAGE(connect, EAGAIN), PAGE(connect, ENOSYS), PAGE(fcntl, EMFILE),
        PAGE(recvmsg, EPERM), PAGE(recvmsg, EAGAIN), PAGE(sendto, EPERM),
        { .what = "fstat says EPERM", .of_a_page = true,
          .rules = { { SYS_fstat, EPERM, 0 }, { SYS_newfstatat, EPERM, 0 } } },
        { .what = "socket kills", .rules = { { SYS_socket, 0, 0 } }, .unless_forced = true,
          .of_a_page = true },
        { .what = "mmap of a file says EPERM", .rules = { { SYS_mmap, EPERM, SANDBOX_WITH_FD } } },
        { .what = "mmap of a file says ENOMEM",
          .rules = { { SYS_mmap, ENOMEM, SANDBOX_WITH_FD } } },
        { .what = "madvise says EINVAL", .rules = { { SYS_madvise, EINVAL, 0 } } },
        { .what = "madvise says ENOSYS", .rules = { { SYS_madvise, ENOSYS, 0 } } },
        { .what = "membarrier says ENOSYS", .rules = { { SYS_membarrier, ENOSYS, 0 } } },
        { .what = "membarrier says EPERM", .rules = { { SYS_membarrier, EPERM, 0 } } },
        { .what = "gettid says EPERM", .rules = { { SYS_gettid, EPERM, 0 } } },
        { .what = "getpid says EPERM", .rules = { { SYS_getpid, EPERM, 0 } } },
        { .what = "prctl and ioctl say EPERM",
          .rules = { { SYS_prctl, EPERM, 0 }, { SYS_ioctl, EPERM, 0 } } },
        { .what = "rt_sigprocmask says EPERM", .rules = { { SYS_rt_sigprocmask, EPERM, 0 } },
          .alone = true },
        { .what = "no descriptors", .otherwise = no_descriptors },
        { .what = "no locked memory", .otherwise = no_locked_memory, .n_threads = 160 },
        { .what = "an empty root directory", .otherwise = empty_root },
        { .what = "nearly everything says ENOSYS", .otherwise = strict_enosys, .alone = true },
        { .what = "nearly everything says EPERM", .otherwise = strict_eperm, .alone = true },
};

struct attempt {
        const struct refusal *refusal;
        bool enrolled_before;
        int quiet_fd;           /* becomes stderr */
};

static _Atomic uint64_t sum_of_threads_ns;

static void *thread_main(void *argument) {
        const unsigned *n_samples = argument;
        struct tally t = {};

        for (unsigned i = 0; i < *n_samples; i++)
                (void)sample_thread(&t);
        tally_judge(&t, "a thread's clock");
        atomic_fetch_add(&sum_of_threads_ns, t.last_thread_ns);
        return NULL;
}

static void workload(const struct refusal *refusal) {
        unsigned n_threads = refusal->alone ? 0 : refusal->n_threads ? refusal->n_threads : 2;
        unsigned n_started = 0, n_samples = n_threads > 2 ? 200 : 2000;
        static pthread_t threads[160];
        struct tally t = {}, p = {};
        uint64_t sum_ns, now_ns;

        for (; n_started < n_threads; n_started++)
                if (!start_thread(&threads[n_started], thread_main, &n_samples))
                        break;
        for (unsigned i = 0; i < 1500; i++) {
                (void)sample_thread(&t);
                /* Its siblings' numbers are not known: only the caller may be judged beside them. */
                if (!n_threads)
                        (void)sample_process(&p, NULL, 0, 0);
                else
                        (void)reader->process_ns();
        }
        for (unsigned i = 0; i < n_started; i++)
                pthread_join(threads[i], NULL);
        for (unsigned i = 0; i < 1500; i++)
                (void)sample_process(&p, NULL, 0, 0);

        sum_ns = atomic_load(&sum_of_threads_ns) + reader->thread_ns();
        now_ns = reader->process_ns();
        if (now_ns < sum_ns)
                broken("the process clock says %llu ns, its threads had said %llu",
                       (unsigned long long)now_ns, (unsigned long long)sum_ns);
        tally_judge(&t, "the thread clock");
        tally_judge(&p, "the process clock");
}

static void grandchild(const void *argument) {
        struct refusal alone = { .alone = true };

        atomic_store(&sum_of_threads_ns, 0);    /* those threads were the parent's */
        workload(&alone);
}

static void attempt(const void *argument) {
        const struct attempt *a = argument;
        const struct refusal *r = a->refusal;
        unsigned n_rules = 0;

        if (dup2(a->quiet_fd, STDERR_FILENO) < 0)
                broken("the test could not replace stderr");
        if (a->enrolled_before)
                for (unsigned i = 0; i < 3000; i++) {
                        (void)reader->thread_ns();
                        (void)reader->process_ns();
                }
        if (a->enrolled_before)
                await_page();
        while (n_rules < 4 && (r->rules[n_rules].number || r->rules[n_rules].error))
                n_rules++;
        if (!(r->otherwise ? r->otherwise() : sandbox_refuse(r->rules, n_rules)))
                skip_child(r->what);
        workload(r);
        if (!r->alone)
                (void)in_child("a child forked under it", grandchild, NULL);
}

/* --- servers that give no page --------------------------------------------------------------- */

enum server_kind {
        SERVER_ABSENT,
        SERVER_NO_SOCKET,               /* a file of another kind in its place */
        SERVER_DEAF,                    /* listens, never accepts */
        SERVER_CLOSES,
        SERVER_SILENT,                  /* accepts and says nothing */
        SERVER_OTHER_PROTOCOL,
        SERVER_OTHER_VERSION,
        SERVER_SHORT,                   /* half a hello */
        SERVER_SILENT_REPLY,
        SERVER_CLOSES_REPLY,
        SERVER_REFUSES,
        SERVER_NO_FD,
        SERVER_OTHER_FD,                /* a descriptor that cannot be mapped */
        SERVER_ZEROES,                  /* one that can, without a page in it */
        SERVER_KINDS
};

static const char *const server_names[SERVER_KINDS] = {
        "no server", "no socket", "a server that never accepts", "a server that hangs up",
        "a server that says nothing", "a server of something else", "a server of another version",
        "half a hello", "a server that does not reply", "a server that hangs up instead of a reply",
        "a server that refuses", "a reply without a page", "a reply with something else",
        "a reply with zeroes",
};

static void send_with(int fd, const struct ct_message *message, size_t size, int passed) {
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int))];
        } control = {};
        struct iovec iov = { (void *)(uintptr_t)message, size };
        struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

        if (passed >= 0) {
                msg.msg_control = &control;
                msg.msg_controllen = sizeof(control);
                control.header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                                   .cmsg_len = CMSG_LEN(sizeof(int)) };
                memcpy(CMSG_DATA(&control.header), &passed, sizeof(int));
        }
        (void)sendmsg(fd, &msg, MSG_NOSIGNAL);
}

/* One client; what is said to it and then, it hangs up itself. */
static void serve_one(int client, enum server_kind kind) {
        struct ct_message message = { .magic = CT_PROTOCOL_MAGIC, .type = CT_MESSAGE_HELLO,
                                      .page_version = CT_PAGE_VERSION };
        int passed = -1;
        char byte;

        if (kind == SERVER_CLOSES)
                return;
        if (kind == SERVER_OTHER_PROTOCOL)
                message.magic++;
        if (kind == SERVER_OTHER_VERSION)
                message.page_version++;
        if (kind != SERVER_SILENT)
                send_with(client, &message, kind == SERVER_SHORT ? sizeof(message) / 2 : sizeof(message), -1);
        if (recv(client, &message, sizeof(message), 0) != sizeof(message) || kind == SERVER_CLOSES_REPLY)
                return;
        message.type = CT_MESSAGE_REPLY;
        message.generation = 1;
        message.entries = 64;
        if (kind == SERVER_REFUSES)
                message.error = EDQUOT;
        else if (kind == SERVER_OTHER_FD)
                passed = open("/dev/null", O_RDONLY | O_CLOEXEC);
        else if (kind == SERVER_ZEROES && (passed = memfd_create("zeroes", MFD_CLOEXEC)) >= 0)
                (void)ftruncate(passed, 64 * CT_PAGE_ENTRY_SIZE);
        if (kind != SERVER_SILENT_REPLY)
                send_with(client, &message, sizeof(message), passed);
        if (passed >= 0)
                close(passed);
        (void)recv(client, &byte, 1, 0);
}

static int listen_at(const char *path, enum server_kind kind) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd;

        (void)unlink(path);
        if (kind == SERVER_ABSENT)
                return -1;
        if (kind == SERVER_NO_SOCKET)
                return open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
        strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
            listen(fd, 0) < 0)
                broken("the test could not listen: %s", strerror(errno));
        return fd;
}

static unsigned descriptors_open(void) {
        struct dirent *entry;
        unsigned n = 0;
        DIR *d = opendir("/proc/self/fd");

        while (d && (entry = readdir(d)))
                n += entry->d_name[0] != '.' && atoi(entry->d_name) > STDERR_FILENO &&
                     atoi(entry->d_name) != dirfd(d);
        if (d)
                closedir(d);
        return n;
}

int refused_by_server(void) {
        struct refusal nothing = { .n_threads = 2 };
        unsigned before = descriptors_open();

        if (reader->library && cputime_backend_set(reader->backend) < 0)
                broken("cputime_backend_set failed");
        workload(&nothing);
        (void)in_child("a child beside such a server", grandchild, NULL);
        /* One more may be a connection that is still waited on. */
        if (descriptors_open() > before + 1)
                broken("%u descriptors are left open", descriptors_open() - before);
        if (pages_mapped())
                broken("%u pages are mapped", pages_mapped());
        return is_broken();
}

static void refused_by(enum server_kind kind, int quiet_fd) {
        char path[64];
        pid_t server = -1, pid;
        int status, fd;

        snprintf(path, sizeof(path), "%s/socket", empty_directory);
        fd = listen_at(path, kind);
        if (kind > SERVER_DEAF)
                server = fork();
        if (server == 0) {
                int client;

                (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
                while ((client = accept(fd, NULL, NULL)) >= 0) {
                        serve_one(client, kind);
                        close(client);
                }
                _exit(0);
        }
        pid = fork();
        if (pid == 0) {
                (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
                (void)dup2(quiet_fd, STDERR_FILENO);
                (void)setenv("CPUTIME_SOCKET", path, 1);
                execl("/proc/self/exe", "contract", "--reader", reader->name, "--inside", "child:refused",
                      NULL);
                _exit(127);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
                broken("%s: the test could not start itself", server_names[kind]);
        else if (status != 0)
                broken("%s: see above (status 0x%x)", server_names[kind], status);
        if (server > 0) {
                (void)kill(server, SIGKILL);
                (void)waitpid(server, NULL, 0);
        }
        if (fd >= 0)
                close(fd);
        (void)unlink(path);
}

void no_fast_path_is_no_failure(void) {
        char what[128];
        int quiet_fd = memfd_create("contract-stderr", MFD_CLOEXEC);
        struct stat st;

        if (quiet_fd < 0 || !mkdtemp(empty_directory)) {
                broken("the test could not make a file and a directory: %s", strerror(errno));
                return;
        }
        (void)chmod(empty_directory, 0755);
        for (unsigned i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
                for (unsigned enrolled = 0; enrolled < 2; enrolled++) {
                        struct attempt a = { &refusals[i], enrolled, quiet_fd };

                        bool forced = reader->backend != CPUTIME_BACKEND_AUTO &&
                                      reader->backend != CPUTIME_BACKEND_SYSCALL;

                        if ((refusals[i].unless_forced && forced) ||
                            (refusals[i].of_a_page && !reader->paged))
                                continue;
                        snprintf(what, sizeof(what), "%s%s", refusals[i].what,
                                 enrolled ? ", to a process that is enrolled" : "");
                        (void)in_child(what, attempt, &a);
                        if (fstat(quiet_fd, &st) == 0 && st.st_size > 0) {
                                broken("%s: something was written to stderr", what);
                                (void)ftruncate(quiet_fd, 0);
                                (void)lseek(quiet_fd, 0, SEEK_SET);
                        }
                }
        for (unsigned kind = 0; reader->paged && kind < SERVER_KINDS; kind++) {
                refused_by(kind, quiet_fd);
                if (fstat(quiet_fd, &st) == 0 && st.st_size > 0) {
                        broken("%s: something was written to stderr", server_names[kind]);
                        (void)ftruncate(quiet_fd, 0);
                        (void)lseek(quiet_fd, 0, SEEK_SET);
                }
        }
        (void)rmdir(empty_directory);
        close(quiet_fd);
}
