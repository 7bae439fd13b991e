/* SPDX-License-Identifier: MIT */
#include "daemon/sandbox.h"

#include <cap-ng.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/sockios.h>
#include <pwd.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

int ct_sandbox_drop(const char *user, const char **ret_user) {
        struct passwd *passwd = NULL;
        int r;

        if (capng_get_caps_process() < 0)
                return -errno;
        if (!capng_have_capability(CAPNG_PERMITTED, CAP_BPF) ||
            !capng_have_capability(CAPNG_PERMITTED, CAP_PERFMON))
                return -EPERM;
        if (geteuid() == 0) {
                errno = 0;
                passwd = getpwnam(user);
                if (!passwd && errno != 0 && errno != ENOENT && errno != ESRCH)
                        return -errno;
        }

        capng_clear(CAPNG_SELECT_ALL);
        (void)capng_updatev(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED, CAP_BPF, CAP_PERFMON, -1);
        errno = EPERM;
        if (passwd)
                r = capng_change_id((int)passwd->pw_uid, (int)passwd->pw_gid,
                                    CAPNG_DROP_SUPP_GRP | CAPNG_CLEAR_BOUNDING | CAPNG_CLEAR_AMBIENT);
        else if (geteuid() == 0)
                r = capng_apply(CAPNG_SELECT_ALL);
        else
                r = capng_apply(CAPNG_SELECT_CAPS);    /* who may not touch the bounding set */
        if (r < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return -errno;
        *ret_user = passwd ? user : NULL;
        return 0;
}

/* By what of theirs needs them. */
static const int allowed[] = {
        /* the loop */
        SCMP_SYS(accept4), SCMP_SYS(epoll_ctl), SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait),
        SCMP_SYS(epoll_create1), SCMP_SYS(getsockopt), SCMP_SYS(setsockopt), SCMP_SYS(pidfd_open),
        SCMP_SYS(recvfrom), SCMP_SYS(recvmsg), SCMP_SYS(sendmsg), SCMP_SYS(shutdown), SCMP_SYS(poll),
        SCMP_SYS(ppoll), SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(close), SCMP_SYS(fcntl),
        SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(prlimit64), SCMP_SYS(getrlimit),
        SCMP_SYS(setrlimit), SCMP_SYS(unlink), SCMP_SYS(unlinkat),
        /* libbpf: the kernel's types, how many CPUs there are, maps of memory */
        SCMP_SYS(openat), SCMP_SYS(open), SCMP_SYS(fstat), SCMP_SYS(stat), SCMP_SYS(newfstatat),
        SCMP_SYS(statx), SCMP_SYS(lseek), SCMP_SYS(pread64), SCMP_SYS(access), SCMP_SYS(faccessat),
        SCMP_SYS(faccessat2), SCMP_SYS(uname), SCMP_SYS(getpid), SCMP_SYS(gettid), SCMP_SYS(dup3),
        SCMP_SYS(sched_getaffinity),
        /* the C library: memory, the end */
        SCMP_SYS(brk), SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise),
        SCMP_SYS(mprotect), SCMP_SYS(futex), SCMP_SYS(getrandom), SCMP_SYS(rt_sigprocmask),
        SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigreturn), SCMP_SYS(restart_syscall), SCMP_SYS(tgkill),
        SCMP_SYS(exit), SCMP_SYS(exit_group),
};

/* What the loader does; it can neither take over other programs and maps by id nor pin anything. */
static const uint64_t bpf_commands[] = {
        BPF_MAP_CREATE, BPF_MAP_UPDATE_ELEM, BPF_MAP_UPDATE_BATCH, BPF_MAP_DELETE_ELEM,
        BPF_MAP_LOOKUP_ELEM, BPF_MAP_FREEZE, BPF_PROG_LOAD, BPF_PROG_BIND_MAP, BPF_BTF_LOAD,
        BPF_LINK_CREATE, BPF_RAW_TRACEPOINT_OPEN, BPF_ITER_CREATE, BPF_OBJ_GET_INFO_BY_FD,
};

static int ct_allow_if(scmp_filter_ctx filter, int call, unsigned int argument, uint64_t value) {
        struct scmp_arg_cmp is = { .arg = argument, .op = SCMP_CMP_EQ, .datum_a = value };

        return seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, call, 1, &is);
}

int ct_sandbox_filter(void) {
        scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
        int r = 0;

        if (!filter)
                return -ENOMEM;
        for (size_t i = 0; r == 0 && i < sizeof(allowed) / sizeof(allowed[0]); i++) {
                r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i], 0);
                /* Not every architecture has every one. */
                if (r == -EDOM)
                        r = 0;
        }
        for (size_t i = 0; r == 0 && i < sizeof(bpf_commands) / sizeof(bpf_commands[0]); i++)
                r = ct_allow_if(filter, SCMP_SYS(bpf), 0, bpf_commands[i]);
        if (r == 0)
                r = ct_allow_if(filter, SCMP_SYS(ioctl), 1, SIOCOUTQ);
        /* For sd_notify(). */
        if (r == 0)
                r = ct_allow_if(filter, SCMP_SYS(socket), 0, AF_UNIX);
        if (r == 0)
                r = seccomp_load(filter);
        seccomp_release(filter);
        return r;
}
