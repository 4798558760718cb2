"""Facts about the machine and the build, which every result carries: a figure without them means little."""

from __future__ import annotations

import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from measure.results import percentile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _output(*command: str) -> str:
    """What a command prints, or that it cannot be had."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({error})"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _memory_mb() -> int:
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) // 1024
    return 0


def _processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "model name":
            return rest.strip()
    return platform.machine()


def file_system(path: pathlib.Path) -> str:
    """Kind of the file system that holds `path`."""
    best = ("", "unknown")
    resolved = f"{path.resolve()}/"
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind = line.split(" ")[:3]
        point = point.encode().decode("unicode_escape")
        if resolved.startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def durable_write_ms(directory: pathlib.Path, times: int = 40) -> dict[str, float]:
    """What it costs to append 4 KiB and to wait until the disk has them: the floor of everything durable."""
    path = directory / "durable-write"
    taken = []
    with path.open("wb", buffering=0) as out:
        for _ in range(times):
            out.write(b"x" * 4096)
            started = time.perf_counter()
            os.fdatasync(out.fileno())
            taken.append((time.perf_counter() - started) * 1e3)
    path.unlink()
    return {"median": percentile(taken, 50), "p99": percentile(taken, 99)}


def machine(work: pathlib.Path) -> dict[str, Any]:
    """The machine as it is now; `work` is where the clusters keep their files."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": _memory_mb(),
        "kernel": platform.release(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "file_system": file_system(work),
        "durable_write_ms": durable_write_ms(work),
        "load_average": list(os.getloadavg()),
        "busy_cores_before": busy_cores(1.0),
    }


def build(det: pathlib.Path, profile: str) -> dict[str, Any]:
    """What is measured. The commit is that of the tree; an executable named by DET_BIN may be of another."""
    return {
        "profile": profile,
        "executable": str(det),
        "executable_bytes": det.stat().st_size,
        "executable_built": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(det.stat().st_mtime)),
        "version": _output(str(det), "--version"),
        "tree_commit": _output("git", "rev-parse", "HEAD"),
        "tree_changed_files": len(_output("git", "status", "--porcelain", "--", "crates", "Cargo.lock").splitlines()),
        "rustc": _output("rustc", "--version"),
    }


def _machine_ticks() -> tuple[int, int]:
    """Ticks that all cores were busy, and ticks in all."""
    numbers = [int(n) for n in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, sum(numbers)


def busy_cores(seconds: float) -> float:
    """How many cores are busy, looked at for a while."""
    before, started = _machine_ticks()[0], time.monotonic()
    time.sleep(seconds)
    return (_machine_ticks()[0] - before) / TICKS_PER_SECOND / (time.monotonic() - started)


def process_seconds(pids: Iterable[int], ended_children: bool = False) -> float:
    """Processor time that these processes have used so far, all their threads; or that their ended children had used.

    A process that has ended itself counts nothing.
    """
    user, system = (13, 14) if ended_children else (11, 12)
    total = 0
    for pid in pids:
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        total += int(fields[user]) + int(fields[system])
    return total / TICKS_PER_SECOND


def memory_kb(pid: int) -> dict[str, int]:
    """Memory of a process from smaps_rollup: what it alone needs (`Anonymous`), and what is mapped in (`Rss`)."""
    found = {}
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0])
    return found


@dataclass
class Watch:
    """Who uses the processors between two moments: the parts measured, the tasks that they started and that have ended,
    the load generator, all others.

    On a machine with other load the figures are those of the remaining capacity; `other` is how much was used.
    """

    parts: dict[str, Sequence[int]]
    generator_seconds: float = 0.0

    def __enter__(self) -> Watch:
        self._started = time.monotonic()
        self._busy = _machine_ticks()[0]
        self._own = _own_seconds()
        self._parts = self._part_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._started
        self.part_seconds = {name: seconds - self._parts[name] for name, seconds in self._part_seconds().items()}
        self.generator_seconds = _own_seconds() - self._own
        busy = (_machine_ticks()[0] - self._busy) / TICKS_PER_SECOND
        self.other_seconds = max(0.0, busy - self.generator_seconds - sum(self.part_seconds.values()))

    def _part_seconds(self) -> dict[str, float]:
        seconds = {name: process_seconds(pids) for name, pids in self.parts.items()}
        if "agent" in self.parts:
            seconds["tasks"] = process_seconds(self.parts["agent"], ended_children=True)
        return seconds

    def cores(self) -> dict[str, float]:
        """Cores used on average, by whom."""
        used = {**self.part_seconds, "generator": self.generator_seconds, "other": self.other_seconds}
        return {name: round(seconds / self.seconds, 3) for name, seconds in used.items()}


def _own_seconds() -> float:
    """Processor time of this process and of its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
