/* SPDX-License-Identifier: MIT */
/*
 * idle_costs_nothing: nothing is opened before somebody reads; a few reads do not open anything
 * either, where the library chooses; what a thread's reads opened goes when the thread goes; and
 * never a descriptor is left behind. The kernel's list of mappings and descriptors is the judge.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contract.h"

struct holdings {
        unsigned mappings, events, descriptors, pages;
};

static struct holdings holdings_now(void) {
        struct holdings h = {};
        struct dirent *entry;
        char line[1024];
        FILE *f = fopen("/proc/self/maps", "re");
        DIR *d;

        if (!f) {
                broken("the test could not read /proc/self/maps");
                return h;
        }
        while (fgets(line, sizeof(line), f)) {
                h.mappings++;
                if (strstr(line, "[perf_event]"))
                        h.events++;
        }
        fclose(f);
        d = opendir("/proc/self/fd");
        if (!d) {
                broken("the test could not read /proc/self/fd");
                return h;
        }
        while ((entry = readdir(d)))
                if (entry->d_name[0] != '.' && atoi(entry->d_name) > STDERR_FILENO &&
                    atoi(entry->d_name) != dirfd(d))
                        h.descriptors++;
        closedir(d);
        h.pages = pages_mapped();
        return h;
}

static void expect_none(const char *when) {
        struct holdings h = holdings_now();

        if (h.events)
                broken("%s: %u perf events are mapped", when, h.events);
        if (h.descriptors)
                broken("%s: %u descriptors are open", when, h.descriptors);
        if (h.pages)
                broken("%s: %u pages are mapped", when, h.pages);
}

static void *short_thread(void *argument) {
        for (unsigned i = 0; i < 3000; i++) {
                (void)reader->thread_ns();
                (void)reader->process_ns();
        }
        return NULL;
}

static void *three_reads(void *argument) {
        for (unsigned i = 0; i < 3; i++)
                (void)reader->thread_ns();
        return NULL;
}

static void one_after_the_other(void *(*function)(void *), unsigned n) {
        pthread_t thread;

        while (n-- && start_thread(&thread, function, NULL))
                pthread_join(thread, NULL);
}

static void all_at_once(void *(*function)(void *)) {
        pthread_t threads[20];
        unsigned n = 0;

        while (n < 20 && start_thread(&threads[n], function, NULL))
                n++;
        while (n)
                pthread_join(threads[--n], NULL);
}

static void no_reads_in_child(const void *argument) {
        expect_none("in a child that reads nothing, of a parent that did");
}

static void inside(void) {
        struct holdings before, after;
        bool may_enrol_at_once = reader->backend == CPUTIME_BACKEND_RING ||
                                 reader->backend == CPUTIME_BACKEND_HEADER ||
                                 reader->backend == CPUTIME_BACKEND_PAGE;

        expect_none("before the first read");
        if (reader->library && cputime_backend_set(reader->backend) < 0)
                broken("cputime_backend_set failed");
        expect_none("after choosing a backend");

        if (!may_enrol_at_once) {
                for (unsigned i = 0; i < 3; i++) {
                        (void)reader->thread_ns();
                        (void)reader->process_ns();
                }
                expect_none("after three reads");
                one_after_the_other(three_reads, 200);
                expect_none("after 200 threads that read three times each");
        }

        /* The caller enrols, and the threads' stacks and heaps settle, before the comparison. */
        (void)short_thread(NULL);
        await_page();
        one_after_the_other(short_thread, 2);
        all_at_once(short_thread);
        before = holdings_now();
        one_after_the_other(short_thread, 60);
        all_at_once(short_thread);
        after = holdings_now();
        if (after.events > before.events)
                broken("80 threads have ended, %u of their perf events are still mapped",
                       after.events - before.events);
        /* One page, and the connection that it came by, for the process and all its threads. */
        if (after.pages > 1)
                broken("%u pages are mapped", after.pages);
        if (after.descriptors > after.pages)
                broken("80 threads have ended, %u descriptors are open", after.descriptors);
        /* A stack and an arena may come or go; one mapping a thread is a leak. */
        if (after.mappings > before.mappings + 40)
                broken("80 threads have ended, %u mappings more than before",
                       after.mappings - before.mappings);
        (void)in_child("a child that reads nothing", no_reads_in_child, NULL);
}

/*
 * Inherited descriptors would hide, or look like, the library's: the test proper runs in a process
 * that starts with none, "child:idle".
 */
void idle_costs_nothing(void) {
        static bool entered;
        const char *marker = "CONTRACT_IDLE_INSIDE";
        int status;
        pid_t pid;

        if (entered || getenv(marker)) {
                inside();
                return;
        }
        entered = true;
        pid = fork();
        if (pid == 0) {
                for (int fd = 3; fd < 1024; fd++)
                        close(fd);
                (void)setenv(marker, "1", 1);
                execl("/proc/self/exe", "contract", "--reader", reader->name, "--inside", "child:idle",
                      NULL);
                _exit(127);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
                broken("the test could not start itself");
        else if (status != 0)
                broken("a process with no descriptors: see above (status 0x%x)", status);
}
