/* SPDX-License-Identifier: MIT */
/*
 * process_clock_covers_its_threads: P, read after T1..Tn, is >= T1 + ... + Tn; ended threads stay.
 *
 * Every thread keeps its last T in a slot that is never used again, and so does whoever reads
 * another thread's clock. A reader adds up the slots, acquiring each, and then reads P.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

#include "crowd.h"

static uint64_t sum_of_slots(void) {
        unsigned n = atomic_load(&crowd_size);
        uint64_t sum_ns = 0;

        for (unsigned i = 0; i < n && i < CROWD_MAX; i++)
                sum_ns += atomic_load_explicit(&crowd[i].seen_ns, memory_order_acquire);
        return sum_ns;
}

static void compare(uint64_t roll) {
        uint64_t sum_ns = sum_of_slots();
        struct reading now = { .resolution_ns = 1 };

        if (roll % 2)
                now.ns = reader->process_ns();
        else
                now = reader->process_alias((unsigned)(roll >> 8));
        if (now.ns + (now.resolution_ns - 1) < sum_ns)
                broken("the process clock says %llu ns, its threads had said %llu: %llu missing",
                       (unsigned long long)now.ns, (unsigned long long)sum_ns,
                       (unsigned long long)(sum_ns - now.ns));
}

static void act(struct member *self, uint64_t roll) {
        struct member *other;
        uint64_t now_ns;

        if (roll % 16 == 0) {
                compare(roll >> 16);
        } else if (roll % 16 == 1 && (other = crowd_pick(self, roll >> 8))) {
                if (reader->thread_ns_of(&other->peer, &now_ns))
                        publish_max(&other->seen_ns, now_ns);
        } else {
                publish_max(&self->seen_ns, reader->thread_ns());
                if (roll % 64 == 2)
                        compare(1);     /* its own last reading is as fresh as can be */
        }
}

static void *burn_and_end(void *argument) {
        uint64_t *ret_ns = argument;

        for (unsigned i = 0; i < 50; i++) {
                burn(NSEC_PER_MSEC);
                *ret_ns = reader->thread_ns();
        }
        return NULL;
}

/* One that read its clock to the end, one that never did and whose time must be there as well. */
static void *burn_unread(void *argument) {
        uint64_t *ret_ns = argument;

        burn(50 * NSEC_PER_MSEC);
        *ret_ns = raw_thread_ns();
        return NULL;
}

static void ended_threads(void) {
        pthread_t reads, burns;
        uint64_t read_ns = 0, unread_ns = 0, own_ns, sum_ns, now_ns, allowed_ns;

        (void)reader->process_ns();
        if (!start_thread(&reads, burn_and_end, &read_ns) ||
            !start_thread(&burns, burn_unread, &unread_ns))
                return;
        pthread_join(reads, NULL);
        pthread_join(burns, NULL);
        own_ns = reader->thread_ns();
        now_ns = reader->process_ns();
        sum_ns = own_ns + read_ns;
        if (now_ns < sum_ns)
                broken("the process clock says %llu ns, less than the caller's %llu and an ended"
                       " thread's %llu", (unsigned long long)now_ns, (unsigned long long)own_ns,
                       (unsigned long long)read_ns);
        /* The other was read by the kernel alone, so the bound between the two applies. */
        sum_ns += unread_ns;
        allowed_ns = bound_ns(sum_ns);
        if (now_ns + allowed_ns < sum_ns)
                broken("the process clock says %llu ns, an ended thread's %llu are missing",
                       (unsigned long long)now_ns, (unsigned long long)unread_ns);
}

static void on_prof(int sig) {
        int saved_errno = errno;

        if (crowd_self())
                compare(1);
        errno = saved_errno;
}

void process_clock_covers_its_threads(void) {
        struct sigaction action = { .sa_handler = on_prof, .sa_flags = SA_RESTART };
        struct itimerval every_tick = { { 0, 1000 }, { 0, 1000 } };
        struct crowd_plan plan = { .n_members = 6, .ms = 900, .act = act };

        ended_threads();
        crowd_run(&plan);
        await_page();
        plan.signals = plan.churn = true;
        crowd_run(&plan);
        ended_threads();

        /* See monotone.c on CPU timers. */
        (void)sigaction(SIGPROF, &action, NULL);
        if (setitimer(ITIMER_PROF, &every_tick, NULL) < 0)
                broken("the test could not arm ITIMER_PROF");
        plan.n_members = 4;
        crowd_run(&plan);
        ended_threads();
}
