

# The warm process, until it is a program


def await_program(listener, program_end, steps):
    """Waits for the first program that it can become, and becomes it. Those that it cannot become start as always."""
    while True:
        connection, _address = listener.accept()
        descriptors = []
        try:
            request, descriptors = read_request(connection)
            prepare(request)
        except (Refused, OSError, ValueError, KeyError, TypeError) as error:
            close_all_but(set(), descriptors)
            send(connection, {"no": str(error)})
            connection.close()
            continue
        try:
            lowest = max(request["descriptors"]) + 1
            connection, listener, program_end = (
                move_socket(own, lowest) for own in (connection, listener, program_end)
            )
            place(descriptors, request["descriptors"], lowest)
            become(request, steps)
        except BaseException as error:
            send(connection, {"no": "%s: %s" % (type(error).__name__, error)})
            raise
        send(connection, {"go": os.getpid()}, [program_end.fileno()])
        # Where the relay has waited long enough, it has started the program itself.
        if connection.recv(1) != b"!":
            os._exit(1)
        connection.close()
        listener.close()
        program_end.close()
        return


def move_socket(own, lowest):
    """The same socket under a number that the program does not need."""
    moved = socket.socket(fileno=fcntl.fcntl(own.fileno(), fcntl.F_DUPFD_CLOEXEC, lowest))
    moved.settimeout(own.gettimeout())
    own.close()
    return moved


def place(descriptors, numbers, lowest):
    """Gives descriptors these numbers."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest) for fd in descriptors]
    close_all_but(set(), descriptors)
    for fd, number in zip(moved, numbers):
        os.dup2(fd, number)
        os.close(fd)


def read_request(connection):
    connection.settimeout(30)
    data, ancillary, _flags, _address = connection.recvmsg(4, socket.CMSG_SPACE(253 * 4))
    descriptors = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            count = len(content) // 4
            descriptors.extend(struct.unpack("%di" % count, content[: count * 4]))
    while len(data) < 4:
        more = connection.recv(4 - len(data))
        if not more:
            break
        data += more
    length = struct.unpack("=I", data)[0] if len(data) == 4 else MOST_OF_REQUEST + 1
    if length > MOST_OF_REQUEST or not descriptors:
        close_all_but(set(), descriptors)
        raise Refused("the request cannot be read")
    parts = []
    while length > 0:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            close_all_but(set(), descriptors)
            raise Refused("the request broke off")
        parts.append(part)
        length -= len(part)
    request = json.loads(b"".join(parts))
    if len(request["descriptors"]) != len(descriptors):
        close_all_but(set(), descriptors)
        raise Refused("files are missing from the request")
    return request, descriptors


def bytes_of(text):
    """Arguments and variables are bytes, each of which is a character of the request."""
    return text.encode("latin-1")


def text_of(text):
    return os.fsdecode(bytes_of(text))


def prepare(request):
    """Decides whether this process can become the program as if it had been started; changes only what a start would
    find changed too, and what the next program sets again."""
    env = {text_of(name): text_of(value) for name, value in request["env"]}
    for name in imported.asked | set(imported.set_by_imports):
        expected = imported.env.get(name)
        if env.get(name) != expected:
            raise Refused("the imports depend on the variable %s, which is set otherwise" % name)
    if locale_of(env) != locale_of(imported.env) or env.get("LC_ALL") != imported.env.get("LC_ALL"):
        raise Refused("its locale is another one")
    os.chdir(bytes_of(request["cwd"]))
    take_surroundings(request, parse_status(request["status"]))
    compare_surroundings(request["status"], request["proc"])
    script = request["script"]
    if script is not None:
        check_script(bytes_of(script))
        first = os.path.dirname(os.path.realpath(text_of(script)))
    else:
        first = os.getcwd()
    user_site = user_site_of(env)
    if user_site and in_environment() and site.ENABLE_USER_SITE and os.path.isdir(user_site):
        raise Refused("there are packages of its user, which come elsewhere in virtual environments")
    own = [first] + python_path(env) + ([user_site] if user_site else [])
    for directory in own:
        shadow = shadowing(directory)
        if shadow:
            raise Refused("%r would be imported in place of what is imported" % shadow)
    path = imported.changed()
    if path is not None:
        raise Refused("%r is another file than the one that was imported" % path)
    request["first"], request["environment"] = first, env


def locale_of(env):
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        if env.get(name):
            return env[name]
    return ""


def python_path(env):
    text = env.get("PYTHONPATH")
    return [os.path.abspath(entry) for entry in text.split(os.pathsep)] if text else []


def user_site_of(env):
    base = env.get("PYTHONUSERBASE") or os.path.join(env.get("HOME", "/"), ".local")
    return os.path.join(base, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")


def shadowing(directory):
    """What in this directory would be imported in place of a module that is already imported, or None."""
    try:
        entries = os.listdir(directory)
    except OSError:
        return None
    for entry in entries:
        stem, dot, _suffix = entry.partition(".")
        if stem not in imported.top:
            continue
        path = os.path.join(directory, entry)
        if dot and entry.endswith(tuple(SUFFIXES)):
            return path
        if not dot and any(os.path.exists(os.path.join(path, "__init__" + suffix)) for suffix in SUFFIXES):
            return path
    return None


SUFFIXES = importlib.machinery.all_suffixes()


def check_script(script):
    try:
        found = os.stat(script)
        with open(script, "rb") as file:
            beginning = file.read(2)
    except OSError as error:
        raise Refused("the script cannot be read: %s" % error) from None
    is_archive = pkgutil.get_importer(os.fsdecode(script)) is not None
    sys.path_importer_cache.pop(os.fsdecode(script), None)
    is_compiled = script.endswith(b".pyc") or beginning == importlib.util.MAGIC_NUMBER[:2]
    if not stat.S_ISREG(found.st_mode) or is_archive or is_compiled:
        raise Refused("the script is no file of source text")


def take_surroundings(request, status):
    """Takes what the program's caller can have set, within the rights of the task."""
    os.umask(int(status["Umask"], 8))
    for number, soft, hard in request["rlimits"]:
        resource.setrlimit(number, (limit_of(soft), limit_of(hard)))
    os.sched_setaffinity(0, processors(status["Cpus_allowed_list"]))
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice != request["nice"]:
        os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
    set_oom_score(request["proc"]["oom_score_adj"].strip())


def processors(text):
    """The numbers in a list as the kernel writes it: "0-3,8"."""
    found = set()
    for part in text.strip().split(","):
        first, _dash, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def set_oom_score(wanted):
    with open("/proc/self/oom_score_adj") as file:
        own = file.read().strip()
    # To write what it is already needs a right, too.
    if own != wanted:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(wanted)


COMPARED = (
    "Uid", "Gid", "Groups", "Umask", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "Seccomp_filters", "Speculation_Store_Bypass", "Cpus_allowed", "Mems_allowed",
)  # fmt: skip


def compare_surroundings(status, proc):
    """Refuses unless the kernel shows of this process what it shows of the program: identity, capabilities, filters,
    namespaces, control groups, limits, mounts. A process that differs in any of these never becomes a program."""
    own = parse_status(read_proc("status"))
    theirs = parse_status(status)
    for name in COMPARED:
        if own.get(name) != theirs.get(name):
            raise Refused("%s is %r there and %r here" % (name, theirs.get(name), own.get(name)))
    for name, expected in proc.items():
        if read_proc(name) != expected:
            raise Refused("/proc/self/%s differs" % name)


def parse_status(text):
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def read_proc(name):
    if name.startswith("ns/") or name == "root":
        return os.readlink("/proc/self/" + name)
    with open("/proc/self/" + name, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


# The program


def become(request, steps):
    """Makes of this process what the interpreter makes of itself before it runs a program, and leaves the rest to
    `steps`."""
    set_signals(request["status"])
    set_environment(request["environment"])
    found = text_of(request["interpreter"])
    sys.executable = found
    if not in_environment():
        sys._base_executable = found
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [text_of(argument) for argument in request["argv"]]
    arguments = [text_of(argument) for argument in request["arguments"]]
    unbuffered = request["unbuffered"]
    set_streams(unbuffered)
    set_path(request["first"])
    reseed()
    set_multiprocessing(found)
    show(request["argv"], request["env"])
    name = ctypes.c_char_p(os.path.basename(os.fsencode(found))[:15])
    check(libc.prctl(PR_SET_NAME, name, 0, 0, 0), "set its name")
    main = sys.modules["__main__"].__dict__
    for name in set(main) - set(OF_MAIN):
        del main[name]
    if request["script"] is not None:
        script = bytes_of(request["script"])
        sys.argv[:] = [text_of(request["script"]), *arguments]
        libc.fopen.restype = ctypes.c_void_p
        # As a start names it, but not in `argv`.
        script = absolute(script)
        file = libc.fopen(ctypes.c_char_p(script), ctypes.c_char_p(b"r"))
        if not file:
            raise Refused("the script cannot be opened")
        run = ctypes.pythonapi.PyRun_AnyFileExFlags
        run.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
        run.restype = ctypes.c_int
        run.errcheck = end
        steps.append(functools.partial(run, file, script, 1, None))
    else:
        sys.argv[:] = ["-m", *arguments]
        module = text_of(request["module"])
        steps.append(functools.partial(run_module, module))


class MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of <linux/prctl.h>."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
            "arg_start", "arg_end", "env_start", "env_end", "auxv",
        )),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]  # fmt: skip


def show(argv, env):
    """Has the kernel show these arguments and variables of this process, by which others recognise it. A kernel that
    was built without that shows those of the template."""
    fields = read_proc("stat").rpartition(")")[2].split()
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    parts = [
        b"".join(bytes_of(argument) + b"\0" for argument in argv),
        b"".join(bytes_of(name) + b"=" + bytes_of(value) + b"\0" for name, value in env),
    ]
    # Never freed: the kernel reads it as long as the process lives.
    start = libc.malloc(ctypes.c_size_t(sum(len(part) for part in parts) or 1))
    ctypes.memmove(start, b"".join(parts), sum(len(part) for part in parts))
    # Numbers of proc(5), counted from the field after the name, which is the third.
    known = {
        name: int(fields[number - 3])
        for name, number in (("start_code", 26), ("end_code", 27), ("start_stack", 28), ("start_data", 45),
                             ("end_data", 46), ("start_brk", 47))
    }  # fmt: skip
    between, end_of_all = start + len(parts[0]), start + sum(len(part) for part in parts)
    memory = MemoryMap(
        brk=libc.sbrk(ctypes.c_long(0)), arg_start=start, arg_end=between, env_start=between, env_end=end_of_all,
        auxv=0, auxv_size=0, exe_fd=0xFFFFFFFF, **known,
    )  # fmt: skip
    size = ctypes.c_ulong(ctypes.sizeof(memory))
    libc.prctl(PR_SET_MM, ctypes.c_ulong(PR_SET_MM_MAP), ctypes.byref(memory), size, ctypes.c_ulong(0))


def absolute(script):
    if script.startswith(b"/"):
        return script
    return os.getcwdb() + b"/" + script


def end(result, _function, _arguments):
    """What follows the program, whose exception was printed where `result` is not 0."""
    if result != 0 and getattr(sys, "last_type", None) is KeyboardInterrupt:
        end_by_interrupt()
    leave(1 if result != 0 else 0)


def leave(code):
    """Ends as the interpreter ends: waits for threads, calls what was registered, and finalizes."""
    ctypes.pythonapi.Py_Exit(ctypes.c_int(code))


def end_by_interrupt():
    """Ends by the signal, as the interpreter does with an interrupt that the program does not handle."""
    import atexit

    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    libc.fflush(None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def run_module(module):
    """Runs a module as `-m` does."""
    try:
        runpy._run_module_as_main(module, True)
    except SystemExit as error:
        code = error.code
        if code is None:
            leave(0)
        if isinstance(code, int):
            leave(code & 0xFF if -(2**63) <= code < 2**63 else 255)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        print(code, file=sys.stderr)
        leave(1)
    except BaseException as error:
        # Without the frame of this function.
        error.__traceback__ = error.__traceback__.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            end_by_interrupt()
        leave(1)
    leave(0)


def in_environment():
    return sys.prefix != sys.base_prefix


def set_signals(status):
    """A start leaves ignored signals ignored and blocked ones blocked."""
    shown = parse_status(status)
    ignored, blocked = int(shown["SigIgn"], 16), int(shown["SigBlk"], 16)
    for number in range(1, signal.NSIG):
        bit = 1 << (number - 1)
        if ignored & bit and number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
    mask = [number for number in range(1, signal.NSIG) if blocked & (1 << (number - 1))]
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def set_environment(env):
    # The interpreter sets it for itself where it chooses a locale.
    coerced = os.environ.get("LC_CTYPE") if "LC_CTYPE" not in imported.env else None
    os.environ.clear()
    os.environ.update(env)
    os.environ.update(imported.set_by_imports)
    if coerced is not None and "LC_CTYPE" not in env:
        os.environ["LC_CTYPE"] = coerced
    time.tzset()


def set_streams(unbuffered):
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = make_stream(fd, name, unbuffered)
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)
    if unbuffered:
        for name in ("stdin", "stdout", "stderr"):
            libc.setvbuf(ctypes.c_void_p.in_dll(libc, name), None, 2, 0)


def make_stream(fd, name, unbuffered):
    """A standard stream, as the interpreter makes it."""
    template = getattr(sys, "__%s__" % name)
    writes = name != "stdin"
    buffering = 0 if unbuffered and writes else -1
    try:
        buffer = open(fd, "wb" if writes else "rb", buffering, closefd=False)
    except OSError:
        return None
    raw = buffer.raw if buffering else buffer
    raw.name = "<%s>" % name
    line_buffering = not unbuffered and (raw.isatty() or name == "stderr")
    stream = io.TextIOWrapper(
        buffer, template.encoding, template.errors, "\n", line_buffering=line_buffering, write_through=unbuffered
    )
    stream.mode = "w" if writes else "r"
    return stream


def set_path(first):
    """The search path of modules, as a start makes it of the environment."""
    others = [entry for entry in imported.path if entry not in imported.standard]
    sys.path[:] = python_path(os.environ) + imported.standard
    site.USER_BASE = site.USER_SITE = None
    known = site.removeduppaths()
    if site.ENABLE_USER_SITE:
        site.addusersitepackages(known)
    for entry in others:
        if entry not in sys.path:
            sys.path.append(entry)
    sys.path.insert(0, first)
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


def reseed():
    random.seed()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()


def set_multiprocessing(executable):
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()
        process._current_process._config["authkey"] = process.AuthenticationString(os.urandom(32))
    spawn = sys.modules.get("multiprocessing.spawn")
    if spawn is not None:
        spawn.set_executable(executable)
