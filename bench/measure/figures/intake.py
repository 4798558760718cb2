"""What the master takes in and gives out per second: metrics, log lines, small answers."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from measure.cluster import SHARED, Cluster, Failed, wait_for
from measure.facts import Watch
from measure.figures import Figure, Plan
from measure.load import Window, closed_loop, request
from measure.results import Outcome, Skipped, Value, percentile
from measure.stores import own, server_processes

# Each window of load has steps of its own, so that no report is a repeat of an earlier one.
# `det-bench load` writes steps of nine digits; these are 1,780 windows over the same trials, each of ten seconds at
# 50,000 reports a second.
FIRST_STEP = 100_000_000
STEPS_PER_WINDOW = 500_000
WINDOWS = (990_000_000 - FIRST_STEP) // STEPS_PER_WINDOW
LINES_PER_BATCH = 1000
# The open loop: reports per second, and over how many trials.
STEADY_RATE = 1000
STEADY_TRIALS = 100


@dataclass(frozen=True)
class Reporter:
    """A running trial, and what it reports with."""

    trial: int
    run: int
    task: str
    allocation: str
    container: str
    token: str


def start_reporters(cluster: Cluster, count: int) -> tuple[int, list[Reporter]]:
    """Starts an experiment of this many trials that sleep; returns its id, and what its trials got from the master."""
    short = ("TRIAL_ID", "TRIAL_RUN_ID", "TASK_ID", "ALLOCATION_ID", "CONTAINER_ID", "SESSION_TOKEN")
    names = [f"DET_{name}" for name in short]
    for old in cluster.shared.iterdir():
        old.unlink()
    note = f"{SHARED}/$DET_TRIAL_ID"
    lines = "\\n".join(["%s"] * len(names))
    values = " ".join(f'"${name}"' for name in names)
    entrypoint = f"printf '{lines}\\n' {values} >{note}.new && mv {note}.new {note}.noted && exec sleep 86400"
    searcher = {"name": "random", "metric": "loss", "max_trials": count, "max_concurrent_trials": count}
    hparams = {"x": {"type": "double", "minval": 0, "maxval": 1}}
    experiment = cluster.submit(cluster.config(entrypoint, searcher=searcher, hyperparameters=hparams)).id
    notes_of_trials = wait_for(
        f"{count} trials to run",
        lambda: [notes for notes in [sorted(cluster.shared.glob("*.noted"))] if len(notes) == count],
        within=120,
    )[0]
    reporters = []
    for path in notes_of_trials:
        trial, run, task, allocation, container, token = path.read_text().splitlines()
        reporters.append(Reporter(int(trial), int(run), task, allocation, container, token))
    return experiment, reporters


def drive(plan: Plan, cluster: Cluster, reporters: Sequence[Reporter], what: Sequence[str], seconds: float) -> Window:
    """Loads the master with `det-bench load`, a connection for each reporter: a generator in Python would use up the
    cores that it shares with what it measures."""
    if plan.load is None:
        raise Skipped("there is no det-bench to make load with; build it, or name it with DET_BENCH_BIN")
    command = [str(plan.load), "load", "--port", str(cluster.port), "--seconds", str(seconds), *what]
    # A file and not a pipe: the processes that read during the load are forked from this one and would keep a pipe's
    # writing end open, so that the load waited for its input until they were done.
    with tempfile.TemporaryFile("w+") as plan_file:
        json.dump([dataclasses.asdict(reporter) for reporter in reporters], plan_file)
        plan_file.seek(0)
        done = subprocess.run(command, stdin=plan_file, capture_output=True, text=True, timeout=seconds + 120)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    window = json.loads(done.stdout)
    names = ("requests", "seconds", "all_requests", "p50_ms", "p99_ms", "max_ms")
    return Window(*(window[name] for name in names))


def report_load(window: int, averages: int, batches: int) -> list[str]:
    """Training reports of so many averages and single batches, with steps of this window's own."""
    first = str(FIRST_STEP + window * STEPS_PER_WINDOW)
    return ["reports", "--names", str(averages), "--batches", str(batches), "--first-step", first]


@dataclass(frozen=True)
class _Load:
    """One kind of report load."""

    name: str
    old: str
    connections: int
    # Names per report, single batches per report, and how many points that makes.
    averages: int
    batches: int
    points: int

    @property
    def what(self) -> str:
        return "reports" if self.points == 1 else "points"


METRIC_LOADS = (
    _Load("1 value, 8 connections", "424 1/s", 8, 1, 0, 1),
    _Load("1 value, 32 connections", "237 1/s", 32, 1, 0, 1),
    _Load("100 names, 8 connections", "27,800 1/s", 8, 100, 0, 100),
    _Load("1,000 batch values, 8 connections", "119,000 1/s", 8, 1, 1000, 1000),
)


def metrics(plan: Plan, store_kind: str) -> Outcome:
    """Metric reports and points per second, acknowledged and so durable; and what a lone report takes."""
    values: list[Value] = []
    processors = {}
    seconds = plan.seconds(3.0)
    with (
        own(store_kind) as store,
        Cluster(plan.det, plan.work, store, slots=STEADY_TRIALS, python=plan.python) as cluster,
    ):
        for load in METRIC_LOADS:
            experiment, reporters = start_reporters(cluster, load.connections)
            parts = {**cluster.pids(), "database": server_processes(store)}
            windows, cost, cores = [], [], []
            for number in range(plan.repeats(5)):
                what = report_load(number, load.averages, load.batches)
                with Watch(parts) as watch:
                    windows.append(drive(plan, cluster, reporters, what, seconds))
                cost.append(watch.part_seconds["master"] / windows[-1].all_requests * 1e6)
                cores.append(watch.cores())
                plan.say(f"{load.name}: {windows[-1].per_second * load.points:,.0f} {load.what}/s; cores {cores[-1]}")
            values += _rates(load.name, load.what, windows, load.points, load.old)
            values.append(Value("  master's time per report", "µs", cost, "processor time, all threads"))
            processors[load.name] = cores
            cluster.kill(experiment)
        values += _lone_reports(plan, cluster)
        values += _steady_reports(plan, cluster)
        return Outcome(
            "metrics",
            "Metric reports and points per second, acknowledged = durable",
            store.label,
            "A closed loop of POST /api/v1/trials/ID/metrics with the allocation tokens of real running trials, a "
            "trial per connection, group training, steps growing, values that differ. Points: each name of a report or "
            "each value of its batches. Every load starts trials of its own. The generator shares the machine's cores.",
            values,
            {"window_seconds": seconds, "windows": plan.repeats(5)},
            processors,
        )


def _rates(name: str, what: str, windows: Sequence[Window], factor: int = 1, old: str = "") -> list[Value]:
    return [
        Value(f"{name}: {what}", "1/s", [w.per_second * factor for w in windows], "in a window", old),
        Value("  call, median", "ms", [w.p50_ms for w in windows], "median of the calls of a window"),
        Value("  call, 99th percentile", "ms", [w.p99_ms for w in windows], "of the calls of a window"),
    ]


def _lone_reports(plan: Plan, cluster: Cluster) -> list[Value]:
    """One connection and no other load: the time of a single report."""
    experiment, reporters = start_reporters(cluster, 1)
    windows = []
    for number in range(plan.repeats(5)):
        windows.append(drive(plan, cluster, reporters, report_load(number, 1, 0), plan.seconds(2.0)))
    cluster.kill(experiment)
    plan.say(f"a lone report takes {percentile([w.p50_ms for w in windows], 50):.2f} ms")
    return [
        Value("lone report: median", "ms", [w.p50_ms for w in windows], "one connection and no other load"),
        Value("lone report: 99th percentile", "ms", [w.p99_ms for w in windows], "the same"),
    ]


def _steady_reports(plan: Plan, cluster: Cluster) -> list[Value]:
    """Reports at fixed times, independent of responses: the time of a call below the limit."""
    experiment, reporters = start_reporters(cluster, STEADY_TRIALS)
    windows = []
    for number in range(plan.repeats(5)):
        what = [*report_load(number, 1, 0), "--rate", str(STEADY_RATE)]
        windows.append(drive(plan, cluster, reporters, what, plan.seconds(5.0)))
    cluster.kill(experiment)
    plan.say(f"at {STEADY_RATE} reports/s a call's p99 is {percentile([w.p99_ms for w in windows], 50):.2f} ms")
    name = f"{STEADY_RATE:,} reports/s from {STEADY_TRIALS} trials: call"
    return [
        Value(f"{name}, median", "ms", [w.p50_ms for w in windows], "from the moment at which a report was due"),
        Value("  99th percentile", "ms", [w.p99_ms for w in windows], "the same"),
    ]


def logs(plan: Plan, store_kind: str) -> Outcome:
    """Log lines per second; and how long a printed line takes to a client that follows."""
    connections, seconds = 8, plan.seconds(3.0)
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=8, python=plan.python) as cluster:
        experiment, reporters = start_reporters(cluster, connections)
        what = ["log-batches", "--lines", str(LINES_PER_BATCH)]
        parts = {**cluster.pids(), "database": server_processes(store)}
        windows, cost, cores = [], [], []
        for _ in range(plan.repeats(5)):
            with Watch(parts) as watch:
                windows.append(drive(plan, cluster, reporters, what, seconds))
            cost.append(watch.part_seconds["master"] / windows[-1].all_requests / LINES_PER_BATCH * 1e6)
            cores.append(watch.cores())
            plan.say(f"{windows[-1].per_second * LINES_PER_BATCH:,.0f} lines/s; cores {cores[-1]}")
        cluster.kill(experiment)
        values = _rates(f"{connections} connections", "lines", windows, LINES_PER_BATCH, "46,300 1/s")
        values.append(Value("  master's time per line", "µs", cost, "processor time, all threads"))
        latencies = _printed_to_seen(plan, cluster)
        values.append(
            Value(
                "printed to seen by a follower",
                "ms",
                latencies,
                "from the print of a Python trial to the client that follows its log; a line each 20 ms",
                ">= 1,000 ms",
            )
        )
        return Outcome(
            "logs",
            "Log lines per second in batches of 1,000, acknowledged = durable",
            store.label,
            "A closed loop of POST /api/v1/task/logs with the allocation tokens of real running trials, a trial per "
            "connection, lines of some 70 characters. The generator shares the machine's cores.",
            values,
            {"window_seconds": seconds, "windows": plan.repeats(5), "connections": connections},
            {"per_repeat": cores},
        )


def _printed_to_seen(plan: Plan, cluster: Cluster) -> list[float]:
    count = 40 if plan.quick else 400
    code = (
        "import time\\n"
        "time.sleep(1)\\n"
        f"for n in range({count}):\\n"
        "    print('printed', time.time_ns(), flush=True)\\n"
        "    time.sleep(0.02)\\n"
    )
    submitted = cluster.submit(cluster.config(f"python3 -c \"exec('''{code}''')\""))
    trial = cluster.first_trial(submitted.id)
    latencies = []
    with cluster.follow(f"/api/v1/trials/{trial}/logs?follow=true") as messages:
        for seen, record in messages:
            words = record["log"].split()
            if words[:1] == ["printed"] and record["source"] == "task":
                latencies.append((seen - int(words[1]) / 1e9) * 1e3)
    if len(latencies) != count:
        raise Failed(f"{len(latencies)} of {count} printed lines were seen")
    cluster.wait_idle()
    plan.say(f"printed to seen: {percentile(latencies, 50):.1f} ms")
    return latencies


def requests(plan: Plan, store_kind: str) -> Outcome:
    """Small answers per second: the two calls that open every client command."""
    connections, seconds = 32, plan.seconds(3.0)
    values: list[Value] = []
    processors = {}
    with own(store_kind) as store, Cluster(plan.det, plan.work, store) as cluster:
        for path, headers, old in (("/info", {}, "45,000 1/s"), ("/api/v1/me", cluster.headers(), "700 1/s")):
            data = request("GET", path, headers)
            windows, cost, cores = [], [], []
            for _ in range(plan.repeats(5)):
                with Watch(cluster.pids()) as watch:
                    windows.append(closed_loop(cluster.port, [lambda data=data: data] * connections, seconds))
                cost.append(watch.part_seconds["master"] / windows[-1].all_requests * 1e6)
                cores.append(watch.cores())
                plan.say(f"{path}: {windows[-1].per_second:,.0f}/s; cores {cores[-1]}")
            values += _rates(path, "answers", windows, 1, old)
            values.append(Value("  master's time per answer", "µs", cost, "processor time, all threads"))
            processors[path] = cores
        return Outcome(
            "requests",
            f"Small answers per second, {connections} connections",
            store.label,
            "A closed loop of GET requests over kept connections. The generator shares the machine's cores.",
            values,
            {"window_seconds": seconds, "windows": plan.repeats(5), "connections": connections},
            processors,
        )


FIGURES = (
    Figure("metrics", "metric reports and points per second", ("sqlite", "postgres"), metrics),
    Figure("logs", "log lines per second, printed to seen", ("sqlite", "postgres"), logs),
    Figure("requests", "/info and /api/v1/me per second", ("sqlite",), requests),
)
