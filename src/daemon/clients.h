/* SPDX-License-Identifier: MIT */
#ifndef CT_CLIENTS_H
#define CT_CLIENTS_H
/*
 * All clients of a server and what becomes of them; no system call is made here. What is asked of
 * the kernel are the ct_outside_*() functions, which server.c has, and the protocol's fuzzer has
 * others.
 *
 *      GREETED   connected, said hello to       --- 2 s ----------------------------> gone
 *      JOINING   asked for a page, waits for its batch   --- refused ---------------> gone
 *      ENROLLED  has a region
 *      LEFT      has none any more, but still holds the program attached: the hold message is
 *                unread in its queue                     --- until it is not
 *      KEPT      has nothing of the server's; but its region may exist, kept by a mapping or a
 *                descriptor                              --- until it does not -----> gone
 *
 * A client leaves by closing the connection, by the end of its process, by sending anything that it
 * should not, or by joining once more over another connection.
 *
 * LEFT is there because a connection can be shut down and its queue kept, by the client or by a
 * child of it: the kernel counts the descriptors in it against the server, so the server counts them
 * against the user; and while one holds the program there is no need to load a second. KEPT is there
 * because the region's memory is the server's to the kernel's books. Whether it is gone is looked at
 * when the user is at a limit.
 *
 * The program is let go when nobody is JOINING, ENROLLED or LEFT: at once, or, if it had to be
 * loaded again soon after the last time, some seconds later: loading takes 0.1 s of a CPU. If a
 * client has read the hold message and kept the descriptors, that program stays attached for all
 * that; with CT_COPIES_MAX such programs about, the next one is not let go any more, so that there
 * is no end of them.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/users.h"
#include "daemon/log.h"
#include "source/page/loader.h"
#include "source/page/protocol.h"

/* From hello to join. The library answers at its next look at the clock, at once mostly. */
#define CT_JOIN_DEADLINE_NS (2 * CT_NSEC_PER_SEC)

/* A program that could not be loaded is not tried again for so long. */
#define CT_LOAD_RETRY_NS CT_NSEC_PER_SEC

/*
 * From one batch of joins and leaves to the next: twice what the kernel takes for one, so that half
 * of the time is left for all else, connections above all, whatever one user's processes do.
 */
#define CT_BATCH_INTERVAL_NS (20 * CT_NSEC_PER_MSEC)

/* Loaded again within so long after it was let go, it is kept longer next time, up to that. */
#define CT_KEEP_FLAP_NS (8 * CT_NSEC_PER_SEC)
#define CT_KEEP_MAX_NS (4 * CT_NSEC_PER_SEC)

/* Programs that were let go and are attached for all that: each is a small cost to every switch. */
#define CT_COPIES_MAX 4

/* Clients that are KEPT, of all users, before it is looked which regions are gone. */
#define CT_KEPT_LOOK 1024

enum ct_client_state {
        CT_CLIENT_GREETED,
        CT_CLIENT_JOINING,
        CT_CLIENT_ENROLLED,
        CT_CLIENT_LEFT,
        CT_CLIENT_KEPT,
        CT_CLIENT_GONE,         /* its memory is freed by the next ct_clients_settle() */
        CT_CLIENT_STATES,
};

struct ct_client_list {
        struct ct_client *first, *last;
        unsigned int n;
};

struct ct_client {
        struct ct_client *next, *previous;      /* in the list of its state, oldest first */
        struct ct_clients *clients;
        struct ct_user *user;
        enum ct_client_state state;
        pid_t pid;              /* as the kernel named it; 0: in a pid namespace that we do not see */
        unsigned int tries;
        uint64_t deadline_ns;
        uint32_t region;
        uint32_t map_id;        /* the kernel's id of it; 0: never had one */
        uint64_t bytes;         /* of it */
        int fd;                 /* the outside's: the connection, -1 when gone */
        int pidfd;              /* and the process, -1 if not known or not of interest any more */
};

struct ct_clients {
        struct ct_server *server;       /* the outside's */
        struct ct_log *log;
        struct ct_limits limits;
        bool prepared;          /* the program is kept */
        bool stays;             /* for there are too many copies of it */
        bool loaded;
        bool releases;          /* some wait for a flush */
        bool looked;            /* at what is alive, in this turn */
        int load_error;
        uint64_t load_failed_ns;
        uint64_t batch_ns;      /* the next one not before */
        uint64_t let_go_ns;     /* when it was last; 0: never */
        uint64_t idle_ns;       /* since when nobody needs the program; 0: somebody does */
        uint64_t keep_ns;       /* for how long it is kept then */
        unsigned int kept_look; /* when so many are KEPT */
        unsigned int nr_copies;
        uint32_t copies[CT_COPIES_MAX];         /* ids of tables of programs that were let go */
        struct ct_client_list lists[CT_CLIENT_STATES];
};

/* The outside. Errors are -errno. */

/* Loads and attaches the program, lets it go. */
int ct_outside_load(struct ct_server *server, const char **ret_step);
void ct_outside_unload(struct ct_server *server);

/* As ct_loader_enrol() and its neighbours. */
void ct_outside_enrol(struct ct_server *server, struct ct_enrolment *enrolments, unsigned int n);
void ct_outside_release(struct ct_server *server, uint32_t region);
void ct_outside_flush(struct ct_server *server);

/* The id of the loaded program's table, which exists as long as the program does. */
uint32_t ct_outside_table(struct ct_server *server);

/* Looks which maps exist; then whether one did. Returns 0 or -errno. */
int ct_outside_look(struct ct_server *server);
bool ct_outside_exists(struct ct_server *server, uint32_t map_id);

/* Closes the descriptor of a region that is not given. */
void ct_outside_discard(struct ct_server *server, int map_fd);

/* Sends without waiting; -EAGAIN if that cannot be. */
int ct_outside_send(struct ct_client *client, const struct ct_message *message);

/* Sends the reply with the region's descriptor, which it closes in any case, and hold. */
int ct_outside_give(struct ct_client *client, const struct ct_message *reply, int map_fd,
                    const struct ct_message *hold);

/* Whether the process lives and the connection is open. */
bool ct_outside_alive(const struct ct_client *client);

/* Whether something that was sent to the client has not been read, by it or by its end. */
bool ct_outside_unread(const struct ct_client *client);

/* The client has left: ct_client_changed() is to be called when it may have read. */
void ct_outside_left(struct ct_client *client);

/* Closes what the client has: fd and pidfd. */
void ct_outside_close(struct ct_client *client);

/* The inside. */
void ct_clients_init(struct ct_clients *clients, struct ct_server *server, struct ct_log *log,
                     uint32_t per_user, uint32_t per_user_connections, bool prepared);

/* Lets all clients and the program go. */
void ct_clients_done(struct ct_clients *clients);

/* Loads the program now. Returns 0 or -errno. */
int ct_clients_load(struct ct_clients *clients, uint64_t now_ns);

/* A connection of the process PID of the user UID. NULL: refused, close it. Else fill in fd, pidfd. */
struct ct_client *ct_clients_connect(struct ct_clients *clients, pid_t pid, uid_t uid,
                                     uint64_t now_ns);

/* Says hello. */
void ct_client_greet(struct ct_client *client);

/* SIZE bytes came from the process SENDER, with or without something that is not expected. */
void ct_client_receive(struct ct_client *client, const struct ct_message *message, size_t size,
                       bool unexpected, pid_t sender, uint64_t now_ns);

/* The connection was closed, or the process ended. */
void ct_client_end(struct ct_client *client);

/* One that has left may have read its queue, or closed it. */
void ct_client_changed(struct ct_client *client);

/* Lets those go who have not joined in time. After all that has come from them was received. */
void ct_clients_expire(struct ct_clients *clients, uint64_t now_ns);

/*
 * Does what clients wait for, in a batch, and frees those that are gone. Returns when it has to be
 * called again, at the latest; UINT64_MAX: when something has happened.
 */
uint64_t ct_clients_settle(struct ct_clients *clients, uint64_t now_ns);

/* Those who are not on their way out. */
static inline unsigned int ct_clients_present(const struct ct_clients *clients) {
        return clients->lists[CT_CLIENT_GREETED].n + clients->lists[CT_CLIENT_JOINING].n +
               clients->lists[CT_CLIENT_ENROLLED].n;
}

static inline unsigned int ct_clients_total(const struct ct_clients *clients) {
        return ct_clients_present(clients) + clients->lists[CT_CLIENT_LEFT].n;
}

#endif /* CT_CLIENTS_H */
