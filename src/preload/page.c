/* SPDX-License-Identifier: MIT */
/*
 * The page of memory that fork wipes: what times() remembers.
 *
 * It must not outlive fork(2), and there are forks that no
 * handler sees: raw clone(2), libc's own _Fork(). MADV_WIPEONFORK makes the kernel do it. Where it
 * refuses, before Linux 4.14 or in a sandbox, there is no page and whoever wanted one asks the
 * kernel each time.
 *
 * The first callers may race: each maps a page of its own, one publishes, the others unmap. A
 * handler that jumps out of that window with siglongjmp(3) leaves one page unused, once.
 *
 * The pointer itself is inherited by a child, which is right: the page is there, empty.
 */
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#include "preload/preload.h"

_Atomic(struct ct_process_page *) ct_page;

struct ct_process_page *ct_process_page_make(void) {
        struct ct_process_page *page, *old = NULL;
        int saved_errno = errno;

        page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) {
                page = CT_PAGE_NONE;
        } else if (madvise(page, sizeof(*page), MADV_WIPEONFORK) < 0) {
                (void)munmap(page, sizeof(*page));
                page = CT_PAGE_NONE;
        }
        if (!atomic_compare_exchange_strong(&ct_page, &old, page)) {
                if (page != CT_PAGE_NONE)
                        (void)munmap(page, sizeof(*page));
                page = old;
        }
        errno = saved_errno;
        return page == CT_PAGE_NONE ? NULL : page;
}

struct ct_process_page *ct_process_page_peek(void) {
        /* Sequentially consistent, as is the publication: see ct_times_invalidate(). */
        struct ct_process_page *page = atomic_load(&ct_page);

        return page == CT_PAGE_NONE ? NULL : page;
}

void ct_process_page_abandon(void) {
        atomic_store(&ct_page, CT_PAGE_NONE);
}
