#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cputime run: becomes the program, with the drop-in before it, and says when it cannot.

Usage: test-run.py CPUTIME STATIC-PROGRAM

What the drop-in then does in the program is the drop-in's own test.
"""
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

CPUTIME, STATIC = (os.path.abspath(p) for p in sys.argv[1:3])
DROP_IN = os.path.join(os.path.dirname(CPUTIME), "libcputime-preload.so")

CLEAN = {k: v for k, v in os.environ.items()
         if k != "LD_PRELOAD" and not k.startswith("CPUTIME_")}
# A drop-in built with AddressSanitizer comes before its runtime; both are in the program too.
CLEAN["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + CLEAN.get("ASAN_OPTIONS", "")
UNPRIVILEGED_UID = 65534


def run(*args, program=CPUTIME, env=None, **kwargs):
    return subprocess.run([program, "run", *args], env=dict(CLEAN, **(env or {})), text=True,
                          capture_output=True, timeout=60, **kwargs)


def check(what, holds, *evidence):
    if not holds:
        sys.exit("not so: %s\n%s" % (what, "\n".join(str(e) for e in evidence)))


def check_refused(what, p, status, *words):
    check("%s: exit status %d" % (what, status), p.returncode == status, p)
    check("%s: one line, nothing on stdout" % what, p.stdout == "" and p.stderr.count("\n") == 1
          and p.stderr.startswith("cputime: ") and p.stderr.endswith("\n"), p)
    for word in words:
        check("%s: the line says %r" % (what, word), word in p.stderr, p)


def environment_of(*options, env=None):
    p = run(*options, "--", "env", "-0", env=env)
    check("env runs", p.returncode == 0, p)
    return dict(line.split("=", 1) for line in p.stdout.split("\0") if line)


def the_environment_names_the_drop_in(tmp):
    got = environment_of()
    check("LD_PRELOAD is the drop-in", got["LD_PRELOAD"] == DROP_IN, got)
    check("and nothing else is set", "CPUTIME_BACKEND" not in got and "CPUTIME_VERBOSE" not in got,
          got)
    libc = "libc.so.6"
    got = environment_of(env={"LD_PRELOAD": libc})
    check("ours before theirs", got["LD_PRELOAD"] == DROP_IN + ":" + libc, got)
    got = environment_of(env={"LD_PRELOAD": ""})
    check("an empty one adds no separator", got["LD_PRELOAD"] == DROP_IN, got)
    for backend in ["auto", "syscall", "ring", "header"]:
        got = environment_of("--backend", backend)
        check("the backend", got.get("CPUTIME_BACKEND") == backend, got)
    got = environment_of("--verbose", "--backend=syscall")
    check("verbose", got.get("CPUTIME_VERBOSE") == "1" and
          got.get("CPUTIME_BACKEND") == "syscall", got)


def it_becomes_the_program(tmp):
    for status in [0, 1, 2, 3, 125, 255]:
        p = run("--", "sh", "-c", "exit %d" % status)
        check("exit status %d is passed on" % status, p.returncode == status, p)
    for number in [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV]:
        p = run("--", "sh", "-c", "kill -%d $$" % number, cwd=tmp)
        check("death by %s is passed on" % number.name, p.returncode == -number, p)
    child = subprocess.Popen([CPUTIME, "run", "--", "sh", "-c", "echo $$"], env=CLEAN, text=True,
                             stdout=subprocess.PIPE)
    check("the same process", int(child.communicate(timeout=60)[0]) == child.pid, child.pid)
    p = run("cat", input="through\n")
    check("stdin and stdout are the program's, and '--' may be left out",
          (p.returncode, p.stdout, p.stderr) == (0, "through\n", ""), p)
    p = run("echo", "--backend", "nonsense", "--help")
    check("what follows CMD is CMD's", p.stdout == "--backend nonsense --help\n", p)
    p = run("--", "--nonsense")
    check_refused("after '--' nothing is an option", p, 127, "--nonsense")


def what_cannot_be_run_is_told_as_env_tells_it(tmp):
    check_refused("not found", run("--", "no-such-program-here"), 127, "no-such-program-here",
                  "No such file")
    check_refused("not found by path", run("--", "/nonexistent/program"), 127)
    check_refused("an empty name", run("--", ""), 127)
    check_refused("a directory", run("--", tmp), 126, tmp, "Permission denied")
    plain = os.path.join(tmp, "plain")
    with open(plain, "w") as f:
        f.write("no program\n")
    check_refused("not executable", run("--", plain), 126, plain, "Permission denied")
    orphan = os.path.join(tmp, "orphan")
    with open(orphan, "w") as f:
        f.write("#!/nonexistent/interpreter\n")
    os.chmod(orphan, 0o755)
    check_refused("no interpreter", run("--", orphan), 127, orphan, "interpreter")
    check_refused("a name that would break the line", run("--", "a\nb\033[2J"), 127, "a?b?[2J")


def bad_options_are_refused(tmp):
    check_refused("no command", run(), 2, "cputime run -- CMD")
    check_refused("no command after '--'", run("--verbose", "--"), 2)
    check_refused("unknown backend", run("--backend", "rign", "--", "true"), 2, "'rign'", "ring")
    check_refused("empty backend", run("--backend=", "--", "true"), 2)
    check_refused("backend missing", run("--backend"), 2, "'--backend' needs a value")
    check_refused("unknown option", run("--nonsense", "true"), 2, "'--nonsense'", "help run")
    check_refused("unknown short option", run("-vx", "true"), 2, "'-x'")
    check_refused("value to spare", run("--verbose=1", "true"), 2, "'--verbose' takes no value")
    p = run("--help")
    check("--help", p.returncode == 0 and p.stdout.startswith("Usage: cputime run") and
          p.stderr == "", p)


def a_drop_in_that_cannot_be_named_is_refused(tmp):
    lonely = os.path.join(tmp, "lonely")
    os.mkdir(lonely)
    program = shutil.copy(CPUTIME, lonely)
    installed = run("--", "env", program=program)
    # An installed drop-in would rightly serve a program that has none beside it.
    if "LD_PRELOAD=" not in installed.stdout:
        check_refused("no drop-in", installed, 125, "libcputime-preload.so", "make")
    for name in ["with blank", "with:colon"]:
        directory = os.path.join(tmp, name)
        os.mkdir(directory)
        program = shutil.copy(CPUTIME, directory)
        shutil.copy(DROP_IN, directory)
        check_refused(name, run("--", "true", program=program), 125, directory, "LD_PRELOAD")


def verbose_tells_where_the_drop_in_cannot_act(tmp):
    p = run("--verbose", "--backend", "syscall", "--", STATIC)
    check("a static program runs all the same", p.returncode == 0, p)
    check("and is told", "statically linked" in p.stderr and STATIC in p.stderr, p)
    p = run("--", STATIC)
    check("but not unasked", (p.returncode, p.stderr) == (0, ""), p)

    script = os.path.join(tmp, "script")
    with open(script, "w") as f:
        f.write("#! %s argument\n" % STATIC)
    os.chmod(script, 0o755)
    p = run("--verbose", "--", script)
    check("a script is what runs it", "statically linked" in p.stderr, p)

    p = run("--verbose", "--", "true")
    check("a dynamic program is not told so", "cannot act" not in p.stderr, p)
    p = run("--verbose", "--", "true", env={"PATH": ":" + os.environ["PATH"]}, cwd=tmp)
    check("an empty entry of PATH", p.returncode == 0 and "cannot act" not in p.stderr, p)

    if os.getuid() != 0:
        return
    program = shutil.copy("/bin/true", os.path.join(tmp, "setuid"))
    os.chmod(program, 0o755 | stat.S_ISUID)
    os.chmod(tmp, 0o755)
    # Not with CPUTIME itself, which others may be unable to reach.
    beside = os.path.join(tmp, "beside")
    os.mkdir(beside)
    copy = shutil.copy(CPUTIME, beside)
    shutil.copy(DROP_IN, beside)
    p = run("--verbose", "--", program, program=copy, user=UNPRIVILEGED_UID, cwd="/")
    check("setuid to another user is told", "is setuid" in p.stderr and p.returncode == 0, p)
    p = run("--verbose", "--", program, program=copy, cwd="/")
    check("setuid to the same user is no obstacle", "cannot act" not in p.stderr, p)


for test in [the_environment_names_the_drop_in, it_becomes_the_program,
             what_cannot_be_run_is_told_as_env_tells_it, bad_options_are_refused,
             a_drop_in_that_cannot_be_named_is_refused,
             verbose_tells_where_the_drop_in_cannot_act]:
    with tempfile.TemporaryDirectory() as directory:
        test(directory)
    print("ok", test.__name__)
