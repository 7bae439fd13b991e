/* SPDX-License-Identifier: MIT */
/*
 * Task runtime against a model that keeps every slice and adds them up anew at each read, over
 * random streams of events with stamps that also step back; then one writer against readers that
 * take their stamps inside the sections, for which never backwards is promised without exception.
 */
#include <pthread.h>

#include "../../tests/check.h"
#include "account/task.h"

#define N_STREAMS 200
#define N_EVENTS 400
#define N_SEEN 2000             /* publications that each reader must have met before all end */
#define LAST_TICK 8000000       /* where all end anyway, on a single CPU */
#define N_READERS 2

struct model {
        struct {
                uint64_t in_ns, out_ns;
        } slice[N_EVENTS];
        unsigned nr_slices;
        bool running;
};

static uint64_t model_runtime(const struct model *m, uint64_t now_ns) {
        uint64_t sum_ns = 0;

        for (unsigned i = 0; i < m->nr_slices; i++) {
                bool ended = i + 1 < m->nr_slices || !m->running;
                uint64_t end_ns = ended ? m->slice[i].out_ns : now_ns;

                if (end_ns > m->slice[i].in_ns)
                        sum_ns += end_ns - m->slice[i].in_ns;
        }
        return sum_ns;
}

static void runtime_is_the_sum_of_the_slices(uint64_t *random) {
        for (unsigned stream = 0; stream < N_STREAMS; stream++) {
                struct ct_task task = {};
                struct model m = {};
                uint64_t now_ns = check_random(random) >> 2;    /* also far beyond 32 bits */

                for (unsigned i = 0; i < N_EVENTS; i++) {
                        uint64_t r = check_random(random), expect_ns, ns = 0;
                        uint64_t before_ns;

                        now_ns += r % 16 ? r >> 40 : -(r >> 54);        /* 1 of 16 steps back */
                        before_ns = ct_task_read(&task, now_ns);
                        switch (check_random(random) % 4) {
                        case 0:
                                ct_task_switch_in(&task, now_ns);
                                if (!m.running)
                                        m.slice[m.nr_slices++].in_ns = now_ns;
                                m.running = true;
                                break;
                        case 1:
                                ct_task_switch_out(&task, now_ns);
                                if (m.running)
                                        m.slice[m.nr_slices - 1].out_ns = now_ns;
                                m.running = false;
                                break;
                        }
                        CHECK(ct_task_read(&task, now_ns) == before_ns,
                              "stream %u, event %u changed the clock at its own stamp", stream, i);
                        expect_ns = model_runtime(&m, now_ns);
                        CHECK(before_ns == expect_ns, "stream %u, event %u: %llu, expected %llu",
                              stream, i, (unsigned long long)before_ns,
                              (unsigned long long)expect_ns);
                        CHECK(ct_task_try_read(&task, now_ns, &ns) && ns == expect_ns,
                              "stream %u, event %u: the bounded read says %llu", stream, i,
                              (unsigned long long)ns);
                        CHECK(ct_u64_get(&task.nr_switches) == m.nr_slices,
                              "stream %u, event %u", stream, i);
                }
        }
}

static void reading_changes_nothing(void) {
        struct ct_task task = {}, copy;

        ct_task_switch_in(&task, 1000);
        copy = task;
        CHECK(ct_task_read(&task, 1500) == 500, "a slice in progress counts");
        CHECK(ct_task_read(&task, 1200) == 200, "no read remembers a later one");
        CHECK(ct_task_read(&task, 900) == 0, "a stamp before the slice began adds nothing");
        CHECK(atomic_load(&task.seq.seq) == atomic_load(&copy.seq.seq) &&
              ct_u64_get(&task.runtime_ns) == ct_u64_get(&copy.runtime_ns) &&
              ct_u64_get(&task.exec_start_ns) == ct_u64_get(&copy.exec_start_ns), "written to");
}

/* What a signal handler meets when it interrupts the writer. */
static void bounded_read_gives_up_on_an_open_section(void) {
        struct ct_task task = {};
        uint64_t ns = 42;

        ct_seqcount_write_begin(&task.seq);
        ct_task_in(&task, 10);
        CHECK(!ct_task_try_read(&task, 20, &ns) && ns == 42, "ns %llu", (unsigned long long)ns);
        ct_seqcount_write_end(&task.seq);
        CHECK(ct_task_try_read(&task, 20, &ns) && ns == 10, "ns %llu", (unsigned long long)ns);
}

static struct ct_task shared;
static pthread_barrier_t start_line;
static atomic_bool stop;
static atomic_uint nr_readers;          /* those that have not seen enough yet */

/*
 * A clock that every look advances, a full barrier like the ones task.h asks for; 32 bits, which
 * every target can add to without a library.
 */
static _Atomic uint32_t logical_clock;

static uint64_t tick(void) {
        return atomic_fetch_add(&logical_clock, 1);
}

/* The largest runtime that any reader has returned: the program's own synchronisation. */
static _Atomic uint32_t largest;

static void *read_task(void *unused) {
        pthread_barrier_wait(&start_line);
        for (uint32_t seen = 0, last = 0; !atomic_load(&stop);) {
                uint32_t floor = atomic_load(&largest), start;
                uint64_t ns;

                do {
                        start = ct_seqcount_read_begin(&shared.seq);
                        ns = ct_task_peek(&shared, tick());
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

static void thread_clock_never_goes_backwards(void) {
        pthread_t readers[N_READERS];
        uint64_t sum_ns = 0;

        atomic_store(&nr_readers, N_READERS);
        pthread_barrier_init(&start_line, NULL, N_READERS + 1);
        for (unsigned i = 0; i < N_READERS; i++)
                CHECK(pthread_create(&readers[i], NULL, read_task, NULL) == 0, "pthread_create");
        pthread_barrier_wait(&start_line);
        while (atomic_load(&nr_readers) && atomic_load(&logical_clock) < LAST_TICK) {
                uint64_t in_ns, out_ns;

                ct_seqcount_write_begin(&shared.seq);
                in_ns = tick();
                ct_task_in(&shared, in_ns);
                ct_seqcount_write_end(&shared.seq);

                ct_seqcount_write_begin(&shared.seq);
                out_ns = tick();
                ct_task_out(&shared, out_ns);
                ct_seqcount_write_end(&shared.seq);
                sum_ns += out_ns - in_ns;
        }
        atomic_store(&stop, true);
        for (unsigned i = 0; i < N_READERS; i++)
                pthread_join(readers[i], NULL);
        CHECK(ct_task_read(&shared, tick()) == sum_ns, "%llu, expected %llu",
              (unsigned long long)ct_task_read(&shared, tick()), (unsigned long long)sum_ns);
}

int main(int argc, char *argv[]) {
        uint64_t random = check_seed(argc, argv);

        runtime_is_the_sum_of_the_slices(&random);
        reading_changes_nothing();
        bounded_read_gives_up_on_an_open_section();
        thread_clock_never_goes_backwards();
        return 0;
}
