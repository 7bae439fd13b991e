/* SPDX-License-Identifier: MIT */
/*
 * thread_clock_never_goes_backwards, process_clock_never_goes_backwards.
 *
 * "Read r1 returns before read r2 begins => r1 <= r2, whoever reads." What orders two reads of
 * different threads is the program's own synchronisation, so each kind is tried: a maximum kept
 * in an atomic (release, acquire), a pipe, a mutex. In a crowd the maximum is loaded before a read
 * begins, so every reading that raised it has returned by then.
 *
 * Where the kernel itself cannot: starting the first CPU timer of a process samples P and then
 * switches the kernel to a running sum; what the siblings are charged in between is missing from
 * P until the timer is gone, and P may step back. Timers are therefore started while the process
 * has one thread.
 */
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "crowd.h"

/* --- the thread clock ------------------------------------------------------------------------ */

static void expect_not_before(const char *what, uint64_t before_ns, struct reading now) {
        if (now.ns + (now.resolution_ns - 1) < before_ns)
                broken("%s: %llu ns, after %llu ns had been read: %llu ns back", what,
                       (unsigned long long)now.ns, (unsigned long long)before_ns,
                       (unsigned long long)(before_ns - now.ns));
}

static void act_thread(struct member *self, uint64_t roll) {
        struct member *other;
        struct reading now = { .resolution_ns = 1 };
        uint64_t before;

        if (roll % 4 == 0 && (other = crowd_pick(self, roll >> 8))) {
                before = atomic_load_explicit(&other->seen_ns, memory_order_acquire);
                if (reader->thread_ns_of(&other->peer, &now.ns)) {
                        expect_not_before("another thread's clock", before, now);
                        publish_max(&other->seen_ns, now.ns);
                } else if (atomic_load_explicit(&other->live, memory_order_acquire)) {
                        broken("thread %d lives, but its clock could not be read",
                               (int)other->peer.tid);
                }
                return;
        }

        before = atomic_load_explicit(&self->seen_ns, memory_order_acquire);
        if (roll % 8 == 1)
                now = reader->thread_alias((unsigned)(roll >> 8));
        else
                now.ns = reader->thread_ns();
        expect_not_before("the own thread's clock", before, now);
        publish_max(&self->seen_ns, now.ns);
}

/* --- the process clock ----------------------------------------------------------------------- */

static _Atomic uint64_t process_seen_ns;

static void act_process(struct member *self, uint64_t roll) {
        uint64_t before = atomic_load_explicit(&process_seen_ns, memory_order_acquire);
        struct reading now = { .resolution_ns = 1 };

        if (roll % 4 == 0)
                now = reader->process_alias((unsigned)(roll >> 8));
        else
                now.ns = reader->process_ns();
        expect_not_before("the process clock", before, now);
        publish_max(&process_seen_ns, now.ns);

        /* Siblings that enrol, and those that never do, must both be in P. */
        if (roll % 64 == 5)
                (void)reader->thread_ns();
}

/* --- hand-over from one thread to the next --------------------------------------------------- */

/*
 * Two threads take turns. What travels with the turn is the last reading of two clocks: that of
 * the process, and that of the thread with the lower number, which both read.
 */
struct baton {
        uint64_t process_ns, thread_ns;
};

#define TURNS 12000

static int pipes[2][2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_changed = PTHREAD_COND_INITIALIZER;
static unsigned turn;
static struct baton shared_baton;
static struct peer first_peer;
static bool by_pipe;

static bool take_turn(unsigned who, struct baton *ret_baton) {
        if (by_pipe)
                return read(pipes[who][0], ret_baton, sizeof(*ret_baton)) == sizeof(*ret_baton);
        pthread_mutex_lock(&mutex);
        while (turn != who)
                pthread_cond_wait(&turn_changed, &mutex);
        *ret_baton = shared_baton;
        return true;    /* and keeps the mutex: pass_turn() releases it */
}

static bool pass_turn(unsigned who, const struct baton *baton) {
        if (by_pipe)
                return write(pipes[!who][1], baton, sizeof(*baton)) == sizeof(*baton);
        shared_baton = *baton;
        turn = !who;
        pthread_cond_signal(&turn_changed);
        pthread_mutex_unlock(&mutex);
        return true;
}

static void run_turns(unsigned who) {
        struct baton baton;
        struct reading now;
        uint64_t state = 1234567 + who;

        for (unsigned i = 0; i < TURNS; i++) {
                uint64_t roll = dice(&state);

                if (!take_turn(who, &baton)) {
                        broken("the test could not read from its pipe");
                        return;
                }
                for (unsigned k = roll % 3 + 1; k; k--) {
                        now = (struct reading){ reader->process_ns(), 1 };
                        expect_not_before("the process clock, handed over", baton.process_ns, now);
                        baton.process_ns = now.ns;

                        now = (struct reading){ 0, 1 };
                        if (who == 0)
                                now.ns = reader->thread_ns();
                        else if (!reader->thread_ns_of(&first_peer, &now.ns))
                                broken("the other thread's clock could not be read");
                        expect_not_before("a thread's clock, handed over", baton.thread_ns, now);
                        baton.thread_ns = now.ns;
                }
                if (i % 512 == 0)
                        pin((unsigned)(roll >> 40));
                if (!pass_turn(who, &baton)) {
                        broken("the test could not write to its pipe");
                        return;
                }
        }
        unpin();
}

static void *second_main(void *argument) {
        run_turns(1);
        return NULL;
}

static void hand_over(bool pipe_not_mutex) {
        struct baton first = {};
        pthread_t second;

        by_pipe = pipe_not_mutex;
        if (by_pipe && (pipe(pipes[0]) < 0 || pipe(pipes[1]) < 0)) {
                broken("the test could not make a pipe");
                return;
        }
        first_peer = peer_self();
        turn = 1;
        if (by_pipe)
                (void)pass_turn(1, &first);     /* the first turn is this thread's */
        else
                turn = 0;
        if (!start_thread(&second, second_main, NULL))
                return;
        run_turns(0);
        pthread_join(second, NULL);
        if (by_pipe)
                for (unsigned i = 0; i < 4; i++)
                        close(pipes[i / 2][i % 2]);
}

/* --- the tests ------------------------------------------------------------------------------- */

static void close_everything(void) {
        if (syscall(SYS_close_range, 3, ~0U, 0) < 0)
                for (int fd = 3; fd < 2048; fd++)
                        close(fd);
}

void thread_clock_never_goes_backwards(void) {
        struct crowd_plan plan = { .n_members = 6, .ms = 900, .act = act_thread };

        crowd_run(&plan);
        await_page();
        plan.signals = plan.churn = true;
        crowd_run(&plan);
        /* Programs that become daemons close what they do not know: no clock may care. */
        close_everything();
        plan.n_members = 3;
        plan.ms = 500;
        crowd_run(&plan);
        if (reader->backend == CPUTIME_BACKEND_PAGE)
                await_page();
        hand_over(true);
        hand_over(false);
}

static void on_prof(int sig) {
        int saved_errno = errno;
        struct member *m = crowd_self();

        if (m)
                act_process(m, 3);
        errno = saved_errno;
}

void process_clock_never_goes_backwards(void) {
        struct sigaction action = { .sa_handler = on_prof, .sa_flags = SA_RESTART };
        struct itimerval every_tick = { { 0, 1000 }, { 0, 1000 } };
        struct crowd_plan plan = { .n_members = 6, .ms = 900, .act = act_process };

        hand_over(true);
        await_page();
        hand_over(false);
        crowd_run(&plan);
        plan.signals = plan.churn = true;
        crowd_run(&plan);

        /* As under a sampling profiler. The kernel then answers P from a sum of another kind. */
        (void)sigaction(SIGPROF, &action, NULL);
        if (setitimer(ITIMER_PROF, &every_tick, NULL) < 0)
                broken("the test could not arm ITIMER_PROF");
        plan.n_members = 4;
        crowd_run(&plan);
        hand_over(true);
}
