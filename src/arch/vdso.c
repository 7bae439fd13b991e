/* SPDX-License-Identifier: MIT */
/*
 * Finds clock_gettime in the vDSO's dynamic symbol table, once.
 *
 * The vDSO is a complete ELF image that the kernel maps into every process; AT_SYSINFO_EHDR says
 * where. It has one loadable segment, a dynamic section, and a symbol table whose length only the
 * hash table tells: DT_HASH where the kernel still emits it, DT_GNU_HASH from Linux 6.12 on.
 *
 * The result is one pointer, written by whoever comes first; everybody computes the same value, so
 * the race is harmless and needs no lock. It survives fork; exec starts anew.
 */
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arch/vdso.h"
#include "base/nsec.h"

/* What the architectures call it; both names may be looked up everywhere. */
static const char *const ct_vdso_names[] = {
        "__vdso_clock_gettime64",       /* 32-bit with a 64-bit time_t: not our struct, see below */
        "__vdso_clock_gettime",         /* x86, arm, mips, riscv, ... */
        "__kernel_clock_gettime",       /* aarch64, powerpc, s390x */
};

static int ct_sys_clock_gettime_raw(clockid_t clockid, struct timespec *ret_ts) {
        return ct_sys_clock_gettime(clockid, ret_ts);
}

static int ct_vdso_first(clockid_t clockid, struct timespec *ret_ts);

_Atomic(ct_clock_gettime_fn *) ct_vdso_fn = ct_vdso_first;

int ct_sys_clock_gettime(clockid_t clockid, struct timespec *ret_ts) {
        int saved_errno = errno, r = 0;

        if (syscall(SYS_clock_gettime, clockid, ret_ts) < 0)
                r = -errno;
        errno = saved_errno;
        return r;
}

/* How many symbols a GNU hash table covers: the end of the last chain. */
static size_t ct_gnu_hash_count(const uint32_t *hash) {
        uint32_t n_buckets = hash[0], first = hash[1], n_bloom = hash[2], last = 0;
        const uint32_t *buckets = hash + 4 + n_bloom * (sizeof(ElfW(Addr)) / 4);
        const uint32_t *chains = buckets + n_buckets;

        for (uint32_t i = 0; i < n_buckets; i++)
                if (buckets[i] > last)
                        last = buckets[i];
        if (last < first)
                return first;
        while (!(chains[last - first] & 1))
                last++;
        return last + 1;
}

static ct_clock_gettime_fn *ct_vdso_find(void) {
        const ElfW(Ehdr) *ehdr = (const void *)getauxval(AT_SYSINFO_EHDR);
        const ElfW(Phdr) *phdr;
        const ElfW(Dyn) *dyn = NULL;
        const ElfW(Sym) *symtab = NULL;
        const char *strtab = NULL, *base = (const char *)ehdr;
        const uint32_t *hash = NULL, *gnu_hash = NULL;
        ptrdiff_t slide = 0;
        bool have_load = false;
        size_t n_syms;

        if (!ehdr || memcmp(ehdr->e_ident, ELFMAG, SELFMAG) != 0)
                return ct_sys_clock_gettime_raw;

        phdr = (const void *)(base + ehdr->e_phoff);
        for (size_t i = 0; i < ehdr->e_phnum; i++) {
                if (phdr[i].p_type == PT_LOAD && !have_load) {
                        slide = base + phdr[i].p_offset - (const char *)phdr[i].p_vaddr;
                        have_load = true;
                } else if (phdr[i].p_type == PT_DYNAMIC) {
                        dyn = (const void *)(base + phdr[i].p_offset);
                }
        }
        if (!have_load || !dyn)
                return ct_sys_clock_gettime_raw;

        for (; dyn->d_tag != DT_NULL; dyn++) {
                const void *p = (const void *)(dyn->d_un.d_ptr + (ElfW(Addr))slide);

                if (dyn->d_tag == DT_SYMTAB)
                        symtab = p;
                else if (dyn->d_tag == DT_STRTAB)
                        strtab = p;
                else if (dyn->d_tag == DT_HASH)
                        hash = p;
                else if (dyn->d_tag == DT_GNU_HASH)
                        gnu_hash = p;
        }
        if (!symtab || !strtab || (!hash && !gnu_hash))
                return ct_sys_clock_gettime_raw;

        n_syms = hash ? hash[1] : ct_gnu_hash_count(gnu_hash);
        for (size_t i = 0; i < n_syms; i++) {
                if (symtab[i].st_shndx == SHN_UNDEF)
                        continue;
                /* The time64 variant takes another struct where time_t is 32 bits wide. */
                for (size_t k = sizeof(time_t) == sizeof(long) ? 1 : 0; k < 3; k++)
                        if (strcmp(strtab + symtab[i].st_name, ct_vdso_names[k]) == 0)
                                return (ct_clock_gettime_fn *)(symtab[i].st_value + (ElfW(Addr))slide);
        }
        return ct_sys_clock_gettime_raw;
}

/* Called in the vDSO's place until it is known where that is. */
static int ct_vdso_first(clockid_t clockid, struct timespec *ret_ts) {
        atomic_store_explicit(&ct_vdso_fn, ct_vdso_find(), memory_order_relaxed);
        return ct_vdso_clock_gettime(clockid, ret_ts);
}

uint64_t ct_vdso_raw_ns(void) {
        struct timespec ts = {};

        (void)ct_vdso_clock_gettime(CLOCK_MONOTONIC_RAW, &ts);
        return ct_nsec_from_timespec(&ts);
}

uint64_t ct_vdso_coarse_ns(void) {
        struct timespec ts = {};

        (void)ct_vdso_clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
        return ct_nsec_from_timespec(&ts);
}
