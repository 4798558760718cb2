"""What a master keeps in memory while it is loaded for long, and what of it stays when the load is gone."""

from __future__ import annotations

import concurrent.futures
import pathlib
import statistics
import threading
import time

from measure.cluster import Cluster, Failed
from measure.facts import Watch, memory_kb
from measure.figures import Figure, Plan
from measure.figures.intake import LINES_PER_BATCH, WINDOWS, Reporter, drive, report_load, start_reporters
from measure.load import closed_loop, request
from measure.results import Outcome, Value
from measure.stores import own, server_processes

REPORTERS = 16
# A part of the load, after which the next one begins: reports of one value and of many take turns.
ROUND_SECONDS = 10.0
# After so many rounds another experiment takes over and the one before is deleted under load, as on a cluster that is
# used: an hour of this load would fill most disks otherwise.
EXPERIMENT_ROUNDS = 30
REST_SECONDS = 60


class Samples:
    """Memory and threads of a process, each second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        # Seconds since the beginning, and MiB.
        self.memory: list[tuple[float, float]] = []
        self.threads = 0

    def __enter__(self) -> Samples:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._done.wait(1.0):
            self.memory.append((time.monotonic() - began, anonymous(self._pid)))
            self.threads = max(self.threads, len(list(pathlib.Path(f"/proc/{self._pid}/task").iterdir())))

    def slope(self) -> float:
        """MiB by which it grew in an hour, from the second half of the samples: the first fills caches."""
        late = self.memory[len(self.memory) // 2 :]
        if len(late) < 2:
            raise Failed("the load was too short for a slope")
        return statistics.linear_regression(*zip(*late, strict=True)).slope * 3600


def anonymous(pid: int) -> float:
    return memory_kb(pid)["Anonymous"] / 1024


def soak(plan: Plan, store_kind: str) -> Outcome:
    """Reports, log lines and readers at once, as fast as they are answered."""
    seconds = plan.seconds(ROUND_SECONDS)
    rounds = 4 if plan.quick else max(2, round(plan.soak_seconds / ROUND_SECONDS))
    if rounds > WINDOWS:
        raise Failed(
            f"--soak-seconds {plan.soak_seconds:g}: at most {WINDOWS * ROUND_SECONDS:g}, after which the steps end"
        )
    rest = 2 if plan.quick else REST_SECONDS
    experiment_rounds = 2 if plan.quick else EXPERIMENT_ROUNDS
    with (
        own(store_kind) as store,
        Cluster(plan.det, plan.work, store, slots=REPORTERS, python=plan.python) as cluster,
    ):
        pid = cluster.pids()["master"][0]
        before = anonymous(pid)
        experiment, reporters = start_reporters(cluster, REPORTERS)
        parts = {**cluster.pids(), "database": server_processes(store)}
        done = [0, 0, 0]
        deleted = 0
        with Samples(pid) as samples, Watch(parts) as watch:
            for number in range(rounds):
                if number > 0 and number % experiment_rounds == 0:
                    cluster.wait_deleted()
                    cluster.kill(experiment)
                    cluster.delete(experiment)
                    deleted += 1
                    experiment, reporters = start_reporters(cluster, REPORTERS)
                for n, count in enumerate(_round(plan, cluster, reporters, number, seconds)):
                    done[n] += count
                plan.say(f"round {number + 1} of {rounds}: {anonymous(pid):.0f} MB")
        cluster.kill(experiment)
        time.sleep(rest)
        memory = [mib for _, mib in samples.memory]
        return Outcome(
            "soak",
            "Memory of a master under load, and afterwards",
            store.label,
            f"{REPORTERS} trials report metrics (rounds of one value and of 1,000 batch values take turns) and ship "
            "log lines, four connections read logs, series and lists, all as fast as they are answered. "
            f"After {experiment_rounds} rounds another experiment takes over and the one before is deleted meanwhile. "
            "Anonymous memory of smaps_rollup each second. "
            f"In all {done[0]} reports, {done[1] * LINES_PER_BATCH} lines, {done[2]} reads, {deleted} deletions.",
            [
                Value("before", "MB", [before], "anonymous, an agent connected"),
                Value("under load", "MB", memory, "anonymous, each second"),
                Value("highest", "MB", [max(memory)], "of these"),
                Value("growth", "MB/h", [samples.slope()], "least squares over the second half of the load"),
                Value(f"{rest} s afterwards", "MB", [anonymous(pid)], "anonymous"),
                Value("threads", "", [float(samples.threads)], "most at once"),
            ],
            {
                "rounds": rounds,
                "round_seconds": seconds,
                "experiment_rounds": experiment_rounds,
                "rest_seconds": rest,
            },
            watch.cores(),
        )


def _round(plan: Plan, cluster: Cluster, reporters: list[Reporter], number: int, seconds: float) -> list[int]:
    """How many reports, batches of lines and reads were answered."""
    reports = report_load(number, 1, 1000 if number % 2 else 0)
    lines = ["log-batches", "--lines", str(LINES_PER_BATCH)]
    half = len(reporters) // 2
    trial = reporters[0].trial
    paths = [
        f"/api/v1/trials/time-series?trialIds={trial}&metricIds=training.loss&maxDatapoints=1000",
        "/api/v1/experiments?limit=100",
        f"/api/v1/trials/{trial}",
    ]
    reads = [request("GET", path, cluster.headers()) for path in paths]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        logs = pool.submit(_read_logs, cluster, trial, time.monotonic() + seconds)
        loads = [
            pool.submit(drive, plan, cluster, reporters[:half], reports, seconds),
            pool.submit(drive, plan, cluster, reporters[half:], lines, seconds),
        ]
        read = closed_loop(cluster.port, [lambda data=data: data for data in reads], seconds)
        return [*(load.result().all_requests for load in loads), read.all_requests + logs.result()]


def _read_logs(cluster: Cluster, trial: int, until: float) -> int:
    """How often the newest lines of a trial were read. They come as a stream."""
    count = 0
    while time.monotonic() < until:
        with cluster.follow(f"/api/v1/trials/{trial}/logs?limit=1000&orderBy=ORDER_BY_DESC") as lines:
            for _ in lines:
                pass
        count += 1
    return count


FIGURES = (Figure("soak", "memory under load, and a minute later", ("sqlite", "postgres"), soak),)
