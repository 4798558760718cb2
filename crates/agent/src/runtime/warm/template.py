"""Processes that have imported modules before a task needs them: the template, standbys, and what standbys become.

The agent starts this as the *template*. It imports the configured modules, and then forks a *standby* for each
container that the agent names. It runs no code of a task and reads from the agent alone.

A standby waits for the process outside of its sandbox, which is trusted as the agent is, and receives from it alone
what to become a member of. It enters that, and forks the *warm process*, which gives up all rights as the supervisor
in the sandbox does before it starts a program. Only then does the warm process listen to the sandbox: a program that
starts there hands over its arguments, environment and files, and the warm process becomes that program. The standby
stays outside, and reports how it ends.

The agent appends `program.py` to this file. Read `serve`, then `stand_by`, `enter`, `confine`, and there
`await_program` and `become`.
"""

import _thread
import base64
import collections
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pkgutil
import random
import resource
import runpy
import select
import signal
import site
import socket
import stat
import struct
import sys
import sysconfig
import threading
import time
import warnings

libc = ctypes.CDLL(None, use_errno=True)

# Of <linux/prctl.h>, <linux/seccomp.h>, <linux/capability.h>, <sched.h>.
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_MM = 35
PR_SET_MM_MAP = 14
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
MOST_CAPABILITIES = 64
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MOST_OF_MESSAGE = 1 << 20
"""Bytes of a message of agent or supervisor at most."""
MOST_OF_REQUEST = 64 << 20
"""Bytes of what a program hands over at most; the kernel allows a program less."""

NOT_AT_START = ("sitecustomize", "usercustomize")
"""Modules that a start looks for and that the task may have while the template has not."""


class Refused(Exception):
    """A program cannot be run by this process; it starts as always."""


# The template


class Recorded(os._Environ):
    """An environment that notes which variables are asked for: programs for which they are set otherwise cannot use
    what was imported without them."""

    asked = set()

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)


class Imported:
    """What the imports have made of this process, for comparison with what a program expects."""

    def __init__(self, names):
        self.env = environment_at_start()
        self.threads_can_be_main = threads_can_be_main()
        before = dict(os.environ)
        self.standard = [entry for entry in sys.path if is_standard(entry)]
        recorded = os.environ
        plain = recorded.__class__
        recorded.__class__ = Recorded
        try:
            for name in names:
                importlib.import_module(name)
        finally:
            recorded.__class__ = plain
        self.asked = {key if isinstance(key, str) else os.fsdecode(key) for key in Recorded.asked}
        after = dict(os.environ)
        self.set_by_imports = {key: value for key, value in after.items() if before.get(key) != value}
        self.path = list(sys.path)
        # Those that every start imports are found before any directory of a program is searched.
        self.top = {name.partition(".")[0] for name in sys.modules} - set(AT_START)
        self.top -= {"__main__", "__mp_main__"}
        self.top -= set(sys.builtin_module_names)
        self.top.update(NOT_AT_START)
        self.files = {}
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and os.path.isabs(path):
                self.files.setdefault(path, identity_of(path))

    def changed(self):
        """The first file of an imported module that is another one now; None = all are as they were."""
        for path, known in self.files.items():
            if identity_of(path) != known:
                return path
        return None


def environment_at_start():
    """The variables with which this process was started. The interpreter adds one where it chooses a locale itself."""
    with open("/proc/self/environ", "rb") as file:
        entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0") if entry]
    return {name: value for name, _equals, value in entries}


def is_standard(entry):
    """Whether this entry of the search path is one of the standard library, which comes before all packages."""
    paths = sysconfig.get_paths()
    own = {paths["stdlib"], paths["platstdlib"]}
    own |= {os.path.join(path, "lib-dynload") for path in own}
    return entry in own or os.path.basename(entry) == "python%d%d.zip" % sys.version_info[:2]


def identity_of(path):
    """By what a file differs from others, or None."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def serve(imports):
    """The template: imports, reports, and forks at the agent's orders until its end closes."""
    global imported
    # No module sees how this process was called, nor the empty directory in which it was.
    sys.argv[:] = [""]
    del sys.path[0]
    agent = socket.socket(fileno=os.dup(0))
    set_inheritable_null(0)
    started = time.monotonic()
    descriptors, memory = set(open_descriptors()), shared_memory()
    try:
        if may_change_interpreter(None) and os.geteuid() != 0:
            raise Refused("the interpreter belongs to the user of this agent, whom tasks run as; use one of root's")
        imported = Imported(imports)
        left = sorted(describe(fd) for fd in set(open_descriptors()) - descriptors)
        if left:
            raise Refused("the imports leave files open, which tasks cannot share: " + ", ".join(left))
        shared = sorted(shared_memory() - memory)
        if shared:
            raise Refused("the imports share memory, which tasks would write to: " + ", ".join(shared))
        if threading.active_count() > 1:
            raise Refused("the imports leave threads running, which tasks cannot have")
    except BaseException as error:
        send(agent, {"failed": "%s: %s" % (type(error).__name__, error)})
        return
    flush_all()
    # No process waits for standbys.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    # What the imports have made is shared, not copied when it is looked through.
    gc.freeze()
    send(agent, {"ready": {"resident_bytes": resident_bytes(), "seconds": time.monotonic() - started}})
    while True:
        message, descriptors = receive(agent, MOST_OF_MESSAGE)
        if message is None:
            return
        path = imported.changed()
        if path is not None:
            send(agent, {"changed": path})
            return
        try:
            pid = os.fork()
        except OSError:
            # The container starts without.
            pid = -1
        if pid == 0:
            agent.close()
            try:
                stand_by(descriptors)
            finally:
                os._exit(1)
        for fd in descriptors:
            os.close(fd)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def flush_all():
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    libc.fflush(None)


def open_descriptors():
    """Those that are open now, but for the one that it takes to ask."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with contextlib.suppress(OSError):
            os.fstat(fd)
            found.append(fd)
    return found


def shared_memory():
    """The ranges of memory that are, or can be made, writable for all processes which have them."""
    found, entry = set(), []
    with open("/proc/self/smaps") as file:
        for line in file:
            name, *values = line.split()
            if name == "VmFlags:":
                if "sh" in values and "mw" in values:
                    found.add(" ".join((entry[0], *entry[5:])))
            elif not name.endswith(":"):
                entry = [name, *values]
    return found


def describe(fd):
    try:
        return os.readlink("/proc/self/fd/%d" % fd)
    except OSError:
        return "descriptor %d" % fd


def set_inheritable_null(fd):
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, fd)
    os.close(null)


# Messages


def send(connection, message, descriptors=()):
    data = json.dumps(message).encode() + b"\n"
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("%di" % len(descriptors), *descriptors))]
    try:
        connection.sendmsg([data], rights if descriptors else [])
    except OSError:
        # Its end is noticed where it is waited for.
        pass


def receive(connection, most):
    """The next message with its descriptors; (None, []) = the other end has closed."""
    while True:
        data, ancillary, _flags, _address = connection.recvmsg(most, socket.CMSG_SPACE(253 * 4))
        descriptors = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                count = len(content) // 4
                descriptors.extend(struct.unpack("%di" % count, content[: count * 4]))
        if not data:
            return None, []
        return json.loads(data), descriptors


# The standby


def stand_by(descriptors):
    """A standby of one container, from its birth to its end. The first descriptor is its connection with the process
    outside of the sandbox, the others are files through which it enters the container's control groups."""
    os.setsid()
    reset_signals()
    control = socket.socket(fileno=descriptors[0])
    for fd in descriptors[1:]:
        os.write(fd, b"0")
    for fd in (1, 2):
        set_inheritable_null(fd)
    close_all_but({0, 1, 2, control.fileno()}, open_descriptors())
    order, descriptors = receive(control, MOST_OF_MESSAGE)
    if order is None:
        os._exit(0)
    # From `enter` until the warm process is confined no path is opened: the files of the sandbox are the task's, even
    # those below /proc, and this process has all rights.
    if may_change_interpreter(order["identity"]):
        reason = "the interpreter belongs to the task's user, who could change it through the warm process"
        send(control, {"failed": reason})
        os._exit(0)
    set_oom_score(str(order["oom_score_adj"]))
    # Where the task has the same user, it could change the warm process before that is confined.
    check(prctl(PR_SET_DUMPABLE, 0), "keep others from looking at it")
    named = dict(zip(order["descriptors"], descriptors))
    own, program_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    has_processes = enter(named)
    # At the bottom of a program's stack there is no frame of ours: the interpreter itself calls these, one by one.
    steps = []
    first = functools.partial(first_step, steps, order, named, has_processes, control, own, program_end)
    steps.append(first)
    if imported.threads_can_be_main:
        start_without_frames(steps)
    # There are frames of ours below the program's, which show when it asks for its stack.
    call_in_turn(steps)


def may_change_interpreter(identity):
    """Whether a task of this user could change the file of the interpreter: that of a running program is reached through
    the mounts of the host, which are not read-only as those of the sandbox."""
    found = os.stat("/proc/self/exe")
    if identity is None:
        return found.st_uid == os.geteuid() or os.access("/proc/self/exe", os.W_OK, effective_ids=True)
    return bool(
        identity["uid"] in (0, found.st_uid)
        # Where others may write by an access control list, its mask shows as what the group may.
        or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def start_without_frames(steps):
    """Calls each of these functions in turn on a thread, and waits for ever. At the bottom of the thread's stack is no
    frame: a process that one of them forks off has the thread as its only one, and what the next runs is as in a
    program that the interpreter itself has started."""
    threading.stack_size(stack_size())
    _thread.start_new_thread(collections.deque, (map(functools.partial.__call__, steps), 0))
    forever = _thread.allocate_lock()
    forever.acquire()
    forever.acquire()


def call_in_turn(steps):
    collections.deque(map(functools.partial.__call__, steps), 0)


def threads_can_be_main():
    """Whether a process that was forked on a thread can end as others do; not in Python 3.13.0."""
    code = 7
    pid = os.fork()
    if pid == 0:
        steps = []
        steps.append(functools.partial(fork_and_end, steps, code))
        start_without_frames(steps)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code


def fork_and_end(steps, code):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid != 0:
        os._exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0))
    steps.append(functools.partial(ctypes.pythonapi.Py_Exit, code))


def stack_size():
    """Bytes of the stack of a program, as the kernel would let it grow."""
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    size = 64 << 20 if soft == resource.RLIM_INFINITY else min(max(soft, 8 << 20), 512 << 20)
    return size // 65536 * 65536


def reset_signals():
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    # As the interpreter sets these when it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def close_all_but(kept, descriptors):
    for fd in descriptors:
        if fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)


def enter(named):
    """Becomes a member of the namespaces of the sandbox; that of processes is entered by children only, and for the
    thread that makes them. The others are entered while there is one thread. Returns whether processes have one."""
    differing = {name: fd for name, fd in named.items() if name in NAMESPACES and differs(name, fd)}
    if "outer_user" in named and differs("user", named["outer_user"]):
        setns(named["outer_user"], CLONE_NEWUSER)
    for name in sorted(differing):
        if name != "pid":
            setns(differing[name], 0)
    os.fchdir(named["root"])
    os.chroot(".")
    os.chdir("/")
    return "pid" in differing


NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "uts")


def differs(name, fd):
    own, other = os.stat("/proc/self/ns/" + name), os.fstat(fd)
    return (own.st_dev, own.st_ino) != (other.st_dev, other.st_ino)


def are_same(one, other):
    """Whether two descriptors are of the same namespace."""
    one, other = os.fstat(one), os.fstat(other)
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def setns(fd, kind):
    check(libc.setns(fd, kind), "setns")


def check(result, what):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, "%s: %s" % (what, os.strerror(error)))


def prctl(option, *arguments):
    padded = [ctypes.c_ulong(value) for value in (list(arguments) + [0, 0, 0, 0])[:4]]
    return libc.prctl(option, *padded)


def first_step(steps, order, named, has_processes, control, own, program_end):
    """In the standby: forks, and waits for the end. In the warm process: returns when there is a program to run."""
    try:
        threading.stack_size(0)
        if has_processes:
            setns(named["pid"], CLONE_NEWPID)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid != 0:
            program_end.close()
            close_all_but(set(), named.values())
            watch(pid, control, own)
            os._exit(0)
        own.close()
        confine(order, named)
        send(control, {"confined": True})
        control.close()
        # From here on it reads what a task sends.
        await_program(socket.socket(fileno=named["listener"]), program_end, steps)
    except BaseException as error:
        with contextlib.suppress(Exception):
            send(control, {"failed": "%s: %s" % (type(error).__name__, error)})
        os._exit(1)


def watch(pid, control, own):
    """Waits for the end of the warm process, and reports it to the program that it has become. Reads nothing; where one
    of the two ends of the sandbox is gone, ends it."""
    poll = select.poll()
    patience = 50
    with contextlib.suppress(OSError, AttributeError):
        poll.register(os.pidfd_open(pid), select.POLLIN)
        # Of other children nothing wakes it.
        patience = 1000
    poll.register(control, 0)
    poll.register(own, 0)
    while True:
        status = reap(pid)
        if status is not None:
            with contextlib.suppress(OSError):
                own.send(struct.pack("=i", status))
            return
        for fd, _events in poll.poll(patience):
            if fd in (control.fileno(), own.fileno()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                poll.unregister(fd)


def reap(pid):
    """The status of this child, once it has ended. Others, which a program can have made children of this process, are
    waited for as well: they would stay until this process ends."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, found = os.waitpid(-1, os.WNOHANG)
            if ended == pid:
                status = found
            elif ended == 0:
                break
    return status


# The warm process, until it is confined


class SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def confine(order, named):
    """Does what the supervisor does for a process in the sandbox before its program, in the same order: groups, user,
    capabilities, no new privileges, filters of system calls."""
    for number, soft, hard in order["rlimits"]:
        resource.setrlimit(number, (limit_of(soft), limit_of(hard)))
    os.umask(order["umask"])
    identity = order["identity"]
    if identity is not None:
        os.setgroups(identity["groups"])
    if not are_same(named["inner_user"], named["outer_user"]):
        become_user(identity)
        identity = None
        setns(named["inner_user"], CLONE_NEWUSER)
    for number in range(MOST_CAPABILITIES):
        held = prctl(PR_CAPBSET_READ, number)
        if held < 0:
            break
        if held:
            check(prctl(PR_CAPBSET_DROP, number), "drop a capability")
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    become_user(identity)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    check(libc.capset(header, none), "drop all capabilities")
    check(prctl(PR_SET_NO_NEW_PRIVS, 1), "keep it from gaining privileges")
    for filter in order["filters"]:
        code = base64.b64decode(filter)
        buffer = ctypes.create_string_buffer(code, len(code))
        program = SockFprog(len(code) // 8, ctypes.addressof(buffer))
        result = libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(program), 0, 0)
        check(result, "filter its system calls")
    close_all_but({named["listener"]}, named.values())
    os.setpgid(0, 0)
    # A program that starts has it.
    check(prctl(PR_SET_DUMPABLE, 1), "let its own user look at it")


def limit_of(value):
    return resource.RLIM_INFINITY if value is None else value


def become_user(identity):
    if identity is not None:
        uid, gid = identity["uid"], identity["gid"]
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
