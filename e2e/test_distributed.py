"""Training over several agents with a real framework: torch on processors, gloo between the processes.

Each of the clusters has two agents on this machine. The tests run with the unmodified PyPI package in the task
(DET_TORCH_PYTHON) and with ours (DET_TORCH_OWN_PYTHON): both interpreters have torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

import harness
from configs import experiment
from conftest import equipment, flavoured
from harness import Agent, Cluster, share
from waiting import wait_for

pytestmark = pytest.mark.torch

LAUNCH = "python3 -m determined.launch.torch_distributed -- python3 ddp.py"
# torch 1.13 with Python 3.11 cannot read its own default of both, which a rank that there is not leaves in force.
QUIRK = ["PET_REDIRECTS=9:1", "PET_TEE=9:1"]
VARIABLES = {"environment_variables": ["OMP_NUM_THREADS=1", *QUIRK]}
MASTER = {
    "reserved_ports": [29400, 12370],
    "resource_manager": {"type": "agent", "scheduler": {"type": "priority", "allow_heterogeneous_fits": True}},
    "task_container_defaults": {
        "dtrain_network_interface": "lo",
        "gloo_port_range": "31000:31999",
        "nccl_port_range": "30000:30999",
    },
}


@pytest.fixture(scope="module", params=["wheel", "own"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two agents of two slots each, whose tasks have torch and one of the two packages."""
    with equipment():
        python = harness.torch_python(own=request.param == "own")
    agents = [Agent("agent-1", 2), Agent("agent-2", 2)]
    with flavoured("core", python=python, agents=agents, master_config=MASTER) as cluster:
        yield cluster


def ddp(name: str, slots: int = 4, **more: Any) -> dict[str, Any]:
    config = experiment(name, LAUNCH, resources={"slots_per_trial": slots}, environment=VARIABLES)
    environment = more.pop("environment", {})
    variables = [*VARIABLES["environment_variables"], *environment.get("environment_variables", [])]
    return {**config, **more, "environment": {"environment_variables": variables}}


def printed_last(cluster: Cluster, trial: int, what: str) -> dict[int, Any]:
    """What each rank printed last under a word, by the rank that its lines have."""
    found: dict[int, Any] = {}
    for record in cluster.logs(trial, "sources=task&stdtypes=stdout"):
        word, _, rest = record["log"].partition(" ")
        if word == what:
            found[record["rankId"]] = json.loads(rest)
    return found


def end_reason(cluster: Cluster, trial: int) -> str:
    """How the newest attempt of a trial's task ended; its event and the trial's log agree."""
    attempt = cluster.task(cluster.trial(trial)["taskId"])["allocations"][0]
    path = f"/api/v1/events?subjectKind=allocation&subjectId={attempt['allocationId']}&limit=100"
    reasons = [event["reason"] for event in cluster.api("GET", path, user="admin")["events"]]
    reason = attempt["exitReason"]
    assert reasons[-1] == reason, reasons
    assert any(f"ended: {reason}" in line for line in cluster.log_lines(trial)), cluster.describe()
    return reason


def test_four_ranks_over_two_agents_train_one_model(cluster: Cluster) -> None:
    trial = cluster.run(ddp("four"), "ddp", within=120)["id"]
    here = printed_last(cluster, trial, "here")
    assert sorted(here) == [0, 1, 2, 3]
    for rank, one in here.items():
        # The chief's container first, and ranks by container.
        assert (one["rank"], one["size"], one["container"], one["slots"]) == (rank, 4, rank // 2, [2, 2])
        assert (one["interface"], one["gloo"], one["nccl"]) == ("lo", "31000:31999", "30000:30999")
        assert one["ports"] == here[0]["ports"] and one["addresses"] == here[0]["addresses"]
        assert not set(one["ports"]) & set(MASTER["reserved_ports"])
    assert here[0]["agent"] == here[1]["agent"] != here[2]["agent"] == here[3]["agent"]
    weights = [one["values"] for one in printed_last(cluster, trial, "weights").values()]
    assert len(weights) == 4 and all(one == weights[0] for one in weights)
    all_ranks = [[rank, rank // 2, rank % 2] for rank in range(4)]
    for rank, one in printed_last(cluster, trial, "collectives").items():
        machine = all_ranks[rank // 2 * 2 : rank // 2 * 2 + 2]
        assert one == {
            "gather": all_ranks if rank == 0 else None,
            "allgather": all_ranks,
            "broadcast": all_ranks[0],
            "gather_local": machine if rank % 2 == 0 else None,
            "allgather_local": machine,
            "broadcast_local": machine[0],
        }
    # Each rank's shard is in each checkpoint, under the metadata of all.
    checkpoint = cluster.checkpoints(cluster.trial(trial)["experimentId"])[0]
    assert {f"shard-{rank}.pt" for rank in range(4)} <= set(checkpoint["resources"])
    assert checkpoint["metadata"]["ranks"] == {"0": 0, "1": 0, "2": 1, "3": 1}
    assert [report["totalBatches"] for report in cluster.metrics(trial, "validation")] == [1, 2, 3, 4]


def test_trials_side_by_side_have_ports_of_their_own(cluster: Cluster) -> None:
    shared = cluster.shared_dir()
    config = ddp("side", slots=2, hyperparameters={"hold_at": 1}, **share(shared))
    both = [cluster.submit(config, "ddp") for _ in range(2)]
    trials = [cluster.only_trial(one)["id"] for one in both]
    for trial in trials:
        cluster.wait_log(trial, "holding", within=90, times=2)
    ports = [printed_last(cluster, trial, "here")[0]["ports"] for trial in trials]
    assert not set(ports[0]) & set(ports[1]), ports
    (shared / "go").touch()
    for one in both:
        cluster.wait_experiment(one, "COMPLETED", within=90)


@pytest.mark.parametrize("how", ["raise", "exit", "kill"])
def test_one_failed_rank_ends_all_with_one_cause(cluster: Cluster, how: str) -> None:
    hparams = {"fail_at": 2, "fail_rank": 3, "fail_how": how}
    failed = cluster.submit(ddp(f"fails-{how}", hyperparameters=hparams), "ddp")
    trial = cluster.only_trial(failed)["id"]
    cluster.wait_log(trial, "failing", within=90)
    wait_for(
        "the end of the trial",
        lambda: cluster.experiment(failed)["state"] == "ERROR",
        within=10,
        seen=cluster.describe,
    )
    wait_for("all ranks to be gone", lambda: not cluster.task_processes(trial), within=10)
    reason = end_reason(cluster, trial)
    assert reason.startswith("rank "), reason
    agent = printed_last(cluster, trial, "here")[3]["agent"]
    own = str(cluster.python) == os.path.abspath(os.environ.get("DET_TORCH_OWN_PYTHON", ""))
    if own or how == "raise":
        # What the PyPI package's launcher leaves of a rank that ends without a word is what the others wrote.
        code = {"raise": 1, "exit": 7, "kill": 137}[how]
        assert f"rank 3 on place {agent} failed first: the code ended with exit code {code}" in reason
        assert ("ValueError: boom on purpose" if how == "raise" else "failing") in reason


def test_a_paused_gang_goes_on_from_its_shards(cluster: Cluster) -> None:
    shared = cluster.shared_dir()
    paused = cluster.submit(ddp("paused", hyperparameters={"hold_at": 2}, **share(shared)), "ddp")
    trial = cluster.only_trial(paused)["id"]
    cluster.wait_log(trial, "holding", within=90, times=4)
    cluster.run_det("experiment", "pause", paused)
    cluster.wait_log(trial, "stops", within=60, times=4)
    cluster.wait_experiment(paused, "PAUSED", within=60)
    assert {one["after"] for one in printed_last(cluster, trial, "stops").values()} == {2}
    assert len(printed_last(cluster, trial, "stops")) == 4
    cluster.run_det("experiment", "activate", paused)
    cluster.wait_experiment(paused, "COMPLETED", within=90)
    assert [one for one in printed_last(cluster, trial, "starts").values()] == [{"run": 2, "after": 2}] * 4
    assert cluster.trial(trial)["restarts"] == 0


def test_after_a_killed_rank_all_start_again_from_the_checkpoint(cluster: Cluster) -> None:
    shared = cluster.shared_dir()
    config = ddp("killed", hyperparameters={"hold_at": 3}, max_restarts=1, **share(shared))
    killed = cluster.submit(config, "ddp")
    trial = cluster.only_trial(killed)["id"]
    cluster.wait_log(trial, "holding", within=90, times=4)
    # The script itself: its wrapper and the framework's launcher have more words.
    ranks = [found for found in cluster.task_processes(trial) if found.command.split()[1:] == ["ddp.py"]]
    assert len(ranks) == 4, [found.command for found in cluster.task_processes(trial)]
    ranks[0].kill()
    cluster.wait_experiment(killed, "COMPLETED", within=120)
    assert [one for one in printed_last(cluster, trial, "starts").values()] == [{"run": 2, "after": 3}] * 4
    assert cluster.trial(trial)["restarts"] == 1
    weights = [one["values"] for one in printed_last(cluster, trial, "weights").values()]
    assert len(weights) == 4 and all(one == weights[0] for one in weights)


def test_agents_may_hold_unequal_parts(cluster: Cluster) -> None:
    """Three slots, which no whole agents of two add up to, are an agent and a part of the other."""
    trial = cluster.run(ddp("unequal", slots=3), "ddp", within=120)["id"]
    here = printed_last(cluster, trial, "here")
    slots = here[0]["slots"]
    assert sorted(slots) == [1, 2] and sorted(here) == [0, 1, 2]
    assert [here[rank]["container"] for rank in range(3)] == [0] * slots[0] + [1] * slots[1]
    weights = [one["values"] for one in printed_last(cluster, trial, "weights").values()]
    assert len(weights) == 3 and all(one == weights[0] for one in weights)
