/* SPDX-License-Identifier: MIT */
/*
 * Every inline function of the accounting rules, called once, in one translation unit without a
 * library: tools/link32.sh links it for 32-bit targets without libgcc, so that a 64-bit division,
 * a 64-bit atomic or a copied struct, which would call a helper there, fails the link. The values
 * are volatile for that nothing can be computed at compile time.
 */
#include "account/group.h"
#include "account/runtime.h"
#include "account/task.h"
#include "base/seqcount.h"

void ct_link32(void);

static volatile uint64_t in, out;
static struct ct_task task;
static struct ct_group group;

void ct_link32(void) {
        uint64_t ns = 0;
        uint32_t start;

        out = ct_runtime_at(in, (uint32_t)in, in);

        ct_task_switch_in(&task, in);
        ct_task_switch_out(&task, in);
        out = ct_task_read(&task, in);
        if (ct_task_try_read(&task, in, &ns))
                out = ns;

        ct_group_charge(&group, in);
        ct_group_switch_in(&group, &task, in);
        ct_group_switch_out(&group, &task, in);
        out = ct_group_read(&group, in);
        if (ct_group_try_read(&group, in, &ns))
                out = ns;

        ct_seqcount_write_begin(&task.seq);
        ct_task_in(&task, in);
        ct_task_out(&task, in);
        ct_seqcount_write_end(&task.seq);

        ct_seqcount_write_lock(&group.seq);
        ct_group_in(&group, in);
        ct_group_out(&group, in);
        ct_seqcount_write_end(&group.seq);

        start = ct_seqcount_read_begin(&group.seq);
        out = ct_group_peek(&group, in) + ct_task_peek(&task, in);
        out = ct_seqcount_read_valid(&group.seq, start);

        ct_u32_set(&task.running, (uint32_t)in);
        out = ct_u32_get(&task.running);
        ct_u64_set(&task.runtime_ns, in);
        out = ct_u64_get(&task.runtime_ns);
}
