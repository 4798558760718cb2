"""Scenarios of full disks, on tmpfs of a few megabytes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from harness import Agent, Missing
from kills import checked
from loads import Exits, Pace, Steady
from network import Probe
from stage import Stage
from violations import Violation
from waiting import stays_true, wait_for
from world import World

# What a log or an answer must contain for a user to understand.
FULL = re.compile(r"no space|disk is full|out of space|\bfull\b", re.IGNORECASE)


class Disk:
    """A tmpfs of its own, to be filled and emptied. Use it with `with`; needs root."""

    def __init__(self, megabytes: int) -> None:
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="det-chaos-disk-", dir="/var/tmp"))
        self._megabytes = megabytes
        self._filling = self.path / "filling"

    def __enter__(self) -> Disk:
        options = f"size={self._megabytes}m,mode=755"
        command = ["mount", "-t", "tmpfs", "-o", options, "chaos", str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            self.path.rmdir()
            raise Missing(f"a small disk cannot be mounted: {done.stderr.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        # What still uses it goes on without a name; its users have been ended by then.
        subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def fill(self) -> None:
        """Takes all space that is left, to the last byte."""
        with self._filling.open("ab", buffering=0) as out:
            for piece in (1 << 20, 4096, 64, 1):
                with contextlib.suppress(OSError):
                    while True:
                        out.write(b"\0" * piece)

    def keep_full(self, seconds: float) -> None:
        """Fills it, and again whatever becomes free, for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.fill()
            time.sleep(0.1)

    def free_space(self) -> None:
        self._filling.unlink(missing_ok=True)


@contextlib.contextmanager
def disk(megabytes: int) -> Iterator[Disk]:
    if os.geteuid() != 0:
        raise Missing("small disks need root")
    with Disk(megabytes) as made:
        yield made


def disk_full(stage: Stage) -> None:
    """The disk of the database, of the spools, of the checkpoints and of the agent is full for a while, one by one."""
    plays = {"database": full_database, "checkpoints": full_checkpoints, "spool": full_spool, "agent": full_agent}
    for _ in range(stage.amount):
        for name, play in plays.items():
            stage.say(f"the disk of the {name} is full")
            play(stage)


def full_database(stage: Stage) -> None:
    """Changes are refused with a hint, and an event records when they are taken again."""
    with disk(96) as small:
        place = small.path / "database"
        place.mkdir()
        where = {"database_root": place} if stage.store == "postgres" else {"master_root": place}
        with stage.world(slots=6, **where) as world:
            full_disk_of_the_database(stage, world, small)


def full_disk_of_the_database(stage: Stage, world: World, small: Disk) -> None:
    steady = Steady(world, trials=4)
    with Probe(world) as probe:
        small.keep_full(5.0)
        small.free_space()
        stage.recovered(steady.progress(by=3))
    stage.found(probe.violations)
    if 503 not in probe.answered:
        what = "with its disk full no request was answered with 503"
        stage.found([Violation(9, "wrong", "database", what, {"answered": probe.answered})])
    stage.found(unreported(world, "master"))
    recorded_by_an_event(world, "database", "disk_was_full")
    checked(stage, world, steady, 1)
    stage.end(world, steady)


def full_checkpoints(stage: Stage) -> None:
    with disk(64) as small, stage.world(slots=6, checkpoint_root=small.path / "checkpoints") as world:
        steady = Steady(world, trials=3, pace=Pace(checkpoint_every=5, checkpoint_bytes=20_000))
        small.keep_full(4.0)
        small.free_space()
        stage.recovered(steady.progress(by=10))
        printed = [line for trial in steady.trials for line in world.printed(trial) if FULL.search(line)]
        if not printed:
            stage.found([Violation(10, "lost", "checkpoints", "nothing in the trials' logs reports the full disk")])
        checked(stage, world, steady, 1)
        stage.end(world, steady)


def full_spool(stage: Stage) -> None:
    """The agent's disk fills while tasks run, and while one ends: their lines wait for free space, none is lost, exit codes
    are known, and both the log and an event of each task report it."""
    with disk(64) as small:
        roots = {"agent-1": small.path / "agent"}
        with stage.world(agents=[Agent(slots=6)], agent_roots=roots) as world:
            steady, exits = Steady(world, trials=3, pace=Pace(line_bytes=2000)), Exits(world)
            exits.start(code=stage.random.randint(1, 120), after=2.0)
            small.keep_full(4.0)
            small.free_space()
            stage.recovered(steady.progress(by=5))
            stage.found(exits.check())
            for trial in steady.trials:
                task = world.trial(trial)["taskId"]
                recorded_by_an_event(world, "task", "log_held", task)
                lines = [line for line in world.log_lines(trial) if FULL.search(line)]
                if not any("nothing of it is missing" in line for line in lines):
                    what = "its log does not contain that it waited for free space and that nothing is missing"
                    stage.found([Violation(10, "lost", f"trial {trial}", what, {"lines": lines})])
            checked(stage, world, steady, 1)
            stage.end(world, steady)


def full_agent(stage: Stage) -> None:
    """The agent's disk is full when a task is to start: that is reported, and later ones start when there is space."""
    with disk(64) as small:
        roots = {"agent-1": small.path / "agent"}
        with stage.world(agents=[Agent(slots=6)], agent_roots=roots) as world:
            steady = Steady(world, trials=2)
            small.fill()
            config = {
                "name": "on-a-full-disk",
                "entrypoint": "true",
                "searcher": {"name": "single", "metric": "m", "smaller_is_better": True},
                "resources": {"slots_per_trial": 1},
                "max_restarts": 0,
            }
            experiment = world.create(config)
            trial = world.only_trial(experiment)["id"]
            wait_for(
                "a word on the full disk in the task's log",
                lambda: any(FULL.search(line) for line in world.log_lines(trial)),
                within=30,
                seen=world.describe,
            )
            stays_true("the agent lives", world.part("agent-1").running, throughout=2.0)
            # It gets nothing new until there is space, and names the reason.
            shown = wait_for("the fault of the agent", lambda: faulty(world), within=30, seen=world.describe)
            if shown["enabled"] or not FULL.search(shown["fault"]):
                what = "it takes new work, or does not name the full disk"
                stage.found([Violation(10, "wrong", "agent agent-1", what, {"shown": shown})])
            again = world.create({**config, "name": "with-space-again"})
            small.free_space()
            began = time.monotonic()
            world.wait_experiment(again, "COMPLETED", within=60)
            wait_for(
                "the end of the first one",
                lambda: world.experiment(experiment)["state"] in ("COMPLETED", "ERROR"),
                within=60,
                seen=world.describe,
            )
            recorded_by_an_event(world, "agent", "host_fault")
            # Whether it failed for good or was started again: the end of its first allocation has the reason.
            recorded_by_an_event(world, "allocation", "ended")
            stage.recovered(time.monotonic() - began)
            checked(stage, world, steady, 1)
            stage.end(world, steady)


def faulty(world: World) -> dict[str, Any] | None:
    """The agent as the API shows it, once it has reported that its host cannot start containers."""
    shown = world.api("GET", "/api/v1/agents/agent-1")["agent"]
    return shown if shown["fault"] else None


def recorded_by_an_event(world: World, kind: str, what: str, subject: str = "") -> None:
    """Waits for an event of this kind that reports the full disk."""

    def there() -> bool:
        return any(
            event["kind"] == what and FULL.search(event["reason"] or "")
            for event in world.events()
            if event["subjectKind"] == kind and subject in ("", event["subjectId"])
        )

    wait_for(f'an event "{what}" of {kind} {subject}'.strip(), there, within=30, seen=world.describe)


def unreported(world: World, part: str) -> list[Violation]:
    """Violations if the log of a part does not report the full disk."""
    text = world.part(part).log.read_text(errors="replace")
    if FULL.search(text):
        return []
    return [Violation(10, "lost", part, "nothing in its log reports the full disk")]
