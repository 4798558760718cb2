"""What the master executes for one thing, in instructions of its own code, counted by Valgrind.

Times differ by half between two runs where other work shares the processors; this does not. Instructions of the kernel,
waiting and the disk are not in it, so it answers one question only: does a change make the master do more?
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from collections.abc import Callable

from measure.cluster import Cluster, Failed, wait_for
from measure.figures import Figure, Plan
from measure.figures.control import random_search, simulated
from measure.figures.intake import LINES_PER_BATCH, drive, report_load, start_reporters
from measure.load import closed_loop, request
from measure.results import Outcome, Skipped, Value
from measure.stores import own

# With its threads by turns, and the instructions counted by blocks: some fifty times slower than without.
VALGRIND = ("valgrind", "--tool=callgrind", "--combine-dumps=no", "--fair-sched=yes")
# Trials of the search; enough that planning, not the start of the search, is what is counted.
TRIALS, AGENTS = 200, 20
# Length of a window of load: long enough that what the master packs now and then takes its due share.
SECONDS = 5.0


def _counted(cluster: Cluster) -> int:
    """Instructions since the last question."""
    before = _dumps(cluster)
    assert cluster.master is not None
    command = ["callgrind_control", "--dump", str(cluster.master.pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Failed(f"callgrind_control: {done.stdout}{done.stderr}")

    def total() -> int | None:
        for path in sorted(_dumps(cluster) - before):
            lines = path.read_text(errors="replace").splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("totals:")) or None
        return None

    return wait_for("the count of instructions", total, within=60)


def _dumps(cluster: Cluster) -> set[pathlib.Path]:
    return set(cluster.root.glob("callgrind.out.*"))


def instructions(plan: Plan, store_kind: str) -> Outcome:
    """Instructions of the master for a report, a line, a trial, an answer and a start."""
    if shutil.which("callgrind_control") is None:
        raise Skipped("there is no callgrind_control; it is in the Debian package valgrind")
    values: list[Value] = []

    def value(name: str, count: Callable[[], float], definition: str) -> None:
        samples = [count() for _ in range(plan.repeats(5))]
        values.append(Value(name, "instructions", samples, definition))
        plan.say(f"{name}: {values[-1].median:,.0f} instructions")

    with (
        own(store_kind) as store,
        Cluster(plan.det, plan.work, store, slots=8, python=plan.python, under=VALGRIND) as cluster,
    ):
        label = store.label
        started = [float(_counted(cluster))]
        values.append(Value("start, empty store", "instructions", started, "to the first log-in"))
        window = iter(range(10_000))

        def answers() -> float:
            data = request("GET", "/api/v1/me", cluster.headers())
            _counted(cluster)
            done = closed_loop(cluster.port, [lambda: data], 1.0)
            return _counted(cluster) / done.all_requests

        value("GET /api/v1/me", answers, "one connection")
        for name, names, batches in (("1 value", 1, 0), ("100 names", 100, 0), ("1,000 batch values", 1, 1000)):
            experiment, reporters = start_reporters(cluster, 1)

            def reports(reporters=reporters, names=names, batches=batches) -> float:
                _counted(cluster)
                load = report_load(next(window), names, batches)
                done = drive(plan, cluster, reporters, load, SECONDS)
                return _counted(cluster) / done.all_requests

            value(f"report of {name}", reports, "one connection, durable; with its share of the metrics' flushes")
            cluster.kill(experiment)
        experiment, reporters = start_reporters(cluster, 1)

        def lines() -> float:
            _counted(cluster)
            load = ["log-batches", "--lines", str(LINES_PER_BATCH)]
            done = drive(plan, cluster, reporters, load, SECONDS)
            return _counted(cluster) / done.all_requests / LINES_PER_BATCH

        value("log line", lines, f"of a batch of {LINES_PER_BATCH:,}, one connection")
        cluster.kill(experiment)

    def trials() -> float:
        with own(store_kind) as store, Cluster(plan.det, plan.work, store, under=VALGRIND) as cluster:
            with simulated(plan, cluster, "--agents", AGENTS, "--slots", 1, "--until-exits", TRIALS) as agents:
                agents.wait_registered()
                _counted(cluster)
                experiment = cluster.submit(random_search(cluster, TRIALS, AGENTS)).id
                agents.result(600)
                cluster.wait_ended(experiment)
                return _counted(cluster) / TRIALS

    value("trial", trials, f"of a random search of {TRIALS} that end at once, {AGENTS} at a time, on simulated agents")
    return Outcome(
        "instructions",
        "Instructions of the master's own code, counted by Valgrind",
        label,
        "The master runs under callgrind; what is counted is divided by what was done meanwhile. "
        "Comparable between two executables, whatever else the machine does.",
        values,
        {"window_seconds": SECONDS, "trials": TRIALS, "agents": AGENTS},
        {},
    )


FIGURES = (
    Figure("instructions", "instructions of the master for a report, a line, a trial", ("sqlite",), instructions),
)
