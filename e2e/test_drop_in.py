"""What scripts of the PyPI client, unmodified, rely on: addresses, words, and answers as the client reads them."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import harness
from configs import experiment
from conftest import equipment, flavoured
from harness import Agent, ApiError, Cluster, share
from waiting import wait_for

pytestmark = pytest.mark.client

ADMIN = {"DET_USER": "admin", "DET_PASS": ""}

# A session of the client's own, and an answer of its own types, as JSON.
SCRIPT = """
import json, os, sys
from determined.common.api import authentication, bindings
from determined.common.api.bindings import *
session = authentication.login(os.environ["DET_MASTER"], sys.argv[1], "")
answer = {expression}
print(json.dumps(answer.to_json() if hasattr(answer, "to_json") else answer))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with equipment():
        harness.wheel_det()
        python = harness.wheel_python()
    with flavoured("core", python=python, agents=[Agent(slots=2)]) as cluster:
        yield cluster


def ask(cluster: Cluster, expression: str, user: str = "determined") -> Any:
    """Evaluates an expression of Python with a `session` of the unmodified client."""
    script = SCRIPT.format(expression=expression)
    return cluster._run([str(harness.wheel_python()), "-c", script, user], "home-of-the-script", True).json()


def holding(cluster: Cluster, name: str, **more: Any) -> int:
    """An experiment whose trial runs until it is ended."""
    hparams = {"steps": 2, "hold_at": 1, "checkpoint_every": 2}
    config = experiment(name, hyperparameters=hparams, **share(cluster.shared_dir()), **more)
    id = cluster.submit(config, "train", wheel=True)
    cluster.wait_log(cluster.only_trial(id)["id"], "holding", within=60)
    return id


def test_allocations_at_the_root(cluster: Cluster) -> None:
    id = holding(cluster, "polled")
    shown = json.loads(cluster.raw("GET", "/tasks"))
    [summary] = [one for one in shown.values() if f"Experiment {id}" in one["name"]]
    [known] = ask(cluster, "bindings.get_GetTasks(session)")["allocationIdToSummary"].values()
    assert {**summary, "isStopping": None} == {**known, "isStopping": None} or set(known) <= set(summary)
    cluster.client("experiment", "kill", id)
    cluster.wait_experiment(id, "CANCELED")
    wait_for("the list to be empty", lambda: json.loads(cluster.raw("GET", "/tasks")) == {}, within=20)


def test_bulk_actions_in_all_projects(cluster: Cluster) -> None:
    ids = [cluster.submit(experiment("bulk", "true"), wheel=True) for _ in range(2)]
    for id in ids:
        cluster.wait_experiment(id, "COMPLETED")
    for action, archived in (("Archive", True), ("Unarchive", False)):
        request = f"v1{action}ExperimentsRequest(experimentIds={[*ids, 999999]}, projectId=0)"
        results = ask(cluster, f"bindings.post_{action}Experiments(session, body={request}, projectId=0)")["results"]
        assert {one["id"]: one["error"] for one in results if not one["error"]} == dict.fromkeys(ids, "")
        assert [one["id"] for one in results if one["error"]] == [999999]
        assert [cluster.experiment(id)["archived"] for id in ids] == [archived] * 2
    request = "v1ArchiveExperimentsRequest(experimentIds=[], projectId=-1, filters=v1BulkExperimentFilters(name='bulk'))"
    ask(cluster, f"bindings.post_ArchiveExperiments(session, body={request}, projectId=-1)")
    assert all(cluster.experiment(id)["archived"] for id in ids)


def test_templates_of_no_kind(cluster: Cluster) -> None:
    both = {"max_restarts": 2, "idle_timeout": "10m", "environment": {"environment_variables": ["FROM=template"]}}
    cluster.client("template", "set", "any", cluster.write_config(both))
    config = cluster.write_config(experiment("over it", "echo $FROM"))
    created = cluster.client("experiment", "create", config, cluster.empty_context(), "--template", "any")
    id = int(created.out.split("Created experiment ")[1].split()[0])
    cluster.wait_experiment(id, "COMPLETED")
    assert cluster.printed(cluster.only_trial(id)["id"]) == ["template"]
    assert "idle_timeout" in cluster.client("template", "describe", "any").out


def test_half_of_a_user_on_agents(cluster: Cluster) -> None:
    cluster.client("workspace", "create", "half", "--agent-gid", 65534, "--agent-group", "nogroup", env=ADMIN)
    made = ask(cluster, "[w.to_json() for w in bindings.get_GetWorkspaces(session, name='half').workspaces]")[0]
    group = {key: value for key, value in made["agentUserGroup"].items() if value is not None}
    assert group == {"agentGid": 65534, "agentGroup": "nogroup"}
    cluster.client("workspace", "edit", "half", "--name", "other half", env=ADMIN)
    made = ask(cluster, "[w.to_json() for w in bindings.get_GetWorkspaces(session, name='other half').workspaces]")[0]
    assert made["agentUserGroup"]["agentGid"] == 65534
    pinned = ask(
        cluster, "[w.to_json() for w in bindings.get_GetWorkspaces(session, pinned=True).workspaces]", "admin"
    )
    assert "other half" in [one["name"] for one in pinned]


def test_deleting_what_is_being_stopped(cluster: Cluster) -> None:
    id = holding(cluster, "deleted while it stops")
    cluster.client("experiment", "cancel", id)
    cluster.client("experiment", "delete", id, "--yes")

    def gone() -> bool:
        try:
            return cluster.experiment(id)["state"] == "DELETED"
        except ApiError as error:
            return error.status == 404

    wait_for(f"experiment {id} to be deleted", gone, within=60, seen=cluster.describe)


def test_checkpoint_files_that_another_program_removed(cluster: Cluster) -> None:
    config = experiment("saves once", hyperparameters={"steps": 2, "checkpoint_every": 2})
    id = cluster.submit(config, "train", wheel=True)
    cluster.wait_experiment(id, "COMPLETED", within=120)
    [checkpoint] = cluster.checkpoints(id)
    name = checkpoint["uuid"]
    assert checkpoint["storageId"] is not None
    directory = cluster.data_dir / "checkpoints" / name
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "metadata.json"]
    assert files, (checkpoint, sorted(directory.parent.rglob("*")))
    [removed, *_] = files
    removed.unlink()
    request = f"v1CheckpointsRemoveFilesRequest(checkpointUuids=['{name}'], checkpointGlobs=[])"
    ask(cluster, f"bindings.post_CheckpointsRemoveFiles(session, body={request}) or 'done'")

    def partly() -> Any:
        now = ask(cluster, f"bindings.get_GetCheckpoint(session, checkpointUuid='{name}')")["checkpoint"]
        return now if now["state"].endswith("PARTIALLY_DELETED") else None

    now = wait_for("the checkpoint to be compared with its files", partly, within=60, seen=cluster.describe)
    gone = str(removed.relative_to(directory))
    assert set(now["resources"]) == set(checkpoint["resources"]) - {gone}
    assert directory.is_dir(), "nothing else was deleted"
    shutil.rmtree(directory)


def test_restarts_are_counted_anew(cluster: Cluster) -> None:
    config = experiment("fails", "exit 1", max_restarts=1)
    id = cluster.submit(config, wheel=True)
    cluster.wait_experiment(id, "ERROR")
    cluster.client("experiment", "continue", id)
    cluster.wait_experiment(id, "ERROR")
    trial = cluster.only_trial(id)
    assert trial["restarts"] == 1
    assert len(cluster.wait_log(trial["id"], "New trial runner")) == 4


def test_a_single_search_draws_from_ranges(cluster: Cluster) -> None:
    ranges = {"rate": {"type": "double", "minval": 1.0, "maxval": 2.0}, "depth": 3}
    config = experiment("drawn", "true", hyperparameters=ranges)
    id = cluster.submit(config, wheel=True)
    cluster.wait_experiment(id, "COMPLETED")
    drawn = cluster.only_trial(id)["hparams"]
    assert drawn["depth"] == 3 and 1.0 <= drawn["rate"] <= 2.0
    assert any("hyperparameters.rate" in line for line in cluster.log_lines(cluster.only_trial(id)["id"]))


def test_words_that_scripts_look_for(cluster: Cluster) -> None:
    id = cluster.submit(experiment("words", "true"), wheel=True)
    cluster.wait_experiment(id, "COMPLETED")
    log = cluster.client("trial", "logs", cluster.only_trial(id)["id"]).out
    assert "New trial runner" in log and "resources exited successfully with a zero exit code" in log
    policy = {"pattern": "wrong", "action": "cancel_retries"}
    config = experiment("no more", "echo wrong; exit 1", max_restarts=3, log_policies=[policy])
    id = cluster.submit(config, wheel=True)
    cluster.wait_experiment(id, "ERROR")
    trial = cluster.only_trial(id)
    assert trial["restarts"] == 0
    cluster.wait_log(trial["id"], "trial failed and matched logs to a don't retry policy")
    large = experiment("large", "true", resources={"slots_per_trial": 64, "is_single_node": True})
    config = cluster.write_config(large)
    refused = cluster.client("experiment", "create", config, cluster.empty_context(), check=False)
    assert "request unfulfillable" in refused.out + refused.err
    name = f"left-{uuid.uuid4().hex[:6]}"
    cluster.client("user", "create", name, "--password", "Weaker-than-1-wants", env=ADMIN)
    cluster.client("user", "deactivate", name, env=ADMIN)
    user = {"DET_USER": name, "DET_PASS": "Weaker-than-1-wants"}
    refused = cluster.client("user", "whoami", env=user, check=False)
    assert "user is not active" in refused.out + refused.err
    refused = cluster.client("agent", "disable", "agent-1", check=False)
    assert "forbidden" in refused.out + refused.err


def test_names_that_are_shown(cluster: Cluster) -> None:
    cluster.client("user", "create", "ada", "--password", "Weaker-than-1-wants", env=ADMIN)
    [ada] = [one for one in cluster.api("GET", "/api/v1/users")["users"] if one["username"] == "ada"]
    path = f"/api/v1/users/{ada['id']}"
    for taken in ("Admin", "DETERMINED"):
        with pytest.raises(ApiError, match=taken):
            cluster.api("PATCH", path, {"displayName": taken}, user="admin")
    for name in ("Ada L.", ""):
        cluster.api("PATCH", path, {"displayName": name}, user="admin")
        shown = ask(cluster, f"bindings.get_GetUser(session, userId={ada['id']})")["user"]
        assert (shown.get("displayName") or "") == name


def test_what_a_task_prints_comes_back(cluster: Cluster) -> None:
    id = cluster.submit(experiment("nul", r"printf 'a\0b\n'"), wheel=True)
    cluster.wait_experiment(id, "COMPLETED")
    trial = cluster.only_trial(id)["id"]
    assert "a\0b" in cluster.printed(trial)
    assert "a\0b" in cluster.client("trial", "logs", trial).out


def test_what_is_not_built_is_refused_as_such(cluster: Cluster) -> None:
    for path in ("/stream", "/resources/allocation/1.1.1/rendezvous"):
        with pytest.raises(ApiError) as caught:
            cluster.raw("GET", path)
        assert caught.value.status == 501


def test_an_agent_that_is_away_drains(cluster: Cluster) -> None:
    listed = "[a.to_json() for a in bindings.get_GetAgents(session).agents]"
    [agent] = ask(cluster, listed)
    assert agent["version"] == "0.38.1" and agent["enabled"] and not agent["draining"]
    cluster.part("agent-1").kill()

    def away() -> Any:
        agents = cluster.client("agent", "list", "--json").json()
        return agents and not agents[0]["enabled"] and agents[0]["draining"]

    wait_for("the agent to be listed as draining", away, within=60)
    [agent] = ask(cluster, listed)
    assert not any(slot["enabled"] for slot in agent["slots"].values())
    assert all(slot["draining"] for slot in agent["slots"].values())
    cluster.start()
    cluster.wait_for_agents()
    wait_for("the agent to be as it was", lambda: ask(cluster, listed)[0]["enabled"], within=30)
    assert not ask(cluster, listed)[0]["draining"]
