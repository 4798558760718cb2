"""Processes of a cluster: starting them, finding them on the host, and seeing what they leave behind."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from waiting import wait_for

# Docker label that the agent puts on every container.
CLUSTER_LABEL = "ai.determined.container.cluster"
CONTAINER_LABEL = "ai.determined.container.id"


# Below the ports that Linux gives to connections and to who asks for any (`ip_local_port_range`), above the well-known ones
# and those that tests name.
PORTS = range(10_000, 27_000)
_kept: list[socket.socket] = []


def free_port() -> int:
    """A TCP port of the loopback address that no process listens on, and that this process keeps for itself.

    Masters come back at the port that they had: meanwhile it may be given to no other. Test processes that ask here, and the
    failpoint tests in Rust, keep a port by an abstract Unix socket with its number, which ends with the process.
    """
    for port in random.sample(PORTS, len(PORTS)):
        keeper = socket.socket(socket.AF_UNIX)
        try:
            keeper.bind(f"\0det-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            keeper.close()
            continue
        _kept.append(keeper)
        return port
    raise RuntimeError(f"all ports of {PORTS} are in use")


def tail(path: pathlib.Path, lines: int = 40) -> str:
    """The last lines of a file, or why there are none."""
    try:
        text = path.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"({error})"
    return "\n".join(text[-lines:]) or "(empty)"


class Part:
    """One long-running process of ours. Its output, over all its starts, goes to one file."""

    def __init__(
        self, name: str, argv: Sequence[str], env: dict[str, str], log: pathlib.Path, cwd: pathlib.Path
    ) -> None:
        self.name = name
        self.argv = [str(word) for word in argv]
        self.env = env
        self.log = log
        self._cwd = cwd
        self._process: subprocess.Popen | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def start(self) -> None:
        """Starts it, in a session of its own: a Ctrl-C at the terminal of the tests is ours to handle."""
        assert not self.running(), f"{self.name} runs already"
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.argv,
                env=self.env,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        """Exit code, -N for signal N; None while it runs or before its first start."""
        return None if self._process is None else self._process.poll()

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, within: float) -> int:
        """Waits for its end; gives the exit code."""
        wait_for(f"the end of {self.name}", lambda: not self.running(), within=within, seen=lambda: tail(self.log))
        code = self.exit_code()
        assert code is not None
        return code

    def kill(self) -> None:
        """`kill -9`, and the end of it."""
        self.send(signal.SIGKILL)
        self.wait(within=10)

    def stop(self, number: signal.Signals = signal.SIGTERM, within: float = 30) -> int:
        """Asks it to end, and waits for that; gives the exit code."""
        self.send(number)
        return self.wait(within)


@dataclass(frozen=True)
class Found:
    """A process of this host. The start time distinguishes it from a later one with the same number."""

    pid: int
    start_ticks: int
    command: str

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def alive(self) -> bool:
        return find(self.pid) == self


def find(pid: int) -> Found | None:
    """The process with this number; None if there is none, or only what is left of it."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything: fields are counted from behind it.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return Found(pid, int(fields[19]), command.replace(b"\0", b" ").decode(errors="replace").strip())


def processes_with(*markers: str) -> Iterator[Found]:
    """Processes of this host whose command line, environment, executable or directory names one of `markers`."""
    wanted = [marker.encode() for marker in markers if marker]
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            traces = [(entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()]
            traces += [os.readlink(entry / link).encode() for link in ("exe", "cwd")]
        except OSError:
            # Gone meanwhile, a kernel thread, or of another user.
            continue
        if any(marker in trace for marker in wanted for trace in traces):
            found = find(int(entry.name))
            if found is not None:
                yield found


def mounts_below(path: pathlib.Path) -> list[str]:
    """Mount points of the host below `path`."""
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return [point for point in (line.split(" ")[4] for line in lines) if point.startswith(f"{path}/")]


PODMAN_SOCKET = "/run/podman/podman.sock"


def podman_socket(engine: str) -> str:
    """Where Podman's service listens: that of root, `podman`, or that of another user, `rootless`."""
    return PODMAN_SOCKET if engine == "podman" else os.environ.get("DET_TEST_ROOTLESS_SOCKET", "/nonexistent")


def docker_client() -> str | None:
    """The Docker client: Debian's where it is installed. Another one on PATH may be made for some other engine."""
    return shutil.which("docker", path="/usr/bin") or shutil.which("docker")


def docker(*args: str, check: bool = True, engine: str = "docker") -> str:
    """Runs the Docker client, with the engine or with a service of Podman; gives its output."""
    client = docker_client()
    assert client is not None, "there is no docker on PATH"
    host = [] if engine == "docker" else ["--host", f"unix://{podman_socket(engine)}"]
    done = subprocess.run([client, *host, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or not check, f"docker {' '.join(args)}: {done.stderr}"
    return done.stdout.strip()


def containers_of(cluster_id: str, engine: str = "docker") -> list[str]:
    """Ids of the cluster's containers, running or not."""
    label = f"label={CLUSTER_LABEL}={cluster_id}"
    return docker("ps", "--all", "--quiet", "--no-trunc", "--filter", label, engine=engine).split()
