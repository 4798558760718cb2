"""Tasks that users wait for, and the way to their services through master and agent."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from measure.cluster import HOST, Cluster, Failed, environment, free_port, wait_for
from measure.facts import Watch, memory_kb
from measure.figures import Figure, Plan
from measure.load import closed_loop, request
from measure.results import Outcome, Skipped, Value
from measure.stores import own

SERVER = pathlib.Path(__file__).resolve().parent.parent / "server.py"
# Of a web socket; the answer to this key is not checked.
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAA"}
BUFFER = 1 << 20
MIB = 1 << 20
FIRST_LINE = "bench: the first line"


@dataclass(frozen=True)
class Served:
    """A task that serves: where it is directly, and through the proxy."""

    cluster: Cluster
    task: str
    # On this machine.
    port: int
    token: str

    @property
    def path(self) -> str:
        return f"/proxy/{self.task}/"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@contextlib.contextmanager
def served(cluster: Cluster, user: str = "determined") -> Iterator[Served]:
    """A command of a user that runs `server.py`, until the end."""
    port = free_port()
    config = {
        "entrypoint": ["python3", "-c", SERVER.read_text(), str(port)],
        "resources": {"slots": 0},
        "environment": {"proxy_ports": [{"proxy_port": port, "default_service_id": True}]},
    }
    login = {"username": user, "password": "", "isHashed": True}
    token = cluster.api("POST", "/api/v1/auth/login", login)["token"]
    kept, cluster.token = cluster.token, token
    try:
        task = cluster.api("POST", "/api/v1/commands", {"config": config})["command"]["id"]
        there = Served(cluster, task, port, token)
        wait_for("the program to listen", lambda: answers(there), within=30)
        yield there
        cluster.api("POST", f"/api/v1/commands/{task}/kill")
    finally:
        cluster.token = kept


def answers(there: Served) -> bool:
    with contextlib.suppress(Failed):
        return download(there.cluster.port, there.path, there.headers, 1) > 0
    return False


def connected(port: int, data: bytes) -> tuple[socket.socket, bytes, bytes]:
    """A connection on which a request was sent: with the head of the answer, and what came behind it."""
    connection = socket.create_connection((HOST, port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(data)
    return connection, *head_of(connection)


def head_of(connection: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        more = connection.recv(65536)
        if not more:
            raise Failed(f"the connection ended after {received!r}")
        received += more
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


def download(port: int, path: str, headers: dict[str, str], size: int) -> float:
    """Gets a body; gives bytes per second."""
    began = time.perf_counter()
    connection, head, rest = connected(port, request("GET", f"{path}?bytes={size}", headers))
    with connection:
        if not head.startswith(b"HTTP/1.1 200"):
            raise Failed(f"GET {path} was answered with {head!r} {rest!r}")
        left, buffer = size - len(rest), bytearray(BUFFER)
        while left > 0:
            count = connection.recv_into(buffer)
            if not count:
                raise Failed(f"the body of GET {path} ended {left} bytes early")
            left -= count
    return size / (time.perf_counter() - began)


def upload(port: int, path: str, headers: dict[str, str], size: int) -> float:
    """Sends a body; gives bytes per second, until its answer."""
    piece = os.memfd_create("piece")
    try:
        os.write(piece, b"x" * (16 * MIB))
        began = time.perf_counter()
        with socket.create_connection((HOST, port), timeout=60) as connection:
            lines = [f"POST {path} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {size}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
            left = size
            # With a time limit a socket does not block, and `sendfile` alone would not wait.
            connection.settimeout(None)
            while left > 0:
                left -= os.sendfile(connection.fileno(), piece, 0, min(left, 16 * MIB))
            head, rest = head_of(connection)
            if not head.startswith(b"HTTP/1.1 200"):
                raise Failed(f"POST {path} was answered with {head!r} {rest!r}")
        return size / (time.perf_counter() - began)
    finally:
        os.close(piece)


def large_bodies(plan: Plan, store_kind: str) -> Outcome:
    """Large bodies through the proxy, and the same bodies without it, by turns."""
    size = (64 if plan.quick else 1024) * MIB
    rates: dict[str, list[float]] = {}
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=1, python=plan.python) as cluster:
        with served(cluster) as there, Watch(cluster.pids()) as watch:
            for number in range(plan.repeats(7) + 1):
                for name, way in (("download", download), ("upload", upload)):
                    raw = way(there.port, "/", {}, size) / MIB
                    proxied = way(cluster.port, there.path, there.headers, size) / MIB
                    if number == 0:
                        continue
                    rates.setdefault(f"{name} through the proxy", []).append(proxied)
                    rates.setdefault(f"{name} without it", []).append(raw)
                    rates.setdefault(f"{name}: part of the rate without it", []).append(proxied / raw)
                    plan.say(f"{name}: {proxied:,.0f} of {raw:,.0f} MB/s")
    return Outcome(
        "proxy",
        "Large bodies through the proxy",
        store.label,
        f"One body of {size // MIB} MiB over one connection, from and to a task that sends from memory and discards "
        "what it gets; through client, master, agent and task, and over loopback from client to task, by turns. All of "
        "them share the machine's cores. MB are MiB.",
        [Value(name, "part" if "part" in name else "MB/s", samples) for name, samples in rates.items()],
        {"bytes": size, "repeats": plan.repeats(7)},
        watch.cores(),
    )


def idle_sockets(plan: Plan, store_kind: str) -> Outcome:
    """What web sockets on which nothing happens cost the master."""
    count = 100 if plan.quick else 1000
    grown, per_socket, after_all, opening = [], [], [], []
    for _ in range(plan.repeats(3, 1)):
        with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=2, python=plan.python) as cluster:
            # One user may have 512 connections to services.
            admin = {"username": "admin", "password": "", "isHashed": True}
            kept, cluster.token = cluster.token, cluster.api("POST", "/api/v1/auth/login", admin)["token"]
            for name in ("one", "other"):
                cluster.api("POST", "/api/v1/users", {"user": {"username": name, "active": True}})
            cluster.token = kept
            with served(cluster, "one") as one, served(cluster, "other") as other:
                master = cluster.pids()["master"][0]
                before = settled_memory(master)
                began, sockets = time.perf_counter(), []
                for number in range(count):
                    there = one if number % 2 else other
                    data = request("GET", f"{there.path}ws", {**there.headers, **UPGRADE})
                    connection, head, _ = connected(cluster.port, data)
                    if not head.startswith(b"HTTP/1.1 101"):
                        raise Failed(f"web socket {number} was answered with {head!r}")
                    sockets.append(connection)
                opening.append((time.perf_counter() - began) / count * 1e3)
                grown.append(settled_memory(master) - before)
                per_socket.append(grown[-1] / count * 1024)
                for connection in sockets:
                    connection.close()
                after_all.append(settled_memory(master) - before)
            plan.say(f"{count} web sockets: {grown[-1]:.1f} MB, {after_all[-1]:.1f} MB when closed")
    return Outcome(
        "idle-sockets",
        f"{count:,} idle web sockets through the proxy",
        store.label,
        "From /proc/PID/smaps_rollup of the master, Anonymous, before they are opened, with all of them open, and "
        "after they were closed. Half of them of each of two users. MB are MiB.",
        [
            Value("memory of the master", "MB", grown, "how much it has grown"),
            Value("  for each", "kB", per_socket),
            Value("  when they are closed", "MB", after_all, "what is left of the growth"),
            Value("opening one", "ms", opening, "one after another"),
        ],
        {"sockets": count},
    )


def settled_memory(pid: int) -> float:
    """Anonymous memory of a process in MiB, once it changes no more: freed memory goes back within a second."""
    last = -1.0
    for _ in range(20):
        now = memory_kb(pid)["Anonymous"] / 1024
        if abs(now - last) < 0.05:
            break
        last = now
        time.sleep(0.5)
    return now


def slow_readers(plan: Plan, store_kind: str) -> Outcome:
    """Readers that take next to nothing of large bodies, and what others notice of them."""
    readers, size = (5 if plan.quick else 50), 1024 * MIB
    p50: dict[str, list[float]] = {"alone": [], "beside": []}
    p99: dict[str, list[float]] = {"alone": [], "beside": []}
    rate: dict[str, list[float]] = {"alone": [], "beside": []}
    grown = []
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=1, python=plan.python) as cluster:
        with served(cluster) as there, Watch(cluster.pids()) as watch:
            master = cluster.pids()["master"][0]
            small = request("GET", f"{there.path}?bytes=100", there.headers)

            def measure(when: str) -> None:
                window = closed_loop(cluster.port, [lambda: small] * 4, plan.seconds(5))
                p50[when].append(window.p50_ms)
                p99[when].append(window.p99_ms)
                rate[when].append(download(cluster.port, there.path, there.headers, 128 * MIB) / MIB)

            for number in range(plan.repeats(3, 1) + 1):
                measure("alone")
                before = settled_memory(master)
                with contextlib.ExitStack() as stack:
                    for _ in range(readers):
                        stack.enter_context(SlowReader(cluster.port, there, size))
                    grown.append(settled_memory(master) - before)
                    measure("beside")
                if number == 0:
                    for samples in (*p50.values(), *p99.values(), *rate.values(), grown):
                        samples.clear()
                    continue
                plan.say(f"p99 {p99['alone'][-1]:.1f} ms alone, {p99['beside'][-1]:.1f} ms beside slow readers")
    values = []
    for when, words in (("alone", "alone"), ("beside", f"beside {readers} slow readers")):
        values.append(Value(f"small request {words}, median", "ms", p50[when]))
        values.append(Value(f"small request {words}, 99th percentile", "ms", p99[when]))
        values.append(Value(f"large body {words}", "MB/s", rate[when]))
    values.append(Value("memory of the master", "MB", grown, f"how much {readers} slow readers make it grow"))
    return Outcome(
        "slow-readers",
        "Slow readers of services",
        store.label,
        f"{readers} clients each ask for a body of {size // MIB} MiB through the proxy and take 1 kB/s of it. Others "
        "send small requests to the same service over four connections, one after another, and get a body of 128 MiB.",
        values,
        {"readers": readers},
        watch.cores(),
    )


class SlowReader:
    """A client that takes a kilobyte each second. Leaving it closes its connection."""

    def __init__(self, port: int, there: Served, size: int) -> None:
        self._socket = socket.socket()
        # A small window: what it does not take stays with the master and not in the kernel.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect((HOST, port))
        self._socket.sendall(request("GET", f"{there.path}?bytes={size}", there.headers))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> SlowReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=30)
        self._socket.close()

    def _read(self) -> None:
        while not self._ended.wait(1.0):
            if not self._socket.recv(1024):
                return


def task_starts(plan: Plan, store_kind: str) -> Outcome:
    """From launching a task to its being ready for its user, for each kind."""
    try:
        import jupyterlab  # noqa: F401
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise Skipped(f"{error.name} is not installed: run with DET_BENCH_PYTHON=.venv/bin/python") from None
    if not os.access("/usr/sbin/sshd", os.X_OK):
        raise Skipped("there is no SSH server: install openssh-server")
    taken: dict[str, list[float]] = {}
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=2, python=plan.python) as cluster:
        experiment = with_tensorboard_files(cluster)
        resources = {"resources": {"slots": 0}}
        prints = {**resources, "entrypoint": ["sh", "-c", f"echo '{FIRST_LINE}'; exec sleep 600"]}
        launches: dict[str, tuple[str, str, dict[str, Any]]] = {
            "command": ("commands", "its first line", {"config": prints}),
            "generic task": ("tasks", "its first line", {"config": json.dumps(prints)}),
            "shell": ("shells", "ready", {"config": resources}),
            "notebook": ("notebooks", "ready", {"config": resources}),
            "TensorBoard": ("tensorboards", "ready", {"config": resources, "experimentIds": [experiment]}),
        }
        with Watch(cluster.pids()) as watch:
            for number in range(plan.repeats(10) + 1):
                for kind, (group, until, body) in launches.items():
                    seconds = one_start(cluster, group, until, body)
                    if number:
                        taken.setdefault(f"{kind} to {until}", []).append(seconds * 1e3)
                        plan.say(f"{kind}: {seconds * 1e3:.0f} ms")
    return Outcome(
        "task-starts",
        "Start of each kind of task, as a process, warm",
        store.label,
        "From just before the launch is sent to the first line at a client that follows the log, or to the event by "
        "which the task is ready: its SSH server, JupyterLab or TensorBoard listens.",
        [Value(name, "ms", samples) for name, samples in taken.items()],
        {"repeats": plan.repeats(10)},
        watch.cores(),
    )


def one_start(cluster: Cluster, group: str, until: str, body: dict[str, Any]) -> float:
    """Launches a task, waits until it serves, and kills it; gives the seconds."""
    after, began = cluster.last_event(), time.time()
    # Generic tasks are created elsewhere than they are found.
    path = "generic-tasks" if group == "tasks" else group
    answer = cluster.api("POST", f"/api/v1/{path}", body)
    task = answer["taskId"] if group == "tasks" else next(iter(answer.values()))["id"]
    if until == "ready":
        with cluster.follow(f"/api/v1/events?follow=true&after={after}") as messages:
            for seen, event in messages:
                if event["subjectId"] == f"{task}.1" and event["to"] == "READY":
                    taken = seen - began
                    break
                if event["subjectId"] == f"{task}.1" and event["kind"] == "ended":
                    raise Failed(f"task {task} of {group} has ended: {event}")
            else:
                raise Failed(f"the events ended before task {task} of {group} was ready")
    else:
        with cluster.follow(f"/api/v1/tasks/{task}/logs?follow=true") as messages:
            for seen, record in messages:
                if FIRST_LINE in record["log"] and record["source"] == "task":
                    taken = seen - began
                    break
            else:
                raise Failed(f"task {task} of {group} ended without a first line")
    cluster.api("POST", f"/api/v1/{group}/{task}/kill", {})
    cluster.wait_idle()
    return taken


def with_tensorboard_files(cluster: Cluster) -> int:
    """An experiment whose trial has left a TensorBoard file."""
    code = "import time; from determined import core\n"
    code += "from tensorboard.summary.writer.event_file_writer import EventFileWriter\n"
    code += "with core.init() as c:\n w = EventFileWriter('/tmp/tensorboard'); w.flush(); w.close()\n"
    code += " c.train.report_validation_metrics(1, {'loss': 1.0})\n"
    storage = {"type": "shared_fs", "host_path": str(cluster.shared)}
    config = cluster.config("true", checkpoint_storage=storage)
    config["entrypoint"] = ["python3", "-c", code]
    experiment = cluster.submit(config).id
    state = cluster.wait_ended(experiment)
    if state != "STATE_COMPLETED":
        raise Failed(f"the experiment that writes TensorBoard files ended as {state}")
    return experiment


def command_run(plan: Plan, store_kind: str) -> Outcome:
    """`det cmd run`, as a user runs it."""
    launched, printed, ended, nothing = [], [], [], []
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=2, python=plan.python) as cluster:
        env = {**environment(cluster.home), "DET_MASTER": cluster.url}
        with Watch(cluster.pids()) as watch:
            for number in range(plan.repeats(20, 5) + 2):
                words = ["cmd", "run", "--config", "resources.slots=0"]
                moments = lines(plan.det, [*words, "echo", FIRST_LINE], env)
                quiet = lines(plan.det, [*words, "true"], env)
                cluster.wait_idle()
                if number < 2:
                    continue
                launched.append(moments["Launched"])
                printed.append(moments[FIRST_LINE])
                ended.append(moments["end"])
                nothing.append(quiet["end"])
                plan.say(f"output after {printed[-1]:.0f} ms, end after {ended[-1]:.0f} ms")
    return Outcome(
        "command-run",
        "det cmd run, as a process",
        store.label,
        "From starting the client to a line at its standard output, which is a pipe, and to its end. The token is "
        "kept, the cluster is idle and warm.",
        [
            Value("det cmd run true: to its end", "ms", nothing),
            Value("det cmd run echo: to the output of the command", "ms", printed),
            Value("  to its first line", "ms", launched, "that the command is launched"),
            Value("  to its end", "ms", ended),
        ],
        {"repeats": len(launched)},
        watch.cores(),
    )


def lines(det: pathlib.Path, arguments: list[str], env: dict[str, str]) -> dict[str, float]:
    """Milliseconds from the start of `det` to the first line with each of these words, and to its end."""
    found: dict[str, float] = {}
    began = time.perf_counter()
    argv = [str(det), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            now = (time.perf_counter() - began) * 1e3
            for word in ("Launched", FIRST_LINE):
                # The line that it is launched may name the command, too.
                if word in line and (word == "Launched" or re.search(r" \|\| ", line)):
                    found.setdefault(word, now)
        # Far less than a pipe holds.
        printed = process.stderr.read()
        code = process.wait()
    found["end"] = (time.perf_counter() - began) * 1e3
    if code != 0:
        raise Failed(f"{' '.join(argv)} ended with {code}: {printed}")
    return found


FIGURES = (
    Figure("task-starts", "start of each kind of task", ("sqlite", "postgres"), task_starts),
    Figure("command-run", "det cmd run to its output and end", ("sqlite", "postgres"), command_run),
    Figure("proxy", "large bodies through the proxy", ("sqlite",), large_bodies),
    Figure("idle-sockets", "idle web sockets through the proxy", ("sqlite",), idle_sockets),
    Figure("slow-readers", "slow readers of services", ("sqlite",), slow_readers),
)
