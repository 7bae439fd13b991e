/* SPDX-License-Identifier: MIT */
#include "source/page/loader.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "base/nsec.h"
#include "page.skel.h"
#include "source/page/page.h"

/* linux/proc_ns.h: the inode of the initial pid namespace */
#define CT_INIT_PID_INO 0xEFFFFFFC

/* linux/errno.h: what bpf(2) says to an operation that a type of map does not have */
#define CT_ENOTSUPP 524

enum ct_region_use {
        CT_REGION_FREE = 0,
        CT_REGION_USED,
        CT_REGION_RELEASED,     /* the program still finds it, until the next flush */
};

struct ct_loader {
        struct ct_page_bpf *bpf;
        int nobodys_fd;         /* takes the place of regions that were released: of generation 0 */
        uint32_t generation;
        unsigned int nr_released;
        uint8_t use[CT_PAGE_REGIONS_MAX];       /* enum ct_region_use */
        /* One update of the program's table: indices, and the maps that go there. */
        uint32_t keys[CT_PAGE_REGIONS_MAX];
        int values[CT_PAGE_REGIONS_MAX];
};

static int ct_silent(enum libbpf_print_level level, const char *format, va_list args) {
        (void)level, (void)format, (void)args;
        return 0;
}

/* The kernel's tick: the resolution of its coarse clock. */
static uint64_t ct_tick_ns(void) {
        struct timespec ts;

        if (clock_getres(CLOCK_MONOTONIC_COARSE, &ts) < 0)
                ts = (struct timespec){ .tv_nsec = 10 * CT_NSEC_PER_MSEC };
        return ct_nsec_from_timespec(&ts);
}

/*
 * A region that nobody can write but the program: not by bpf(2), and a mapping that was made for
 * reading cannot be made writable. (A descriptor opened read-only would say the same, but cannot be
 * mapped at all.)
 */
static int ct_region_create(uint32_t chunks) {
        LIBBPF_OPTS(bpf_map_create_opts, options,
                    .map_flags = BPF_F_MMAPABLE | BPF_F_INNER_MAP);
        int fd, r;

        fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "ct_region", sizeof(uint32_t),
                            CT_PAGE_CHUNK_ENTRIES * CT_PAGE_ENTRY_SIZE, chunks, &options);
        if (fd < 0)
                return -errno;
        if (bpf_map_freeze(fd) < 0) {
                r = -errno;
                (void)close(fd);
                return r;
        }
        return fd;
}

int ct_loader_open(struct ct_loader **ret_loader, const char **ret_step) {
        struct ct_loader *loader;
        struct stat st;
        int r;

        *ret_step = "the pid namespace";
        if (stat("/proc/self/ns/pid", &st) < 0)
                return -errno;
        if (st.st_ino != CT_INIT_PID_INO)
                return -EOPNOTSUPP;

        libbpf_set_print(ct_silent);
        loader = calloc(1, sizeof(*loader));
        *ret_step = "memory";
        if (!loader)
                return -ENOMEM;
        loader->nobodys_fd = -1;
        *ret_step = "opening the program";
        loader->bpf = ct_page_bpf__open();
        if (!loader->bpf) {
                r = -errno;
                goto fail;
        }
        loader->bpf->rodata->ct_tick_ns = ct_tick_ns();
        *ret_step = "loading the program";
        r = ct_page_bpf__load(loader->bpf);
        if (r < 0)
                goto fail;
        *ret_step = "attaching the program";
        r = ct_page_bpf__attach(loader->bpf);
        if (r < 0)
                goto fail;
        *ret_step = "making a map";
        loader->nobodys_fd = r = ct_region_create(1);
        if (r < 0)
                goto fail;
        *ret_loader = loader;
        return 0;
fail:
        ct_loader_close(loader);
        return r;
}

void ct_loader_close(struct ct_loader *loader) {
        if (!loader)
                return;
        ct_page_bpf__destroy(loader->bpf);
        if (loader->nobodys_fd >= 0)
                (void)close(loader->nobodys_fd);
        free(loader);
}

/* Threads of TGID, or -errno. */
static long ct_count_threads(pid_t tgid) {
        char path[32];
        struct stat st;

        (void)snprintf(path, sizeof(path), "/proc/%d/task", tgid);
        if (stat(path, &st) < 0)
                return errno == ENOENT ? -ESRCH : -errno;
        return (long)st.st_nlink - 2;
}

/* Runs the iterator over all tasks of the machine; it picks those of the process. */
static int ct_join(struct ct_loader *loader, pid_t tgid, uint32_t region, uint32_t entries) {
        struct ct_page_bpf__bss *bss = loader->bpf->bss;
        char buffer[64];
        ssize_t n;
        int fd;

        bss->ct_join_tgid = (uint32_t)tgid;
        bss->ct_join_region = region;
        bss->ct_join_entries = entries;
        bss->ct_join_cpus = (uint32_t)libbpf_num_possible_cpus();
        if (++loader->generation == 0)
                loader->generation++;
        bss->ct_join_generation = loader->generation;
        bss->ct_join_failed = 0;
        bss->ct_join_raced = 0;
        fd = bpf_iter_create(bpf_link__fd(loader->bpf->links.ct_join));
        if (fd < 0)
                return -errno;
        do
                n = read(fd, buffer, sizeof(buffer));
        while (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)));
        n = n < 0 ? -errno : 0;
        (void)close(fd);
        if (n < 0)
                return (int)n;
        return bss->ct_join_failed ? -ENOMEM : bss->ct_join_raced ? -EAGAIN : 0;
}

/* The kernel's id, 0 if it cannot be had. */
static uint32_t ct_map_id(int fd) {
        struct bpf_map_info info = {};
        uint32_t length = sizeof(info);

        return bpf_obj_get_info_by_fd(fd, &info, &length) < 0 ? 0 : info.id;
}

/* A region for the process, which the program does not know yet. */
static int ct_prepare(struct ct_loader *loader, pid_t tgid, struct ct_region_info *ret_info) {
        long threads = ct_count_threads(tgid), cpus = libbpf_num_possible_cpus();
        const size_t chunk_size = CT_PAGE_CHUNK_ENTRIES * CT_PAGE_ENTRY_SIZE;
        size_t size, unit = (size_t)sysconf(_SC_PAGESIZE);
        uint32_t region, map_id;
        int fd;

        if (threads < 0)
                return (int)threads;
        if (cpus < 0)
                return (int)cpus;
        if (threads > CT_PAGE_THREADS_MAX || cpus > CT_PAGE_CPUS_MAX)
                return -E2BIG;
        for (region = 0; region < CT_PAGE_REGIONS_MAX && loader->use[region] != CT_REGION_FREE; region++)
                ;
        if (region == CT_PAGE_REGIONS_MAX)
                return -ENOSPC;
        size = (CT_PAGE_FIRST_CELL + (size_t)cpus + 2 * (size_t)threads) * CT_PAGE_ENTRY_SIZE;
        if (unit < chunk_size)
                unit = chunk_size;
        size = (size + unit - 1) / unit * unit;
        fd = ct_region_create((uint32_t)(size / chunk_size));
        if (fd < 0)
                return fd;
        map_id = ct_map_id(fd);
        if (map_id == 0) {
                (void)close(fd);
                return -EIO;
        }
        loader->use[region] = CT_REGION_USED;
        *ret_info = (struct ct_region_info){
                .map_fd = fd,
                .region = region,
                .map_id = map_id,
                .entries = (uint32_t)(size / CT_PAGE_ENTRY_SIZE),
                .size = size,
        };
        return 0;
}

/* Puts N keys and values into the program's table. Returns 0, or -errno if not all are there. */
static int ct_update(struct ct_loader *loader, uint32_t n) {
        int fd = bpf_map__fd(loader->bpf->maps.ct_regions), r = 0;
        uint32_t done = n;

        if (n == 0)
                return 0;
        if (n > 1 && bpf_map_update_batch(fd, loader->keys, loader->values, &done, NULL) == 0)
                return 0;
        /* Before Linux 5.19 a table of maps is not updated in batches. */
        if (n > 1 && errno != CT_ENOTSUPP && errno != EINVAL)
                return -errno;
        for (uint32_t i = 0; i < n; i++)
                if (bpf_map_update_elem(fd, &loader->keys[i], &loader->values[i], BPF_ANY) < 0)
                        r = -errno;
        return r;
}

void ct_loader_enrol(struct ct_loader *loader, struct ct_enrolment *enrolments, unsigned int n) {
        unsigned int nr_released = 0;
        uint32_t updates = 0;
        int r;

        for (unsigned int i = 0; i < n; i++) {
                struct ct_enrolment *e = &enrolments[i];

                e->error = ct_prepare(loader, e->tgid, &e->info);
                if (e->error < 0)
                        continue;
                loader->keys[updates] = e->info.region;
                loader->values[updates++] = e->info.map_fd;
        }
        for (uint32_t i = 0; nr_released < loader->nr_released; i++) {
                if (loader->use[i] != CT_REGION_RELEASED)
                        continue;
                loader->keys[updates] = i;
                loader->values[updates++] = loader->nobodys_fd;
                nr_released++;
        }
        r = ct_update(loader, updates);
        /* If that has failed they are tried again. */
        for (uint32_t i = 0; r == 0 && loader->nr_released > 0; i++) {
                if (loader->use[i] != CT_REGION_RELEASED)
                        continue;
                loader->use[i] = CT_REGION_FREE;
                loader->nr_released--;
        }

        for (unsigned int i = 0; i < n; i++) {
                struct ct_enrolment *e = &enrolments[i];

                if (e->error < 0)
                        continue;
                e->error = r;
                if (r == 0)
                        e->error = ct_join(loader, e->tgid, e->info.region, e->info.entries);
                e->info.generation = loader->generation;
                if (e->error < 0) {
                        (void)close(e->info.map_fd);
                        ct_loader_release(loader, e->info.region);
                }
        }
}

void ct_loader_release(struct ct_loader *loader, uint32_t region) {
        loader->use[region] = CT_REGION_RELEASED;
        loader->nr_released++;
}

void ct_loader_flush(struct ct_loader *loader) {
        ct_loader_enrol(loader, NULL, 0);
}

void ct_loader_links(const struct ct_loader *loader, int ret_fds[CT_LOADER_LINKS]) {
        ret_fds[0] = bpf_link__fd(loader->bpf->links.ct_switch);
        ret_fds[1] = bpf_link__fd(loader->bpf->links.ct_tick);
        ret_fds[2] = bpf_link__fd(loader->bpf->links.ct_newtask);
}

uint32_t ct_loader_table_id(const struct ct_loader *loader) {
        return ct_map_id(bpf_map__fd(loader->bpf->maps.ct_regions));
}
