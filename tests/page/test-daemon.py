#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cputimed as its clients see it, good and bad ones, on the real kernel. TAP.

Usage: test-daemon.py CPUTIMED CLIENT-LIBRARY [TEST...]

A client is a child of this program, forked and made another user, that does what it is told over a
pipe: a Peer. Whether the program is attached is asked of the kernel by the ids of its links, which
the daemon's own descriptors tell, so that other servers on this machine do not matter.
"""
import ctypes
import errno
import fcntl
import mmap
import multiprocessing
import os
import platform
import pwd
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

CPUTIMED, LIBRARY = (os.path.abspath(p) for p in sys.argv[1:3])
NOBODY, SOMEBODY = 65534, 65533         # users without privileges; the second needs no name
MAGIC, HELLO, JOIN, REPLY, HOLD = 0x63707531, 1, 2, 3, 4
MESSAGE = struct.Struct("=IIIiII")
VERSION = 1                             # CT_PAGE_VERSION
ENTRY = 128                             # CT_PAGE_ENTRY_SIZE
TIMEOUT = 60                            # for what takes milliseconds: then it has failed

# bpf(2)
SYS_BPF = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}[
    platform.machine()]
MAP_UPDATE_ELEM, MAP_DELETE_ELEM, OBJ_PIN, MAP_GET_FD_BY_ID = 2, 3, 6, 14
OBJ_GET_INFO_BY_FD, MAP_FREEZE, MAP_UPDATE_BATCH = 15, 22, 26
LINK_UPDATE, LINK_GET_FD_BY_ID, LINK_DETACH = 29, 30, 34

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
library = ctypes.CDLL(LIBRARY)
for name in ("client_wait_live", "client_agree", "client_goes_stale"):
    getattr(library, name).argtypes = [ctypes.c_void_p] + [ctypes.c_uint] * (name == "client_agree")


class Failed(Exception):
    pass


class Skip(Exception):
    pass


def check(what, holds, *evidence):
    if not holds:
        raise Failed("not so: %s %s" % (what, " ".join(str(e) for e in evidence)))


def until(what, condition, *evidence):
    """Asks again and again; what it waits for happens by itself."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        check("in %d s: %s" % (TIMEOUT, what), time.monotonic() < end,
              *(e() if callable(e) else e for e in evidence))
        time.sleep(0.005)


def bpf(command, attributes):
    """The result, or -errno."""
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    r = libc.syscall(SYS_BPF, command, buffer, len(buffer))
    return r if r >= 0 else -ctypes.get_errno()


def address(value):
    return struct.pack("=Q", ctypes.addressof(value))


def link_exists(number):
    fd = bpf(LINK_GET_FD_BY_ID, struct.pack("=I", number))
    if fd >= 0:
        os.close(fd)
    return fd >= 0


# What a client can be told to do. Its state is in `me`, its sockets by number.

class Me:
    socket = None           # the connection
    map_fd = -1
    page = None             # address of the mapping
    size = 0
    kept = []               # whatever is to stay open


me = Me()


def connect(path):
    """As the library does: it waits for nobody, and comes again if there is no room."""
    me.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    me.socket.setblocking(False)

    def connected():
        try:
            me.socket.connect(path)
            return True
        except BlockingIOError:
            return False
    until("connected", connected)
    me.socket.settimeout(TIMEOUT)


def receive():
    """The fields of a message and its descriptors; None at the end of the connection."""
    try:
        data, fds, _, _ = socket.recv_fds(me.socket, 64, 8)
    except ConnectionResetError:
        return None
    return (MESSAGE.unpack(data), fds) if data else None


def join_message(version=VERSION):
    return MESSAGE.pack(MAGIC, JOIN, version, 0, 0, 0)


def send(data, fds=()):
    """Whether it could be sent."""
    try:
        socket.send_fds(me.socket, [data], list(fds))
        return True
    except (BrokenPipeError, ConnectionResetError):
        return False


def answer_to(data):
    """To a message on the connection: "end" or the error of a reply, without going on."""
    if not send(data):
        return "end"
    got = receive()
    return "end" if got is None else got[0][3]


def join(path):
    """Connects and joins; the error of the reply. If that is 0 the page is mapped."""
    connect(path)
    got = receive()
    if got is None:
        return "end"
    check("hello", got == ((MAGIC, HELLO, VERSION, 0, 0, 0), []), got)
    if not send(join_message()):
        return "end"
    got = receive()
    if got is None:
        return "end"
    (magic, kind, version, error, generation, entries), fds = got
    check("reply", (magic, kind, version) == (MAGIC, REPLY, VERSION), got)
    check("a descriptor or an error, not both", (len(fds) == 1) == (error == 0), got)
    check("a page or an error", (generation != 0 and entries != 0) == (error == 0), got)
    if error == 0:
        me.map_fd, me.size = fds[0], entries * ENTRY
        me.page = libc.mmap(None, me.size, mmap.PROT_READ, mmap.MAP_SHARED, me.map_fd, 0)
        check("the page can be mapped", me.page not in (None, ctypes.c_void_p(-1).value))
        group = struct.unpack_from("=IIII", ctypes.string_at(me.page, ENTRY))
        check("it is the one that was replied", group[0] == VERSION and group[2] == generation,
              group)
    return error


def enrol(path):
    error = join(path)
    check("enrolled", error == 0, error)
    check("live", library.client_wait_live(me.page) == 0)
    check("hold has come", select.select([me.socket], [], [], TIMEOUT)[0])


def agree(n=2000):
    return library.client_agree(me.page, n) == 0


def goes_stale():
    return library.client_goes_stale(me.page) == 0


def leave():
    me.socket.close()


def forget():
    """What is left of a page."""
    libc.munmap(me.page, me.size)
    os.close(me.map_fd)


def take_links():
    got = receive()
    check("hold, with the links", got is not None and got[0][1] == HOLD and len(got[1]) == 3, got)
    me.kept.append(got[1])
    return got[1]


def drop_links():
    for fds in me.kept:
        for fd in fds:
            os.close(fd)
    me.kept.clear()


def own_pid():
    return os.getpid()


class Peer:
    """A process that does what it is told: peer.join(path) is join(path) over there."""
    everybody = []

    def __init__(self, uid=NOBODY, before=None):
        self.pipe, there = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.pipe.close()
                for other in Peer.everybody:
                    other.pipe.close()
                if before:
                    before()
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                self.serve(there)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        there.close()
        Peer.everybody.append(self)

    @staticmethod
    def serve(pipe):
        while True:
            try:
                name, args = pipe.recv()
            except EOFError:
                os._exit(0)
            try:
                pipe.send((True, globals()[name](*args)))
            except Failed as e:
                pipe.send((False, str(e)))
            except Exception:
                pipe.send((False, traceback.format_exc()))

    def tell(self, name, *args):
        self.pipe.send((name, args))

    def hear(self):
        done, result = self.pipe.recv()
        if not done:
            raise Failed(result)
        return result

    def __getattr__(self, name):
        def call(*args):
            self.tell(name, *args)
            return self.hear()
        return call

    def kill(self):
        if self in Peer.everybody:
            Peer.everybody.remove(self)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pipe.close()


class Daemon:
    """cputimed with a socket of its own in DIRECTORY; PREFIX is what runs it."""

    def __init__(self, directory, *options, name="socket", prefix=(), **kwargs):
        self.path = os.path.join(directory, name)
        self.log_path = os.path.join(directory, name + ".log")
        self.links = []
        self.prefix = prefix
        with open(self.log_path, "wb") as log:
            kwargs = dict({"stderr": log}, **kwargs)
            self.process = subprocess.Popen(
                [*prefix, CPUTIMED, "--socket", self.path, "--log-level", "client", *options], **kwargs)
        self.pid = self.process.pid
        if kwargs["stderr"].name == self.log_path:
            until("cputimed serves", lambda: self.said("serving on"), self.log)

    def log(self):
        with open(self.log_path) as f:
            return f.read()

    def said(self, *words):
        check("cputimed runs", self.process.poll() is None, self.log())
        return any(all(w in line for w in words) for line in self.log().splitlines())

    def descriptors(self):
        return os.listdir("/proc/%d/fd" % self.pid)

    def attached(self):
        """The ids of the links that it has."""
        links = []
        for fd in self.descriptors():
            try:
                with open("/proc/%d/fdinfo/%s" % (self.pid, fd)) as f:
                    info = dict(line.split(":", 1) for line in f.read().splitlines()
                                if ":" in line)
            except FileNotFoundError:
                continue
            if "link_id" in info and info["link_type"].strip() != "iter":
                links.append(int(info["link_id"]))
        self.links = links or self.links
        return links

    def detached(self):
        """None of those that were seen last, nor does it have others."""
        return not any(link_exists(n) for n in self.links) and not self.attached()

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill(signal.SIGKILL if self.prefix else signal.SIGTERM)
        check("cputimed stops", self.process.returncode in (0, -signal.SIGKILL),
              self.process.returncode, self.log())


# The tests: each gets a directory of its own, and a daemon that is running.

def a_process_enrols_itself_and_its_page_agrees(d):
    peer = Peer()
    peer.enrol(d.path)
    check("agrees with the kernel", peer.agree(100000))


def nobody_enrolled_nothing_attached(d):
    check("nothing at first", not d.attached())
    one, two = Peer(), Peer(SOMEBODY)
    one.enrol(d.path)
    links = d.attached()
    check("three links", len(links) == 3 and all(map(link_exists, links)), links)
    two.enrol(d.path)
    check("the same for two", d.attached() == links)
    one.leave()
    two.agree()
    check("still", d.attached() == links)
    two.kill()
    until("detached", d.detached)
    check("nothing is left open", len(d.descriptors()) <= 8, d.descriptors())
    three = Peer()
    three.enrol(d.path)
    check("others, later", d.attached() and d.attached() != links)


def try_to_write():
    """Whatever there is, as the owner of a page. What succeeded."""
    key, value = ctypes.c_uint32(0), (ctypes.c_char * 4096)()
    before = ctypes.string_at(me.page + 8, 4)
    attempts = {}
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        p = libc.mmap(None, me.size, mmap.PROT_READ | mmap.PROT_WRITE, flags, me.map_fd, 0)
        attempts["mmap %d" % flags] = p != ctypes.c_void_p(-1).value
    attempts["mprotect"] = libc.mprotect(me.page, me.size, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    attempts["execute"] = libc.mprotect(me.page, me.size, mmap.PROT_READ | mmap.PROT_EXEC) == 0
    element = struct.pack("=Ixxxx", me.map_fd) + address(key) + address(value)
    attempts["update"] = bpf(MAP_UPDATE_ELEM, element + struct.pack("=Q", 0)) >= 0
    attempts["delete"] = bpf(MAP_DELETE_ELEM, element) >= 0
    attempts["batch"] = bpf(MAP_UPDATE_BATCH, struct.pack("=QQ", 0, 0) + address(key) +
                            address(value) + struct.pack("=IIQQ", 1, me.map_fd, 0, 0)) >= 0
    for flags in (os.O_RDWR, os.O_WRONLY):
        try:
            os.close(os.open("/proc/self/fd/%d" % me.map_fd, flags))
            attempts["open"] = True
        except OSError:
            pass
    try:
        attempts["write"] = os.write(me.map_fd, b"x") == 1
    except OSError:
        pass
    try:
        with open("/proc/self/mem", "r+b", 0) as f:
            f.seek(me.page + 8)
            attempts["/proc/self/mem"] = f.write(b"XXXX") == 4
    except OSError:
        pass
    attempts["changed"] = ctypes.string_at(me.page + 8, 4) != before
    return [name for name, done in attempts.items() if done]


def a_page_cannot_be_written(d):
    peer = Peer()
    peer.enrol(d.path)
    # PROT_EXEC on data that others write is harmless, and up to the kernel.
    check("nothing can be written", peer.try_to_write() in ([], ["execute"]), peer.try_to_write())
    check("and it still agrees", peer.agree())


def try_to_detach(fds):
    return [command for fd in fds for command, attributes in
            ((LINK_DETACH, struct.pack("=I", fd)),
             (LINK_UPDATE, struct.pack("=IIII", fd, fd, 0, 0)))
            if bpf(command, attributes) >= 0]


def the_program_cannot_be_detached(d):
    peer, other = Peer(), Peer(SOMEBODY)
    peer.enrol(d.path)
    other.enrol(d.path)
    done = peer.try_to_detach(peer.take_links())
    check("refused", done == [], done)
    peer.drop_links()
    peer.leave()
    check("attached", d.attached() and all(map(link_exists, d.attached())))
    check("the other is served", other.agree())


def pass_connection(fd):
    """Over the socket FD, to whoever has its other end."""
    with socket.socket(fileno=fd) as s:
        socket.send_fds(s, [b"x"], [me.socket.fileno()])


def take_connection(fd):
    with socket.socket(fileno=fd) as s:
        me.socket = socket.socket(fileno=socket.recv_fds(s, 1, 1)[1][0])
        me.socket.settimeout(TIMEOUT)


def send_as(pid, uid):
    """A join in the name of another process; the kernel lets root do so."""
    try:
        me.socket.sendmsg([join_message()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS,
                                              struct.pack("=iII", pid, uid, uid))])
        return True
    except (PermissionError, ConnectionError):
        return False


socket.SCM_CREDENTIALS = getattr(socket, "SCM_CREDENTIALS", 2)


def no_process_can_enrol_another(d):
    # A connection of one, a join of the other: both ways round.
    a, b = socket.socketpair()
    victim, thief = Peer(), Peer()
    os.set_inheritable(a.fileno(), True)
    victim.connect(d.path)
    check("hello", victim.receive()[0][1] == HELLO)
    victim.pass_connection(a.fileno())
    thief.take_connection(b.fileno())
    check("a join over another's connection", thief.answer_to(join_message()) == "end")
    check("is not answered to that one either", victim.receive() is None)
    # In another's name.
    thief.connect(d.path)
    check("hello", thief.receive()[0][1] == HELLO)
    check("a forged name", not thief.send_as(victim.own_pid(), NOBODY))
    root = Peer(0)
    root.connect(d.path)
    root.receive()
    check("root's forged name", root.send_as(victim.own_pid(), NOBODY) and root.receive() is None)
    check("nobody was enrolled", not d.said("enrolled") and not d.attached(), d.log())


def a_join_before_hello_does_not_count(d):
    """It may have been sent before a number was given to another process."""
    peer = Peer()
    os.kill(d.pid, signal.SIGSTOP)
    peer.connect(d.path)
    check("sent", peer.send(join_message()))
    os.kill(d.pid, signal.SIGCONT)
    check("the end", peer.receive() is None)
    check("nobody was enrolled", not d.said("enrolled"), d.log())


def connect_in_a_child(path):
    """The connection of a process that is gone then."""
    a, b = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        connect(path)
        socket.send_fds(a, [b"x"], [me.socket.fileno()])
        os._exit(0)
    os.waitpid(pid, 0)
    me.socket = socket.socket(fileno=socket.recv_fds(b, 1, 1)[1][0])
    me.socket.settimeout(TIMEOUT)
    return pid


def a_process_that_is_gone_is_not_enrolled(d):
    peer = Peer()
    for stopped in (False, True):
        os.kill(d.pid, signal.SIGSTOP if stopped else signal.SIGCONT)
        peer.connect_in_a_child(d.path)
        os.kill(d.pid, signal.SIGCONT)
        got = peer.receive()
        if got:
            check("hello at most", got[0][1] == HELLO and peer.answer_to(join_message()) == "end", got)
    check("nobody was enrolled", not d.said("enrolled"), d.log())


def try_to_get(map_id, pid, fd):
    got = []
    if bpf(MAP_GET_FD_BY_ID, struct.pack("=I", map_id)) >= 0:
        got.append("by id")
    try:
        os.open("/proc/%d/fd/%d" % (pid, fd), os.O_RDONLY)
        got.append("/proc")
    except OSError:
        pass
    pidfd = os.pidfd_open(pid)
    if libc.syscall(438, pidfd, fd, 0) >= 0:    # pidfd_getfd, everywhere
        got.append("pidfd_getfd")
    return got


def map_fd_and_id():
    with open("/proc/self/fdinfo/%d" % me.map_fd) as f:
        return me.map_fd, int(dict(line.split(":", 1) for line in f if ":" in line)["map_id"])


def nobody_gets_another_s_page(d):
    victim, thief = Peer(SOMEBODY), Peer()
    victim.enrol(d.path)
    fd, number = victim.map_fd_and_id()
    got = thief.try_to_get(number, victim.own_pid(), fd)
    check("refused", got == [], got)


def what_breaks_the_protocol_ends_it(d):
    good, bad = Peer(SOMEBODY), Peer()
    good.enrol(d.path)
    idle = len(d.descriptors())
    join_fields = [MAGIC, JOIN, VERSION, 0, 0, 0]
    messages = [b"x", b"", join_message()[:-1], join_message() + b"x", b"\0" * 24, b"\xff" * 24,
                b"x" * 4096, b"x" * 100000]
    for kind in (HELLO, REPLY, HOLD, 5, 0xffffffff):
        messages.append(MESSAGE.pack(MAGIC, kind, VERSION, 0, 0, 0))
    messages.append(MESSAGE.pack(MAGIC + 1, *join_fields[1:]))
    for message in messages:
        bad.connect(d.path)
        check("hello", bad.receive()[0][1] == HELLO)
        check("the end after %r" % message[:30], bad.answer_to(message) == "end")
        check("the other is served", good.agree(100))
    bad.connect(d.path)
    bad.receive()
    check("a join with descriptors", bad.answer_with_descriptors(200) == "end")
    # One that has joined has nothing more to say, not even the same.
    for message in (join_message(), b"x"):
        bad.enrol(d.path)
        bad.send(message)
        check("not enrolled any more", bad.goes_stale())
        bad.leave()
    # An empty one looks like the end; the others, and three more.
    check("each was noticed",
          d.log().count("does not keep to the protocol") == len(messages) - 1 + 3, d.log())
    until("nothing is left open", lambda: len(d.descriptors()) <= idle, d.descriptors)
    check("the other is served", good.agree())


def answer_with_descriptors(n):
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(n)]
    if not send(join_message(), fds):
        return "end"
    got = receive()
    return "end" if got is None else got[0][3]


def wrong_version(path, version):
    connect(path)
    receive()
    return answer_to(join_message(version))


def another_page_version_is_refused(d):
    peer = Peer()
    for version in (0, VERSION + 1, 0xffffffff):
        check("EPROTONOSUPPORT", peer.wrong_version(d.path, version) == errno.EPROTONOSUPPORT)
        check("and the end", peer.receive() is None)
    check("without loading anything", not d.said("attached"))


def connect_many(path, n):
    """How many of N connections are said hello to; they stay open."""
    sockets, greeted = [], 0
    for _ in range(n):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(TIMEOUT)
        s.connect(path)
        sockets.append(s)
    for s in sockets:
        try:
            greeted += len(s.recv(64)) == MESSAGE.size
        except ConnectionResetError:
            pass
    me.sockets = sockets
    return greeted


def all_end():
    """Waits for the end of all of those."""
    for s in me.sockets:
        try:
            while s.recv(64):
                pass
        except ConnectionResetError:
            pass
    return True


def silent_clients_cost_nobody_anything(d):
    silent, good = Peer(), Peer(SOMEBODY)
    idle = len(d.descriptors())
    n = silent.connect_many(d.path, 200)
    check("as many as one user may", 32 <= n < 200, n)
    good.enrol(d.path)
    check("the other is served", good.agree())
    check("they are not waited for", silent.all_end())
    good.leave()
    until("nothing is left open", lambda: len(d.descriptors()) <= idle, d.descriptors)


def a_client_that_does_not_read_costs_nobody_anything(d):
    slow, good = Peer(), Peer(SOMEBODY)
    slow.connect(d.path)
    slow.receive()
    slow.send(join_message())           # and never looks at what comes
    good.enrol(d.path)
    until("both are enrolled", lambda: d.said("process %d " % slow.pid, "enrolled"), d.log)
    check("the other is served", good.agree())


def flood(path, how):
    """Until it is killed."""
    while True:
        try:
            connect(path)
            if how == "join":
                if receive():
                    send(join_message())
                    receive()
            elif how == "talk":
                while send(b"x" * 1000):
                    pass
            leave()
        except OSError:
            pass


def floods_cost_nobody_anything(d):
    flooders = [Peer(NOBODY) for _ in range(6)]
    for peer, how in zip(flooders, ["connect", "join", "talk"] * 2):
        peer.tell("flood", d.path, how)
    # Each of many joins is answered, and in between a page stays right.
    good, steady = Peer(SOMEBODY), Peer(SOMEBODY)
    steady.enrol(d.path)
    for _ in range(20):
        good.enrol(d.path)
        good.leave()
        good.forget()
    check("served all the time", steady.agree(20000))
    for peer in flooders:
        peer.kill()
    until("all are gone", lambda: len(d.descriptors()) < 40, d.descriptors)


def a_user_has_a_limit(d):
    peers = [Peer() for _ in range(4)]
    for peer in peers[:3]:
        peer.enrol(d.path)
    check("EDQUOT", peers[3].join(d.path) == errno.EDQUOT)
    other = Peer(SOMEBODY)
    other.enrol(d.path)
    check("is said once", d.log().count("more are refused") == 1, d.log())
    peers[0].kill()
    until("one left, one may come", lambda: peers[3].join(d.path) == 0)
    # Root has none.
    for _ in range(5):
        Peer(0).enrol(d.path)


a_user_has_a_limit.options = ["--per-user", "3"]


def regions_that_are_kept_count(d):
    hoarder = Peer()
    for _ in range(3):
        hoarder.enrol(d.path)
        hoarder.leave()                 # but keeps the descriptor and the mapping
    until("all have left", lambda: d.log().count(": left") == 3, d.log)
    check("EDQUOT", hoarder.join(d.path) == errno.EDQUOT)
    hoarder.kill()
    peer = Peer()
    until("gone with their process", lambda: peer.join(d.path) == 0)


regions_that_are_kept_count.options = ["--per-user", "3"]


def start_threads(n):
    threading.stack_size(65536)
    for _ in range(n):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def memory_has_a_limit_too(d):
    """64 KiB for each process that a user may have, and 128 bytes twice for each thread."""
    peer = Peer()
    peer.enrol(d.path)
    peer.start_threads(800)
    check("EDQUOT", peer.join(d.path) == errno.EDQUOT)
    root = Peer(0)
    root.start_threads(800)
    root.enrol(d.path)
    check("served", root.agree())
    check("others are", Peer(SOMEBODY).join(d.path) == 0)


memory_has_a_limit_too.options = ["--per-user", "3"]


def programs_that_are_kept_have_an_end(d):
    """Who keeps the links of one program after the other gets no more than a few."""
    links = set()
    for _ in range(7):
        peer = Peer()
        peer.enrol(d.path)
        links.update(d.attached())
        peer.take_links()
        peer.leave()
        until("it left", lambda: d.said("process %d " % peer.pid, "left"))
        until("let go, or kept for good", lambda: not d.attached() or d.said("stays attached"),
              d.log)
    programs = sum(map(link_exists, links)) / 3
    check("no more than four and the present one", 4 <= programs <= 5, programs, d.log())
    good = Peer(SOMEBODY)
    good.enrol(d.path)
    check("others are served", good.agree())
    good.leave()
    for peer in list(Peer.everybody):
        peer.kill()
    until("all are gone", lambda: not any(map(link_exists, links)) and not d.attached())


def a_killed_daemon_harms_nobody(d):
    peers = [Peer(), Peer(), Peer(SOMEBODY)]
    for peer in peers:
        peer.enrol(d.path)
    links = d.attached()
    for peer in peers:
        peer.tell("agree", 200000)
    d.kill(signal.SIGKILL)
    for peer in peers:
        check("read on while it was killed", peer.hear())
    for peer in peers:
        check("and after that", peer.agree(20000))
    check("still attached", all(map(link_exists, links)))
    peers[0].leave()
    peers[1].kill()
    check("as long as there is one client", peers[2].agree(20000) and all(map(link_exists, links)))
    peers[2].leave()
    until("detached with the last one", lambda: not any(map(link_exists, links)))
    check("which says so, and nothing wrong before", peers[2].goes_stale())


def a_stopped_daemon_harms_nobody(d):
    one, two = Peer(), Peer(SOMEBODY)
    one.enrol(d.path)
    os.kill(d.pid, signal.SIGSTOP)
    check("right while it is stopped", one.agree(50000))
    two.tell("enrol", d.path)
    one.kill()
    check("nothing happens", not two.pipe.poll(0.2))
    os.kill(d.pid, signal.SIGCONT)
    two.hear()
    check("and goes on later", two.agree())
    until("who left meanwhile is known", lambda: d.said("process %d " % one.pid, "left"))


def who_closes_the_connection_is_not_served(d):
    peer = Peer()
    peer.enrol(d.path)
    peer.leave()
    check("says so, and nothing wrong before", peer.goes_stale())
    until("detached", d.detached)
    peer.enrol(d.path)
    check("and may come again", peer.agree())


def joining_twice_replaces(d):
    peer = Peer()
    peer.enrol(d.path)
    check("the new one serves", peer.join_again(d.path))
    until("the first is given back", lambda: d.said("process %d " % peer.pid, "left"), d.log)
    check("in its place", d.log().count(": enrolled") == 2, d.log())


joining_twice_replaces.options = ["--per-user", "2"]     # the old mapping is kept for a look


def join_again(path):
    """The new page is right and the old one becomes silent, its connection ended."""
    old, old_socket = me.page, me.socket
    me.kept.append([old_socket.detach()])
    old_socket = socket.socket(fileno=os.dup(me.kept[-1][0]))
    enrol(path)
    check("the new one agrees", agree())
    check("the old one is silent", library.client_goes_stale(old) == 0)
    check("hold is still there", socket.recv_fds(old_socket, 64, 8)[0][4:8] == bytes((HOLD, 0, 0, 0)))
    check("and then the end", old_socket.recv(64) == b"")
    return agree()


def hold_in_a_child(r, w):
    """One that has the connection, and waits for the pipe."""
    if os.fork() == 0:
        os.close(w)
        os.read(r, 1)
        os._exit(0)


def a_child_does_not_keep_its_parents_region(d):
    other = Peer(SOMEBODY)
    r, w = os.pipe()                    # the child ends when the other end is closed
    parent = Peer()
    os.close(r)
    parent.enrol(d.path)
    check("three links", len(d.attached()) == 3)
    parent.hold_in_a_child(r, w)
    parent.kill()
    until("the region is given back", lambda: d.said("process %d " % parent.pid, "left"), d.log)
    # The child has the connection, in which the links are.
    check("one program, for who comes and for the child", d.attached() == d.links and d.links)
    other.enrol(d.path)
    check("the same", len(d.attached()) == 3)
    other.leave()
    os.close(w)
    until("detached with the child", d.detached, d.log)


def a_shut_connection_counts_until_it_is_closed(d):
    """shutdown() looks like the end, but what is queued stays under way."""
    shutter = Peer()
    for _ in range(3):
        shutter.enrol(d.path)
        shutter.shut()
    check("EDQUOT", shutter.join(d.path) == errno.EDQUOT)
    check("held", d.attached())
    shutter.kill()
    until("detached", d.detached, d.log)


a_shut_connection_counts_until_it_is_closed.options = ["--per-user", "3"]


def shut():
    me.socket.shutdown(socket.SHUT_RDWR)
    me.kept.append([me.socket.detach()])
    check("silent then", goes_stale())
    forget()


def become(program):
    """Another program, in the same process. Python closes its sockets at exec, as the library does."""
    os.execv(program, [program, "60"])


def exec_ends_the_enrolment(d):
    peer = Peer()
    peer.enrol(d.path)
    check("attached", d.attached())
    peer.tell("become", "/bin/sleep")
    until("it left", lambda: d.said("process %d " % peer.pid, "left"), d.log)
    until("detached", d.detached)
    check("though the process lives", os.waitpid(peer.pid, os.WNOHANG) == (0, 0))


def unshare(flags):
    check("unshare", libc.unshare(flags) == 0, os.strerror(ctypes.get_errno()))


CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000


def pid_namespace():
    """In a new one, whose first process the caller becomes; the outer one waits for it."""
    unshare(CLONE_NEWPID)
    pid = os.fork()
    if pid:
        libc.prctl(1, signal.SIGKILL)           # PR_SET_PDEATHSIG, for both
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xff)
    libc.prctl(1, signal.SIGKILL)


def a_process_in_a_pid_namespace_is_served(d):
    peer = Peer(before=pid_namespace)
    check("it is the first one there", peer.own_pid() == 1)
    peer.enrol(d.path)
    check("by its own numbers", peer.agree(20000))
    peer.kill()
    until("it left", lambda: d.said(": left"), d.log)


def a_restart_harms_nobody(d):
    old, new = Peer(), Peer(SOMEBODY)
    old.enrol(d.path)
    old_links = d.attached()
    check("stops", d.kill(signal.SIGTERM) == 0, d.log())
    check("its socket is gone", not os.path.exists(d.path))
    d2 = Daemon(os.path.dirname(d.path), name="socket")
    try:
        new.enrol(d2.path)
        check("both are right", old.agree(20000) and new.agree(20000))
        check("with a program each", not set(old_links) & set(d2.attached()))
        old.leave()
        until("the old one's is gone", lambda: not any(map(link_exists, old_links)))
        check("the new one is right", new.agree())
        check("says so, and nothing wrong before", old.goes_stale())
        old.enrol(d2.path)
        check("and may come again", old.agree())
    finally:
        d2.stop()


def without_descriptors_it_waits(d):
    good, many = Peer(SOMEBODY), Peer(0)
    good.enrol(d.path)
    limits = resource.prlimit(d.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (len(d.descriptors()) + 8, limits[1]))
    many.tell("connect_many", d.path, 20)
    until("it says so", lambda: d.said("cannot take connections for now"), d.log)
    before = cpu_seconds(d.pid)
    check("the enrolled are served", good.agree(200000))
    used = cpu_seconds(d.pid) - before
    check("it does not spin", used < 0.1, used)
    resource.prlimit(d.pid, resource.RLIMIT_NOFILE, limits)
    # One for which there was a descriptor, but not one for its process too, was let go.
    check("they are taken later", many.hear() >= 19)


def cpu_seconds(pid):
    with open("/proc/%d/schedstat" % pid) as f:
        return int(f.read().split()[0]) / 1e9


def too_many_connections_are_refused(d):
    root = Peer(0)
    n = root.connect_many(d.path, 120)
    check("as many as there are descriptors for", 16 <= n <= 64, n, d.log())
    check("said once", d.log().count("connections, more are refused") == 1, d.log())
    check("they are not waited for", root.all_end())
    good = Peer()
    good.enrol(d.path)


too_many_connections_are_refused.before = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


def a_log_that_is_not_read_costs_lines(d):
    # The pipe is full.
    check("full", d.pipe_full())
    peer = Peer()
    peer.enrol(d.path)
    peer.leave()
    peer.goes_stale()
    peer.enrol(d.path)
    check("served", peer.agree())
    os.read(d.pipe[0], 1 << 20)
    peer.leave()
    end = time.monotonic() + TIMEOUT
    text = b""
    while b"were lost" not in text and time.monotonic() < end:
        if select.select([d.pipe[0]], [], [], 1)[0]:
            text += os.read(d.pipe[0], 65536)
    check("the loss is told", b"lines of this log were lost" in text, text)


class DaemonWithPipe(Daemon):
    def __init__(self, directory, *options):
        self.pipe = os.pipe()
        fcntl.fcntl(self.pipe[1], 1031, 4096)    # F_SETPIPE_SZ
        with os.fdopen(os.dup(self.pipe[1]), "wb") as log:
            super().__init__(directory, *options, stderr=log)
        text = b""
        while b"serving on" not in text:
            text += os.read(self.pipe[0], 4096)

    def pipe_full(self):
        os.set_blocking(self.pipe[1], False)
        try:
            while os.write(self.pipe[1], b"." * 512):
                pass
        except BlockingIOError:
            pass
        # The daemon's description is another one only if it was opened anew; it writes as it likes.
        os.set_blocking(self.pipe[1], True)
        return not select.select([], [self.pipe[1]], [], 0)[1]


a_log_that_is_not_read_costs_lines.daemon = DaemonWithPipe


def status_of(pid):
    with open("/proc/%d/status" % pid) as f:
        return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


def two_capabilities_and_a_filter(d):
    Peer().enrol(d.path)                # it has done all that it does
    status = status_of(d.pid)
    bpf_and_perfmon = 1 << 39 | 1 << 38
    for key in ("CapPrm", "CapEff"):
        check(key, int(status[key], 16) == bpf_and_perfmon, status[key])
    for key in ("CapInh", "CapAmb", "CapBnd"):
        check(key, int(status[key], 16) == 0, status[key])
    check("no new privileges", status["NoNewPrivs"] == "1", status)
    check("a filter", status["Seccomp"] == "2", status)


def with_a_user():
    """There is a user cputimed, in a mount namespace of the daemon's own."""
    unshare(CLONE_NEWNS)
    passwd = tempfile.NamedTemporaryFile("w", delete=False)
    with open("/etc/passwd") as f:
        passwd.write(f.read() + "cputimed:x:64999:64998::/:/bin/false\n")
    passwd.close()
    os.chmod(passwd.name, 0o644)
    check("mount", libc.mount(b"none", b"/", None, 0x4000 | 1 << 18, None) == 0)     # MS_REC, MS_PRIVATE
    check("mount", libc.mount(passwd.name.encode(), b"/etc/passwd", None, 4096, None) == 0)  # MS_BIND
    os.unlink(passwd.name)


def it_becomes_its_own_user(d):
    peer = Peer()
    peer.enrol(d.path)
    check("served", peer.agree())
    status = status_of(d.pid)
    check("user", status["Uid"].split() == ["64999"] * 4, status["Uid"])
    check("group", status["Gid"].split() == ["64998"] * 4 and status["Groups"].strip() == "", status)
    check("capabilities", int(status["CapEff"], 16) == 1 << 39 | 1 << 38, status["CapEff"])


it_becomes_its_own_user.before = with_a_user


def it_needs_no_more_than_the_unit_gives(d):
    peer = Peer()
    peer.enrol(d.path)
    check("served", peer.agree())
    status = status_of(d.pid)
    check("user", status["Uid"].split() == [str(SOMEBODY)] * 4, status["Uid"])
    check("capabilities", int(status["CapPrm"], 16) == 1 << 39 | 1 << 38 and
          int(status["CapInh"], 16) == 0 and int(status["CapAmb"], 16) == 0, status)


it_needs_no_more_than_the_unit_gives.prefix = [
    "setpriv", "--reuid=%d" % SOMEBODY, "--regid=%d" % SOMEBODY, "--clear-groups", "--no-new-privs",
    "--inh-caps=-all,+bpf,+perfmon", "--ambient-caps=-all,+bpf,+perfmon",
    "--bounding-set=-all,+bpf,+perfmon"]
it_needs_no_more_than_the_unit_gives.mode = 0o777


def in_a_container_it_says_no(d):
    peer = Peer()
    # From outside its process is nobody at all; that is what it says then.
    check("EPERM", peer.join(d.path) == errno.EPERM)
    check("alive", d.said("refused"))


in_a_container_it_says_no.prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def a_program_that_cannot_be_loaded_is_refused(d):
    """Its capabilities are those of a user namespace only, which the kernel does not take for any."""
    peer = Peer()
    for _ in range(5):
        check("EPERM", peer.join(d.path) == errno.EPERM)
    check("said once", d.log().count("CAP_BPF and CAP_PERFMON") == 1, d.log())


a_program_that_cannot_be_loaded_is_refused.prefix = ["unshare", "--user", "--map-root-user"]


def options_are_checked(d):
    directory = os.path.dirname(d.path)

    def run(*args, **kwargs):
        return subprocess.run([CPUTIMED, *args], capture_output=True, text=True, timeout=TIMEOUT,
                              **kwargs)

    for args, words in [(["--what"], ["--what"]), (["--per-user"], ["--per-user"]),
                        (["--per-user", "0"], ["1 to 1024"]), (["--per-user", "1025"], ["1025"]),
                        (["--per-user", "9x"], ["9x"]), (["--log-level", "x"], ["client", "x"]),
                        (["--socket", ""], ["''"]), (["--socket", "/" * 200], ["socket"]),
                        (["x"], ["x"]), (["-x"], ["-x"]), (["--help=1"], ["--help=1"])]:
        p = run(*args)
        check("usage", p.returncode == 2 and p.stdout == "" and p.stderr.count("\n") == 1 and
              all(w in p.stderr for w in words), p)
    p = run("--help")
    check("help", p.returncode == 0 and "--per-user" in p.stdout and p.stderr == "", p)
    p = run("--version")
    check("version", p.returncode == 0 and p.stdout.startswith("cputimed ") and p.stderr == "", p)
    p = run("--socket", d.path)
    check("in use", p.returncode == 1 and "in use" in p.stderr, p)
    plain = os.path.join(directory, "file")
    open(plain, "w").close()
    p = run("--socket", plain)
    check("no socket there", p.returncode == 1 and os.path.isfile(plain), p)
    os.chmod(directory, 0o777)
    p = run("--socket", os.path.join(directory, "mine"), user=NOBODY, group=NOBODY, extra_groups=[])
    check("without privileges", p.returncode == 1 and "CAP_BPF" in p.stderr, p)
    # What was left behind is replaced.
    d.kill(signal.SIGKILL)
    check("left behind", os.path.exists(d.path))
    d2 = Daemon(directory)
    Peer().enrol(d2.path)
    check("SIGINT", d2.kill(signal.SIGINT) == 0, d2.log())


def the_service_manager_is_told(d):
    directory = os.path.dirname(d.path)
    if not supports_systemd():
        raise Skip("built without libsystemd")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.path.join(directory, "activated"))
    os.chmod(os.path.join(directory, "activated"), 0o666)
    listener.listen(16)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(os.path.join(directory, "notify"))
    os.chmod(os.path.join(directory, "notify"), 0o666)
    notify.settimeout(TIMEOUT)

    def start():
        os.environ["LISTEN_PID"] = str(os.getpid())
        os.environ["LISTEN_FDS"] = "1"
        os.environ["NOTIFY_SOCKET"] = os.path.join(directory, "notify")
        os.dup2(listener.fileno(), 3)
        os.set_inheritable(3, True)     # also if it was that one already
        os.execv(CPUTIMED, [CPUTIMED])

    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(d.log_path, os.O_WRONLY | os.O_APPEND), 2)
        start()
    check("ready", b"READY=1" in notify.recv(1024))
    peer = Peer()
    peer.enrol(os.path.join(directory, "activated"))
    check("status", b"STATUS=1 processes enrolled, the program is attached" in notify.recv(1024))
    peer.leave()
    check("status", b"STATUS=0 processes enrolled, the program is not" in notify.recv(1024))
    os.kill(pid, signal.SIGTERM)
    check("stopping", b"STOPPING=1" in notify.recv(1024))
    check("and stopped", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0)
    check("the socket is the manager's", os.path.exists(os.path.join(directory, "activated")))


def supports_systemd():
    return b"libsystemd" in subprocess.run(["ldd", CPUTIMED], capture_output=True).stdout


TESTS = [
    a_process_enrols_itself_and_its_page_agrees,
    nobody_enrolled_nothing_attached,
    a_page_cannot_be_written,
    the_program_cannot_be_detached,
    no_process_can_enrol_another,
    a_join_before_hello_does_not_count,
    a_process_that_is_gone_is_not_enrolled,
    nobody_gets_another_s_page,
    what_breaks_the_protocol_ends_it,
    another_page_version_is_refused,
    silent_clients_cost_nobody_anything,
    a_client_that_does_not_read_costs_nobody_anything,
    floods_cost_nobody_anything,
    a_user_has_a_limit,
    regions_that_are_kept_count,
    memory_has_a_limit_too,
    programs_that_are_kept_have_an_end,
    a_killed_daemon_harms_nobody,
    a_stopped_daemon_harms_nobody,
    who_closes_the_connection_is_not_served,
    joining_twice_replaces,
    a_child_does_not_keep_its_parents_region,
    a_shut_connection_counts_until_it_is_closed,
    exec_ends_the_enrolment,
    a_process_in_a_pid_namespace_is_served,
    a_restart_harms_nobody,
    without_descriptors_it_waits,
    too_many_connections_are_refused,
    a_log_that_is_not_read_costs_lines,
    two_capabilities_and_a_filter,
    it_becomes_its_own_user,
    it_needs_no_more_than_the_unit_gives,
    in_a_container_it_says_no,
    a_program_that_cannot_be_loaded_is_refused,
    options_are_checked,
    the_service_manager_is_told,
]


def run(test):
    """None, or what was not so."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, getattr(test, "mode", 0o755))
        kwargs = {"preexec_fn": test.before} if hasattr(test, "before") else {}
        if hasattr(test, "prefix"):
            kwargs["prefix"] = test.prefix
        daemon = getattr(test, "daemon", Daemon)(directory, *getattr(test, "options", []), **kwargs)
        try:
            test(daemon)
        except Failed as e:
            return "%s\n%s" % (e, daemon.log())
        except Exception as e:
            if isinstance(e, Skip):
                raise
            return "%s\n%s" % (traceback.format_exc(), daemon.log())
        finally:
            for peer in list(Peer.everybody):
                peer.kill()
            daemon.stop()
    return None


def main():
    if os.getuid() != 0:
        print("1..0 # SKIP not root, who alone may load the page's program")
        return 0
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        print("1..0 # SKIP this kernel has no BTF")
        return 0
    tests = [t for t in TESTS if not sys.argv[3:] or t.__name__ in sys.argv[3:]]
    print("1..%d" % len(tests), flush=True)
    failed = 0
    for n, test in enumerate(tests, 1):
        begin = time.monotonic()
        try:
            evidence = run(test)
        except Skip as e:
            print("ok %d %s # SKIP %s" % (n, test.__name__, e), flush=True)
            continue
        for line in (evidence or "").splitlines():
            print("# " + line)
        print("# %.1f s" % (time.monotonic() - begin))
        print("%s %d %s" % ("not ok" if evidence else "ok", n, test.__name__), flush=True)
        failed += evidence is not None
    return 1 if failed else 0


sys.exit(main())
