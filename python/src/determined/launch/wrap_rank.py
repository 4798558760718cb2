"""Runs a program as one rank of a training: its lines get the rank in front, and its end is reported at once.

`python3 -m determined.launch.wrap_rank RANK SCRIPT...`, where RANK is a number, or names of variables of
which
the first that is set has it. The cluster's log reads the rank from the front of the lines. They go to the
container's own output: the launchers of some frameworks would carry those of all machines to the chief.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from determined.launch import _processes

__all__ = ["main"]

#: Bytes of a line with its rank that are written at once: what a pipe takes whole, however many write.
MOST_BYTES = 4096
#: The line with which Python begins to show an error, and lines after which it was another's that did no
#: harm.
TRACEBACK = b"Traceback (most recent call last):"
MOST_LINES_OF_ERROR = 200


def main(arguments: Sequence[str]) -> int:
    """Runs the program; gives its exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m determined.launch.wrap_rank",
        usage="%(prog)s [--no-redirect-stdio] RANK SCRIPT...",
        description="Runs SCRIPT as one rank of a training.",
    )
    parser.add_argument("--no-redirect-stdio", action="store_true", help="write to the own standard output")
    parser.add_argument("rank", metavar="RANK", help="a number, or names of variables, separated by commas")
    parser.add_argument("script", metavar="SCRIPT...", nargs=argparse.REMAINDER, help="program and arguments")
    parsed = parser.parse_args(arguments)
    script = parsed.script[1:] if parsed.script[:1] == ["--"] else parsed.script
    if not script:
        parser.error("there is no SCRIPT to run")
    rank = _rank(parsed.rank)
    if rank is None:
        parser.error(f'"{parsed.rank}" is no number and names no variable that is set to one')
    # Before the process: others may fail because of it before this one goes on.
    output = _Output()
    try:
        process = subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        sys.stderr.write(f"[rank={rank}] cannot run {script[0]!r}: {error}\n")
        code = 127 if isinstance(error, FileNotFoundError) else 126
        _processes.report_end(rank, code)
        return code
    with _processes.forwarded_signals(process), contextlib.ExitStack() as opened:
        threads: list[threading.Thread] = []
        for pipe, name, own in ((process.stdout, "stdout", 1), (process.stderr, "stderr", 2)):
            assert pipe is not None
            target = own if parsed.no_redirect_stdio else _target(name, own, opened)
            thread = threading.Thread(
                target=_pass_on, args=(pipe.fileno(), target, rank, output), name=name, daemon=True
            )
            thread.start()
            threads.append(thread)
        returned = process.wait()
        for thread in threads:
            # A process that it has left behind may hold its output.
            thread.join(0.5)
        # At once: the other ranks wait for one that is gone.
        if returned != 0:
            _processes.report_end(rank, returned, output.failed_at(), output.last_lines())
    return _processes.exit_code(returned)


class _Output:
    """When a process failed, as far as its lines show."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = time.time()
        self._traceback: float | None = None
        self._since = 0
        self._lines: collections.deque[str] = collections.deque(maxlen=8)

    def see(self, lines: Sequence[bytes]) -> None:
        """Takes in lines that were just written."""
        now = time.time()
        with self._lock:
            for line in lines:
                self._last = now
                self._since += 1
                if line.strip():
                    self._lines.append(line.decode(errors="replace").rstrip())
                if line == TRACEBACK:
                    self._traceback, self._since = now, 0

    def last_lines(self) -> list[str]:
        """The last lines that are not blank."""
        with self._lock:
            return list(self._lines)

    def failed_at(self) -> float:
        """When its last traceback began; of one that ends without, when it last showed that it lived."""
        with self._lock:
            if self._traceback is not None and self._since <= MOST_LINES_OF_ERROR:
                return self._traceback
            return self._last


def _rank(text: str) -> int | None:
    for name in text.split(","):
        value = name if name.isdecimal() else os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def _target(name: str, own: int, opened: contextlib.ExitStack) -> int:
    """The container's own output, which is a named pipe on a cluster; else that of this process."""
    path = os.path.join(_processes.run_dir(), "train", "logs", f"{name}.log")
    try:
        # Without a reader it would wait.
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return own
    os.set_blocking(descriptor, True)
    opened.callback(os.close, descriptor)
    return descriptor


def _pass_on(source: int, target: int, rank: int, output: _Output) -> None:
    """Copies lines, which end with a line feed or, as those of progress bars do, with a carriage return."""
    front = f"[rank={rank}] ".encode()
    longest = MOST_BYTES - len(front) - 1
    rest = b""
    while True:
        piece = os.read(source, 1 << 16)
        *lines, rest = (rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if not piece and rest:
            lines, rest = [*lines, rest], b""
        while len(rest) > longest:
            lines, rest = [*lines, rest[:longest]], rest[longest:]
        output.see(lines)
        for line in lines:
            for start in range(0, max(len(line), 1), longest):
                with contextlib.suppress(BrokenPipeError):
                    os.write(target, front + line[start : start + longest] + b"\n")
        if not piece:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
