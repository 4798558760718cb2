"""Seeing what `invariants.py` judges: rows, the API, the agents' directories, the machine."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Iterable
from typing import Any

import invariants
import ledger as ledgers
from harness import ApiError
from invariants import Remains, Views
from processes import CONTAINER_LABEL, docker, mounts_below
from violations import Violation
from waiting import TooLate, wait_for
from world import World

# A reconciliation: an agent that must notice, connect (its pauses grow to 5 s) and be compared.
RECONCILED_WITHIN = 20.0
# The time that what belonged to something may exist after its end.
LEFT_WITHIN = 120.0


def now_micros() -> int:
    return time.time_ns() // 1000


def answers(world: World, trial: int) -> ledgers.Answers:
    """What the API returns about a trial."""
    row = world.patiently(f"trial {trial}", lambda: world.trial(trial))
    reports = world.patiently(f"metrics of trial {trial}", lambda: _reports(world, trial))
    lines = world.patiently(f"log of trial {trial}", lambda: world.printed(trial))
    stored = world.patiently(f"checkpoints of trial {trial}", lambda: checkpoints_of(world, trial))
    return ledgers.Answers(
        trial=trial,
        state=row["state"],
        restarts=int(row["restarts"]),
        reports=reports,
        lines=lines,
        checkpoints=stored,
        files={uuid: files_of(world, uuid) for uuid in stored},
    )


def _reports(world: World, trial: int) -> list[tuple[str, int, int, dict[str, Any]]]:
    found = []
    for message in world.stream(f"/api/v1/trials/metrics/trial_metrics?trialIds={trial}", user="admin"):
        for report in message["metrics"]:
            document = report["metrics"]
            values = document.get("avg_metrics") or document.get("validation_metrics") or {}
            found.append((report["group"], int(report["trialRunId"]), int(report["totalBatches"]), values))
    return found


def checkpoints_of(world: World, trial: int) -> dict[str, tuple[str, dict[str, int]]]:
    answer = world.api("GET", f"/api/v1/trials/{trial}/checkpoints?limit=0", user="admin")
    found = {}
    for each in answer["checkpoints"]:
        state = each["state"].removeprefix("STATE_")
        found[each["uuid"]] = (state, {path: int(size) for path, size in each["resources"].items()})
    return found


def files_of(world: World, uuid: str) -> dict[str, int]:
    """What storage holds for a checkpoint: path to bytes."""
    assert world.checkpoint_root is not None
    root = world.checkpoint_root / uuid
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


def of_rows(world: World) -> list[Violation]:
    """The invariants that one reading of the database shows."""
    tables = world.patiently("the database", lambda: world.tables(invariants.TABLES))
    found = invariants.of_tables(tables, now_micros())
    for row in tables["checkpoints"]:
        resources = {path: int(size) for path, size in json.loads(row["resources"]).items()}
        found += ledgers.complete(row["uuid"], row["state"], resources, files_of(world, row["uuid"]))
    return found


def views(world: World) -> Views:
    """The three sides, as they are now."""
    seen = Views()
    tables = world.tables(invariants.TABLES)
    live = {row["id"]: row for row in tables["allocations"] if row["ended_at"] is None}
    for row in tables["containers"]:
        if row["ended_at"] is None:
            seen.in_rows[row["id"]] = row["place_id"]
    seen.live = {name for name, row in live.items() if row["placed_at"] is not None}
    for agent in world.api("GET", "/api/v1/agents", user="admin")["agents"]:
        for container in agent["containers"]:
            seen.in_memory[container] = agent["id"]
        for slot in agent["slots"].values():
            if slot["container"]:
                seen.in_memory[slot["container"]["id"]] = agent["id"]
    for agent in world.agents:
        directory = world.agent_dir(agent.name) / "containers"
        for entry in directory.iterdir() if directory.is_dir() else ():
            seen.on_agents[entry.name] = agent.name
    seen.on_machine = {container for container, _ in processes(world) if container}
    if world.image is not None:
        seen.on_machine |= set(engine(world))
    listed = world.api("GET", "/api/v1/tasks", user="admin")["allocationIdToSummary"]
    seen.listed = {name for name in listed if name not in live or live[name]["placed_at"] is not None}
    return seen


def agrees(world: World, within: float = RECONCILED_WITHIN) -> list[Violation]:
    """Waits until all sides agree; what they disagree about when the time is over."""
    last: list[Violation] = []

    def same() -> bool:
        nonlocal last
        last = invariants.agreement(views(world))
        return not last

    try:
        wait_for("all sides to agree", same, within=within, look_every=0.25)
    except TooLate:
        return last
    return []


def processes(world: World) -> Iterable[tuple[str, str]]:
    """Container id and `pid command` of every process of a task of this cluster."""
    for found in world.processes_of_containers():
        with contextlib.suppress(OSError):
            environment = pathlib.Path(f"/proc/{found.pid}/environ").read_bytes().split(b"\0")
            names = [pair[17:].decode() for pair in environment if pair.startswith(b"DET_CONTAINER_ID=")]
            yield (names[0] if names else "", f"{found.pid} {found.command}")
    for container, found in world.supervisors().items():
        yield (container, f"{found.pid} {found.command}")


def engine(world: World) -> list[str]:
    """Our ids of the engine's containers of this cluster, ended ones included."""
    label = f"label=ai.determined.container.cluster={world.cluster_id}"
    form = '{{.Label "' + CONTAINER_LABEL + '"}}'
    return docker("ps", "--all", "--filter", label, "--format", form).split()


def cgroups() -> list[str]:
    """Groups of sandboxes, in whichever hierarchy."""
    found = []
    for directory, below, _ in os.walk("/sys/fs/cgroup"):
        if os.path.basename(directory) == "determined":
            found += [os.path.join(directory, name) for name in below]
    return found


def remains(world: World, groups_before: set[str], ours: set[str]) -> Remains:
    """Everything on the machine that belongs to tasks of this cluster; `ours` are all containers that it ever had.

    Control groups do not record their owner, and other clusters may run on this machine.
    """
    directories = []
    for agent in world.agents:
        for place in ("containers", "trash"):
            directory = world.agent_dir(agent.name) / place
            directories += [str(entry) for entry in directory.iterdir()] if directory.is_dir() else []
    agent_mounts = [point for agent in world.agents for point in mounts_below(world.agent_dir(agent.name))]
    return Remains(
        processes=list(processes(world)),
        engine=engine(world) if world.image is not None else [],
        mounts=agent_mounts,
        cgroups=[group for group in cgroups() if group not in groups_before and os.path.basename(group) in ours],
        directories=directories,
    )


def nothing_left(world: World, groups_before: set[str], within: float = LEFT_WITHIN) -> list[Violation]:
    """Waits until nothing of what has ended is left; what is left when the time is over."""
    last: list[Violation] = []

    def clean() -> bool:
        nonlocal last
        tables = world.tables(invariants.TABLES)
        ours = {row["id"]: row["ended_at"] for row in tables["containers"]}
        live = {container for container, ended in ours.items() if ended is None}
        last = invariants.left_behind(remains(world, groups_before, set(ours)), live)
        return not last

    try:
        wait_for("nothing to be left behind", clean, within=within, look_every=0.25)
    except TooLate:
        return last
    return []


# --- 2: fencing ----------------------------------------------------------------------------------------------------


def fenced(world: World, credentials: dict[str, str], run_now: int) -> list[Violation]:
    """Speaks as an allocation that is over. Every call that changes something must be refused."""
    trial, run = int(credentials["DET_TRIAL_ID"]), int(credentials["DET_TRIAL_RUN_ID"])
    token, allocation = credentials["DET_SESSION_TOKEN"], credentials["DET_ALLOCATION_ID"]
    uuid = f"00000000-0000-4000-8000-{trial:06d}{run:06d}"
    checkpoint = {
        "uuid": uuid,
        "taskId": credentials["DET_TASK_ID"],
        "allocationId": allocation,
        "metadata": {"steps_completed": 1_000_000},
        "resources": {"fenced": 1},
        "state": "STATE_COMPLETED",
    }

    def report(run_id: int) -> dict[str, Any]:
        metrics = {"trialRunId": run_id, "stepsCompleted": 1_000_000 + run, "metrics": {"avgMetrics": {"fenced": 1}}}
        return {"group": "fenced", "metrics": metrics}

    calls: list[tuple[str, str, Any]] = [
        ("its report", f"/api/v1/trials/{trial}/metrics", report(run)),
        ("its report under the name of the new run", f"/api/v1/trials/{trial}/metrics", report(run_now)),
        ("its checkpoint", "/api/v1/checkpoints", checkpoint),
        ("its early exit", f"/api/v1/trials/{trial}/early_exit", {"reason": "EXITED_REASON_USER_REQUESTED_STOP"}),
        ("its progress", f"/api/v1/trials/{trial}/progress", {"progress": 0.999, "isRaw": True}),
        ("its runner's state", f"/api/v1/trials/{trial}/runner/metadata", {"state": "fenced"}),
        ("its metadata", f"/api/v1/runs/{trial}/metadata", {"metadata": {"fenced": 1}}),
    ]
    found = []
    for what, path, body in calls:
        try:
            world.patiently(what, lambda path=path, body=body: world.api("POST", path, body, token=token))
        except ApiError as error:
            if not 400 <= error.status < 500:
                found.append(Violation(2, "unfenced", f"allocation {allocation}", f"{what} was answered with {error}"))
            continue
        sentence = f"{what} was taken, though run {run_now} has taken its place"
        found.append(Violation(2, "unfenced", f"allocation {allocation}", sentence, {"path": path}))
    return found


def all_fenced(world: World, directory: pathlib.Path) -> list[Violation]:
    """`fenced` for every allocation of these ledgers that another one has followed."""
    runs = {row["id"]: row["run_id"] for row in world.tables(invariants.TABLES)["trials"]}
    found = []
    for path in sorted(directory.glob("credentials-*.json")):
        credentials = json.loads(path.read_text())
        now = runs.get(int(credentials["DET_TRIAL_ID"]), 0)
        if now > int(credentials["DET_TRIAL_RUN_ID"]):
            found += fenced(world, credentials, now)
    return found


# --- 9: refusals ---------------------------------------------------------------------------------------------------


def refusals(world: World) -> list[Violation]:
    """Sends requests that must be refused to a cluster at rest, and compares its state before and after."""
    good = {
        "name": "refused",
        "entrypoint": "true",
        "searcher": {"name": "single", "metric": "m", "smaller_is_better": True},
        "resources": {"slots_per_trial": 1},
    }
    wrong = {
        "an unknown searcher": {**good, "searcher": {"name": "no-such", "metric": "m"}},
        "an unknown pool": {**good, "resources": {"slots_per_trial": 1, "resource_pool": "no-such"}},
        "too many slots": {**good, "resources": {"slots_per_trial": 4096}},
        "no entrypoint": {key: value for key, value in good.items() if key != "entrypoint"},
    }
    before, sent = inventory(world), []
    for what, config in wrong.items():
        sent.append(what)
        with contextlib.suppress(ApiError):
            number = world.create(config)
            return [Violation(9, "wrong", f"experiment {number}", f"it was taken in spite of {what}")]
    for what, method, path, body in (
        ("a report for an unknown trial", "POST", "/api/v1/trials/999999999/metrics", {"group": "training"}),
        ("a kill of an unknown experiment", "POST", "/api/v1/experiments/999999999/kill", {}),
        ("a checkpoint of an unknown task", "POST", "/api/v1/checkpoints", {"uuid": "x", "taskId": "no-such"}),
    ):
        sent.append(what)
        with contextlib.suppress(ApiError):
            world.api(method, path, body, user="admin")
            return [Violation(9, "wrong", path, f"{what} was taken")]
    return invariants.nothing_new(before, inventory(world), sent)


def inventory(world: World) -> dict[str, int]:
    """Rows by table, and files below the master's directory and the checkpoint storage."""
    tables = (*invariants.TABLES, "jobs", "model_definitions", "metric_chunks", "log_chunks", "container_tokens")
    parts = [f"select '{name}' as name, count(*) as rows from {name}" for name in tables]
    found = {row["name"]: int(row["rows"]) for row in world.rows(" union all ".join(parts))}
    assert world.checkpoint_root is not None
    found["files of checkpoints"] = sum(1 for path in world.checkpoint_root.rglob("*") if path.is_file())
    kept = [path for path in world.data_dir.rglob("*") if path.is_file() and not path.name.startswith("det.db")]
    found["files of the master"] = len(kept)
    return found
