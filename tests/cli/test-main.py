#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cputime itself: finding verbs, help and version.

Usage: test-main.py CPUTIME VERSION
"""
import re
import subprocess
import sys

CPUTIME, VERSION = sys.argv[1:3]
VERBS = ["bench", "compare", "doctor", "run", "verify"]


def cputime(*args):
    return subprocess.run([CPUTIME, *args], text=True, capture_output=True, timeout=60)


def check(what, holds, *evidence):
    if not holds:
        sys.exit("not so: %s\n%s" % (what, "\n".join(str(e) for e in evidence)))


def check_refused(what, p, *words):
    check("%s: exit status 2, one line" % what, (p.returncode, p.stdout, p.stderr.count("\n")) ==
          (2, "", 1) and p.stderr.startswith("cputime: "), p)
    for word in words:
        check("%s: the line says %r" % (what, word), word in p.stderr, p)


p = cputime("--help")
check("--help", (p.returncode, p.stderr) == (0, ""), p)
check("other ways to ask", cputime("-h").stdout == p.stdout == cputime("help").stdout)
check("it lists every verb, once", sorted(re.findall(r"^  ([a-z]+)  +\S", p.stdout, re.M)) == VERBS,
      p.stdout)
check("it teaches by examples", all("\n  cputime %s" % v in p.stdout for v in ["doctor", "run"]),
      p.stdout)

for verb in VERBS:
    p = cputime("help", verb)
    check("help " + verb, p.returncode == 0 and p.stderr == "" and "Usage:" in p.stdout and
          "cputime " + verb in p.stdout, p)
    check("%s --help is the same" % verb, cputime(verb, "--help").stdout == p.stdout, p)

p = cputime("--version")
check("--version", (p.returncode, p.stdout, p.stderr) == (0, "cputime %s\n" % VERSION, ""), p)

check_refused("nothing", cputime(), "--help")
check_refused("unknown command", cputime("frobnicate"), "command 'frobnicate'")
check_refused("unknown option", cputime("--frobnicate"), "option '--frobnicate'")
check_refused("help for an unknown command", cputime("help", "frobnicate"), "'frobnicate'")
check_refused("help for two", cputime("help", "run", "doctor"), "'doctor'")
check_refused("empty command", cputime(""), "''")
check_refused("a command that would break the line", cputime("a\nb"), "'a?b'")
