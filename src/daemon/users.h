/* SPDX-License-Identifier: MIT */
#ifndef CT_USERS_H
#define CT_USERS_H
/*
 * What each user may have of the server. A user is the uid that the kernel names for a connection.
 * Root is counted and not limited.
 *
 *      waiting    connections that have not joined: per_user_connections
 *      enrolled   processes enrolled, connections that were one's and still hold the program,
 *                 and regions that were one's and still exist (clients.h): per_user
 *      bytes      memory of all those regions: 64 KiB for each of per_user
 *      joins      how often: as many at once as per_user, and then 50 a second, so that the
 *                 kernel's work for one user's coming and going leaves room for the others'
 *
 * A user who has nothing and has not joined lately is forgotten. There are CT_USERS_MAX at most, and
 * nobody's limit is another's but for that.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/nsec.h"

#define CT_USERS_MAX 4096
#define CT_USER_BUCKETS 256

/* One join takes about a millisecond of the server's time in a batch, 10 alone. */
#define CT_JOIN_INTERVAL_NS (20 * CT_NSEC_PER_MSEC)

/* Room for 250 threads; most processes take 4 KiB. */
#define CT_BYTES_PER_PROCESS UINT64_C(65536)

/* A user's hitting a limit is worth a line in the log, once in so long. */
#define CT_WARN_INTERVAL_NS (60 * CT_NSEC_PER_SEC)

struct ct_user {
        struct ct_user *next;
        uid_t uid;
        uint32_t waiting;
        uint32_t enrolled;
        uint64_t bytes;
        uint64_t joins_paid_ns; /* joins are paid for until then, CT_JOIN_INTERVAL_NS each */
        uint64_t warned_ns;     /* 0: never */
};

struct ct_limits {
        uint32_t per_user;
        uint32_t per_user_connections;
        uint32_t users;
        struct ct_user *buckets[CT_USER_BUCKETS];
};

void ct_limits_init(struct ct_limits *limits, uint32_t per_user, uint32_t per_user_connections);

/* Frees all users; nobody may have anything any more. */
void ct_limits_done(struct ct_limits *limits);

/* The user, known or new; NULL if there is no memory or there are too many. Hold it by a count. */
struct ct_user *ct_limits_user(struct ct_limits *limits, uid_t uid, uint64_t now_ns);

/* Whether one more is within the limits; the caller counts it. */
bool ct_user_may_connect(const struct ct_limits *limits, const struct ct_user *user);
bool ct_user_may_enrol(const struct ct_limits *limits, const struct ct_user *user);
bool ct_user_may_have(const struct ct_limits *limits, const struct ct_user *user, uint64_t bytes);

/* Whether it may join now, and if so takes that from what it may. */
bool ct_user_join(const struct ct_limits *limits, struct ct_user *user, uint64_t now_ns);

/* Whether it is time to say that the user has hit a limit. */
bool ct_user_warn(struct ct_user *user, uint64_t now_ns);

#endif /* CT_USERS_H */
