"""One run of one scenario: its options, its worlds, what it found, and the evidence."""

from __future__ import annotations

import contextlib
import pathlib
import random
import re
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import observe
from harness import Agent
from loads import Counts, Steady
from postgres import Postgres
from processes import tail
from violations import Violation, to_json
from waiting import Hopeless, TooLate
from world import World

# Violations shown of one scenario; all are in its evidence.
SHOWN = 12
# Lines of master, agents and supervisors that are a defect, whatever was done to them.
NEVER = re.compile(r"panicked at|stack backtrace|RUST_BACKTRACE|internal error: entered unreachable")


@dataclass
class Stage:
    """What a scenario is played on."""

    name: str
    store: str
    runtime: str
    seed: int
    # How often, or for how many seconds: what the row of the table contains.
    amount: int
    # `ci` or `hand`.
    size: str
    evidence: pathlib.Path
    server: Callable[[], Postgres]
    verbose: bool = False
    counts: Counts = field(default_factory=Counts)
    # Figures beside the usual ones, for the summary line.
    figures: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed} {self.name} {self.store} {self.runtime}")
        self._groups = set(observe.cgroups())
        self._kept = 0

    def say(self, text: str) -> None:
        """A line for the user who watches."""
        if self.verbose:
            print(f"  {self.name}: {text}", flush=True)

    def unstarted(self, number: int) -> contextlib.AbstractContextManager[World]:
        """A cluster of which nothing runs yet, on an empty database."""
        return self.world(started=False, seed=self.seed + number)

    @contextlib.contextmanager
    def world(
        self, *, agents: list[Agent] | None = None, slots: int = 4, started: bool = True, **options: Any
    ) -> Iterator[World]:
        """A cluster. Whatever ends it early counts as a violation, with the evidence kept."""
        if agents is None:
            agents = [Agent(slots=slots, runtime=self.runtime)]
        server = self.server() if self.store == "postgres" else None
        options.setdefault("seed", self.seed)
        with World(agents=agents, store=self.store, server=server, **options) as world:
            try:
                if started:
                    world.start()
                yield world
            except (TooLate, Hopeless) as error:
                what = str(error).splitlines()[0]
                self.found([Violation(4, "stuck", "cluster", what, {"error": str(error)})])
            except Exception as error:
                # Of the runner itself or of a cluster in an unforeseen state: never passed over.
                what = f"the scenario could not go on: {error!r}"
                self.found([Violation(0, "error", "scenario", what, {"trace": traceback.format_exc()})])
            finally:
                self.found(self.panics(world))
                if self.counts.violations:
                    self.keep(world)

    def found(self, violations: list[Violation]) -> None:
        """Takes note of violations, each once."""
        for violation in violations:
            if violation not in self.counts.violations:
                self.counts.violations.append(violation)
                if len(self.counts.violations) <= SHOWN:
                    print(f"  {self.name}: {violation}", flush=True)
                elif len(self.counts.violations) == SHOWN + 1:
                    print(f"  {self.name}: and more, see the evidence", flush=True)

    def late(self, violation: Violation) -> None:
        """Something took longer than it may. In the short form, which runs on busy machines, it is shown only."""
        if self.size == "hand":
            self.found([violation])
        else:
            self.figures["late"] = self.figures.get("late", 0) + 1
            print(f"  {self.name}: late, which the short form only shows: {violation}", flush=True)

    def recovered(self, seconds: float) -> None:
        """Takes note of how long it took until everything went on."""
        self.counts.recoveries.append(seconds)

    def panics(self, world: World) -> list[Violation]:
        """Panics, in any log."""
        logs = [part.log for part in world.parts.values()]
        for agent in world.agents:
            logs += list((world.agent_dir(agent.name)).glob("containers/*/**/supervisor.log"))
        found = []
        for log in logs:
            with contextlib.suppress(OSError):
                for line in log.read_text(errors="replace").splitlines():
                    if NEVER.search(line):
                        found.append(Violation(0, "panic", log.name, line))
        return found

    def end(self, world: World, *loads: Any, refusals: bool = True) -> None:
        """The usual end: faults are over; all goes on, comes to its end, agrees, and leaves nothing behind."""
        for load in loads:
            if isinstance(load, Steady):
                self.recovered(load.progress(by=5))
                # Those who are over speak up while the others run.
                self.found(observe.all_fenced(world, load.directory))
                load.progress()
        self.found(observe.of_rows(world))
        for load in loads:
            self.found(load.stop() if isinstance(load, Steady) else load.finish())
        for load in loads:
            if isinstance(load, Steady):
                self.found(load.check())
        self.found(observe.agrees(world))
        self.found(observe.nothing_left(world, self._groups))
        if refusals:
            self.found(observe.refusals(world))
        self.found(observe.of_rows(world))
        self.found(self._stops(world))

    def _stops(self, world: World) -> list[Violation]:
        """All parts end in order when asked to."""
        found = []
        for part in reversed(list(world.parts.values())):
            if not part.running():
                continue
            try:
                code = part.stop()
            except TooLate as error:
                found.append(Violation(4, "stuck", part.name, "it does not end when asked to", {"error": str(error)}))
                continue
            if code != 0:
                evidence = {"log": tail(part.log)}
                found.append(
                    Violation(4, "wrong", part.name, f"asked to end, it ended with exit code {code}", evidence)
                )
        found += [Violation(6, "left", "machine", left) for left in world.leftovers()]
        return found

    def keep(self, world: World) -> None:
        """Keeps everything that shows the violations."""
        self._kept += 1
        directory = self.evidence / f"{self._kept}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "violations.json").write_text(to_json(self.counts.violations))
        for source, name in ((world.root / "logs", "logs"), (world.ledgers, "ledgers")):
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(source, directory / name, dirs_exist_ok=True)
        with contextlib.suppress(OSError):
            world.copy_database(directory)
        for agent in world.agents:
            for record in world.agent_dir(agent.name).glob("containers/*"):
                target = directory / "agents" / agent.name / record.name
                for path in (*record.glob("*.json"), *record.glob("*.log"), *record.glob("run/*.log")):
                    # The specification and the script hold the task's token.
                    if path.name in ("spec.json", "task.json"):
                        continue
                    with contextlib.suppress(OSError):
                        target.mkdir(parents=True, exist_ok=True)
                        shutil.copy(path, target)
        with contextlib.suppress(Exception):
            (directory / "cluster.txt").write_text(world.describe())
        print(f"  {self.name}: evidence in {directory}", flush=True)

    def until(self, seconds: float) -> Iterator[float]:
        """Counts down: gives the seconds left until there are none."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            yield left
