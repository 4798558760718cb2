"""GPUs that are not well, by a stand-in for the driver's tool: their slots drain, name a reason, and are enabled again."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from configs import experiment
from conftest import flavoured
from harness import Agent, Cluster
from waiting import wait_for

pytestmark = pytest.mark.core

# The tool prints what the test has put beside it: the list of GPUs for those who look for slots, else their state.
TOOL = """#!/bin/sh
directory=$(dirname "$0")
case "$1" in
    --query-gpu=index,*) cat "$directory/gpus" ;;
    --query-gpu=uuid,*) cat "$directory/state" ;;
    -L) ;;
    *) exit 2 ;;
esac
"""
ADMIN = {"DET_USER": "admin", "DET_PASS": ""}


def put_state(tools: pathlib.Path, errors: int) -> None:
    """Two GPUs, the second of which has so many memory errors."""
    rows = ["GPU-e2e-0, 00000000:01:00.0, 35, 2048, 81920, 50, 0, Not Active"]
    rows.append(f"GPU-e2e-1, 00000000:02:00.0, 0, 0, 81920, 40, {errors}, Not Active")
    (tools / "state.new").write_text("\n".join(rows) + "\n")
    (tools / "state.new").rename(tools / "state")


@pytest.fixture
def tools(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A directory with the stand-in, in front of all others."""
    (tmp_path / "nvidia-smi").write_text(TOOL)
    (tmp_path / "nvidia-smi").chmod(0o755)
    names = [f"{n}, Stand-in GPU, GPU-e2e-{n}, 00000000:0{n + 1}:00.0, [N/A]" for n in range(2)]
    (tmp_path / "gpus").write_text("\n".join(names) + "\n")
    put_state(tmp_path, errors=2)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def cluster(tools: pathlib.Path) -> Iterator[Cluster]:
    with flavoured("core", agents=[Agent(detects=True, args=["--slot-type", "cuda"])]) as cluster:
        cluster.expect_alarm("a slot with a fault takes no new work")
        yield cluster


def slots(cluster: Cluster) -> list[Any]:
    return cluster.run_det("slot", "list", "--json").json()


def drained(cluster: Cluster, fault: str) -> Any:
    def there() -> Any:
        return next((row for row in slots(cluster) if fault in row["fault"]), None)

    return wait_for(f'a slot with the fault "{fault}"', there, within=60, seen=cluster.describe)


def test_a_gpu_with_memory_errors_takes_no_new_work_until_it_is_enabled(cluster: Cluster, tools: pathlib.Path) -> None:
    row = drained(cluster, "since the driver was loaded: 2")
    assert (row["slot_id"], row["draining"], row["enabled"]) == ("1", True, False)
    well = slots(cluster)[0]
    assert (well["utilization"], well["memory"], well["fault"]) == ("35%", "2.0GB of 80.0GB", "")
    assert well["enabled"]
    table = cluster.run_det("slot", "list").out
    assert "uncorrectable memory errors (ECC)" in table, table

    both = cluster.submit(experiment("both", "echo done", resources={"slots_per_trial": 2}))
    job = cluster.experiment(both)["jobId"]

    def explained() -> str:
        return cluster.run_det("job", "why", job).out

    why = wait_for("the reason", lambda: explained() if "enable places or slots" in explained() else None, within=30)
    assert "slot 1 of agent agent-1: uncorrectable memory errors" in why, why
    events = cluster.api("GET", "/api/v1/events?subjectKind=agent&subjectId=agent-1", user="admin")["events"]
    draining = [event for event in events if event["kind"] == "draining"]
    assert [event["detail"] for event in draining] == [{"slot": 1}]
    assert "ECC" in draining[0]["reason"] and draining[0]["actor"] == "agent:agent-1"

    cluster.run_det("slot", "enable", "agent-1", "1", env=ADMIN)
    cluster.wait_experiment(both, "COMPLETED")
    assert slots(cluster)[1]["fault"] == "", "it is known"
    put_state(tools, errors=3)
    assert drained(cluster, "since the driver was loaded: 3")["slot_id"] == "1"
