"""Writes what a program can see of how it was started, as JSON, to the file of its first argument."""

import gc
import inspect
import json
import locale
import os
import random
import resource
import signal
import site
import sys
import threading
import time

NAMES = (
    "Umask Uid Gid Groups CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters SigBlk "
    "Cpus_allowed_list Mems_allowed_list Name Threads"
).split()


def read(name):
    with open("/proc/self/" + name) as file:
        return file.read()


def stream(name):
    found = getattr(sys, name)
    return {
        "encoding": found.encoding,
        "errors": found.errors,
        "line_buffering": found.line_buffering,
        "write_through": found.write_through,
        "mode": found.mode,
        "name": found.name,
        "newlines": found.newlines,
        "buffer": type(found.buffer).__name__,
        "is_original": getattr(sys, "__%s__" % name) is found,
    }


def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = [os.readlink("/proc/self/fd/" + number), os.get_inheritable(int(number))]
        except OSError:
            pass
    return found


status = dict(line.split(":\t", 1) for line in read("status").splitlines() if ":\t" in line)
names = sorted(globals())
seen = {
    "status": {name: status.get(name) for name in NAMES},
    "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in sorted(os.listdir("/proc/self/ns"))},
    "files": {name: read(name) for name in ("cgroup", "limits", "mountinfo", "oom_score_adj", "personality", "comm")},
    "links": {name: os.readlink("/proc/self/" + name) for name in ("cwd", "exe", "root")},
    "descriptors": descriptors(),
    "cwd": os.getcwd(),
    "environ": dict(os.environ),
    "argv": sys.argv,
    "orig_argv": list(getattr(sys, "orig_argv", [])),
    "path": sys.path,
    "flags": str(sys.flags),
    "executables": [sys.executable, sys._base_executable, sys.prefix, sys.base_prefix, sys.exec_prefix],
    "site": [site.ENABLE_USER_SITE, site.getuserbase(), site.getusersitepackages()],
    "streams": {name: stream(name) for name in ("stdin", "stdout", "stderr")},
    "names": names,
    "main": [
        __name__,
        str(globals().get("__file__")),
        [__spec__.name, __spec__.origin] if __spec__ else None,
        type(__loader__).__name__ if not isinstance(__loader__, type) else __loader__.__name__,
        str(__package__),
        str(globals().get("__cached__")),
    ],
    "frames": [[frame.filename, frame.function] for frame in inspect.stack()],
    "threads": [thread.name for thread in threading.enumerate()],
    "is_main": threading.current_thread() is threading.main_thread(),
    "is_first": threading.get_native_id() == os.getpid(),
    "stack_size": threading.stack_size(),
    "signals": {
        number: str(signal.getsignal(number)).partition(" at 0x")[0] for number in sorted(signal.valid_signals())
    },
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "limits": [resource.getrlimit(number) for number in range(16)],
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "processors": sorted(os.sched_getaffinity(0)),
    "group": os.getpgrp() != 0,
    "session": os.getsid(0),
    "locale": [locale.setlocale(locale.LC_CTYPE), locale.getpreferredencoding(), sys.getfilesystemencoding()],
    "time": time.tzname,
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    "gc": [gc.isenabled(), gc.get_threshold()],
    "recursion": sys.getrecursionlimit(),
    "may_write": [os.access(path, os.W_OK) for path in ("/", "/etc", "/usr", os.getcwd(), "/tmp")],
}
with open(sys.argv[1], "w") as file:
    json.dump(seen, file)
with open(sys.argv[1] + ".random", "w") as file:
    file.write(str(random.random()))
