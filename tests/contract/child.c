/* SPDX-License-Identifier: MIT */
/*
 * child_starts_at_zero: however a child comes about, its clocks are its own: the kernel's, from
 * the first reading on, although its memory (fork, clone) or even its stack and thread-local
 * storage (vfork) are its parent's. And the parent's clocks survive what such a child does.
 *
 * exec changes the program, not the process: the kernel's clocks go on, and so must ours.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contract.h"

/* What the parent has used, at least: a hundred times what a child uses before it first reads. */
#define PARENT_NS (120 * NSEC_PER_MSEC)

extern char **environ;

static void judge_first(const char *what, const char *clock, uint64_t first_ns, uint64_t kernel_ns) {
        if (first_ns > kernel_ns + bound_ns(kernel_ns))
                broken("%s: the child's first %s clock reading is %llu ns, the kernel says %llu",
                       what, clock, (unsigned long long)first_ns, (unsigned long long)kernel_ns);
}

/* The whole life of a child with memory of its own. */
static void child_life(const void *argument) {
        const char *what = argument;
        uint64_t first_thread_ns, first_process_ns;
        unsigned inherited = pages_mapped();
        struct tally t = {}, p = {};

        if (inherited)
                broken("%s: the child has its parent's page", what);
        first_thread_ns = reader->thread_ns();
        first_process_ns = reader->process_ns();
        judge_first(what, "thread", first_thread_ns, raw_thread_ns());
        judge_first(what, "process", first_process_ns, raw_process_ns());
        t.last_thread_ns = first_thread_ns;
        p.last_process_ns = first_process_ns;
        /* Long enough to enrol anew. */
        for (unsigned i = 0; i < 3000; i++) {
                (void)sample_thread(&t);
                (void)sample_process(&p, NULL, 0, 0);
        }
        await_page();
        for (unsigned i = 0; reader->paged && i < 3000; i++) {
                (void)sample_thread(&t);
                (void)sample_process(&p, NULL, 0, 0);
        }
        tally_judge(&t, what);
        tally_judge(&p, what);
}

static void child_with_child(const void *argument) {
        burn(20 * NSEC_PER_MSEC);
        child_life(argument);
        (void)in_child("its child", child_life, "fork in a forked child");
}

/* A raw clone tells no libc and no library: no handler runs. */
static void raw_clone(void) {
        int status;
        long pid;

        if (THREAD_SANITIZER)
                return;
        pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
                child_life("raw clone");
                (void)syscall(SYS_exit_group, is_broken());
        }
        if (pid < 0 || waitpid((pid_t)pid, &status, 0) != pid)
                broken("the test could not clone: %s", strerror(errno));
        else if (WIFSIGNALED(status))
                broken("raw clone: the child was killed by signal %d", WTERMSIG(status));
        else if (WEXITSTATUS(status))
                broken("raw clone: see above");
}

/*
 * A vfork child runs on its parent's stack and storage. It only stores what it read; the parent
 * judges. The child sometimes burns first: time that must not turn up in the parent.
 */
static volatile uint64_t vfork_thread_ns, vfork_process_ns, vfork_kernel_ns;

__attribute__((noinline)) static pid_t vfork_once(uint64_t burn_ns) {
        pid_t pid = vfork();

        if (pid == 0) {
                if (burn_ns)
                        burn(burn_ns);
                vfork_thread_ns = reader->thread_ns();
                vfork_process_ns = reader->process_ns();
                for (unsigned i = 0; i < 300; i++) {
                        (void)reader->thread_ns();
                        (void)reader->process_ns();
                }
                vfork_kernel_ns = raw_process_ns();
                _exit(0);
        }
        return pid;
}

/* As posix_spawn does it: shared memory, a stack of its own, the parent's storage and no handler. */
static int clone_main(void *argument) {
        uint64_t burn_ns = *(uint64_t *)argument;

        if (burn_ns)
                burn(burn_ns);
        vfork_thread_ns = reader->thread_ns();
        vfork_process_ns = reader->process_ns();
        for (unsigned i = 0; i < 300; i++) {
                (void)reader->thread_ns();
                (void)reader->process_ns();
        }
        vfork_kernel_ns = raw_process_ns();
        return 0;
}

/*
 * The kernel itself makes such a child without telling anybody, and POSIX lets it call nothing but
 * exec and _exit; only the drop-in, which owns vfork() and clone(), can know. libcputime alone is
 * not asked.
 */
static void vforks(struct tally *t, struct tally *p, bool by_clone, const pid_t *others,
                   unsigned n_others) {
        static _Alignas(64) char stack[256 * 1024];
        const char *what = by_clone ? "clone(CLONE_VM | CLONE_VFORK)" : "vfork";

        if (reader->library || THREAD_SANITIZER)
                return;
        for (unsigned i = 0; i < 12; i++) {
                uint64_t burn_ns = i % 3 == 2 ? 5 * NSEC_PER_MSEC : 0;
                pid_t pid = by_clone ? clone(clone_main, stack + sizeof(stack),
                                             CLONE_VM | CLONE_VFORK | SIGCHLD, &burn_ns)
                                     : vfork_once(burn_ns);
                int status = 0;

                if (pid < 0 || waitpid(pid, &status, 0) != pid) {
                        broken("%s: the test could not make a child: %s", what, strerror(errno));
                        return;
                }
                if (status != 0) {
                        broken("%s: the child ended with status 0x%x", what, status);
                        return;
                }
                judge_first(what, "thread", vfork_thread_ns, vfork_kernel_ns);
                judge_first(what, "process", vfork_process_ns, vfork_kernel_ns);
                if (burn_ns && vfork_thread_ns + CPUTIME_ERROR_NS < burn_ns)
                        broken("%s: the child burnt %llu ns, its clock says %llu", what,
                               (unsigned long long)burn_ns, (unsigned long long)vfork_thread_ns);
                for (unsigned k = 0; k < 50; k++) {
                        (void)sample_thread(t);
                        (void)sample_process(p, others, n_others, n_others);
                }
        }
}

/* --- beside all that: a sibling that keeps reading ------------------------------------------- */

static _Atomic bool over;
static _Atomic pid_t sibling_tid;
static struct tally sibling_thread, sibling_process;

static void *sibling_main(void *argument) {
        pid_t main_tid = getpid();

        atomic_store(&sibling_tid, peer_self().tid);
        while (!atomic_load(&over)) {
                (void)sample_thread(&sibling_thread);
                (void)sample_process(&sibling_process, &main_tid, 1, 1);
        }
        return NULL;
}

/* --- new threads ----------------------------------------------------------------------------- */

static void *fresh_thread(void *argument) {
        uint64_t first_ns = reader->thread_ns();
        struct tally t = { .last_thread_ns = first_ns };

        judge_first("pthread_create", "thread", first_ns, raw_thread_ns());
        for (unsigned i = 0; i < 300; i++)
                (void)sample_thread(&t);
        tally_judge(&t, "pthread_create");
        return NULL;
}

static void fresh_threads(void) {
        pthread_t threads[8];

        for (unsigned round = 0; round < 25; round++) {
                unsigned n = 0;

                while (n < 8 && start_thread(&threads[n], fresh_thread, NULL))
                        n++;
                while (n)
                        pthread_join(threads[--n], NULL);
        }
}

static void *fork_from_thread(void *argument) {
        burn(20 * NSEC_PER_MSEC);
        for (unsigned i = 0; i < 2000; i++)
                (void)reader->thread_ns();
        (void)in_child("fork from another thread", child_life, "fork from another thread");
        return NULL;
}

/* --- exec ------------------------------------------------------------------------------------ */

int child_after_exec(const char *argument) {
        struct tally t = {}, p = {};
        uint64_t least_ns, thread_ns, process_ns;

        if (strcmp(argument, "idle") == 0) {
                idle_costs_nothing();
                return is_broken();
        }
        if (strcmp(argument, "refused") == 0)
                return refused_by_server();
        least_ns = strtoull(argument, NULL, 10);
        if (reader->library && cputime_backend_set(reader->backend) < 0)
                broken("after exec: cputime_backend_set failed");
        thread_ns = reader->thread_ns();
        process_ns = reader->process_ns();
        judge_first("exec", "thread", thread_ns, raw_thread_ns());
        judge_first("exec", "process", process_ns, raw_process_ns());
        if (process_ns + CPUTIME_ERROR_NS < least_ns)
                broken("exec: the process used %llu ns before, its clock now says %llu",
                       (unsigned long long)least_ns, (unsigned long long)process_ns);
        for (unsigned i = 0; i < 3000; i++) {
                (void)sample_thread(&t);
                (void)sample_process(&p, NULL, 0, 0);
        }
        await_page();
        for (unsigned i = 0; reader->paged && i < 3000; i++) {
                (void)sample_thread(&t);
                (void)sample_process(&p, NULL, 0, 0);
        }
        tally_judge(&t, "exec");
        tally_judge(&p, "exec");
        return is_broken();
}

static void exec_self(uint64_t least_ns) {
        char text[40];

        snprintf(text, sizeof(text), "child:%llu", (unsigned long long)least_ns);
        execl("/proc/self/exe", "contract", "--reader", reader->name, "--inside", text, NULL);
        broken("the test could not exec itself: %s", strerror(errno));
}

static void exec_after_burning(const void *argument) {
        burn(50 * NSEC_PER_MSEC);
        for (unsigned i = 0; i < 2000; i++)
                (void)reader->process_ns();
        await_page();
        exec_self(50 * NSEC_PER_MSEC);
}

static void *exec_main(void *argument) {
        exec_after_burning(NULL);
        return NULL;
}

/* The thread that calls exec takes over the first one's number. */
static void exec_from_thread(const void *argument) {
        pthread_t thread;

        if (start_thread(&thread, exec_main, NULL))
                pthread_join(thread, NULL);
}

static void spawn(void) {
        char *argv[] = { (char[]){ "contract" }, (char[]){ "--reader" }, NULL, (char[]){ "--inside" },
                         (char[]){ "child:0" }, NULL };
        int status, r;
        pid_t pid;

        argv[2] = strdup(reader->name);
        r = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ);
        free(argv[2]);
        if (r != 0 || waitpid(pid, &status, 0) != pid)
                broken("the test could not spawn: %s", strerror(r));
        else if (status != 0)
                broken("posix_spawn: see above");
}

void child_starts_at_zero(void) {
        struct tally t = {}, p = {};
        pthread_t sibling, forker;
        pid_t other;

        burn(PARENT_NS);
        for (unsigned i = 0; i < 20000; i++) {
                (void)reader->thread_ns();
                (void)reader->process_ns();
        }
        await_page();

        (void)in_child("fork", child_life, "fork");
        (void)in_child("fork twice", child_with_child, "fork, having burnt");
        raw_clone();
        vforks(&t, &p, false, NULL, 0);
        vforks(&t, &p, true, NULL, 0);
        spawn();
        (void)in_child("exec", exec_after_burning, NULL);
        (void)in_child("exec from another thread", exec_from_thread, NULL);
        tally_judge(&t, "the parent's thread clock");
        tally_judge(&p, "the parent's process clock");

        if (!start_thread(&sibling, sibling_main, NULL))
                return;
        while (!(other = atomic_load(&sibling_tid)))
                ;
        (void)in_child("fork beside a sibling", child_life, "fork beside a sibling");
        raw_clone();
        vforks(&t, &p, false, &other, 1);
        vforks(&t, &p, true, &other, 1);
        if (start_thread(&forker, fork_from_thread, NULL))
                pthread_join(forker, NULL);
        atomic_store(&over, true);
        pthread_join(sibling, NULL);
        tally_judge(&sibling_thread, "the sibling's thread clock");
        tally_judge(&t, "the parent's thread clock, with a sibling");

        fresh_threads();
}
