#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cputime verify: what it prints and writes, what it refuses, what it does when cut short, and that
every backend of this machine passes.

Usage: test-verify.py CPUTIME

With a page server in CPUTIME_SOCKET the page is among them.
That it fails a wrong clock is test-verify-liar's part.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

CPUTIME = os.path.abspath(sys.argv[1])
PHASES = ["idle", "busy", "ping_pong", "overcommitted", "threads"]


def run(*args):
    return subprocess.run([CPUTIME, "verify", *args], text=True, capture_output=True, timeout=300)


def check(what, holds, *evidence):
    if not holds:
        sys.exit("not so: %s\n%s" % (what, "\n".join(str(e) for e in evidence)))


def keys(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def check_report(report, backend, verdict):
    """The schema, and that its figures agree with each other."""
    check("schema", report["schema"] == "cputime-verify/1", report)
    check("backend and verdict", (report["backend"], report["verdict"]) == (backend, verdict),
          report["backend"], report["verdict"], [p["failures"] for p in report["phases"]])
    check("the machine is recorded", report["machine"], report)
    check("snake_case keys", all(re.fullmatch("[a-z][a-z0-9_]*", k) for k in keys(report)))
    for phase in report["phases"]:
        name = phase["phase"]
        check("clocks", [c["clock"] for c in phase["clocks"]] == ["thread", "process"], name)
        for clock in phase["clocks"]:
            n, error = clock["samples"], clock["absolute_error_ns"]
            check("the histogram holds all samples",
                  n == sum(b["behind_samples"] + b["ahead_samples"] for b in clock["histogram"]),
                  name, clock)
            check("quantiles rise", error["p50"] <= error["p90"] <= error["p99"] <= error["p99_9"]
                  <= error["max"], name, error)
            check("the greatest error is ahead or behind",
                  error["max"] == max(clock["ahead_ns"]["max"], clock["behind_ns"]["max"]), clock)
            check("outliers are listed", clock["samples_beyond_bound"] ==
                  len(clock["outliers"]) or len(clock["outliers"]) == 1000, clock)
            check("outliers are beyond the bound",
                  all(abs(o["error_ns"]) > o["bound_ns"] for o in clock["outliers"]), clock)
    return report


def refuses():
    for args, word in [(["--backend", "tea"], "tea"), (["--backend", ""], "backend"),
                       (["--seconds", "4"], "seconds"), (["--seconds", "3601"], "seconds"),
                       (["--seconds", "5x"], "5x"), (["--seconds", "-5"], "seconds"),
                       (["--seconds"], "seconds"), (["--nonsense"], "nonsense"),
                       (["extra"], "extra"), (["--json", "/nonexistent/v.json"], "/nonexistent")]:
        r = run(*args)
        check("refused with 2 and one line that names it: %s" % args,
              r.returncode == 2 and r.stdout == "" and r.stderr.count("\n") == 1 and
              r.stderr.startswith("cputime: ") and word in r.stderr, r)
    r = run("--help")
    check("--help", r.returncode == 0 and "--seconds" in r.stdout and r.stderr == "", r)


def passes(backend, directory):
    path = os.path.join(directory, backend + ".json")
    r = run("--backend", backend, "--seconds", "5", "--json", path)
    if r.returncode == 2 and backend in ("ring", "header", "page"):
        check("a page is to be had", backend != "page" or not os.environ.get("CPUTIME_SOCKET"), r)
        check("an unusable backend is refused with its reason, and nothing is written",
              re.fullmatch("cputime: backend %s cannot be verified here: .+: .+\n" % backend,
                           r.stderr) and r.stdout == "" and not os.path.exists(path), r)
        print(r.stderr, end="")
        return
    check("%s passes" % backend, r.returncode == 0, r.stdout, r.stderr)
    check("no colours and no progress but on a terminal", "\033" not in r.stdout and r.stderr == "",
          r)
    check("the table has each phase, the last line the verdict",
          all(p in r.stdout for p in PHASES) and r.stdout.splitlines()[-1].startswith("pass: "), r)
    with open(path) as f:
        report = check_report(json.load(f), backend, "pass")
    check("all phases ran", [p["phase"] for p in report["phases"]] == PHASES, report)
    for phase in report["phases"]:
        check("each phase passed", phase["pass"] and not phase["failures"], phase)
        reads = phase["library"]["reads"]
        # HEADER leaves the process clock to the kernel, AUTO what does not pay.
        check("%s served" % backend, sum(reads.values()) > 0 if backend == "auto"
              else reads[backend] > 0, phase["phase"], reads)
        # Nothing is measured before it does.
        check("the page served", backend != "page" or reads["page"] > reads["syscall"],
              phase["phase"], reads)


def keeps_what_it_has(number):
    p = subprocess.Popen([CPUTIME, "verify", "--backend", "syscall", "--seconds", "60", "--json",
                          "-"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # The heading is out before the first phase begins; to be inside a phase is not needed.
    head = p.stderr.readline()
    check("a heading on stderr when the JSON has stdout", head.startswith("cputime verify"), head)
    p.send_signal(number)
    out, err = p.communicate(timeout=60)
    check("130 after an interrupt", p.returncode == 130, p.returncode, err)
    check("says that there is no verdict", "interrupted: no verdict" in err, err)
    report = check_report(json.loads(out), "syscall", "interrupted")
    check("phases left out, or marked", all(p["interrupted"] for p in report["phases"]), report)


refuses()
keeps_what_it_has(signal.SIGINT)
keeps_what_it_has(signal.SIGTERM)
with tempfile.TemporaryDirectory() as scratch:
    for name in ["syscall", "auto", "ring", "header", "page"]:
        passes(name, scratch)
