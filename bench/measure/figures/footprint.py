"""What the executable needs and how quickly it answers: memory at rest, time to the first answer, commands."""

from __future__ import annotations

import os
import pathlib
import subprocess
import time

from measure.cluster import Cluster, Failed, environment
from measure.facts import Watch, memory_kb
from measure.figures import Figure, Plan
from measure.results import Outcome, Value
from measure.stores import Store, own

# A master at rest: this long without a request.
REST_SECONDS = 10


def idle(plan: Plan, store_kind: str) -> Outcome:
    """Memory of a master without requests."""
    rest = 2 if plan.quick else REST_SECONDS
    anonymous, resident, with_agent = [], [], []
    for _ in range(plan.repeats(3, 1)):
        with own(store_kind) as store, Cluster(plan.det, plan.work, store) as cluster:
            label = store.label
            time.sleep(rest)
            memory = memory_kb(cluster.pids()["master"][0])
            anonymous.append(memory["Anonymous"] / 1024)
            resident.append(memory["Rss"] / 1024)
        with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=2) as cluster:
            time.sleep(rest)
            pids = cluster.pids()
            with_agent.append([memory_kb(pids[part][0])["Anonymous"] / 1024 for part in ("master", "agent")])
            plan.say(f"anonymous {anonymous[-1]:.1f} MB, resident {resident[-1]:.1f} MB")
    return Outcome(
        "idle",
        "Memory of an idle master",
        label,
        f"From /proc/PID/smaps_rollup of `det master` on an empty store, {rest} s after its first answer and one "
        "login. Anonymous is what the process alone needs; RSS also counts mapped parts of the executable. MB are MiB.",
        [
            Value("anonymous", "MB", anonymous, "Anonymous", "18 MB"),
            Value("RSS", "MB", resident, "Rss", "83 MB"),
            Value("anonymous with an agent connected", "MB", [pair[0] for pair in with_agent], "the master's"),
            Value("anonymous of the agent", "MB", [pair[1] for pair in with_agent], "`det agent`, idle"),
        ],
        {"rest_seconds": rest},
    )


def start(plan: Plan, store_kind: str) -> Outcome:
    """From the start of the process to its first answer."""
    empty, migrated = [], []
    with Watch({}) as watch:
        for _ in range(plan.repeats(10)):
            with own(store_kind) as store:
                empty.append(_first_start(plan, store))
        with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=2, python=plan.python) as cluster:
            label = store.label
            for _ in range(3):
                cluster.wait_ended(cluster.submit(cluster.config("true")).id)
            cluster.wait_idle()
            for _ in range(plan.repeats(10)):
                cluster.stop_master()
                cluster.start_master()
                migrated.append(cluster.first_answer_seconds * 1e3)
    plan.say(f"empty {min(empty):.0f} ms, migrated {min(migrated):.0f} ms at best")
    return Outcome(
        "start",
        "Start of the master to its first answer",
        label,
        "From starting `det master` to a success of GET /info, asked again each half millisecond. Empty: a new store, "
        "all migrations run. Migrated: a store with three experiments that have ended, stopped in order.",
        [
            Value("migrated small store", "ms", migrated, "", "70 ms"),
            Value("empty store", "ms", empty, "", "4,960 ms"),
        ],
        {"repeats": plan.repeats(10)},
        watch.cores(),
    )


def _first_start(plan: Plan, store: Store) -> float:
    with Cluster(plan.det, plan.work, store) as cluster:
        return cluster.first_answer_seconds * 1e3


def commands(plan: Plan, store_kind: str) -> Outcome:
    """Commands of the client, as a shell runs them."""
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=2, python=plan.python) as cluster:
        for _ in range(3):
            cluster.wait_ended(cluster.submit(cluster.config("true")).id)
        env = {**environment(cluster.home), "DET_MASTER": cluster.url}
        repeats = plan.repeats(20, 5)
        with Watch(cluster.pids()) as watch:
            # Its first run logs in and keeps the token; that is not what a warm command does.
            _run([str(plan.det), "experiment", "list"], env)
            listing = [_run([str(plan.det), "experiment", "list"], env) for _ in range(repeats)]
            helping = [_run([str(plan.det), "--help"], env) for _ in range(repeats)]
            nothing = [_run([_true()], env) for _ in range(repeats)]
        plan.say(f"--help {min(helping):.1f} ms, experiment list {min(listing):.1f} ms at best")
        return Outcome(
            "commands",
            "Commands of the client",
            store.label,
            "From starting the process to its end, output to a pipe. The list has three experiments, the token is kept",
            [
                Value("det --help", "ms", helping, "", "285 ms"),
                Value("det experiment list", "ms", listing, "", "303 ms"),
                Value("true", "ms", nothing, "the same for a program that does nothing: the cost of measuring"),
            ],
            {"repeats": repeats},
            watch.cores(),
        )


def _run(argv: list[str], env: dict[str, str]) -> float:
    started = time.perf_counter()
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    taken = (time.perf_counter() - started) * 1e3
    if done.returncode != 0:
        raise Failed(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return taken


def _true() -> str:
    for directory in os.defpath.split(":"):
        if pathlib.Path(directory, "true").is_file():
            return f"{directory}/true"
    raise Failed("there is no program `true`")


FIGURES = (
    Figure("idle", "memory of an idle master", ("sqlite", "postgres"), idle),
    Figure("start", "start to first answer", ("sqlite", "postgres"), start),
    Figure("commands", "det --help, det experiment list", ("sqlite",), commands),
)
