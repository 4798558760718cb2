"""Scenarios of many at once and of long ones: agents that all come back, slow readers, and a soak with churn."""

from __future__ import annotations

import contextlib
import math
import pathlib
import socket
import statistics
import threading
import time
from dataclasses import dataclass, field

import observe
from fleet import Fleet, bench_executable
from harness import ApiError
from kills import MANY, checked, code_of, supervisors_of
from ledger import Expected
from loads import Churn, Pace, Steady, configuration, random_search
from processes import find
from stage import Stage
from violations import Violation
from waiting import wait_for
from world import LOAD, World

# Of the simulated agents, and of those of their slots that run something.
SIMULATED, SLOTS_EACH, BUSY_EACH = "simulated", 2, 1
# Within this time all of them must be back, and a request of a user may take so long meanwhile (99th percentile).
BACK_WITHIN = 10.0
ASKED_MAY_TAKE_SECONDS = 0.25
# How often they all lose their connections at one moment.
STORMS = 5
# What slow readers may cost the master.
READERS_MAY_COST_MIB = 50.0
# What others may wait meanwhile (99th percentile): far more than on a quiet machine, far less than when they are starved.
OTHERS_MAY_WAIT_SECONDS = 1.5
# What a part may grow between the second and the last quarter of its life: a share, and an amount for small ones.
GROWTH_SHARE = 0.10
GROWTH_MIB = 8.0
GROWTH_COUNT = 8
# Lives shorter than this many seconds are not judged.
SHORTEST_LIFE = 60.0


def storm(stage: Stage) -> None:
    """All simulated agents lose their connections at one moment, and come back at once while clients ask; five times
    because the network was gone, then because the master was killed. Nothing is started again, and no other client notices."""
    pools = [{"pool_name": "default"}, {"pool_name": SIMULATED}]
    # Reported before anything is started.
    bench_executable()
    with stage.world(slots=4, master_config={"resource_pools": pools}) as world:
        steady, running = Steady(world, trials=3), stage.amount * BUSY_EACH
        config = {
            "name": "on-simulated-agents",
            "entrypoint": "true",
            **random_search(running, running),
            "resources": {"slots_per_trial": 1, "resource_pool": SIMULATED},
            "max_restarts": 0,
        }
        arguments = ("--slots", SLOTS_EACH, "--pool", SIMULATED, "--task-millis", 3_600_000)
        storms = ("--until-running", running, "--reconnect-storm", STORMS)
        with Fleet(world, stage.amount, *arguments, *storms) as fleet:
            fleet.wait_registered(1, within=120)
            experiment = world.create(config)
            wait_for("the simulated tasks to run", lambda: run_now(world, experiment) == running, within=120)
            with Asking(world) as asking:
                wait_for("all storms", lambda: fleet.lives() and len(fleet.storms) == STORMS, within=300)
            if fleet.lost:
                what = f"{len(fleet.lost)} connections broke that the scenario had not cut"
                stage.found([Violation(8, "lost", "simulated agents", what, {"lost": fleet.lost})])
            world.kill("master")
            world.start_part("master")
            world.wait_for_master(within=60)
            answered = time.time()
            with Asking(world) as asking_again:
                back = max(0.0, fleet.wait_registered(STORMS + 2, within=300) - answered)
            stage.recovered(steady.progress())
            record_waits(stage, [*fleet.storms, back], [*asking.taken, *asking_again.taken])
            stage.found([*asking.violations, *asking_again.violations])
            checked(stage, world, steady, STORMS + 1)
            world.api("POST", f"/api/v1/experiments/{experiment}/kill", {}, user="admin")
            world.wait_experiment(experiment, "CANCELED", within=120)
            starts = fleet.close()["starts"]
            if starts != running:
                what = f"{starts} tasks were started for {running} trials"
                stage.found([Violation(3, "restarted", "simulated tasks", what)])
        stage.end(world, steady)


def run_now(world: World, experiment: int) -> int:
    """How many trials of an experiment run."""
    path = f"/api/v1/experiments/{experiment}/trials?limit=1&states=STATE_RUNNING"
    return int(world.api("GET", path, user="admin")["pagination"]["total"])


def record_waits(stage: Stage, back: list[float], taken: list[float]) -> None:
    """How long the agents and those who asked meanwhile had to wait."""
    slowest = at_percentile(taken, 99)
    stage.figures["agents"] = stage.amount
    stage.figures["back max s"] = f"{max(back):.2f}"
    stage.figures["call p99 ms"] = f"{slowest * 1000:.0f} of {len(taken)}"
    if max(back) > BACK_WITHIN:
        what = f"{max(back):.1f} s passed until all {stage.amount} were back, not {BACK_WITHIN:g} s"
        stage.late(Violation(4, "slow", "simulated agents", what, {"seconds": back}))
    if slowest > ASKED_MAY_TAKE_SECONDS:
        most = ASKED_MAY_TAKE_SECONDS * 1000
        what = f"others waited {slowest * 1000:.0f} ms for an answer meanwhile, not {most:g} ms"
        stage.late(Violation(4, "slow", "master", what, {"seconds": sorted(taken)[-20:]}))


def at_percentile(values: list[float], percent: int) -> float:
    """The smallest value that so many percent of `values` do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


class Asking:
    """The requests of a user who watches the cluster, repeated without end, and how long each answer took."""

    PATHS = ("/api/v1/experiments?limit=50", "/api/v1/agents", "/api/v1/trials/1")

    def __init__(self, world: World) -> None:
        self._world = world
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="asking", daemon=True)
        self.taken: list[float] = []
        self.violations: list[Violation] = []

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        # At least one of each, however soon all is over.
        while len(self.taken) < len(self.PATHS) or not self._ended.is_set():
            path = self.PATHS[len(self.taken) % len(self.PATHS)]
            began = time.monotonic()
            try:
                self._world.api("GET", path, user="admin")
            except OSError as error:
                self.violations.append(Violation(9, "refused", f"GET {path}", f"it was not answered: {error}"))
            except ApiError as error:
                self.violations.append(Violation(9, "refused", f"GET {path}", f"it was answered with {error}"))
            self.taken.append(time.monotonic() - began)


def slow_readers(stage: Stage) -> None:
    """Followers of logs that take 1 kB/s each: the master's memory stays, and no other client notices."""
    with stage.world(slots=6) as world:
        steady, talker = Steady(world, trials=3), Talker(world)
        before = memory_mib(world.part("master").pid)
        waits_before = waits(world, seconds=3)
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(Reader(world, talker.trial)) for n in range(stage.amount)]
            waits_during = waits(world, seconds=10)
            after = memory_mib(world.part("master").pid)
            steady.progress()
            alive = sum(reader.alive() for reader in readers)
            taken = sum(reader.taken for reader in readers)
        if alive < len(readers) or not taken:
            what = f"of {len(readers)} slow readers only {alive} are still served, with {taken} bytes in all"
            stage.found([Violation(3, "lost", "readers", what)])
        cost = after - before
        stage.figures["memory MiB"] = f"{before:.1f} to {after:.1f}"
        stage.figures["call p99 ms"] = f"{waits_before * 1000:.0f} to {waits_during * 1000:.0f}"
        if cost > READERS_MAY_COST_MIB:
            what = f"{len(readers)} slow readers cost it {cost:.1f} MiB, not {READERS_MAY_COST_MIB:g}"
            stage.found([Violation(4, "slow", "master", what)])
        if waits_during > OTHERS_MAY_WAIT_SECONDS:
            what = f"others waited {waits_during:.2f} s for a small request meanwhile"
            stage.found([Violation(4, "slow", "master", what)])
        stage.counts.runs += 1
        talker.stop()
        stage.end(world, steady)


class Talker:
    """A trial with a log of 20 MB: far more than sockets hold."""

    LINES = 20_000

    def __init__(self, world: World) -> None:
        self._world = world
        self._directory = world.ledger_directory()
        config = configuration(world, "talker", self._directory, Pace(line_bytes=1000), lines=self.LINES)
        self._experiment = world.create({**config, "entrypoint": "python3 talk.py"}, [LOAD / "talk.py"])
        self.trial = int(world.only_trial(self._experiment)["id"])

        def is_printed() -> bool:
            text = f"select log_lines from tasks where trial_id = {self.trial}"
            return world.rows(text)[0]["log_lines"] > self.LINES

        wait_for("the long log", is_printed, within=120, look_every=0.5, seen=world.describe)

    def stop(self) -> None:
        (self._directory / "stop").touch()
        self._world.wait_experiment(self._experiment, "COMPLETED", within=60)


class Reader:
    """One follower that takes a kilobyte each second."""

    def __init__(self, world: World, trial: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", world.port), timeout=30)
        # A small window: what it does not take stays with the master and not in the kernel.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = f"GET /api/v1/trials/{trial}/logs?follow=true HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        self._socket.sendall(f"{request}Authorization: Bearer {world.token('admin')}\r\n\r\n".encode())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._broken = False
        self.taken = 0

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._socket.close()
        self._thread.join(timeout=30)

    def alive(self) -> bool:
        return not self._broken

    def _read(self) -> None:
        while not self._ended.wait(1.0):
            try:
                piece = self._socket.recv(1024)
            except OSError:
                piece = b""
            if not piece:
                self._broken = not self._ended.is_set()
                return
            self.taken += len(piece)


def waits(world: World, seconds: float) -> float:
    """The 99th percentile of how long a small request takes, in seconds."""
    taken, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        world.api("GET", "/api/v1/experiments?limit=5", user="admin")
        taken.append(time.monotonic() - began)
        time.sleep(0.02)
    return statistics.quantiles(taken, n=100)[98]


def memory_mib(pid: int) -> float:
    """Anonymous memory of a process."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


# --- soak ----------------------------------------------------------------------------------------------------------


@dataclass
class Life:
    """What one process of a part used, over its life."""

    part: str
    pid: int
    # Seconds, MiB, descriptors, threads.
    samples: list[tuple[float, float, int, int]] = field(default_factory=list)

    def quarter(self, number: int) -> list[tuple[float, float, int, int]]:
        """The samples of a quarter of its life, counted from 0."""
        first, last = self.samples[0][0], self.samples[-1][0]
        quarter = (last - first) / 4
        return [s for s in self.samples if first + number * quarter <= s[0] <= first + (number + 1) * quarter]

    def judged(self) -> list[Violation]:
        """Whether it grew: the median of the last quarter against that of the second."""
        if len(self.samples) < 20 or self.samples[-1][0] - self.samples[0][0] < SHORTEST_LIFE:
            return []
        found = []
        second, last = self.quarter(1), self.quarter(3)
        for at, name, allowance in (
            (1, "MiB of memory", GROWTH_MIB),
            (2, "descriptors", GROWTH_COUNT),
            (3, "threads", GROWTH_COUNT),
        ):
            before, after = (statistics.median(sample[at] for sample in quarter) for quarter in (second, last))
            if after - before > max(allowance, before * GROWTH_SHARE):
                seconds = self.samples[-1][0] - self.samples[0][0]
                what = f"it grew from {before:.1f} to {after:.1f} {name} in {seconds:.0f} s"
                found.append(Violation(4, "grows", f"{self.part} {self.pid}", what, {"samples": self.samples[::10]}))
        return found


class Watch:
    """Looks each second at what the parts use."""

    def __init__(self, world: World, parts: tuple[str, ...]) -> None:
        self._world = world
        self._parts = parts
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.lives: dict[int, Life] = {}

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._ended.wait(1.0):
            for name in self._parts:
                part = self._world.part(name)
                if part.running():
                    with contextlib.suppress(OSError):
                        self._look(name, part.pid)

    def _look(self, name: str, pid: int) -> None:
        place = pathlib.Path(f"/proc/{pid}")
        sample = (
            time.monotonic(),
            memory_mib(pid),
            sum(1 for _ in (place / "fd").iterdir()),
            sum(1 for _ in (place / "task").iterdir()),
        )
        self.lives.setdefault(pid, Life(name, pid)).samples.append(sample)

    def shown(self, name: str) -> str:
        """First and last sample of the longest life of a part."""
        lives = [life for life in self.lives.values() if life.part == name and life.samples]
        if not lives:
            return "never seen"
        longest = max(lives, key=lambda life: len(life.samples))
        (_, m1, d1, t1), (_, m2, d2, t2) = longest.quarter(1)[0], longest.samples[-1]
        return f"{m1:.1f}-{m2:.1f} MiB {d1}-{d2} fds {t1}-{t2} threads"


def soak(stage: Stage) -> None:
    """A task each second and a kill each minute, for long: nothing breaks, and nothing grows."""
    every = 30.0 if stage.size == "ci" else 60.0
    with stage.world(slots=10) as world, Churn(world, per_second=1.0, forgiving=True) as churn:
        steady = Steady(world, trials=3, pace=Pace(checkpoint_every=100), max_restarts=MANY)
        for trial in steady.trials:
            steady.expected[trial] = Expected(restarts=None, runs=None, tails_lost=frozenset(range(1, MANY)))
        with Watch(world, ("master", "agent-1")) as watch:
            began, number = time.monotonic(), 0
            while time.monotonic() - began < stage.amount:
                time.sleep(min(every, max(0.0, stage.amount - (time.monotonic() - began))))
                half = time.monotonic() - began > stage.amount / 2
                number += 1
                # The parts live for half of the time, so that their growth shows.
                who = ("trial", "supervisor") if number % 2 else ("supervisor", "trial")
                if half and number % 4 == 3:
                    who = ("agent-1",)
                kill_one(world, steady, who[0])
                stage.recovered(steady.progress(within=120))
                stage.counts.runs += 1
                stage.found(observe.of_rows(world))
                stage.say(f"kill {number} ({who[0]}), {len(churn.asked)} tasks; master {watch.shown('master')}")
        for life in watch.lives.values():
            stage.found(life.judged())
        for part in ("master", "agent-1"):
            stage.figures[part] = watch.shown(part)
        stage.figures["tasks"] = len(churn.asked)
        stage.end(world, steady, churn)


def kill_one(world: World, steady: Steady, who: str) -> None:
    """Kills a part, which is started again, or one trial's code or supervisor."""
    if who in world.parts:
        world.kill(who)
        world.start_part(who)
        world.wait_for_agents(within=60)
        return
    trial = world.random.choice(steady.trials)
    code = code_of(world, trial)
    victim = code if who == "trial" else supervisors_of(code)[-1]
    if find(victim.pid) == victim:
        victim.kill()
    wait_for("the kill to show", lambda: not code.alive(), within=15)
