/* SPDX-License-Identifier: MIT */
/*
 * Group runtime in constant time against a walk over all tasks that ever were, over random streams
 * in which tasks come and end and the CPUs' stamps disagree; then several writers against readers
 * that take their stamps inside the sections.
 */
#include <pthread.h>
#include <string.h>

#include "../../tests/check.h"
#include "account/group.h"

#define N_STREAMS 100
#define N_TASKS 24
#define N_EVENTS 2000
#define N_WRITERS 2
#define N_SEEN 2000             /* publications that each reader must have met before all end */
#define LAST_TICK 8000000       /* where all end anyway, on a single CPU */
#define N_READERS 2
#define N_SWITCH_INS 500000     /* of each writer of the coverage test */
#define SKEW_NS 1000            /* how much the stamps of two CPUs differ */

static void group_is_the_sum_of_its_tasks(uint64_t *random) {
        for (unsigned stream = 0; stream < N_STREAMS; stream++) {
                struct ct_task task[N_TASKS] = {};
                struct ct_group group = {};
                uint64_t beside_ns = 0, latest_ns = check_random(random) >> 2;

                for (unsigned i = 0; i < N_EVENTS; i++) {
                        uint64_t r = check_random(random), now_ns, sum_ns = 0;
                        struct ct_task *t = &task[r % N_TASKS];

                        latest_ns += r >> 44;
                        now_ns = latest_ns - check_random(random) % SKEW_NS;
                        switch (check_random(random) % 8) {
                        case 0:         /* the task ends; another takes its place */
                                ct_group_switch_out(&group, t, now_ns);
                                beside_ns += ct_task_read(t, now_ns);
                                memset(t, 0, sizeof(*t));
                                break;
                        case 1:         /* one enrolled late brings its past */
                                ct_group_charge(&group, r >> 30);
                                beside_ns += r >> 30;
                                break;
                        case 2:
                        case 3:
                        case 4:
                                ct_group_switch_in(&group, t, now_ns);
                                break;
                        default:
                                ct_group_switch_out(&group, t, now_ns);
                                break;
                        }
                        for (unsigned k = 0; k < N_TASKS; k++)
                                sum_ns += ct_task_read(&task[k], latest_ns);
                        CHECK(ct_group_read(&group, latest_ns) == beside_ns + sum_ns,
                              "stream %u, event %u: %llu, expected %llu", stream, i,
                              (unsigned long long)ct_group_read(&group, latest_ns),
                              (unsigned long long)(beside_ns + sum_ns));
                }
        }
}

/* A reader that took its stamp just before a switch in was published must not read less for it. */
static void old_stamp_reads_the_latest_state(void) {
        struct ct_task a = {}, b = {};
        struct ct_group group = {};
        uint64_t ns = 42;

        ct_group_switch_in(&group, &a, 0);
        CHECK(ct_group_read(&group, 110) == 110, "one task");
        ct_group_switch_in(&group, &b, 120);
        CHECK(ct_group_read(&group, 110) == 120, "%llu",
              (unsigned long long)ct_group_read(&group, 110));
        CHECK(ct_group_read(&group, 130) == 140, "two tasks");

        ct_group_switch_out(&group, &b, 100);   /* ends before it began: 0 ns, in both */
        CHECK(ct_group_read(&group, 130) == 130 && ct_task_read(&b, 130) == 0, "%llu",
              (unsigned long long)ct_group_read(&group, 130));

        ct_seqcount_write_lock(&group.seq);
        CHECK(!ct_group_try_read(&group, 130, &ns) && ns == 42, "an open section was read");
        ct_seqcount_write_end(&group.seq);
        CHECK(ct_group_try_read(&group, 130, &ns) && ns == 130, "%llu", (unsigned long long)ns);
}

static struct ct_group shared;
static pthread_barrier_t start_line;
static atomic_bool stop;
static atomic_uint nr_readers;          /* those that have not seen enough yet */
static _Atomic uint32_t logical_clock, largest;

static uint64_t tick(void) {
        return atomic_fetch_add(&logical_clock, 1);
}

static void *switch_tasks(void *ret_sum) {
        uint64_t sum_ns = 0;

        pthread_barrier_wait(&start_line);
        while (atomic_load(&nr_readers) && atomic_load(&logical_clock) < LAST_TICK) {
                uint64_t in_ns, out_ns;

                ct_seqcount_write_lock(&shared.seq);
                in_ns = tick();
                ct_group_in(&shared, in_ns);
                ct_seqcount_write_end(&shared.seq);

                ct_seqcount_write_lock(&shared.seq);
                out_ns = tick();
                ct_group_out(&shared, out_ns);
                ct_seqcount_write_end(&shared.seq);
                sum_ns += out_ns - in_ns;
        }
        *(uint64_t *)ret_sum = sum_ns;
        return NULL;
}

static void *read_group(void *unused) {
        pthread_barrier_wait(&start_line);
        for (uint32_t seen = 0, last = 0; !atomic_load(&stop);) {
                uint32_t floor = atomic_load(&largest), start;
                uint64_t ns;

                do {
                        start = ct_seqcount_read_begin(&shared.seq);
                        ns = ct_group_peek(&shared, tick());
                } while (!ct_seqcount_read_valid(&shared.seq, start));

                CHECK(ns >= floor, "read %llu after somebody had read %u",
                      (unsigned long long)ns, floor);
                while (floor < ns &&
                       !atomic_compare_exchange_weak(&largest, &floor, (uint32_t)ns))
                        ;
                if (start != last && ++seen == N_SEEN)
                        atomic_fetch_sub(&nr_readers, 1);
                last = start;
        }
        return NULL;
}

static void process_clock_never_goes_backwards(void) {
        pthread_t readers[N_READERS], writers[N_WRITERS];
        uint64_t sums_ns[N_WRITERS], sum_ns = 0;

        atomic_store(&nr_readers, N_READERS);
        pthread_barrier_init(&start_line, NULL, N_READERS + N_WRITERS);
        for (unsigned i = 0; i < N_READERS; i++)
                CHECK(pthread_create(&readers[i], NULL, read_group, NULL) == 0, "pthread_create");
        for (unsigned i = 0; i < N_WRITERS; i++)
                CHECK(pthread_create(&writers[i], NULL, switch_tasks, &sums_ns[i]) == 0,
                      "pthread_create");
        for (unsigned i = 0; i < N_WRITERS; i++) {
                pthread_join(writers[i], NULL);
                sum_ns += sums_ns[i];
        }
        atomic_store(&stop, true);
        for (unsigned i = 0; i < N_READERS; i++)
                pthread_join(readers[i], NULL);
        CHECK(atomic_load(&largest) <= sum_ns, "a reader saw %u, used were %llu",
              atomic_load(&largest), (unsigned long long)sum_ns);
        CHECK(ct_u32_get(&shared.nr_running) == 0, "%u still run", ct_u32_get(&shared.nr_running));
        CHECK(ct_group_read(&shared, tick()) == sum_ns, "%llu, expected %llu",
              (unsigned long long)ct_group_read(&shared, tick()), (unsigned long long)sum_ns);
}

/*
 * Every switch in has the stamp 0 and every read the stamp 1, so that a task that runs is worth
 * exactly 1 to itself and to the group: a group that learns of it later than the task is caught.
 */
static struct ct_group covering;
static struct ct_task *covered[N_WRITERS];
static _Atomic uint32_t nr_covered[N_WRITERS];
static atomic_uint nr_covering;

static void *switch_in_all(void *number) {
        unsigned w = (unsigned)(uintptr_t)number;

        pthread_barrier_wait(&start_line);
        for (unsigned i = 0; i < N_SWITCH_INS; i++) {
                atomic_store_explicit(&nr_covered[w], i, memory_order_relaxed);
                ct_group_switch_in(&covering, &covered[w][i], 0);
        }
        atomic_fetch_sub(&nr_covering, 1);
        return NULL;
}

static void process_clock_covers_its_threads(void) {
        pthread_t writers[N_WRITERS];

        pthread_barrier_init(&start_line, NULL, N_WRITERS);
        atomic_store(&nr_covering, N_WRITERS);
        for (unsigned w = 0; w < N_WRITERS; w++) {
                covered[w] = calloc(N_SWITCH_INS, sizeof(*covered[w]));
                CHECK(covered[w], "out of memory");
                CHECK(pthread_create(&writers[w], NULL, switch_in_all, (void *)(uintptr_t)w) == 0,
                      "pthread_create");
        }
        for (unsigned w = 0; atomic_load(&nr_covering); w = (w + 1) % N_WRITERS) {
                uint32_t i = atomic_load_explicit(&nr_covered[w], memory_order_relaxed);
                uint64_t thread_ns = ct_task_read(&covered[w][i], 1);
                uint64_t process_ns = ct_group_read(&covering, 1);

                /* A writer switches in one task after the other: those before it run as well. */
                CHECK(process_ns >= thread_ns * (i + 1), "task %u reads %llu, the group %llu", i,
                      (unsigned long long)thread_ns, (unsigned long long)process_ns);
        }
        for (unsigned w = 0; w < N_WRITERS; w++) {
                pthread_join(writers[w], NULL);
                free(covered[w]);
        }
        CHECK(ct_group_read(&covering, 1) == (uint64_t)N_WRITERS * N_SWITCH_INS,
              "%llu switches in were counted", (unsigned long long)ct_group_read(&covering, 1));
}

int main(int argc, char *argv[]) {
        uint64_t random = check_seed(argc, argv);

        group_is_the_sum_of_its_tasks(&random);
        old_stamp_reads_the_latest_state();
        process_clock_never_goes_backwards();
        process_clock_covers_its_threads();
        return 0;
}
