/* SPDX-License-Identifier: MIT */
#include "daemon/alive.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "alive.skel.h"

struct ct_alive {
        struct ct_alive_bpf *bpf;
        uint32_t *ids;          /* in order */
        size_t n, room;
};

int ct_alive_open(struct ct_alive **ret_alive) {
        struct ct_alive *alive;
        int r;

        alive = calloc(1, sizeof(*alive));
        if (!alive)
                return -ENOMEM;
        alive->bpf = ct_alive_bpf__open_and_load();
        r = alive->bpf ? ct_alive_bpf__attach(alive->bpf) : -errno;
        if (r < 0) {
                ct_alive_close(alive);
                return r;
        }
        *ret_alive = alive;
        return 0;
}

void ct_alive_close(struct ct_alive *alive) {
        if (!alive)
                return;
        ct_alive_bpf__destroy(alive->bpf);
        free(alive->ids);
        free(alive);
}

static int ct_compare(const void *a, const void *b) {
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

        return x < y ? -1 : x > y;
}

int ct_alive_look(struct ct_alive *alive) {
        int fd = bpf_iter_create(bpf_link__fd(alive->bpf->links.ct_maps));
        size_t bytes = 0;
        ssize_t n;

        if (fd < 0)
                return -errno;
        for (;;) {
                if (bytes + sizeof(uint32_t) > alive->room * sizeof(uint32_t)) {
                        size_t room = alive->room ? 2 * alive->room : 1024;
                        uint32_t *ids = reallocarray(alive->ids, room, sizeof(uint32_t));

                        if (!ids) {
                                n = -1;
                                errno = ENOMEM;
                                break;
                        }
                        alive->ids = ids;
                        alive->room = room;
                }
                n = read(fd, (char *)alive->ids + bytes, alive->room * sizeof(uint32_t) - bytes);
                if (n > 0)
                        bytes += (size_t)n;
                else if (n == 0 || (errno != EINTR && errno != EAGAIN))
                        break;
        }
        n = n < 0 ? -errno : 0;
        (void)close(fd);
        if (n < 0)
                return (int)n;
        alive->n = bytes / sizeof(uint32_t);
        qsort(alive->ids, alive->n, sizeof(uint32_t), ct_compare);
        return 0;
}

bool ct_alive_has(const struct ct_alive *alive, uint32_t id) {
        return alive->n > 0 && bsearch(&id, alive->ids, alive->n, sizeof(uint32_t), ct_compare);
}
