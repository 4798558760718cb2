"""A PostgreSQL server of our own, to be restarted, cut off and left without disk at will."""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from typing import Any

from harness import Missing
from processes import find, free_port
from waiting import wait_for


def _programs() -> pathlib.Path:
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise Missing("there is no PostgreSQL server installed: no initdb below /usr/lib/postgresql or on PATH")
    return pathlib.Path(on_path).parent


class Postgres:
    """A server on a free port of the loopback address. Use it with `with`."""

    def __init__(self) -> None:
        self._programs = _programs()
        if shutil.which("psql") is None:
            raise Missing("there is no psql")
        self._user: str | None = None
        if os.geteuid() == 0:
            # It refuses to run as root.
            try:
                pwd.getpwnam("postgres")
            except KeyError:
                raise Missing("PostgreSQL refuses to run as root, and there is no user postgres") from None
            self._user = "postgres"
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="det-chaos-postgres-", dir="/var/tmp"))
        self.root.chmod(0o711)
        self.data = self.root / "data"
        self.port = free_port()
        self._log = self.root / "log"

    def __enter__(self) -> Postgres:
        try:
            if self._user is not None:
                shutil.chown(self.root, self._user)
            self._run("initdb", "-D", str(self.data), "-A", "trust", "-U", "postgres", "--no-sync")
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self._remove()

    def _remove(self) -> None:
        if self.pid() is not None:
            self.stop("immediate")
        shutil.rmtree(self.root, ignore_errors=True)

    def _run(self, program: str, *args: str) -> None:
        command = [str(self._programs / program), *args]
        done = subprocess.run(
            command,
            cwd=self.root,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}"

    def start(self) -> None:
        """Starts it and waits until it answers. Processes of a killed one may hold its memory for a while."""
        options = f"-p {self.port} -k {self.root} -c listen_addresses=127.0.0.1 -c max_connections=200"
        # Its output goes to the log only: a pipe of ours would be held open by the server.

        def started() -> bool:
            try:
                self._run("pg_ctl", "-D", str(self.data), "-w", "-s", "-l", str(self._log), "-o", options, "start")
            except AssertionError as error:
                raise OSError(str(error)) from None
            return True

        wait_for("PostgreSQL to start", started, within=30, look_every=0.2)

    def stop(self, mode: str) -> None:
        """Stops it: `fast` breaks connections and ends in order, `immediate` is a crash of all its processes."""
        self._run("pg_ctl", "-D", str(self.data), "-w", "-s", "-m", mode, "stop")

    def kill(self) -> None:
        """`kill -9` of the server's first process; the others follow by themselves."""
        pid = self.pid()
        assert pid is not None, "PostgreSQL does not run"
        os.kill(pid, signal.SIGKILL)
        wait_for("the end of PostgreSQL", lambda: find(pid) is None, within=20)

    def pid(self) -> int | None:
        """The number of its first process; None if it does not run."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return None
        return pid if find(pid) is not None else None

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgres://postgres@127.0.0.1:{port or self.port}/{database}"

    def create_database(self, directory: pathlib.Path | None = None) -> str:
        """Makes an empty database; gives its name. Its tables are in `directory`, an empty one, if there is one."""
        name = f"det_chaos_{uuid.uuid4().hex[:12]}"
        if directory is None:
            sql(self.url("postgres"), f"create database {name}")
        else:
            if self._user is not None:
                shutil.chown(directory, self._user)
            sql(self.url("postgres"), f"create tablespace {name} location '{directory}'")
            sql(self.url("postgres"), f"create database {name} tablespace {name}")
        return name

    def drop_database(self, name: str) -> None:
        """Removes a database, and its tablespace if it has one of its own."""
        sql(self.url("postgres"), f"drop database {name} with (force)")
        sql(self.url("postgres"), f"drop tablespace if exists {name}")

    def terminate_connections(self, database: str) -> int:
        """Ends every connection to a database; gives how many there were."""
        text = (
            "select count(pg_terminate_backend(pid)) as ended from pg_stat_activity "
            f"where datname = '{database}' and pid <> pg_backend_pid()"
        )
        return int(rows(self.url(database), text)[0]["ended"])


def sql(url: str, text: str) -> str:
    """Runs a statement with psql; gives its output."""
    done = subprocess.run(["psql", url, "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", text], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"psql: {done.stderr.strip()}")
    return done.stdout


def rows(url: str, text: str) -> list[dict[str, Any]]:
    """The rows of a query, each by the names of its columns."""
    answer = sql(url, f"select coalesce(json_agg(asked), '[]') from ({text}) as asked")
    return json.loads(answer)
