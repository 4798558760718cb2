"""What the master takes in and gives out per second: metrics, log lines, small answers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from measure.cluster import SHARED, Cluster, Failed, wait_for
from measure.facts import Watch
from measure.figures import Figure, Plan
from measure.load import NextRequest, Window, closed_loop, request
from measure.results import Outcome, Value, percentile
from measure.stores import own, server_processes

# Each window of load has steps of its own, so that no report is a repeat of an earlier one.
STEPS_PER_WINDOW = 10_000_000
# Different values to draw from: a column of one number would compress as no real one does.
DIFFERENT_VALUES = 4096
LINES_PER_BATCH = 1000


@dataclass(frozen=True)
class Reporter:
    """A running trial, and what it reports with."""

    trial: int
    run: int
    task: str
    allocation: str
    container: str
    token: str

    def headers(self) -> dict[str, str]:
        return {"Grpc-Metadata-x-allocation-token": f"Bearer {self.token}"}


def start_reporters(cluster: Cluster, count: int) -> tuple[int, list[Reporter]]:
    """Starts an experiment of so many trials that sleep; gives its id, and what its trials were told."""
    short = ("TRIAL_ID", "TRIAL_RUN_ID", "TASK_ID", "ALLOCATION_ID", "CONTAINER_ID", "SESSION_TOKEN")
    names = [f"DET_{name}" for name in short]
    for old in cluster.shared.iterdir():
        old.unlink()
    note = f"{SHARED}/$DET_TRIAL_ID"
    lines = "\\n".join(["%s"] * len(names))
    values = " ".join(f'"${name}"' for name in names)
    entrypoint = f"printf '{lines}\\n' {values} >{note}.new && mv {note}.new {note}.told && exec sleep 86400"
    searcher = {"name": "random", "metric": "loss", "max_trials": count, "max_concurrent_trials": count}
    hparams = {"x": {"type": "double", "minval": 0, "maxval": 1}}
    experiment = cluster.submit(cluster.config(entrypoint, searcher=searcher, hyperparameters=hparams)).id
    told = wait_for(
        f"{count} trials to run",
        lambda: [notes for notes in [sorted(cluster.shared.glob("*.told"))] if len(notes) == count],
        within=120,
    )[0]
    reporters = []
    for path in told:
        trial, run, task, allocation, container, token = path.read_text().splitlines()
        reporters.append(Reporter(int(trial), int(run), task, allocation, container, token))
    return experiment, reporters


def _values(seed: int) -> list[str]:
    source = random.Random(seed)
    return [repr(source.random() * 10) for _ in range(DIFFERENT_VALUES)]


def _head_of(method: str, path: str, headers: dict[str, str], length: int) -> bytes:
    """All of a request but its body."""
    return request(method, path, headers, b" " * length)[:-length]


def report_requests(reporter: Reporter, window: int, averages: int, batches: int) -> NextRequest:
    """Training reports of so many averages and single batches, with steps that grow."""
    values = _values(reporter.trial)
    # What differs between reports, made ready: the generator's time is taken from what it measures.
    different = min(64, max(1, 65536 // max(averages, batches)))
    tails = []
    for number in range(different):
        draw = [values[(number * 131 + index) % DIFFERENT_VALUES] for index in range(max(averages, batches))]
        names = ["loss"] if averages == 1 else [f"metric_{index:03}" for index in range(averages)]
        avg = ",".join(f'"{name}":{draw[index]}' for index, name in enumerate(names))
        single = "null" if not batches else "[" + ",".join(f'{{"loss":{value}}}' for value in draw[:batches]) + "]"
        tails.append(f',"reportTime":null,"metrics":{{"avgMetrics":{{{avg}}},"batchMetrics":{single}}}}}}}'.encode())
    head = (
        f'{{"group":"training","metrics":{{"trialId":{reporter.trial},"trialRunId":{reporter.run},"stepsCompleted":'
    ).encode()
    path = f"/api/v1/trials/{reporter.trial}/metrics"
    # A step has eight digits in every window, so that the length is known.
    starts = [_head_of("POST", path, reporter.headers(), len(head) + 8 + len(tail)) + head for tail in tails]
    step = (window + 1) * STEPS_PER_WINDOW

    def next_request() -> bytes:
        nonlocal step
        step += 1
        kind = step % different
        return b"%b%d%b" % (starts[kind], step, tails[kind])

    return next_request


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
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=32, python=plan.python) as cluster:
        for load in METRIC_LOADS:
            experiment, reporters = start_reporters(cluster, load.connections)
            parts = {**cluster.pids(), "database": server_processes(store)}
            windows, cost, cores = [], [], []
            for number in range(plan.repeats(5)):
                requests = [report_requests(r, number, load.averages, load.batches) for r in reporters]
                with Watch(parts) as watch:
                    windows.append(closed_loop(cluster.port, requests, seconds))
                cost.append(watch.part_seconds["master"] / windows[-1].all_requests * 1e6)
                cores.append(watch.cores())
                plan.say(f"{load.name}: {windows[-1].per_second * load.points:,.0f} {load.what}/s; cores {cores[-1]}")
            values += _rates(load.name, load.what, windows, load.points, load.old)
            values.append(Value("  master's time per report", "µs", cost, "processor time, all threads"))
            processors[load.name] = cores
            cluster.kill(experiment)
        values += _lone_reports(plan, cluster)
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
    """One connection, nobody else: what a report takes by itself."""
    experiment, reporters = start_reporters(cluster, 1)
    windows = []
    for number in range(plan.repeats(5)):
        requests = [report_requests(reporters[0], number, 1, 0)]
        windows.append(closed_loop(cluster.port, requests, plan.seconds(2.0)))
    cluster.kill(experiment)
    plan.say(f"a lone report takes {percentile([w.p50_ms for w in windows], 50):.2f} ms")
    return [
        Value("lone report: median", "ms", [w.p50_ms for w in windows], "one connection and no other load"),
        Value("lone report: 99th percentile", "ms", [w.p99_ms for w in windows], "the same"),
    ]


def log_requests(reporter: Reporter) -> NextRequest:
    """Batches of log lines as a shipper sends them."""
    source = random.Random(reporter.trial)
    words = "loading shard epoch batch loss accuracy gradient norm checkpoint saved worker throughput images".split()
    ready = []
    for batch in range(8):
        logs = []
        for line in range(LINES_PER_BATCH):
            text = f"step {batch * LINES_PER_BATCH + line}: " + " ".join(source.choices(words, k=6))
            logs.append(
                {
                    "taskId": reporter.task,
                    "allocationId": reporter.allocation,
                    "agentId": "bench",
                    "containerId": reporter.container,
                    "timestamp": f"2026-01-01T00:{batch:02}:{line % 60:02}.{source.randrange(10**6):06}Z",
                    "log": f"{text} {source.random():.6f}\n",
                    "source": "task",
                    "stdtype": "stdout",
                }
            )
        body = json.dumps({"logs": logs}).encode()
        ready.append(request("POST", "/api/v1/task/logs", reporter.headers(), body))
    number = 0

    def next_request() -> bytes:
        nonlocal number
        number += 1
        return ready[number % len(ready)]

    return next_request


def logs(plan: Plan, store_kind: str) -> Outcome:
    """Log lines per second; and how long a printed line takes to a client that follows."""
    connections, seconds = 8, plan.seconds(3.0)
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=8, python=plan.python) as cluster:
        experiment, reporters = start_reporters(cluster, connections)
        parts = {**cluster.pids(), "database": server_processes(store)}
        windows, cost, cores = [], [], []
        for _ in range(plan.repeats(5)):
            requests = [log_requests(reporter) for reporter in reporters]
            with Watch(parts) as watch:
                windows.append(closed_loop(cluster.port, requests, seconds))
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
