"""Scenarios that kill, stop and resume processes."""

from __future__ import annotations

import time

import observe
from loads import Churn, Steady
from stage import Stage

# Kills between two comparisons of everything.
CHECK_EVERY = 25


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
            stage.counts.runs += 1
            stage.found(observe.of_rows(world))
            if number % CHECK_EVERY == 0:
                stage.found(steady.check(live=True))
                stage.say(f"{number} of {stage.amount} kills, slowest recovery {max(stage.counts.recoveries):.2f} s")
        churn.end()
        world.wait_for_agents(within=60)
        stage.end(world, steady, churn)
