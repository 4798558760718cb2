"""A cluster under test with everything that chaos needs: proxies between all parties, its database, its disks.

`World` is `e2e`'s `Cluster` with more ways in: agents, tasks and the master's database connection may go through a
proxy each, the database can be read beside the master, and parts can be killed without a wait for their end.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import LIVE, Agent, ApiError, Cluster, archive_entry, docker_image, task_python
from postgres import Postgres, rows, sql
from processes import Found, docker, processes_with
from proxy import Proxy
from waiting import wait_for

LOAD = pathlib.Path(__file__).resolve().parent / "load"
# Where ledgers are: memory that survives every process we kill, and where fsync costs nothing.
LEDGERS = pathlib.Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else pathlib.Path("/var/tmp")


@dataclass
class World(Cluster):
    """A cluster for one scenario."""

    # `sqlite` or `postgres`; the latter needs `server`.
    store: str = "sqlite"
    server: Postgres | None = None
    # Which of `agent`, `task`, `client`, `database` go through a proxy to the master, the last one from it.
    proxied: Sequence[str] = ()
    seed: int = 0
    # Where the agents keep their data, by name, if not below `root`.
    agent_roots: dict[str, pathlib.Path] = field(default_factory=dict)
    # Where the master keeps its data, if not below `root`.
    master_root: pathlib.Path | None = None
    # Where PostgreSQL keeps the tables, if not where the server has its own.
    database_root: pathlib.Path | None = None
    # Where checkpoints are kept, if not below `root`.
    checkpoint_root: pathlib.Path | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.proxies: dict[str, Proxy] = {}
        self._exit = contextlib.ExitStack()
        self.database = ""
        if self.store == "postgres":
            assert self.server is not None, "a world on PostgreSQL needs a server"
            self.database = self.server.create_database(self.database_root)
            # The proxies' ports are in command lines, which the base class makes.
            port = self.server.port
            if "database" in self.proxied:
                port = self._proxy("database", port).port
            self.database_url = self.server.url(self.database, port)
        if self.agents and self.agents[0].runtime == "docker":
            self.image = docker_image()
        elif self.python is None:
            self.python = task_python()
        super().__post_init__()
        if "client" in self.proxied:
            self._proxy("client", self.port)
        if self.checkpoint_root is None:
            self.checkpoint_root = self.root / "checkpoints"
        self.checkpoint_root.mkdir(exist_ok=True)
        self.checkpoint_root.chmod(0o777)
        self.ledgers = pathlib.Path(tempfile.mkdtemp(prefix="det-chaos-", dir=LEDGERS))
        self.ledgers.chmod(0o711)
        self.began = time.time()

    @property
    def url(self) -> str:
        """Where clients find the master: what this runner asks for goes this way, too."""
        proxy = self.proxies.get("client")
        return super().url if proxy is None else f"http://127.0.0.1:{proxy.port}"

    @property
    def temporary(self) -> pathlib.Path:
        """Where the parts and the clients of this cluster keep temporary files."""
        return self.root / "tmp"

    def _environment(self, home: str) -> dict[str, str]:
        self.temporary.mkdir(exist_ok=True)
        return {**super()._environment(home), "TMPDIR": str(self.temporary)}

    def _proxy(self, name: str, port: int) -> Proxy:
        proxy = self._exit.enter_context(Proxy(name, port, self.seed))
        self.proxies[name] = proxy
        return proxy

    def _master_argv(self) -> list[str]:
        if self.master_root is not None:
            # Agents, made after the master, find their token there.
            self.data_dir = self.master_root
        return super()._master_argv()

    def _agent_argv(self, agent: Agent) -> list[str]:
        argv = super()._agent_argv(agent)
        if "agent" in self.proxied:
            at = argv.index("--master-port") + 1
            argv[at] = str(self._proxy(f"agent {agent.name}", self.port).port)
            # Else tasks would follow their agent through its proxy.
            port = self._proxy(f"task {agent.name}", self.port).port if "task" in self.proxied else self.port
            argv += ["--set", f"container_master_port={port}"]
        elif "task" in self.proxied:
            port = self._proxy(f"task {agent.name}", self.port).port
            argv += ["--set", f"container_master_port={port}"]
        if agent.name in self.agent_roots:
            argv[argv.index("--data-dir") + 1] = str(self.agent_roots[agent.name])
        return argv

    def agent_dir(self, name: str) -> pathlib.Path:
        return self.agent_roots.get(name, self.root / name)

    def _agent_dirs(self) -> list[pathlib.Path]:
        return [self.agent_dir(agent.name) for agent in self.agents]

    def __enter__(self) -> World:
        """Starts nothing: `start` does."""
        LIVE.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        """Ends everything. What was left behind by then is for the invariants to report; here it is removed."""
        try:
            self._abandon()
        finally:
            self._exit.close()
            shutil.rmtree(self.ledgers, ignore_errors=True)
            if self.server is not None and self.database:
                try:
                    self.server.drop_database(self.database)
                except OSError as error:
                    print(f"chaos: database {self.database} stays: {error}")

    # --- parts -----------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """`kill -9` of a part, and its end."""
        self.part(name).kill()

    def start_part(self, name: str) -> None:
        """Starts a part and waits for nothing."""
        self.part(name).start()

    def signal_part(self, name: str, number: signal.Signals) -> None:
        self.part(name).send(number)

    def processes_of_containers(self) -> list[Found]:
        """All processes of tasks of this cluster, supervisors included, that run on this machine."""
        return list(processes_with(f"DET_CLUSTER_ID={self.cluster_id}")) if self.cluster_id else []

    def supervisors(self) -> dict[str, Found]:
        """The first process of each container, by the container's id."""
        found: dict[str, Found] = {}
        for agent in self.agents:
            directory = self.agent_dir(agent.name) / "containers"
            names = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
            for name in names:
                of_container = [each for each in processes_with(name) if " sandbox " in each.command]
                if of_container:
                    # The one that the agent started is the parent of the other.
                    found[name] = min(of_container, key=lambda each: (each.start_ticks, each.pid))
        return found

    def engine_containers(self) -> list[str]:
        """Running containers of this cluster, by the engine's id."""
        label = f"label=ai.determined.container.cluster={self.cluster_id}"
        return docker("ps", "--quiet", "--no-trunc", "--filter", label).split()

    # --- the database, beside the master ---------------------------------------------------------------------------

    def rows(self, text: str) -> list[dict[str, Any]]:
        """The rows of a query, read from the database itself. Raises OSError where it cannot be read now."""
        if self.server is not None and self.store == "postgres":
            return rows(self.server.url(self.database), text)
        with self._sqlite() as connection:
            return [dict(row) for row in connection.execute(text)]

    def tables(self, queries: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
        """The rows of several queries, all of one moment."""
        if self.server is not None and self.store == "postgres":
            parts = [
                f"'{name}', (select coalesce(json_agg(q), '[]') from ({text}) q)" for name, text in queries.items()
            ]
            return json.loads(sql(self.server.url(self.database), f"select json_build_object({', '.join(parts)})"))
        with self._sqlite() as connection:
            connection.execute("begin")
            return {name: [dict(row) for row in connection.execute(text)] for name, text in queries.items()}

    @contextlib.contextmanager
    def _sqlite(self) -> Iterator[sqlite3.Connection]:
        path = self.data_dir / "det.db"
        if not path.exists():
            raise OSError(f"there is no {path} yet")
        try:
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
                connection.row_factory = sqlite3.Row
                yield connection
        except sqlite3.OperationalError as error:
            raise OSError(f"{path}: {error}") from error

    def copy_database(self, directory: pathlib.Path) -> None:
        """Keeps the database as evidence."""
        if self.server is not None and self.store == "postgres":
            with (directory / "database.sql").open("w") as out:
                subprocess.run(["pg_dump", self.server.url(self.database)], stdout=out, stderr=subprocess.STDOUT)
            return
        for path in self.data_dir.glob("det.db*"):
            shutil.copy(path, directory)

    # --- load ------------------------------------------------------------------------------------------------------

    def create(self, config: dict[str, Any], files: Sequence[pathlib.Path] = (), **options: Any) -> int:
        """Creates an experiment with one call of the API; gives its id."""
        entries = [archive_entry(path.name, path.read_bytes()) for path in files]
        body = {"config": json.dumps(config), "modelDefinition": entries, "activate": True}
        return int(self.api("POST", "/api/v1/experiments", body, **options)["experiment"]["id"])

    def ledger_directory(self) -> pathlib.Path:
        """A directory for the ledgers of one load."""
        path = pathlib.Path(tempfile.mkdtemp(dir=self.ledgers))
        path.chmod(0o777)
        return path

    def patiently(self, what: str, call: Any, within: float = 60) -> Any:
        """Repeats a call while the master cannot be reached or cannot answer."""

        def tried() -> Any:
            try:
                return (call(),)
            except ApiError as error:
                if error.status >= 500:
                    raise OSError(str(error)) from error
                raise

        return wait_for(what, tried, within=within)[0]

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        """All events behind `after`."""
        found: list[dict[str, Any]] = []
        while True:
            path = f"/api/v1/events?after={after}&limit=1000"
            page = self.patiently("events", lambda path=path: self.api("GET", path, user="admin"))
            if not page["events"]:
                return found
            found += page["events"]
            after = int(page["nextAfter"])
