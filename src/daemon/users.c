/* SPDX-License-Identifier: MIT */
#include "daemon/users.h"

#include <stdlib.h>

void ct_limits_init(struct ct_limits *limits, uint32_t per_user, uint32_t per_user_connections) {
        *limits = (struct ct_limits){
                .per_user = per_user,
                .per_user_connections = per_user_connections,
        };
}

static struct ct_user **ct_bucket(struct ct_limits *limits, uid_t uid) {
        return &limits->buckets[uid % CT_USER_BUCKETS];
}

/* Forgets the users of a bucket who have nothing and owe nothing. */
static void ct_limits_sweep(struct ct_limits *limits, struct ct_user **link, uint64_t now_ns) {
        while (*link) {
                struct ct_user *user = *link;

                if (user->waiting > 0 || user->enrolled > 0 || user->joins_paid_ns > now_ns ||
                    (user->warned_ns && now_ns - user->warned_ns < CT_WARN_INTERVAL_NS)) {
                        link = &user->next;
                        continue;
                }
                *link = user->next;
                free(user);
                limits->users--;
        }
}

void ct_limits_done(struct ct_limits *limits) {
        for (unsigned int i = 0; i < CT_USER_BUCKETS; i++)
                ct_limits_sweep(limits, &limits->buckets[i], UINT64_MAX);
}

struct ct_user *ct_limits_user(struct ct_limits *limits, uid_t uid, uint64_t now_ns) {
        struct ct_user **bucket = ct_bucket(limits, uid), *user;

        for (user = *bucket; user; user = user->next)
                if (user->uid == uid)
                        return user;
        if (limits->users >= CT_USERS_MAX)
                for (unsigned int i = 0; i < CT_USER_BUCKETS; i++)
                        ct_limits_sweep(limits, &limits->buckets[i], now_ns);
        else
                ct_limits_sweep(limits, bucket, now_ns);
        if (limits->users >= CT_USERS_MAX)
                return NULL;
        user = calloc(1, sizeof(*user));
        if (!user)
                return NULL;
        user->uid = uid;
        user->next = *bucket;
        *bucket = user;
        limits->users++;
        return user;
}

bool ct_user_may_connect(const struct ct_limits *limits, const struct ct_user *user) {
        return user->uid == 0 || user->waiting < limits->per_user_connections;
}

bool ct_user_may_enrol(const struct ct_limits *limits, const struct ct_user *user) {
        return user->uid == 0 || user->enrolled < limits->per_user;
}

bool ct_user_may_have(const struct ct_limits *limits, const struct ct_user *user, uint64_t bytes) {
        return user->uid == 0 || user->bytes + bytes <= limits->per_user * CT_BYTES_PER_PROCESS;
}

bool ct_user_join(const struct ct_limits *limits, struct ct_user *user, uint64_t now_ns) {
        if (user->joins_paid_ns < now_ns)
                user->joins_paid_ns = now_ns;
        if (user->uid != 0 &&
            user->joins_paid_ns - now_ns >= limits->per_user * CT_JOIN_INTERVAL_NS)
                return false;
        user->joins_paid_ns += CT_JOIN_INTERVAL_NS;
        return true;
}

bool ct_user_warn(struct ct_user *user, uint64_t now_ns) {
        if (user->warned_ns && now_ns - user->warned_ns < CT_WARN_INTERVAL_NS)
                return false;
        user->warned_ns = now_ns;
        return true;
}
