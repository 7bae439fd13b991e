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

#define CT_JOIN_TRIES 4

struct ct_loader {
        struct ct_page_bpf *bpf;
        uint32_t generation;
        bool used[CT_PAGE_REGIONS_MAX];
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
        bss->ct_join_generation = ++loader->generation;
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

int ct_loader_enrol(struct ct_loader *loader, pid_t tgid, struct ct_region_info *ret_info) {
        LIBBPF_OPTS(bpf_map_create_opts, options,
                    .map_flags = BPF_F_MMAPABLE | BPF_F_INNER_MAP);
        long threads = ct_count_threads(tgid), cpus = libbpf_num_possible_cpus();
        size_t page = (size_t)sysconf(_SC_PAGESIZE), size;
        uint32_t region = 0, entries;
        int fd = -1, r = -EAGAIN;

        if (threads < 0)
                return (int)threads;
        if (cpus < 0)
                return (int)cpus;
        if (threads > CT_PAGE_THREADS_MAX || cpus > CT_PAGE_CPUS_MAX)
                return -E2BIG;
        for (region = 0; region < CT_PAGE_REGIONS_MAX && loader->used[region]; region++)
                ;
        if (region == CT_PAGE_REGIONS_MAX)
                return -ENOSPC;
        size = (CT_PAGE_FIRST_CELL + (size_t)cpus + 2 * (size_t)threads) * CT_PAGE_ENTRY_SIZE;
        size = (size + page - 1) / page * page;
        entries = (uint32_t)(size / CT_PAGE_ENTRY_SIZE);

        for (unsigned int try = 0; r == -EAGAIN && try < CT_JOIN_TRIES; try++) {
                fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "ct_region", sizeof(uint32_t),
                                    CT_PAGE_ENTRY_SIZE, entries, &options);
                if (fd < 0)
                        return -errno;
                /*
                 * From here on nobody can write it but the program: not by bpf(2), and a mapping
                 * that was made for reading cannot be made writable. (A descriptor opened
                 * read-only would say the same, but cannot be mapped at all.)
                 */
                r = bpf_map_freeze(fd) < 0 ? -errno : 0;
                if (r == 0)
                        r = bpf_map_update_elem(bpf_map__fd(loader->bpf->maps.ct_regions), &region, &fd,
                                                BPF_ANY);
                if (r == 0)
                        r = ct_join(loader, tgid, region, entries);
                if (r < 0)
                        (void)close(fd);
        }
        if (r < 0) {
                (void)bpf_map_delete_elem(bpf_map__fd(loader->bpf->maps.ct_regions), &region);
                return r;
        }
        loader->used[region] = true;
        *ret_info = (struct ct_region_info){
                .map_fd = fd,
                .region = region,
                .generation = loader->generation,
                .entries = entries,
                .size = size,
        };
        return 0;
}

void ct_loader_release(struct ct_loader *loader, uint32_t region) {
        (void)bpf_map_delete_elem(bpf_map__fd(loader->bpf->maps.ct_regions), &region);
        loader->used[region] = false;
}

void ct_loader_links(const struct ct_loader *loader, int ret_fds[CT_LOADER_LINKS]) {
        ret_fds[0] = bpf_link__fd(loader->bpf->links.ct_switch);
        ret_fds[1] = bpf_link__fd(loader->bpf->links.ct_tick);
        ret_fds[2] = bpf_link__fd(loader->bpf->links.ct_newtask);
}
