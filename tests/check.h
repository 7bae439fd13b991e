/* SPDX-License-Identifier: MIT */
#ifndef CT_CHECK_H
#define CT_CHECK_H
/*
 * What every C test uses. A test is a program: exit status 0 passed, 1 failed, 77 skipped; it says
 * on stderr what it expected and what it saw. CHECK() stays in force under NDEBUG.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK_EXIT_SKIP 77

#define CHECK(condition, ...)                                                           \
        do {                                                                            \
                if (!(condition)) {                                                     \
                        fprintf(stderr, "%s:%d: %s is false: ", __FILE__, __LINE__,     \
                                #condition);                                            \
                        fprintf(stderr, __VA_ARGS__);                                   \
                        fputc('\n', stderr);                                            \
                        exit(1);                                                        \
                }                                                                       \
        } while (0)

/* The skip names what is missing; tests/expected-skips lists the skips that may happen. */
#define SKIP(...)                                                                       \
        do {                                                                            \
                fputs("skipped: ", stderr);                                             \
                fprintf(stderr, __VA_ARGS__);                                           \
                fputc('\n', stderr);                                                    \
                exit(CHECK_EXIT_SKIP);                                                  \
        } while (0)

/* xorshift64*: good enough to shuffle events, and the same stream everywhere for one seed. */
static inline uint64_t check_random(uint64_t *state) {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        return *state * UINT64_C(2685821657736338717);
}

/* The seed in argv[1], to repeat a failure, or one of today's. Printed, never 0. */
static inline uint64_t check_seed(int argc, char *argv[]) {
        struct timespec ts;
        uint64_t seed;

        clock_gettime(CLOCK_REALTIME, &ts);
        seed = argc > 1 ? strtoull(argv[1], NULL, 0)
                        : (uint64_t)ts.tv_sec * 1000000007 + (uint64_t)ts.tv_nsec;
        seed |= 1;
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        return seed;
}

#endif /* CT_CHECK_H */
