#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cputime bench: what it prints and writes, what it refuses, and what it does when cut short.

Usage: test-bench.py CPUTIME WARP.so

The figures themselves are not judged here: nothing depends on how fast this machine is.
"""
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

CPUTIME, WARP = (os.path.abspath(p) for p in sys.argv[1:3])
BENCH = os.path.join(os.path.dirname(CPUTIME), "bench")
NAMES = ["pound_clock_gettime", "pound_times", "thread_read", "process_read"]
PLACES = ["pinned", "unpinned"]
ACCOUNTINGS = ["nothing", "ring", "header", "empty", "page-others", "page"]
NOBODY = 65534


def run(*args, program=CPUTIME, preexec_fn=None, user=None, **env):
    return subprocess.run([program, *args], env=dict(os.environ, **env), text=True, user=user,
                          extra_groups=[] if user else None, capture_output=True, timeout=120,
                          preexec_fn=preexec_fn)


def check(what, holds, *evidence):
    if not holds:
        sys.exit("not so: %s\n%s" % (what, "\n".join(str(e) for e in evidence)))


def check_results(path, benches, nr_samples, unit="ns/call"):
    """The file is DESIGN's schema to the letter; nr_samples None: any number but none."""
    with open(path) as f:
        root = json.load(f)
    check("the file has schema, machine, results", set(root) == {"schema", "machine", "results"},
          root)
    check("the schema", root["schema"] == "cputime-bench/1", root["schema"])
    check("the machine is recorded", isinstance(root["machine"], dict) and root["machine"], root)
    for r in root["results"]:
        check("a result's fields", set(r) == {"bench", "backend", "threads", "unit", "samples",
                                              "median", "lo", "hi", "errors"}, r)
        check("bench, unit, errors",
              r["bench"] in benches and (r["unit"], r["errors"]) == (unit, 0), r)
        check("samples", len(r["samples"]) == nr_samples if nr_samples else r["samples"], r)
        ordered = sorted(r["samples"])
        n = len(ordered)
        median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        check("the median is that of the samples", abs(r["median"] - median) < 1e-6 * median, r)
        check("lo and hi are samples around it",
              r["lo"] in ordered and r["hi"] in ordered and r["lo"] <= r["median"] <= r["hi"], r)
    return root["results"]


def bench_measures_all_its_columns(tmp):
    out = os.path.join(tmp, "out.json")
    for name in NAMES:
        p = run("bench", name, "--threads", "1,3", "--repeat", "2", "--calls", "3000",
                "--backend", "kernel,auto,syscall", "--json", out)
        check("%s runs" % name, p.returncode == 0 and p.stderr == "", p.stdout, p.stderr)
        results = check_results(out, [name], 2)
        columns = ["kernel", "kernel (again)", "auto", "syscall", "vdso floor", "empty loop"]
        check("every row and column is there",
              [(r["threads"], r["backend"]) for r in results] ==
              [(n, c) for n in (1, 3) for c in columns], results)
        for n in (1, 3):
            for c in columns:
                check("the table has %d, %s" % (n, c),
                      re.search(r"^ *%d  %s +\d+\.\d +\d" % (n, re.escape(c)), p.stdout, re.M),
                      p.stdout)
        check("all samples were taken", "Ended early" not in p.stdout, p.stdout)
        check("the gain is told", "times as fast" in p.stdout, p.stdout)
        check("two samples are not called 95 %", "Fewer than 6 samples" in p.stdout, p.stdout)
    check("no other file is left behind", os.listdir(tmp) == ["out.json"], os.listdir(tmp))

    # "-" sends the table away from the JSON.
    p = run("bench", "thread_read", "--threads", "1", "--repeat", "6", "--calls", "1000",
            "--backend", "kernel", "--json", "-")
    check("stdout is JSON alone", len(json.loads(p.stdout)["results"]) == 4, p.stdout)
    check("six samples need no warning",
          "95 % interval" in p.stderr and "Fewer" not in p.stderr, p.stderr)
    os.unlink(out)


def bench_refuses_what_it_cannot_do(tmp):
    out = os.path.join(tmp, "out.json")
    for args, names in [
            ([], "which one"), (["pound"], "pound"), (["pound_times", "x"], "x"),
            (["pound_times", "--threads", "0"], "threads"),
            (["pound_times", "--threads", "4097"], "4097"),
            (["pound_times", "--threads", "2,,5"], "threads"),
            (["pound_times", "--threads", "2,5,2"], "twice"),
            (["pound_times", "--threads", "-1"], "-1"),
            (["pound_times", "--threads", "2x"], "2x"),
            (["pound_times", "--threads", ""], "threads"),
            (["pound_times", "--threads", ",".join(map(str, range(1, 70)))], "threads"),
            (["pound_times", "--repeat", "0"], "repeat"),
            (["pound_times", "--repeat", "1001"], "1001"),
            (["pound_times", "--repeat", "99999999999999999999999"], "repeat"),
            (["pound_times", "--calls", "0"], "calls"),
            (["pound_times", "--calls", "127"], "128"),
            (["pound_times", "--backend", "pages"], "pages"),
            (["pound_times", "--backend", "nothing"], "nothing"),
            (["pipe", "--backend", "kernel"], "kernel"),
            (["pipe", "--backend", "ring,nobody's"], "nobody's"),
            (["pipe", "--backend", ""], "backend"),
            (["pipe", "--backend", "ring,nothing,ring"], "twice"),
            (["pipe", "--threads", "2"], "threads"),
            (["pipe", "--calls", "0"], "calls"),
            (["pipe", "--calls", "1000000001"], "1000000001"),
            (["pipe", "--repeat", "1001"], "1001"),
            (["pipe", "pipe"], "one too many"),
            (["pound_times", "--backend", "kernel,kernel"], "twice"),
            (["pound_times", "--backend", "kernel,auto,ring,header,syscall,kernel"], "twice"),
            (["pound_times", "--frequency", "1"], "frequency"),
            (["pound_times", "--json"], "json"),
            (["pound_times", "--json", os.path.join(tmp, "no/such")], "no/such"),
            (["pound_times", "--json", tmp], tmp),
            (["pound_times", "--json", out + "x" * 300], "xxx")]:
        p = run("bench", *args)
        check("%s: exit 2 and one line that names it" % args,
              p.returncode == 2 and p.stdout == "" and p.stderr.count("\n") == 1 and
              p.stderr.startswith("cputime: ") and names in p.stderr, p.returncode, p.stderr)
        check("nothing is left behind", os.listdir(tmp) == [], os.listdir(tmp))


def programs_find_decreasing_readings():
    def errors(program, warp, *args):
        p = run(*args, program=os.path.join(BENCH, program), LD_PRELOAD=WARP, WARP=warp)
        m = re.fullmatch(r"ns_per_call=\d+\.\d+ errors=(\d+) threads=\d+ calls=\d+ "
                         r"elapsed_ns=\d+\n", p.stdout)
        check("%s prints its line" % program, m, p.stdout, p.stderr)
        check("%s's exit status says whether there were errors" % program,
              p.returncode == (int(m[1]) > 0), p.returncode, p.stdout)
        return int(m[1])

    for name in NAMES:
        check("%s: a good clock has no error" % name, errors(name, "none", "3", "50000") == 0)
        check("%s: each step back within a thread is found" % name,
              errors(name, "within", "1", "50000") >= 10)
        check("%s: failed calls are errors" % name, errors(name, "fail", "2", "3000") == 3000)
    for name in ("pound_clock_gettime", "pound_times"):
        check("%s: threads behind each other are found" % name,
              errors(name, "across", "8", "2000000") > 0)
    check("pound_times: user time alone is found",
          errors("pound_times", "user", "1", "50000") >= 10)


def added(table, place, accounting):
    """What the table says is added to nothing: median, lo, hi, in percent; None without a row."""
    m = re.search(r"^ *%s  %s +\d+\.\d +\d.* \d+  ([-+.\d]+) %% \(([-+.\d]+) \.\. ([-+.\d]+)\)" %
                  (place, re.escape(accounting)), table, re.M)
    return tuple(float(x) for x in m.groups()) if m else None


def absent(table):
    return dict(re.findall(r"^([a-z-]+) is left out: (.+)$", table, re.M))


def pipe_measures_what_works(tmp):
    """For this user, and for nobody: every accounting has its rows or a line that says why not."""
    out = os.path.join(tmp, "out.json")
    program = os.path.join(tmp, "cputime")
    os.makedirs(os.path.join(tmp, "bench"))
    shutil.copy(CPUTIME, tmp)
    shutil.copy(os.path.join(BENCH, "pipe"), os.path.join(tmp, "bench"))
    os.chmod(tmp, 0o755)
    users = [None, NOBODY] if os.geteuid() == 0 else [None]

    for user in users:
        p = run("bench", "pipe", "--repeat", "2", "--calls", "200", "--json", "-", program=program,
                user=user)
        check("pipe runs", p.returncode == 0, user, p.stdout, p.stderr)
        table, without = p.stderr, absent(p.stderr)
        with open(out, "w") as f:
            f.write(p.stdout)
        results = check_results(out, ["pipe_pinned", "pipe_unpinned"], 2, "ns/switch")
        columns = ["nothing", "nothing (again)"] + [a for a in ACCOUNTINGS[1:] if a not in without]
        check("what is left out is known", set(without) <= set(ACCOUNTINGS[1:]), table)
        check("every other row is in the file",
              [(r["bench"], r["backend"], r["threads"]) for r in results] ==
              [("pipe_" + place, c, 2) for place in PLACES for c in columns], results, table)
        for place in PLACES:
            check("nothing adds nothing to itself", added(table, place, "nothing") is None, table)
            for c in columns[1:]:
                check("the table has %s, %s" % (place, c), added(table, place, c), table)
        if user or os.geteuid() != 0:
            check("who may not hook the switch is told so",
                  re.search("CAP_BPF|No such|not supported", without.get("empty", "")), table)
        p = run("compare", out, out)
        check("compare reads it", p.returncode == 0 and "pipe_unpinned" in p.stdout, p.stderr)

        # Asked for by name it is there, or that is an error.
        for a in ACCOUNTINGS[1:]:
            p = run("bench", "pipe", "--repeat", "1", "--calls", "1", "--backend", a,
                    program=program, user=user)
            if a in without:
                check("%s is refused" % a,
                      p.returncode == 2 and p.stdout == "" and a in p.stderr and
                      p.stderr.count("\n") == 1, p.returncode, p.stderr)
            else:
                check("%s and nothing" % a,
                      p.returncode == 0 and absent(p.stdout) == {} and
                      [b for b in ACCOUNTINGS[1:] if added(p.stdout, "pinned", b)] == [a], p.stdout)
    shutil.rmtree(os.path.join(tmp, "bench"))
    for f in os.listdir(tmp):
        os.unlink(os.path.join(tmp, f))


def pipe_program_is_served_or_fails(tmp):
    pipe = os.path.join(BENCH, "pipe")
    for args in ([], ["pinned"], ["pinned", "0"], ["pinned", "-1"], ["pinned", "1x"],
                 ["pinned", "1000000001"], ["askew", "1"], ["pinned", "1", "syscall"],
                 ["pinned", "1", "ring", "ring"]):
        p = run(*args, program=pipe)
        check("pipe %s: exit 2 and what is expected" % args,
              p.returncode == 2 and p.stdout == "" and "expected" in p.stderr, p.stderr)
    for place in PLACES:
        p = run(place, "300", program=pipe)
        check("pipe prints its line", p.returncode == 0 and
              re.fullmatch(r"ns_per_call=\d+\.\d+ errors=0 threads=2 calls=600 elapsed_ns=\d+\n",
                           p.stdout), p.stdout, p.stderr)

    # Seven descriptors are those of the pipes and the standard ones: an event needs another.
    def seven():
        resource.setrlimit(resource.RLIMIT_NOFILE, (7, 7))

    for mode in ("ring", "header"):
        p = run("pinned", "10", mode, program=pipe, preexec_fn=seven)
        check("%s that does not serve gives no figure" % mode,
              p.returncode == 2 and p.stdout == "" and p.stderr.count("\n") == 1 and
              "%s does not serve" % mode in p.stderr, p.returncode, p.stdout, p.stderr)
    p = run("pinned", "10", "page", program=pipe, CPUTIME_SOCKET=os.path.join(tmp, "none"))
    check("nor does a page without a server",
          p.returncode == 2 and p.stdout == "" and "page does not serve" in p.stderr, p.stderr)


def pipe_compares_round_by_round(tmp):
    """A stand-in for the pipe, of which each round takes longer than the one before."""
    os.mkdir(os.path.join(tmp, "bench"))
    program, fake = os.path.join(tmp, "cputime"), os.path.join(tmp, "bench", "pipe")
    log, cost = os.path.join(tmp, "log"), os.path.join(tmp, "cost")
    shutil.copy(CPUTIME, program)

    # A hook that is attached is a descriptor of the program that started this one.
    with open(fake, "w") as f:
        f.write("""#!/bin/sh
grep -qs ^link_type /proc/$PPID/fdinfo/* && hook=hook || hook=none
echo $1 $2 $3 $hook >>%s
. %s
case $3 in ring) cost=$((cost * 3 / 2)) ;; header) cost=$((cost * 5 / 4)) ;; esac
[ $hook = none ] || cost=$((cost * 11 / 10))
echo ns_per_call=$cost errors=0 threads=2 calls=20 elapsed_ns=1
""" % (log, cost))
    os.chmod(fake, 0o755)

    def bench(script, *args):
        with open(cost, "w") as f:
            f.write(script)
        if os.path.exists(log):
            os.unlink(log)
        return run("bench", "pipe", "--calls", "10", *args, program=program)

    p = bench("cost=1000\n", "--repeat", "1")
    without = absent(p.stdout)
    columns = [a for a in ACCOUNTINGS if a not in without]
    nr_cells = 2 * (len(columns) + 1)
    expected = {"ring": 50.0, "header": 25.0, "empty": 10.0, "page-others": 10.0, "page": 10.0}

    p = bench("round=$((($(wc -l <%s) - 1) / %d)); cost=$((round * 1000 + 1000))\n" % (log, nr_cells),
              "--repeat", "6")
    check("the stand-in is taken", p.returncode == 0, p.stdout, p.stderr)
    for place in PLACES:
        check("A/A agrees, round by round",
              added(p.stdout, place, "nothing (again)") == (0.0, 0.0, 0.0), p.stdout)
        for a in columns[1:]:
            check("%s, %s adds what it does in each round" % (place, a),
                  added(p.stdout, place, a) == (expected[a],) * 3, p.stdout)
    check("no warning of A/A", "A/A" not in p.stdout, p.stdout)

    with open(log) as f:
        lines = f.read().splitlines()
    modes = [("nothing", "none")] + [
        (a if a in ("ring", "header", "page", "nothing") else "nothing",
         "hook" if a in ("empty", "page-others", "page") else "none") for a in columns]
    check("each accounting as it should be, hooked or not, in each round",
          sorted(lines) == sorted(7 * ["%s 10 %s %s" % (place, *m) for place in PLACES
                                       for m in modes]), p.stdout, *lines)

    p = bench("cost=$((1000 + $(wc -l <%s)))\n" % log, "--repeat", "1", "--backend", "nothing")
    check("A/A differs, and the table says so", "A/A differs: pinned" in p.stdout, p.stdout)
    p = bench("case $3 in ring) echo why >&2; exit 2; esac; cost=7\n", "--repeat", "2",
              "--backend", "ring")
    check("an accounting that is not served ends the measuring", p.returncode == 1 and
          "why" in p.stderr and "exited with 2" in p.stderr and "ring" in p.stderr, p.stderr)

    shutil.rmtree(os.path.join(tmp, "bench"))
    for f in os.listdir(tmp):
        os.unlink(os.path.join(tmp, f))


def bench_says_what_its_programs_did(tmp):
    """A stand-in for the workload programs, beside a copy of the program."""
    os.mkdir(os.path.join(tmp, "bench"))
    program, fake = os.path.join(tmp, "cputime"), os.path.join(tmp, "bench", "pound_times")
    out = os.path.join(tmp, "out.json")
    shutil.copy(CPUTIME, program)

    def bench(script, repeat="6"):
        with open(fake, "w") as f:
            f.write("#!/bin/sh\n" + script)
        os.chmod(fake, 0o755)
        return run("bench", "pound_times", "--threads", "2", "--backend", "kernel", "--repeat",
                   repeat, "--calls", "100", "--json", out, program=program)

    line = "echo ns_per_call=%s errors=%s threads=2 calls=100 elapsed_ns=1\n"
    p = bench(line % ("7.5", "0"))
    check("the stand-in is taken", p.returncode == 0 and " 7.5 " in p.stdout, p.stdout, p.stderr)

    p = bench(line % ("7.5", "3") + "exit 1\n", "1")
    check("decreasing readings: exit 1, and said",
          p.returncode == 1 and "3 readings" not in p.stdout and "6 readings" in p.stdout and
          "readings decreased" in p.stderr, p.returncode, p.stdout, p.stderr)
    with open(out) as f:
        check("the errors are in the file, those of the warm-up too",
              all(r["errors"] == 6 for r in json.load(f)["results"]))

    # What tells the backends apart is the drop-in, and nothing of the caller's gets through.
    shutil.copy(os.path.join(os.path.dirname(CPUTIME), "libcputime-preload.so"), tmp)
    log = os.path.join(tmp, "log")
    with open(fake, "w") as f:
        f.write("#!/bin/sh\necho $3 ${LD_PRELOAD-none} ${CPUTIME_BACKEND-none} >>%s\n%s" %
                (log, line % ("7.5", "0")))
    p = run("bench", "pound_times", "--threads", "2", "--backend", "kernel,auto,syscall",
            "--repeat", "1", "--calls", "100", program=program, LD_PRELOAD=WARP, WARP="none",
            CPUTIME_BACKEND="header")
    check("it runs", p.returncode == 0, p.stderr)
    drop_in = os.path.join(tmp, "libcputime-preload.so")
    with open(log) as f:
        check("each backend in its own environment, twice for the warm-up",
              sorted(f.read().splitlines()) == sorted(2 * (
                  2 * ["cpu none none"] + ["cpu %s auto" % drop_in, "cpu %s syscall" % drop_in,
                                           "monotonic none none", "empty none none"])))

    # No two runs take the same, and one sample is an interval of no width: A/A must differ.
    check("A/A agrees", "A/A" not in bench(line % ("7.5", "0"), "1").stdout)
    count = os.path.join(tmp, "count")
    p = bench("echo x >>%s\necho ns_per_call=$(wc -l <%s) errors=0 threads=2 calls=100 "
              "elapsed_ns=1\n" % (count, count), "1")
    check("A/A differs, and the table says so", "A/A differs" in p.stdout, p.stdout, p.stderr)

    os.unlink(out)
    for script, says in [("exit 3\n", "exited with 3"), ("kill -SEGV $$\n", "signal 11"),
                         ("echo ns_per_call=x\n", "no figures"), ("", "no figures"),
                         (line % ("-1", "0"), "no figures"), ("yes | head -c 9999\n", "no figures"),
                         (line % ("7.5", "0") + "exit 2\n", "exited with 2")]:
        p = bench(script)
        check("%r: exit 1 and says so" % script, p.returncode == 1 and says in p.stderr,
              p.returncode, p.stderr)
        check("no file without results", not os.path.exists(out))

    shutil.rmtree(os.path.join(tmp, "bench"))
    for f in os.listdir(tmp):
        os.unlink(os.path.join(tmp, f))


def bench_keeps_what_it_has_measured(tmp):
    out = os.path.join(tmp, "out.json")

    def interrupt(calls, at_sample):
        """SIGINT once the progress line, on a terminal, has come to that sample."""
        master, slave = pty.openpty()
        p = subprocess.Popen([CPUTIME, "bench", "thread_read", "--threads", "1", "--backend",
                              "kernel", "--repeat", "1000", "--calls", calls, "--json", out],
                             text=True, stdout=subprocess.PIPE, stderr=slave,
                             start_new_session=True)
        os.close(slave)
        seen, sent = "", False
        while True:
            try:
                got = os.read(master, 4096)
            except OSError:
                break           # nobody has the terminal open any more, the workload included
            if not got:
                break
            seen += got.decode()
            reached = max([int(n) for n in re.findall(r"sample (\d+) of 4004", seen)], default=0)
            if not sent and reached >= at_sample:
                sent = True
                p.send_signal(signal.SIGINT)
        os.close(master)
        return p.stdout.read(), seen, p.wait()

    table, seen, status = interrupt("20000", 14)
    check("an interrupt: exit 130", status == 130, status, seen)
    results = check_results(out, ["thread_read"], None)
    nr = sum(len(r["samples"]) for r in results)
    check("the samples that were finished are kept", 9 <= nr < 4000, nr)
    check("and the table is printed, with how many there are",
          "interval" in table and "Ended early, with %d of 4000 samples" % nr in table, table)
    os.unlink(out)

    table, seen, status = interrupt("1000000000", 1)
    check("an interrupt in the first sample: exit 130, no table, no file, said",
          status == 130 and table == "" and not os.path.exists(out) and "no results" in seen,
          status, table, seen)


with tempfile.TemporaryDirectory() as tmp:
    bench_measures_all_its_columns(tmp)
    bench_refuses_what_it_cannot_do(tmp)
    programs_find_decreasing_readings()
    pipe_measures_what_works(tmp)
    pipe_program_is_served_or_fails(tmp)
    pipe_compares_round_by_round(tmp)
    bench_says_what_its_programs_did(tmp)
    bench_keeps_what_it_has_measured(tmp)
