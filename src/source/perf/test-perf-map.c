/* SPDX-License-Identifier: MIT */
/*
 * What the mapped events say, on the real kernel, and what ct_perf_read_news() makes of rings that
 * are hard to get from one: wrapped, overrun, torn.
 */
#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "source/perf/perf-map.h"

#define check(condition) CHECK(condition, "not what the comment above it says")

/* A page and a ring as the kernel would have filled it. */
struct image {
        uint64_t page[512];
        uint64_t data[512];
};

static struct image *image;
static uint32_t image_head;

static void put_word(uint64_t word) {
        image->data[image_head / 8 % 512] = word;
        image_head += 8;
}

static void put(uint32_t type, uint16_t misc, uint16_t size) {
        struct perf_event_header header = { .type = type, .misc = misc, .size = size };
        uint64_t word;

        memcpy(&word, &header, sizeof(word));
        put_word(word);
        for (unsigned int i = 8; i < size; i += 8)
                put_word(UINT64_C(0x0101010101010101) * i);
        ((struct perf_event_mmap_page *)image)->data_head = image_head;
}

static void put_in(void) {
        put(PERF_RECORD_SWITCH, 0, 16);
}

static void put_out(void) {
        put(PERF_RECORD_SWITCH, PERF_RECORD_MISC_SWITCH_OUT, 16);
}

static struct ct_perf_news news_since(uint32_t old) {
        struct ct_perf_news news;

        ct_perf_read_news(image, old, &news);
        check(news.head == image_head);
        return news;
}

static void test_records(void) {
        struct ct_perf_news news;
        uint32_t old;

        news = news_since(0);
        check(!news.known && !news.lost && news.n_switches == 0);

        put_out();
        news = news_since(0);
        check(news.known && !news.running && news.n_switches == 1 && !news.forked && !news.exited);
        put_in();
        news = news_since(0);
        check(news.known && news.running && news.n_switches == 2);

        /* A fork leaves the thread where it was: no switch record, nothing known, nothing lost. */
        old = image_head;
        put(PERF_RECORD_FORK, 0, 40);
        news = news_since(old);
        check(news.forked && !news.known && !news.lost && news.n_switches == 0);
        put_out();
        put(PERF_RECORD_EXIT, 0, 40);
        news = news_since(old);
        check(news.forked && news.exited && news.known && !news.running && news.n_switches == 1);
        check(ct_perf_exited(image));
        put_out();
        check(!ct_perf_exited(image));

        /* Records of every alignment across the end of the ring, which is 4096 bytes. */
        for (unsigned int i = 0; i < 2000; i++) {
                old = image_head;
                put_in();
                put(PERF_RECORD_FORK, 0, 40);
                put_out();
                news = news_since(old);
                check(news.n_switches == 2 && news.forked && news.known && !news.running && !news.lost);
        }

        /* More than fits: the tail still says whether it runs, and that something was lost. */
        old = image_head;
        for (unsigned int i = 0; i < 200; i++) {
                put_out();
                put_in();
        }
        news = news_since(old);
        check(news.lost && news.known && news.running);
        put(PERF_RECORD_FORK, 0, 40);
        news = news_since(old);
        check(news.lost && !news.known);

        /* The head at the end of its 32 bits. */
        image_head = UINT32_MAX - 15;
        old = image_head;
        put_out();
        put_in();
        news = news_since(old);
        check(image_head == 16 && news.n_switches == 2 && news.running && !news.lost);

        /* A record that cannot be: reported as lost, never followed out of the ring. */
        old = image_head;
        put(PERF_RECORD_SWITCH, 0, 16);
        image->data[old / 8 % 512] = UINT64_MAX;
        news = news_since(old);
        check(news.lost && !news.known);
        image->data[old / 8 % 512] = 0;
        news = news_since(old);
        check(news.lost && !news.known);
}

static void *just_end(void *unused) {
        return unused;
}

static void switch_once(void) {
        struct timespec ts = { .tv_nsec = 1000 };

        while (nanosleep(&ts, NULL) < 0 && errno == EINTR)
                ;
}

static unsigned int n_descriptors(void) {
        unsigned int n = 0;

        for (int fd = 0; fd < 256; fd++)
                n += (unsigned int)(syscall(SYS_fcntl, fd, 1 /* F_GETFD */) >= 0);
        return n;
}

static int test_kernel(enum ct_perf_kind kind) {
        unsigned int before = n_descriptors();
        struct ct_perf_news news;
        const char *step = NULL;
        volatile const uint32_t *word;
        uint32_t old;
        pthread_t thread;
        void *p;
        int r;

        r = ct_perf_map(kind, 0, NULL, &p, &step);
        if (r < 0) {
                printf("%s: %s\n", step, strerror(-r));
                return 77;
        }
        check(n_descriptors() == before);

        word = ct_perf_change_word(kind, p);
        old = *word;
        switch_once();
        check(*word != old);
        if (kind == CT_PERF_RING) {
                ct_perf_read_news(p, old, &news);
                check(news.known && news.running && news.n_switches >= 2 && !news.forked);
                old = news.head;
                check(pthread_create(&thread, NULL, just_end, NULL) == 0);
                check(pthread_join(thread, NULL) == 0);
                ct_perf_read_news(p, old, &news);
                check(news.forked && !news.exited);
                check(!ct_perf_exited(p));
        }

        /* Moved to a place of ours, poisoned there, and never a hole. */
        {
                size_t size = ct_perf_size(kind);
                char *place = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                void *q;

                check(place != MAP_FAILED);
                check(ct_perf_map(kind, 0, place, &q, &step) == 0 && q == place);
                word = ct_perf_change_word(kind, q);
                old = *word;
                switch_once();
                check(*word != old && *word != CT_PERF_POISON);
                check(ct_perf_poison(kind, q) == 0);
                check(*word == CT_PERF_POISON);
                check(ct_perf_map(kind, 0, place, &q, &step) == 0);
                check(*word != CT_PERF_POISON);
                ct_perf_unmap(kind, q);
        }

        check(ct_perf_map(kind, 0x3ffffff, NULL, &p, &step) == -ESRCH);
        check(strcmp(step, "perf_event_open") == 0);
        check(n_descriptors() == before);
        return 0;
}

int main(void) {
        int header, ring;

        image = mmap(NULL, sizeof(*image), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(image != MAP_FAILED);
        if (ct_perf_page_size() == 4096)
                test_records();
        header = test_kernel(CT_PERF_HEADER);
        ring = test_kernel(CT_PERF_RING);
        return header ? header : ring;
}
