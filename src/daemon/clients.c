/* SPDX-License-Identifier: MIT */
#include "daemon/clients.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "source/page/page.h"

/* A process whose threads are switched all the time while they are looked at. */
#define CT_ENROL_TRIES 4

static void ct_list_add(struct ct_client_list *list, struct ct_client *client) {
        client->next = NULL;
        client->previous = list->last;
        *(list->last ? &list->last->next : &list->first) = client;
        list->last = client;
        list->n++;
}

static void ct_list_remove(struct ct_client_list *list, struct ct_client *client) {
        *(client->previous ? &client->previous->next : &list->first) = client->next;
        *(client->next ? &client->next->previous : &list->last) = client->previous;
        list->n--;
}

/* Which counts a state takes part in. */
static uint32_t *ct_count(struct ct_client *client) {
        switch (client->state) {
        case CT_CLIENT_GREETED:
                return &client->user->waiting;
        case CT_CLIENT_JOINING:
        case CT_CLIENT_ENROLLED:
        case CT_CLIENT_LEFT:
        case CT_CLIENT_KEPT:
                return &client->user->enrolled;
        default:
                return NULL;
        }
}

static void ct_client_become(struct ct_client *client, enum ct_client_state state) {
        uint32_t *count = ct_count(client);

        if (count)
                (*count)--;
        ct_list_remove(&client->clients->lists[client->state], client);
        client->state = state;
        ct_list_add(&client->clients->lists[state], client);
        count = ct_count(client);
        if (count)
                (*count)++;
        if (state == CT_CLIENT_GONE)
                client->user->bytes -= client->bytes;
}

void ct_clients_init(struct ct_clients *clients, struct ct_server *server, struct ct_log *log,
                     uint32_t per_user, uint32_t per_user_connections, bool prepared) {
        *clients = (struct ct_clients){ .server = server, .log = log, .prepared = prepared };
        clients->kept_look = CT_KEPT_LOOK;
        ct_limits_init(&clients->limits, per_user, per_user_connections);
}

static void ct_clients_free_gone(struct ct_clients *clients) {
        struct ct_client_list *gone = &clients->lists[CT_CLIENT_GONE];

        while (gone->first) {
                struct ct_client *client = gone->first;

                ct_list_remove(gone, client);
                free(client);
        }
}

/* What goes wrong here is told to clients for a while without trying again. */
int ct_clients_load(struct ct_clients *clients, uint64_t now_ns) {
        const char *step = NULL;
        int r;

        if (clients->loaded)
                return 0;
        if (clients->load_error < 0 && now_ns - clients->load_failed_ns < CT_LOAD_RETRY_NS)
                return clients->load_error;
        r = ct_outside_load(clients->server, &step);
        if (r < 0) {
                if (r != clients->load_error)
                        ct_log(clients->log, CT_LOG_ERROR, "%s failed: %s%s", step, strerror(-r),
                               r == -EPERM ? "; it takes CAP_BPF and CAP_PERFMON, and a kernel that "
                                             "is not locked down" : "");
                clients->load_error = r;
                clients->load_failed_ns = now_ns;
                return r;
        }
        clients->load_error = 0;
        clients->loaded = true;
        clients->idle_ns = 0;
        if (clients->let_go_ns && now_ns - clients->let_go_ns < CT_KEEP_FLAP_NS)
                clients->keep_ns = clients->keep_ns ? clients->keep_ns * 2 : CT_NSEC_PER_SEC;
        else
                clients->keep_ns = 0;
        if (clients->keep_ns > CT_KEEP_MAX_NS)
                clients->keep_ns = CT_KEEP_MAX_NS;
        ct_log(clients->log, CT_LOG_INFO, "the program is attached");
        return 0;
}

static void ct_clients_flush(struct ct_clients *clients) {
        if (clients->loaded && clients->releases)
                ct_outside_flush(clients->server);
        clients->releases = false;
}

/* What has been kept, and is it still? Once in a turn. */
static void ct_clients_look(struct ct_clients *clients) {
        struct ct_client *client, *next;
        unsigned int n = 0;

        if (clients->looked)
                return;
        clients->looked = true;
        ct_clients_flush(clients);
        if (ct_outside_look(clients->server) < 0)
                return;
        for (client = clients->lists[CT_CLIENT_KEPT].first; client; client = next) {
                next = client->next;
                if (!ct_outside_exists(clients->server, client->map_id))
                        ct_client_become(client, CT_CLIENT_GONE);
        }
        clients->kept_look = 2 * clients->lists[CT_CLIENT_KEPT].n + CT_KEPT_LOOK;
        for (unsigned int i = 0; i < clients->nr_copies; i++)
                if (ct_outside_exists(clients->server, clients->copies[i]))
                        clients->copies[n++] = clients->copies[i];
        clients->nr_copies = n;
}

/* Unless too many copies of it are about. */
static void ct_clients_unload(struct ct_clients *clients, uint64_t now_ns) {
        if (clients->nr_copies == CT_COPIES_MAX)
                ct_clients_look(clients);
        if (clients->nr_copies == CT_COPIES_MAX) {
                if (!clients->stays)
                        ct_log(clients->log, CT_LOG_INFO, "the program stays attached: clients that "
                               "have left hold %u others", clients->nr_copies);
                clients->stays = true;
                clients->keep_ns = CT_KEEP_MAX_NS;
                clients->idle_ns = now_ns;
                return;
        }
        clients->stays = false;
        clients->copies[clients->nr_copies++] = ct_outside_table(clients->server);
        ct_outside_unload(clients->server);
        clients->loaded = false;
        clients->releases = false;
        clients->let_go_ns = now_ns;
        ct_log(clients->log, CT_LOG_INFO, "the program was let go: nobody is enrolled");
}

/* For one that holds nothing of ours, but perhaps its region. Root's are not counted. */
static void ct_client_close(struct ct_client *client) {
        ct_outside_close(client);
        ct_client_become(client, client->map_id && client->user->uid != 0 ? CT_CLIENT_KEPT
                                                                         : CT_CLIENT_GONE);
}

struct ct_client *ct_clients_connect(struct ct_clients *clients, pid_t pid, uid_t uid,
                                     uint64_t now_ns) {
        struct ct_user *user = ct_limits_user(&clients->limits, uid, now_ns);
        struct ct_client *client;

        if (!user)
                return NULL;
        if (!ct_user_may_connect(&clients->limits, user)) {
                if (ct_user_warn(user, now_ns))
                        ct_log(clients->log, CT_LOG_INFO,
                               "user %u: %u connections that do not join, more are refused", uid,
                               user->waiting);
                return NULL;
        }
        client = calloc(1, sizeof(*client));
        if (!client)
                return NULL;
        *client = (struct ct_client){
                .clients = clients,
                .user = user,
                .state = CT_CLIENT_GREETED,
                .pid = pid,
                .deadline_ns = now_ns + CT_JOIN_DEADLINE_NS,
                .fd = -1,
                .pidfd = -1,
        };
        ct_list_add(&clients->lists[CT_CLIENT_GREETED], client);
        user->waiting++;
        return client;
}

static struct ct_message ct_message_of(enum ct_message_type type) {
        return (struct ct_message){
                .magic = CT_PROTOCOL_MAGIC,
                .type = type,
                .page_version = CT_PAGE_VERSION,
        };
}

void ct_client_greet(struct ct_client *client) {
        struct ct_message hello = ct_message_of(CT_MESSAGE_HELLO);

        if (ct_outside_send(client, &hello) < 0)
                ct_client_end(client);
}

void ct_client_end(struct ct_client *client) {
        struct ct_clients *clients = client->clients;

        switch (client->state) {
        case CT_CLIENT_GREETED:
        case CT_CLIENT_JOINING:
                ct_client_close(client);
                break;
        case CT_CLIENT_ENROLLED:
                ct_outside_release(clients->server, client->region);
                clients->releases = true;
                ct_log(clients->log, CT_LOG_CLIENT, "process %d of user %u: left", client->pid,
                       client->user->uid);
                ct_client_become(client, CT_CLIENT_LEFT);
                ct_outside_left(client);
                ct_client_changed(client);
                break;
        case CT_CLIENT_LEFT:
                ct_client_changed(client);
                break;
        default:
                break;
        }
}

void ct_client_changed(struct ct_client *client) {
        if (client->state == CT_CLIENT_LEFT && !ct_outside_unread(client))
                ct_client_close(client);
}

/* Tells why, and that is the end of it. */
static void ct_client_refuse(struct ct_client *client, int error) {
        struct ct_message reply = ct_message_of(CT_MESSAGE_REPLY);

        ct_log(client->clients->log, CT_LOG_CLIENT, "process %d of user %u: refused: %s",
               client->pid, client->user->uid, strerror(error));
        reply.error = error;
        (void)ct_outside_send(client, &reply);
        ct_client_end(client);
}

static void ct_client_join(struct ct_client *client, uint64_t now_ns) {
        struct ct_clients *clients = client->clients;
        struct ct_user *user = client->user;

        if (client->pid == 0) {
                ct_client_refuse(client, EPERM);
                return;
        }
        if (!ct_user_join(&clients->limits, user, now_ns)) {
                if (ct_user_warn(user, now_ns))
                        ct_log(clients->log, CT_LOG_INFO,
                               "user %u: joins too often, some are refused", user->uid);
                ct_client_refuse(client, EAGAIN);
                return;
        }
        /*
         * The process over another connection, or one of the same number before it of whose end we
         * have not heard.
         */
        for (int state = CT_CLIENT_JOINING; state <= CT_CLIENT_ENROLLED; state++) {
                struct ct_client *other = clients->lists[state].first, *next;

                for (; other; other = next) {
                        next = other->next;
                        if (other->pid == client->pid)
                                ct_client_end(other);
                }
        }
        if (!ct_user_may_enrol(&clients->limits, user))
                ct_clients_look(clients);
        if (!ct_user_may_enrol(&clients->limits, user)) {
                if (ct_user_warn(user, now_ns))
                        ct_log(clients->log, CT_LOG_INFO,
                               "user %u: %u processes enrolled or their regions kept, more are "
                               "refused", user->uid, user->enrolled);
                ct_client_refuse(client, EDQUOT);
                return;
        }
        ct_client_become(client, CT_CLIENT_JOINING);
}

void ct_client_receive(struct ct_client *client, const struct ct_message *message, size_t size,
                       bool unexpected, pid_t sender, uint64_t now_ns) {
        if (client->state > CT_CLIENT_ENROLLED)
                return;
        if (client->state != CT_CLIENT_GREETED || unexpected || size != sizeof(*message) ||
            message->magic != CT_PROTOCOL_MAGIC || message->type != CT_MESSAGE_JOIN ||
            sender != client->pid) {
                ct_log(client->clients->log, CT_LOG_CLIENT,
                       "process %d of user %u: does not keep to the protocol", client->pid,
                       client->user->uid);
                ct_client_end(client);
                return;
        }
        if (message->page_version != CT_PAGE_VERSION)
                ct_client_refuse(client, EPROTONOSUPPORT);
        else
                ct_client_join(client, now_ns);
}

void ct_clients_expire(struct ct_clients *clients, uint64_t now_ns) {
        struct ct_client_list *waiting = &clients->lists[CT_CLIENT_GREETED];

        while (waiting->first && waiting->first->deadline_ns <= now_ns) {
                ct_log(clients->log, CT_LOG_CLIENT, "process %d of user %u: did not join",
                       waiting->first->pid, waiting->first->user->uid);
                ct_client_end(waiting->first);
        }
}

/* An enrolment that nobody gets. */
static void ct_client_discard(struct ct_client *client, const struct ct_enrolment *e) {
        ct_outside_release(client->clients->server, e->info.region);
        client->clients->releases = true;
        ct_outside_discard(client->clients->server, e->info.map_fd);
}

static void ct_client_enrolled(struct ct_client *client, const struct ct_enrolment *e) {
        struct ct_clients *clients = client->clients;
        struct ct_message reply = ct_message_of(CT_MESSAGE_REPLY);
        struct ct_message hold = ct_message_of(CT_MESSAGE_HOLD);
        int r;

        if (e->error == -EAGAIN && ++client->tries < CT_ENROL_TRIES) {
                /* To the end of the list. */
                ct_client_become(client, CT_CLIENT_JOINING);
                return;
        }
        if (e->error < 0) {
                ct_client_refuse(client, -e->error);
                return;
        }
        /* What was enrolled is whoever has the number now: it must have been this one's until now. */
        if (!ct_outside_alive(client)) {
                ct_client_discard(client, e);
                ct_client_end(client);
                return;
        }
        if (!ct_user_may_have(&clients->limits, client->user, e->info.size))
                ct_clients_look(clients);
        if (!ct_user_may_have(&clients->limits, client->user, e->info.size)) {
                ct_client_discard(client, e);
                ct_client_refuse(client, EDQUOT);
                return;
        }
        client->region = e->info.region;
        client->map_id = e->info.map_id;
        client->bytes = e->info.size;
        client->user->bytes += client->bytes;
        ct_client_become(client, CT_CLIENT_ENROLLED);
        reply.generation = e->info.generation;
        reply.entries = e->info.entries;
        r = ct_outside_give(client, &reply, e->info.map_fd, &hold);
        if (r < 0) {
                ct_log(clients->log, CT_LOG_CLIENT,
                       "process %d of user %u: cannot be sent its page: %s", client->pid,
                       client->user->uid, strerror(-r));
                ct_client_end(client);
                return;
        }
        ct_log(clients->log, CT_LOG_CLIENT, "process %d of user %u: enrolled", client->pid,
               client->user->uid);
}

/* Whether the loader was asked, which flushes what was released. */
static bool ct_clients_enrol(struct ct_clients *clients, uint64_t now_ns) {
        struct ct_client_list *joining = &clients->lists[CT_CLIENT_JOINING];
        struct ct_enrolment enrolments[CT_LOADER_BATCH];
        struct ct_client *batch[CT_LOADER_BATCH], *next;
        unsigned int n = 0;
        int r;

        for (struct ct_client *client = joining->first; client && n < CT_LOADER_BATCH; client = next) {
                next = client->next;
                if (!ct_outside_alive(client)) {
                        ct_client_end(client);
                        continue;
                }
                batch[n] = client;
                enrolments[n++] = (struct ct_enrolment){ .tgid = client->pid };
        }
        if (n == 0)
                return false;
        r = ct_clients_load(clients, now_ns);
        if (r == 0) {
                ct_outside_enrol(clients->server, enrolments, n);
                clients->releases = false;
        }
        for (unsigned int i = 0; i < n; i++) {
                if (r < 0)
                        enrolments[i].error = r;
                else if (enrolments[i].error < 0)
                        clients->releases = true;
                ct_client_enrolled(batch[i], &enrolments[i]);
        }
        return r == 0;
}

uint64_t ct_clients_settle(struct ct_clients *clients, uint64_t now_ns) {
        const struct ct_client_list *lists = clients->lists;
        uint64_t next_ns = UINT64_MAX;

        if (now_ns >= clients->batch_ns && (lists[CT_CLIENT_JOINING].n > 0 || clients->releases)) {
                clients->batch_ns = now_ns + CT_BATCH_INTERVAL_NS;
                if (!ct_clients_enrol(clients, now_ns))
                        ct_clients_flush(clients);
        }
        if (lists[CT_CLIENT_JOINING].n + lists[CT_CLIENT_ENROLLED].n + lists[CT_CLIENT_LEFT].n > 0) {
                clients->idle_ns = 0;
        } else if (clients->loaded && !clients->prepared) {
                if (!clients->idle_ns)
                        clients->idle_ns = now_ns;
                if (now_ns - clients->idle_ns >= clients->keep_ns)
                        ct_clients_unload(clients, now_ns);
                if (clients->loaded)
                        next_ns = clients->idle_ns + clients->keep_ns;
        }
        if (lists[CT_CLIENT_KEPT].n >= clients->kept_look)
                ct_clients_look(clients);
        ct_clients_free_gone(clients);
        clients->looked = false;
        if ((lists[CT_CLIENT_JOINING].n > 0 || clients->releases) && clients->batch_ns < next_ns)
                next_ns = clients->batch_ns;
        if (lists[CT_CLIENT_GREETED].n > 0 && lists[CT_CLIENT_GREETED].first->deadline_ns < next_ns)
                next_ns = lists[CT_CLIENT_GREETED].first->deadline_ns;
        return next_ns;
}

void ct_clients_done(struct ct_clients *clients) {
        for (int state = 0; state < CT_CLIENT_KEPT; state++)
                while (clients->lists[state].first)
                        ct_client_close(clients->lists[state].first);
        while (clients->lists[CT_CLIENT_KEPT].first)
                ct_client_become(clients->lists[CT_CLIENT_KEPT].first, CT_CLIENT_GONE);
        ct_clients_free_gone(clients);
        if (clients->loaded)
                ct_outside_unload(clients->server);
        clients->loaded = false;
        ct_limits_done(&clients->limits);
}
