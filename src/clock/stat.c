/* SPDX-License-Identifier: MIT */
/*
 * What the scheduler did with a thread and with the process, beside the time on a CPU: from the page
 * if the process has one, else from /proc, which costs a few system calls for each thread.
 *
 * oncpu_ns is the clock's value, and so the clocks' floors and leads hold for it (page.h). All of a
 * stat comes from one look at the page where that is possible: a thread's own, another thread's, the
 * process's. Where it is not, since the reader has no place on the page yet or the page must not be
 * believed about the clock for the moment, the clock is read first, which also asks for a page where
 * there is none, and the rest after it.
 *
 * The counts of a thread mean the same wherever they come from. Those of the process do not: nobody
 * but the page remembers how long threads waited that have ended; and the page does not know of
 * threads that had ended when it was made. So each stat says where it is from.
 *
 * Everything here may run in a signal handler: no memory but the stack, raw system calls, of which
 * none is a cancellation point, errno as it was.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock/clock.h"
#include "clock/page.h"
#include "cputime/clock.h"

#define CT_PUBLIC __attribute__((visibility("default")))

static void ct_thread_stat_fill(struct cputime_thread_stat *stat, const struct ct_page_account *account,
                                int32_t cpu) {
        *stat = (struct cputime_thread_stat){
                .oncpu_ns = account->oncpu_ns,
                .wait_ns = account->wait_ns,
                .voluntary_switches = account->nvcsw,
                .involuntary_switches = account->nivcsw,
                .cpu = cpu,
                .backend = CPUTIME_BACKEND_PAGE,
        };
}

/* The caller's, from the page: as ct_thread_page_fast(). */
static bool ct_thread_stat_own(struct cputime_thread_stat *ret_stat) {
        struct ct_slot *slot = CT_FAST_CLOCKS ? ct_self.slot : NULL;
        const struct ct_page_slot *own = slot ? ct_load(&slot->page) : NULL;
        struct ct_page_account account;
        int32_t cpu = -1;

        if (!own || !ct_page_thread_account(own, ct_load(&slot->tid), ct_load(&ct_page_age_ns), &account,
                                            &cpu) || cpu < 0)
                return false;
        account.oncpu_ns = ct_max(account.oncpu_ns, ct_load(&slot->floor_ns));
        if (ct_load(&slot->page) != own)
                return false;
        ct_count(&slot->page_reads);
        ct_thread_stat_fill(ret_stat, &account, cpu);
        return true;
}

/* Another thread's, from the page: as ct_thread_page_of(). */
static bool ct_thread_stat_of(struct ct_process *p, pid_t tid, struct cputime_thread_stat *ret_stat) {
        const union ct_page_entry *page = ct_acquire(&p->page);
        const struct ct_page_slot *own = ct_self.slot ? ct_load(&ct_self.slot->page) : NULL, *other;
        uint64_t age_ns = ct_load(&ct_page_age_ns), ns;
        struct ct_page_account account;
        struct ct_slot *slot;
        bool running = false;
        int32_t cpu = -1;

        /* A thread that is on no CPU has nothing new to publish: ours tells that it would have been. */
        if (!page || !own || !ct_page_thread(own, age_ns, &ns, &running) || !running)
                return false;
        other = ct_page_find(page, tid);
        slot = ct_slot_find(p, tid);
        if (!other || !ct_page_thread_account(other, tid, age_ns, &account, &cpu) || ct_load(&p->page) != page)
                return false;
        if (slot)
                account.oncpu_ns = ct_max(account.oncpu_ns, ct_slot_shown(slot));
        ct_thread_stat_fill(ret_stat, &account, cpu);
        return true;
}

/* The process's, from the page. *ret_sure: whether oncpu_ns, too, is to be believed. */
static bool ct_process_stat_page(struct cputime_process_stat *ret_stat, bool *ret_sure) {
        struct ct_process *p = CT_FAST_CLOCKS && !ct_self.vforked ? ct_process_peek() : NULL;
        const union ct_page_entry *page = p ? ct_acquire(&p->page) : NULL;
        struct ct_slot *slot = ct_self.slot;
        const struct ct_page_slot *own = slot ? ct_load(&slot->page) : NULL;
        struct ct_page_account account;
        uint32_t nr_running;

        /* As ct_group_page_fast(). */
        *ret_sure = page && own && ct_page_acquire(&own->cpu) >= 0 && !ct_acquire(&p->page_leads);
        if (!page || !ct_page_group_account(page, &account, &nr_running))
                return false;
        *ret_stat = (struct cputime_process_stat){
                .oncpu_ns = ct_max(account.oncpu_ns, ct_acquire(&p->floor_ns)),
                .wait_ns = account.wait_ns,
                .voluntary_switches = account.nvcsw,
                .involuntary_switches = account.nivcsw,
                .nr_threads = ct_page_load(&page->group.nr_tasks),
                .nr_running = nr_running,
                .backend = CPUTIME_BACKEND_PAGE,
        };
        if (ct_load(&p->page) != page)
                return false;
        if (*ret_sure)
                ct_count(&slot->page_reads);
        return true;
}

/* --- /proc --- */

/* A file of /proc, a byte at a time. */
struct ct_file {
        long fd;
        int error;              /* 0, or what ended it before its end; -errno */
        unsigned int at, size;
        char bytes[1024];
};

static int ct_file_open(struct ct_file *file, long directory, const char *path) {
        file->fd = syscall(SYS_openat, (int)directory, path, O_RDONLY | O_CLOEXEC);
        file->error = file->fd < 0 ? -errno : 0;
        file->at = file->size = 0;
        return file->error;
}

static void ct_file_close(const struct ct_file *file) {
        if (file->fd >= 0)
                (void)syscall(SYS_close, (int)file->fd);
}

/* The next byte; -1: there is none. */
static int ct_file_next(struct ct_file *file) {
        long n;

        if (file->at == file->size) {
                n = file->error ? 0 : syscall(SYS_read, (int)file->fd, file->bytes, sizeof(file->bytes));
                if (n < 0)
                        file->error = -errno;
                if (n <= 0)
                        return -1;
                file->at = 0;
                file->size = (unsigned int)n;
        }
        return (unsigned char)file->bytes[file->at++];
}

/* How a file's end is to be reported that had not what we came for. */
static int ct_file_failed(const struct ct_file *file) {
        return file->error ? file->error : -ENODATA;
}

/* A decimal number and the byte after it. */
static int ct_file_number(struct ct_file *file, uint64_t *ret_number) {
        uint64_t number = 0;
        bool any = false;
        int c;

        while ((c = ct_file_next(file)) >= '0' && c <= '9') {
                number = number * 10 + (uint64_t)(c - '0');
                any = true;
        }
        if (!any)
                return ct_file_failed(file);
        *ret_number = number;
        return 0;
}

/* schedstat: time on a CPU, time waiting for one, stays on one. */
static int ct_file_wait(long directory, const char *path, uint64_t *ret_wait_ns) {
        struct ct_file file;
        uint64_t oncpu_ns;
        int r;

        r = ct_file_open(&file, directory, path);
        if (r == 0)
                r = ct_file_number(&file, &oncpu_ns);
        if (r == 0)
                r = ct_file_number(&file, ret_wait_ns);
        ct_file_close(&file);
        return r;
}

/*
 * stat: field 3 is the state, field 39 the CPU. Fields are counted anew from each closing
 * parenthesis, since a thread's name, field 2, can have any; but not 38 blanks. *ret_cpu is -1 if it
 * does not run; that it is only about to run cannot be told.
 */
static int ct_file_cpu(long directory, const char *path, int32_t *ret_cpu) {
        unsigned int field = 0;
        struct ct_file file;
        uint64_t cpu = 0;
        int c, state = 0, r;

        r = ct_file_open(&file, directory, path);
        while (r == 0 && field < 40 && (c = ct_file_next(&file)) >= 0) {
                if (c == ')') {
                        field = 2;
                        state = 0;
                        cpu = 0;
                } else if (c == ' ') {
                        field += field > 0;
                } else if (field == 3) {
                        state = c;
                } else if (field == 39 && c >= '0' && c <= '9') {
                        cpu = cpu * 10 + (uint64_t)(c - '0');
                }
        }
        if (r == 0 && field < 40)
                r = ct_file_failed(&file);
        ct_file_close(&file);
        if (r == 0)
                *ret_cpu = state == 'R' ? (int32_t)cpu : -1;
        return r;
}

/* status: a line for each of the two. */
static int ct_file_switches(long directory, const char *path, uint64_t *ret_voluntary,
                            uint64_t *ret_involuntary) {
        static const char voluntary[] = "voluntary_ctxt_switches:\t";
        static const char involuntary[] = "nonvoluntary_ctxt_switches:\t";
        unsigned int n_found = 0, length = 0;
        char line[sizeof(involuntary)];
        struct ct_file file;
        uint64_t *found;
        int c, r;

        r = ct_file_open(&file, directory, path);
        while (r == 0 && n_found < 2 && (c = ct_file_next(&file)) >= 0) {
                found = NULL;
                if (c == '\n') {
                        length = 0;
                } else if (length < sizeof(line)) {
                        line[length++] = (char)c;
                        if (length == sizeof(voluntary) - 1 && memcmp(line, voluntary, length) == 0)
                                found = ret_voluntary;
                        if (length == sizeof(involuntary) - 1 && memcmp(line, involuntary, length) == 0)
                                found = ret_involuntary;
                }
                if (found) {
                        r = ct_file_number(&file, found);
                        length = 0;
                        n_found++;
                }
        }
        if (r == 0 && n_found < 2)
                r = ct_file_failed(&file);
        ct_file_close(&file);
        return r;
}

#define CT_PATH_MAX 64

/* "DIRECTORY/TID/FILE" */
static const char *ct_path(char buffer[static CT_PATH_MAX], const char *directory, pid_t tid,
                           const char *file) {
        char digits[16];
        unsigned int n = 0;
        char *at = buffer;

        for (; *directory; directory++)
                *at++ = *directory;
        for (; tid > 0; tid /= 10)
                digits[n++] = (char)('0' + tid % 10);
        while (n > 0)
                *at++ = digits[--n];
        *at++ = '/';
        for (; *file; file++)
                *at++ = *file;
        *at = '\0';
        return buffer;
}

static pid_t ct_parse_tid(const char *text) {
        pid_t tid = 0;

        for (; *text >= '0' && *text <= '9'; text++)
                tid = tid * 10 + (*text - '0');
        return tid;
}

/* Whether the numbers in /proc are ours: it can be that of another pid namespace. */
static int ct_proc_is_ours(void) {
        char text[16] = {};
        long n = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self", text, sizeof(text) - 1);

        if (n < 0)
                return -errno;
        return ct_parse_tid(text) == (pid_t)syscall(SYS_getpid) ? 0 : -EOPNOTSUPP;
}

/* The rest of the caller's stat. */
static int ct_thread_stat_ask(struct cputime_thread_stat *stat) {
        struct rusage usage = {};
        int r;

        r = ct_file_wait(AT_FDCWD, "/proc/thread-self/schedstat", &stat->wait_ns);
        if (r < 0)
                return r;
        if (syscall(SYS_getrusage, RUSAGE_THREAD, &usage) < 0)
                return -errno;
        stat->voluntary_switches = (uint64_t)usage.ru_nvcsw;
        stat->involuntary_switches = (uint64_t)usage.ru_nivcsw;
        stat->cpu = sched_getcpu();
        return 0;
}

static int ct_thread_stat_ask_of(pid_t tid, struct cputime_thread_stat *stat) {
        static const char directory[] = "/proc/self/task/";
        char path[CT_PATH_MAX];
        uint64_t ns;
        int r;

        r = ct_proc_is_ours();
        if (r == 0)
                r = ct_file_wait(AT_FDCWD, ct_path(path, directory, tid, "schedstat"), &stat->wait_ns);
        if (r == 0)
                r = ct_file_switches(AT_FDCWD, ct_path(path, directory, tid, "status"),
                                     &stat->voluntary_switches, &stat->involuntary_switches);
        if (r == 0)
                r = ct_file_cpu(AT_FDCWD, ct_path(path, directory, tid, "stat"), &stat->cpu);
        /* It has just ended, or it is /proc that is not there. */
        return r < 0 && ct_ask_thread_of(tid, &ns) < 0 ? -ESRCH : r;
}

static int ct_process_stat_ask(struct cputime_process_stat *stat) {
        _Alignas(8) char buffer[1024];
        struct rusage usage = {};
        char path[CT_PATH_MAX];
        int r = 0;
        long fd, n;

        fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        while (r == 0 && (n = syscall(SYS_getdents64, (int)fd, buffer, sizeof(buffer))) != 0) {
                if (n < 0)
                        r = -errno;
                for (char *at = buffer; r == 0 && at < buffer + n;) {
                        struct dirent64 *entry = (struct dirent64 *)(void *)at;
                        pid_t tid = ct_parse_tid(entry->d_name);
                        uint64_t wait_ns;
                        int32_t cpu;

                        at += entry->d_reclen;
                        if (tid == 0)
                                continue;
                        r = ct_file_wait(fd, ct_path(path, "", tid, "schedstat"), &wait_ns);
                        if (r == 0)
                                r = ct_file_cpu(fd, ct_path(path, "", tid, "stat"), &cpu);
                        if (r == 0) {
                                stat->wait_ns += wait_ns;
                                stat->nr_running += cpu >= 0;
                                stat->nr_threads++;
                        } else if (r == -ENOENT || r == -ESRCH) {
                                r = 0;  /* it has ended meanwhile */
                        }
                }
        }
        (void)syscall(SYS_close, (int)fd);
        if (r == 0 && syscall(SYS_getrusage, RUSAGE_SELF, &usage) < 0)
                r = -errno;
        stat->voluntary_switches = (uint64_t)usage.ru_nvcsw;
        stat->involuntary_switches = (uint64_t)usage.ru_nivcsw;
        return r;
}

/* --- the public face --- */

CT_PUBLIC int cputime_thread_stat_read(pid_t tid, struct cputime_thread_stat *ret_stat) {
        struct cputime_thread_stat stat = { .backend = CPUTIME_BACKEND_SYSCALL };
        int saved_errno = errno, r;
        struct ct_process *p;
        bool served;

        if (tid < 0)
                return -EINVAL;
        if (tid == 0 || (ct_self.slot && ct_load(&ct_self.slot->tid) == tid)) {
                if (ct_thread_stat_own(ret_stat))
                        return 0;
                stat.oncpu_ns = cputime_thread_ns();
                /* It may have found the page. */
                if (ct_thread_stat_own(ret_stat))
                        return 0;
                r = ct_thread_stat_ask(&stat);
                goto out;
        }
        p = ct_self.vforked ? NULL : ct_process_get();
        if (p) {
                atomic_fetch_add_explicit(&p->n_visitors, 1, memory_order_seq_cst);
                served = ct_thread_stat_of(p, tid, ret_stat);
                atomic_fetch_sub_explicit(&p->n_visitors, 1, memory_order_release);
                if (served)
                        return 0;
        }
        r = cputime_thread_ns_of(tid, &stat.oncpu_ns);
        if (r == 0)
                r = ct_thread_stat_ask_of(tid, &stat);
out:
        errno = saved_errno;
        if (r < 0)
                return r;
        *ret_stat = stat;
        return 0;
}

CT_PUBLIC int cputime_process_stat_read(struct cputime_process_stat *ret_stat) {
        struct cputime_process_stat stat;
        int saved_errno = errno, r = 0;
        uint64_t ns;
        bool sure;

        if (!ct_process_stat_page(&stat, &sure)) {
                ns = cputime_process_ns();
                /* It may have put the page in force. */
                if (!ct_process_stat_page(&stat, &sure)) {
                        stat = (struct cputime_process_stat){ .backend = CPUTIME_BACKEND_SYSCALL };
                        r = ct_process_stat_ask(&stat);
                }
                stat.oncpu_ns = ns;
        } else if (!sure) {
                stat.oncpu_ns = cputime_process_ns();
        }
        errno = saved_errno;
        if (r < 0)
                return r;
        *ret_stat = stat;
        return 0;
}
