// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The floor under whatever hooks the switch: what the kernel takes to call a program there that
 * does nothing. `cputime bench pipe` has it as a row of its own, since below it nothing can be
 * saved by a better program.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual MIT/GPL";

SEC("tp_btf/sched_switch")
int ct_empty(void *ctx) {
        return 0;
}
