"""What must hold of a cluster, whatever was done to it.

1. Each slot is held by at most one live allocation; the sums are right for each agent.
2. A trial has at most one live allocation, and an older one can neither report, checkpoint nor finish.
3. What was acknowledged (metrics, log lines, checkpoints, state changes) is present, once, in order (`ledger.py`).
4. Terminal states change only by continue and delete, and everything live makes progress once faults stop.
5. A checkpoint is COMPLETED only with all files of its manifest.
6. No process, container, control group, mount or temporary directory outlives its owner by more than 2 minutes.
7. The search's state equals the replay of its events; no trial is created twice.
8. Database, master memory and agents agree within one reconciliation.
9. A refused or failed request left nothing behind.
10. Every waiting task has a reason, every effect an event.

The functions of this file are pure: `of_tables` judges one consistent reading of the database (`TABLES`), `agreement`
and `left_behind` what was seen elsewhere at a quiet moment. Seeing is `observe.py`'s part.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from violations import Violation

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

# What is read of the database, in one transaction.
TABLES = {
    "experiments": "select id, state, ended_at, trial_count from experiments order by id",
    "trials": "select id, experiment_id, request_id, task_id, state, run_id, restarts from trials order by id",
    "tasks": "select id, trial_id, log_lines, ended_at from tasks order by id",
    "allocations": "select id, task_id, trial_id, run_id, state, slots, requested_at, placed_at, ended_at, wait_reason "
    "from allocations order by id",
    "containers": "select id, allocation_id, place_id, slots, desired, ended_at from containers order by id",
    "agents": "select id, devices, disconnected_at from agents order by id",
    "checkpoints": "select uuid, trial_id, state, resources from checkpoints order by uuid",
    "search_events": "select experiment_id, seq from search_events order by experiment_id, seq",
    "search_snapshots": "select experiment_id, through from search_snapshots order by experiment_id",
    "events": "select id, actor, subject_kind, subject_id, kind, from_state, to_state, reason from events order by id",
}
TERMINAL = frozenset({"COMPLETED", "CANCELED", "ERROR", "DELETED", "TERMINATED"})
# Events that contain from which state to which; those of allocations have names of their own.
STATE_EVENTS = frozenset({"state", "placed", "ended"})
# States of allocations that have a name of their own in events only.
RUNNING = frozenset({"READY", "PREEMPTING", "SAVING"})
# How long a request may wait before it must have a reason: one round of scheduling, generously.
REASON_WITHIN_MICROS = 10_000_000
# How long what belonged to something may exist after its end.
LEFT_FOR_MICROS = 120_000_000


def of_tables(tables: Tables, now: int) -> list[Violation]:
    """What one reading of the database shows. `now` in microseconds since 1970."""
    return [
        *slots_held_once(tables),
        *one_live_allocation(tables),
        *allocations_one_after_another(tables),
        *states_follow_events(tables),
        *no_trial_twice(tables),
        *waiting_has_a_reason(tables, now),
        *effects_have_events(tables),
    ]


# --- 1 -------------------------------------------------------------------------------------------------------------


def slots_held_once(tables: Tables) -> Iterable[Violation]:
    """Invariant 1, by the rows."""
    holders: dict[tuple[str, int], list[str]] = defaultdict(list)
    held_by_allocation: Counter[str] = Counter()
    live = {row["id"]: row for row in tables["allocations"] if row["ended_at"] is None}
    for container in tables["containers"]:
        if container["ended_at"] is not None:
            continue
        slots = json.loads(container["slots"])
        held_by_allocation[container["allocation_id"]] += len(slots)
        for slot in slots:
            holders[(container["place_id"], slot)].append(container["id"])
        if container["allocation_id"] not in live:
            what = f"it is live, and its allocation {container['allocation_id']} has ended"
            yield Violation(1, "wrong", f"container {container['id']}", what)
    for (agent, slot), containers in holders.items():
        if len(containers) > 1:
            yield Violation(1, "doubled", f"slot {slot} of agent {agent}", f"it is held by {containers}")
    for agent in tables["agents"]:
        known = {device["id"] for device in json.loads(agent["devices"])}
        strange = sorted(slot for name, slot in holders if name == agent["id"] and slot not in known)
        if strange:
            yield Violation(1, "wrong", f"agent {agent['id']}", f"slots {strange} are held, and it has none such")
    for allocation, count in held_by_allocation.items():
        if allocation in live and count > live[allocation]["slots"]:
            what = f"it holds {count} slots and asked for {live[allocation]['slots']}"
            yield Violation(1, "wrong", f"allocation {allocation}", what)


# --- 2 -------------------------------------------------------------------------------------------------------------


def one_live_allocation(tables: Tables) -> Iterable[Violation]:
    """Invariant 2, by the rows."""
    live: dict[int, list[str]] = defaultdict(list)
    runs = {row["id"]: row["run_id"] for row in tables["trials"]}
    for allocation in tables["allocations"]:
        if allocation["ended_at"] is None and allocation["trial_id"] is not None:
            live[allocation["trial_id"]].append(allocation["id"])
            if allocation["run_id"] != runs.get(allocation["trial_id"]):
                what = f"its run {allocation['run_id']} is not the trial's, which is {runs.get(allocation['trial_id'])}"
                yield Violation(2, "wrong", f"allocation {allocation['id']}", what)
    for trial, allocations in live.items():
        if len(allocations) > 1:
            yield Violation(2, "doubled", f"trial {trial}", f"its allocations {allocations} are live at once")


def allocations_one_after_another(tables: Tables) -> Iterable[Violation]:
    """Invariant 2, by the events: nothing of a task is placed before what was placed earlier has ended."""
    tasks = {row["id"]: row["task_id"] for row in tables["allocations"]}
    open_now: dict[str, str] = {}
    for event in tables["events"]:
        if event["subject_kind"] != "allocation":
            continue
        allocation = event["subject_id"]
        task = tasks.get(allocation)
        if task is None:
            continue
        if event["kind"] == "placed":
            if open_now.get(task, allocation) != allocation:
                what = f"{allocation} was placed while {open_now[task]} was live"
                yield Violation(2, "doubled", f"task {task}", what, {"event": dict(event)})
            open_now[task] = allocation
        elif event["kind"] == "ended" and open_now.get(task) == allocation:
            del open_now[task]


# --- 4 -------------------------------------------------------------------------------------------------------------


def states_follow_events(tables: Tables) -> Iterable[Violation]:
    """Invariants 4 and 10: each state goes on from the one before, ends stay, and the rows agree with the events."""
    state: dict[tuple[str, str], str | None] = {}
    for event in tables["events"]:
        thing = (event["subject_kind"], event["subject_id"])
        if event["kind"] == "created":
            if thing in state:
                yield Violation(7, "doubled", " ".join(thing), "it was created twice", {"event": dict(event)})
            state[thing] = event["to_state"]
        elif event["kind"] in STATE_EVENTS:
            before = state.get(thing)
            if before is not None and event["from_state"] != before:
                what = f"it went on from {event['from_state']}, and had been {before}"
                yield Violation(4, "wrong", " ".join(thing), what, {"event": dict(event)})
            by_a_person = str(event["actor"]).startswith("user:")
            if before in TERMINAL and not by_a_person and thing[0] != "checkpoint":
                what = f"it had ended as {before} and became {event['to_state']}"
                yield Violation(4, "wrong", " ".join(thing), what, {"event": dict(event)})
            state[thing] = event["to_state"]
    subjects = ("experiment", "trial", "allocation", "checkpoint")
    for kind, table in ((subject, f"{subject}s") for subject in subjects):
        for row in tables[table]:
            name = str(row["uuid"] if kind == "checkpoint" else row["id"])
            last = state.get((kind, name))
            if last is None:
                yield Violation(10, "lost", f"{kind} {name}", "no event records its creation")
            elif ("RUNNING" if last in RUNNING else last) != row["state"]:
                yield Violation(10, "wrong", f"{kind} {name}", f"it is {row['state']}, and its last event has the state {last}")


# --- 7 -------------------------------------------------------------------------------------------------------------


def no_trial_twice(tables: Tables) -> Iterable[Violation]:
    """Invariant 7: one trial for each request of a search, counted right; the kept events have no gaps."""
    requests = Counter((row["experiment_id"], row["request_id"]) for row in tables["trials"])
    for (experiment, request), count in requests.items():
        if count > 1:
            yield Violation(7, "doubled", f"experiment {experiment}", f"request {request} has {count} trials")
    of_experiment = Counter(row["experiment_id"] for row in tables["trials"])
    for experiment in tables["experiments"]:
        there = of_experiment[experiment["id"]]
        if there != experiment["trial_count"]:
            what = f"it counts {experiment['trial_count']} trials and has {there}"
            yield Violation(7, "wrong", f"experiment {experiment['id']}", what)
    expected = {row["experiment_id"]: row["through"] for row in tables["search_snapshots"]}
    for row in tables["search_events"]:
        before = expected.get(row["experiment_id"])
        # Events up to the snapshot may linger; behind it each number comes once.
        if before is not None and row["seq"] > before + 1:
            what = f"event {row['seq']} of its search follows {before}"
            yield Violation(7, "lost", f"experiment {row['experiment_id']}", what)
        expected[row["experiment_id"]] = max(row["seq"], before or 0)


def same_trials(experiment: int, disturbed: Iterable[Any], twin: Iterable[Any]) -> Iterable[Violation]:
    """Invariant 7: a search that was disturbed asked for the trials that an undisturbed twin of its seed asked for."""
    one, other = (Counter(json.dumps(h, sort_keys=True) for h in each) for each in (disturbed, twin))
    if one != other:
        what = "its trials are not those of an undisturbed search with the same seed"
        evidence = {
            "only disturbed": list((one - other).elements()),
            "only undisturbed": list((other - one).elements()),
        }
        yield Violation(7, "wrong", f"experiment {experiment}", what, evidence)


# --- 10 ------------------------------------------------------------------------------------------------------------


def waiting_has_a_reason(tables: Tables, now: int) -> Iterable[Violation]:
    """Invariant 10: what has waited for a pass of scheduling has a reason."""
    for row in tables["allocations"]:
        waits = row["ended_at"] is None and row["placed_at"] is None
        if waits and not row["wait_reason"] and now - row["requested_at"] > REASON_WITHIN_MICROS:
            waited = (now - row["requested_at"]) / 1e6
            yield Violation(10, "lost", f"allocation {row['id']}", f"it has waited {waited:.1f} s without a reason")


def effects_have_events(tables: Tables) -> Iterable[Violation]:
    """Invariant 10: placing and ending leave one event each."""
    seen = Counter((e["subject_id"], e["kind"]) for e in tables["events"] if e["subject_kind"] == "allocation")
    for row in tables["allocations"]:
        for kind, happened in (("placed", row["placed_at"]), ("ended", row["ended_at"])):
            count = seen[(row["id"], kind)]
            if count != (1 if happened is not None else 0):
                fact = f"it was {kind}" if happened is not None else f"it was not {kind}"
                yield Violation(10, "wrong", f"allocation {row['id']}", f"{fact}, and {count} events record it")


# --- 8 -------------------------------------------------------------------------------------------------------------


@dataclass
class Views:
    """The same thing seen at the same quiet moment from three sides: containers that are live."""

    # Container to agent.
    in_rows: dict[str, str] = field(default_factory=dict)
    # What the API shows on the agents' slots and in their lists: it is answered from rows and memory.
    in_memory: dict[str, str] = field(default_factory=dict)
    # Records in the agents' directories.
    on_agents: dict[str, str] = field(default_factory=dict)
    # Containers that have at least one process, or that the engine runs.
    on_machine: set[str] = field(default_factory=set)
    # Allocations that the API lists as running tasks, and those that the rows hold as live and placed.
    listed: set[str] = field(default_factory=set)
    live: set[str] = field(default_factory=set)


def agreement(views: Views) -> list[Violation]:
    """Invariant 8: the sides agree."""
    found = []
    for name, there in (("master's memory", views.in_memory), ("agents' directories", views.on_agents)):
        if there != views.in_rows:
            evidence = {
                "only rows": sorted(set(views.in_rows.items()) - set(there.items())),
                f"only {name}": sorted(set(there.items()) - set(views.in_rows.items())),
            }
            found.append(Violation(8, "wrong", "containers", f"the rows and the {name} do not agree", evidence))
    gone, strange = set(views.in_rows) - views.on_machine, views.on_machine - set(views.in_rows)
    if gone:
        found.append(
            Violation(8, "lost", "containers", "they are live by the rows and run nowhere", {"ids": sorted(gone)})
        )
    if strange:
        what = "they run and no row wants them"
        found.append(Violation(8, "wrong", "containers", what, {"ids": sorted(strange)}))
    if views.listed != views.live:
        evidence = {"only listed": sorted(views.listed - views.live), "only rows": sorted(views.live - views.listed)}
        found.append(Violation(8, "wrong", "tasks", "the list of tasks and the rows do not agree", evidence))
    return found


# --- 6 -------------------------------------------------------------------------------------------------------------


@dataclass
class Remains:
    """What of ended things is on the machine."""

    # `pid command` of processes of tasks, by container ("" = not known).
    processes: list[tuple[str, str]] = field(default_factory=list)
    # Containers of the engine, by our id.
    engine: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)


def left_behind(remains: Remains, live: set[str]) -> list[Violation]:
    """Invariant 6: nothing of what is not `live` exists any more; the two minutes are over."""
    found = [
        Violation(6, "left", f"container {container or 'unknown'}", f"its process is still there: {process}")
        for container, process in remains.processes
        if container not in live
    ]
    for kind, names in (
        ("container", remains.engine),
        ("mount", remains.mounts),
        ("control group", remains.cgroups),
        ("directory", remains.directories),
    ):
        for name in names:
            if not any(container in name for container in live):
                found.append(Violation(6, "left", f"{kind} {name}", "it is still there, and its owner has ended"))
    return found


# --- 9 -------------------------------------------------------------------------------------------------------------


def nothing_new(before: Mapping[str, Any], after: Mapping[str, Any], refused: Sequence[str]) -> list[Violation]:
    """Invariant 9: refused requests changed nothing; both sides count rows by table and files by place."""
    changed = {
        name: (before.get(name), after.get(name)) for name in {*before, *after} if before.get(name) != after.get(name)
    }
    if not changed:
        return []
    what = "refused requests left something behind"
    return [
        Violation(9, "left", ", ".join(sorted(changed)), what, {"before, after": changed, "requests": list(refused)})
    ]
