/* SPDX-License-Identifier: MIT */
/*
 * The process clock's slow path: watching all threads, anchors, floors, and when to give up.
 *
 * The kernel's process clock sums the runtimes of all threads but updates only the caller's first;
 * a sibling on another CPU is counted up to its last tick. So an anchor first asks for the clock of
 * each running sibling, which updates it, and then for the process's: K. With `start` read before
 * all that, and n threads running throughout, truth(t) <= K + n * (t - start), too much by n times
 * the microseconds that the asking took. That the process clock is an upper bound, and the
 * thread clock (thread.c) a lower one, is what makes P >= T1 + ... + Tn hold.
 *
 * It would not hold alone where a thread's clock ran ahead of the kernel's, across a hypervisor's
 * pause. So the base is raised to the sum of what the threads can have read, if that is more.
 *
 * Going backwards. Readers share the anchor, so between anchors there is one monotone function of
 * time. A new anchor i+1, made at t1, must not undercut what anybody was given under anchor i:
 *   - readers that have returned left their value in group_last_ns, and whoever is ordered after
 *     them sees it: the maximum over all slots is a floor;
 *   - readers still at it, on other CPUs, read a time before t1, or will find `sequence` moved and
 *     start over: F_i(t1), or F_i at the end of i's life if that came earlier, is a floor. It is
 *     needed only while another thread runs.
 * The second floor can be too high, by n times (t1 - when a thread left its CPU); the life of
 * an anchor, CPUTIME_ANCHOR_NS and less with more threads running, bounds that, and it only holds
 * the clock still until the kernel's has caught up: nothing accumulates.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/nsec.h"
#include "base/signals.h"
#include "clock/clock.h"
#include "clock/group.h"
#include "clock/page.h"

/* Answers of the kernel to one thread before all threads are watched: at least, and for each. */
#define CT_GROUP_READS 256
#define CT_GROUP_READS_PER_THREAD 64

#define CT_BALANCE_MAX 4096
#define CT_BALANCE_RETREAT (-4096)

/* How long after a retreat or a refusal the next try comes, doubled with each; at most 256 times. */
#define CT_RETRY_NS (100 * CT_NSEC_PER_MSEC)

/* Asking for one clock takes a microsecond or less, some twenty in an emulated machine. */
#define CT_ASK_NS (100 * CT_NSEC_PER_USEC)

/* Two readings of a clock that may be off by this, in ns, across CPUs and orderings. */
#define CT_SKEW_NS 1000

/* With n threads running, an anchor lives so long that n * life stays below 0.8 ms. */
static uint64_t ct_group_life_ns(uint32_t nr_running) {
        uint64_t ns = 800 * CT_NSEC_PER_USEC / nr_running;

        return ns < CPUTIME_ANCHOR_NS ? ns : CPUTIME_ANCHOR_NS;
}

static uint64_t ct_group_at(const struct ct_process *p, uint64_t ticks) {
        return ct_runtime_at(ct_load(&p->base_ns), ct_load(&p->nr_running),
                             ct_ticks_to_ns(ticks, ct_load(&p->mult)));
}

/*
 * The sum of what all threads, live and ended, have read for their clocks; 0 if slots come and go
 * too fast to tell. No thread can be ahead of the kernel by more than an anchor's life, so neither
 * can the sum; more would mean that a slot was counted twice.
 */
static uint64_t ct_threads_last(struct ct_process *p, uint64_t kernel_ns) {
        for (unsigned int try = 0; try < 3; try++) {
                uint32_t sequence = ct_acquire(&p->slots_sequence);
                uint64_t sum = ct_acquire(&p->ended_last_ns);
                uint64_t n = 0;

                for (uint32_t i = ct_slots_first(p); i < ct_slots_end(); i++, n++)
                        sum += ct_slot_shown(ct_slot_at(i));
                if (!(sequence & 1) &&
                    ct_acquire(&p->slots_sequence) == sequence)
                        return sum <= kernel_ns + n * ct_ahead_max_ns() ? sum : 0;
        }
        return 0;
}

/* The largest process clock that any thread was given and has left a trace of. */
static uint64_t ct_group_last(struct ct_process *p) {
        uint64_t ns = 0;

        for (uint32_t i = ct_slots_first(p); i < ct_slots_end(); i++)
                ns = ct_max(ns, ct_acquire(&ct_slot_at(i)->group_last_ns));
        /* After the slots: one that is released raises the floor before it forgets. */
        return ct_max(ns, ct_acquire(&p->floor_ns));
}

uint64_t ct_group_ask(struct ct_process *p, struct ct_slot *slot) {
        uint64_t kernel_ns, ns;
        pid_t pid;

        /* Before asking: values returned before this call are found, and the kernel's is later. */
        if (!p || !ct_acquire(&p->enrolled))
                return ct_ask_process();
        pid = ct_load(&p->pid);
        ns = ct_max(ct_group_last(p), ct_group_page_bound(p));
        kernel_ns = ct_ask_process();
        ns = ct_max(ns, ct_threads_last(p, kernel_ns));
        ns = ct_max(ns, kernel_ns);
        /* A handler has forked meanwhile, and this is the child: nothing of its parent's is its own. */
        if (ct_load(&p->pid) != pid)
                return kernel_ns;
        /* For readers of an anchor that does not know this value yet. */
        if (ns > kernel_ns || ct_load(&p->group) || ct_load(&p->page))
                ct_raise(&p->floor_ns, ns);
        if (slot)
                ct_raise(&slot->group_last_ns, ns);
        return ns;
}

/* A floor from the anchor in force: what a reader can be given until now. */
static void ct_group_raise_floor(struct ct_process *p) {
        uint64_t life = ct_load(&p->limit), age;

        if (life) {
                age = ct_time_now_ordered(ct_load(&p->counter)) - ct_load(&p->start);
                ct_raise(&p->floor_ns, ct_group_at(p, age < life ? age : life) +
                         CT_SKEW_NS * ct_load(&p->nr_running));
        }
}

/*
 * Sends readers to the kernel while the members change; what they walk is not theirs to trust any
 * more. Opened again with the next anchor, or without one.
 */
static void ct_group_close(struct ct_process *p) {
        if (ct_load(&p->sequence) & 1)
                return;
        atomic_exchange_explicit(&p->sequence, ct_load(&p->sequence) + 1, memory_order_seq_cst);
        ct_group_raise_floor(p);
        ct_release(&p->limit, 0);
}

static void ct_group_open(struct ct_process *p) {
        if (ct_load(&p->sequence) & 1)
                ct_release(&p->sequence, ct_load(&p->sequence) + 1);
}

static void ct_group_swap(struct ct_process *p, uint32_t i, uint32_t k) {
        const uint32_t *word = ct_load(&p->members[i].change_word);
        uint32_t change = ct_load(&p->members[i].change), slot = p->members[i].slot;
        struct ct_look look = p->looks[i];

        ct_release(&p->members[i].change_word, ct_load(&p->members[k].change_word));
        ct_release(&p->members[i].change, ct_load(&p->members[k].change));
        p->members[i].slot = p->members[k].slot;
        p->looks[i] = p->looks[k];
        ct_release(&p->members[k].change_word, word);
        ct_release(&p->members[k].change, change);
        p->members[k].slot = slot;
        p->looks[k] = look;
}

static void ct_group_drop(struct ct_process *p, uint32_t i) {
        struct ct_slot *slot = ct_slot_at(p->members[i].slot);
        uint32_t last = ct_load(&p->n_members) - 1;

        ct_group_close(p);
        /* An ended thread that ran no destructor, or one that nobody but us knew of. */
        if (ct_load(&slot->tid) == p->looks[i].tid) {
                if (slot->attached)
                        ct_slot_unmap(p, slot, CT_PERF_RING);
                else
                        ct_slot_release(p, slot);
        }
        ct_group_swap(p, i, last);
        atomic_store_explicit(&p->n_members, last, memory_order_release);
}

/* Opens a ring on TID unless it is a member already. Returns 1 if it is new, 0, or -errno. */
static int ct_group_add(struct ct_process *p, pid_t tid) {
        uint32_t n = ct_load(&p->n_members);
        const uint32_t *word;
        struct ct_slot *slot;
        int r;

        for (uint32_t i = 0; i < n; i++)
                if (p->looks[i].tid == tid && ct_load(&ct_slot_at(p->members[i].slot)->tid) == tid &&
                    ct_load(&ct_slot_at(p->members[i].slot)->ring))
                        return 0;
        if (n == CT_MEMBERS_MAX) {
                ct_process_refused(p, E2BIG, "watching more threads");
                return -E2BIG;
        }
        slot = ct_slot_find(p, tid);
        if (!slot)
                slot = ct_slot_new(p, tid);
        if (!slot)
                return -ENOMEM;
        if (!ct_load(&slot->ring)) {
                r = ct_slot_map(p, slot, CT_PERF_RING);
                if (r < 0) {
                        if (!slot->attached)
                                ct_slot_release(p, slot);
                        return r == -ESRCH ? 0 : r;
                }
                /* Threads that come and go cost; the first ones the asked reads have paid for. */
                if (ct_load(&p->group))
                        p->balance -= 64;
        }
        ct_group_close(p);
        word = ct_slot_change_word(p, slot, CT_PERF_RING);
        ct_release(&p->members[n].change_word, word);
        ct_release(&p->members[n].change, CT_PERF_POISON);
        p->members[n].slot = (uint32_t)(slot - ct_slot_at(0));
        p->looks[n].known = 0;
        p->looks[n].running = 0;
        p->looks[n].head = *(const volatile uint32_t *)word;
        p->looks[n].tid = tid;
        atomic_store_explicit(&p->n_members, n + 1, memory_order_release);
        return 1;
}

static pid_t ct_parse_tid(const char *text) {
        pid_t tid = 0;

        for (; *text >= '0' && *text <= '9'; text++)
                tid = tid * 10 + (*text - '0');
        return tid;
}

/* How many CPUs this machine can ever have, "0-3,8" say; 0: not known, which is safe. */
static uint32_t ct_cpus_possible(void) {
        uint32_t n = 0, first = 0, value = 0;
        char text[128];
        long fd, size;

        fd = syscall(SYS_openat, AT_FDCWD, "/sys/devices/system/cpu/possible", O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return 0;
        size = syscall(SYS_read, fd, text, sizeof(text));
        (void)syscall(SYS_close, fd);
        if (size <= 0 || size == sizeof(text) || text[size - 1] != '\n')
                return 0;
        for (long i = 0; i < size; i++) {
                if (text[i] >= '0' && text[i] <= '9') {
                        value = value * 10 + (uint32_t)(text[i] - '0');
                } else if (text[i] == '-') {
                        first = value + 1;      /* 0: not in a range */
                        value = 0;
                } else {
                        n += first ? value - first + 2 : 1;
                        first = value = 0;
                }
        }
        return n;
}

/*
 * Makes every thread a member. A thread may be born while the list is read, by one that is not
 * watched yet: so until a pass finds nobody new. From there on fork records tell. Returns 0; 1 if a
 * thread is just ending, which has to be waited for; or -errno; -EAGAIN: so many threads are not paid for by what all of them have asked yet.
 */
static int ct_group_scan(struct ct_process *p, pid_t self) {
        _Alignas(8) char buffer[2048];
        uint64_t asked = 0;
        bool own = false;
        struct stat st;
        int saved_errno = errno, r = 0;
        long fd, n;

        fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
                r = -errno;
                ct_process_refused(p, -r, "open /proc/self/task");
                errno = saved_errno;
                return r;
        }
        if (!p->n_cpus)
                p->n_cpus = ct_cpus_possible();
        for (uint32_t i = ct_slots_first(p); i < ct_slots_end(); i++)
                asked += ct_load(&ct_slot_at(i)->asked_group);
        /* The directory has a link for each thread, and two. */
        if (fstat((int)fd, &st) == 0 && st.st_nlink > CT_MEMBERS_MAX + 2) {
                ct_process_refused(p, E2BIG, "watching more threads");
                r = -E2BIG;
                goto out;
        }
        if (!ct_load(&p->group) && ct_load(&ct_mode) == CPUTIME_BACKEND_AUTO &&
            fstat((int)fd, &st) == 0 && asked < CT_GROUP_READS_PER_THREAD * (st.st_nlink - 2)) {
                r = -EAGAIN;
                goto out;
        }
        for (unsigned int pass = 0; pass < 16; pass++) {
                bool found = false, ending = false;

                while ((n = syscall(SYS_getdents64, fd, buffer, sizeof(buffer))) > 0) {
                        for (char *at = buffer; at < buffer + n;) {
                                struct dirent64 *entry = (struct dirent64 *)(void *)at;
                                pid_t tid = ct_parse_tid(entry->d_name);

                                at += entry->d_reclen;
                                if (tid == 0)
                                        continue;
                                own |= tid == self;
                                if (ct_thread_ending(p, tid)) {
                                        ending = true;
                                        continue;
                                }
                                r = ct_group_add(p, tid);
                                if (r < 0)
                                        goto out;
                                found |= r > 0;
                        }
                }
                if (n < 0) {
                        r = -errno;
                        ct_process_refused(p, -r, "getdents64");
                        goto out;
                }
                r = 0;
                if (!own) {
                        /* A /proc of another pid namespace: its numbers are not our threads'. */
                        ct_process_refused(p, EOPNOTSUPP, "/proc/self/task");
                        r = -EOPNOTSUPP;
                        goto out;
                }
                if (!found) {
                        p->complete = !ending;
                        r = ending;
                        break;
                }
                (void)syscall(SYS_lseek, fd, 0, SEEK_SET);
        }
out:
        (void)syscall(SYS_close, fd);
        errno = saved_errno;
        return r;
}

/* Makes the anchor invalid and takes down all rings; thread clocks that used one find out. */
static void ct_group_retreat(struct ct_process *p) {
        ct_group_close(p);
        ct_raise(&p->floor_ns, ct_group_last(p));
        ct_store(&p->group, 0);
        while (ct_load(&p->n_members))
                ct_group_drop(p, ct_load(&p->n_members) - 1);
        p->complete = 0;
        ct_group_open(p);
}

/*
 * Brings p->looks up to date with the rings: who runs, who has ended, who was born. Returns how
 * many switches that were, or -1 if the rings are moving too fast.
 */
static int64_t ct_group_look(struct ct_process *p) {
        int64_t switches = 0;

        for (uint32_t i = 0; i < ct_load(&p->n_members);) {
                const struct ct_member *member = &p->members[i];
                const volatile uint32_t *word = ct_load(&member->change_word);
                uint32_t change = *word;
                struct ct_perf_news news;

                if (change == CT_PERF_POISON || ct_load(&ct_slot_at(member->slot)->tid) != p->looks[i].tid) {
                        p->complete = 0;
                        ct_group_drop(p, i);
                        continue;
                }
                if (change == p->looks[i].head && p->looks[i].known) {
                        i++;
                        continue;
                }
                if (change != p->looks[i].head) {
                        ct_perf_read_news(ct_slot_ring(p, ct_slot_at(member->slot)),
                                          p->looks[i].head, &news);
                        if (*word != news.head)
                                return -1;
                        switches += news.n_switches;
                        p->looks[i].head = news.head;
                        if (news.forked || news.lost)
                                p->complete = 0;
                        if (news.exited) {
                                ct_group_drop(p, i);
                                continue;
                        }
                        if (news.known || news.lost) {
                                p->looks[i].known = news.known;
                                p->looks[i].running = news.running;
                        }
                }
                i++;
        }
        return switches;
}

/*
 * Updates the kernel's accounts of every running sibling and counts them; a sibling that no record
 * tells about yet is asked twice, which tells. False: a thread ended under our hands.
 */
static bool ct_group_flush(struct ct_process *p, pid_t self, uint32_t *ret_running) {
        uint32_t n_running = 1;

        for (uint32_t i = 0; i < ct_load(&p->n_members); i++) {
                uint64_t before_ns, after_ns;

                if (p->looks[i].tid == self) {
                        /* While a CPU timer is armed the kernel does not update the caller either. */
                        (void)ct_ask_thread();
                        p->looks[i].known = 1;
                        p->looks[i].running = 1;
                        continue;
                }
                if (p->looks[i].known && !p->looks[i].running)
                        continue;
                if (ct_ask_thread_of(p->looks[i].tid, &before_ns) < 0)
                        return false;
                if (!p->looks[i].known) {
                        if (ct_ask_thread_of(p->looks[i].tid, &after_ns) < 0)
                                return false;
                        p->looks[i].running = after_ns != before_ns;
                        p->looks[i].known = 1;
                }
                n_running += p->looks[i].running;
        }
        *ret_running = n_running;
        return true;
}

static bool ct_group_unmoved(const struct ct_process *p) {
        for (uint32_t i = 0; i < ct_load(&p->n_members); i++)
                if (*(const volatile uint32_t *)ct_load(&p->members[i].change_word) != p->looks[i].head)
                        return false;
        return true;
}

/*
 * The same for an anchor that others will extrapolate: a running thread may have read, and go on
 * reading, what its own anchor gives by now.
 */
static uint64_t ct_threads_bound(struct ct_process *p, uint64_t kernel_ns) {
        uint64_t sum = ct_threads_last(p, kernel_ns), ahead_ns = 0;

        for (uint32_t i = 0; i < ct_load(&p->n_members); i++)
                if (p->looks[i].running)
                        ahead_ns += ct_slot_thread_ahead(ct_slot_at(p->members[i].slot));
        return sum ? sum + ahead_ns : 0;
}

/* Puts an anchor in force: the second half of the argument at the top. */
static uint64_t ct_group_publish(struct ct_process *p, const struct ct_timebase *timebase,
                                 uint64_t start, uint64_t kernel_ns, uint32_t nr_running,
                                 uint32_t doubt) {
        uint32_t n_watched = ct_load(&p->n_members);
        uint64_t base_ns;

        if (!(ct_load(&p->sequence) & 1)) {
                atomic_exchange_explicit(&p->sequence, ct_load(&p->sequence) + 1, memory_order_seq_cst);
                if (nr_running > 1)
                        ct_group_raise_floor(p);
        }
        ct_raise(&p->floor_ns, ct_group_last(p));
        base_ns = ct_max(kernel_ns, ct_threads_bound(p, kernel_ns));

        if (nr_running == p->n_cpus) {
                n_watched = 0;
                for (uint32_t i = 0; i < ct_load(&p->n_members); i++)
                        if (p->looks[i].running)
                                ct_group_swap(p, i, n_watched++);
        }
        ct_release(&p->n_watched, n_watched);
        /* Releases: none of these may be seen before the odd sequence count. */
        for (uint32_t i = 0; i < ct_load(&p->n_members); i++)
                ct_release(&p->members[i].change, p->looks[i].head);
        ct_release(&p->start, start);
        ct_release(&p->limit, timebase->max_age);
        ct_release(&p->base_ns, base_ns);
        ct_release(&p->nr_running, nr_running);
        ct_release(&p->mult, timebase->mult);
        ct_release(&p->counter, timebase->counter);
        ct_release(&p->anchor_doubt, doubt);
        p->pair = timebase->pair;
        ct_store(&p->group, 1);
        ct_group_open(p);
        atomic_fetch_add_explicit(&p->group_anchors, 1, memory_order_relaxed);
        return ct_max(ct_load(&p->floor_ns), base_ns);
}

static int ct_group_sandboxed(struct ct_process *p) {
        ct_process_refused(p, EPERM, "prctl(PR_GET_SECCOMP)");
        return -EPERM;
}

/* Retreat, and when to try again: never, if REASON is a refusal that lasts. */
static void ct_group_give_up(struct ct_process *p, int reason) {
        unsigned int shift = p->n_retreats < 8 ? p->n_retreats : 8;

        ct_group_retreat(p);
        p->balance = 0;
        if (ct_refused_for_good(reason)) {
                ct_store(&p->group_at_ns, UINT64_MAX);
        } else if (reason == -EAGAIN) {
                ct_store(&p->group_at_ns, ct_vdso_coarse_ns() + CT_RETRY_NS / 100);
        } else {
                p->n_retreats++;
                ct_store(&p->group_at_ns, ct_vdso_coarse_ns() + (CT_RETRY_NS << shift));
        }
}

/* Under the lock. False: no anchor, and the kernel must be asked. */
static bool ct_group_anchor(struct ct_process *p, struct ct_slot *slot, uint64_t *ret_ns) {
        struct ct_timebase timebase;
        uint64_t start, kernel_ns;
        uint32_t nr_running;
        int64_t switches;
        int r;

        for (unsigned int try = 0; try < 4; try++) {
                uint32_t doubt = ct_acquire(&p->doubt);

                switches = ct_group_look(p);
                if (switches < 0)
                        continue;
                p->balance -= (int32_t)(switches < CT_BALANCE_MAX ? switches : CT_BALANCE_MAX);
                if (!p->complete) {
                        /* A filter that came after the group was enrolled is respected too. */
                        r = ct_load(&ct_mode) == CPUTIME_BACKEND_AUTO && ct_sandboxed() ?
                                ct_group_sandboxed(p) : ct_group_scan(p, ct_load(&slot->tid));
                        if (r < 0) {
                                ct_group_give_up(p, r);
                                return false;
                        }
                        if (r > 0)
                                break;
                        if (!p->complete || ct_group_look(p) < 0)
                                continue;
                }
                ct_timebase_get(ct_group_life_ns(1), &p->pair, &timebase);
                start = ct_time_now_ordered(timebase.counter);
                if (!ct_group_flush(p, ct_load(&slot->tid), &nr_running))
                        continue;
                kernel_ns = ct_ask_process();
                if (!ct_group_unmoved(p))
                        continue;
                /* A pause while asking would put the clock ahead. */
                if (try < 2 && ct_ticks_to_ns(ct_time_now(timebase.counter) - start,
                                              timebase.mult) > nr_running * CT_ASK_NS)
                        continue;
                if (nr_running > 1) {
                        uint64_t life = (ct_group_life_ns(nr_running) << CT_MULT_SHIFT) / timebase.mult;

                        if (timebase.max_age > life)
                                timebase.max_age = life;
                }
                *ret_ns = ct_group_publish(p, &timebase, start, kernel_ns, nr_running, doubt);
                return true;
        }
        p->balance -= 16;
        return false;
}

/* Adds what all threads have read since the last time to the balance. */
static void ct_group_gained(struct ct_process *p) {
        uint64_t sum = ct_load(&p->group_ended), gained;

        for (uint32_t i = ct_slots_first(p); i < ct_slots_end(); i++)
                sum += ct_load(&ct_slot_at(i)->group_version);
        gained = sum - p->group_reads;
        p->group_reads = sum;
        p->balance += gained < 2 * CT_BALANCE_MAX ? (int32_t)gained : 2 * CT_BALANCE_MAX;
        if (p->balance > CT_BALANCE_MAX)
                p->balance = CT_BALANCE_MAX;
        if (p->balance < 2 * CT_BALANCE_RETREAT)
                p->balance = 2 * CT_BALANCE_RETREAT;
}

static bool ct_group_serve(struct ct_process *p, struct ct_slot *slot, uint64_t *ret_ns) {
        uint32_t mode = ct_load(&ct_mode);
        struct ct_signal_mask mask;
        bool served = false;

        if (!ct_load(&p->group)) {
                if (mode == CPUTIME_BACKEND_SYSCALL || mode == CPUTIME_BACKEND_HEADER ||
                    (mode == CPUTIME_BACKEND_AUTO && ct_load(&slot->asked_group) < CT_GROUP_READS))
                        return false;
                if (mode != CPUTIME_BACKEND_RING && ct_page_try(p))
                        return false;
                if (mode == CPUTIME_BACKEND_PAGE ||
                    (mode == CPUTIME_BACKEND_AUTO && ct_load(&p->group_at_ns) &&
                     ct_vdso_coarse_ns() < ct_load(&p->group_at_ns)))
                        return false;
        }
        if (!ct_process_enter(p, &mask))
                return false;
        if (mode != CPUTIME_BACKEND_AUTO && mode != CPUTIME_BACKEND_RING) {
                ct_group_retreat(p);
                goto out;
        }
        ct_group_gained(p);
        served = ct_group_anchor(p, slot, ret_ns);
        if (served)
                ct_raise(&slot->group_last_ns, *ret_ns);
        if (mode == CPUTIME_BACKEND_AUTO && ct_load(&p->group) && p->balance < CT_BALANCE_RETREAT) {
                ct_group_give_up(p, -ECANCELED);
                atomic_fetch_add_explicit(&p->retreats, 1, memory_order_relaxed);
        }
out:
        ct_group_open(p);
        ct_process_leave(p, &mask);
        return served;
}

uint64_t ct_process_slow(enum cputime_backend *ret_backend) {
        enum cputime_backend backend = CPUTIME_BACKEND_SYSCALL;
        struct ct_process *p;
        struct ct_slot *slot;
        uint64_t ns;

        if (ret_backend)
                *ret_backend = CPUTIME_BACKEND_SYSCALL;
        if (__builtin_expect(ct_self.vforked || ct_load(&ct_disabled), 0)) {
                p = ct_process_peek();
                return p && ct_load(&p->pid) == getpid() ? ct_group_ask(p, NULL) : ct_ask_process();
        }
        p = ct_process_get();
        slot = p ? ct_slot_own(p) : NULL;
        if (!slot) {
                if (p)
                        atomic_fetch_add_explicit(&p->early_reads, 1, memory_order_relaxed);
                return ct_group_ask(p, NULL);
        }
        if (ct_group_page_slow(p, slot, &ns, &backend))
                goto out;
        if (ct_group_serve(p, slot, &ns))
                backend = CPUTIME_BACKEND_RING;
        else
                ns = ct_group_ask(p, slot);
        ct_count(&slot->asked_group);
out:
        if (ret_backend)
                *ret_backend = backend;
        return ns;
}
