"""The digits example as a user runs it: a process of its own, off-cluster and as a trial."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import yaml

from conftest import PROJECT, task_env
from stub_master import StubMaster

DIGITS = PROJECT.parent / "examples" / "digits"


def run(tmp_path: pathlib.Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:determined", "train.py"],
        cwd=DIGITS,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PROJECT / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            **env,
        },
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def trial_env(master: StubMaster, storage: pathlib.Path, **hparams: Any) -> dict[str, str]:
    return {**task_env(master.url, storage), "DET_HPARAMS": json.dumps(hparams)}


def epochs(master: StubMaster, group: str) -> list[int]:
    points = [p for p in master.points.values() if p["group"] == group]
    return [p["metrics"]["metrics"]["avgMetrics"]["epochs"] for p in points]


def test_off_cluster_it_learns_and_keeps_checkpoints(tmp_path: pathlib.Path) -> None:
    output = run(tmp_path, {})
    last = output.strip().splitlines()[-1]
    assert "finished" in last
    accuracy = float(
        last.partition("'accuracy': ")[2].partition(",")[0].removeprefix("np.float64(").rstrip(")")
    )
    assert accuracy > 0.9
    assert len(list((tmp_path / ".local/share/determined").glob("*/model.pkl"))) == 4


def test_as_a_trial_it_reports_each_epoch_with_the_time_metric(
    tmp_path: pathlib.Path, master: StubMaster, storage: pathlib.Path
) -> None:
    run(tmp_path, trial_env(master, storage, epochs=3, hidden_units=8))
    assert epochs(master, "training") == epochs(master, "validation") == [1, 2, 3]
    last = list(master.points.values())[-1]["metrics"]["metrics"]["avgMetrics"]
    assert set(last) == {"accuracy", "validation_error", "validation_loss", "epochs"}
    (checkpoint,) = master.sent("POST", "/api/v1/checkpoints")
    assert checkpoint.body["metadata"] == {"steps_completed": 3}


def test_a_preempted_trial_saves_acknowledges_and_later_goes_on(
    tmp_path: pathlib.Path, master: StubMaster, storage: pathlib.Path
) -> None:
    master.preempt.set()
    env = trial_env(master, storage, epochs=3, hidden_units=8)
    run(tmp_path, env)
    assert epochs(master, "validation") == [1]
    assert len(master.sent("POST", ".*/ack_preemption")) == 1
    (checkpoint,) = master.sent("POST", "/api/v1/checkpoints")
    master.preempt.clear()
    run(tmp_path, {**env, "DET_LATEST_CHECKPOINT": checkpoint.body["uuid"]})
    assert epochs(master, "validation") == [1, 2, 3]


def test_impossible_hyperparameters_are_reported_as_such(
    tmp_path: pathlib.Path, master: StubMaster, storage: pathlib.Path
) -> None:
    run(tmp_path, trial_env(master, storage, hidden_units=0))
    (early_exit,) = master.sent("POST", "/api/v1/trials/2/early_exit")
    assert early_exit.body == {"reason": "EXITED_REASON_INVALID_HP"}


def configurations() -> list[Any]:
    return [pytest.param(path, id=path.stem) for path in sorted(DIGITS.glob("*.yaml"))]


@pytest.mark.parametrize("path", configurations())
def test_configurations_search_what_the_code_reads_and_reports(path: pathlib.Path) -> None:
    config = yaml.safe_load(path.read_text())
    assert config["entrypoint"] == "python3 train.py"
    assert set(config["hyperparameters"]) == {"epochs", "learning_rate", "hidden_units", "l2", "batch_size"}
    assert config["searcher"]["metric"] == "validation_error"
    assert config["searcher"].get("time_metric", "epochs") == "epochs"
    assert (
        config["searcher"].get("max_time", config["hyperparameters"]["epochs"])
        == config["hyperparameters"]["epochs"]
    )
    # The cluster's default is used.
    assert "checkpoint_storage" not in config
