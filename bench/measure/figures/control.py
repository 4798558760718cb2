"""The control path at size: transitions, decisions, restarts and storms, with simulated agents (`det-bench agents`)."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

from measure.cluster import HOST, Cluster, Failed, wait_for
from measure.facts import Watch, memory_kb
from measure.figures import Figure, Plan
from measure.results import Outcome, Skipped, Value, percentile
from measure.stores import own, server_processes

VARIABLE = "DET_BENCH_BIN"
AGENTS, SLOTS = 1_000, 8


class Fleet:
    """Simulated agents of a cluster: a process of `det-bench agents`."""

    def __init__(self, plan: Plan, cluster: Cluster, *arguments: object) -> None:
        named = os.environ.get(VARIABLE)
        program = pathlib.Path(named) if named else plan.det.parent / "det-bench"
        if not program.is_file():
            raise Skipped(f'there is no "{program}": cargo build --release -p det-bench, or name it with {VARIABLE}')
        argv = [str(program), "agents", "--master", f"{HOST}:{cluster.port}"]
        argv += ["--token-file", str(cluster.root / "master" / "agent-token")]
        argv += [str(argument) for argument in arguments]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        # When all agents were registered, each time.
        self.registered: list[float] = []
        self._printed: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._printed.append(line)
            with contextlib.suppress(ValueError):
                news = json.loads(line)
                if "registered" in news:
                    self.registered.append(news["at"])

    def wait_registered(self, times: int = 1, within: float = 120) -> float:
        """Waits until all agents have been registered so many times; gives when that was."""

        def there() -> bool:
            if self.process.poll() is not None:
                raise Failed(f"the simulated agents have ended: {''.join(self._printed[-5:])}")
            return len(self.registered) >= times

        wait_for("the simulated agents to register", there, within)
        return self.registered[times - 1]

    def result(self, within: float) -> dict[str, Any]:
        """Waits for the end and gives the figures."""
        assert self.process.stdout is not None
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise Failed(f"the simulated agents did not come to their end within {within:g} s") from None
        if self.process.returncode != 0:
            raise Failed(f"the simulated agents failed: {''.join(self._printed[-5:])}")
        return json.loads(self.process.stdout.read())

    def close(self) -> dict[str, Any]:
        """Ends agents that run until they are asked to stop, and returns their figures."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.result(60)


@contextlib.contextmanager
def simulated(plan: Plan, cluster: Cluster, *arguments: object) -> Iterator[Fleet]:
    fleet = Fleet(plan, cluster, *arguments)
    try:
        yield fleet
    finally:
        if fleet.process.poll() is None:
            fleet.process.kill()
        fleet.process.wait()


def random_search(cluster: Cluster, trials: int, at_once: int, **searcher: Any) -> dict[str, Any]:
    return cluster.config(
        "true",
        searcher={
            "name": "random",
            "metric": "loss",
            "max_trials": trials,
            "max_concurrent_trials": at_once,
            **searcher,
        },
        hyperparameters={"x": {"type": "double", "minval": 0, "maxval": 1}},
    )


def transitions(plan: Plan, store_kind: str) -> Outcome:
    """Trials that take no time, on many agents: the master alone."""
    agents, trials = (50, 400) if plan.quick else (AGENTS, 10_000)
    rates, costs, cores = [], [], []
    for _ in range(plan.repeats(3, 1)):
        with own(store_kind) as store, Cluster(plan.det, plan.work, store) as cluster:
            arguments = ("--agents", agents, "--slots", SLOTS, "--until-exits", trials)
            with simulated(plan, cluster, *arguments) as fleet:
                fleet.wait_registered()
                parts = {**cluster.pids(), "agents": [fleet.process.pid], "database": server_processes(store)}
                with Watch(parts) as watch:
                    experiment = cluster.submit(random_search(cluster, trials, agents * SLOTS)).id
                    result = fleet.result(600)
                    cluster.wait_ended(experiment)
                rates.append(result["transitions_per_second"])
                costs.append(watch.part_seconds["master"] / trials * 1e3)
                cores.append(watch.cores())
                plan.say(f"{rates[-1]:,.0f} transitions/s, {costs[-1]:.2f} ms of the master per trial; {cores[-1]}")
            label = store.label
    return Outcome(
        "transitions",
        f"Task transitions with {agents:,} simulated agents",
        label,
        f"A random search of {trials:,} trials that end at once, all offered at once, on {agents:,} agents of {SLOTS} "
        "slots over the agents' own protocol. Two transitions a trial: queued to running, running to done; from the "
        "first order to start to the last end that the master reports as stored.",
        [
            Value("transitions", "1/s", rates, "all durable"),
            Value("  master: time per trial", "ms", costs, "processor time"),
        ],
        {"agents": agents, "slots": SLOTS, "trials": trials},
        {"per_repeat": cores},
    )


def one_second_trials(plan: Plan, store_kind: str) -> Outcome:
    """A search of short trials on few slots: what the platform adds to the ideal."""
    trials, slots = (160, 16) if plan.quick else (10_000, 16)
    overheads = []
    with own(store_kind) as store, Cluster(plan.det, plan.work, store) as cluster:
        arguments = ("--agents", 1, "--slots", slots, "--task-millis", 1000, "--until-exits", trials)
        with simulated(plan, cluster, *arguments, "--within", 1200) as fleet, Watch(cluster.pids()) as watch:
            fleet.wait_registered()
            experiment = cluster.submit(random_search(cluster, trials, slots)).id
            seconds = fleet.result(1300)["seconds"]
            cluster.wait_ended(experiment)
        overheads.append((seconds * slots / trials - 1) * 100)
        plan.say(f"{overheads[-1]:.2f} % over the ideal")
        return Outcome(
            "one-second-trials",
            f"{trials:,} trials of one second on {slots} slots",
            store.label,
            "A random search on one simulated agent; from the first start to the last stored end, over trials / slots "
            "seconds.",
            [Value("over the ideal", "%", overheads)],
            {"trials": trials, "slots": slots},
            watch.cores(),
        )


def decisions(plan: Plan, store_kind: str) -> Outcome:
    """Asynchronous halving: validations over HTTP, each decided upon and stored with its decision."""
    agents, trials = (10, 200) if plan.quick else (100, 10_000)
    rates = []
    with own(store_kind) as store, Cluster(plan.det, plan.work, store) as cluster:
        arguments = ("--agents", agents, "--slots", SLOTS, "--report-at", "1,4,16", "--until-exits", trials)
        with simulated(plan, cluster, *arguments) as fleet, Watch(cluster.pids()) as watch:
            fleet.wait_registered()
            halving = {"name": "async_halving", "time_metric": "batches", "max_time": 16, "num_rungs": 3, "divisor": 4}
            experiment = cluster.submit(random_search(cluster, trials, agents * SLOTS, **halving)).id
            result = fleet.result(600)
            cluster.wait_ended(experiment)
        rates.append((result["reports"] + result["exits"]) / result["seconds"])
        plan.say(f"{rates[-1]:,.0f} decisions/s; {result}")
        return Outcome(
            "decisions",
            f"Asynchronous halving with {trials:,} trials",
            store.label,
            "Validations that were acknowledged, and ends of trials: after each the search has decided, and the "
            "decision is stored with it. The trials run on simulated agents and report over HTTP.",
            [Value("decisions", "1/s", rates, "durable")],
            {"agents": agents, "slots": SLOTS, "trials": trials},
            watch.cores(),
        )


def reattach(plan: Plan, store_kind: str) -> Outcome:
    """A master that is killed and started again under running trials."""
    agents, running = (10, 80) if plan.quick else (125, 1_000)
    taken = []
    with own(store_kind) as store, Cluster(plan.det, plan.work, store) as cluster:
        arguments = ("--agents", agents, "--slots", SLOTS, "--task-millis", 3_600_000, "--until-running", running)
        with simulated(plan, cluster, *arguments) as fleet:
            fleet.wait_registered()
            experiment = cluster.submit(random_search(cluster, running, running)).id
            _until_running(cluster, experiment, running)
            for number in range(plan.repeats(5, 1)):
                cluster.kill_master()
                started = time.time()
                cluster.start_master()
                taken.append(fleet.wait_registered(number + 2) - started)
                _until_running(cluster, experiment, running)
                plan.say(f"{taken[-1]:.2f} s")
            result = fleet.close()
        if result["starts"] != running:
            raise Failed(f"{result['starts']} starts for {running} trials: some were started again")
        return Outcome(
            "reattach",
            f"Restart of the master with {running:,} running trials",
            store.label,
            f"kill -9 of the master; from the start of the next one until all {agents} simulated agents are registered "
            "with all their tasks stored as they are. No task is started again.",
            [Value("until all are re-attached", "s", taken)],
            {"agents": agents, "running": running},
        )


def _until_running(cluster: Cluster, experiment: int, count: int) -> None:
    def all_run() -> bool:
        page = cluster.api("GET", f"/api/v1/experiments/{experiment}/trials?limit=1&states=STATE_RUNNING")
        return int(page["pagination"]["total"]) >= count

    wait_for(f"{count} running trials", all_run, within=300, look_every=0.2)


def fleet_memory(plan: Plan, store_kind: str) -> Outcome:
    """Memory of a master with many agents and many running trials."""
    agents, slots = (50, 10) if plan.quick else (AGENTS, 10)
    with own(store_kind) as store, Cluster(plan.det, plan.work, store) as cluster:
        arguments = ("--agents", agents, "--slots", slots, "--task-millis", 3_600_000)
        with simulated(plan, cluster, *arguments, "--until-running", agents * slots) as fleet:
            fleet.wait_registered()
            connected = memory_kb(cluster.pids()["master"][0])
            experiment = cluster.submit(random_search(cluster, agents * slots, agents * slots)).id
            _until_running(cluster, experiment, agents * slots)
            time.sleep(2)
            running = memory_kb(cluster.pids()["master"][0])
        return Outcome(
            "fleet-memory",
            f"Memory with {agents:,} agents and {agents * slots:,} running trials",
            store.label,
            "From /proc/PID/smaps_rollup of `det master`. MB are MiB.",
            [
                Value("anonymous, agents connected", "MB", [connected["Anonymous"] / 1024]),
                Value("anonymous, trials running", "MB", [running["Anonymous"] / 1024]),
                Value("RSS, trials running", "MB", [running["Rss"] / 1024]),
            ],
            {"agents": agents, "trials": agents * slots},
        )


def storm(plan: Plan, store_kind: str) -> Outcome:
    """All agents lose their connections and come back at once, while clients send requests."""
    agents, storms = (50, 2) if plan.quick else (AGENTS, 5)
    latencies: list[float] = []
    with own(store_kind) as store, Cluster(plan.det, plan.work, store) as cluster:
        with simulated(plan, cluster, "--agents", agents, "--slots", SLOTS, "--reconnect-storm", storms) as fleet:
            fleet.wait_registered()
            while len(fleet.registered) < storms + 1:
                fleet.wait_registered(1)
                asked = time.perf_counter()
                cluster.api("GET", "/api/v1/experiments?limit=50")
                latencies.append((time.perf_counter() - asked) * 1e3)
                time.sleep(0.001)
            taken = fleet.close()["storm_seconds"]
        plan.say(f"{max(taken):.2f} s at worst; p99 {percentile(latencies, 99):.1f} ms")
        return Outcome(
            "storm",
            f"{agents:,} agents reconnect at once",
            store.label,
            "All connections are cut at one moment; until every agent has its welcome again. Meanwhile one client asks "
            "for a list of experiments, again and again.",
            [
                Value("until all are back", "s", taken),
                Value("a request meanwhile", "ms", latencies, "GET /api/v1/experiments"),
            ],
            {"agents": agents, "storms": storms},
        )


BOTH = ("sqlite", "postgres")
FIGURES = (
    Figure("transitions", "task transitions with simulated agents", BOTH, transitions),
    Figure("one-second-trials", "short trials on few slots", ("sqlite",), one_second_trials),
    Figure("decisions", "decisions of a halving search", BOTH, decisions),
    Figure("reattach", "restart under running trials", BOTH, reattach),
    Figure("fleet-memory", "memory with many agents and trials", ("sqlite",), fleet_memory),
    Figure("storm", "all agents reconnect at once", BOTH, storm),
)

__all__ = ["FIGURES"]
