from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from determined import _info
from stub_master import StubMaster

PROJECT = pathlib.Path(__file__).resolve().parent.parent
ALLOCATION = "1.c0ffee.1"


@pytest.fixture(autouse=True)
def off_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Every test starts off-cluster, whatever machine it runs on, and forgets the task before it."""
    for name in list(os.environ):
        if name.startswith("DET_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(_info, "INFO_DIR", str(tmp_path / "info"))
    monkeypatch.setattr(_info, "_info", _info._UNREAD)


@pytest.fixture
def master() -> Iterator[StubMaster]:
    with StubMaster() as stub:
        yield stub
        # Releases the long poll.
        stub.preempt.set()


def task_env(master_url: str, storage: pathlib.Path, **config: Any) -> dict[str, str]:
    """What a master sets for a trial with one slot."""
    return {
        "DET_MASTER": master_url,
        "DET_CLUSTER_ID": "cluster-1",
        "DET_AGENT_ID": "agent-1",
        "DET_SLOT_IDS": "[0]",
        "DET_TASK_ID": "1.c0ffee",
        "DET_ALLOCATION_ID": ALLOCATION,
        "DET_SESSION_TOKEN": "opaque",
        "DET_TASK_TYPE": "TRIAL",
        "DET_USER": "alice",
        "DET_TRIAL_ID": "2",
        "DET_EXPERIMENT_ID": "1",
        "DET_TRIAL_SEED": "77",
        "DET_TRIAL_RUN_ID": "3",
        "DET_STEPS_COMPLETED": "0",
        "DET_HPARAMS": json.dumps({"lr": 0.1, "layers": {"first": 4}}),
        "DET_EXPERIMENT_CONFIG": json.dumps(
            {
                "checkpoint_storage": {"type": "directory", "container_path": str(storage)},
                "searcher": {"name": "single", "metric": "loss"},
                "data": {"rows": 5},
                **config,
            }
        ),
        "DET_RETRY_CONFIG": json.dumps({"total": 8, "backoff_factor": 0.01, "status_forcelist": [503]}),
    }


@pytest.fixture
def storage(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "storage"


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch, master: StubMaster, storage: pathlib.Path) -> Callable[..., None]:
    """Makes this process a trial of the stub master; keyword arguments go into the configuration."""

    def enter(**config: Any) -> None:
        for name, value in task_env(master.url, storage, **config).items():
            monkeypatch.setenv(name, value)

    return enter
