/* SPDX-License-Identifier: MIT */
/*
 * Why a backend works here or does not: tries it, and says what the kernel's answer means.
 *
 * The same calls as enrolment makes, on the calling thread, so that there is no second opinion. For
 * the page that is the whole way: many of the reasons against it, a quota, a kernel that does not take
 * the program, a clock that is not the page's, show only when one is asked for, or read. Here it can be
 * waited for. The process has a page for as long as this takes, and nobody uses it.
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/nsec.h"
#include "clock/clock.h"
#include "clock/page.h"
#include "source/page/protocol.h"
#include "source/perf/perf-map.h"

/* For each message of cputimed's, and for the page to go live. */
#define CT_PROBE_WAIT_MS 1000

struct ct_verdict {
        const char *step;
        int error;
        const char *meaning;
        const char *remedy;
};

#define CT_ANY_ERROR 0

#define CT_REMEDY_RUN "run cputimed, or `cputime run` as root"
#define CT_NOT_CPUTIMED "what answers there is not cputimed", "the right path in " CT_SOCKET_VARIABLE

/* The first one that fits. */
static const struct ct_verdict ct_verdicts[] = {
        { "perf_event_open", EACCES,
          "perf events on own threads are not allowed to this user (perf_event_paranoid above 2)",
          "sysctl kernel.perf_event_paranoid=2, or run with CAP_PERFMON" },
        { "perf_event_open", EPERM,
          "perf events are forbidden here: by a seccomp filter, a security module or a container",
          "allow perf_event_open(2) in the sandbox's profile, or run with CAP_PERFMON" },
        { "perf_event_open", ENOSYS,
          "this kernel has no perf events, or a sandbox hides them",
          "a kernel with CONFIG_PERF_EVENTS" },
        { "perf_event_open", EMFILE,
          "no free file descriptor: one is needed for an instant",
          "raise the limit of open files (ulimit -n) by one" },
        { "perf_event_open", ENFILE,
          "the machine has no free file descriptor",
          "sysctl fs.file-max" },
        { "perf_event_open", EINVAL,
          "this kernel is too old for switch records (Linux 4.3)",
          "a newer kernel" },
        { "perf_event_open", ENOMEM, "the kernel has no memory for the event", "free memory" },
        { "mmap", EPERM,
          "the locked-memory quota for perf buffers is used up, by this or another program of the user",
          "raise kernel.perf_event_mlock_kb or the limit of locked memory (ulimit -l)" },
        { "mmap", ENOMEM,
          "no address space left for the perf page",
          "raise the limit of address space (ulimit -v)" },
        { "madvise", EINVAL,
          "this kernel cannot wipe memory in a forked child (MADV_WIPEONFORK, Linux 4.14)",
          "a newer kernel" },
        { "pointers", EOPNOTSUPP,
          "fast clocks need a 64-bit program",
          "build for a 64-bit target" },

        { CT_SOCKET_VARIABLE, ENAMETOOLONG,
          "the name of cputimed's socket is longer than such a name can be",
          "a shorter path in " CT_SOCKET_VARIABLE },
        { "socket", EMFILE, "no free file descriptor", "raise the limit of open files (ulimit -n)" },
        { "socket", ENFILE, "the machine has no free file descriptor", "sysctl fs.file-max" },
        { "socket", CT_ANY_ERROR,
          "Unix sockets are forbidden here: by a seccomp filter, a security module or a container",
          "allow them in the sandbox's profile" },
        { "connect to cputimed", ENOENT, "cputimed is not running: there is no socket", CT_REMEDY_RUN },
        { "connect to cputimed", ECONNREFUSED,
          "cputimed is not running: nobody listens at its socket", CT_REMEDY_RUN },
        { "connect to cputimed", EACCES,
          "this user may not write to cputimed's socket, or not enter a directory above it",
          "change their permissions" },
        { "connect to cputimed", EPERM,
          "connecting is forbidden here: by a seccomp filter, a security module or a container",
          "allow it in the sandbox's profile" },
        { "connect to cputimed", EAGAIN, "cputimed is not keeping up with its clients", "try again" },
        { "connect to cputimed", EPROTOTYPE, CT_NOT_CPUTIMED },
        { "hello of cputimed", EPROTO, CT_NOT_CPUTIMED },
        { "hello of cputimed", EPROTONOSUPPORT,
          "cputimed makes pages of another version than this program reads",
          "the same version of both; restart cputimed" },
        { "hello of cputimed", ETIMEDOUT,
          "cputimed takes connections and does not answer", "restart cputimed; its log may say why" },
        { "hello of cputimed", ECONNRESET,
          "cputimed turned this user's connection away: it has too many that do not ask for a page",
          "try again" },
        { "join", EDQUOT,
          "this user has as many processes with a page as cputimed allows",
          "cputimed --per-user with a larger number" },
        { "join", EPERM,
          "this process is in a pid namespace that cputimed does not see; or cputimed lacks the "
          "privilege, or the kernel is locked down",
          "run cputimed as root, or with CAP_BPF and CAP_PERFMON, in the initial pid namespace" },
        { "join", ESRCH,
          "cputimed does not find this process: it is in another pid namespace; or this kernel is too "
          "old",
          "run cputimed in the initial pid namespace; its log says more" },
        { "join", EOPNOTSUPP,
          "cputimed is not in the initial pid namespace", "run it there" },
        { "join", ENOSPC, "as many processes have a page as there can be", "" },
        { "join", E2BIG, "this process has too many threads for a page, or the machine too many CPUs", "" },
        { "join", ENOMEM, "the kernel has no memory for a page", "free memory" },
        { "join", EAGAIN,
          "processes of this user ask for pages faster than cputimed gives them", "try again" },
        { "join", ETIMEDOUT, "cputimed does not answer", "try again; its log may say why" },
        { "join", ECONNRESET,
          "cputimed ended the connection: another thread of this process asked for a page, or it ended "
          "itself", "try again" },
        { "join", CT_ANY_ERROR,
          "cputimed could not load its program: this kernel is too old, or was built without BTF",
          "a newer kernel, with CONFIG_DEBUG_INFO_BTF; cputimed's log says more" },
        { "page", EOPNOTSUPP,
          "this process is in a time namespace: its clock is not the page's",
          "the initial time namespace" },
        { "page", ETIMEDOUT, "the page did not go live within a second", "try again" },
        { "page", EAGAIN, "the page was given up: a thread of this process is traced, maybe", "try again" },
        { "page", CT_ANY_ERROR, "the page cannot be mapped", "" },
};

static void ct_verdict_find(const char *step, int error, struct cputime_probe *ret_probe) {
        ret_probe->step = step;
        ret_probe->error = error;
        ret_probe->meaning = "the kernel refused";
        ret_probe->remedy = "";
        for (size_t i = 0; i < sizeof(ct_verdicts) / sizeof(ct_verdicts[0]); i++) {
                if ((ct_verdicts[i].error == error || ct_verdicts[i].error == CT_ANY_ERROR) &&
                    strcmp(ct_verdicts[i].step, step) == 0) {
                        ret_probe->meaning = ct_verdicts[i].meaning;
                        ret_probe->remedy = ct_verdicts[i].remedy;
                        break;
                }
        }
}

/* Whether fork can be survived: without it there is no fast clock at all. */
static int ct_probe_wipe(void) {
        size_t size = ct_perf_page_size();
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int r = 0;

        if (p == MAP_FAILED)
                return -errno;
        if (madvise(p, size, MADV_WIPEONFORK) < 0)
                r = -errno;
        (void)munmap(p, size);
        return r;
}

/* The next message of the type TYPE, and the descriptor that came with it or -1. Returns 0 or -errno. */
static int ct_probe_receive(int fd, enum ct_message_type type, struct ct_message *ret_message,
                            int *ret_fd) {
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec iov = { .iov_base = ret_message, .iov_len = sizeof(*ret_message) };
        struct msghdr msg = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = sizeof(control),
        };
        struct pollfd pollfd = { .fd = fd, .events = POLLIN };
        struct cmsghdr *cmsg;
        ssize_t n;

        do
                n = poll(&pollfd, 1, CT_PROBE_WAIT_MS);
        while (n < 0 && errno == EINTR);
        if (n <= 0)
                return n < 0 ? -errno : -ETIMEDOUT;
        n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0)
                return -errno;
        *ret_fd = -1;
        cmsg = CMSG_FIRSTHDR(&msg);
        if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS &&
            cmsg->cmsg_len == CMSG_LEN(sizeof(int)))
                memcpy(ret_fd, CMSG_DATA(cmsg), sizeof(int));
        if (n == sizeof(*ret_message) && ret_message->magic == CT_PROTOCOL_MAGIC &&
            ret_message->type == type)
                return 0;
        if (*ret_fd >= 0)
                (void)close(*ret_fd);
        return n == 0 ? -ECONNRESET : -EPROTO;
}

/* Connects to cputimed, which serves pages that we can read. Returns a descriptor or -errno. */
static int ct_probe_connect(const char **ret_step) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        const char *path = ct_page_socket_path();
        struct ct_message hello;
        int fd, unused, r;

        *ret_step = CT_SOCKET_VARIABLE;
        if (strlen(path) >= sizeof(address.sun_path))
                return -ENAMETOOLONG;
        strcpy(address.sun_path, path);
        *ret_step = "socket";
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        *ret_step = "connect to cputimed";
        r = connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
        if (r == 0) {
                *ret_step = "hello of cputimed";
                r = ct_probe_receive(fd, CT_MESSAGE_HELLO, &hello, &unused);
                if (r == 0 && hello.page_version != CT_PAGE_VERSION)
                        r = -EPROTONOSUPPORT;
        }
        if (r < 0)
                (void)close(fd);
        return r < 0 ? r : fd;
}

/* Whether PAGE serves the caller, and says of it what was published lately: its time is ours. */
static bool ct_probe_serves(const union ct_page_entry *page) {
        const struct ct_page_slot *own = ct_page_find(page, (pid_t)syscall(SYS_gettid));
        bool running = false;
        uint64_t ns;

        return own && ct_page_group(page, &ns) &&
               ct_page_thread(own, page->group.age_ns, &ns, &running) && running &&
               ct_page_acquire(&own->last_ns) <= ct_vdso_monotonic_ns();
}

/* Waits until PAGE can be read. */
static int ct_probe_live(const union ct_page_entry *page) {
        const struct timespec nap = { .tv_nsec = CT_NSEC_PER_MSEC };

        for (unsigned int ms = 0; !ct_probe_serves(page); ms++) {
                uint32_t state = ct_page_acquire(&page->group.state);

                if (state == CT_PAGE_BROKEN)
                        return -EAGAIN;
                if (ms == CT_PROBE_WAIT_MS)
                        return state == CT_PAGE_LIVE ? -EOPNOTSUPP : -ETIMEDOUT;
                (void)nanosleep(&nap, NULL);
        }
        return 0;
}

/* Asks for a page over FD and tries it. */
static int ct_probe_join(int fd, const char **ret_step) {
        struct ct_message reply, join = {
                .magic = CT_PROTOCOL_MAGIC,
                .type = CT_MESSAGE_JOIN,
                .page_version = CT_PAGE_VERSION,
        };
        union ct_page_entry *page;
        size_t size;
        int page_fd, r;

        *ret_step = "join";
        if (send(fd, &join, sizeof(join), MSG_NOSIGNAL) < 0)
                return -errno;
        r = ct_probe_receive(fd, CT_MESSAGE_REPLY, &reply, &page_fd);
        if (r < 0)
                return r;
        if (reply.error > 0 || page_fd < 0)
                return reply.error > 0 ? -reply.error : -EPROTO;
        *ret_step = "page";
        size = (size_t)reply.entries * CT_PAGE_ENTRY_SIZE;
        page = mmap(NULL, size, PROT_READ, MAP_SHARED, page_fd, 0);
        r = page == MAP_FAILED ? -errno : 0;
        (void)close(page_fd);
        if (r < 0)
                return r;
        r = ct_probe_live(page);
        (void)munmap(page, size);
        return r;
}

static int ct_probe_page(const char **ret_step) {
        struct ct_process *p = ct_self.vforked ? NULL : ct_process_peek();
        int fd, r;

        if (p && ct_load(&p->page))
                return 0;
        fd = ct_probe_connect(ret_step);
        if (fd < 0)
                return fd;
        r = ct_probe_join(fd, ret_step);
        (void)close(fd);
        return r;
}

__attribute__((visibility("default")))
int cputime_backend_probe(enum cputime_backend backend, struct cputime_probe *ret_probe) {
        struct cputime_probe usable = { .step = "", .meaning = "usable", .remedy = "" };
        enum ct_perf_kind kind = CT_PERF_RING;
        const char *step = "";
        void *address;
        int r;

        switch (backend) {
        case CPUTIME_BACKEND_SYSCALL:
                *ret_probe = usable;
                return 0;
        case CPUTIME_BACKEND_RING:
        case CPUTIME_BACKEND_PAGE:
                break;
        case CPUTIME_BACKEND_HEADER:
                kind = CT_PERF_HEADER;
                break;
        default:
                return -EINVAL;
        }

        if (!CT_FAST_CLOCKS) {
                ct_verdict_find("pointers", EOPNOTSUPP, ret_probe);
                return 0;
        }
        r = ct_probe_wipe();
        if (r < 0) {
                ct_verdict_find("madvise", -r, ret_probe);
                return 0;
        }
        if (backend == CPUTIME_BACKEND_PAGE) {
                r = ct_probe_page(&step);
        } else {
                r = ct_perf_map(kind, 0, NULL, &address, &step);
                if (r == 0)
                        ct_perf_unmap(kind, address);
        }
        if (r < 0) {
                ct_verdict_find(step, -r, ret_probe);
                return 0;
        }
        *ret_probe = usable;
        return 0;
}
