/* SPDX-License-Identifier: MIT */
/*
 * The protocol of the page, for the model checker spin: publishing as page.bpf.c does it, reading as
 * page-read.h does it. tests/page/spin.sh runs it, and variants that must fail.
 *
 * Who is here. Two CPUs publish for two threads of one process: switches, direct ones too, ticks
 * and, with -DENDS, the end of a thread. An observer reads. Observers write nothing, so that one
 * which reads several times has seen all that several can have, one ordered after the other.
 *
 * Time is a counter that all see. It moves where somebody looks at it, by as much as it likes: that
 * is the same as moving at any time, since nobody notices in between. A CPU that a hypervisor has
 * stopped is an interleaving like any other. What the kernel charges is any of: nothing, the time
 * that passed, more than anybody can have been told.
 *
 * Checked, by assertions:
 *
 *      told_t[i], told_p       what readers that are done have been told: no later one is told less
 *      P >= the sum of T       of the T that were read before P was; of a thread that has ended,
 *                              what the kernel has kept of it, see below
 *      writers == 0            with -DSTOP: the publishers get to their end wherever a reader stops
 *
 * What is looked at is one of these, for size; what does not bear on it is left out.
 *
 *      -DTHREAD        T of thread 0 twice; it moves between the CPUs; no cells
 *      -DPROCESS       P twice, and no slots
 *      neither         T of both, then P
 *
 * Each access is a step of its own with -DFINE. Without, a line is read in one step and written in
 * one, between the odd count and the even. No reading is lost by that, if the count works (this is
 * what -DFINE is for): a look that is accepted saw a line that nobody changed meanwhile, so it could
 * as well have been made in an instant. For the same reason a look starts over here as soon as it is
 * known to fail, and does not go on to collect what it is going to throw away.
 *
 * Assumed, about the order of memory: accesses happen in program order.
 *
 *      writer  x86 keeps stores in order. They may be late; the last count is made odd by an exchange,
 *              a full barrier, so none is later than the stamp. Inside the section order does not
 *              matter, and the even count is stored last (elsewhere by a full barrier).
 *      reader  Its loads are acquires, in order. The time comes first, but loads may be served while
 *              the counter is being read: t can be SKEW later than the looks, and has been reached
 *              when the reading is over.
 *
 * Not modelled: joining a process, the stack of free slots, events that are lost, counts that wrap,
 * the CT_LEAD_NS by which start is early (T jumps up then, as it does where the kernel has charged
 * more than was told), how often a look is repeated before the kernel is asked (here: for ever).
 *
 * Not promised: that P covers what was told of a thread that has ended since, to the last
 * microsecond. P follows the kernel there, who drops what it had not charged when it released the
 * thread; P stands still until the rest has made up for it, but T of others goes on. -DSTRICT asks
 * for it, and fails.
 *
 * Broken on purpose, -DBROKEN_x: STAMP taken before the counts are odd; SLOT made odd after the
 * stamp; SEQ not looked at again; TOLD is not what a thread's new publication starts with; HOLD: P
 * is not held where an ended thread has left too much; COVER: cells sum up E, not T; LEAVE: a thread
 * leaves its CPU, and its slot is not told; SKEW, AGE left out of account; BLOCK: writers wait for
 * readers.
 */
#if defined(THREAD)
#define SLOTS
#elif defined(PROCESS)
#define CELLS
#else
#define SLOTS
#define CELLS
#endif

/* Publications, of both CPUs together. */
#ifndef EVENTS
#define EVENTS 2
#endif

/* The end of time, which begins at 1. */
#ifndef HORIZON
#define HORIZON 4
#endif

/* age_ns and CT_SKEW_NS. */
#define AGE 2
#define SKEW 1

#ifdef BROKEN_SKEW
#define TOLD_SKEW 0
#else
#define TOLD_SKEW SKEW
#endif

#define NOBODY 2
#define min(a, b) ((a) < (b) -> (a) : (b))
#define max(a, b) ((a) > (b) -> (a) : (b))
#define since(start, t) ((t) > (start) -> (t) - (start) : 0)

/* A slot or a cell, as readers see it. */
typedef Line {
        byte seq;
        bool free;      /* slot: tid is 0 */
        bool running;
        byte used;
        byte start;
        byte last;
};

/* A thread in task storage, and in the kernel. */
typedef Ref {
        bool running;
        byte used;
        byte start;
        byte last;
        byte e;         /* sum_exec_runtime */
        byte charged;   /* when that was charged */
};

byte now = 1;
byte events = EVENTS;
byte writers = 2;
Ref ref[2];
bool idle[2];           /* on no CPU, and done with the last one */

#ifdef SLOTS
Line slot[2];
#endif
#ifdef CELLS
Line cell[2];
byte debt[2];
#endif

#ifdef ENDS
bool released[2];
byte kernel_kept[2];    /* E when it was released */
byte kernel_sum, ended_kernel, ended;
bool ended_lock;
#define is_released(i) released[i]
#define nobody_left (released[0] && released[1] && cur == NOBODY)
#else
#define is_released(i) false
#define nobody_left false
#endif

/* Ghosts. */
byte told_t[2], told_p;

#ifdef BROKEN_BLOCK
byte readers;
#define may_begin (events > 0 && readers == 0)
#else
#define may_begin (events > 0)
#endif

/* Of no account between steps. */
hidden byte before, e_before, told;
hidden short sum;

inline time_passes() {
        do
        :: now < HORIZON -> now++
        :: break
        od
}

/* ct_open(), ct_open_ordered(): slots first, then the cell. */
inline open_all() {
#if defined(SLOTS) && !defined(BROKEN_SLOT)
        if
        :: out != NOBODY -> slot[out].seq++
        :: out == NOBODY
        fi;
        if
        :: in != NOBODY -> slot[in].seq++
        :: in == NOBODY
        fi;
#endif
#ifdef CELLS
        cell[k].seq++
#else
        skip
#endif
}

/* The stamp, and what the kernel has charged the thread on this CPU until then. */
inline take_stamp() {
        time_passes();
        if
        :: cur == NOBODY
        :: cur != NOBODY -> charge = 0
#ifdef THREAD
        :: cur != NOBODY && now > ref[cur].charged -> charge = now - ref[cur].charged
#endif
        :: cur != NOBODY -> charge = now - ref[cur].charged + SKEW + 1
        fi;
        stamp = now
}

/* ct_settle() */
inline settle(i, runs) {
        before = ref[i].used;
#ifndef BROKEN_TOLD
        if
        :: ref[i].running ->
                ref[i].used = before + since(ref[i].start, min(stamp + TOLD_SKEW, ref[i].last + AGE))
        :: else
        fi;
#endif
        ref[i].used = max(ref[i].used, ref[i].e);
        ref[i].start = (runs -> stamp + ref[i].used - ref[i].e : 0);
        ref[i].last = stamp;
        ref[i].running = runs;
        ref[i].charged = stamp;
#ifdef BROKEN_COVER
        sum = sum + (i == cur -> ref[i].e - e_before : 0)
#else
        sum = sum + ref[i].used - before
#endif
}

/* Of ct_change() what comes between the stamp and the cell: it touches what is the CPU's own. */
inline account() {
        d_step {
                sum = 0;
                if
                :: cur != NOBODY -> e_before = ref[cur].e; ref[cur].e = e_before + charge
                :: else
                fi;
                if
                :: out != NOBODY -> settle(out, false)
                :: else
                fi;
                if
                :: in != NOBODY -> settle(in, true)
                :: else
                fi;
#ifdef CELLS
                told = cell[k].used;
                if
                :: cell[k].running ->
                        told = told + since(cell[k].start, min(stamp + TOLD_SKEW, cell[k].last + AGE))
                :: else
                fi;
                sum = sum + cell[k].used - debt[k];
                debt[k] = 0;
#ifndef BROKEN_HOLD
                if
                :: told > sum -> debt[k] = told - sum; sum = told
                :: else
                fi;
#endif
                used = sum;
                start = (in != NOBODY -> ref[in % 2].start + debt[k] : 0);
#endif
                charge = 0; before = 0; e_before = 0; told = 0; sum = 0
        }
}

/* Fills a line that is open and closes it. */
#define STORES(line, uses, starts, runs) \
        line.used = uses; line.start = starts; line.last = stamp; line.running = runs; line.seq++
#ifdef FINE
#define STORE(line, uses, starts, runs) STORES(line, uses, starts, runs)
#else
#define STORE(line, uses, starts, runs) d_step { STORES(line, uses, starts, runs) }
#endif

inline write_cell() {
#ifdef CELLS
        STORE(cell[k], used, start, in != NOBODY)
#else
        skip
#endif
}

inline write_slots() {
#ifdef SLOTS
        if
        :: out == NOBODY
        :: out != NOBODY ->
#ifdef BROKEN_SLOT
                slot[out].seq++;
#endif
                if
                :: is_released(out) ->
                        d_step {
                                slot[out].free = true;
                                slot[out].running = false;
                                slot[out].used = 0;
                                slot[out].seq++
                        }
                :: else ->
#ifdef BROKEN_LEAVE
                        slot[out].seq++
#else
                        STORE(slot[out], ref[out].used, ref[out].start, false)
#endif
                fi
        fi;
        if
        :: in == NOBODY
        :: in != NOBODY ->
#ifdef BROKEN_SLOT
                slot[in].seq++;
#endif
                STORE(slot[in], ref[in].used, ref[in].start, true)
        fi
#else
        skip
#endif
}

/* ct_end() */
inline end_thread() {
#ifdef ENDS
        if
        :: out != NOBODY && is_released(out) ->
                ended = ended + ref[out].used;
                if
                :: atomic { !ended_lock -> ended_lock = true };
                        used = ended;
                        d_step {
                                sum = kernel_sum - ended_kernel;
                                if
                                :: sum <= used ->
                                        debt[k] = debt[k] + used - sum;
                                        ended_kernel = ended_kernel + sum
                                :: else -> used = 0
                                fi;
                                sum = 0
                        };
                        ended = ended - used;
                        ended_lock = false
                :: else
                fi
        :: else
        fi
#else
        skip
#endif
}

inline begin(leaves, comes) {
        events--;
        out = leaves;
        in = comes;
        if
        :: in != cur && in != NOBODY -> idle[in % 2] = false
        :: else
        fi;
#ifdef BROKEN_STAMP
        take_stamp();
#endif
#ifndef FINE
        open_all()
#endif
}

proctype cpu(byte k; byte cur) {
        byte out = NOBODY, in = NOBODY, stamp, charge, used, start;

        do
        /* A tick, a switch to nobody, to the other thread, from nobody. */
        :: atomic { may_begin && cur != NOBODY -> begin(NOBODY, cur) }; goto publish
        :: atomic { may_begin && cur != NOBODY -> begin(cur, NOBODY) }; goto publish
#ifndef THREAD
        :: atomic { may_begin && cur != NOBODY && idle[1 - cur] -> begin(cur, 1 - cur) }; goto publish
        :: atomic { may_begin && cur == NOBODY && idle[1] -> begin(NOBODY, 1) }; goto publish
#endif
        :: atomic { may_begin && cur == NOBODY && idle[0] -> begin(NOBODY, 0) }; goto publish
#ifdef ENDS
        /* The kernel releases the thread, charged until now or not; its last switch is still to come. */
        :: atomic { events > 0 && cur != NOBODY && !is_released(cur) ->
                        time_passes();
                        if
                        :: true
                        :: now > ref[cur].charged ->
                                ref[cur].e = ref[cur].e + now - ref[cur].charged;
                                ref[cur].charged = now
                        fi;
                        released[cur] = true;
                        kernel_kept[cur % 2] = ref[cur].e;
                        kernel_sum = kernel_sum + ref[cur].e
                }
#endif
        :: events == 0 || nobody_left -> goto done;

        /* ct_change() */
publish:
#ifdef FINE
                open_all();
#endif
                atomic {
#ifndef BROKEN_STAMP
                        take_stamp();
#endif
                        account()
                }
                write_cell();
                end_thread();
                write_slots();
                d_step {
                        if
                        :: out != NOBODY && !is_released(out) -> idle[out] = true
                        :: else
                        fi;
                        cur = in;
                        out = NOBODY; in = NOBODY; stamp = 0; used = 0; start = 0
                }
        od;
done:
        writers--
}

/* ct_vdso_monotonic_ns() */
inline take_time() {
        atomic {
                time_passes();
                if
                :: t = now
                :: now + SKEW <= HORIZON -> t = now + SKEW
                fi
        }
}

#ifdef BROKEN_AGE
#define too_old false
#else
#define too_old (running && t > last + AGE)
#endif

#ifdef BROKEN_SEQ
#define same(line) true
#else
#define same(line) (line.seq == seq)
#endif

inline forget() { seq = 0; running = false; used = 0; start = 0; last = 0 }

/* What was looked at is good. Too old: the observer goes and asks the kernel. */
inline accept() {
        if
        :: too_old -> goto done
        :: else
        fi;
        ns = ns + used + (running -> since(start, t) : 0);
        forget()
}

/* Adds to `ns` what a line says. */
inline look(line) {
        do
#ifdef FINE
        :: atomic { line.seq % 2 == 0 -> seq = line.seq };
                if
                :: atomic { same(line) -> running = line.running };
                        if
                        :: atomic { same(line) -> used = line.used };
                                if
                                :: atomic { same(line) -> start = line.start };
                                        if
                                        :: atomic { same(line) -> last = line.last };
                                                if
                                                :: atomic { same(line) -> accept(); break }
                                                :: atomic { !same(line) -> forget() }
                                                fi
                                        :: atomic { !same(line) -> forget() }
                                        fi
                                :: atomic { !same(line) -> forget() }
                                fi
                        :: atomic { !same(line) -> forget() }
                        fi
                :: atomic { !same(line) -> forget() }
                fi
#else
        :: atomic { line.seq % 2 == 0 ->
                        running = line.running;
                        used = line.used;
                        start = line.start;
                        last = line.last;
                        accept();
                        break
                }
#endif
        od
}

/* ct_page_thread(); and whose slot it was, as ct_thread_page_of() asks. */
inline read_thread(i) {
#ifdef SLOTS
        take_time();
        look(slot[i]);
        atomic {
                now = max(now, t);
                if
                :: slot[i].free -> goto done
                :: else
                fi;
                /* thread_clock_never_goes_backwards */
                assert(ns >= told_t[i]);
                told_t[i] = ns;
                ns = 0; t = 0
        }
#endif
}

#if defined(ENDS) && !defined(STRICT)
#define covered(i) (released[i] -> min(kernel_kept[i], told_t[i]) : told_t[i])
#else
#define covered(i) told_t[i]
#endif

/* ct_page_group() */
inline read_process() {
#ifdef CELLS
        take_time();
        look(cell[0]);
        look(cell[1]);
        atomic {
                now = max(now, t);
                /* process_clock_never_goes_backwards */
                assert(ns >= told_p);
                /* process_clock_covers_its_threads */
                assert(ns >= covered(0) + covered(1));
                told_p = ns;
                ns = 0; t = 0
        }
#endif
}

#ifdef STOP
bool stopped;

proctype stop() { stopped = true }

proctype observer() provided (!stopped) {
#else
proctype observer() {
#endif
        byte seq, used, start, last, t, ns;
        bool running;

#ifdef BROKEN_BLOCK
        readers++;
#endif
#if defined(THREAD)
        read_thread(0);
        read_thread(0);
#elif defined(PROCESS)
        read_process();
        read_process();
#else
        if
        :: read_thread(0); read_thread(1)
        :: read_thread(1); read_thread(0)
        fi;
        read_process();
#endif
        /* Nothing more is going to be checked: let it all look the same. */
done:
        atomic {
#ifdef BROKEN_BLOCK
                readers--;
#endif
                forget();
                t = 0; ns = 0;
                told_t[0] = 0; told_t[1] = 0; told_p = 0;
                events = 0
        }
}

inline runs_already(line) { line.running = true; line.start = 1; line.last = 1 }

/* Thread 0 runs on CPU 0, and thread 1 on CPU 1 or (-DONE) not yet. */
init {
        d_step {
                runs_already(ref[0]);
                ref[0].charged = 1;
#ifdef SLOTS
                runs_already(slot[0]);
#endif
#ifdef CELLS
                runs_already(cell[0]);
#endif
#ifdef ONE
                idle[1] = true;
#elif !defined(THREAD)
                runs_already(ref[1]);
                ref[1].charged = 1;
#ifdef SLOTS
                runs_already(slot[1]);
#endif
#ifdef CELLS
                runs_already(cell[1]);
#endif
#endif
        }
        atomic {
                run cpu(0, 0);
#if defined(ONE) || defined(THREAD)
                run cpu(1, NOBODY);
#else
                run cpu(1, 1);
#endif
#ifdef STOP
                run stop();
#endif
                run observer()
        }
        /* reading_changes_nothing: nobody can go on any more */
        timeout;
        assert(writers == 0)
}
