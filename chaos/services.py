"""Scenarios of what users hold open (shells, kernels, followed logs, downloads), and of tasks of all kinds that come and
go."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import observe
from crowds import memory_mib
from harness import ApiError, Missing
from processes import Part, tail
from stage import Stage
from violations import Violation
from waiting import TooLate, wait_for
from world import World

# What a user waits at most until what was held open can be used again, or has reported that it broke.
BACK_WITHIN = 120.0
# As whom the clients of a world act.
OWNER = "determined"
# Needs no slot.
AUX: dict[str, Any] = {"resources": {"slots": 0}}

# Counts in the background, whether a user is logged in or not; its own number shows whether it is the same one.
BEATS = "(setsid sh -c 'n=0; while :; do n=$((n+1)); echo $$ $n > beat; sleep 0.1; done' > /dev/null 2>&1 < /dev/null &)"
# Prints a number every tenth of a second until it is let go.
COUNTS = "n=0; until [ -e /chaos/go ]; do n=$((n+1)); echo count $n; sleep 0.1; done; echo counted $n"
# Serves a body of a known content slowly, with its length: a client sees whether it is complete.
SERVES = """
import http.server, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_GET(self):
        pieces, pause = (20, 0.0) if self.path.endswith("quick") else (600, 0.1)
        self.send_response(200)
        self.send_header("Content-Length", str(pieces << 16))
        self.end_headers()
        for n in range(pieces):
            self.wfile.write(bytes([n % 251]) * (1 << 16))
            time.sleep(pause)

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
QUICK = hashlib.sha256(b"".join(bytes([n % 251]) * (1 << 16) for n in range(20))).hexdigest()


def require_services() -> None:
    """What shells and notebooks need, reported before anything is started."""
    if not pathlib.Path("/usr/sbin/sshd").is_file() or shutil.which("ssh") is None:
        raise Missing("there is no SSH server and client: install openssh-server and openssh-client")
    try:
        import jupyterlab  # noqa: F401
        import tensorboard  # noqa: F401
        import websocket  # noqa: F401
    except ImportError as error:
        raise Missing(f"{error.name} is not installed: make setup") from None


def launched(world: World, group: str, body: dict[str, Any]) -> str:
    """Launches a task of one of the kinds; gives its id."""
    # Generic tasks are created elsewhere than they are found.
    path = "generic-tasks" if group == "tasks" else group
    answer = world.api("POST", f"/api/v1/{path}", body, user=OWNER)
    return answer["taskId"] if group == "tasks" else next(iter(answer.values()))["id"]


def kill(world: World, group: str, task: str) -> None:
    world.patiently(f"the kill of {task}", lambda: world.api("POST", f"/api/v1/{group}/{task}/kill", {}, user=OWNER))


def allocation(world: World, task: str) -> dict[str, Any] | None:
    """The newest attempt of a task; None before there is one."""
    found = world.task(task)["allocations"]
    return found[0] if found else None


def is_ready(world: World, task: str) -> bool:
    newest = allocation(world, task)
    return newest is not None and bool(newest["isReady"])


# --- what is held open -----------------------------------------------------------------------------------------------


class Shell:
    """A shell with a session in it, and something that runs in it beside the session."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self._world, self._stack = world, stack
        self.task = launched(world, "shells", {"config": AUX})
        self._session = self._enter()
        self._output_of(BEATS)
        self._beats = wait_for("the beats of the shell", self._beat, within=BACK_WITHIN)

    def _enter(self) -> Part:
        """A session that a user leaves open; tried again while the agent is not connected yet."""
        words = ("shell", "open", self.task, "--", "echo inside; exec sleep 86400")
        session = self._stack.enter_context(self._world.det_beside(*words))

        def inside() -> bool:
            if not session.running():
                session.start()
            return "inside" in session.log.read_text()

        wait_for("a session", inside, within=BACK_WITHIN, look_every=0.25, seen=lambda: tail(session.log))
        return session

    def _output_of(self, command: str) -> str:
        done = self._world.run_det("shell", "open", self.task, "--", command, check=False)
        # Not reached: asked again.
        if done.code == 255:
            raise OSError(str(done))
        return done.out

    def _beat(self) -> tuple[str, int] | None:
        words = self._output_of("cat beat").split()
        return (words[0], int(words[1])) if len(words) == 2 else None

    def check(self) -> list[Violation]:
        """The session has ended, a new one can be opened, and finds what ran there still running."""
        subject, found = f"shell {self.task}", []
        try:
            code = self._session.wait(within=BACK_WITHIN)
        except (TooLate, AssertionError) as error:
            return [Violation(4, "stuck", subject, "its broken session does not end", {"error": str(error)})]
        if code != 255 or "to reconnect" not in self._session.log.read_text():
            log = tail(self._session.log)
            found.append(Violation(4, "wrong", subject, f"its broken session ended with {code}", {"log": log}))
        self._session = self._enter()

        def goes_on() -> tuple[str, int] | None:
            now = self._beat()
            return now if now is not None and (now[0] != self._beats[0] or now[1] > self._beats[1]) else None

        now = wait_for("the beats to go on", goes_on, within=BACK_WITHIN)
        if now[0] != self._beats[0]:
            found.append(Violation(3, "restarted", subject, f"process {now[0]} beats, and it was {self._beats[0]}"))
        self._beats = now
        return found

    def end(self) -> list[Violation]:
        kill(self._world, "shells", self.task)
        code = self._session.wait(within=BACK_WITHIN)
        wrong = f"its session ended with {code} when it was killed"
        return [] if code == 255 else [Violation(4, "wrong", f"shell {self.task}", wrong)]


class Kernel:
    """A kernel of a notebook, with a variable."""

    def __init__(self, world: World) -> None:
        from jupyter import Server

        self._world, self._number = world, 0
        self.task = launched(world, "notebooks", {"config": AUX})
        wait_for("the notebook to be ready", lambda: is_ready(world, self.task), within=BACK_WITHIN, seen=world.describe)
        self._server = Server(world, self.task)
        self._kernel = self._server.call("POST", "api/kernels", {"name": "python3"})["id"]
        self._socket = self._server.connect(self._kernel)
        self._run("number = 0")
        self.check()

    def _run(self, code: str) -> str:
        from jupyter import run

        return run(self._socket, code)

    def check(self) -> list[Violation]:
        """The page's connection can be made anew, and leads to the same kernel."""
        from websocket import WebSocketException

        self._number += 1
        with suppress(OSError, WebSocketException):
            self._socket.close()

        def connected() -> Any:
            try:
                return self._server.connect(self._kernel)
            except WebSocketException as error:
                raise OSError(str(error)) from error

        self._socket = wait_for("a connection to the kernel", connected, within=BACK_WITHIN, seen=self._world.describe)
        printed = self._run("number += 1; print(number)")
        if printed != str(self._number):
            what = f"its kernel counts {printed!r}, and it was asked {self._number} times"
            return [Violation(3, "lost", f"notebook {self.task}", what)]
        return []

    def end(self) -> list[Violation]:
        self._socket.close()
        kill(self._world, "notebooks", self.task)
        return []


class Board:
    """A TensorBoard of a trial's files."""

    def __init__(self, world: World) -> None:
        from test_notebooks import WRITES

        self._world = world
        config = {
            "name": "writes",
            "entrypoint": ["python3", "-c", WRITES],
            "searcher": {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": 0},
        }
        experiment = world.create(config)
        world.wait_experiment(experiment, "COMPLETED")
        self._shown = [f"experiment_{experiment}/trial/{world.only_trial(experiment)['id']}"]
        self.task = launched(world, "tensorboards", {"experimentIds": [experiment], "config": {}})
        self.check()

    def _runs(self) -> Any:
        try:
            return json.loads(self._world.raw("GET", f"/proxy/{self.task}/data/runs", user=OWNER))
        except ApiError as error:
            raise OSError(str(error)) from error

    def check(self) -> list[Violation]:
        """The same attempt is reached again, and shows what it showed."""
        subject = f"TensorBoard {self.task}"
        try:
            wait_for("its page", lambda: self._runs() == self._shown, within=BACK_WITHIN, seen=self._world.describe)
        except TooLate as error:
            return [Violation(4, "stuck", subject, "it is not reached again", {"error": str(error)})]
        attempts = len(self._world.task(self.task)["allocations"])
        return [] if attempts == 1 else [Violation(3, "restarted", subject, f"it was started {attempts} times")]

    def end(self) -> list[Violation]:
        kill(self._world, "tensorboards", self.task)
        return []


class Followed:
    """A log that a client follows from its first line to its last."""

    def __init__(self, world: World, stack: ExitStack, group: str) -> None:
        self._world = world
        self._directory = world.ledger_directory()
        mounts = [{"host_path": str(self._directory), "container_path": "/chaos"}]
        config = {**AUX, "entrypoint": ["sh", "-c", COUNTS], "bind_mounts": mounts}
        body = {"config": json.dumps(config) if group == "tasks" else config}
        self.task = launched(world, group, body)
        self._follower = stack.enter_context(world.det_beside("task", "logs", "-f", self.task))
        self._last = 0
        self.check()

    def _counts(self) -> list[int]:
        return [int(number) for number in re.findall(r"\|\| count (\d+)$", self._follower.log.read_text(), re.M)]

    def check(self) -> list[Violation]:
        """The same client goes on, with every line once and in order."""

        def goes_on() -> bool:
            return max(self._counts(), default=0) > self._last + 3

        try:
            wait_for("the follower to go on", goes_on, within=BACK_WITHIN, seen=lambda: tail(self._follower.log))
        except TooLate as error:
            return [Violation(4, "stuck", f"log of {self.task}", "its follower does not go on", {"error": str(error)})]
        counts = self._counts()
        self._last = counts[-1]
        if counts != list(range(1, len(counts) + 1)):
            around = next(at for at, (seen, right) in enumerate(zip(counts, range(1, len(counts) + 1))) if seen != right)
            what = f"its follower has {counts[max(0, around - 2) : around + 3]} where {around + 1} belongs"
            return [Violation(3, "lost", f"log of {self.task}", what)]
        return []

    def end(self) -> list[Violation]:
        (self._directory / "go").touch()
        code = self._follower.wait(within=BACK_WITHIN)
        text, counts = self._follower.log.read_text(), self._counts()
        if code == 0 and f"|| counted {len(counts)}\n" in text and counts == list(range(1, len(counts) + 1)):
            return []
        what = f"its follower ended with {code} after {len(counts)} lines"
        return [Violation(3, "lost", f"log of {self.task}", what, {"log": tail(self._follower.log)})]


class Download:
    """A body that a client gets through the proxy while the cluster is disturbed."""

    def __init__(self, world: World) -> None:
        from processes import free_port

        self._world, port = world, free_port()
        environment = {"proxy_ports": [{"proxy_port": port, "default_service_id": True}]}
        config = {**AUX, "entrypoint": ["python3", "-c", SERVES, str(port)], "environment": environment}
        self.task = launched(world, "commands", {"config": config})
        self._begin()

    def _begin(self) -> None:
        self._ended, self._came = threading.Event(), 0
        self._outcome = ""
        wait_for("a complete small body", self._small, within=BACK_WITHIN, seen=self._world.describe)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        wait_for("bytes of the large body", lambda: self._came, within=BACK_WITHIN)

    def _get(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._world.port, timeout=BACK_WITHIN)
        headers = {"Authorization": f"Bearer {self._world.token(OWNER)}"}
        connection.request("GET", f"/proxy/{self.task}/{path}", headers=headers)
        return connection.getresponse()

    def _small(self) -> bool:
        try:
            answer = self._get("quick")
            return answer.status == 200 and hashlib.sha256(answer.read()).hexdigest() == QUICK
        except http.client.HTTPException as error:
            raise OSError(repr(error)) from error

    def _read(self) -> None:
        try:
            answer = self._get("slow")
            while piece := answer.read(1 << 14):
                self._came += len(piece)
            self._outcome = "complete" if self._came == 600 << 16 else "cut short"
        except (OSError, http.client.HTTPException) as error:
            self._outcome = f"broken: {error!r}"
        self._ended.set()

    def check(self) -> list[Violation]:
        """The broken one has ended, and did not pass for complete; a new one begins."""
        if not self._ended.wait(BACK_WITHIN):
            what = f"its broken download does not end after {self._came} bytes"
            return [Violation(4, "stuck", f"service of {self.task}", what)]
        self._begin()
        return []

    def end(self) -> list[Violation]:
        kill(self._world, "commands", self.task)
        if not self._ended.wait(BACK_WITHIN):
            return [Violation(4, "stuck", f"service of {self.task}", "its download outlives it")]
        return []


def kill_services(stage: Stage) -> None:
    """Master and agent are killed under an open shell, a kernel, a TensorBoard, followed logs of a command and of a generic
    task, and a download. What runs goes on; what was connected goes on or ends at once and can be connected again."""
    require_services()
    with stage.world(slots=2) as world, ExitStack() as stack:
        held: list[Any] = [Shell(world, stack), Kernel(world), Board(world), Download(world)]
        held += [Followed(world, stack, "commands"), Followed(world, stack, "tasks")]
        for number in range(1, stage.amount + 1):
            parts = stage.random.choice((["master"], ["agent-1"], ["master", "agent-1"], ["agent-1", "master"]))
            time.sleep(stage.random.uniform(0.2, 1.5))
            for name in parts:
                world.kill(name)
            time.sleep(stage.random.choice((0.0, stage.random.uniform(0.0, 2.0))))
            began = time.monotonic()
            for name in ("master", "agent-1"):
                if name in parts:
                    world.start_part(name)
                    world.wait_for_master(within=60)
            world.wait_for_agents(within=60)
            for each in held:
                stage.found(each.check())
            stage.recovered(time.monotonic() - began)
            stage.counts.runs += 1
            stage.found(observe.of_rows(world))
            stage.say(f"{number}: {' and '.join(parts)} killed, all held again after {time.monotonic() - began:.1f} s")
        for each in held:
            stage.found(each.end())
        wait_for("the end of all tasks", lambda: not world.live_tasks(), within=60, seen=world.describe)
        stage.end(world)


# --- tasks of all kinds ----------------------------------------------------------------------------------------------

# Nothing of these may grow by more over a whole run: what a part keeps open of what has ended.
MORE_DESCRIPTORS, MORE_THREADS = 8, 8
# How many tasks are alive at once.
AT_ONCE = 6


@dataclass
class Use:
    """What a cluster holds at a quiet moment."""

    # By part: descriptors, threads, MiB.
    descriptors: dict[str, int]
    threads: dict[str, int]
    memory: dict[str, float]
    # TCP ports on which the parts and what runs of tasks listen.
    ports: set[int]
    # Files and directories of the agents, of the master, and temporary ones of theirs.
    files: set[str]
    # Rows by which something lives, by table.
    rows: dict[str, int]


LIVE_ROWS = {
    "allocations": "select count(*) as n from allocations where ended_at is null",
    "containers": "select count(*) as n from containers where ended_at is null",
    "tasks": "select count(*) as n from tasks where ended_at is null",
}
# What a database keeps beside itself comes and goes.
OF_THE_DATABASE = {"det.db", "det.db-wal", "det.db-shm"}


def use(world: World) -> Use:
    """Looks at all of it."""
    pids = {name: part.pid for name, part in world.parts.items()}
    count = {
        what: {name: len(os.listdir(f"/proc/{pid}/{what}")) for name, pid in pids.items()} for what in ("fd", "task")
    }
    files: set[str] = set()
    for root in (world.data_dir, world.temporary, *(world.agent_dir(agent.name) for agent in world.agents)):
        for directory, below, names in os.walk(root):
            files |= {os.path.join(directory, name) for name in (*below, *names) if name not in OF_THE_DATABASE}
    tasks = [found.pid for found in world.processes_of_containers()]
    ports = set(listening({*pids.values(), *tasks}))
    rows = {table: int(world.rows(text)[0]["n"]) for table, text in LIVE_ROWS.items()}
    memory = {name: memory_mib(pid) for name, pid in pids.items()}
    return Use(count["fd"], count["task"], memory, ports, files, rows)


def listening(pids: set[int]) -> Iterator[int]:
    """TCP ports of this machine on which these processes listen."""
    sockets = set()
    for pid in pids:
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    sockets.add(os.readlink(entry.path))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    yield int(fields[1].rpartition(":")[2], 16)


def leaked(before: Use, after: Use) -> list[Violation]:
    """What exists that did not, though all tasks have ended in between."""
    found = []
    for what, most, earlier, later in (
        ("descriptors", MORE_DESCRIPTORS, before.descriptors, after.descriptors),
        ("threads", MORE_THREADS, before.threads, after.threads),
    ):
        for part, number in later.items():
            if number > earlier[part] + most:
                found.append(Violation(6, "left", part, f"it has {number} {what}, and had {earlier[part]} before"))
    for port in sorted(after.ports - before.ports):
        found.append(Violation(6, "left", f"port {port}", "a process listens on it, and all tasks have ended"))
    for path in sorted(after.files - before.files):
        found.append(Violation(6, "left", f"file {path}", "it was not there before"))
    for table, number in after.rows.items():
        if number:
            found.append(Violation(8, "wrong", f"table {table}", f"{number} rows are live, and all tasks have ended"))
    return found


@dataclass
class Mixed:
    """Tasks of all kinds, launched, used a little, and killed at any moment of their lives."""

    world: World
    stage: Stage
    # What a TensorBoard is to show: an experiment, which has no files for it.
    experiment: int
    counts: Counter[str] = field(default_factory=Counter)
    # Group and id of those that live.
    alive: list[tuple[str, str]] = field(default_factory=list)

    def bodies(self) -> dict[str, Callable[[], dict[str, Any]]]:
        prints = {**AUX, "entrypoint": ["sh", "-c", "echo begun; sleep 600 & sleep 600"]}
        return {
            "commands": lambda: {"config": prints},
            "tasks": lambda: {"config": json.dumps(prints)},
            "shells": lambda: {"config": AUX},
            "notebooks": lambda: {"config": AUX},
            "tensorboards": lambda: {"config": AUX, "experimentIds": [self.experiment]},
        }

    def start(self) -> None:
        group = self.stage.random.choice(list(self.bodies()))
        self.alive.append((group, launched(self.world, group, self.bodies()[group]())))
        self.counts[group] += 1

    def kill_one(self) -> None:
        """Kills one, new or old; some when they are ready, with a connection to them."""
        group, task = self.alive.pop(self.stage.random.randrange(len(self.alive)))
        held = None
        if group in ("shells", "notebooks") and self.stage.random.random() < 0.2:
            wait_for(f"task {task} to be ready", lambda: is_ready(self.world, task), within=BACK_WITHIN)
            held = self.connect(group, task)
            self.counts["connected"] += 1
        kill(self.world, group, task)
        if held is not None:
            self.stage.found(self.ends(held, task))

    def connect(self, group: str, task: str) -> Any:
        """A web socket to a shell's server, or a request to a notebook whose answer takes for ever."""
        import websocket

        token = self.world.token(OWNER)
        address = f"ws://127.0.0.1:{self.world.port}/proxy/{task}/"
        if group == "notebooks":
            shown = self.world.api("GET", f"/api/v1/notebooks/{task}", user=OWNER)["notebook"]["serviceAddress"]
            address += f"api/events/subscribe?{shown.partition('?')[2]}"
        header = {"Authorization": f"Bearer {token}"}
        return websocket.create_connection(address, header=header, timeout=BACK_WITHIN)

    def ends(self, held: Any, task: str) -> list[Violation]:
        """A connection ends with its task."""
        import websocket

        began = time.monotonic()
        try:
            while time.monotonic() - began < BACK_WITHIN:
                if not held.recv():
                    return []
        except websocket.WebSocketTimeoutException:
            pass
        except (OSError, websocket.WebSocketException):
            return []
        finally:
            held.close()
        return [Violation(4, "stuck", f"task {task}", "a connection to it outlives it")]

    def quiet(self) -> None:
        """Kills what is left, and waits until nothing is."""
        while self.alive:
            self.kill_one()
        wait_for("the end of all tasks", lambda: not self.world.live_tasks(), within=120, seen=self.world.describe)
        self.stage.found(observe.agrees(self.world))


def mixed_kinds(stage: Stage) -> None:
    """Tasks of all kinds start and are killed, several at once; afterwards the cluster holds what it held before."""
    require_services()
    with stage.world(slots=2) as world:
        experiment = world.create({"name": "shown", "entrypoint": "true", "searcher": {"name": "single", "metric": "m"}})
        world.wait_experiment(experiment, "COMPLETED")
        mixed = Mixed(world, stage, experiment)
        # One of each first: what is made once and kept is no leak.
        for group, body in mixed.bodies().items():
            mixed.alive.append((group, launched(world, group, body())))
        for group, task in mixed.alive:
            if group in ("shells", "notebooks"):
                wait_for(f"task {task} to be ready", lambda task=task: is_ready(world, task), within=BACK_WITHIN)
        mixed.quiet()
        before = use(world)
        for number in range(1, stage.amount + 1):
            mixed.start()
            time.sleep(stage.random.choice((0.0, stage.random.uniform(0.0, 0.5))))
            while len(mixed.alive) >= AT_ONCE:
                mixed.kill_one()
            stage.counts.runs += 1
            if number % 50 == 0:
                stage.found(observe.of_rows(world))
                stage.say(f"{number} of {stage.amount}: {dict(mixed.counts)}")
        mixed.quiet()
        last: list[Violation] = []

        def clean() -> bool:
            nonlocal last
            last = leaked(before, use(world))
            return not last

        # Agents clear up behind tasks, connections linger for a moment.
        with suppress(TooLate):
            wait_for("nothing to be left", clean, within=observe.LEFT_WITHIN, look_every=0.5)
        stage.found(last)
        after = use(world)
        for part in world.parts:
            shown = f"{before.memory[part]:.1f}-{after.memory[part]:.1f} MiB"
            stage.figures[part] = f"{shown} {before.descriptors[part]}-{after.descriptors[part]} fds"
        stage.figures["kinds"] = " ".join(f"{name} {count}" for name, count in sorted(mixed.counts.items()))
        stage.end(world)
