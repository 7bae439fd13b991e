/* SPDX-License-Identifier: MIT */
#ifndef CT_SIGNALS_H
#define CT_SIGNALS_H
/*
 * Blocks every signal around a critical section: nobody's handler may interrupt it and read a
 * clock, and nobody may jump out of it.
 *
 * By the raw system call: pthread_sigmask() leaves out the two signals that libc keeps for
 * cancellation and set*id(), whose handlers can unwind the stack too.
 */
#include <errno.h>
#include <stdint.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ct_signal_mask {
        unsigned long words[128 / (8 * sizeof(unsigned long))]; /* the kernel takes _NSIG / 8 bytes */
};

#define CT_SIGNAL_MASK_SIZE (_NSIG / 8)

static inline void ct_signals_block(struct ct_signal_mask *ret_old) {
        struct ct_signal_mask all;
        int saved_errno = errno;

        for (unsigned int i = 0; i < sizeof(all.words) / sizeof(all.words[0]); i++)
                all.words[i] = ~0UL;
        (void)syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, ret_old, (long)CT_SIGNAL_MASK_SIZE);
        errno = saved_errno;
}

static inline void ct_signals_restore(const struct ct_signal_mask *old) {
        int saved_errno = errno;

        (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, old, (void *)0, (long)CT_SIGNAL_MASK_SIZE);
        errno = saved_errno;
}

#endif /* CT_SIGNALS_H */
