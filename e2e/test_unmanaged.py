"""Experiments that run outside the cluster, with `determined.experimental.core_v2` of the PyPI package, unmodified."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

import harness
from conftest import equipment, flavoured
from harness import Cluster, Part
from waiting import wait_for

pytestmark = pytest.mark.client

SCRIPT = pathlib.Path(__file__).resolve().parent / "trials" / "detached" / "detached.py"
# The client sends a heartbeat when it begins, and then each minute: what is killed is lost soon in these tests.
SILENCE = {"unmanaged_heartbeat_timeout": "3s"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with equipment():
        harness.wheel_det()
        harness.wheel_python()
    with flavoured("core", master_config=SILENCE) as cluster:
        yield cluster


@contextlib.contextmanager
def code(cluster: Cluster, *args: Any) -> Iterator[Part]:
    """The training script, running beside the cluster as a user's."""
    handle, log = tempfile.mkstemp(dir=cluster.root / "work", suffix=".log")
    os.close(handle)
    argv = [str(harness.wheel_python()), str(SCRIPT), "--storage", str(storage(cluster)), *map(str, args)]
    env = cluster.client_environment("wheel-home")
    part = Part("code outside the cluster", argv, env, pathlib.Path(log), cluster.root / "work")
    part.start()
    try:
        yield part
    finally:
        part.kill()


def storage(cluster: Cluster) -> pathlib.Path:
    path = cluster.root / "detached-checkpoints"
    path.mkdir(exist_ok=True)
    return path


def named(*names: str) -> list[str]:
    return [word for option, name in zip(("--experiment", "--trial"), names) for word in (option, name)]


def trains(cluster: Cluster, *args: Any, expect: int = 0) -> str:
    """Runs the script to its end; gives what it printed."""
    with code(cluster, *args) as part:
        exit_code = part.wait(within=60)
        out = part.log.read_text()
        assert exit_code == expect, out
        return out


def trial_of(cluster: Cluster, experiment: str, trial: str) -> Any:
    path = f"/api/v1/trials/by-external-id/{experiment}/{trial}"
    return cluster.api("GET", path)["trial"]


def state_of(cluster: Cluster, trial: dict[str, Any]) -> str:
    return cluster.trial(trial["id"])["state"]


@pytest.fixture(scope="module")
def resumed(cluster: Cluster) -> Any:
    """A trial whose code has run twice."""
    out = trains(cluster, *named("resumed", "one"), "--steps", 2)
    assert "run 1 goes on from step 0" in out
    out = trains(cluster, *named("resumed", "one"), "--steps", 3)
    assert "run 2 goes on from step 2" in out
    return trial_of(cluster, "resumed", "one")


def test_a_second_process_goes_on_where_the_first_ended(cluster: Cluster, resumed: Any) -> None:
    assert state_of(cluster, resumed) == "COMPLETED"
    experiment = cluster.experiment(resumed["experimentId"])
    assert (experiment["state"], experiment["unmanaged"]) == ("COMPLETED", True)
    assert (experiment["externalExperimentId"], experiment["numTrials"]) == ("resumed", 1)
    training = cluster.metrics(resumed["id"], "training")
    assert [report["totalBatches"] for report in training] == [1, 2, 3, 4, 5]
    checkpoints = cluster.checkpoints(resumed["experimentId"])
    assert sorted(c["metadata"]["steps_completed"] for c in checkpoints) == [2, 5]
    assert all((storage(cluster) / c["uuid"] / "step").is_file() for c in checkpoints)
    assert not any(c["allocationId"] for c in checkpoints)


def test_both_clients_show_it(cluster: Cluster, resumed: Any) -> None:
    experiment, trial = resumed["experimentId"], resumed["id"]
    rows = list(csv.DictReader(io.StringIO(cluster.client("e", "list", "--csv").out)))
    [row] = [row for row in rows if row["ID"] == str(experiment)]
    assert (row["Name"], row["State"]) == ("detached", "COMPLETED")
    assert "detached" in cluster.client("e", "describe", experiment).out
    described = cluster.client("trial", "describe", trial).out
    assert "COMPLETED" in described
    logs = cluster.client("trial", "logs", trial).out
    for line in ("run 1 goes on from step 0", "run 2 goes on from step 2", "rank 0: done"):
        assert line in logs
    assert logs.count("[rank=0]") >= 6, logs
    assert "run 2 goes on" in cluster.client("e", "logs", experiment).out
    assert "unmanaged" not in cluster.client("job", "list").out

    assert str(experiment) in cluster.run_det("experiment", "list").out
    ours = cluster.run_det("experiment", "describe", experiment).out
    assert "detached" in ours and "COMPLETED" in ours
    assert "COMPLETED" in cluster.run_det("trial", "describe", trial).out
    assert "run 2 goes on from step 2" in cluster.run_det("trial", "logs", trial).out


def test_code_that_fails_is_reported_as_failed(cluster: Cluster) -> None:
    trains(cluster, *named("failing", "one"), "--fail", expect=3)
    trial = trial_of(cluster, "failing", "one")
    assert state_of(cluster, trial) == "ERROR"
    assert cluster.experiment(trial["experimentId"])["state"] == "ERROR"


def test_trials_of_a_search_share_an_experiment(cluster: Cluster) -> None:
    for _ in range(2):
        trains(cluster, "--experiment", "search")
    trains(cluster)
    [search] = [e for e in cluster.experiments() if e["externalExperimentId"] == "search"]
    assert (search["state"], search["numTrials"]) == ("COMPLETED", 2)
    assert [trial["state"].removeprefix("STATE_") for trial in cluster.trials(search["id"])] == ["COMPLETED"] * 2


def test_a_killed_process_is_lost_and_another_one_goes_on(cluster: Cluster) -> None:
    with code(cluster, *named("killed", "one"), "--hold") as part:
        wait_for("the code to hold", lambda: "holding" in part.log.read_text(), within=30, seen=part.log.read_text)
    trial = trial_of(cluster, "killed", "one")
    wait_for("its loss", lambda: state_of(cluster, trial) == "ERROR", within=30)
    lines = cluster.log_lines(trial["id"])
    assert any("no heartbeat" in line for line in lines), lines
    cluster.restart("master")
    cluster.wait_for_master()
    assert state_of(cluster, trial) == "ERROR"
    out = trains(cluster, *named("killed", "one"))
    assert "run 2 goes on from step 2" in out
    assert state_of(cluster, trial) == "COMPLETED"
    assert cluster.experiment(trial["experimentId"])["state"] == "COMPLETED"


def test_code_that_lives_goes_on_through_a_restart_of_the_master(cluster: Cluster) -> None:
    go_on = cluster.root / "work" / "go-on"
    with code(cluster, *named("lives", "one"), "--go-on", go_on) as part:
        wait_for("the code to wait", lambda: "waiting" in part.log.read_text(), within=30, seen=part.log.read_text)
        cluster.expect_alarm("det_agent::connection: (lost|no connection to) the master")
        cluster.restart("master")
        cluster.wait_for_master()
        go_on.touch()
        assert part.wait(within=60) == 0, part.log.read_text()
    trial = trial_of(cluster, "lives", "one")
    assert state_of(cluster, trial) == "COMPLETED"
    assert [report["totalBatches"] for report in cluster.metrics(trial["id"], "training")] == [1, 2, 3]
    logs = cluster.client("trial", "logs", trial["id"]).out
    for line in ("goes on from step 0", "waiting", "rank 0: done"):
        assert logs.count(line) == 1, logs


def test_each_process_of_several_has_its_log(cluster: Cluster) -> None:
    def rank(number: int) -> contextlib.AbstractContextManager[Part]:
        return code(cluster, *named("several", "one"), "--size", 2, "--rank", number)

    with rank(0) as chief, rank(1) as worker:
        for part in (chief, worker):
            assert part.wait(within=60) == 0, part.log.read_text()
    trial = trial_of(cluster, "several", "one")
    assert state_of(cluster, trial) == "COMPLETED"
    logs = cluster.client("trial", "logs", trial["id"]).out
    for number in (0, 1):
        assert f"[rank={number}] || rank {number}: run 1 goes on from step 0" in logs
        assert f"[rank={number}] || rank {number}: done" in logs
    only = cluster.client("trial", "logs", "--rank-id", 1, trial["id"]).out
    assert "rank 1: done" in only and "rank 0" not in only


def test_what_the_master_does_not_run_it_cannot_stop(cluster: Cluster, resumed: Any) -> None:
    cluster.expect_alarm(r"\bWARN\b")
    experiment = resumed["experimentId"]
    for verb in ("pause", "activate", "kill"):
        for refused in (
            cluster.client("e", verb, experiment, check=False),
            cluster.run_det("experiment", verb, experiment, check=False),
        ):
            # Ours sees first that it has ended, and then has nothing to kill.
            assert re.search("unmanaged|nothing to kill", refused.out + refused.err), str(refused)
    cluster.client("e", "archive", experiment)
    cluster.client("e", "unarchive", experiment)
    cluster.client("e", "delete", "--yes", experiment)

    def gone() -> bool:
        return all(e["id"] != experiment for e in cluster.experiments())

    wait_for("its deletion", gone, within=30)
    assert any(storage(cluster).iterdir()), "files outside the cluster are left alone"
