"""The table of scenarios: load, fault, and how much of it in each size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import crowds
import databases
import disks
import gangs
import kills
import network
import services
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
        # On each store.
        ci=5,
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
        "6 trials through the Core API; a short experiment every 2 s",
        "kill -9 of master, agent, supervisors and trials, several at once",
        kills.both_at_once,
        ci=3,
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
        "kill-services",
        "an open shell, a notebook's kernel, a TensorBoard, followed logs of a command and a generic task, a download",
        "kill -9 of master, agent, and both",
        services.kill_services,
        ci=4,
        hand=200,
        runtimes=("process", "docker"),
        ci_only=("sqlite process", "sqlite docker"),
    ),
    Row(
        "kill-gang",
        "a trial on two agents with a checkpoint each second",
        "kill -9 of each agent, of both, of the master, and of a member's code",
        gangs.kill_gang,
        ci=5,
        hand=200,
        runtimes=("process", "docker"),
        ci_only=("sqlite process", "sqlite docker"),
    ),
    Row(
        "mixed-kinds",
        "commands, generic tasks, shells, notebooks and TensorBoards, six at once",
        "each is killed at any moment of its life; nothing of it may be left anywhere",
        services.mixed_kinds,
        ci=40,
        hand=1000,
        unit="tasks",
        runtimes=("process", "docker"),
        ci_only=("sqlite process",),
    ),
    Row(
        "cut-agent",
        "4 trials, 10 reports/s each",
        "an agent is cut off for 5 and 30 s, by hand also 120 and 500 s; with its tasks or without",
        network.cut_agent,
        ci=2,
        hand=8,
        ci_only=("sqlite process",),
    ),
    Row(
        "lose-agent",
        "3 trials on two agents",
        "an agent is cut off beyond the master's patience (shortened in ci, 600 s by hand) and comes back",
        network.lose_agent,
        ci=2,
        hand=2,
        ci_only=("sqlite process",),
    ),
    Row(
        "bad-network",
        "4 trials, 10 reports/s each; a short experiment every 4 s",
        "loss, latency, resets, half-open connections, and all at once, among agents, tasks, clients, master, store",
        network.bad_network,
        ci=60,
        hand=300,
        unit="seconds",
    ),
    Row(
        "postgres-faults",
        "8 trials, 10 reports/s each; a short experiment every 2 s",
        "PostgreSQL restarted fast and immediate, killed, away; its connections ended, reset, black-holed",
        databases.postgres_faults,
        ci=3,
        hand=50,
        stores=("postgres",),
    ),
    Row(
        "disk-full",
        "2 to 4 trials",
        "a full disk for the database, the checkpoints, the spools, and the agent",
        disks.disk_full,
        ci=1,
        hand=5,
        ci_only=("sqlite process",),
    ),
    Row(
        "two-masters",
        "4 trials, 10 reports/s each",
        "a second master on the same data directory or database",
        databases.two_masters,
        ci=1,
        hand=20,
    ),
    Row(
        "four-masters",
        "nothing",
        "four masters start at once on an empty database",
        databases.four_masters,
        ci=1,
        hand=50,
    ),
    Row(
        "kill-migration",
        "nothing",
        "kill -9 of a master that makes its database, at random instants",
        databases.kill_migration,
        ci=3,
        hand=200,
    ),
    Row(
        "storm",
        "3 trials, 10 reports/s each; a task on each simulated agent; a client that asks again and again",
        "200 simulated agents, by hand 1,000, reconnect at once: cut off five times, then the master is killed",
        crowds.storm,
        ci=200,
        hand=1000,
        unit="agents",
        ci_only=("sqlite process",),
    ),
    Row(
        "slow-readers",
        "3 trials, 10 reports/s each; a log of 20 MB",
        "50 followers of that log, by hand 200, that take 1 kB/s each",
        crowds.slow_readers,
        ci=50,
        hand=200,
        unit="readers",
        ci_only=("sqlite process",),
    ),
    Row(
        "soak",
        "3 trials; a short experiment each second",
        "a kill every 30 s, by hand every minute",
        crowds.soak,
        ci=120,
        hand=3600,
        unit="seconds",
        ci_only=("sqlite process",),
    ),
    Row(
        "engine-faults",
        "3 trials in containers; a short experiment while the engine is frozen",
        "kill -9, SIGSTOP (3 to 8 s), and a restart of the Docker engine (DET_TEST_RESTART_ENGINE)",
        kills.engine_faults,
        ci=3,
        hand=60,
        stores=("sqlite",),
        runtimes=("docker",),
    ),
)
