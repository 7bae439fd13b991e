#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cputime compare: known answers, and what it makes of files that nobody has checked.

Usage: test-compare.py CPUTIME
"""
import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile

CPUTIME = os.path.abspath(sys.argv[1])


def check(what, holds, *evidence):
    if not holds:
        sys.exit("not so: %s\n%s" % (what, "\n".join(str(e) for e in evidence)))


def result(backend, threads, median, lo, hi, bench="pound_times", unit="ns/call", errors=0):
    return {"bench": bench, "backend": backend, "threads": threads, "unit": unit,
            "samples": [lo, median, hi], "median": median, "lo": lo, "hi": hi, "errors": errors}


def bench_file(*results):
    return {"schema": "cputime-bench/1", "machine": {"kernel": "6.1"}, "results": list(results)}


class Files:
    def __init__(self, directory):
        self.directory = directory

    def write(self, name, content):
        """CONTENT is bytes, or becomes JSON; returns the path."""
        path = os.path.join(self.directory, name)
        with open(path, "wb") as f:
            f.write(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path


def compare(*paths):
    return subprocess.run([CPUTIME, "compare", *paths], text=True, capture_output=True,
                          errors="replace", timeout=60)


def cells(p, bench, threads, backend):
    """The columns of that row, base first."""
    for line in p.stdout.splitlines():
        m = re.match(r"%s +%d  %s +\S+ +(\d.*)" % (bench, threads, re.escape(backend)), line)
        if m:
            return re.split(r"  +", m[1].strip())
    sys.exit("no row %s %d %s\n%s%s" % (bench, threads, backend, p.stdout, p.stderr))


def gains_are_as_published(files):
    # Elapsed seconds of the published sweep, in other units: 3.48 to 1.08 is 68.97 %.
    base = files.write("base.json", bench_file(
        result("kernel", 2, 348.0, 340.0, 350.0), result("kernel", 12, 332.0, 331.0, 340.0),
        result("kernel", 128, 388.0, 380.0, 390.0)))
    new = files.write("new.json", bench_file(
        result("kernel", 2, 108.0, 100.0, 110.0), result("kernel", 12, 337.0, 335.0, 341.0),
        result("kernel", 99, 1.0, 1.0, 1.0)))
    p = compare(base, new, base)
    check("it works", p.returncode == 0 and p.stderr == "", p.returncode, p.stderr)
    check("a gain", cells(p, "pound_times", 2, "kernel") ==
          ["348.0", "108.0 (68.97 %) *", "348.0 (0.00 %)"], p.stdout)
    check("a loss is negative, and has no star where intervals meet",
          cells(p, "pound_times", 12, "kernel") == ["332.0", "337.0 (-1.51 %)", "332.0 (0.00 %)"],
          p.stdout)
    check("a row that the new file has not", cells(p, "pound_times", 128, "kernel") ==
          ["388.0", "-", "388.0 (0.00 %)"], p.stdout)
    check("a row that the base has not", "new.json: 1 rows have no counterpart" in p.stdout,
          p.stdout)


def sign_follows_the_preferred_direction(files):
    p = compare(files.write("a.json", bench_file(result("kernel", 1, 10, 10, 10, unit="calls/s"))),
                files.write("b.json", bench_file(result("kernel", 1, 15, 15, 15, unit="calls/s"))))
    check("more calls a second is a gain", cells(p, "pound_times", 1, "kernel") ==
          ["10.0", "15.0 (50.00 %) *"], p.stdout)


def intervals_that_touch_have_no_star(files):
    base = files.write("a.json", bench_file(result("kernel", 1, 10, 9, 11)))
    for lo, star in [(11, ""), (11.1, " *")]:
        p = compare(base, files.write("b.json", bench_file(result("kernel", 1, 12, lo, 13))))
        check("lo = %s" % lo, cells(p, "pound_times", 1, "kernel")[1] == "12.0 (-20.00 %)" + star,
              p.stdout)


def one_backend_is_set_beside_another(files):
    kernel = files.write("k.json", bench_file(
        result("kernel", 2, 500, 490, 510), result("kernel (again)", 2, 501, 490, 510),
        result("vdso floor", 2, 20, 19, 21)))
    auto = files.write("u.json", bench_file(
        result("auto", 2, 25, 24, 26), result("auto (again)", 2, 24, 23, 25),
        result("vdso floor", 2, 20, 19, 21)))
    p = compare(kernel, auto)
    check("kernel and auto", cells(p, "pound_times", 2, "kernel")[1] == "25.0 (95.00 %) *",
          p.stdout)
    check("again with again", cells(p, "pound_times", 2, "kernel (again)")[1].startswith("24.0"),
          p.stdout)
    check("it is said", "u.json: auto, compared with kernel" in p.stdout, p.stdout)

    both = files.write("both.json", bench_file(result("kernel", 2, 500, 490, 510),
                                               result("auto", 2, 25, 24, 26)))
    ring = files.write("r.json", bench_file(result("ring", 2, 25, 24, 26)))
    p = compare(both, ring)
    check("several backends are not", p.returncode == 2 and "r.json" in p.stderr, p.stderr)


def decreasing_readings_are_not_passed_over(files):
    good = files.write("a.json", bench_file(result("kernel", 2, 500, 490, 510)))
    bad = files.write("b.json", bench_file(result("kernel", 2, 5, 4, 6, errors=7)))
    p = compare(good, bad)
    check("exit 1 and said", p.returncode == 1 and "b.json" in p.stdout and
          "7 readings decreased" in p.stdout, p.returncode, p.stdout)


def refused(p, path, names):
    """Exit 2, nothing on stdout, one line that names the file and the culprit."""
    check("refused: %s" % names, p.returncode == 2 and p.stdout == "" and
          p.stderr.startswith("cputime: ") and p.stderr.count("\n") == 1 and
          path in p.stderr and names in p.stderr, p.returncode, p.stdout, p.stderr)


def every_field_is_checked(files):
    good = bench_file(result("kernel", 2, 500.0, 490.0, 510.0), result("auto", 2, 25.0, 24.0, 26.0))
    base = files.write("base.json", good)
    other = {str: 5, int: "5", float: "5.0", list: {}, dict: []}

    paths = [("schema",), ("machine",), ("results",)]
    paths += [("results", 1, field) for field in good["results"][1]]
    for where in paths:
        for change in ("remove", "type", "null"):
            broken = copy.deepcopy(good)
            parent = broken
            for step in where[:-1]:
                parent = parent[step]
            if change == "remove":
                del parent[where[-1]]
            else:
                old = parent[where[-1]]
                parent[where[-1]] = None if change == "null" else other[type(old)]
            path = files.write("broken.json", broken)
            name = where[-1] if len(where) == 1 else "results[1]." + where[-1]
            refused(compare(base, path), path, name)
            refused(compare(path, base), path, name)

    for field, value in [("threads", 0), ("threads", 4097), ("threads", 1 << 40), ("threads", 2.5),
                         ("errors", -1), ("errors", 0.0), ("samples", []), ("samples", [1, "2"]),
                         ("samples", [1, -1]), ("samples", [0]), ("median", 0), ("median", -25.0),
                         ("median", 26.5), ("median", 23.5), ("lo", 25.5), ("hi", 24.5),
                         ("hi", True), ("bench", ""), ("backend", "a" * 65),
                         ("backend", "\x1b[2J"), ("unit", "\n")]:
        broken = copy.deepcopy(good)
        broken["results"][1][field] = value
        path = files.write("broken.json", broken)
        name = "median" if field in ("lo", "hi") and value is not True else field
        refused(compare(base, path), path, "results[1]." + name)

    for results, name in [([], "results"), ([1], "results[0]"),
                          ([good["results"][0]] * 2, "results[1]")]:
        path = files.write("broken.json", dict(good, results=results))
        refused(compare(base, path), path, name)
    path = files.write("broken.json", dict(good, schema="cputime-bench/2"))
    refused(compare(path, base), path, "schema")
    path = files.write("broken.json", bench_file(result("auto", 2, 1, 1, 1, unit="s")))
    refused(compare(base, path), path, "unit")


def unreadable_files_are_one_line(files):
    good = files.write("good.json", bench_file(result("kernel", 2, 500, 490, 510)))
    for content in [b"", b"[]", b"{", b"null", b"\xff\xfe", b'{"schema":"\xff"}', b"{}" * 2,
                    b"[" * 100000, b'{"a":' * 5000, b'{"schema": NaN}', b'{"schema": "\\u0000"}',
                    b"\0", b'{"results":1e999}']:
        path = files.write("bad.json", content)
        refused(compare(good, path), path, "")
    refused(compare(good, os.path.join(files.directory, "absent")), "absent", "")
    refused(compare(good, files.directory), files.directory, "")
    for args in ([], [good]):
        refused(compare(*args), "", "BASE.json")


def mutated_files_never_break_it(files):
    good = bench_file(result("kernel", 2, 500.5, 490.25, 510.0), result("auto", 2, 25, 24, 26))
    base = files.write("base.json", good)
    text = json.dumps(good).encode()
    rng = random.Random(1)
    refusals = 0
    for round in range(150):
        data = bytearray(text)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(data))
            kind = rng.randrange(5)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at:at + rng.randrange(1, 20)]
            elif kind == 2:
                data[at:at] = rng.choice((b'"', b"{", b"}", b"]", b",", b"-", b"e99", b"\\u0000",
                                          b"9" * 30, b"null", b"\x80"))
            elif kind == 3:
                data[at:at] = data[at // 2:at]
            else:
                del data[at:]
            if not data:
                data = bytearray(b" ")
        path = files.write("mutated.json", bytes(data))
        p = compare(base, path)
        if p.returncode == 2:
            refused(p, path, "")
            refusals += 1
        else:
            check("otherwise a whole table (round %d)" % round,
                  p.returncode in (0, 1) and p.stderr == "" and "Medians" in p.stdout,
                  p.returncode, p.stdout, p.stderr, bytes(data))
    check("most mutations matter", refusals > 75, refusals)


with tempfile.TemporaryDirectory() as tmp:
    files = Files(tmp)
    gains_are_as_published(files)
    sign_follows_the_preferred_direction(files)
    intervals_that_touch_have_no_star(files)
    one_backend_is_set_beside_another(files)
    decreasing_readings_are_not_passed_over(files)
    every_field_is_checked(files)
    unreadable_files_are_one_line(files)
    mutated_files_never_break_it(files)
