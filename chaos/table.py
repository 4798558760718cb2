"""The table of scenarios: load, fault, and how much of it in each size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import kills
from stage import Stage


@dataclass(frozen=True)
class Row:
    """One scenario."""

    name: str
    load: str
    fault: str
    play: Callable[[Stage], None]
    # How much of the fault: so many times, or so many seconds.
    ci: int
    hand: int
    unit: str = "times"
    stores: tuple[str, ...] = ("sqlite", "postgres")
    runtimes: tuple[str, ...] = ("process",)
    # Stores and runtimes in the short form, where they are fewer.
    ci_only: tuple[str, ...] = ()

    def amount(self, size: str) -> int:
        return self.ci if size == "ci" else self.hand


ROWS = (
    Row(
        "kill-master",
        "30 trials, 10 reports/s each; a short experiment every 2 s",
        "kill -9 of the master at random instants, also while it starts",
        kills.kill_master,
        ci=10,
        hand=500,
    ),
    Row(
        "kill-agent",
        "8 trials, 10 reports/s each; tasks that end while the agent is dead",
        "kill -9 of the agent",
        kills.kill_agent,
        ci=5,
        hand=200,
        runtimes=("process", "docker"),
        ci_only=("sqlite process", "sqlite docker"),
    ),
    Row(
        "kill-trial",
        "4 trials with a checkpoint each second",
        "kill -9 of a trial's code",
        kills.kill_trial,
        ci=5,
        hand=200,
        runtimes=("process", "docker"),
        ci_only=("sqlite process",),
    ),
    Row(
        "kill-supervisor",
        "4 trials with a checkpoint each second",
        "kill -9 of a supervisor",
        kills.kill_supervisor,
        ci=5,
        hand=200,
        runtimes=("process", "docker"),
        ci_only=("sqlite process",),
    ),
    Row(
        "kill-any",
        "6 trials; a short experiment every 2 s",
        "kill -9 of master, agent, supervisors and trials, several at once",
        kills.both_at_once,
        ci=5,
        hand=200,
        ci_only=("postgres process",),
    ),
    Row(
        "stop-cont",
        "4 trials, 10 reports/s each",
        "SIGSTOP and SIGCONT of master, agent, supervisor, trial; 1 to 8 s, by hand to 60 s",
        kills.stop_cont,
        ci=4,
        hand=40,
        ci_only=("sqlite process",),
    ),
    Row(
        "engine-restart",
        "3 trials in containers",
        "the Docker engine ends and starts again (DET_TEST_RESTART_ENGINE)",
        kills.engine_restart,
        ci=1,
        hand=20,
        stores=("sqlite",),
        runtimes=("docker",),
    ),
)
