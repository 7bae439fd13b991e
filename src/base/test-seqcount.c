/* SPDX-License-Identifier: MIT */
/*
 * Sequence counts: no copy that is called valid is torn, an open section is never called valid,
 * and writers that lock exclude each other. The concurrent parts end by counts, not by time: the
 * reader goes on until it has seen enough different publications.
 */
#include <pthread.h>

#include "../../tests/check.h"
#include "base/seqcount.h"

#define N_PUBLICATIONS 20000u   /* different ones that the reader must have seen */
#define N_LOCKERS 3
#define N_LOCKS 300000u         /* sections per locker: enough for them to meet */

static struct {
        struct ct_seqcount seq;
        struct ct_u64 a, b;
        struct ct_u32 c;
} shared;

static atomic_bool stop;

/* Spread over both halves, so that a torn 64-bit value shows as well as a torn triple. */
static uint64_t spread(uint64_t n) {
        return n << 32 | n;
}

static void *publish(void *unused) {
        for (uint64_t n = 1; !atomic_load(&stop); n = (n + 1) & UINT32_MAX) {
                ct_seqcount_write_begin(&shared.seq);
                ct_u64_set(&shared.a, spread(n));
                ct_u64_set(&shared.b, ~spread(n));
                ct_u32_set(&shared.c, (uint32_t)n);
                ct_seqcount_write_end(&shared.seq);
        }
        return NULL;
}

static void valid_copies_are_whole(void) {
        uint64_t last = 0;
        pthread_t writer;

        ct_u64_set(&shared.b, ~UINT64_C(0));
        CHECK(pthread_create(&writer, NULL, publish, NULL) == 0, "pthread_create");

        for (unsigned seen = 0; seen < N_PUBLICATIONS;) {
                uint32_t start = ct_seqcount_read_begin(&shared.seq);
                uint64_t a = ct_u64_get(&shared.a), b = ct_u64_get(&shared.b);
                uint32_t c = ct_u32_get(&shared.c);

                if (!ct_seqcount_read_valid(&shared.seq, start))
                        continue;
                CHECK(a == ~b && a == spread(c), "torn copy: a %llx, b %llx, c %x",
                      (unsigned long long)a, (unsigned long long)b, c);
                seen += a != last;
                last = a;
        }
        atomic_store(&stop, true);
        pthread_join(writer, NULL);
}

static void open_or_overtaken_is_not_valid(void) {
        struct ct_seqcount seq = {};
        uint32_t start = ct_seqcount_read_begin(&seq);

        CHECK(ct_seqcount_read_valid(&seq, start), "at rest");
        ct_seqcount_write_begin(&seq);
        CHECK(!ct_seqcount_read_valid(&seq, start), "a section was opened under the reader");
        start = ct_seqcount_read_begin(&seq);
        CHECK(!ct_seqcount_read_valid(&seq, start), "the section is open all along");
        ct_seqcount_write_end(&seq);
        CHECK(!ct_seqcount_read_valid(&seq, start), "the section was closed under the reader");
        start = ct_seqcount_read_begin(&seq);
        CHECK(ct_seqcount_read_valid(&seq, start), "at rest again");

        start = ct_seqcount_read_begin(&seq);
        ct_seqcount_write_lock(&seq);
        CHECK(!ct_seqcount_read_valid(&seq, start), "locked under the reader");
        ct_seqcount_write_end(&seq);
        CHECK(!ct_seqcount_read_valid(&seq, start), "a whole section passed");

        /* The count wraps to 0 and goes on. */
        atomic_store(&seq.seq, UINT32_MAX - 1);
        start = ct_seqcount_read_begin(&seq);
        ct_seqcount_write_begin(&seq);
        ct_seqcount_write_end(&seq);
        CHECK(atomic_load(&seq.seq) == 0, "the count is %u", atomic_load(&seq.seq));
        CHECK(!ct_seqcount_read_valid(&seq, start), "wrapped under the reader");
}

static struct ct_seqcount lock;
static uint64_t counter;        /* plain on purpose: the lock is its protection */

static pthread_barrier_t start_line;

static void *count_up(void *unused) {
        pthread_barrier_wait(&start_line);
        for (unsigned i = 0; i < N_LOCKS; i++) {
                ct_seqcount_write_lock(&lock);
                counter++;
                ct_seqcount_write_end(&lock);
        }
        return NULL;
}

static void lockers_exclude_each_other(void) {
        pthread_t lockers[N_LOCKERS];

        pthread_barrier_init(&start_line, NULL, N_LOCKERS);
        for (unsigned i = 0; i < N_LOCKERS; i++)
                CHECK(pthread_create(&lockers[i], NULL, count_up, NULL) == 0, "pthread_create");
        for (unsigned i = 0; i < N_LOCKERS; i++)
                pthread_join(lockers[i], NULL);
        CHECK(counter == (uint64_t)N_LOCKERS * N_LOCKS, "%llu increments survived",
              (unsigned long long)counter);
        CHECK(atomic_load(&lock.seq) == 2u * N_LOCKERS * N_LOCKS, "the count is %u",
              atomic_load(&lock.seq));
}

int main(void) {
        open_or_overtaken_is_not_valid();
        valid_copies_are_whole();
        lockers_exclude_each_other();
        return 0;
}
