/* SPDX-License-Identifier: MIT */
/* See bench-hook.h. The programs themselves are in src/source/page/. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include <bpf/libbpf.h>

#include "cli/bench-hook.h"
#include "empty.skel.h"

static struct ct_empty_bpf *empty;

/* What libbpf would print is in the error it returns. */
static int silent(enum libbpf_print_level level, const char *format, va_list args) {
        return 0;
}

static int attach_empty(void) {
        int r;

        if (!empty) {
                libbpf_set_print(silent);
                empty = ct_empty_bpf__open_and_load();
                if (!empty)
                        return -errno;
        }
        r = ct_empty_bpf__attach(empty);
        if (r < 0)
                ct_empty_bpf__detach(empty);
        return r;
}

int bench_hook_attach(enum bench_hook kind, const char **ret_why) {
        int r = 0;

        switch (kind) {
        case BENCH_HOOK_NONE:
                break;
        case BENCH_HOOK_EMPTY:
                r = attach_empty();
                break;
        case BENCH_HOOK_PAGE_OTHERS:
        case BENCH_HOOK_PAGE:
                r = -ENOSYS;
                break;
        }
        if (r == -EPERM || r == -EACCES)
                *ret_why = "needs root, or CAP_BPF and CAP_PERFMON";
        else if (r == -ENOSYS)
                *ret_why = "not available in this version";
        else if (r < 0)
                *ret_why = strerror(-r);
        return r;
}

void bench_hook_detach(enum bench_hook kind) {
        if (kind == BENCH_HOOK_EMPTY)
                ct_empty_bpf__detach(empty);
}

void bench_hook_done(void) {
        ct_empty_bpf__destroy(empty);
        empty = NULL;
}
