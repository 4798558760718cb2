"""SSH between the containers of a trial, for frameworks that start their processes over it.

Every container runs a server of its own on the trial's port, as the task's user. Host and user key are one
pair of this attempt, which the platform places in all of its containers, with the configuration of servers
and, first on `PATH`, a client that accepts no other servers at that port.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from determined import errors
from determined.launch._processes import run_dir

__all__ = ["OWN", "Keys", "rank_wrapper", "server_command", "wait_for_servers"]

#: Variables of one container, which those of others must not get, beside devices.
OWN = (
    "PATH",
    "PYTHONPATH",
    "DET_AGENT_ID",
    "DET_CONTAINER_ID",
    "DET_RESOURCES_ID",
    "DET_SLOT_IDS",
    "DET_RUN_DIR",
)

#: Seconds until all servers must answer: all containers have met just before.
SERVERS_WITHIN_S = 20.0
SSHD = "/usr/sbin/sshd"


class Keys:
    """The files by which the containers of a trial reach each other; the platform places them."""

    def __init__(self) -> None:
        directory = os.path.join(run_dir(), "ssh")
        #: The private key.
        self.identity = os.path.join(directory, "id_rsa")
        #: The server's configuration.
        self.config = os.path.join(directory, "sshd_config")
        #: The servers' common key, as clients know servers.
        self.known_hosts = os.path.join(directory, "known_hosts")
        if not os.path.isfile(self.identity):
            raise errors.DistributedError(
                f"there is no SSH key at {self.identity}: this launcher starts processes over SSH, with the "
                "key that a trial of several containers is given; a startup hook may have removed it"
            )


def rank_wrapper(env: Mapping[str, str]) -> list[str]:
    """Writes, in each container, what starts a rank there with that container's own variables.

    What comes over SSH brings those of the chief: where Python finds its packages can differ from host to
    host.
    """
    path = os.path.join(run_dir(), "train", "start-rank.sh")
    lines = ["#!/bin/sh", "# Starts a rank that was launched from another container."]
    lines += [f"export {name}={shlex.quote(env[name])}" for name in OWN if name in env]
    lines += ['exec python3 -m determined.launch.wrap_rank "$@"', ""]
    _write(path, "\n".join(lines))
    return ["sh", path]


def server_command(keys: Keys, port: int) -> list[str]:
    """The server of a container, in the foreground."""
    return [SSHD, "-p", str(port), "-f", keys.config, "-D", "-e"]


def wait_for_servers(
    addresses: Sequence[str], port: int, process: subprocess.Popen[Any] | None = None
) -> None:
    """Waits until the servers of these containers answer; `errors.DistributedError` names one that does
    not.
    """
    deadline = time.monotonic() + SERVERS_WITHIN_S
    for address in addresses:
        while not _answers(address, port):
            if process is not None and process.poll() is not None:
                raise errors.DistributedError(
                    f"the SSH server of this container has ended with exit code {process.returncode}; its "
                    "lines above give the reason"
                )
            if time.monotonic() >= deadline:
                raise errors.DistributedError(
                    f"no SSH server answers at {address}, port {port}, after {SERVERS_WITHIN_S:g} s; see the "
                    "log of "
                    f"that container, and whether its image has {SSHD}"
                )
            time.sleep(0.1)


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1) as connection:
            # A server greets first.
            return bool(connection.recv(1))
    except OSError:
        return False


def _write(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
