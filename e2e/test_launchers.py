"""Launchers of our package that start processes over SSH: from the chief's container in those of the others."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from configs import experiment
from conftest import flavoured
from harness import Agent, Cluster
from waiting import wait_for

pytestmark = [
    pytest.mark.core,
    pytest.mark.skipif(
        not pathlib.Path("/usr/sbin/sshd").exists() or shutil.which("ssh-keygen") is None,
        reason="there is no openssh-server and openssh-client",
    ),
]

LAUNCH = 'PATH="$PWD:$PATH" exec python3 -m determined.launch.horovod -- python3 rank.py'


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """Two agents of two slots each."""
    with flavoured("core", agents=[Agent("agent-1", 2), Agent("agent-2", 2)]) as cluster:
        yield cluster


def gang(name: str, **more: Any) -> dict[str, Any]:
    return experiment(name, LAUNCH, resources={"slots_per_trial": 4}, **more)


def test_ranks_are_started_over_ssh_and_helpers_end_with_the_last(pair: Cluster) -> None:
    trial = pair.run(gang("over-ssh"), "overssh")["id"]
    met = [(rank, rank // 2, rank % 2) for rank in range(4)]
    for rank in range(4):
        assert f"rank {rank} of 4 in container {rank // 2} has met {met}" in pair.printed(trial)
    # The lines of a rank are those of its own container.
    places = {record["rankId"]: record["agentId"] for record in pair.logs(trial, "sources=task&stdtypes=stdout")}
    assert places[0] == places[1] != places[2] == places[3]
    wait_for("the SSH server to be gone", lambda: not pair.task_processes(trial), within=15)


def test_a_rank_that_fails_behind_ssh_ends_the_trial(pair: Cluster) -> None:
    failed = pair.submit(gang("over-ssh-fails", hyperparameters={"fail_rank": 3}), "overssh")
    trial = pair.only_trial(failed)["id"]
    pair.wait_log(trial, "rank 3 of 4", within=60)
    pair.wait_experiment(failed, "ERROR", within=20)
    assert any("the process of rank 3 ended with exit code 9" in line for line in pair.log_lines(trial))
    wait_for("all to be gone", lambda: not pair.task_processes(trial), within=15)
