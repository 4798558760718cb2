"""What is measured: `det master` and `det agent` as processes, in a directory of their own, on a free port."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from measure.stores import Store

T = TypeVar("T")

HOST = "127.0.0.1"
TERMINAL = ("STATE_COMPLETED", "STATE_CANCELED", "STATE_ERROR")
# Where tasks find the directory that a figure shares with them.
SHARED = "/bench-shared"
# Connections of the API on which nothing happened for so long are made anew.
KEPT_SECONDS = 20.0


class Failed(Exception):
    """What was to be measured did not do what it should; there is no figure."""


def free_port() -> int:
    """A TCP port of the loopback address that no process listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, probe: Callable[[], T | None], within: float, look_every: float = 0.01) -> T:
    """Asks until the answer is something true."""
    deadline = time.monotonic() + within
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise Failed(f"waited {within:g} s for {what}")
        time.sleep(look_every)


def clock_of(timestamp: str) -> float:
    """A time of the API on this machine's clock, in seconds."""
    head, _, fraction = timestamp.rstrip("Z").partition(".")
    seconds = datetime.datetime.strptime(head, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc).timestamp()
    return seconds + (float(f"0.{fraction}") if fraction else 0.0)


def environment(home: pathlib.Path) -> dict[str, str]:
    """Our environment without what would lead a master, an agent or a client elsewhere."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DET_", "XDG_", "PYTHON"))}
    if "DET_SUPERVISOR" in os.environ:
        kept["DET_SUPERVISOR"] = os.environ["DET_SUPERVISOR"]
    return {**kept, "HOME": str(home)}


@dataclass(frozen=True)
class Answered:
    """An experiment that was submitted. Times are on this machine's clock, in seconds."""

    id: int
    sent: float
    answered: float


@dataclass
class Cluster:
    """A master and, with slots, an agent. Use it with `with`: leaving it ends everything and removes the files."""

    det: pathlib.Path
    work: pathlib.Path
    store: Store
    slots: int = 0
    runtime: str = "process"
    image: str | None = None
    python: str | None = None
    # Arguments of the agent after its own.
    agent_args: Sequence[str] = ()
    # What runs the master: a program with its arguments, before the master's own.
    under: Sequence[str] = ()
    # What is to be done in the cluster's directory before the master's first start.
    prepare: Callable[[Cluster], None] | None = None
    master: subprocess.Popen | None = field(default=None, init=False)
    agent: subprocess.Popen | None = field(default=None, init=False)
    # From the master's last start to its first answer.
    first_answer_seconds: float = field(default=0.0, init=False)

    def __enter__(self) -> Cluster:
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="det-bench-", dir=self.work))
        # Tasks of other users go through it.
        self.root.chmod(0o711)
        self.home = self.root / "home"
        self.home.mkdir()
        self.shared = self.root / "shared"
        self.shared.mkdir()
        self.shared.chmod(0o777)
        self.port = free_port()
        self.token = ""
        self._local = threading.local()
        try:
            if self.prepare is not None:
                self.prepare(self)
            self.start_master()
            if self.slots:
                self._start_agent()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and issubclass(kind, Failed):
            print(f"--- the end of the master's log\n{self.master_log()}")
        self._end()

    # --- processes -------------------------------------------------------------------------------------------------

    def start_master(self) -> None:
        """Starts the master, waits for its first answer, and logs in."""
        argv = [*self.under, str(self.det), "master", "--host", HOST, "--port", str(self.port)]
        argv += ["--data-dir", str(self.root / "master")]
        if self.store.url is not None:
            argv += ["--db-url", self.store.url]
        started = time.perf_counter()
        self.master = self._spawn("master", argv)
        while not self._first_answer():
            if self.master.poll() is not None:
                raise Failed(f"the master has ended with exit code {self.master.returncode}:\n{self.master_log()}")
            if time.perf_counter() - started > 60:
                raise Failed(f"the master gave no answer for 60 s:\n{self.master_log()}")
            time.sleep(0.0005)
        self.first_answer_seconds = time.perf_counter() - started
        self.token = ""
        login = {"username": "determined", "password": "", "isHashed": True}
        self.token = self.api("POST", "/api/v1/auth/login", login)["token"]

    def stop_master(self) -> None:
        """Ends the master in order."""
        if self.master is not None:
            self._local = threading.local()
            _stop(self.master, signal.SIGTERM)
            self.master = None

    def kill_master(self) -> None:
        """Ends the master as a power cut would."""
        if self.master is not None:
            self._local = threading.local()
            self.master.kill()
            self.master.wait()
            self.master = None

    def _first_answer(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(5)
            try:
                probe.connect((HOST, self.port))
                probe.sendall(b"GET /info HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                return probe.recv(16).startswith(b"HTTP/1.1 200")
            except OSError:
                return False

    def _start_agent(self) -> None:
        argv = [str(self.det), "agent", "--master-host", HOST, "--master-port", str(self.port), "--agent-id", "bench"]
        argv += ["--artificial-slots", str(self.slots), "--runtime", self.runtime, "--stop-tasks"]
        argv += ["--data-dir", str(self.root / "agent")]
        argv += ["--agent-token-file", str(self.root / "master" / "agent-token")]
        if self.python is not None:
            argv += ["--python", self.python]
        self.agent = self._spawn("agent", [*argv, *self.agent_args])

        def joined() -> bool:
            agents = self.api("GET", "/api/v1/agents")["agents"]
            return any(len(agent["slots"]) == self.slots for agent in agents)

        wait_for("the agent to join", joined, within=30)

    def _spawn(self, name: str, argv: Sequence[str]) -> subprocess.Popen:
        with (self.root / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                argv,
                env=environment(self.home),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C at the terminal is for us: we end them in order.
                start_new_session=True,
            )

    def _end(self) -> None:
        if self.agent is not None:
            # With --stop-tasks this ends the tasks too.
            _stop(self.agent, signal.SIGTERM)
        self.stop_master()
        shutil.rmtree(self.root, ignore_errors=True)

    def master_log(self) -> str:
        """The end of the master's log."""
        with contextlib.suppress(OSError):
            return "\n".join((self.root / "master.log").read_text(errors="replace").splitlines()[-20:])
        return "(none)"

    def pids(self) -> dict[str, list[int]]:
        """Process ids of the parts, for who uses the processors."""
        parts = {"master": self.master, "agent": self.agent}
        return {name: [part.pid] for name, part in parts.items() if part is not None}

    # --- the API ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the API on this thread's connection, which is kept open."""
        connection = getattr(self._local, "connection", None)
        # The master closes connections on which nothing happens.
        if connection is None or time.monotonic() - self._local.used > KEPT_SECONDS:
            connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
            # `http.client` sets TCP_NODELAY by itself.
            connection.connect()
            self._local.connection = connection
        self._local.used = time.monotonic()
        text = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, body=text, headers=self.headers())
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._local.connection = None
            raise Failed(f"{method} {path}: {error!r}") from error
        if answer.status != 200:
            raise Failed(f"{method} {path}: {answer.status} {content.decode(errors='replace')}")
        return json.loads(content)

    @contextlib.contextmanager
    def follow(self, path: str) -> Iterator[Iterator[tuple[float, dict[str, Any]]]]:
        """A stream of messages, each with the time at which it was here."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=120)
        try:
            connection.request("GET", path, headers=self.headers())
            answer = connection.getresponse()
            if answer.status != 200:
                raise Failed(f"GET {path}: {answer.status} {answer.read().decode(errors='replace')}")

            def messages() -> Iterator[tuple[float, dict[str, Any]]]:
                while True:
                    line = answer.readline()
                    now = time.time()
                    if not line:
                        return
                    message = json.loads(line)
                    if "error" in message:
                        raise Failed(f"GET {path} ended with {message}")
                    yield now, message["result"]

            yield messages()
        finally:
            connection.close()

    # --- experiments -----------------------------------------------------------------------------------------------

    def config(self, entrypoint: str, **more: Any) -> dict[str, Any]:
        """An experiment of one trial on one slot, which sees the shared directory; `more` beats its keys."""
        config = {
            "name": "bench",
            "entrypoint": entrypoint,
            "searcher": {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": 1},
            "max_restarts": 0,
            "bind_mounts": [{"host_path": str(self.shared), "container_path": SHARED}],
        }
        if self.image is not None:
            config["environment"] = {"image": self.image}
        return {**config, **more}

    def submit(self, config: dict[str, Any]) -> Answered:
        """Submits an experiment without files. JSON is YAML too."""
        body = {"config": json.dumps(config), "modelDefinition": [], "activate": True}
        sent = time.time()
        answer = self.api("POST", "/api/v1/experiments", body)
        return Answered(int(answer["experiment"]["id"]), sent, time.time())

    def trials(self, experiment: int) -> list[dict[str, Any]]:
        return self.api("GET", f"/api/v1/experiments/{experiment}/trials?limit=-1")["trials"]

    def first_trial(self, experiment: int) -> int:
        """The first trial of an experiment, as soon as there is one."""
        return int(wait_for("a trial", lambda: self.trials(experiment), within=30, look_every=0.002)[0]["id"])

    def events(self, kind: str, subject: Any) -> list[dict[str, Any]]:
        """What happened to one thing, in order."""
        return self.api("GET", f"/api/v1/events?subjectKind={kind}&subjectId={subject}&limit=1000")["events"]

    def last_event(self) -> int:
        """The newest event's position."""
        after = 0
        while True:
            page = self.api("GET", f"/api/v1/events?after={after}&limit=1000")
            if not page["events"]:
                return after
            after = int(page["nextAfter"])

    def wait_ended(self, experiment: int, within: float = 120) -> str:
        """Waits for the end of an experiment; gives its last state."""

        def ended() -> str | None:
            state = self.api("GET", f"/api/v1/experiments/{experiment}")["experiment"]["state"]
            return state if state in TERMINAL else None

        return wait_for(f"the end of experiment {experiment}", ended, within)

    def kill(self, experiment: int) -> None:
        """Kills an experiment, and waits until nothing of it runs."""
        self.api("POST", f"/api/v1/experiments/{experiment}/kill")
        self.wait_ended(experiment)
        self.wait_idle()

    def delete(self, experiment: int) -> None:
        """Deletes an experiment that has ended; what belongs to it goes afterwards, see `wait_deleted`."""
        self.api("DELETE", f"/api/v1/experiments/{experiment}")

    def wait_deleted(self, within: float = 600) -> None:
        """Waits until no experiment is being deleted."""

        def done() -> bool:
            experiments = self.api("GET", "/api/v1/experiments?limit=-1")["experiments"]
            states = [experiment["state"] for experiment in experiments]
            if "STATE_DELETE_FAILED" in states:
                raise Failed("an experiment could not be deleted")
            return "STATE_DELETING" not in states

        wait_for("experiments to be deleted", done, within, look_every=0.1)

    def wait_idle(self) -> None:
        """Waits until nothing runs and the agent has cleared up."""
        containers = self.root / "agent" / "containers"

        def idle() -> bool:
            if self.api("GET", "/api/v1/tasks")["allocationIdToSummary"]:
                return False
            return not containers.is_dir() or not any(containers.iterdir())

        wait_for("the cluster to be idle", idle, within=60)


def _stop(process: subprocess.Popen, number: signal.Signals) -> None:
    """Ends a process in order, or by force when that takes too long."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
