"""SSH between the containers of a trial, for frameworks that start their processes over it.

Every container runs a server of its own on the trial's port, as the task's user. Host and user key are one
pair,
made by the chief for this attempt and passed to the others through the master.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from determined import _info, errors
from determined._task import exchange
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
    """Files of this attempt's key pair."""

    def __init__(self, directory: str) -> None:
        #: The private key.
        self.identity = os.path.join(directory, "id_ed25519")
        #: The server's configuration.
        self.config = os.path.join(directory, "sshd_config")
        #: The servers' common key, as clients know servers.
        self.known_hosts = os.path.join(directory, "known_hosts")
        #: Directory of an `ssh` that connects to servers with this key only.
        self.programs = os.path.join(directory, "bin")

    @classmethod
    def share(cls, info: _info.ClusterInfo) -> Keys:
        """Makes the pair, or receives it from the chief, and writes the files."""
        if os.geteuid() == 0:
            # Packages make it when their service starts, which no container does.
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        directory = tempfile.mkdtemp(prefix="determined-ssh-")
        keys = cls(directory)
        private = keys._make() if info.container_rank == 0 else ""
        size = len(info.container_addrs)
        if size > 1:
            private = exchange(info, "launch-ssh-key", info.container_rank, size, private)
        keys._write(private)
        return keys

    def _make(self) -> str:
        _tool(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "determined", "-f", self.identity])
        with open(self.identity, encoding="ascii") as file:
            return file.read()

    def _write(self, private: str) -> None:
        directory = os.path.dirname(self.identity)
        _write(self.identity, private)
        public = _tool(["ssh-keygen", "-y", "-f", self.identity])
        authorized = os.path.join(directory, "authorized_keys")
        _write(authorized, public)
        _write(self.config, server_config(self.identity, authorized))
        # Launchers do not check whom they connect to, and send the trial's secrets along: another task of
        # the host may listen at the port of a server that could not start.
        _write(self.known_hosts, f"* {' '.join(public.split()[:2])}\n")
        os.makedirs(self.programs, mode=0o700)
        program = os.path.join(self.programs, "ssh")
        _write(program, client(shutil.which("ssh") or "/usr/bin/ssh", self.known_hosts))
        os.chmod(program, 0o700)

    def first_on_path(self) -> None:
        """Lets the launcher find the client that checks servers."""
        os.environ["PATH"] = self.programs + os.pathsep + os.environ.get("PATH", os.defpath)


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


def client(ssh: str, known_hosts: str) -> str:
    """A script that is `ssh` with checks. Of options that are given twice the first one counts."""
    options = ["-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={known_hosts}"]
    options += ["-o", "GlobalKnownHostsFile=/dev/null", "-o", "UpdateHostKeys=no"]
    return f'#!/bin/sh\nexec {shlex.join([ssh, *options])} "$@"\n'


def server_config(identity: str, authorized: str) -> str:
    """A configuration for which nothing but the key counts."""
    return "\n".join(
        [
            f"HostKey {identity}",
            f"AuthorizedKeysFile {authorized}",
            "PubkeyAuthentication yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            # The files lie below directories of the platform.
            "StrictModes no",
            "UsePAM no",
            "PidFile none",
            "PermitUserEnvironment yes",
            "",
        ]
    )


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
                    "lines above "
                    "say why"
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


def _tool(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise errors.DistributedError(
            f"there is no {command[0]!r} in this task: this launcher starts processes over SSH; install "
            "openssh-client "
            "and openssh-server in the image"
        ) from error
    except subprocess.CalledProcessError as error:
        raise errors.DistributedError(f"{command[0]!r} failed: {error.stderr.strip()}") from error
    return done.stdout


def _write(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
