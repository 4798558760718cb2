from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

import determined as det
from conftest import task_env
from determined import errors
from determined._info import read_cluster_info
from determined._master_url import canonicalize_master_url

CLUSTER = {
    "master_url": "http://10.0.0.5:8080",
    "cluster_id": "c",
    "agent_id": "a",
    "slot_ids": [2],
    "task_id": "1.x",
    "allocation_id": "1.x.1",
    "session_token": "t",
    "task_type": "TRIAL",
    "master_cert_name": None,
    "master_cert_file": None,
    "latest_checkpoint": "uuid-1",
}
TRIAL = {
    "trial_id": 4,
    "experiment_id": 1,
    "trial_seed": 9,
    "hparams": {"lr": 1},
    "config": {"data": {"k": "v"}},
    "steps_completed": 12,
    "trial_run_id": 5,
    "debug": False,
    "inter_node_network_interface": None,
}
RENDEZVOUS = {
    "container_addrs": ["10.0.0.1", "10.0.0.2"],
    "container_rank": 1,
    "container_slot_counts": [4, 4],
}


def write(directory: pathlib.Path, **files: Any) -> str:
    directory.mkdir()
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return str(directory)


def test_off_cluster_there_is_none() -> None:
    assert det.get_cluster_info() is None


def test_a_master_address_alone_is_a_person_and_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_MASTER", "http://localhost:8080")
    assert det.get_cluster_info() is None


def test_files_describe_the_task(tmp_path: pathlib.Path) -> None:
    directory = write(
        tmp_path / "i",
        cluster=CLUSTER,
        trial=TRIAL,
        rendezvous=RENDEZVOUS,
        resources={"gpu_uuids": ["GPU-1"]},
    )
    info = read_cluster_info(directory, {})
    assert info is not None
    assert (info.master_url, info.slot_ids, info.task_type) == ("http://10.0.0.5:8080", [2], "TRIAL")
    assert (info.trial.trial_id, info.trial.hparams, info.trial.trial_seed) == (4, {"lr": 1}, 9)
    assert (info.trial._trial_run_id, info.trial._steps_completed) == (5, 12)
    assert (info.container_addrs, info.container_rank) == (["10.0.0.1", "10.0.0.2"], 1)
    assert info.container_slot_counts == [4, 4]
    assert info.gpu_uuids == ["GPU-1"]
    assert info.latest_checkpoint == "uuid-1"
    assert info.user_data == {"k": "v"}


def test_files_win_over_the_environment(tmp_path: pathlib.Path) -> None:
    directory = write(tmp_path / "i", cluster=CLUSTER, trial=TRIAL)
    info = read_cluster_info(directory, task_env("http://other:1", tmp_path))
    assert info is not None
    assert (info.master_url, info.trial.trial_id) == ("http://10.0.0.5:8080", 4)


def test_environment_serves_when_there_are_no_files(tmp_path: pathlib.Path) -> None:
    info = read_cluster_info(str(tmp_path), task_env("http://other:1", tmp_path))
    assert info is not None
    assert info.trial.hparams == {"lr": 0.1, "layers": {"first": 4}}
    assert info.latest_checkpoint is None
    assert (info.container_addrs, info.container_rank, info.container_slot_counts) == (["127.0.0.1"], 0, [1])


def test_tasks_that_are_no_trials_have_no_trial(tmp_path: pathlib.Path) -> None:
    directory = write(tmp_path / "i", cluster={**CLUSTER, "task_type": "NOTEBOOK"})
    info = read_cluster_info(directory, {})
    assert info is not None
    assert (info.latest_checkpoint, info.user_data, info.container_rank) == (None, {}, 0)
    with pytest.raises(RuntimeError, match=r'"NOTEBOOK" and has no \.trial'):
        _ = info.trial


def test_keys_of_a_newer_supervisor_are_ignored(tmp_path: pathlib.Path) -> None:
    directory = write(tmp_path / "i", cluster={**CLUSTER, "future": 1}, trial=TRIAL)
    assert read_cluster_info(directory, {}) is not None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", r"cannot read .*cluster\.json", id="not JSON"),
        pytest.param("[]", "must hold a JSON object, not list", id="not an object"),
        pytest.param('{"master_url": "http://x"}', "incomplete: .*cluster_id", id="keys missing"),
    ],
)
def test_broken_files_are_named(tmp_path: pathlib.Path, content: str, message: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(errors.InvalidTaskInfo, match=message):
        read_cluster_info(str(tmp_path), {})


@pytest.mark.parametrize("variable", ["DET_TRIAL_ID", "DET_SLOT_IDS", "DET_HPARAMS"])
def test_broken_variables_are_named(tmp_path: pathlib.Path, variable: str) -> None:
    env = {**task_env("http://m:1", tmp_path), variable: "?"}
    with pytest.raises(errors.InvalidTaskInfo, match=variable):
        read_cluster_info(str(tmp_path), env)


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("localhost", "http://localhost:8080"),
        ("http://m", "http://m:80"),
        ("https://m", "https://m:443"),
        ("https://m:8443/prefix/", "https://m:8443/prefix"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_master_addresses_have_one_spelling(given: str, canonical: str) -> None:
    assert canonicalize_master_url(given) == canonical
    assert canonicalize_master_url(canonical) == canonical


@pytest.mark.parametrize("given", ["http://", "http://u:secret@m", "http://m?q=1", "http://m#f"])
def test_master_addresses_are_only_addresses(given: str) -> None:
    with pytest.raises(ValueError, match="address") as caught:
        canonicalize_master_url(given)
    assert "secret" not in str(caught.value)
