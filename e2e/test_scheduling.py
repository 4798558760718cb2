"""Who runs where and when: priorities, caps, gangs, agents in and out of service, and the reasons of those who wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from configs import experiment
from conftest import flavoured
from harness import Agent, Cluster, share
from waiting import wait_for

pytestmark = pytest.mark.core

PREEMPTION: dict[str, Any] = {
    "resource_manager": {"type": "agent", "scheduler": {"type": "priority", "preemption": True}}
}


@pytest.fixture(scope="module")
def narrow() -> Iterator[Cluster]:
    """One slot, and a scheduler that preempts."""
    with flavoured("core", agents=[Agent(slots=1)], master_config=PREEMPTION) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def paired() -> Iterator[Cluster]:
    """An agent with two slots, with preemption."""
    with flavoured("core", agents=[Agent(slots=2)], master_config=PREEMPTION) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def wide() -> Iterator[Cluster]:
    """Two agents of one slot each."""
    with flavoured("core", agents=[Agent("agent-1", 1), Agent("agent-2", 1)]) as cluster:
        yield cluster


def holding(cluster: Cluster, name: str, **more: Any) -> int:
    """An experiment that runs until its file `go` exists, or it is stopped."""
    shared = cluster.shared_dir()
    hparams = {"steps": 2, "hold_at": 1, "checkpoint_every": 2}
    return cluster.submit(experiment(name, hyperparameters=hparams, **share(shared), **more), "train")


def kill(cluster: Cluster, *experiments: int) -> None:
    for experiment_id in experiments:
        cluster.run_det("experiment", "kill", experiment_id, check=False)
    for experiment_id in experiments:
        cluster.wait_experiment(experiment_id, "CANCELED", "COMPLETED")


def reason(cluster: Cluster, experiment_id: int) -> str:
    """Why the trial of an experiment waits."""

    def explained() -> str:
        trial = cluster.trials(experiment_id)[0]
        return (trial.get("waitReason") or {}).get("message", "")

    return wait_for(f"the reason why experiment {experiment_id} waits", explained, within=10, seen=cluster.describe)


def test_the_more_important_one_takes_the_slot(narrow: Cluster) -> None:
    modest = holding(narrow, "modest", resources={"priority": 60})
    trial = narrow.only_trial(modest)["id"]
    narrow.wait_log(trial, "holding")
    urgent = narrow.submit(experiment("urgent", "echo urgent work", resources={"priority": 10}))
    narrow.wait_experiment(urgent, "COMPLETED")
    narrow.wait_log(trial, "asked to stop after step 1")
    narrow.wait_log(trial, "run 2 starts after step 1")
    assert narrow.trial(trial)["restarts"] == 0, "giving slots back is no failure"
    kill(narrow, modest)


def test_a_priority_is_raised_while_waiting(narrow: Cluster) -> None:
    first = holding(narrow, "first", resources={"priority": 50})
    narrow.wait_log(narrow.only_trial(first)["id"], "holding")
    second = narrow.submit(experiment("second", "true", resources={"priority": 50}))
    assert "slot" in reason(narrow, second)
    narrow.run_det("experiment", "set", "priority", second, 1)
    narrow.wait_experiment(second, "COMPLETED")
    kill(narrow, first)


def test_what_waits_has_its_reason(narrow: Cluster) -> None:
    first = holding(narrow, "in-the-way")
    narrow.wait_log(narrow.only_trial(first)["id"], "holding")
    second = narrow.submit(experiment("waits", "true"))
    text = reason(narrow, second)
    narrow.wait_experiment(second, "QUEUED")
    assert "needs 1 slot" in text
    for command in (["experiment", "describe", second], ["task", "list"], ["job", "list"]):
        result = narrow.run_det(*command)
        assert "needs 1 slot" in " ".join((result.out + result.err).replace("|", " ").split()), str(result)
    kill(narrow, first)
    narrow.wait_experiment(second, "COMPLETED")
    assert not narrow.trials(second)[0].get("waitReason")


def test_a_wait_for_work_that_stops_has_a_bound(narrow: Cluster) -> None:
    deaf = narrow.submit(experiment("deaf", "echo I ignore signals; sleep 600", resources={"priority": 60}))
    # What has not begun yet is not asked to save: it gives its slot back at once.
    narrow.wait_log(narrow.only_trial(deaf)["id"], "I ignore signals")
    better = narrow.submit(experiment("better", "sleep 600", resources={"priority": 5}))
    # It asked before, and is less important: its explanation rests on the priorities of all.
    worse = narrow.submit(experiment("worse", "sleep 600", resources={"priority": 70}))
    holder = f"trial {narrow.trials(deaf)[0]['id']} of experiment {deaf}"

    def bound() -> str:
        explained = narrow.run_det("job", "why", better).out
        return explained if "at the latest" in explained else ""

    explained = wait_for("a bound", bound, within=10, seen=narrow.describe)
    assert f"it starts as soon as {holder} has saved and stopped" in explained
    behind = narrow.run_det("job", "why", worse).out
    assert "no estimate" in behind and "may start" not in behind
    # What does not run is in no other's way.
    [estimate] = [line for line in behind.splitlines() if "no estimate" in line]
    assert f"experiment {better}" not in estimate
    kill(narrow, worse, better, deaf)


def test_a_gap_is_filled_and_the_queue_shows_it(paired: Cluster) -> None:
    first = holding(paired, "first", resources={"slots_per_trial": 1, "priority": 10})
    paired.wait_experiment(first, "RUNNING")
    wider = paired.submit(experiment("wider", "true", resources={"slots_per_trial": 2, "priority": 10}))
    assert "2 slots" in reason(paired, wider)
    filler = holding(paired, "filler", resources={"slots_per_trial": 1, "priority": 50})
    paired.wait_experiment(filler, "RUNNING")
    jobs = {job["name"]: job["summary"]["state"] for job in paired.api("GET", "/api/v1/job-queues")["jobs"]}
    assert jobs == {
        "first": "STATE_SCHEDULED",
        "wider": "STATE_QUEUED",
        "filler": "STATE_SCHEDULED_BACKFILLED",
    }
    assert "SCHEDULED_BACKFILLED" in paired.run_det("job", "list").out
    # The gap closes for the more important one.
    kill(paired, first)
    paired.wait_experiment(wider, "COMPLETED")
    kill(paired, filler)


def test_a_cap_holds_a_search_back(wide: Cluster) -> None:
    hparams = {"steps": 2, "hold_at": 1, "rate": {"type": "categorical", "vals": [1.0, 2.0]}}
    config = experiment(
        "capped",
        searcher={"name": "grid"},
        hyperparameters=hparams,
        resources={"max_slots": 1},
        **share(wide.shared_dir()),
    )
    capped = wide.submit(config, "train")
    waits = wait_for(
        "a trial over the cap",
        lambda: [t for t in wide.trials(capped) if "max_slots" in ((t.get("waitReason") or {}).get("message") or "")],
        within=20,
        seen=wide.describe,
    )
    assert len(waits) == 1
    # A slot is free: another job takes it, and a higher cap lets the second trial go.
    assert wide.run(experiment("beside", "true"))["state"] == "COMPLETED"
    wide.run_det("experiment", "set", "max-slots", capped, 2)
    wait_for(
        "both trials to run",
        lambda: all(t["state"] == "RUNNING" for t in wide.trials(capped)),
        within=20,
        seen=wide.describe,
    )
    kill(wide, capped)


def test_a_gang_over_two_agents_meets(wide: Cluster) -> None:
    trial = wide.run(experiment("gang", "python3 gang.py", resources={"slots_per_trial": 2}), "gang")
    lines = wide.printed(trial["id"])
    for expected in ("the chief received: hello from rank 1", "the member received: welcome"):
        assert expected in lines, "\n".join(lines)
    assert sorted(line for line in lines if line.startswith("rank ")) == [
        "rank 0 of 2 with slots [1, 1] on " + next(line.split()[-1] for line in lines if line.startswith("rank 0")),
        "rank 1 of 2 with slots [1, 1] on " + next(line.split()[-1] for line in lines if line.startswith("rank 1")),
    ]
    agents = {record["agentId"] for record in wide.logs(trial["id"], "sources=task")}
    assert agents == {"agent-1", "agent-2"}
    containers = {record["containerId"] for record in wide.logs(trial["id"], "sources=task")}
    assert len(containers) == 2


def test_one_failed_member_ends_the_gang(wide: Cluster) -> None:
    entrypoint = 'if [ "$DET_AGENT_ID" = agent-2 ]; then exit 5; else sleep 600; fi'
    failed = wide.submit(experiment("gang-fails", entrypoint, resources={"slots_per_trial": 2}))
    wide.wait_experiment(failed, "ERROR", within=60)
    trial = wide.only_trial(failed)["id"]
    assert any("5" in line for line in wide.log_lines(trial) if "exit" in line), wide.describe()
    wait_for("both members to be gone", lambda: not wide.task_processes(trial), within=15)


def test_a_disabled_agent_takes_nothing(wide: Cluster) -> None:
    wide.api("POST", "/api/v1/agents/agent-1/disable", {}, user="admin")
    trial = wide.run(experiment("elsewhere", "echo on $DET_AGENT_ID"))
    assert wide.printed(trial["id"]) == ["on agent-2"]
    gang = wide.submit(experiment("too-few", "true", resources={"slots_per_trial": 2}))
    assert "disabled" in reason(wide, gang)
    wide.api("POST", "/api/v1/agents/agent-1/enable", user="admin")
    wide.wait_experiment(gang, "COMPLETED")


def test_a_draining_agent_lets_its_tasks_finish(wide: Cluster) -> None:
    shared = wide.shared_dir()
    config = experiment("drained", hyperparameters={"steps": 2, "hold_at": 1}, **share(shared))
    drained = wide.submit(config, "train")
    trial = wide.only_trial(drained)["id"]
    wide.wait_log(trial, "holding")
    agent = next(record["agentId"] for record in wide.logs(trial, "sources=task"))
    result = wide.run_det("agent", "disable", "--drain", agent, env={"DET_USER": "admin", "DET_PASS": ""})
    assert wide.trial(trial)["taskId"] in result.out
    elsewhere = wide.run(experiment("not-there", "echo on $DET_AGENT_ID"))
    assert wide.printed(elsewhere["id"]) != [f"on {agent}"]
    (shared / "go").touch()
    wide.wait_experiment(drained, "COMPLETED")
    assert wide.trial(trial)["restarts"] == 0
    wide.run_det("agent", "enable", agent, env={"DET_USER": "admin", "DET_PASS": ""})


def test_disabling_an_agent_stops_its_tasks_without_charge(wide: Cluster) -> None:
    moved = holding(wide, "moved", max_restarts=0)
    trial = wide.only_trial(moved)["id"]
    wide.wait_log(trial, "holding")
    agent = next(record["agentId"] for record in wide.logs(trial, "sources=task"))
    wide.run_det("agent", "disable", agent, env={"DET_USER": "admin", "DET_PASS": ""})
    wait_for(
        "the trial on the other agent",
        lambda: len({r["agentId"] for r in wide.logs(trial, "sources=task")}) == 2,
        within=40,
        seen=wide.describe,
    )
    assert wide.trial(trial)["restarts"] == 0
    wide.run_det("agent", "enable", agent, env={"DET_USER": "admin", "DET_PASS": ""})
    kill(wide, moved)
