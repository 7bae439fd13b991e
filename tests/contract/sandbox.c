/* SPDX-License-Identifier: MIT */
/*
 * See sandbox.h. Counting uses SECCOMP_RET_TRAP: the thread gets SIGSYS in place of the call, and
 * the handler makes the call for it, with the cookie. Unlike a tracer or a notification
 * descriptor this switches to no other thread, which would itself make the clocks re-base.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <ucontext.h>

#include "sandbox.h"

_Atomic uint64_t sandbox_calls[SANDBOX_NUMBERS];

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define LOW_WORD(i) (offsetof(struct seccomp_data, args) + 8 * (i))
#else
#define LOW_WORD(i) (offsetof(struct seccomp_data, args) + 8 * (i) + 4)
#endif

#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (offset))
#define IF_EQUAL(value, then, otherwise) \
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), (then), (otherwise))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, (action))

long allowed_syscall(long number, long a, long b, long c, long d, long e) {
        int saved_errno = errno;
        long r = syscall(number, a, b, c, d, e, SANDBOX_COOKIE);

        errno = saved_errno;
        return r;
}

static bool install(struct sock_filter *code, unsigned n) {
        struct sock_fprog program = { .len = (unsigned short)n, .filter = code };

        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC,
                       &program) == 0;
}

#define HEAD \
        LOAD(LOW_WORD(5)), \
        IF_EQUAL(SANDBOX_COOKIE, 0, 1), \
        RETURN(SECCOMP_RET_ALLOW), \
        LOAD(offsetof(struct seccomp_data, nr))

bool sandbox_refuse(const struct sandbox_rule *rules, unsigned n_rules) {
        struct sock_filter code[64] = { HEAD };
        unsigned n = 4;

        for (unsigned i = 0; i < n_rules && n + 5 < 64; i++) {
                uint32_t action = rules[i].error ? SECCOMP_RET_ERRNO | (uint32_t)rules[i].error
                                                 : SECCOMP_RET_KILL_PROCESS;

                if (rules[i].when == SANDBOX_ALWAYS) {
                        code[n++] = (struct sock_filter)IF_EQUAL(rules[i].number, 0, 1);
                } else {
                        code[n++] = (struct sock_filter)IF_EQUAL(rules[i].number, 0, 4);
                        code[n++] = (struct sock_filter)LOAD(LOW_WORD(4));
                        code[n++] = (struct sock_filter)IF_EQUAL(-1, 0, 1);
                        code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
                }
                code[n++] = (struct sock_filter)RETURN(action);
        }
        code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
        return install(code, n);
}

bool sandbox_refuse_nearly_everything(int error) {
        static const long needed[] = { SYS_clock_gettime, SYS_write, SYS_exit, SYS_exit_group,
                                       SYS_rt_sigreturn, SYS_futex };
        struct sock_filter code[64] = { HEAD };
        unsigned n = 4;

        for (unsigned i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
                code[n++] = (struct sock_filter)IF_EQUAL(needed[i], 0, 1);
                code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
        }
        code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | (uint32_t)error);
        return install(code, n);
}

#if defined(__x86_64__) || defined(__aarch64__)
static void on_sigsys(int sig, siginfo_t *info, void *context) {
        ucontext_t *uc = context;
        int saved_errno = errno;
        long r;

#ifdef __x86_64__
        greg_t *g = uc->uc_mcontext.gregs;

        r = syscall(info->si_syscall, g[REG_RDI], g[REG_RSI], g[REG_RDX], g[REG_R10], g[REG_R8],
                    SANDBOX_COOKIE);
        g[REG_RAX] = r < 0 ? -errno : r;
#else
        unsigned long long *g = uc->uc_mcontext.regs;

        r = syscall(info->si_syscall, g[0], g[1], g[2], g[3], g[4], SANDBOX_COOKIE);
        g[0] = (unsigned long long)(r < 0 ? -errno : r);
#endif
        atomic_fetch_add(&sandbox_calls[info->si_syscall < SANDBOX_NUMBERS ? info->si_syscall
                                                                          : SANDBOX_NUMBERS - 1], 1);
        errno = saved_errno;
}

bool sandbox_count(void) {
        /*
         * Not counted: what cannot be made from within a handler (a new thread would start on its
         * frame), what ends things, and mmap, which needs its sixth argument.
         */
        static const long passed[] = { SYS_rt_sigreturn, SYS_exit, SYS_exit_group, SYS_clone,
                                       SYS_clone3, SYS_mmap };
        struct sigaction action = { .sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO | SA_NODEFER };
        struct sock_filter code[64] = { HEAD };
        unsigned n = 4;

        for (unsigned i = 0; i < sizeof(passed) / sizeof(passed[0]); i++) {
                code[n++] = (struct sock_filter)IF_EQUAL(passed[i], 0, 1);
                code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
        }
        code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_TRAP);
        return sigaction(SIGSYS, &action, NULL) == 0 && install(code, n);
}
#else
bool sandbox_count(void) {
        return false;
}
#endif
