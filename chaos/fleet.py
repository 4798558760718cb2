"""Simulated agents of a world: a process of `det-bench agents`, with real connections and with timers as tasks."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import threading
from typing import Any

from harness import Missing, det_executable
from waiting import Hopeless, wait_for
from world import World

# Names the executable, where it is not beside `det`.
VARIABLE = "DET_BENCH_BIN"


def bench_executable() -> pathlib.Path:
    """The `det-bench` to use."""
    path = pathlib.Path(os.environ.get(VARIABLE, det_executable().with_name("det-bench")))
    if not os.access(path, os.X_OK):
        raise Missing(f'there is no executable "{path}": cargo build -p det-bench, or name one with {VARIABLE}')
    return path


class Fleet:
    """Use it with `with`: leaving it ends the agents by force, if `close` has not."""

    def __init__(self, world: World, agents: int, *arguments: object) -> None:
        self.agents = agents
        argv = [bench_executable(), "agents", "--master", f"127.0.0.1:{world.port}", "--agents", agents]
        argv += ["--token-file", world.data_dir / "agent-token", *arguments]
        self._argv = [str(word) for word in argv]
        self._said: list[str] = []
        # When (seconds since 1970) all agents were registered, each time.
        self.registered: list[float] = []
        # How long it took until all were back, for each storm.
        self.storms: list[float] = []
        # Connections that the agents did not cut themselves, by what ended them.
        self.lost: list[str] = []

    def __enter__(self) -> Fleet:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._reader = threading.Thread(target=self._read, name="fleet", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(timeout=10)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            with contextlib.suppress(ValueError):
                news = json.loads(line)
                if "registered" in news:
                    self.registered.append(news["at"])
                elif "storm_seconds" in news:
                    self.storms.append(news["storm_seconds"])
                elif "lost" in news:
                    self.lost.append(f"{news['agent']}: {news['lost']}")

    def lives(self) -> bool:
        """True, or the end of the wait that asks."""
        if self._process.poll() is not None:
            raise Hopeless(f"the simulated agents have ended: {''.join(self._said[-5:])}")
        return True

    def wait_registered(self, times: int, within: float) -> float:
        """Waits until all have been registered so many times; gives when that was."""
        wait_for(
            f"{self.agents} simulated agents",
            lambda: self.lives() and len(self.registered) >= times,
            within=within,
            seen=lambda: "".join(self._said[-5:]),
        )
        return self.registered[times - 1]

    def close(self) -> dict[str, Any]:
        """Ends the agents in order, and gives their figures."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        # Its one document fits into the pipe: it can end before its output is read.
        if self._process.wait(timeout=60) != 0:
            raise Hopeless(f"the simulated agents failed: {''.join(self._said[-5:])}")
        return json.loads(self._process.stdout.read())
