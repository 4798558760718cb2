"""Scenarios of trials that run on several agents at once."""

from __future__ import annotations

import time

from harness import Agent
from kills import MANY, checked, code_of, resumed
from loads import Pace, Steady
from stage import Stage
from violations import Violation
from waiting import wait_for
from world import World

AGENTS = ("agent-1", "agent-2")


def kill_gang(stage: Stage) -> None:
    """A gang over two agents: kills of master and agents disturb nothing; when a member dies all of it starts again, once,
    from its newest checkpoint."""
    agents = [Agent(name, 1, stage.runtime) for name in AGENTS]
    with stage.world(agents=agents) as world:
        steady = Steady(world, trials=1, pace=Pace(checkpoint_every=10, members=2), max_restarts=MANY)
        [trial] = steady.trials
        for number in range(1, stage.amount + 1):
            fault = ("agent-1", "member", "agent-2", "master", "both")[(number - 1) % 5]
            time.sleep(stage.random.uniform(0.2, 1.5))
            runs, before, began = steady.runs()[trial], members(world, trial), time.monotonic()
            stage.say(f"{number}: {fault} is killed")
            if fault == "member":
                code_of(world, trial).kill()
                resumed(steady, trial, runs)
                steady.caused(trial, charged=True, tail_lost=True)
            else:
                parts = AGENTS if fault == "both" else (fault,)
                for name in parts:
                    world.kill(name)
                time.sleep(stage.random.uniform(0.0, 2.0))
                for name in parts:
                    world.start_part(name)
                world.wait_for_master(within=60)
                world.wait_for_agents(within=60)
                steady.progress(by=3)
                if steady.runs()[trial] != runs or members(world, trial) != before:
                    what = f"run {runs} had processes {before}; it is run {steady.runs()[trial]} with another set now"
                    stage.found([Violation(3, "restarted", f"trial {trial}", what)])
            whole(stage, world, trial)
            stage.recovered(time.monotonic() - began)
            checked(stage, world, steady, number)
        stage.end(world, steady)


def members(world: World, trial: int) -> list[int]:
    """Process ids of the trial's code, one on each agent."""
    found = world.task_processes(trial, "gang_ledger.py")
    return sorted(process.pid for process in found if process.command.startswith("python3 "))


def whole(stage: Stage, world: World, trial: int) -> None:
    """All members run, and each once."""
    wait_for("both members", lambda: len(members(world, trial)) == 2, within=60, seen=world.describe)
