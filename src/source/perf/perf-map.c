/* SPDX-License-Identifier: MIT */
/*
 * Opening, mapping and reading perf events that count nothing: see the header for the idea.
 *
 * Why a dummy event with exclude_kernel: perf_event_paranoid up to 2, the kernel's default, lets
 * anybody open that on his own threads. Why CLOCK_MONOTONIC_RAW on the records: it is the one clock
 * that neither NTP nor a time namespace bends, and the vDSO reads it. Why attr.task: a fork record
 * in the ring of the thread that called clone(2) is how its siblings learn that there is one thread
 * more to look at.
 *
 * Replacing a mapping in place must never leave a hole that some other mmap() could fill and our
 * next fixed mapping would then destroy: so the event is mapped where the kernel likes, and moved
 * over the place with mremap(2), which either succeeds as a whole or leaves the old content.
 */
#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "source/perf/perf-map.h"

#define CT_PERF_DATA_PAGES 1

/* Header, two pids, two tids, time, and the time that sample_id_all puts behind every record. */
#define CT_PERF_EXIT_SIZE 40

size_t ct_perf_page_size(void) {
        return (size_t)getauxval(AT_PAGESZ);
}

size_t ct_perf_size(enum ct_perf_kind kind) {
        return ct_perf_page_size() * (kind == CT_PERF_RING ? 1 + CT_PERF_DATA_PAGES : 1);
}

static int ct_perf_open(enum ct_perf_kind kind, pid_t tid) {
        struct perf_event_attr attr = {
                .size = sizeof(attr),
                .type = PERF_TYPE_SOFTWARE,
                .config = PERF_COUNT_SW_DUMMY,
                .exclude_kernel = 1,
                .exclude_hv = 1,
        };
        long fd;

        if (kind == CT_PERF_RING) {
                attr.context_switch = 1;
                attr.task = 1;
                attr.sample_id_all = 1;
                attr.sample_type = PERF_SAMPLE_TIME;
                attr.use_clockid = 1;
                attr.clockid = CLOCK_MONOTONIC_RAW;
        }
        fd = syscall(SYS_perf_event_open, &attr, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
        return fd < 0 ? -errno : (int)fd;
}

int ct_perf_map(enum ct_perf_kind kind, pid_t tid, void *place, void **ret_address,
                const char **ret_step) {
        size_t size = ct_perf_size(kind);
        int saved_errno = errno, fd, r = 0;
        void *p;

        fd = ct_perf_open(kind, tid);
        if (fd < 0) {
                errno = saved_errno;
                *ret_step = "perf_event_open";
                return fd;
        }

        p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
                r = -errno;
                *ret_step = "mmap";
        }
        (void)syscall(SYS_close, fd);   /* the mapping holds the event */
        if (r < 0)
                goto out;

        if (place) {
                if (mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) {
                        r = -errno;
                        *ret_step = "mremap";
                        (void)munmap(p, size);
                        goto out;
                }
                p = place;
        }
        *ret_address = p;
out:
        errno = saved_errno;
        return r;
}

void ct_perf_unmap(enum ct_perf_kind kind, void *address) {
        int saved_errno = errno;

        (void)munmap(address, ct_perf_size(kind));
        errno = saved_errno;
}

int ct_perf_poison(enum ct_perf_kind kind, void *address) {
        size_t size = ct_perf_size(kind);
        int saved_errno = errno, r = 0;
        void *p;

        p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
                r = -errno;
                goto out;
        }
        memset(p, 0xff, ct_perf_page_size());
        /* A child has no use for it, as it has none for the event that was here. */
        (void)madvise(p, size, MADV_DONTFORK);
        if (mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED) {
                r = -errno;
                (void)munmap(p, size);
        }
out:
        errno = saved_errno;
        return r;
}

const uint32_t *ct_perf_change_word(enum ct_perf_kind kind, const void *address) {
        const struct perf_event_mmap_page *page = address;
        const uint32_t *word;

        if (kind == CT_PERF_HEADER)
                return &page->lock;
        word = (const uint32_t *)&page->data_head;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word++;
#endif
        return word;
}

/* A record's words may wrap at the end of the data page; they are multiples of eight bytes. */
static uint64_t ct_perf_word(const uint64_t *data, uint32_t n_words, uint32_t byte_offset) {
        return __atomic_load_n(&data[byte_offset / 8 % n_words], __ATOMIC_RELAXED);
}

static struct perf_event_header ct_perf_header(uint64_t word) {
        struct perf_event_header header;

        memcpy(&header, &word, sizeof(header));
        return header;
}

bool ct_perf_exited(const void *address) {
        uint32_t page_size = (uint32_t)ct_perf_page_size();
        uint32_t head = __atomic_load_n(ct_perf_change_word(CT_PERF_RING, address),
                                        __ATOMIC_ACQUIRE);
        struct perf_event_header header;

        if (head < CT_PERF_EXIT_SIZE)
                return false;
        header = ct_perf_header(ct_perf_word((const uint64_t *)address + page_size / 8,
                                             page_size * CT_PERF_DATA_PAGES / 8,
                                             head - CT_PERF_EXIT_SIZE));
        return header.type == PERF_RECORD_EXIT && header.size == CT_PERF_EXIT_SIZE;
}

void ct_perf_read_news(const void *address, uint32_t old_head, struct ct_perf_news *ret_news) {
        uint32_t page_size = (uint32_t)ct_perf_page_size();
        const uint64_t *data = (const uint64_t *)address + page_size / 8;
        uint32_t n_words = page_size * CT_PERF_DATA_PAGES / 8, at;
        /* Pairs with the write barrier by which the kernel publishes records before the head. */
        uint32_t head = __atomic_load_n(ct_perf_change_word(CT_PERF_RING, address),
                                        __ATOMIC_ACQUIRE);
        struct ct_perf_news news = { .head = head };

        at = old_head;
        /* 64 bytes of room: the record that the kernel may be writing over the oldest one. */
        if (head - old_head > page_size * CT_PERF_DATA_PAGES - 64) {
                news.lost = true;
                news.n_switches = (head - old_head) / 16;
                at = head - 16;         /* a switch record, if the last record is one */
        }

        while (at != head) {
                struct perf_event_header header = ct_perf_header(ct_perf_word(data, n_words, at));

                switch (header.type) {
                case PERF_RECORD_SWITCH:
                        if (header.size == 16) {
                                news.n_switches++;
                                news.known = true;
                                news.running = !(header.misc & PERF_RECORD_MISC_SWITCH_OUT);
                        }
                        break;
                case PERF_RECORD_FORK:
                        news.forked = true;
                        break;
                case PERF_RECORD_EXIT:
                        news.exited = true;
                        break;
                default:
                        break;
                }
                if (news.lost)
                        break;
                if (header.size < 8 || header.size % 8 != 0 || header.size > head - at) {
                        /* Torn: the caller sees the head move and comes again. */
                        news.lost = true;
                        news.known = false;
                        break;
                }
                at += header.size;
        }
        *ret_news = news;
}
