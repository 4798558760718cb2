"""Several hosts on one machine: network namespaces on a bridge, each with an address and a loopback of its own; and ports of
this host that lead to others."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from harness import Missing
from processes import docker

USES = itertools.count(1)


@dataclass(frozen=True)
class Host:
    """A network namespace."""

    name: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """Words before a command line that run it there."""
        # Not "ip netns exec", which hides the control groups.
        return ["nsenter", f"--net=/run/netns/{self.name}"]


@dataclass(frozen=True)
class Network:
    """Hosts, and the address at which they reach this one."""

    gateway: str
    hosts: list[Host]


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f"this machine has no hosts of its own: ip {' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Network]:
    """So many hosts; they are removed afterwards. `Missing` where this machine cannot have any."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Missing("hosts of their own need root and ip (Debian: iproute2)")
    # Names and addresses of this use: several runs may share the machine, and what one has removed goes some time later.
    number_of_use = next(USES)
    tag = f"{os.getpid():x}{number_of_use}"
    bridge, place = f"dbr{tag}", os.getpid() * 16 + number_of_use % 16
    subnet = f"10.{200 + place % 50}.{place // 50 % 250}"
    made = [Host(f"dns{tag}-{number}", f"{subnet}.{number + 2}") for number in range(count)]
    with contextlib.ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(subprocess.run, ["ip", "link", "delete", bridge], capture_output=True)
        _ip("addr", "add", f"{subnet}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for number, host in enumerate(made):
            _ip("netns", "add", host.name)
            stack.callback(subprocess.run, ["ip", "netns", "delete", host.name], capture_output=True)
            near, far = f"dve{tag}-{number}", "eth0"
            _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", host.name)
            _ip("link", "set", near, "master", bridge, "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", far)
            _ip("-n", host.name, "link", "set", far, "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield Network(f"{subnet}.1", made)


@contextlib.contextmanager
def forwarded(address: str, to: int) -> Iterator[int]:
    """A port of an address of this host that leads to one of loopback: where containers reach a master of this machine."""
    listener = socket.create_server((address, 0))

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def connect(one: socket.socket) -> None:
        with one, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", to)) as other:
            back = threading.Thread(target=carry, args=(other, one), daemon=True)
            back.start()
            carry(one, other)
            back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=connect, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        # Wakes the thread that accepts.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=10)


def bridge_address() -> str:
    """The host's address on the engine's bridge."""
    found = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}", check=False)
    if not found:
        raise Missing("the Docker engine has no bridge network")
    return found
