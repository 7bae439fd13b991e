#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cputime doctor: what it says must agree with itself, the kernel, and what was taken away.

Usage: test-doctor.py CPUTIME WITHOUT-PERF

The costs are not judged here, only that there are some where there must be and none elsewhere. With
a page server in CPUTIME_SOCKET the page must be usable and serve; without, why it is not is tried with
stand-ins for one that take away what a client needs of it.
"""
import errno
import json
import os
import pty
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading

CPUTIME, WITHOUT_PERF = (os.path.abspath(p) for p in sys.argv[1:3])
BACKENDS = ["syscall", "ring", "header", "page"]
SERVER = os.environ.get("CPUTIME_SOCKET")
COSTS = {c + k for c in ["thread", "process"]
         for k in ["_read_ns", "_speedup_ratio", "_served_by"]}
MACHINE = {"kernel", "machine", "cpus", "cpu_model", "clocksource", "hypervisor", "tick_hz",
           "perf_event_paranoid", "compiler", "version", "cmdline", "mitigations", "uid",
           "load_1m", "steal_ticks"}


def doctor(*args, before=(), **kwargs):
    return subprocess.run([*before, CPUTIME, "doctor", *args], text=True, capture_output=True,
                          timeout=120, **kwargs)


def check(what, holds, *evidence):
    if not holds:
        sys.exit("not so: %s\n%s" % (what, "\n".join(str(e) for e in evidence)))


def check_refused(what, p, *words):
    check("%s: exit status 2" % what, p.returncode == 2, p)
    check("%s: one line, nothing on stdout" % what, p.stdout == "" and p.stderr.count("\n") == 1
          and p.stderr.startswith("cputime: "), p)
    for word in words:
        check("%s: the line says %r" % (what, word), word in p.stderr, p)


def check_report(report, status):
    """The whole schema, and that all of it agrees."""
    check("the fields", set(report) == {"schema", "machine", "perf_event_mlock_kb", "seccomp",
                                        "usable_beyond_syscall", "auto", "backends", "floors"},
          report)
    check("the schema", report["schema"] == "cputime-doctor/1", report)
    check("the machine's fields", set(report["machine"]) == MACHINE, report["machine"])
    check("the backends", [b["backend"] for b in report["backends"]] == BACKENDS, report)
    check("the floors", [(f["clock"], f["read_ns"] > 0) for f in report["floors"]] ==
          [("CLOCK_MONOTONIC", True), ("CLOCK_MONOTONIC_RAW", True)], report["floors"])
    for b in report["backends"]:
        check("a backend's fields", set(b) == COSTS | {"backend", "usable", "error", "step",
                                                       "meaning", "remedy"}, b)
        check("usable or why not", b["meaning"] and (b["usable"] or b["step"]) and
              (b["error"] is None) == b["usable"], b)
        check("an error is an errno", b["usable"] or hasattr(errno, b["error"]), b)
        check("what is usable has its costs, and only that",
              all((b[c] is not None) == b["usable"] for c in COSTS), b)
        check("a gain is the ratio to the kernel", not b["usable"] or
              all(abs(report["backends"][0][c + "_read_ns"] / b[c + "_read_ns"] /
                      b[c + "_speedup_ratio"] - 1) < 0.05 for c in ["thread", "process"]), b)
        check("what is not forced does not serve",
              b["thread_served_by"] in [None, "syscall", b["backend"]] and
              b["process_served_by"] in [None, "syscall", b["backend"]], b)
    check("the kernel is always there", report["backends"][0]["usable"], report)
    usable = [b["backend"] for b in report["backends"] if b["usable"]]
    check("AUTO takes what is usable", set(report["auto"]) == COSTS and
          report["auto"]["thread_served_by"] in usable and
          report["auto"]["process_served_by"] in usable, report["auto"], usable)
    check("the verdict", report["usable_beyond_syscall"] == (len(usable) > 1), report)
    check("the exit status", status == (0 if len(usable) > 1 else 1), status, usable)


def json_report(**kwargs):
    p = doctor("--json", "-", **kwargs)
    check("nothing on stderr", p.stderr == "", p)
    report = json.loads(p.stdout)
    check_report(report, p.returncode)
    return report


def the_report_agrees_with_the_kernel(tmp):
    report = json_report()
    machine = report["machine"]
    check("kernel", machine["kernel"] == os.uname().release, machine)
    check("machine", machine["machine"] == os.uname().machine, machine)
    check("uid", machine["uid"] == os.getuid(), machine)
    check("tick", machine["tick_hz"] in [100, 250, 300, 1000], machine)
    for name in ["perf_event_paranoid", "perf_event_mlock_kb"]:
        path = "/proc/sys/kernel/" + name
        want = int(open(path).read()) if os.path.exists(path) else None
        check(name, dict(machine, **report).get(name) == want, want, report)
    seccomp = re.search(r"^Seccomp:\s*(\d)", open("/proc/self/status").read(), re.M)
    check("seccomp", report["seccomp"] == (["none", "strict", "filter"][int(seccomp[1])]
                                           if seccomp else None), report)
    check("the kernel's command line is cut to what bears on timing", not
          re.search(r"(^| )(root|ip|BOOT_IMAGE|init|rdinit|console)=", machine["cmdline"] or ""),
          machine)


def perf_refused_is_told(tmp):
    report = json_report(before=[WITHOUT_PERF], **without_server(tmp))
    check("only the kernel is left", not report["usable_beyond_syscall"], report)
    check("the filter is seen", report["seccomp"] == "filter", report)
    for b in report["backends"][1:3]:
        check("the refusal that was made", (b["error"], b["step"]) ==
              ("EACCES", "perf_event_open"), b)
    check("AUTO is the kernel", report["auto"]["thread_served_by"] == "syscall", report)

    p = doctor(before=[WITHOUT_PERF], **without_server(tmp))
    check("exit status 1", p.returncode == 1, p)
    for text in ["ring is not usable: EACCES at perf_event_open", "what would help:",
                 "Only the kernel's own clocks", "seccomp               filter"]:
        check("the table says %r" % text, text in p.stdout, p.stdout)


def without_server(tmp):
    return {"env": dict(os.environ, CPUTIME_SOCKET=os.path.join(tmp, "none"))}


def page_row(report):
    return [b for b in report["backends"] if b["backend"] == "page"][0]


def a_page_serves_where_there_is_a_server(tmp):
    if not SERVER:
        return
    report = json_report()
    page = page_row(report)
    check("usable", page["usable"], page)
    check("the page serves its row and AUTO's", {r[c + "_served_by"] for r in [page, report["auto"]]
                                                 for c in ["thread", "process"]} == {"page"}, report)


HELLO, JOIN, REPLY = 1, 2, 3
VERSION = 1


def message(kind, version=VERSION, error=0):
    return struct.pack("=IIIiII", 0x63707531, kind, version, error, 0, 0)


def stand_in(path, *answers):
    """A server that answers each client so, and does not answer any more after that; until the test
    ends. None closes the connection."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    os.chmod(path, 0o666)
    listener.listen()

    def serve():
        clients = []
        while True:
            client, _ = listener.accept()
            clients.append(client)
            for i, answer in enumerate(answers):
                if i > 0 and len(client.recv(100)) != len(message(JOIN)):
                    break
                if answer is None:
                    client.close()
                else:
                    client.send(answer)

    threading.Thread(target=serve, daemon=True).start()
    return {"env": dict(os.environ, CPUTIME_SOCKET=path)}


def why_there_is_no_page_is_told(tmp):
    hello = message(HELLO)
    cases = [("another version", [message(HELLO, VERSION + 1)], "EPROTONOSUPPORT",
              "hello of cputimed", "version"),
             ("something else", [b"220 mail"], "EPROTO", "hello of cputimed", "not cputimed"),
             ("turned away", [None], "ECONNRESET", "hello of cputimed", "turned"),
             ("silent", [], "ETIMEDOUT", "hello of cputimed", "does not answer"),
             ("silent later", [hello], "ETIMEDOUT", "join", "does not answer"),
             ("gone later", [hello, None], "ECONNRESET", "join", "ended the connection"),
             ("quota", [hello, message(REPLY, error=errno.EDQUOT)], "EDQUOT", "join", "as many"),
             ("full", [hello, message(REPLY, error=errno.ENOSPC)], "ENOSPC", "join", "as many"),
             ("another pid namespace", [hello, message(REPLY, error=errno.EPERM)], "EPERM", "join",
              "pid namespace"),
             ("an old kernel", [hello, message(REPLY, error=errno.EINVAL)], "EINVAL", "join",
              "could not load")]
    for name, answers, error, step, words in cases:
        path = os.path.join(tmp, name.replace(" ", "-"))
        p = doctor("--json", "-", **stand_in(path, *answers))
        check(name + ": nothing on stderr", p.stderr == "", p)
        report = json.loads(p.stdout)
        check_report(report, p.returncode)
        page = page_row(report)
        check(name, (page["error"], page["step"]) == (error, step) and words in page["meaning"], page)

    page = page_row(json_report(**without_server(tmp)))
    check("nobody there", (page["error"], page["step"]) == ("ENOENT", "connect to cputimed") and
          "cputime run" in page["remedy"], page)
    open(os.path.join(tmp, "none"), "w").close()
    page = page_row(json_report(**without_server(tmp)))
    check("no socket", page["error"] == "ECONNREFUSED", page)
    page = page_row(json_report(env=dict(os.environ, CPUTIME_SOCKET=tmp + "/" + "x" * 200)))
    check("too long a name", (page["error"], page["step"]) == ("ENAMETOOLONG", "CPUTIME_SOCKET"), page)

    p = doctor(**without_server(os.path.join(tmp, "nowhere")))
    for text in ["page is not usable: ENOENT at connect to cputimed", "cputimed is not running",
                 "run cputimed, or `cputime run` as root"]:
        check("the table says %r" % text, text in p.stdout, p.stdout)


def the_table_has_a_row_for_everything(tmp):
    p = doctor()
    check("runs", p.returncode in [0, 1] and p.stderr == "", p)
    rows = {line.split()[0]: line for line in p.stdout.splitlines() if line.strip()}
    for name in BACKENDS + ["auto", "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "kernel",
                            "clocksource", "perf_event_paranoid", "perf_event_mlock_kb", "seccomp"]:
        check("a row for " + name, name in rows, p.stdout)
    check("costs are nanoseconds", re.search(r"syscall +yes +[\d.]+ ns +[\d.]+ ns$",
                                             rows["syscall"]), rows["syscall"])
    check("no colour in a pipe, no trailing blanks", "\033" not in p.stdout and
          not re.search(r" $", p.stdout, re.M), p.stdout)


def colours(env):
    primary, secondary = pty.openpty()
    child = subprocess.Popen([CPUTIME, "doctor"], stdout=secondary, stderr=secondary,
                             env=dict(os.environ, **env))
    os.close(secondary)
    text = b""
    while True:
        try:
            block = os.read(primary, 4096)
        except OSError:         # EIO: the other side is closed
            block = b""
        if not block:
            break
        text += block
    os.close(primary)
    child.wait(timeout=60)
    check("something was printed", b"syscall" in text, text)
    return b"\033[32m" in text


def colour_is_for_terminals_that_want_it(tmp):
    check("a terminal gets colours", colours({"TERM": "xterm", "NO_COLOR": ""}))
    check("not with NO_COLOR", not colours({"TERM": "xterm", "NO_COLOR": "1"}))
    check("not a dumb one", not colours({"TERM": "dumb", "NO_COLOR": ""}))


def json_files_are_whole_or_not_there(tmp):
    path = os.path.join(tmp, "report.json")
    with open(path, "w") as f:
        f.write("old")
    os.chmod(path, 0o640)
    link = os.path.join(tmp, "link")
    os.symlink("report.json", link)
    p = doctor("--json", link)
    check("table and file", p.returncode in [0, 1] and "The floor" in p.stdout, p)
    with open(path) as f:
        check_report(json.load(f), p.returncode)
    check("the link and the file's mode stay, nothing else is left", os.path.islink(link) and
          stat.S_IMODE(os.stat(path).st_mode) == 0o640 and
          sorted(os.listdir(tmp)) == ["link", "report.json"], os.listdir(tmp))

    new = os.path.join(tmp, "new.json")
    p = doctor("--json", new, umask=0o027)
    check("a new file has the mode of any new file", stat.S_IMODE(os.stat(new).st_mode) == 0o640,
          oct(os.stat(new).st_mode))

    before = sorted(os.listdir(tmp))
    check_refused("no directory", doctor("--json", tmp + "/none/x"), tmp + "/none/x",
                  "No such file")
    check_refused("a directory", doctor("--json", tmp), tmp, "directory")
    check_refused("no name", doctor("--json", ""), "No such file")
    check("nothing half-written", sorted(os.listdir(tmp)) == before, os.listdir(tmp))

    # Not /dev/null: a cputime that is broken here would replace it, and the tests may run as root.
    fifo = os.path.join(tmp, "fifo")
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE, text=True)
    p = doctor("--json", fifo)
    still_one = stat.S_ISFIFO(os.stat(fifo).st_mode)
    if not still_one:
        reader.kill()
    check("what is no file is written to and stays what it is", still_one, p)
    check_report(json.loads(reader.communicate(timeout=60)[0]), p.returncode)

    with open("/dev/full", "w") as full:
        p = subprocess.run([CPUTIME, "doctor", "--json", "-"], stdout=full, text=True,
                           stderr=subprocess.PIPE, timeout=60)
        check("a full disk is an error", p.returncode == 2 and "No space left" in p.stderr, p)
        p = subprocess.run([CPUTIME, "doctor", "--help"], stdout=full, text=True,
                           stderr=subprocess.PIPE, timeout=60)
        check("for text, too", p.returncode == 1 and "No space left" in p.stderr, p)


def no_room():
    """As on a full disk: a write beyond the 100th byte of a file fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def a_write_that_fails_leaves_the_old_file(tmp):
    path = os.path.join(tmp, "report.json")
    with open(path, "w") as f:
        f.write("old")
    check_refused("no room", doctor("--json", path, preexec_fn=no_room), path, "File too large")
    check("the old file and no other", os.listdir(tmp) == ["report.json"], os.listdir(tmp))
    with open(path) as f:
        check("untouched", f.read() == "old")


def bad_options_are_refused(tmp):
    check_refused("an argument", doctor("ring"), "'ring'", "help doctor")
    check_refused("no file", doctor("--json"), "'--json' needs a value")
    check_refused("unknown option", doctor("--nonsense"), "'--nonsense'")
    check_refused("unknown short option", doctor("-x"), "'-x'")


for test in [the_report_agrees_with_the_kernel, perf_refused_is_told,
             a_page_serves_where_there_is_a_server, why_there_is_no_page_is_told,
             the_table_has_a_row_for_everything, colour_is_for_terminals_that_want_it,
             json_files_are_whole_or_not_there, a_write_that_fails_leaves_the_old_file,
             bad_options_are_refused]:
    with tempfile.TemporaryDirectory() as directory:
        test(directory)
    print("ok", test.__name__)
