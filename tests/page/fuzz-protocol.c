/* SPDX-License-Identifier: MIT */
/*
 * The server's clients (daemon/clients.c, users.c) under any sequence of events, with a model of
 * the kernel's side in place of server.c. An input is a program: one byte says what happens, the
 * next ones to whom and how; when it ends the server is stopped. What must hold whatever happens:
 *
 *      a process is enrolled only after it has sent a join itself, over a connection of its own,
 *      after hello, and only while it lives; never twice at once
 *      what a client is sent is hello, reply, hold, in this order and no more; hold and a region
 *      go with a reply without an error
 *      each region is released once; after each turn those in use are those of enrolled clients
 *      each connection is closed once, and none is used afterwards
 *      the program is loaded when somebody is enrolled, and let go when nobody has been for
 *      CT_KEEP_MAX_NS, unless clients keep too many others
 *      no user but root has more than the limits, in connections, processes, regions that exist
 *      and their memory, and each one's counts are what it has
 *      no more than CT_COPIES_MAX + 1 programs are attached, whatever clients keep
 *
 * Built with libFuzzer (-fsanitize=fuzzer), or with CT_REPLAY: then it runs the files and the files
 * of the directories that are named.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clients.h"
#include "source/page/page.h"

#define PROCESSES 8
#define CONNECTIONS 16
#define REGIONS 16
#define MAPS 256
#define LARGE 131072
#define PER_USER 3
#define PER_USER_CONNECTIONS 2

/* The first two are one user's, then come root, one we do not see, and others. */
static const struct {
        pid_t pid;
        uid_t uid;
} processes[PROCESSES] = {
        { 100, 1000 }, { 101, 1000 }, { 102, 0 }, { 0, 1001 }, { 103, 1256 }, { 104, 1000 },
        { 105, 1000 }, { 106, 1000 },
};

#define MUST(condition)                                                                 \
        do {                                                                            \
                if (!(condition)) {                                                     \
                        fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
                        abort();                                                        \
                }                                                                       \
        } while (0)

struct connection {
        struct ct_client *client;       /* NULL: not in use */
        unsigned int process;
        unsigned int sent;              /* messages: 1 hello, 2 reply, 3 hold */
        bool joined, unread, open, refused, left;
        bool takes_map, takes_links;    /* and keeps it */
};

/* A region, or (of root) a program's table; its id is its place, from 1 on. */
struct map {
        uid_t uid;
        uint64_t bytes;
        bool program, used, held;
};

struct ct_server {
        struct ct_clients clients;
        struct connection connections[CONNECTIONS];
        bool dead[PROCESSES];
        unsigned int region_map[REGIONS];       /* 0: none */
        struct map maps[MAPS];
        unsigned int nr_maps, program;  /* the loaded one's table */
        uint64_t next_bytes;
        bool loaded, stopping;
        /* Faults to come, each once. */
        int send_error, load_error, enrol_error, look_error;
        bool dies;                      /* whoever is enrolled next, in the midst of it */
        uint64_t now_ns, busy_ns;       /* busy: when somebody last needed the program */
};

static struct connection *of(const struct ct_client *client) {
        struct ct_server *server = client->clients->server;
        struct connection *c = &server->connections[client->fd];

        MUST(client->fd >= 0 && client->fd < CONNECTIONS && c->client == client && c->open);
        return c;
}

static int take(int *fault) {
        int error = *fault;

        *fault = 0;
        return error;
}

static unsigned int map_new(struct ct_server *server, struct map map) {
        if (server->nr_maps + 1 == MAPS)
                return 0;
        server->maps[++server->nr_maps] = map;
        return server->nr_maps;
}

static uid_t uid_of(pid_t pid) {
        for (unsigned int i = 0; i < PROCESSES; i++)
                if (processes[i].pid == pid)
                        return processes[i].uid;
        abort();
}

int ct_outside_load(struct ct_server *server, const char **ret_step) {
        int error = take(&server->load_error);

        MUST(!server->loaded && !server->stopping);
        *ret_step = "loading";
        server->loaded = error == 0;
        if (server->loaded) {
                server->program = map_new(server, (struct map){ .program = true, .used = true });
                if (server->program == 0) {
                        server->loaded = false;
                        error = -ENOMEM;
                }
        }
        server->busy_ns = server->now_ns;
        return error;
}

void ct_outside_unload(struct ct_server *server) {
        MUST(server->loaded);
        for (unsigned int i = 0; i < CONNECTIONS; i++)
                MUST(!server->connections[i].client ||
                     server->connections[i].client->state != CT_CLIENT_ENROLLED);
        server->loaded = false;
        server->maps[server->program].used = false;
        for (unsigned int i = 0; i < REGIONS; i++) {
                server->maps[server->region_map[i]].used = false;
                server->region_map[i] = 0;
        }
}

uint32_t ct_outside_table(struct ct_server *server) {
        MUST(server->loaded);
        return server->program;
}

int ct_outside_look(struct ct_server *server) {
        return take(&server->look_error);
}

bool ct_outside_exists(struct ct_server *server, uint32_t map_id) {
        MUST(map_id > 0 && map_id < MAPS);
        return server->maps[map_id].used || server->maps[map_id].held;
}

void ct_outside_discard(struct ct_server *server, int map_fd) {
        MUST(map_fd > 1000 && map_fd < 1000 + MAPS && server->maps[map_fd - 1000].held);
        server->maps[map_fd - 1000].held = false;
}

void ct_outside_enrol(struct ct_server *server, struct ct_enrolment *enrolments, unsigned int n) {
        MUST(server->loaded && n > 0 && n <= CT_LOADER_BATCH);
        for (unsigned int i = 0; i < n; i++) {
                bool asked = false;

                for (unsigned int k = 0; k < CONNECTIONS; k++) {
                        const struct connection *c = &server->connections[k];

                        asked |= c->client && c->joined && c->open && !server->dead[c->process] &&
                                 processes[c->process].pid == enrolments[i].tgid;
                }
                MUST(asked && enrolments[i].tgid > 0);
                for (unsigned int k = 0; k < i; k++)
                        MUST(enrolments[k].tgid != enrolments[i].tgid);
                for (unsigned int k = 0; k < PROCESSES && server->dies; k++)
                        server->dead[k] |= processes[k].pid == enrolments[i].tgid;
                server->dies = false;
                enrolments[i].error = take(&server->enrol_error);
                enrolments[i].info.region = 0;
                while (enrolments[i].info.region < REGIONS &&
                       server->region_map[enrolments[i].info.region])
                        enrolments[i].info.region++;
                if (enrolments[i].error == 0 && enrolments[i].info.region == REGIONS)
                        enrolments[i].error = -ENOSPC;
                if (enrolments[i].error == 0) {
                        struct map map = {
                                .uid = uid_of(enrolments[i].tgid),
                                .bytes = server->next_bytes,
                                .used = true,
                                .held = true,   /* until it is given or discarded, and then perhaps */
                        };
                        unsigned int id = map_new(server, map);

                        if (id == 0) {
                                enrolments[i].error = -ENOMEM;
                                continue;
                        }
                        server->next_bytes = 4096;
                        server->region_map[enrolments[i].info.region] = id;
                        enrolments[i].info.map_fd = 1000 + (int)id;
                        enrolments[i].info.map_id = id;
                        enrolments[i].info.size = map.bytes;
                        enrolments[i].info.entries = 32;
                        enrolments[i].info.generation = 1;
                }
        }
}

void ct_outside_release(struct ct_server *server, uint32_t region) {
        MUST(server->loaded && region < REGIONS && server->region_map[region]);
        server->maps[server->region_map[region]].used = false;
        server->region_map[region] = 0;
}

void ct_outside_flush(struct ct_server *server) {
        MUST(server->loaded);
}

int ct_outside_send(struct ct_client *client, const struct ct_message *message) {
        struct connection *c = of(client);

        MUST(message->magic == CT_PROTOCOL_MAGIC && message->page_version == CT_PAGE_VERSION);
        if (message->type == CT_MESSAGE_HELLO) {
                MUST(c->sent == 0 && message->error == 0);
        } else {
                MUST(message->type == CT_MESSAGE_REPLY && c->sent == 1);
                MUST(message->error > 0 && message->generation == 0 && message->entries == 0);
                c->refused = true;
        }
        c->sent++;
        c->unread = true;
        return take(&client->clients->server->send_error);
}

int ct_outside_give(struct ct_client *client, const struct ct_message *reply, int map_fd,
                    const struct ct_message *hold) {
        struct connection *c = of(client);
        struct ct_server *server = client->clients->server;

        MUST(client->region < REGIONS && server->region_map[client->region] + 1000 == (unsigned int)map_fd);
        MUST(server->loaded && c->sent == 1 && c->joined && !server->dead[c->process]);
        MUST(server->maps[map_fd - 1000].uid == client->user->uid);
        server->maps[server->program].held |= c->takes_links;
        server->maps[map_fd - 1000].held = c->takes_map;
        MUST(reply->magic == CT_PROTOCOL_MAGIC && reply->type == CT_MESSAGE_REPLY);
        MUST(reply->error == 0 && reply->generation == 1 && reply->entries == 32);
        MUST(hold->magic == CT_PROTOCOL_MAGIC && hold->type == CT_MESSAGE_HOLD && hold->error == 0);
        c->sent = 3;
        c->unread = true;
        return take(&server->send_error);
}

bool ct_outside_alive(const struct ct_client *client) {
        return !client->clients->server->dead[of(client)->process];
}

bool ct_outside_unread(const struct ct_client *client) {
        return of(client)->unread;
}

void ct_outside_left(struct ct_client *client) {
        MUST(!of(client)->left);
        of(client)->left = true;
}

void ct_outside_close(struct ct_client *client) {
        struct connection *c = of(client);

        /* Whoever was given the links has read or dropped them, or the server stops. */
        MUST(c->sent < 3 || !c->unread || client->clients->server->stopping);
        c->open = false;
        c->client = NULL;
        client->fd = -1;
}

/* Whether somebody needs the program now. */
static void note_busy(struct ct_server *server) {
        const struct ct_client_list *lists = server->clients.lists;

        if (lists[CT_CLIENT_JOINING].n + lists[CT_CLIENT_ENROLLED].n + lists[CT_CLIENT_LEFT].n > 0)
                server->busy_ns = server->now_ns;
}

static void check(struct ct_server *server) {
        const struct ct_clients *clients = &server->clients;
        unsigned int enrolled = 0, regions = 0, open = 0, programs = 0;

        for (unsigned int i = 0; i < REGIONS; i++)
                regions += server->region_map[i] != 0;
        for (unsigned int user = 0; user < PROCESSES; user++) {
                unsigned int has = 0;
                uint64_t bytes = 0;

                if (processes[user].uid == 0)
                        continue;
                for (unsigned int i = 1; i <= server->nr_maps; i++) {
                        const struct map *map = &server->maps[i];

                        if (map->uid == processes[user].uid && (map->used || map->held)) {
                                has++;
                                bytes += map->bytes;
                        }
                }
                MUST(has <= PER_USER && bytes <= PER_USER * CT_BYTES_PER_PROCESS);
        }
        for (unsigned int i = 1; i <= server->nr_maps; i++)
                programs += server->maps[i].program && (server->maps[i].used || server->maps[i].held);
        MUST(programs <= CT_COPIES_MAX + 1);
        for (unsigned int i = 0; i < CONNECTIONS; i++) {
                const struct connection *c = &server->connections[i];
                unsigned int waiting = 0, has = 0;
                uint64_t bytes = 0;

                if (!c->client)
                        continue;
                open++;
                MUST(!c->refused && c->client->state != CT_CLIENT_GONE);
                if (c->client->state == CT_CLIENT_ENROLLED) {
                        enrolled++;
                        MUST(c->sent == 3 && server->region_map[c->client->region] == c->client->map_id);
                }
                for (unsigned int k = 0; k < CONNECTIONS; k++) {
                        const struct connection *other = &server->connections[k];

                        if (!other->client || other->client->user != c->client->user)
                                continue;
                        bytes += other->client->bytes;
                        waiting += other->client->state == CT_CLIENT_GREETED;
                        has += other->client->state != CT_CLIENT_GREETED;
                        MUST(other->client->state < CT_CLIENT_KEPT);
                        MUST(other == c || other->client->state != CT_CLIENT_ENROLLED ||
                             c->client->state != CT_CLIENT_ENROLLED ||
                             other->client->pid != c->client->pid);
                }
                MUST(c->client->user->uid == processes[c->process].uid);
                for (const struct ct_client *k = clients->lists[CT_CLIENT_KEPT].first; k; k = k->next)
                        if (k->user == c->client->user) {
                                has++;
                                bytes += k->bytes;
                        }
                MUST(c->client->user->bytes == bytes);
                MUST(c->client->user->waiting == waiting && c->client->user->enrolled == has);
                MUST(c->client->user->uid == 0 ||
                     (waiting <= PER_USER_CONNECTIONS && has <= PER_USER));
        }
        MUST(enrolled == regions && clients->lists[CT_CLIENT_ENROLLED].n == enrolled);
        MUST(open == ct_clients_total(clients) && clients->lists[CT_CLIENT_GONE].n == 0);
        MUST(clients->loaded == server->loaded && (server->loaded || enrolled == 0));
        note_busy(server);
        MUST(!server->loaded || programs == CT_COPIES_MAX + 1 || clients->stays ||
             server->now_ns - server->busy_ns <= CT_KEEP_MAX_NS);
}

/* What follows whatever has happened in one turn of the loop. Returns when the next one is due. */
static uint64_t settle(struct ct_server *server) {
        uint64_t next_ns;

        note_busy(server);      /* who is refused in this turn has needed it until now */
        next_ns = ct_clients_settle(&server->clients, server->now_ns);
        MUST(next_ns > server->now_ns);
        check(server);
        return next_ns;
}

/* Nothing happens but turns that are due. */
static void pass(struct ct_server *server, uint64_t ns) {
        uint64_t end_ns = server->now_ns + ns, next_ns;

        while ((next_ns = settle(server)) <= end_ns) {
                server->now_ns = next_ns;
                ct_clients_expire(&server->clients, next_ns);
        }
        server->now_ns = end_ns;
}

static uint8_t next(const uint8_t **data, size_t *size) {
        if (*size == 0)
                return 0;
        (*size)--;
        return *(*data)++;
}

static void connects(struct ct_server *server, unsigned int process) {
        struct ct_client *client;
        unsigned int i;

        for (i = 0; i < CONNECTIONS && server->connections[i].client; i++)
                ;
        if (i == CONNECTIONS)
                return;
        client = ct_clients_connect(&server->clients, processes[process].pid, processes[process].uid,
                                    server->now_ns);
        if (!client)
                return;
        client->fd = (int)i;
        server->connections[i] = (struct connection){ .client = client, .process = process, .open = true };
        ct_client_greet(client);
}

/* A join with any bits turned over. */
static void sends(struct ct_server *server, struct connection *c, const uint8_t **data, size_t *size) {
        struct ct_message message = {
                .magic = CT_PROTOCOL_MAGIC,
                .type = CT_MESSAGE_JOIN,
                .page_version = CT_PAGE_VERSION,
        }, join = message;
        uint8_t how = next(data, size);
        size_t length = sizeof(message);
        pid_t sender = processes[c->process].pid;
        bool unexpected = how & 1;

        if (how & 2)
                for (size_t i = 0; i < sizeof(message); i++)
                        ((uint8_t *)&message)[i] ^= next(data, size);
        if (how & 4)
                length = next(data, size);
        if (how & 8)
                sender = processes[next(data, size) % PROCESSES].pid;
        c->takes_map = how & 16;
        c->takes_links = how & 32;
        c->joined |= !unexpected && length == sizeof(message) && sender == c->client->pid &&
                     c->client->state == CT_CLIENT_GREETED && c->sent == 1 &&
                     memcmp(&message, &join, 12) == 0;
        /* No more than there is room for has been received. */
        ct_client_receive(c->client, &message, length < sizeof(message) ? length : sizeof(message),
                          unexpected || length > sizeof(message), sender, server->now_ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const int errors[] = { -EAGAIN, -ESRCH, -ENOMEM, -EPERM };
        static struct ct_server server;
        struct ct_log log = { .fd = -1 };

        memset(&server, 0, sizeof(server));
        server.next_bytes = 4096;
        server.now_ns = server.busy_ns = 1000 * CT_NSEC_PER_SEC;
        ct_clients_init(&server.clients, &server, &log, PER_USER, PER_USER_CONNECTIONS, false);
        while (size > 0) {
                uint8_t what = next(&data, &size), whom = next(&data, &size);
                struct connection *c = &server.connections[whom % CONNECTIONS];

                switch (what % 11) {
                case 0:
                        if (!server.dead[whom % PROCESSES])
                                connects(&server, whom % PROCESSES);
                        continue;
                case 1:
                        if (c->client)
                                sends(&server, c, &data, &size);
                        continue;
                case 2:         /* closes; whom: whether its queue goes with that */
                        if (c->client) {
                                c->unread &= (whom & 0x80) != 0;
                                ct_client_end(c->client);
                        }
                        continue;
                case 3:         /* ends, and that is heard of now or at the next connection's turn */
                        server.dead[whom % PROCESSES] = true;
                        for (unsigned int i = 0; i < CONNECTIONS && !(whom & 0x80); i++)
                                if (server.connections[i].client &&
                                    server.connections[i].process == whom % PROCESSES) {
                                        server.connections[i].unread = false;
                                        ct_client_end(server.connections[i].client);
                                }
                        continue;
                case 4:         /* another process has the number */
                        for (unsigned int i = 0; i < CONNECTIONS; i++)
                                if (server.connections[i].client &&
                                    server.connections[i].process == whom % PROCESSES) {
                                        server.connections[i].unread &= (whom & 0x80) != 0;
                                        ct_client_end(server.connections[i].client);
                                }
                        server.dead[whom % PROCESSES] = false;
                        continue;
                case 5:         /* reads what there is */
                        if (c->client) {
                                c->unread = false;
                                ct_client_changed(c->client);
                        }
                        continue;
                case 6:
                        server.send_error = errors[whom % 4];
                        continue;
                case 7:
                        if (whom & 0x40) {
                                server.dies = true;
                                continue;
                        }
                        *(whom & 1 ? &server.load_error : whom & 2 ? &server.enrol_error :
                          &server.look_error) = errors[whom / 4 % 4];
                        continue;
                case 8:
                        pass(&server, (uint64_t)whom * 10 * CT_NSEC_PER_MSEC);
                        break;
                case 9:         /* lets go of a region, or of a program's links */
                        server.maps[whom].held = false;
                        continue;
                default:
                        server.next_bytes = whom & 1 ? LARGE : 4096;
                        break;
                }
                (void)settle(&server);
        }
        server.stopping = true;
        ct_clients_done(&server.clients);
        for (unsigned int i = 0; i < CONNECTIONS; i++)
                MUST(!server.connections[i].client);
        MUST(!server.loaded && server.clients.limits.users == 0);
        return 0;
}

#ifdef CT_REPLAY
#include <dirent.h>
#include <limits.h>

#include "../check.h"

static void replay(const char *path) {
        static uint8_t data[65536];
        FILE *f = fopen(path, "rbe");
        size_t size;

        CHECK(f, "%s: %s", path, strerror(errno));
        size = fread(data, 1, sizeof(data), f);
        (void)fclose(f);
        (void)LLVMFuzzerTestOneInput(data, size);
}

int main(int argc, char *argv[]) {
        unsigned int n = 0;

        for (int i = 1; i < argc; i++) {
                DIR *directory = opendir(argv[i]);
                struct dirent *entry;
                char path[PATH_MAX];

                if (!directory) {
                        replay(argv[i]);
                        n++;
                        continue;
                }
                while ((entry = readdir(directory))) {
                        if (entry->d_name[0] == '.')
                                continue;
                        (void)snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
                        replay(path);
                        n++;
                }
                (void)closedir(directory);
        }
        CHECK(n > 0, "nothing to replay: name files or directories");
        printf("%u inputs\n", n);
        return 0;
}
#endif
