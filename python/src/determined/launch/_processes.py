"""Runs the launcher of a framework, and ends it as soon as one of the processes that it started has failed.

Frameworks look after their processes every few seconds at best, and some not at all; the others of a
training wait
for the dead one meanwhile. So each process is wrapped (`wrap_rank`), and its wrapper reports its end to a
socket
of its container, at which the launcher listens. What failed first is left in a file for the supervisor, which
reports it as the cause.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
import types
from collections.abc import Generator, Sequence
from typing import Any

__all__ = ["exit_code", "forwarded_signals", "report_end", "run"]

logger = logging.getLogger("determined.launch")

#: Signals that are passed on to what was started.
FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH")
#: Seconds in which the ranks that fail because of another one, or before it, are waited for.
SETTLE_S = 1.0
#: Seconds that the framework's launcher may take to end after one of its processes has failed.
GRACE_S = 5.0
#: Longest report of an end, in bytes.
MOST_BYTES = 1 << 16
#: Characters of a line in it.
MOST_SHOWN = 300


def run_dir() -> str:
    """The directory of this container's own files."""
    return os.environ.get("DET_RUN_DIR") or "/run/determined"


def _socket_path() -> str:
    return os.path.join(run_dir(), "train", "launch.sock")


def _failure_path() -> str:
    return os.path.join(run_dir(), "failed_rank.json")


def exit_code(returned: int) -> int:
    """An exit code as shells have it: 128 and the number of the signal that ended a process."""
    return 128 - returned if returned < 0 else returned


def report_end(
    rank: int, returned: int, failed_at: float | None = None, last_lines: Sequence[str] = ()
) -> None:
    """Reports to this container's launcher, if there is one, that the process of a rank has ended.

    `failed_at`, in seconds since 1970, is when it seems to have failed: processes take long to end, and
    those that
    fail because of it can be faster. None = now.
    """
    at = time.time() if failed_at is None else failed_at
    report = {"rank": rank, "exit_code": exit_code(returned), "failed_at": int(at * 1e6)}
    report["last_lines"] = [line[:MOST_SHOWN] for line in last_lines]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.sendto(json.dumps(report).encode(), _socket_path())


@contextlib.contextmanager
def forwarded_signals(process: subprocess.Popen[Any]) -> Generator[None, None, None]:
    """Passes signals on to a process inside the block."""

    def forward(number: int, frame: types.FrameType | None) -> None:
        process.send_signal(number)

    before = {
        number: signal.signal(number, forward) for number in (getattr(signal, name) for name in FORWARDED)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def run(command: Sequence[str], *, on_failure: signal.Signals = signal.SIGTERM) -> int:
    """Runs a framework's launcher; gives its exit code, or that of the rank that failed first.

    `on_failure` is what the launcher gets when a rank has failed.
    """
    with _Ends() as ends, subprocess.Popen(command) as process, forwarded_signals(process):
        watcher = threading.Thread(
            target=_watch, args=(ends, process, on_failure), name="determined-launch", daemon=True
        )
        watcher.start()
        returned = exit_code(process.wait())
        ends.stop()
        watcher.join()
    if ends.failed is not None:
        return int(ends.failed["exit_code"])
    return returned


class _Ends:
    """What wrappers report."""

    def __init__(self) -> None:
        self._path = _socket_path()
        self._socket: socket.socket | None = None
        #: The first failure.
        self.failed: dict[str, Any] | None = None

    def __enter__(self) -> _Ends:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_failure_path())
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            listener.bind(self._path)
            self._socket = listener
        except OSError as error:
            # Without it the framework notices by itself, later.
            logger.debug("cannot listen for the ends of processes at %s: %s", self._path, error)
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def stop(self) -> None:
        """Ends `next_failure` of another thread: there are no more reports.

        By a report of nothing: a shutdown does not wake who receives from such a socket with a timeout.
        """
        if self._socket is not None:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.sendto(b"", self._path)

    def next_failure(self, within_s: float | None = None) -> dict[str, Any] | None:
        """The next report of a process that failed; None at the end, or when none has come in time."""
        deadline = None if within_s is None else time.monotonic() + within_s
        while self._socket is not None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            try:
                self._socket.settimeout(left)
                data = self._socket.recv(MOST_BYTES)
            except OSError:
                return None
            if not data:
                return None
            try:
                report = json.loads(data)
                lines = [str(line)[:MOST_SHOWN] for line in list(report.get("last_lines") or [])[-8:]]
                report = {name: int(report[name]) for name in ("rank", "exit_code", "failed_at")}
                report["last_lines"] = lines
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            if report["exit_code"] != 0:
                return report
        return None


def _watch(ends: _Ends, process: subprocess.Popen[Any], on_failure: signal.Signals) -> None:
    failed = ends.next_failure()
    if failed is None:
        return
    _note(ends, failed)
    # Those that failed because of it may have ended before.
    deadline = time.monotonic() + SETTLE_S
    while (more := ends.next_failure(max(0.0, deadline - time.monotonic()))) is not None:
        if more["failed_at"] < failed["failed_at"]:
            failed = more
            _note(ends, failed)
    process.send_signal(on_failure)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _note(ends: _Ends, failed: dict[str, Any]) -> None:
    """Leaves what failed first for the platform: at once, because this container may be ended at any
    moment.
    """
    ends.failed = failed
    code = failed["exit_code"]
    how = f"was ended by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
    logger.error("the process of rank %d %s: the others of this container are ended", failed["rank"], how)
    with contextlib.suppress(OSError):
        path = _failure_path()
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(failed, file)
        os.replace(f"{path}.tmp", path)
