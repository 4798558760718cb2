"""The databases that figures are measured on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from measure.results import Skipped

VARIABLE = "DET_TEST_POSTGRES_URL"


@dataclass(frozen=True)
class Store:
    """A database for one cluster; `url` None is the embedded one, which is in the master's directory."""

    label: str
    url: str | None = None

    @property
    def database(self) -> str:
        """The name of the database on its server; empty for the embedded one."""
        return "" if self.url is None else self.url.partition("?")[0].rpartition("/")[2]


@contextlib.contextmanager
def own(kind: str) -> Iterator[Store]:
    """An empty database of `kind`: sqlite, or postgres on the server that DET_TEST_POSTGRES_URL names."""
    if kind == "sqlite":
        yield Store("SQLite")
        return
    url = os.environ.get(VARIABLE)
    if not url:
        raise Skipped(f"{VARIABLE} names no PostgreSQL server")
    name = f"det_bench_{uuid.uuid4().hex[:12]}"
    base, _, options = url.partition("?")
    version = _sql(url, "show server_version").split(" ")[0]
    _sql(url, f"create database {name}")
    try:
        own_url = f"{base.rpartition('/')[0]}/{name}{'?' + options if options else ''}"
        yield Store(f"PostgreSQL {version}", own_url)
    finally:
        _sql(url, f"drop database {name} with (force)")


def _sql(url: str, text: str) -> str:
    try:
        done = subprocess.run(["psql", url, "-XqAtc", text], capture_output=True, text=True)
    except FileNotFoundError:
        raise Skipped("there is no psql to make a database with") from None
    if done.returncode != 0:
        raise Skipped(f"PostgreSQL at {VARIABLE}: {done.stderr.strip()}")
    return done.stdout.strip()


def server_processes(store: Store) -> list[int]:
    """The server's processes that work for this database, on this machine."""
    if store.url is None:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                title = file.read()
        except OSError:
            continue
        if title.startswith(b"postgres: ") and store.database.encode() in title:
            found.append(int(entry))
    return found
