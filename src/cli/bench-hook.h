/* SPDX-License-Identifier: MIT */
#ifndef CT_BENCH_HOOK_H
#define CT_BENCH_HOOK_H
/*
 * The rows of `cputime bench pipe` that hook the kernel's switch: what is attached for one of them,
 * and only while its program runs, since it costs every switch of the machine.
 *
 * At most one hook is attached at a time. It is attached and detached hundreds of times, so what
 * takes long (loading) is done the first time and kept until bench_hook_done(). A process that dies
 * leaves nothing attached. Not thread-safe.
 */
enum bench_hook {
        BENCH_HOOK_NONE,
        BENCH_HOOK_EMPTY,       /* an empty program: the floor of any hook */
        BENCH_HOOK_PAGE_OTHERS, /* the page's, with a process enrolled that is not the row's */
        BENCH_HOOK_PAGE,        /* the page's, for the row's program, which asks for its page */
};

/*
 * Attaches KIND for the program that the caller starts next. It may change the caller's environment
 * to tell the program where to ask. Returns 0, or -errno and in *ret_why a static string: what it
 * means and what the user can do. Each success is to be undone by bench_hook_detach().
 */
int bench_hook_attach(enum bench_hook kind, const char **ret_why);
void bench_hook_detach(enum bench_hook kind);

/* Unloads what is loaded. */
void bench_hook_done(void);

#endif /* CT_BENCH_HOOK_H */
