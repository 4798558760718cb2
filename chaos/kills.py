"""Scenarios that kill, stop and resume processes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterable

import observe
from harness import Agent, Missing
from ledger import Expected
from loads import Churn, Exits, Pace, Steady, configuration
from processes import Found, find, processes_with
from stage import Stage
from violations import Violation
from waiting import wait_for
from world import World

# Faults between two comparisons of everything.
CHECK_EVERY = 25
# Restarts that a trial may need: more than any scenario causes.
MANY = 100_000


def kill_master(stage: Stage) -> None:
    """30 trials report 10 times a second, short experiments come and go, and the master is killed again and again."""
    with stage.world(slots=34) as world, Churn(world, per_second=0.5) as churn:
        steady = Steady(world, trials=30)
        for number in range(1, stage.amount + 1):
            time.sleep(stage.random.uniform(0.1, 1.5))
            world.kill("master")
            time.sleep(stage.random.choice((0.0, stage.random.uniform(0.0, 1.0))))
            if stage.random.random() < 0.2:
                # Killed again while it starts.
                world.start_part("master")
                time.sleep(stage.random.uniform(0.0, 0.2))
                world.kill("master")
            began = time.monotonic()
            world.start_part("master")
            world.wait_for_master(within=60)
            steady.progress()
            stage.recovered(time.monotonic() - began)
            checked(stage, world, steady, number)
        world.wait_for_agents(within=60)
        stage.end(world, steady, churn)


def checked(stage: Stage, world: World, steady: Steady, number: int) -> None:
    """After each fault the rows are judged, after many all ledgers."""
    stage.counts.runs += 1
    stage.found(observe.of_rows(world))
    if number % CHECK_EVERY == 0:
        stage.found(steady.check(live=True))
        slowest = max(stage.counts.recoveries, default=0.0)
        stage.say(f"{number} of {stage.amount} faults, slowest recovery {slowest:.2f} s")


def kill_agent(stage: Stage) -> None:
    """8 tasks run, others end while their agent is dead: all are found again, with their exit codes and their logs."""
    with stage.world(slots=10) as world:
        steady, exits = Steady(world, trials=8), Exits(world)
        for number in range(1, stage.amount + 1):
            exits.start(code=stage.random.randint(1, 120), after=stage.random.uniform(0.0, 0.6))
            time.sleep(stage.random.uniform(0.0, 0.5))
            before = runtime_ids(world)
            world.kill("agent-1")
            time.sleep(stage.random.choice((0.0, stage.random.uniform(0.0, 2.0))))
            began = time.monotonic()
            world.start_part("agent-1")
            world.wait_for_agents(within=60)
            steady.progress()
            stage.recovered(time.monotonic() - began)
            # Those of the short task come and go; the others are the same processes as before.
            kept = before & runtime_ids(world)
            if len(kept) < len(steady.trials):
                what = f"of {len(before)} containers only {len(kept)} are the same after the agent's restart"
                stage.found([Violation(3, "restarted", "containers", what)])
            checked(stage, world, steady, number)
        stage.found(exits.check())
        stage.end(world, steady)


def runtime_ids(world: World) -> set[str]:
    """What runs the containers now: processes, or containers of the engine."""
    if world.image is not None:
        return set(world.engine_containers())
    return {f"{found.pid} {found.start_ticks}" for found in world.supervisors().values()}


def kill_trial(stage: Stage) -> None:
    """Trials are killed; each goes on from its newest checkpoint, and its restarts are counted exactly."""
    with stage.world(slots=4) as world:
        steady = Steady(world, trials=4, pace=Pace(checkpoint_every=10), max_restarts=MANY)
        for number in range(1, stage.amount + 1):
            trial = stage.random.choice(steady.trials)
            time.sleep(stage.random.uniform(0.0, 1.0))
            runs, began = steady.runs()[trial], time.monotonic()
            code_of(world, trial).kill()
            resumed(steady, trial, runs)
            stage.recovered(time.monotonic() - began)
            steady.caused(trial, charged=True)
            checked(stage, world, steady, number)
        stage.end(world, steady)


def kill_supervisor(stage: Stage) -> None:
    """Supervisors are killed: what they ran ends with them, nothing is charged, and the trial goes on."""
    with stage.world(slots=4) as world:
        steady = Steady(world, trials=4, pace=Pace(checkpoint_every=10))
        for number in range(1, stage.amount + 1):
            trial = stage.random.choice(steady.trials)
            time.sleep(stage.random.uniform(0.0, 1.0))
            code, runs, began = code_of(world, trial), steady.runs()[trial], time.monotonic()
            # Their command lines name the container; one of them is the first process inside.
            stage.random.choice(supervisors_of(code)).kill()
            resumed(steady, trial, runs)
            stage.recovered(time.monotonic() - began)
            if code.alive():
                what = f"its process {code.pid} outlived its supervisor"
                stage.found([Violation(6, "left", f"trial {trial}", what)])
            steady.caused(trial, charged=False, tail_lost=True)
            checked(stage, world, steady, number)
        stage.end(world, steady)


def resumed(steady: Steady, trial: int, runs: int) -> None:
    """Waits until a later run of the trial has begun and everything goes on."""
    wait_for(
        f"run {runs + 1} of trial {trial}",
        lambda: steady.runs()[trial] > runs,
        # What is lost again and again starts once a minute.
        within=120,
        seen=steady.world.describe,
    )
    steady.progress()


def code_of(world: World, trial: int) -> Found:
    """The process of a trial's code."""

    def there() -> Found | None:
        marker = f"DET_TRIAL_ID={trial}\0".encode()
        for found in world.processes_of_containers():
            with contextlib.suppress(OSError):
                mine = marker in pathlib.Path(f"/proc/{found.pid}/environ").read_bytes()
                if mine and found.command.startswith("python3 ") and found.command.endswith("ledger.py"):
                    return found
        return None

    return wait_for(f"the process of trial {trial}", there, within=20)


def supervisors_of(code: Found) -> list[Found]:
    """The supervisors above a trial's process, the nearest first."""
    found, pid = [], code.pid
    while (pid := parent(pid)) > 1:
        process = find(pid)
        if process is None:
            break
        if "det-supervisor" in process.command.split(" ")[0]:
            found.append(process)
    assert found, f"no supervisor above {code}"
    return found


def parent(pid: int) -> int:
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def stop_cont(stage: Stage) -> None:
    """Master, agent, supervisor and trial are frozen for a while and go on: that is not taken for an end."""
    longest = 8.0 if stage.size == "ci" else 60.0
    with stage.world(slots=10) as world:
        steady = Steady(world, trials=4)
        for number in range(1, stage.amount + 1):
            who = ("master", "agent", "supervisor", "trial")[(number - 1) % 4]
            stopped = list(frozen(world, steady, who, stage))
            seconds = stage.random.uniform(1.0, longest)
            stage.say(f"{who} is frozen for {seconds:.1f} s")
            for process in stopped:
                process.kill(signal.SIGSTOP)
            try:
                time.sleep(seconds)
            finally:
                for process in stopped:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill(signal.SIGCONT)
            stage.recovered(steady.progress())
            checked(stage, world, steady, number)
        stage.end(world, steady)


def frozen(world: World, steady: Steady, who: str, stage: Stage) -> Iterable[Found]:
    """The processes of a part of the cluster, or of one trial."""
    if who in ("master", "agent"):
        found = find(world.part("agent-1" if who == "agent" else who).pid)
        return [found] if found is not None else []
    code = code_of(world, stage.random.choice(steady.trials))
    return [code] if who == "trial" else supervisors_of(code)


def engine_faults(stage: Stage) -> None:
    """The container engine restarts, is killed, and is frozen under running tasks: nothing is charged, all goes on."""
    command = os.environ.get("DET_TEST_RESTART_ENGINE")
    if not command:
        raise Missing("DET_TEST_RESTART_ENGINE names no program that restarts the Docker engine: scripts/test-engine")
    with stage.world(agents=[Agent(slots=4, runtime="docker")]) as world:
        steady, faults = Steady(world, trials=3, pace=Pace(checkpoint_every=10)), ("kill", "frozen", "restart")
        for number in range(1, stage.amount + 1):
            fault = faults[(number - 1) % len(faults)]
            stage.say(f"the engine: {fault}")
            time.sleep(stage.random.uniform(0.5, 2.0))
            runs, began = steady.runs(), time.monotonic()
            if fault == "frozen":
                frozen_engine(stage, world, steady, command)
            else:
                engine(command, fault)
                # One that begins ends what runs: what was on its way out of these containers may be lost, no more.
                ended(stage, steady, runs)
            stage.recovered(time.monotonic() - began)
            checked(stage, world, steady, number)
        stage.end(world, steady)


def engine(command: str, action: str) -> None:
    """Has something done to the engine."""
    subprocess.run(f"{command} {action}", shell=True, check=True, stdin=subprocess.DEVNULL)


def ended(stage: Stage, steady: Steady, runs: dict[int, int]) -> None:
    """Waits until all trials that the engine has ended run again, each once more and uncharged."""
    steady.progress(within=120)
    for trial, now in steady.runs().items():
        for _ in range(now - runs[trial]):
            steady.caused(trial, charged=False, tail_lost=True)


def frozen_engine(stage: Stage, world: World, steady: Steady, command: str) -> None:
    """While the engine gives no answer its containers run on, none is given up, and what was asked for meanwhile starts
    when it answers again."""
    short = configuration(world, "asked-of-a-frozen-engine", world.ledger_directory(), Pace())
    runs, seconds = steady.runs(), stage.random.uniform(3.0, 8.0)
    engine(command, "stop")
    try:
        experiment = world.create({**short, "entrypoint": "true"})
        steady.progress(by=3)
        time.sleep(seconds)
        steady.progress(by=3)
    finally:
        engine(command, "cont")
    world.wait_experiment(experiment, "COMPLETED", within=60)
    steady.progress()
    if steady.runs() != runs:
        what = f"runs were {runs} before the engine was frozen, and are {steady.runs()}"
        stage.found([Violation(3, "restarted", "trials", what)])


def both_at_once(stage: Stage) -> None:
    """Master, agent, supervisors and trials die in any order, several at once, under load and churn."""
    with stage.world(slots=14) as world, Churn(world, per_second=0.5, forgiving=True) as churn:
        pace = Pace(checkpoint_every=10, core=True)
        steady = Steady(world, trials=6, pace=pace, max_restarts=MANY)
        for trial in steady.trials:
            # Which kill hit which run first is unknown: only what was acknowledged counts.
            steady.expected[trial] = Expected(restarts=None, runs=None, tails_lost=frozenset(range(1, MANY)))
        for number in range(1, stage.amount + 1):
            time.sleep(stage.random.uniform(0.0, 1.0))
            began = time.monotonic()
            parts = [name for name in ("master", "agent-1") if stage.random.random() < 0.6]
            for name in stage.random.sample(parts, len(parts)):
                world.kill(name)
            victims = [found for found in processes_with(world.cluster_id) if stage.random.random() < 0.1]
            for found in victims:
                if found.pid not in (world.part("master").pid, world.part("agent-1").pid):
                    with contextlib.suppress(ProcessLookupError):
                        found.kill()
            for name in ("master", "agent-1"):
                if not world.part(name).running():
                    time.sleep(stage.random.uniform(0.0, 0.5))
                    world.start_part(name)
            world.wait_for_master(within=60)
            world.wait_for_agents(within=60)
            steady.progress(within=120)
            stage.recovered(time.monotonic() - began)
            checked(stage, world, steady, number)
        stage.end(world, steady, churn)
