"""The invariants themselves: each is shown a world where it holds, and worlds where it does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

import invariants
from invariants import Remains, Views

SECOND = 1_000_000


def world() -> dict[str, list[dict[str, Any]]]:
    """An experiment with two trials: one runs its second allocation, the other waits and has its reason."""
    event = {"actor": "master", "from_state": None, "to_state": None, "reason": None}

    def happened(number: int, kind: str, thing: str, name: str, **more: Any) -> dict[str, Any]:
        return {**event, "id": number, "subject_kind": thing, "subject_id": name, "kind": kind, **more}

    def allocation(name: str, trial: int, run: int, state: str, **more: Any) -> dict[str, Any]:
        row = {"id": name, "task_id": f"task-{trial}", "trial_id": trial, "run_id": run, "state": state, "slots": 1}
        return {**row, "requested_at": 0, "placed_at": None, "ended_at": None, "wait_reason": None, **more}

    def container(name: str, allocation: str, slots: list[int], ended: int | None = None) -> dict[str, Any]:
        row = {"id": name, "allocation_id": allocation, "place_id": "a", "desired": "run", "ended_at": ended}
        return {**row, "slots": json.dumps(slots)}

    return {
        "experiments": [{"id": 1, "state": "ACTIVE", "ended_at": None, "trial_count": 2}],
        "trials": [
            {"id": 1, "experiment_id": 1, "request_id": "r1", "task_id": "task-1", "state": "ACTIVE", "run_id": 2},
            {"id": 2, "experiment_id": 1, "request_id": "r2", "task_id": "task-2", "state": "ACTIVE", "run_id": 1},
        ],
        "tasks": [],
        "allocations": [
            allocation("a1", 1, 1, "TERMINATED", placed_at=1, ended_at=2),
            allocation("a2", 1, 2, "RUNNING", placed_at=3),
            allocation("a3", 2, 1, "PENDING", wait_reason="no slot is free"),
        ],
        "containers": [container("c1", "a1", [0], ended=2), container("c2", "a2", [0])],
        "agents": [{"id": "a", "devices": json.dumps([{"id": 0}, {"id": 1}]), "disconnected_at": None}],
        "checkpoints": [{"uuid": "u", "trial_id": 1, "state": "COMPLETED", "resources": "{}"}],
        "search_events": [{"experiment_id": 1, "seq": 4}, {"experiment_id": 1, "seq": 5}],
        "search_snapshots": [{"experiment_id": 1, "through": 3}],
        "events": [
            happened(1, "created", "experiment", "1", to_state="ACTIVE", actor="user:ada"),
            happened(2, "created", "trial", "1", to_state="ACTIVE"),
            happened(3, "created", "trial", "2", to_state="ACTIVE"),
            happened(4, "placed", "allocation", "a1", from_state="PENDING", to_state="ASSIGNED"),
            happened(5, "created", "checkpoint", "u", to_state="COMPLETED"),
            happened(6, "ended", "allocation", "a1", from_state="ASSIGNED", to_state="TERMINATED"),
            happened(7, "placed", "allocation", "a2", from_state="PENDING", to_state="ASSIGNED"),
            happened(8, "state", "allocation", "a2", from_state="ASSIGNED", to_state="READY"),
            happened(9, "created", "allocation", "a3", to_state="PENDING"),
        ],
    }


def found(tables: dict[str, list[dict[str, Any]]], now: int = 60 * SECOND) -> list[int]:
    return sorted({violation.invariant for violation in invariants.of_tables(tables, now)})


def test_a_sound_world_is_taken_for_sound() -> None:
    assert found(world()) == []


def slot_twice(t: Any) -> None:
    t["containers"].append({**t["containers"][1], "id": "c3", "allocation_id": "a3"})
    t["allocations"][2].update(placed_at=5, state="ASSIGNED")
    t["events"].append({**t["events"][6], "id": 10, "subject_id": "a3"})


def slot_unknown(t: Any) -> None:
    t["containers"][1]["slots"] = "[5]"


def slots_too_many(t: Any) -> None:
    t["containers"][1]["slots"] = "[0, 1]"


def container_outlives(t: Any) -> None:
    t["containers"][0]["ended_at"] = None
    t["containers"][0]["slots"] = "[1]"


def two_allocations(t: Any) -> None:
    t["allocations"][2].update(trial_id=1, run_id=2)


def old_run_lives(t: Any) -> None:
    t["trials"][0]["run_id"] = 3


def placed_before_the_end(t: Any) -> None:
    t["events"][5], t["events"][6] = t["events"][6], t["events"][5]


def ended_state_left(t: Any) -> None:
    for number, (before, after) in enumerate((("ACTIVE", "COMPLETED"), ("COMPLETED", "ACTIVE")), 10):
        t["events"].append({**t["events"][1], "id": number, "kind": "state", "from_state": before, "to_state": after})


def state_jumps(t: Any) -> None:
    t["events"].append({**t["events"][1], "id": 10, "kind": "state", "from_state": "PAUSED", "to_state": "ACTIVE"})


def state_without_event(t: Any) -> None:
    t["trials"][1]["state"] = "COMPLETED"


def never_created(t: Any) -> None:
    del t["events"][2]


def created_twice(t: Any) -> None:
    t["events"].append({**t["events"][1], "id": 10})


def trial_twice(t: Any) -> None:
    t["trials"][1]["request_id"] = "r1"


def counted_wrong(t: Any) -> None:
    t["experiments"][0]["trial_count"] = 3


def search_gap(t: Any) -> None:
    del t["search_events"][0]


def no_reason(t: Any) -> None:
    t["allocations"][2]["wait_reason"] = None


def end_without_event(t: Any) -> None:
    del t["events"][5]


def allocation_without_event(t: Any) -> None:
    t["allocations"][1]["state"] = "STARTING"


def placed_twice(t: Any) -> None:
    t["events"].append({**t["events"][6], "id": 10})


BROKEN: dict[str, tuple[Callable[[Any], None], list[int]]] = {
    "a slot has two holders": (slot_twice, [1]),
    "a slot that its agent has not": (slot_unknown, [1]),
    "more slots than asked for": (slots_too_many, [1]),
    "a container outlives its allocation": (container_outlives, [1]),
    "two live allocations of a trial": (two_allocations, [2]),
    "the live allocation is of an older run": (old_run_lives, [2]),
    "one is placed before the other has ended": (placed_before_the_end, [2]),
    "an ended state is left": (ended_state_left, [4]),
    "a state that was never reached is left": (state_jumps, [4]),
    "a state without its event": (state_without_event, [10]),
    "a trial without its creation": (never_created, [10]),
    "a trial is created twice": (created_twice, [7]),
    "a request has two trials": (trial_twice, [7]),
    "trials are counted wrong": (counted_wrong, [7]),
    "an event of the search is missing": (search_gap, [7]),
    "something waits without a reason": (no_reason, [10]),
    "an end without its event": (end_without_event, [2, 10]),
    "a placement with two events": (placed_twice, [4, 10]),
    "a state of an allocation without its event": (allocation_without_event, [10]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_world_is_seen(name: str) -> None:
    breaks, expected = BROKEN[name]
    tables = copy.deepcopy(world())
    breaks(tables)
    assert found(tables) == expected


def test_a_person_may_leave_an_ended_state() -> None:
    tables = world()
    ended_state_left(tables)
    tables["events"][-1]["actor"] = "user:ada"
    assert found(tables) == []


def test_a_request_may_wait_for_its_reason_as_long_as_a_round_takes() -> None:
    tables = world()
    no_reason(tables)
    assert found(tables, now=SECOND) == []


def same_everywhere() -> Views:
    return Views({"c": "a"}, {"c": "a"}, {"c": "a"}, {"c"}, {"x"}, {"x"})


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.in_memory.clear(),
        lambda v: v.on_agents.update(d="a"),
        lambda v: v.on_machine.clear(),
        lambda v: v.on_machine.add("d"),
        lambda v: v.listed.add("y"),
    ],
    ids=["memory forgot", "an agent holds more", "it runs nowhere", "something strange runs", "listed and not live"],
)
def test_sides_that_do_not_agree_are_seen(change: Callable[[Views], Any]) -> None:
    views = same_everywhere()
    assert invariants.agreement(views) == []
    change(views)
    assert {violation.invariant for violation in invariants.agreement(views)} == {8}


def test_what_is_left_behind_is_seen_and_what_lives_is_not() -> None:
    remains = Remains([("c", "12 python")], ["c"], ["/x/c/root"], ["/sys/c"], ["/data/containers/c"])
    assert invariants.left_behind(remains, {"c"}) == []
    assert [violation.invariant for violation in invariants.left_behind(remains, set())] == [6] * 5


def test_a_refusal_that_leaves_something_is_seen() -> None:
    assert invariants.nothing_new({"trials": 3}, {"trials": 3}, ["x"]) == []
    assert [v.invariant for v in invariants.nothing_new({"trials": 3}, {"trials": 4}, ["x"])] == [9]


def test_a_search_that_asked_for_other_trials_is_seen() -> None:
    one, other = {"rate": 0.1}, {"rate": 0.2}
    assert list(invariants.same_trials(1, [one, other], [other, one])) == []
    assert [v.invariant for v in invariants.same_trials(1, [one, other], [one, one])] == [7]
