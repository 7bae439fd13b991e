// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Run by alive.c: the ids of all BPF maps that there are. Attached to nothing. */
#include <stdint.h>

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual MIT/GPL";

#define ct_kernel __attribute__((preserve_access_index))

struct seq_file;

struct bpf_iter_meta {
        struct seq_file *seq;
} ct_kernel;

struct bpf_map {
        uint32_t id;
} ct_kernel;

struct bpf_iter__bpf_map {
        struct bpf_iter_meta *meta;
        struct bpf_map *map;
} ct_kernel;

SEC("iter/bpf_map")
int ct_maps(struct bpf_iter__bpf_map *ctx) {
        struct bpf_map *map = ctx->map; /* looked at once: the verifier takes each look for another */
        uint32_t id;

        if (!map)
                return 0;
        id = map->id;
        bpf_seq_write(ctx->meta->seq, &id, sizeof(id));
        return 0;
}
