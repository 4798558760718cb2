"""Checkpoints in storage that the master does not touch are deleted by tasks, which need no image and no Python; those in object
stores by the package of the experiment's own environment."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import harness
from configs import experiment
from conftest import equipment, flavoured
from harness import Cluster
from waiting import wait_for

COLLECTED = {2: "DELETED", 4: "DELETED", 6: "COMPLETED"}
TRAINED = {"steps": 6, "checkpoint_every": 2}


@pytest.fixture
def elsewhere(cluster: Cluster) -> pathlib.Path:
    """A directory that tasks may write to and that no administrator has allowed the master to touch."""
    path = cluster.shared_dir()
    (path / "of-others").write_text("stays")
    return path


def stored(path: pathlib.Path, **more: Any) -> dict[str, Any]:
    return {"checkpoint_storage": {"type": "shared_fs", "host_path": str(path), **more}}


def states(cluster: Cluster, id: int) -> dict[int, str]:
    return {c["metadata"]["steps_completed"]: c["state"] for c in cluster.checkpoints(id)}


def removals(cluster: Cluster) -> list[Any]:
    tasks = cluster.api("GET", "/api/v1/tasks")["allocationIdToSummary"]
    return [task for task in tasks.values() if "CHECKPOINT_GC" in str(task)]


def trained(cluster: Cluster, name: str, **more: Any) -> int:
    return cluster.run(experiment(name, hyperparameters=TRAINED, **more), "train")["experimentId"]


def gone(cluster: Cluster, id: int) -> bool:
    return all(row["id"] != id for row in cluster.experiments())


def test_the_policy_is_applied_and_the_experiment_deleted(cluster: Cluster, elsewhere: pathlib.Path) -> None:
    id = trained(cluster, "kept elsewhere", **stored(elsewhere, storage_path="below"))
    wait_for("old checkpoints to be deleted", lambda: states(cluster, id) == COLLECTED, within=60, seen=cluster.describe)
    left = {c["uuid"] for c in cluster.checkpoints(id) if c["state"] == "COMPLETED"}
    directory = elsewhere / "below"
    assert {path.name for path in directory.iterdir() if path.name in known(cluster, id)} == left
    cluster.run_det("experiment", "delete", id, "--yes")
    wait_for("the experiment to be deleted", lambda: gone(cluster, id), within=60, seen=cluster.describe)
    assert not any(path.name in left for path in directory.iterdir())
    assert (elsewhere / "of-others").exists()


def known(cluster: Cluster, id: int) -> set[str]:
    return {c["uuid"] for c in cluster.checkpoints(id)}


def test_single_files_go_on_request(cluster: Cluster, elsewhere: pathlib.Path) -> None:
    id = trained(cluster, "files", **stored(elsewhere, save_trial_latest=3))
    [newest] = [c["uuid"] for c in cluster.checkpoints(id) if c["metadata"]["steps_completed"] == 6]
    body = {"checkpointUuids": [newest], "checkpointGlobs": ["state.json"]}
    cluster.api("POST", "/api/v1/checkpoints/rm", body)
    wait_for("a file to go", lambda: states(cluster, id)[6] == "PARTIALLY_DELETED", within=60, seen=cluster.describe)
    assert not (elsewhere / newest / "state.json").exists()
    assert (elsewhere / newest / "metadata.json").is_file()


def test_a_deletion_that_fails_has_its_reason_recorded_and_can_be_repeated(
    cluster: Cluster, elsewhere: pathlib.Path
) -> None:
    id = trained(cluster, "moved away", **stored(elsewhere, save_trial_latest=3))
    wait_for("the policy to be applied", lambda: len(states(cluster, id)) == 3, within=60, seen=cluster.describe)
    away = elsewhere.with_name(elsewhere.name + "-away")
    elsewhere.rename(away)
    cluster.api("PATCH", f"/api/v1/experiments/{id}", {"checkpointStorage": {"saveTrialLatest": 1}})
    wait_for(
        "the policy to fail", lambda: cluster.experiment(id)["checkpointFailure"], within=60, seen=cluster.describe
    )
    described = cluster.run_det("experiment", "describe", id)
    assert f"checkpoints of experiment {id}: the checkpoint policy could not be applied" in described.err, described
    assert str(elsewhere) in described.err, described
    cluster.run_det("experiment", "delete", id, "--yes")
    failed = wait_for(
        "the deletion to fail",
        lambda: cluster.experiment(id) if cluster.experiment(id)["state"] == "DELETE_FAILED" else None,
        within=60,
        seen=cluster.describe,
    )
    assert failed
    assert set(states(cluster, id).values()) == {"COMPLETED"}, "nothing counts as deleted"
    described = cluster.run_det("experiment", "describe", id)
    assert str(elsewhere) in described.err, described
    away.rename(elsewhere)
    cluster.run_det("experiment", "delete", id, "--yes")
    wait_for("the experiment to be deleted", lambda: gone(cluster, id), within=60, seen=cluster.describe)


def test_a_removal_outlives_the_master(cluster: Cluster, elsewhere: pathlib.Path) -> None:
    id = trained(cluster, "interrupted", **stored(elsewhere))
    cluster.expect_alarm("lost the master|no connection to the master")
    cluster.restart("master", signal.SIGKILL)
    wait_for("old checkpoints to be deleted", lambda: states(cluster, id) == COLLECTED, within=60, seen=cluster.describe)


@contextlib.contextmanager
def object_store() -> Iterator[str]:
    """A server that speaks S3, with a bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:

        def made() -> bool:
            try:
                with urllib.request.urlopen(urllib.request.Request(f"{address}/models", method="PUT")):
                    return True
            except OSError:
                return False

        wait_for("the object store", made, within=60)
        yield address
    finally:
        server.kill()
        server.wait()


def objects(address: str) -> str:
    with urllib.request.urlopen(f"{address}/models?list-type=2") as answer:
        return answer.read().decode()


@pytest.mark.client
def test_checkpoints_in_an_object_store_are_deleted_by_the_package() -> None:
    with equipment():
        harness.wheel_python()
    with object_store() as address, flavoured("core", python=harness.wheel_python()) as cluster:
        storage = {
            "type": "s3",
            "bucket": "models",
            "endpoint_url": address,
            "access_key": "testing",
            "secret_key": "testing",
        }
        variables = ["AWS_DEFAULT_REGION=us-east-1"]
        config = experiment(
            "in a bucket",
            hyperparameters=TRAINED,
            checkpoint_storage=storage,
            environment={"environment_variables": variables},
        )
        id = cluster.run(config, "train", within=120)["experimentId"]
        wait_for("old ones to go", lambda: states(cluster, id) == COLLECTED, within=120, seen=cluster.describe)
        by_state = {c["state"]: c["uuid"] for c in cluster.checkpoints(id)}
        assert by_state["COMPLETED"] in objects(address) and by_state["DELETED"] not in objects(address)
        cluster.run_det("experiment", "delete", id, "--yes")
        wait_for("the experiment to be deleted", lambda: gone(cluster, id), within=120, seen=cluster.describe)
        assert by_state["COMPLETED"] not in objects(address)
