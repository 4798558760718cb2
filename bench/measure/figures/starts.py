"""How long work takes to start and to end: from submitting to the first line, to completion, and trials per second."""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from measure.cluster import Cluster, Failed, clock_of, wait_for
from measure.facts import Watch
from measure.figures import Figure, Plan
from measure.results import Outcome, Skipped, Value
from measure.stores import own, server_processes

FIRST_LINE = "bench: the first line"
LAST_LINE = "bench: the last line"
# In the agent's log.
WARM_READY = "Python programs of tasks start warm"
# What the import of the module for warm starts takes.
SLOW_SECONDS = 0.5
# Unmeasured runs: they warm caches, and the agent looks at its interpreter only once.
WARM_UPS = 2

# The way of a task, in order: the moment, what happened between it and the moment before, and how it is known.
STAGES = (
    ("created", "accepted", "the experiment's event `created`, written in the transaction that accepts it"),
    ("placed", "placed", "the allocation's event `placed`"),
    ("notified", "agent notified", "the agent's file spec.json (times of files are exact to some 4 ms)"),
    ("supervisor", "started", "the supervisor's first instruction, before the sandbox is built"),
    ("sandbox", "sandbox", "the sandbox is set up; not in containers, where the engine built it before"),
    ("context", "context", "the files of the experiment are fetched and unpacked"),
    ("met", "rendezvous", "the master has received the start of all containers, and sent them each other's addresses"),
    ("exec", "execution", "the entrypoint is executed"),
    ("line", "user code", "the supervisor has read the first line: interpreter and user code"),
    ("seen", "seen", "a client that follows the log has the line"),
)


def submit_to_first_line(plan: Plan, store_kind: str) -> Outcome:
    """From submitting to the first line, as a process: by a shell, and by Python."""
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=2, python=plan.python) as cluster:
        shell = _Way(cluster, f"echo '{FIRST_LINE}'; exec sleep 600")
        python = _Way(cluster, f"python3 -c \"import time; print('{FIRST_LINE}', flush=True); time.sleep(600)\"")
        watch = Watch(cluster.pids())
        with watch:
            shell.walk(plan, plan.repeats(20))
            python.walk(plan, plan.repeats(20))
        return Outcome(
            "submit-process",
            "Submit to first line of user code, as a process, warm",
            store.label,
            _submit_definition(),
            [*shell.values("sh: "), *python.values("python3: ", stages=("line",))],
            {"repeats": len(shell.ways), "warm_ups": WARM_UPS, "slots": 2, "entrypoints": ["sh", "python3 -c"]},
            watch.cores(),
        )


def submit_in_docker(plan: Plan, store_kind: str) -> Outcome:
    """The same in a container, compared with `docker run` of the same image."""
    image = _image(plan)
    with (
        own(store_kind) as store,
        Cluster(plan.det, plan.work, store, slots=2, runtime="docker", image=image) as cluster,
    ):
        way = _Way(cluster, f"echo '{FIRST_LINE}'; exec sleep 600")
        watch = Watch(cluster.pids())
        bare = []
        with watch:
            for number in range(WARM_UPS + plan.repeats(20)):
                # By turns, so that both meet the same machine.
                way.step(plan, number >= WARM_UPS)
                bare.append(_bare_docker_run(image))
        return Outcome(
            "submit-docker",
            "Submit to first line of user code, in Docker, image present",
            store.label,
            _submit_definition(),
            [
                *way.values("sh: ", old="4,650 ms"),
                Value(
                    "bare docker run",
                    "ms",
                    [seconds * 1e3 for seconds in bare[WARM_UPS:]],
                    "from starting `docker run --rm --network host IMAGE echo` to its first line",
                ),
            ],
            {"repeats": len(way.ways), "warm_ups": WARM_UPS, "image": image},
            watch.cores(),
        )


def _submit_definition() -> str:
    stages = "; ".join(f"{name} = {known}" for _, name, known in STAGES)
    return (
        "From just before POST /api/v1/experiments is sent to the time stamp of the first line that the trial's own "
        "code prints, on an idle cluster whose caches are warm. No files are sent. Each stage is the time from the "
        f"one before: {stages}. A 99th percentile of 20 repeats is the slowest one."
    )


def warm_start(plan: Plan, store_kind: str) -> Outcome:
    """A program whose module takes half a second to import, started warm and cold by turns."""
    with own(store_kind) as store, tempfile.TemporaryDirectory(dir=plan.work) as directory:
        python = _environment_with_slow_module(plan, pathlib.Path(directory))
        args = ["--set", f"warm_start.python={python}", "--set", "warm_start.imports=[det_bench_slow]"]
        with Cluster(plan.det, plan.work, store, slots=2, python=str(python), agent_args=args) as cluster:
            log = cluster.root / "agent.log"
            wait_for("the modules to be imported", lambda: WARM_READY in log.read_text(), within=30)
            warm = _Way(cluster, "exec python3 -m det_bench_line")
            # A variable that libraries read when they start.
            cold = _Way(cluster, "export OMP_NUM_THREADS=1; exec python3 -m det_bench_line")
            watch = Watch(cluster.pids())
            with watch:
                for number in range(WARM_UPS + plan.repeats(20)):
                    # By turns, so that both meet the same machine.
                    warm.step(plan, number >= WARM_UPS)
                    cold.step(plan, number >= WARM_UPS)
        ratios = [_user_code(one) / _user_code(other) for one, other in zip(warm.ways, cold.ways)]
        return Outcome(
            "warm-start",
            f"Start of a Python program with a module that takes {SLOW_SECONDS} s to import, warm and cold",
            store.label,
            _submit_definition(),
            [
                *warm.values("warm: ", stages=("line",)),
                *cold.values("cold: ", stages=("line",)),
                Value("warm / cold, user code", "", ratios, "from the execution to the first line, in each round"),
            ],
            {"repeats": len(ratios), "warm_ups": WARM_UPS, "slots": 2, "import_seconds": SLOW_SECONDS},
            watch.cores(),
        )


def _environment_with_slow_module(plan: Plan, directory: pathlib.Path) -> pathlib.Path:
    """An interpreter of its own with two modules: one that takes its time, and a program that imports it."""
    directory.chmod(0o755)
    made = subprocess.run(
        [plan.python, "-m", "venv", "--without-pip", directory / "venv"], capture_output=True, text=True
    )
    if made.returncode != 0:
        raise Skipped(f"{plan.python} makes no virtual environment: {made.stderr.strip()}")
    packages = next((directory / "venv").glob("lib/python3*/site-packages"))
    (packages / "det_bench_slow.py").write_text(f"import time\ntime.sleep({SLOW_SECONDS})\n")
    line = f"import det_bench_slow, time\nprint({FIRST_LINE!r}, flush=True)\ntime.sleep(600)\n"
    (packages / "det_bench_line.py").write_text(line)
    return directory / "venv/bin/python3"


def _user_code(way: dict[str, float]) -> float:
    return way["line"] - way["exec"]


class _Way:
    """The same small experiment, again and again, and when it got where."""

    def __init__(self, cluster: Cluster, entrypoint: str) -> None:
        self.cluster = cluster
        self.config = cluster.config(entrypoint)
        self.ways: list[dict[str, float]] = []

    def walk(self, plan: Plan, repeats: int) -> None:
        for number in range(WARM_UPS + repeats):
            self.step(plan, number >= WARM_UPS)

    def step(self, plan: Plan, counts: bool) -> None:
        way = self._once()
        if counts:
            self.ways.append(way)
            plan.say(f"first line after {(way['line'] - way['sent']) * 1e3:.1f} ms")

    def _once(self) -> dict[str, float]:
        cluster = self.cluster
        submitted = cluster.submit(self.config)
        trial = cluster.first_trial(submitted.id)
        way = {"sent": submitted.sent, "answered": submitted.answered}
        with cluster.follow(f"/api/v1/trials/{trial}/logs?follow=true") as messages:
            for seen, record in messages:
                if FIRST_LINE in record["log"] and record["source"] == "task":
                    way["line"], way["seen"] = clock_of(record["timestamp"]), seen
                    break
            else:
                raise Failed(f"trial {trial} ended without a first line:\n{_log(cluster, trial)}")
        way["created"] = _moment(cluster.events("experiment", submitted.id), "created")
        task = cluster.api("GET", f"/api/v1/trials/{trial}")["trial"]["taskId"]
        way["placed"] = _moment(cluster.events("allocation", f"{task}.1"), "placed")
        way.update(_agent_side(cluster, record["containerId"]))
        cluster.kill(submitted.id)
        return way

    def values(self, prefix: str, old: str = "", stages: Sequence[str] = ()) -> list[Value]:
        """The whole, and its parts; only those in `stages` if any are named."""

        def between(first: str, last: str) -> list[float]:
            return [(way[last] - way[first]) * 1e3 for way in self.ways]

        values = [
            Value(f"{prefix}submit to first line", "ms", between("sent", "line"), "the whole way", old),
            Value(f"{prefix}submit to seen by a follower", "ms", between("sent", "seen"), "with the log's way"),
        ]
        if not stages:
            values.append(Value("  POST answered", "ms", between("sent", "answered"), "not in the sum: the response"))
        before = "sent"
        for moment, name, known in STAGES:
            if any(moment not in way for way in self.ways):
                continue
            if not stages or moment in stages:
                values.append(Value(f"  {name}", "ms", between(before, moment), f"since the stage before: {known}"))
            before = moment
        return values


def _moment(events: Sequence[dict[str, Any]], kind: str) -> float:
    for event in events:
        if event["kind"] == kind:
            return clock_of(event["time"])
    raise Failed(f"there is no event {kind} among {events}")


def _agent_side(cluster: Cluster, container: str) -> dict[str, float]:
    """What the agent and the supervisor left in the container's directory."""
    directory = cluster.root / "agent" / "containers" / container
    try:
        notified = (directory / "spec.json").stat().st_mtime_ns / 1e9
        stages = json.loads((directory / "run" / "started.json").read_text())["stages"]
    except OSError as error:
        raise Failed(f"the agent's files of container {container} cannot be read: {error}") from error
    found = {
        "supervisor": stages["supervisor_start"],
        "sandbox": stages["sandbox_ready"],
        "context": stages["context_unpacked"],
        "met": stages["rendezvous_done"],
        "exec": stages["entrypoint_exec"],
    }
    return {"notified": notified, **{name: micros / 1e6 for name, micros in found.items() if micros is not None}}


def _log(cluster: Cluster, trial: int) -> str:
    with cluster.follow(f"/api/v1/trials/{trial}/logs") as messages:
        return "".join(record["message"] for _, record in messages)


def _image(plan: Plan) -> str:
    if plan.image is None:
        raise Skipped("DET_BENCH_IMAGE names no image with a shell")
    try:
        done = subprocess.run(["docker", "image", "inspect", plan.image], capture_output=True, text=True)
    except FileNotFoundError:
        raise Skipped("there is no docker on PATH") from None
    if done.returncode != 0:
        raise Skipped(f'the Docker engine has no image "{plan.image}": {done.stderr.strip()}')
    return plan.image


def _bare_docker_run(image: str) -> float:
    """Seconds from starting `docker run` to the container's first line."""
    argv = ["docker", "run", "--rm", "--network", "host", "--entrypoint", "/bin/sh", image]
    argv += ["-c", f"echo '{FIRST_LINE}'"]
    started = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        taken = time.perf_counter() - started
        problem = process.stderr.read().decode(errors="replace")
    if FIRST_LINE.encode() not in line:
        raise Failed(f"docker run of {image} printed no line: {problem}")
    return taken


def completion(plan: Plan, store_kind: str) -> Outcome:
    """From submitting a short script to COMPLETED, and from its end to the end of its log's follower."""
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=2, python=plan.python) as cluster:
        watch = Watch(cluster.pids())
        runs = []
        with watch:
            for number in range(WARM_UPS + plan.repeats(20)):
                run = _run_to_the_end(cluster)
                if number >= WARM_UPS:
                    runs.append(run)
                    plan.say(f"completed after {(run['seen_completed'] - run['sent']) * 1e3:.1f} ms")

        def between(first: str, last: str) -> list[float]:
            return [(run[last] - run[first]) * 1e3 for run in runs]

        return Outcome(
            "completion",
            "Submit to COMPLETED of a script with 0.05 s of work, as a process",
            store.label,
            "The script sleeps 0.05 s and prints a line. A client follows the events, another the trial's log. On an "
            "idle cluster whose caches are warm.",
            [
                Value(
                    "submit to COMPLETED",
                    "ms",
                    between("sent", "seen_completed"),
                    "until the client that follows the events has the experiment's COMPLETED; 50 ms of it are the work",
                    "8,400 ms (Docker)",
                ),
                Value("  submit to last line", "ms", between("sent", "last_line"), "the script is at its end"),
                Value("  last line to trial ended", "ms", between("last_line", "trial_ended"), "the trial's event"),
                Value("  trial ended to COMPLETED", "ms", between("trial_ended", "completed"), "the event"),
                Value(
                    "last line to end of follower",
                    "ms",
                    between("last_line", "follower_ended"),
                    "until the stream of the client that follows the log has ended",
                ),
                Value(
                    "trial ended to end of follower",
                    "ms",
                    between("trial_ended", "follower_ended"),
                    "the same from the trial's terminal state",
                    "5,900 ms",
                ),
            ],
            {"repeats": len(runs), "warm_ups": WARM_UPS},
            watch.cores(),
        )


def _run_to_the_end(cluster: Cluster) -> dict[str, float]:
    after = cluster.last_event()
    times: dict[str, float] = {}
    followed: list[Exception] = []

    def follow_events() -> None:
        try:
            with cluster.follow(f"/api/v1/events?follow=true&after={after}") as messages:
                ready.set()
                for seen, event in messages:
                    if event["subjectKind"] == "experiment" and event["to"] == "COMPLETED":
                        times["seen_completed"], times["completed"] = seen, clock_of(event["time"])
                        return
                    if event["subjectKind"] == "experiment" and event["to"] in ("ERROR", "CANCELED"):
                        raise Failed(f"the experiment ended: {event}")
                    if event["subjectKind"] == "trial" and event["to"] == "COMPLETED":
                        times["trial_ended"] = clock_of(event["time"])
        except Exception as error:
            followed.append(error)
        finally:
            ready.set()

    ready = threading.Event()
    follower = threading.Thread(target=follow_events, daemon=True)
    follower.start()
    ready.wait(10)
    submitted = cluster.submit(cluster.config(f"sleep 0.05; echo '{LAST_LINE}'"))
    times["sent"] = submitted.sent
    trial = cluster.first_trial(submitted.id)
    with cluster.follow(f"/api/v1/trials/{trial}/logs?follow=true") as messages:
        for _, record in messages:
            if LAST_LINE in record["log"] and record["source"] == "task":
                times["last_line"] = clock_of(record["timestamp"])
    times["follower_ended"] = time.time()
    follower.join(30)
    if followed:
        raise Failed(f"the events could not be followed: {followed[0]!r}")
    missing = {"last_line", "trial_ended", "seen_completed"} - times.keys()
    if missing:
        raise Failed(f"trial {trial} never came to {', '.join(sorted(missing))}:\n{_log(cluster, trial)}")
    cluster.wait_idle()
    return times


def search(plan: Plan, store_kind: str) -> Outcome:
    """A random search of trials that do nothing: what the platform itself costs per trial."""
    trials, slots = (32, 16) if plan.quick else (200, 16)
    with own(store_kind) as store, Cluster(plan.det, plan.work, store, slots=slots, python=plan.python) as cluster:
        config = cluster.config(
            "true",
            searcher={"name": "random", "metric": "loss", "max_trials": trials, "max_concurrent_trials": slots},
            hyperparameters={"x": {"type": "double", "minval": 0, "maxval": 1}},
        )
        cluster.wait_ended(cluster.submit(cluster.config("true")).id)
        parts = {**cluster.pids(), "database": server_processes(store)}
        rates, cores = [], []
        costs: dict[str, list[float]] = {"master": [], "agent": [], "tasks": []}
        for _ in range(plan.repeats(3, 1)):
            with Watch(parts) as watch:
                submitted = cluster.submit(config)
                state = cluster.wait_ended(submitted.id, within=600)
            if state != "STATE_COMPLETED":
                raise Failed(f"the search ended as {state}")
            ended = _moment([e for e in cluster.events("experiment", submitted.id) if e["to"] == "COMPLETED"], "state")
            rates.append(trials / (ended - submitted.sent))
            cores.append(watch.cores())
            for part, spent in costs.items():
                spent.append(watch.part_seconds[part] / trials * 1e3)
            plan.say(f"{rates[-1]:.1f} trials/s; cores {cores[-1]}")
            cluster.wait_idle()
        return Outcome(
            "search",
            f"Random search of {trials} trials of `true` on {slots} artificial slots",
            store.label,
            "Trials per second from just before POST /api/v1/experiments to the experiment's event COMPLETED, one "
            "agent with real processes.",
            [
                Value("trials", "1/s", rates, "each queued, placed, started, ended and decided upon durably"),
                *(Value(f"  {part}: time per trial", "ms", spent, "processor time") for part, spent in costs.items()),
            ],
            {"trials": trials, "slots": slots, "max_concurrent_trials": slots},
            {"per_repeat": cores},
        )


FIGURES = (
    Figure("submit-process", "submit to first line, process", ("sqlite",), submit_to_first_line),
    Figure("submit-docker", "submit to first line, Docker", ("sqlite",), submit_in_docker),
    Figure("warm-start", "Python programs, warm and cold", ("sqlite",), warm_start),
    Figure("completion", "submit to COMPLETED, end to end of log", ("sqlite",), completion),
    Figure("search", "trials per second of a search", ("sqlite", "postgres"), search),
)

__all__ = ["FIGURES"]
