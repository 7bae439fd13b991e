/* SPDX-License-Identifier: MIT */
#ifndef CT_LIAR_CLOCK_H
#define CT_LIAR_CLOCK_H
/*
 * The public clock functions with one thing wrong at a time, to show that cputime verify sees it.
 * They stand in for the library: link this instead of it.
 */
enum liar {
        LIAR_HONEST,            /* nothing wrong: what it sees in the others is their lie */
        LIAR_LAGS,              /* both clocks 2 ms behind */
        LIAR_RUNS_AHEAD,        /* both clocks 2 ms + 0.1 % ahead */
        LIAR_DRIFTS,            /* gains 5 us per context switch */
        LIAR_DRIFTS_SLOWLY,     /* gains 30 ns per context switch: never beyond the error bound */
        LIAR_STEPS_BACK,        /* one thread clock read in 500 is 20 us less than the one before */
        LIAR_UNCOVERED,         /* the process clock is 100 us behind, within the error bound */
        LIAR_ADDS_UP_READS,     /* the process clock counts siblings up to their own last read */
        LIAR_CRASHES,           /* dies of SIGSEGV in the 1,000th read */
};

/* Set before the first read. */
extern enum liar liar;

#endif /* CT_LIAR_CLOCK_H */
