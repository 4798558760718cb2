"""Services that opted in give their slots to more important work, and programs save before they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conftest import flavoured, lane
from harness import Agent, Cluster, share
from waiting import wait_for

PREEMPTION = {"resource_manager": {"type": "agent", "scheduler": {"type": "priority", "preemption": True}}}
# Goes on until it is asked to save, and counts how often it was started.
SAVES = """
import os, pathlib, time
from determined import core

kept = pathlib.Path(os.environ["E2E_DIR"], "kept")
with core.init() as context:
    begun = int(kept.read_text()) if kept.exists() else 0
    print(f"started with {begun}", flush=True)
    while not context.preempt.should_preempt():
        time.sleep(0.05)
    kept.write_text(str(begun + 1))
    print(f"saved {begun + 1}", flush=True)
"""


@pytest.fixture(scope="module", params=[lane("core"), lane("docker")])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One agent with one slot, in a pool with preemption."""
    with flavoured(request.param, agents=[Agent("agent-1", 1)], master_config=PREEMPTION) as cluster:
        yield cluster


def running(cluster: Cluster, task: str, attempt: int) -> Any:
    """The attempt of a task of this number, once its service can be used."""

    def found() -> Any:
        newest = cluster.api("GET", f"/api/v1/tasks/{task}")["task"]["allocations"][0]
        return newest if newest["isReady"] and newest["allocationId"].endswith(f".{attempt}") else None

    return wait_for(f"attempt {attempt} of task {task}", found, within=60, seen=cluster.describe)


def lines(cluster: Cluster, task: str) -> list[str]:
    return [record["log"].rstrip("\n") for record in cluster.stream(f"/api/v1/tasks/{task}/logs", user="admin")]


def test_a_shell_that_opted_in_makes_way_and_comes_back(cluster: Cluster) -> None:
    [shell] = cluster.run_det("shell", "start", "-d", "--config", "preemptible=true").out.split()
    running(cluster, shell, 1)
    # It has the only slot: the command runs only if the shell gives it back.
    assert "made way" in cluster.run_det("cmd", "run", "--config", "resources.priority=1", "echo made way").out
    running(cluster, shell, 2)
    printed = lines(cluster, shell)
    assert any(line.startswith("Asked to end, to be started again later: ") for line in printed), printed
    cluster.run_det("shell", "pause", shell)
    wait_for("it to rest", lambda: "PAUSED" in cluster.run_det("shell", "list").out, within=30, seen=cluster.describe)
    why = cluster.run_det("job", "why", shell).out
    assert f"`det task unpause {shell}`" in why, why
    cluster.run_det("shell", "unpause", shell)
    running(cluster, shell, 3)
    cluster.run_det("shell", "kill", shell)


def test_a_shell_that_did_not_opt_in_keeps_its_slots(cluster: Cluster) -> None:
    [shell] = cluster.run_det("shell", "start", "-d").out.split()
    first = running(cluster, shell, 1)["allocationId"]
    refused = cluster.run_det("shell", "pause", shell, check=False)
    assert refused.code == 1 and "preemptible: true" in refused.err, refused
    # What is more important waits beside it, also when it is less important than before.
    [urgent] = cluster.run_det("cmd", "run", "-d", "--config", "resources.priority=1", "echo at last").out.split()
    cluster.run_det("shell", "set", "priority", shell, 90)
    job = cluster.api("GET", f"/api/v1/shells/{shell}")["shell"]["jobId"]

    def priority() -> int:
        entries = cluster.api("GET", "/api/v1/job-queues-v2?resourcePool=default")["jobs"]
        details = [entry.get("full") or entry for entry in entries]
        return next(entry["priority"] for entry in details if entry["jobId"] == job)

    wait_for("its priority", lambda: priority() == 90, within=30, seen=cluster.describe)
    wait_for(
        "the reason why the command waits",
        lambda: "slot" in cluster.run_det("job", "why", urgent).out,
        within=30,
        seen=cluster.describe,
    )
    [attempt] = cluster.task(shell)["allocations"]
    assert attempt["allocationId"] == first and attempt["isReady"], attempt
    assert cluster.api("GET", f"/api/v1/commands/{urgent}")["command"]["state"] == "STATE_QUEUED"
    cluster.run_det("shell", "kill", shell)
    cluster.wait_task_printed(urgent, "at last", within=60)


def test_a_generic_task_saves_when_it_is_paused_and_when_it_is_preempted(cluster: Cluster) -> None:
    shared = cluster.shared_dir()
    config = {"entrypoint": ["python3", "-c", SAVES], "preemption_timeout": 60, **share(shared)}
    task = cluster.run_det("task", "create", cluster.write_config(config)).out.split()[-1]
    cluster.wait_task_printed(task, "started with 0", within=60)
    running(cluster, task, 1)
    cluster.run_det("task", "pause", task)
    cluster.wait_task(task, "PAUSED", within=60)
    assert (shared / "kept").read_text() == "1"
    cluster.run_det("task", "unpause", task)
    cluster.wait_task_printed(task, "started with 1", within=60)
    running(cluster, task, 2)
    cluster.run_det("cmd", "run", "--config", "resources.priority=1", "true")
    cluster.wait_task_printed(task, "started with 2", within=60)
    assert any(line.startswith("Asked to save and exit within 60 s: ") for line in lines(cluster, task))
    cluster.run_det("task", "kill", task)
