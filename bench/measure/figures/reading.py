"""Reading at size: lists, series, logs and logins on a store as a busy cluster leaves it behind in some years.

`det-bench generate` fills the store first: 100,000 experiments, a million trials, a metric of a million values and ten
million log lines take some minutes; DET_BENCH_SCALE makes it less (--quick: a thousandth).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import pathlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from measure.cluster import HOST, SHARED, Cluster, Failed, wait_for
from measure.facts import Watch, memory_kb
from measure.figures import Figure, Plan
from measure.load import NextRequest, closed_loop, request
from measure.results import Outcome, Skipped, Value
from measure.stores import Store, own, server_processes

READERS = 8
SORTS = (
    "ID",
    "DESCRIPTION",
    "START_TIME",
    "END_TIME",
    "STATE",
    "NUM_TRIALS",
    "PROGRESS",
    "USER",
    "NAME",
    "FORKED_FROM",
    "RESOURCE_POOL",
    "PROJECT_ID",
    "CHECKPOINT_SIZE",
    "CHECKPOINT_COUNT",
    "SEARCHER_METRIC_VAL",
)
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"name": "resnet50 baseline 1"},
    {"description": "warm-up"},
    {"labels": ["paper", "vision"]},
    {"users": ["user007", "user042"]},
    {"archived": "false"},
    {"states": ["STATE_ERROR", "STATE_CANCELED"]},
    {"states": ["STATE_RUNNING"]},
    {"projectId": 1},
    {"experimentIdFilter.gt": 20, "experimentIdFilter.lte": 90_000},
    {"name": "gpt2", "labels": ["sweep"], "archived": "false", "states": ["STATE_COMPLETED"]},
)
# The salt that clients hash passwords with; part of the protocol.
CLIENT_SALT = "GubPEmmotfiK9TMD6Zdw"
PASSWORD = "correct horse 1 Battery"


def _tool(plan: Plan) -> pathlib.Path:
    """`det-bench`, in the directory of the measured executable unless DET_BENCH_BIN names it."""
    tool = pathlib.Path(os.environ.get("DET_BENCH_BIN") or plan.det.with_name("det-bench"))
    if not tool.is_file():
        raise Skipped(f"there is no {tool} to fill a store with: cargo build --release -p det-bench")
    return tool


@contextmanager
def _filled(plan: Plan, store: Store) -> Iterator[tuple[Cluster, dict[str, Any]]]:
    """A master on a filled store, and what is in it."""
    scale = "0.001" if plan.quick else os.environ.get("DET_BENCH_SCALE", "1")
    tool, made = _tool(plan), {}

    def fill(cluster: Cluster) -> None:
        where = ["--db-url", store.url] if store.url else ["--file", str(cluster.root / "master" / "det.db")]
        plan.say(f"filling the store at scale {scale}")
        done = subprocess.run([str(tool), "generate", "--scale", scale, *where], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"det-bench generate: {done.stderr.strip()[-600:]}")
        made.update(json.loads(done.stdout))
        plan.say(f"filled in {made['seconds']:.0f} s: {made['experiments']:,} experiments, {made['trials']:,} trials")

    with Cluster(plan.det, plan.work, store, prepare=fill) as cluster:
        yield cluster, made


def _lists(cluster: Cluster) -> list[bytes]:
    """A page of 50 by every sort in both directions, and through every filter by two sorts."""
    orders = ("ORDER_BY_ASC", "ORDER_BY_DESC")
    asked: list[dict[str, Any]]
    asked = [{"sortBy": f"SORT_BY_{sort}", "orderBy": order} for sort in SORTS for order in orders]
    asked += [{**kept, "sortBy": f"SORT_BY_{sort}"} for kept in FILTERS for sort in ("ID", "NAME")]
    asked += [{"offset": 40_000, "sortBy": "SORT_BY_START_TIME"}]
    return [_get(cluster, "/api/v1/experiments", {"limit": 50, **query}) for query in asked]


def _get(cluster: Cluster, path: str, query: dict[str, Any] | None = None) -> bytes:
    tail = f"?{urlencode(query, doseq=True)}" if query else ""
    return request("GET", path + tail, cluster.headers())


def _turns(requests: Sequence[bytes], start: int = 0) -> NextRequest:
    """One after another, round and round."""
    number = start

    def next_request() -> bytes:
        nonlocal number
        number += 1
        return requests[number % len(requests)]

    return next_request


def lists(plan: Plan, store_kind: str) -> Outcome:
    """Everything that is read of a large store."""
    processors: dict[str, Any] = {}
    with own(store_kind) as store, _filled(plan, store) as (cluster, made):
        starts = [cluster.first_answer_seconds * 1e3]
        for _ in range(plan.repeats(5, 2)):
            cluster.stop_master()
            cluster.start_master()
            starts.append(cluster.first_answer_seconds * 1e3)
        values = [Value("start to first answer", "ms", starts, "the store as it was filled", "200 ms")]
        began = time.perf_counter()
        cluster.api("GET", "/api/v1/experiments?limit=50")
        first = (time.perf_counter() - began) * 1e3
        values.append(Value("first list after a start", "ms", [first], "reads what lists are sorted by into memory"))
        pages = _lists(cluster)
        largest = f"/api/v1/experiments/{made['largest_experiment']}"
        trials = [
            _get(cluster, f"{largest}/trials", {"limit": 100}),
            _get(cluster, f"{largest}/trials", {"limit": 100, "sortBy": "SORT_BY_BEST_VALIDATION_METRIC"}),
        ]
        trial = f"/api/v1/trials/{made['long_trial']}"
        series = {"trialIds": made["long_trial"], "metricIds": "training.loss", "maxDatapoints": 1000}
        checkpoints = {"limit": 50, "sortByAttr": "SORT_BY_END_TIME"}
        loads: list[tuple[str, list[bytes], int, str]] = [
            ("list, 50, any sort and filter, 8 readers", pages, READERS, "5,950 ms"),
            ("the same, alone", pages, 1, "1,481 ms"),
            ("one experiment", [_get(cluster, largest)], 1, "22 ms"),
            ("its trials, 100 of 10,000", trials, 1, ""),
            ("its checkpoints, 50", [_get(cluster, f"{largest}/checkpoints", checkpoints)], 1, ""),
            ("project with its counts", [_get(cluster, "/api/v1/projects/1")], 1, ""),
            ("series, 1,000 points of 1,000,000", [_get(cluster, "/api/v1/trials/time-series", series)], 1, "380 ms"),
        ]
        # The first look at a series stores what came of it; that is not what charts cost from then on.
        began = time.perf_counter()
        cluster.api("GET", f"/api/v1/trials/time-series?{urlencode(series)}")
        look = (time.perf_counter() - began) * 1e3
        values.append(Value("series, first look ever", "ms", [look], "made from the reports"))
        time.sleep(2)
        parts = {**cluster.pids(), "database": server_processes(store)}
        for name, requests, connections, old in loads:
            windows = []
            with Watch(parts) as watch:
                for number in range(plan.repeats(5)):
                    turns = [_turns(requests, 7 * n + number) for n in range(connections)]
                    windows.append(closed_loop(cluster.port, turns, plan.seconds(3.0)))
            processors[name] = watch.cores()
            values.append(Value(name, "ms", [w.p50_ms for w in windows], "median of the calls of a window", old))
            values.append(Value("  99th percentile", "ms", [w.p99_ms for w in windows], "of the calls of a window"))
            plan.say(f"{name}: p50 {windows[-1].p50_ms:.1f} ms, p99 {windows[-1].p99_ms:.1f} ms")
        values += _streams(plan, cluster, made, trial)
        values += _logins(plan, cluster)
        values += _slow_readers(plan, cluster, trial)
        return Outcome(
            "reading",
            "Reading at size",
            store.label,
            f"A store of {made['experiments']:,} experiments, {made['trials']:,} trials, a metric of "
            f"{made['points']:,} values and a log of {made['log_lines']:,} lines. Closed loops over kept connections; "
            "the generator shares the machine's cores.",
            values,
            {"made": made, "readers": READERS},
            processors,
        )


class _Peak:
    """The most anonymous memory of a process while something goes on, in MB above what it had before."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._done = threading.Event()
        self.above = 0.0

    def __enter__(self) -> _Peak:
        self._before = memory_kb(self._pid)["Anonymous"]
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.05):
            now = memory_kb(self._pid)["Anonymous"]
            self.above = max(self.above, (now - self._before) / 1024)


def _whole(cluster: Cluster, path: str, count: Callable[[bytes], int]) -> tuple[float, int]:
    """Reads a stream to its end; gives how long it took in ms, and what was counted in it."""
    connection = http.client.HTTPConnection(HOST, cluster.port, timeout=300)
    began = time.perf_counter()
    connection.request("GET", path, headers=cluster.headers())
    answer = connection.getresponse()
    if answer.status != 200:
        raise Failed(f"GET {path}: {answer.status} {answer.read()[:600].decode(errors='replace')}")
    counted = 0
    while data := answer.read1(1 << 20):
        counted += count(data)
    connection.close()
    return (time.perf_counter() - began) * 1e3, counted


def _streams(plan: Plan, cluster: Cluster, made: dict[str, Any], trial: str) -> list[Value]:
    pid = cluster.pids()["master"][0]
    whole, memory, search, search_memory, tail = [], [], [], [], []
    stream = f"/api/v1/trials/metrics/training_metrics?trialIds={made['long_trial']}"
    found = f"{trial}/logs?{urlencode({'searchText': made['needle'].upper()})}"
    for _ in range(plan.repeats(3)):
        with _Peak(pid) as peak:
            taken, points = _whole(cluster, stream, lambda data: data.count(b'"totalBatches"'))
        # A key may be split across two pieces of the answer.
        if not made["points"] * 0.99 <= points <= made["points"]:
            raise Failed(f"{points} of {made['points']} points were read")
        whole.append(taken)
        memory.append(peak.above)
        with _Peak(pid) as peak:
            taken, lines = _whole(cluster, found, lambda data: data.count(b"\n"))
        if lines != made["needle_lines"]:
            raise Failed(f"{lines} of {made['needle_lines']} lines were found")
        search.append(taken)
        search_memory.append(peak.above)
    for _ in range(plan.repeats(20, 5)):
        taken, lines = _whole(cluster, f"{trial}/logs?limit=100&orderBy=ORDER_BY_DESC", lambda data: data.count(b"\n"))
        if lines != 100:
            raise Failed(f"{lines} of 100 lines of the tail were read")
        tail.append(taken)
    plan.say(f"stream {min(whole):.0f} ms, search {min(search):.0f} ms, tail {min(tail):.1f} ms at best")
    return [
        Value("metric read whole as a stream", "ms", whole, f"{made['points']:,} values of one metric", "143,000 ms"),
        Value("  memory meanwhile", "MB", memory, "anonymous, above what it was", "1,900 MB"),
        Value("search for a text in a log", "ms", search, f"{made['log_lines']:,} lines of one trial, any case"),
        Value("  memory meanwhile", "MB", search_memory, "anonymous, above what it was"),
        Value("tail of a log, 100 lines", "ms", tail, "of the same log"),
    ]


def _logins(plan: Plan, cluster: Cluster) -> list[Value]:
    """Logins per second with a password, and what others wait meanwhile."""
    hashed = hashlib.sha512(f"{CLIENT_SALT}{PASSWORD}".encode()).hexdigest()
    kept = cluster.token
    admin = {"username": "admin", "password": "", "isHashed": True}
    cluster.token = cluster.api("POST", "/api/v1/auth/login", admin)["token"]
    user = {"username": "reader", "admin": False, "active": True}
    cluster.api("POST", "/api/v1/users", {"user": user, "password": hashed, "isHashed": True})
    cluster.token = kept
    body = json.dumps({"username": "reader", "password": hashed, "isHashed": True}).encode()
    login = request("POST", "/api/v1/auth/login", {}, body)
    me = _get(cluster, "/api/v1/me")
    rates, others = [], []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(plan.repeats(3)):
            logins = pool.submit(closed_loop, cluster.port, [lambda: login] * 4, plan.seconds(4.0))
            others.append(closed_loop(cluster.port, [lambda: _paced(me)], plan.seconds(4.0)).p99_ms)
            rates.append(logins.result().per_second)
    plan.say(f"{rates[-1]:.0f} logins/s, others' p99 {others[-1]:.1f} ms")
    return [
        Value("logins with a password", "1/s", rates, "over four connections, Argon2id", "0.6 1/s"),
        Value("  others meanwhile, 99th percentile", "ms", others, "GET /api/v1/me each 5 ms, over one connection"),
    ]


def _paced(data: bytes) -> bytes:
    """A request now and then: an unpaced loop would measure its own load."""
    time.sleep(0.005)
    return data


def _slow_readers(plan: Plan, cluster: Cluster, trial: str) -> list[Value]:
    """Followers of a long log that read a kilobyte a second each."""
    count, seconds = (50, 3) if plan.quick else (200, 15)
    pid = cluster.pids()["master"][0]
    before = memory_kb(pid)["Anonymous"]
    head = request("GET", f"{trial}/logs?follow=true", cluster.headers())
    readers = []
    for _ in range(count):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((HOST, cluster.port))
        reader.sendall(head)
        reader.setblocking(False)
        readers.append(reader)
    done = threading.Event()

    def read_slowly() -> None:
        while not done.wait(1.0):
            for reader in readers:
                try:
                    reader.recv(1024)
                except BlockingIOError:
                    continue

    thread = threading.Thread(target=read_slowly)
    thread.start()
    try:
        window = closed_loop(cluster.port, [lambda: _paced(_get(cluster, "/api/v1/me"))], seconds)
        above = (memory_kb(pid)["Anonymous"] - before) / 1024
    finally:
        done.set()
        thread.join()
        for reader in readers:
            reader.close()
    plan.say(f"{count} slow readers: {above:.1f} MB")
    return [
        Value(f"{count} slow followers of a log: memory", "MB", [above], "anonymous, above what it was"),
        Value("  others meanwhile, 99th percentile", "ms", [window.p99_ms], "GET /api/v1/me each 5 ms"),
    ]


# What a step of a training loop pays: a report and a question, timed by themselves; the step itself takes 5 ms.
STEPS = """
import json, sys, time
from determined import core
taken = []
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    for step in range(1, {steps} + 1):
        time.sleep(0.005)
        began = time.perf_counter()
        context.train.report_training_metrics(step, {{"loss": 1.0 / step, "accuracy": 0.5}})
        context.preempt.should_preempt()
        taken.append((time.perf_counter() - began) * 1e6)
with open("{out}.new", "w") as file:
    json.dump(taken, file)
import os
os.rename("{out}.new", "{out}")
"""


def step(plan: Plan, store_kind: str) -> Outcome:
    """What a training loop pays for reporting each step to the master."""
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=1, python=plan.python) as cluster:
        script = cluster.shared / "steps.py"
        script.write_text(STEPS.format(steps=plan.repeats(2000, 200), out=f"{SHARED}/taken.json"))
        script.chmod(0o644)
        experiment = cluster.submit(cluster.config(f"python3 {SHARED}/steps.py")).id
        state = cluster.wait_ended(experiment, within=300)
        out = cluster.shared / "taken.json"
        wait_for("the trial's times", out.is_file, within=5)
        if state != "STATE_COMPLETED":
            raise Failed(f"the training ended as {state}")
        taken = json.loads(out.read_text())
        plan.say(f"a report and a question: {sorted(taken)[len(taken) // 2]:.0f} µs")
        return Outcome(
            "step",
            "Overhead of a training step in our Python package",
            store.label,
            "A trial of one process: each step sleeps 5 ms, reports two metrics and asks whether to stop; the two "
            "calls together, as the loop waits for them. Sending goes on in the background.",
            [Value("report and question", "µs", taken, "per step", "2,000 to 9,000 µs")],
            {"steps": len(taken)},
        )


FIGURES = (
    Figure("reading", "lists, series, logs and logins on a large store", ("sqlite", "postgres"), lists),
    Figure("step", "what a training step pays for a report", ("sqlite",), step),
)
