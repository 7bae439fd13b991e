/* SPDX-License-Identifier: MIT */
/* See crowd.h. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "crowd.h"

struct member crowd[CROWD_MAX];
_Atomic unsigned crowd_size;

static _Atomic bool over;
static const struct crowd_plan *current;
static _Thread_local struct member *volatile self_slot;

struct member *crowd_self(void) {
        return self_slot;
}

static struct member *new_slot(void) {
        unsigned i = atomic_fetch_add(&crowd_size, 1);

        if (i >= CROWD_MAX) {
                atomic_store(&crowd_size, CROWD_MAX);
                return NULL;
        }
        crowd[i].dice = 88172645463325252ULL + i * 0x9e3779b97f4a7c15ULL;
        return &crowd[i];
}

static void enter(struct member *m) {
        m->peer = peer_self();
        self_slot = m;
        atomic_store_explicit(&m->live, true, memory_order_release);
}

static void leave(struct member *m) {
        atomic_store_explicit(&m->live, false, memory_order_release);
        self_slot = NULL;
}

struct member *crowd_pick(struct member *self, uint64_t roll) {
        /* Mostly one of those that stay: they are the slots after the caller's or near the end. */
        unsigned size = atomic_load(&crowd_size), n = size < 16 ? size : 16;
        struct member *m;

        if (size > CROWD_MAX)
                return NULL;
        m = &crowd[size - 1 - roll % n];
        return m != self && atomic_load_explicit(&m->live, memory_order_acquire) ? m : NULL;
}

static void on_signal(int sig) {
        struct member *m = self_slot;
        int saved_errno = errno;

        if (m) {
                /* Its own dice: the interrupted code is in the middle of throwing m->dice. */
                uint64_t roll = (uint64_t)(uintptr_t)&m ^ atomic_load(&m->seen_ns);

                current->act(m, roll | 8);
        }
        errno = saved_errno;
}

static void *member_main(void *argument) {
        struct member *m = argument;
        struct timespec nap = { .tv_nsec = 20000 };

        enter(m);
        while (!atomic_load_explicit(&over, memory_order_relaxed)) {
                uint64_t roll = dice(&m->dice);

                current->act(m, roll);
                /* Mostly back to back, the rest in every way that makes a clock re-base. */
                switch ((roll >> 32) % 512) {
                case 0:
                        pin((unsigned)(roll >> 48));
                        break;
                case 1:
                        unpin();
                        break;
                case 2 ... 5:
                        sched_yield();
                        break;
                case 6 ... 7:
                        nanosleep(&nap, NULL);
                        break;
                case 8:
                        burn(((roll >> 48) % 900) * NSEC_PER_USEC);
                        break;
                default:
                        break;
                }
        }
        /* Others may still be at it, and look for this one's clock. */
        leave(m);
        return NULL;
}

static void *short_life(void *argument) {
        struct member *m = argument;
        unsigned n = (unsigned)(dice(&m->dice) % 600);

        enter(m);
        /* Fewer and more reads than a library that enrols lazily waits for. */
        for (unsigned i = 0; i < n; i++)
                current->act(m, dice(&m->dice));
        leave(m);
        return NULL;
}

static void *churn_main(void *argument) {
        pthread_t threads[3];

        while (!atomic_load_explicit(&over, memory_order_relaxed)) {
                unsigned n = 0;

                for (; n < 3; n++) {
                        struct member *m = new_slot();

                        if (!m || !start_thread(&threads[n], short_life, m))
                                break;
                }
                for (unsigned i = 0; i < n; i++)
                        pthread_join(threads[i], NULL);
                if (n < 3)
                        break;
        }
        return NULL;
}

static pthread_t member_threads[64];

static void *signal_main(void *argument) {
        struct timespec nap = { .tv_nsec = 30000 };

        while (!atomic_load_explicit(&over, memory_order_relaxed)) {
                for (unsigned i = 0; i < current->n_members; i++)
                        (void)pthread_kill(member_threads[i], SIGUSR1);
                nanosleep(&nap, NULL);
        }
        return NULL;
}

void crowd_run(const struct crowd_plan *plan) {
        struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
        struct timespec stir = { plan->ms / 1000, (plan->ms % 1000) * 1000000L };
        struct member *members[64];
        pthread_t churner, signaller;
        bool have_churner, have_signaller;
        unsigned n = 0;

        if (!self_slot)
                enter(new_slot());
        current = plan;
        atomic_store(&over, false);
        (void)sigaction(SIGUSR1, &action, NULL);

        for (; n < plan->n_members; n++) {
                members[n] = new_slot();
                if (!members[n] || !start_thread(&member_threads[n], member_main, members[n]))
                        break;
        }
        have_churner = plan->churn && start_thread(&churner, churn_main, NULL);
        have_signaller = plan->signals && n == plan->n_members &&
                         start_thread(&signaller, signal_main, NULL);

        /* How long, not whether: a process timer's signals may cut it into pieces. */
        while (clock_nanosleep(CLOCK_MONOTONIC, 0, &stir, &stir) == EINTR)
                ;
        atomic_store(&over, true);

        if (have_signaller)
                pthread_join(signaller, NULL);
        if (have_churner)
                pthread_join(churner, NULL);
        for (unsigned i = 0; i < n; i++) {
                pthread_join(member_threads[i], NULL);
                atomic_store(&members[i]->live, false);
        }
}
