/* SPDX-License-Identifier: MIT */
/*
 * How a process comes to its page, and what happens when that does not answer.
 *
 * Coming to it. Source/page/protocol.h has the messages. It is done bit by bit by whoever reads a
 * clock and is due to enrol, never waiting: the kernel serves until the page is there, live, and
 * agrees with this process about what time it is (it does not in a time namespace with an offset,
 * and is refused there). Nothing else is enrolled meanwhile, and a page is only asked for by a
 * process that has no events: then all that has been returned so far is the kernel's, and what
 * it was ahead of the page by is known: floor and lead, see page.h.
 *
 * The connection is kept open: it holds the program attached. It takes the place of no descriptor
 * that a program might count on, and if the program closes it the page goes stale, which readers
 * notice (age_ns). Before it is used or closed again it is made sure that the descriptor is still
 * ours.
 *
 * Not answering. For an instant: the publisher's virtual CPU was stopped while publishing. For good:
 * the program is no longer attached, the group is broken. In either case the kernel answers, and
 * never below what the page can have said; after CT_STALE_NS of that the page is left.
 *
 * Leaving. The page's mapping is replaced by zeroes: its addresses stay readable for readers that
 * are just at it, as with the perf mappings, and zeroes say "too old".
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/nsec.h"
#include "base/signals.h"
#include "clock/page.h"
#include "source/page/protocol.h"

/* From the first message to a live page: the program is loaded for the first client, 0.1 s. */
#define CT_PAGE_WAIT_NS CT_NSEC_PER_SEC

/* How often the server's answer is looked for. */
#define CT_PAGE_POLL_NS (100 * CT_NSEC_PER_USEC)

/* How long after a refusal or a loss the next try comes, doubled with each, at most 256 times. */
#define CT_PAGE_RETRY_NS CT_NSEC_PER_SEC

/* For how long the kernel answers, without an answer of the page in between, before it is left. */
#define CT_STALE_NS (50 * CT_NSEC_PER_MSEC)

/* The connection is moved up here, out of the way of programs that count on low numbers. */
#define CT_PAGE_FD 1000

/* As in group.c: two readings of a clock, across CPUs and orderings. */
#define CT_SKEW_NS 1000

enum ct_page_progress {
        CT_PROGRESS_NONE = 0,
        CT_PROGRESS_HELLO,      /* connected, waiting for hello */
        CT_PROGRESS_REPLY,      /* joined, waiting for the reply */
        CT_PROGRESS_LIVE,       /* mapped, waiting for the page to go live */
};

_Atomic uint64_t ct_page_age_ns;

static const char *ct_page_socket = CT_SOCKET_PATH;

/* In inherited memory, for a forked child: what it has of its parent's page. */
static struct {
        int fd;
        dev_t dev;
        ino_t ino;
        void *place;
        size_t size;
} ct_held = { .fd = -1 };

void ct_page_begin(void) {
        const char *path = secure_getenv(CT_SOCKET_VARIABLE);
        struct timespec ts = {};

        if (path && *path)
                ct_page_socket = path;
        /* The kernel's tick is the resolution of its coarse clock. */
        if (clock_getres(CLOCK_MONOTONIC_COARSE, &ts) == 0)
                ct_store(&ct_page_age_ns, ct_nsec_from_timespec(&ts) * 3 / 2);
}

const char *ct_page_socket_path(void) {
        return ct_page_socket;
}

static bool ct_held_is_ours(void) {
        struct stat st;

        return ct_held.fd >= 0 && fstat(ct_held.fd, &st) == 0 && st.st_dev == ct_held.dev &&
               st.st_ino == ct_held.ino;
}

static void ct_held_close(void) {
        if (ct_held_is_ours())
                (void)syscall(SYS_close, ct_held.fd);
        ct_held.fd = -1;
}

/* Under the lock: there is no page now; another try after a while. */
static bool ct_page_refused(struct ct_process *p, int error, const char *step) {
        unsigned int shift = p->page_retries < 8 ? p->page_retries : 8;

        if (p->page_progress != CT_PROGRESS_NONE && ct_held.place) {
                (void)munmap(ct_held.place, ct_held.size);
                ct_held.place = NULL;
        }
        ct_held_close();
        p->page_progress = CT_PROGRESS_NONE;
        p->page_retries++;
        ct_store(&p->page_at_ns, ct_vdso_coarse_ns() + (CT_PAGE_RETRY_NS << shift));
        /* No server is what most machines have; the others are worth a word. */
        if (error != ENOENT && error != ECONNREFUSED)
                ct_process_refused(p, error, step);
        else if (ct_load(&ct_mode) == CPUTIME_BACKEND_PAGE)
                ct_process_refused(p, error, step);
        return false;
}

static bool ct_page_connect(struct ct_process *p) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        struct stat st;
        int fd, high, r;

        if (strlen(ct_page_socket) >= sizeof(address.sun_path))
                return ct_page_refused(p, ENAMETOOLONG, CT_SOCKET_VARIABLE);
        strcpy(address.sun_path, ct_page_socket);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return ct_page_refused(p, errno, "socket");
        /* The system call itself: connect() is a cancellation point. */
        r = syscall(SYS_connect, fd, &address, sizeof(address)) < 0 ? errno : 0;
        if (r == 0 && fstat(fd, &st) < 0)
                r = errno;
        if (r != 0) {
                (void)syscall(SYS_close, fd);
                return ct_page_refused(p, r, "connect to cputimed");
        }
        high = fcntl(fd, F_DUPFD_CLOEXEC, CT_PAGE_FD);
        if (high >= 0) {
                (void)syscall(SYS_close, fd);
                fd = high;
        }
        ct_held.fd = fd;
        ct_held.dev = st.st_dev;
        ct_held.ino = st.st_ino;
        p->page_progress = CT_PROGRESS_HELLO;
        p->page_asked_ns = ct_vdso_coarse_ns();
        return true;
}

/* Takes one message, with a descriptor if there is one (else -1). Returns 0 or -errno. */
static int ct_page_receive(struct ct_message *ret_message, int *ret_fd) {
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec iov = { .iov_base = ret_message, .iov_len = sizeof(*ret_message) };
        struct msghdr msg = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = sizeof(control),
        };
        struct cmsghdr *cmsg;
        long n;

        *ret_fd = -1;
        n = syscall(SYS_recvmsg, ct_held.fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0)
                return -errno;
        cmsg = CMSG_FIRSTHDR(&msg);
        if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS &&
            cmsg->cmsg_len == CMSG_LEN(sizeof(int)))
                memcpy(ret_fd, CMSG_DATA(cmsg), sizeof(int));
        if (n != sizeof(*ret_message) || ret_message->magic != CT_PROTOCOL_MAGIC) {
                if (*ret_fd >= 0)
                        (void)syscall(SYS_close, *ret_fd);
                return n == 0 ? -ECONNRESET : -EPROTO;
        }
        return 0;
}

static bool ct_page_hello(struct ct_process *p, const struct ct_message *hello) {
        struct ct_message join = {
                .magic = CT_PROTOCOL_MAGIC,
                .type = CT_MESSAGE_JOIN,
                .page_version = CT_PAGE_VERSION,
        };

        if (hello->type != CT_MESSAGE_HELLO)
                return ct_page_refused(p, EPROTO, "hello of cputimed");
        if (hello->page_version != CT_PAGE_VERSION)
                return ct_page_refused(p, EPROTONOSUPPORT, "hello of cputimed");
        if (syscall(SYS_sendto, ct_held.fd, &join, sizeof(join), MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0) < 0)
                return ct_page_refused(p, errno, "join");
        p->page_progress = CT_PROGRESS_REPLY;
        return true;
}

static bool ct_page_map(struct ct_process *p, const struct ct_message *reply, int fd) {
        size_t size = (size_t)reply->entries * CT_PAGE_ENTRY_SIZE, unit = ct_perf_page_size();
        union ct_page_entry *page = MAP_FAILED;
        int error = reply->error > 0 ? reply->error : EPROTO;

        if (reply->type == CT_MESSAGE_REPLY && reply->error == 0 && fd >= 0 &&
            reply->entries > CT_PAGE_FIRST_CELL) {
                size = (size + unit - 1) / unit * unit;
                page = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
                if (page == MAP_FAILED)
                        error = errno;
        }
        if (fd >= 0)
                (void)syscall(SYS_close, fd);
        if (page == MAP_FAILED)
                return ct_page_refused(p, error, "join");
        ct_held.place = page;
        ct_held.size = size;
        if (madvise(page, size, MADV_DONTFORK) < 0)
                return ct_page_refused(p, errno, "madvise");
        if (page->group.version != CT_PAGE_VERSION || page->group.generation != reply->generation ||
            page->group.entries != reply->entries ||
            page->group.nr_cpus >= reply->entries - CT_PAGE_FIRST_CELL)
                return ct_page_refused(p, EPROTO, "page");
        p->page_progress = CT_PROGRESS_LIVE;
        /* From now on whatever is returned leaves a trace, see ct_group_ask(). */
        ct_store(&p->enrolled, 1);
        return true;
}

/* Puts the page in force once it is live and its time is ours. */
static bool ct_page_adopt(struct ct_process *p) {
        const union ct_page_entry *page = ct_held.place;
        uint32_t state = ct_page_acquire(&page->group.state);
        const struct ct_page_slot *own;
        uint64_t ns;

        if (state == CT_PAGE_BROKEN)
                return ct_page_refused(p, EAGAIN, "page");
        own = ct_page_find(page, (pid_t)syscall(SYS_gettid));
        /* What has been published must not lie in our future. */
        if (!own || !ct_page_group(page, &ns) || ct_page_acquire(&own->last_ns) > ct_vdso_monotonic_ns()) {
                if (ct_vdso_coarse_ns() - p->page_asked_ns < CT_PAGE_WAIT_NS)
                        return true;
                /* Live, but of another time than ours. */
                return ct_page_refused(p, state == CT_PAGE_LIVE ? EOPNOTSUPP : ETIMEDOUT, "page");
        }
        ct_raise(&p->floor_ns, ct_ask_process());
        p->page_progress = CT_PROGRESS_NONE;
        p->page_retries = 0;
        atomic_fetch_add_explicit(&p->enrolments, 1, memory_order_relaxed);
        atomic_store_explicit(&p->page, page, memory_order_seq_cst);
        return true;
}

bool ct_page_try(struct ct_process *p) {
        struct ct_signal_mask mask;
        struct ct_message message;
        int saved_errno = errno, fd, r;
        bool goes_on = true;

        if (ct_load(&p->page))
                return true;
        /* Events and a page do not go together. */
        if (ct_load(&p->arena) || ct_vdso_coarse_ns() < ct_load(&p->page_at_ns))
                return false;
        if (ct_vdso_monotonic_ns() < ct_load(&p->page_poll_ns))
                return true;
        if (ct_load(&ct_mode) == CPUTIME_BACKEND_AUTO && ct_sandboxed()) {
                /* No filter is ever taken off. */
                ct_store(&p->page_at_ns, UINT64_MAX);
                ct_process_refused(p, EPERM, "prctl(PR_GET_SECCOMP)");
                return false;
        }
        if (!ct_process_enter(p, &mask))
                return true;
        if (ct_load(&p->page))
                goto out;
        ct_store(&p->page_poll_ns, ct_vdso_monotonic_ns() + CT_PAGE_POLL_NS);
        if (p->page_progress != CT_PROGRESS_NONE && !ct_held_is_ours()) {
                ct_held.fd = -1;
                goes_on = ct_page_refused(p, EBADF, "connection to cputimed");
                goto out;
        }
        if (p->page_progress == CT_PROGRESS_NONE)
                goes_on = ct_page_connect(p);
        /* Several steps at once if the server is quick. */
        while (goes_on && (p->page_progress == CT_PROGRESS_HELLO || p->page_progress == CT_PROGRESS_REPLY)) {
                r = ct_page_receive(&message, &fd);
                if (r == -EAGAIN && ct_vdso_coarse_ns() - p->page_asked_ns < CT_PAGE_WAIT_NS)
                        goto out;
                if (r < 0)
                        goes_on = ct_page_refused(p, r == -EAGAIN ? ETIMEDOUT : -r, "cputimed");
                else if (p->page_progress == CT_PROGRESS_REPLY)
                        goes_on = ct_page_map(p, &message, fd);
                else
                        goes_on = ct_page_hello(p, &message);
        }
        if (goes_on && p->page_progress == CT_PROGRESS_LIVE)
                goes_on = ct_page_adopt(p);
out:
        ct_process_leave(p, &mask);
        errno = saved_errno;
        return goes_on;
}

const struct ct_page_slot *ct_page_find(const union ct_page_entry *page, pid_t tid) {
        uint32_t entries = page->group.entries;

        for (uint32_t i = CT_PAGE_FIRST_CELL + page->group.nr_cpus; i < entries; i++)
                if (ct_page_acquire(&page[i].slot.tid) == tid)
                        return &page[i].slot;
        return NULL;
}

/* What anybody can have been told until now, though the page may be too old to be asked. */
static uint64_t ct_bound(uint64_t used_ns, bool running, uint64_t start_ns, uint64_t last_ns, uint64_t now) {
        uint64_t end = last_ns + ct_load(&ct_page_age_ns);

        now += CT_SKEW_NS;
        return ct_page_at(used_ns, running, start_ns, now < end ? now : end);
}

/*
 * Whoever publishes is done in an instant, unless its virtual CPU was stopped in the middle. Too
 * late, and what is read may be of two publications: off by a slice, a tick at most.
 */
static bool ct_torn(const uint32_t *word, uint32_t seq, unsigned int *tries) {
        if (!(seq & 1) && ct_page_load(word) == seq)
                return false;
        if (++*tries % CT_PAGE_TRIES == 0)
                (void)syscall(SYS_sched_yield);
        return *tries < 64 * CT_PAGE_TRIES;
}

/* T of SLOT's thread cannot have been told to be more. */
static uint64_t ct_thread_bound(const struct ct_page_slot *slot) {
        uint64_t now = ct_vdso_monotonic_ns(), ns;
        unsigned int tries = 0;
        uint32_t seq;

        do {
                seq = ct_page_acquire(&slot->seq);
                ns = ct_bound(ct_page_acquire(&slot->used_ns), ct_page_acquire(&slot->cpu) >= 0,
                              ct_page_acquire(&slot->start_ns), ct_page_acquire(&slot->last_ns), now);
        } while (ct_torn(&slot->seq, seq, &tries));
        return ns;
}

uint64_t ct_thread_page_bound(struct ct_process *p, pid_t tid) {
        const union ct_page_entry *page = ct_acquire(&p->page);
        const struct ct_page_slot *slot = page ? ct_page_find(page, tid) : NULL;

        return slot ? ct_thread_bound(slot) : 0;
}

static uint64_t ct_page_bound(const union ct_page_entry *page) {
        uint64_t now = ct_vdso_monotonic_ns(), ns = ct_page_acquire(&page->group.base_ns), cell_ns;
        unsigned int tries = 0;
        uint32_t seq;

        for (uint32_t i = 0; i < page->group.nr_cpus; i++) {
                const struct ct_page_cell *cell = &page[CT_PAGE_FIRST_CELL + i].cell;

                do {
                        seq = ct_page_acquire(&cell->seq);
                        cell_ns = ct_bound(ct_page_acquire(&cell->used_ns),
                                           ct_page_acquire(&cell->running) != 0,
                                           ct_page_acquire(&cell->start_ns),
                                           ct_page_acquire(&cell->last_ns), now);
                } while (ct_torn(&cell->seq, seq, &tries));
                ns += cell_ns;
        }
        return ns;
}

void ct_page_lead_end(struct ct_process *p, struct ct_slot *slot) {
        if (ct_load(&slot->page_led) && atomic_exchange_explicit(&slot->page_led, 0, memory_order_relaxed))
                atomic_fetch_sub_explicit(&p->page_leads, 1, memory_order_release);
}

/* What has been returned for threads beyond what the page has for them. */
static uint64_t ct_page_leads(struct ct_process *p, const union ct_page_entry *page) {
        uint64_t sum_ns = 0;

        for (uint32_t i = ct_slots_first(p); i < ct_slots_end(); i++) {
                struct ct_slot *slot = ct_slot_at(i);
                const struct ct_page_slot *own;
                uint64_t floor_ns, page_ns;

                if (!ct_acquire(&slot->page_led))
                        continue;
                own = ct_page_find(page, ct_load(&slot->tid));
                floor_ns = ct_acquire(&slot->floor_ns);
                page_ns = own ? ct_thread_bound(own) : UINT64_MAX;
                if (floor_ns > page_ns)
                        sum_ns += floor_ns - page_ns;
                else            /* its owner may never come by */
                        ct_page_lead_end(p, slot);
        }
        return sum_ns;
}

/* The same with the process's sum, of one instant: a thread must not be caught up in one alone. */
static uint64_t ct_page_bound_led(struct ct_process *p, const union ct_page_entry *page) {
        uint64_t leads_ns, again_ns, ns;
        unsigned int tries = 0;

        do {
                leads_ns = ct_load(&p->page_leads) ? ct_page_leads(p, page) : 0;
                ns = ct_page_bound(page);
                again_ns = ct_load(&p->page_leads) ? ct_page_leads(p, page) : 0;
        } while (leads_ns > again_ns + 50 * CT_NSEC_PER_USEC && ++tries < 8);
        return ns + ct_max(leads_ns, again_ns);
}

uint64_t ct_group_page_bound(struct ct_process *p) {
        const union ct_page_entry *page;

        /* Whoever leaves the page is about to raise the floors. */
        while (__builtin_expect(ct_acquire(&p->page_leaving), 0))
                (void)syscall(SYS_sched_yield);
        page = ct_acquire(&p->page);
        return page ? ct_page_bound_led(p, page) : 0;
}

void ct_page_leave(struct ct_process *p) {
        const union ct_page_entry *page;
        struct ct_signal_mask mask;
        int saved_errno = errno;

        while (!ct_process_enter(p, &mask))
                (void)syscall(SYS_sched_yield);
        page = ct_load(&p->page);
        if (p->page_progress != CT_PROGRESS_NONE) {
                (void)ct_page_refused(p, ECANCELED, "page");
        } else if (page) {
                /*
                 * Readers who find the page gone when they are done start over, and wait for the
                 * floors; the others had a time before this.
                 */
                uint64_t bound_ns;

                atomic_store_explicit(&p->page_leaving, 1, memory_order_seq_cst);
                atomic_store_explicit(&p->page, NULL, memory_order_seq_cst);
                bound_ns = ct_page_bound_led(p, page);
                for (uint32_t i = ct_slots_first(p); i < ct_slots_end(); i++) {
                        struct ct_slot *slot = ct_slot_at(i);
                        const struct ct_page_slot *own =
                                atomic_exchange_explicit(&slot->page, NULL, memory_order_seq_cst);

                        /* Others may have been told by the page what it never told the thread. */
                        if (!own && ct_load(&slot->tid) > 0)
                                own = ct_page_find(page, ct_load(&slot->tid));
                        if (own)
                                ct_raise(&slot->floor_ns, ct_thread_bound(own));
                        ct_page_lead_end(p, slot);
                }
                ct_raise(&p->floor_ns, ct_max(bound_ns, ct_page_bound(page)));
                ct_release(&p->page_leaving, 0);
                /* Broken for want of room: a larger one can be had at once. */
                if (ct_page_load(&page->group.why) != CT_PAGE_FULL)
                        ct_store(&p->page_at_ns, ct_vdso_coarse_ns() + CT_PAGE_RETRY_NS);
                (void)mmap(ct_held.place, ct_held.size, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
                ct_held.place = NULL;
                ct_held_close();
                atomic_fetch_add_explicit(&p->retreats, 1, memory_order_relaxed);
        }
        ct_process_leave(p, &mask);
        errno = saved_errno;
}

/*
 * NS is about to be returned for SLOT's thread, which the page, OWN, has at less: P must cover it.
 * Until the page has caught up its owner comes by the slow path, and all who read P as well.
 */
static void ct_page_lead(struct ct_process *p, struct ct_slot *slot, const struct ct_page_slot *own,
                         uint64_t ns) {
        if (ct_page_acquire(&own->used_ns) >= ns)
                return;
        ct_raise(&slot->floor_ns, ns);
        if (!atomic_exchange_explicit(&slot->page_led, 1, memory_order_seq_cst))
                atomic_fetch_add_explicit(&p->page_leads, 1, memory_order_seq_cst);
        atomic_store_explicit(&slot->page, NULL, memory_order_seq_cst);
}

void ct_thread_page_shown(struct ct_process *p, struct ct_slot *slot, uint64_t ns) {
        const union ct_page_entry *page = ct_acquire(&p->page);
        const struct ct_page_slot *own = page ? ct_page_find(page, ct_load(&slot->tid)) : NULL;

        if (own)
                ct_page_lead(p, slot, own, ns);
}

/* The page has not answered. False: that is how it is going to be, and it was left. */
static bool ct_page_stale(struct ct_process *p, struct ct_slot *slot, const union ct_page_entry *page) {
        uint64_t reads = ct_load(&slot->page_reads) + 1, now = ct_vdso_coarse_ns();

        if (ct_load(&slot->page_stale_reads) != reads) {
                ct_store(&slot->page_stale_reads, reads);
                ct_store(&slot->page_stale_ns, now);
        }
        if (ct_page_load(&page->group.state) == CT_PAGE_LIVE && now - ct_load(&slot->page_stale_ns) < CT_STALE_NS)
                return true;
        ct_page_leave(p);
        ct_store(&slot->page_stale_reads, 0);
        return false;
}

bool ct_thread_page_slow(struct ct_process *p, struct ct_slot *slot, uint64_t *ret_ns,
                         enum cputime_backend *ret_backend) {
        const union ct_page_entry *page = ct_acquire(&p->page);
        const struct ct_page_slot *own;
        bool running = false;
        uint64_t ns, floor_ns;

        if (!page) {
                ct_store(&slot->page, NULL);
                return false;
        }
        own = ct_page_find(page, ct_load(&slot->tid));
        ct_raise(&slot->floor_ns, ct_load(&slot->last_ns));
        if (own && ct_page_thread(own, ct_load(&ct_page_age_ns), &ns, &running) && running) {
                floor_ns = ct_load(&slot->floor_ns);
                if (ns >= floor_ns) {
                        ct_page_lead_end(p, slot);
                        atomic_store_explicit(&slot->page, own, memory_order_seq_cst);
                } else {
                        ct_page_lead(p, slot, own, floor_ns);
                        ns = floor_ns;
                }
                ct_count(&slot->page_reads);
                *ret_backend = CPUTIME_BACKEND_PAGE;
        } else {
                if (!ct_page_stale(p, slot, page))
                        return false;
                ns = ct_max(ct_ask_thread(), ct_load(&slot->floor_ns));
                if (own) {
                        ns = ct_max(ns, ct_thread_bound(own));
                        ct_page_lead(p, slot, own, ns);
                }
                ct_raise(&slot->floor_ns, ns);
                ct_count(&slot->asked_thread);
        }
        /* Whoever leaves the page has seen what we put there, or we see that it is gone. */
        if (atomic_load_explicit(&p->page, memory_order_seq_cst) != page) {
                ct_store(&slot->page, NULL);
                return false;
        }
        *ret_ns = ns;
        return true;
}

bool ct_group_page_slow(struct ct_process *p, struct ct_slot *slot, uint64_t *ret_ns,
                        enum cputime_backend *ret_backend) {
        const union ct_page_entry *page = ct_acquire(&p->page);

        if (!page)
                return false;
        /* Who has not read its own clock yet has to be found in the page first. */
        if ((ct_load(&slot->page) || ct_thread_page_slow(p, slot, ret_ns, ret_backend)) &&
            ct_group_page_fast(p, slot, page, ret_ns)) {
                *ret_backend = CPUTIME_BACKEND_PAGE;
                return true;
        }
        *ret_backend = CPUTIME_BACKEND_SYSCALL;
        if (!ct_load(&p->page_leads) && !ct_page_stale(p, slot, page))
                return false;
        *ret_ns = ct_group_ask(p, slot);
        ct_count(&slot->asked_group);
        return true;
}

bool ct_thread_page_of(struct ct_process *p, pid_t tid, uint64_t *ret_ns) {
        const union ct_page_entry *page = ct_acquire(&p->page);
        const struct ct_page_slot *own = ct_self.slot ? ct_load(&ct_self.slot->page) : NULL, *other;
        struct ct_slot *slot;
        bool running;
        uint64_t ns;

        /* A thread that is on no CPU has nothing new to publish: ours tells that it would have been. */
        if (!page || !own || !ct_page_thread(own, ct_load(&ct_page_age_ns), &ns, &running) || !running)
                return false;
        other = ct_page_find(page, tid);
        if (!other)
                return false;
        /* What the kernel, or another backend, has said of it before. */
        slot = ct_slot_find(p, tid);
        /* Without one what the page says could not be remembered when that is left: it gets one. */
        if (!slot)
                return false;
        if (!ct_page_thread(other, ct_load(&ct_page_age_ns), &ns, &running) ||
            ct_page_acquire(&other->tid) != tid || ct_load(&p->page) != page)
                return false;
        *ret_ns = ct_max(ns, ct_slot_shown(slot));
        return true;
}

void ct_page_forked(void) {
        void *place = ct_held.place;

        if (place)
                (void)mmap(place, ct_held.size, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE, -1, 0);
        ct_held.place = NULL;
        ct_held_close();
}
