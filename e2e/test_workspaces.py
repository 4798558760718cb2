"""Workspaces and projects through the PyPI client, unmodified, and through ours."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import harness
from configs import experiment
from conftest import equipment, flavoured
from harness import Agent, Cluster, share

pytestmark = pytest.mark.client

ADMIN = {"DET_USER": "admin", "DET_PASS": ""}
POOLS = {"resource_pools": [{"pool_name": "default"}, {"pool_name": "gpu"}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with equipment():
        harness.wheel_det()
    agents = [Agent(slots=1), Agent("agent-2", slots=1, args=["--resource-pool", "gpu"])]
    with flavoured("core", master_config=POOLS, agents=agents) as cluster:
        yield cluster


def submit(cluster: Cluster, name: str, *flags: str, **more) -> int:
    config = cluster.write_config(experiment(name, "true", **more))
    out = cluster.client("experiment", "create", config, cluster.empty_context(), *flags).out
    [experiment_id] = re.findall(r"Created experiment (\d+)", out)
    return int(experiment_id)


def refused(result: harness.Result, word: str) -> None:
    assert result.code != 0 and word in result.err + result.out and "Traceback" not in result.err, str(result)


def test_a_workspace_is_made_filled_limited_and_deleted(cluster: Cluster) -> None:
    created = cluster.client("workspace", "create", "vision", "--default-compute-pool", "gpu", "--json").json()
    assert created["defaultComputePool"] == "gpu" and created["immutable"] is False
    refused(cluster.client("workspace", "create", "vision", check=False), "already")
    refused(cluster.client("workspace", "create", "w", "--default-aux-pool", "no", check=False), "does not exist")
    assert "vision" in cluster.client("workspace", "list").out
    assert cluster.client("workspace", "describe", "vision", "--json").json()["id"] == created["id"]
    assert "default, gpu" in cluster.client("workspace", "list-pools", "vision").out
    cluster.client("project", "create", "vision", "segments", "--description", "parts", "--key", "SEG")
    assert "SEG" in cluster.client("workspace", "list-projects", "vision").out
    assert "segments" in cluster.client("project", "list", "vision").out

    inside = submit(cluster, "inside", workspace="vision", project="segments")
    done = cluster.wait_experiment(inside, "COMPLETED", within=60)
    assert done["resourcePool"] == "gpu" and done["workspaceName"] == "vision" and done["projectName"] == "segments"
    [project] = cluster.client("workspace", "list-projects", "vision", "--json").json()
    by_number = submit(cluster, "by number", "--project_id", str(project["id"]))
    cluster.wait_experiment(by_number, "COMPLETED", within=60)
    described = cluster.client("project", "describe", "vision", "segments").out
    assert "inside" in described and "by number" in described
    assert "inside" in cluster.client("project", "list-experiments", "vision", "segments").out
    nowhere = cluster.write_config(experiment("nowhere", "true", workspace="vision", project="none"))
    wrong = cluster.client("experiment", "create", nowhere, cluster.empty_context(), check=False)
    refused(wrong, 'project "none" does not exist')

    cluster.client("workspace", "edit", "vision", "--default-compute-pool", "default", "--name", "sight")
    elsewhere = submit(cluster, "elsewhere", workspace="sight", project="segments")
    assert cluster.wait_experiment(elsewhere, "COMPLETED", within=60)["resourcePool"] == "default"

    refused(cluster.client("workspace", "resource-quota", "set", "sight", "3", check=False), "limit the slots")
    cluster.client("workspace", "resource-quota", "set", "sight", "3", env=ADMIN)
    assert cluster.run_det("workspace", "describe", "sight", "--json").json()["maxSlots"] == 3
    cluster.run_det("workspace", "edit", "sight", "--max-slots", "none", env=ADMIN)
    assert cluster.run_det("workspace", "describe", "sight", "--json").json()["maxSlots"] is None

    cluster.client("project", "create", "sight", "others")
    cluster.client("experiment", "move", elsewhere, "sight", "others")
    assert cluster.experiment(elsewhere)["projectName"] == "others"
    cluster.client("project", "edit", "sight", "others", "--new_name", "rest", "--description", "d")
    cluster.client("project", "archive", "sight", "rest")
    assert "elsewhere" not in cluster.client("experiment", "list").out
    cluster.client("project", "unarchive", "sight", "rest")
    assert "elsewhere" in cluster.client("experiment", "list").out
    cluster.client("project", "delete", "sight", "rest", "--yes")
    assert elsewhere not in {e["id"] for e in cluster.experiments()}

    cluster.client("workspace", "archive", "sight")
    refused(cluster.client("project", "create", "sight", "late", check=False), "archived")
    cluster.client("workspace", "unarchive", "sight")
    cluster.client("workspace", "delete", "sight", "--yes", within=60)
    assert "sight" not in cluster.client("workspace", "list").out
    assert not {inside, by_number} & {e["id"] for e in cluster.experiments()}


def test_what_belongs_to_the_cluster_stays(cluster: Cluster) -> None:
    for words in (("archive",), ("delete", "--yes"), ("edit", "--name", "x")):
        action, *flags = words
        result = cluster.client("workspace", action, "Uncategorized", *flags, check=False, env=ADMIN)
        refused(result, "belongs to the cluster")
    words = ("workspace", "create", "k", "--namespace", "n")
    refused(cluster.client(*words, check=False), "needs an administrator")
    refused(cluster.client(*words, check=False, env=ADMIN), "Kubernetes")
    assert "determined" not in cluster.client("workspace", "bindings", "list", "Uncategorized").out


def test_our_own_client_does_the_same(cluster: Cluster) -> None:
    cluster.run_det("workspace", "create", "audio", "--max-slots", "1", env=ADMIN)
    cluster.run_det("project", "create", "audio", "speech", env=ADMIN)
    listed = cluster.run_det("workspace", "list", "--csv").out
    assert re.search(r"^\d+,audio,1,,,,,,,1,False$", listed, re.M), listed
    moved = submit(cluster, "moved")
    cluster.wait_experiment(moved, "COMPLETED", within=60)
    cluster.run_det("experiment", "move", str(moved), "audio", "speech")
    assert "moved" in cluster.run_det("project", "describe", "audio", "speech").out
    shown = cluster.run_det("experiment", "list", "--show_project", "--csv").out
    assert f"audio,speech,{moved}," in shown
    refused(cluster.run_det("workspace", "delete", "audio", "--yes", check=False), "belong")
    cluster.run_det("workspace", "delete", "audio", "--yes", env=ADMIN)
    refused(cluster.run_det("workspace", "describe", "audio", check=False), "no workspace")


def test_what_a_workspace_gives_is_explained_beforehand(cluster: Cluster) -> None:
    storage = '{"type": "s3", "bucket": "own", "endpoint_url": "http://u:hunter2@s3:1"}'
    cluster.run_det("workspace", "create", "lab", "--default-compute-pool", "gpu", "--checkpoint-storage-config", storage)
    policies = cluster.root / "work" / "policies.yaml"
    policies.write_text("invariant_config: {max_restarts: 2}\n")
    cluster.run_det("config-policies", "set", "experiment", policies, "--workspace-name", "lab", env=ADMIN)
    cluster.run_det("project", "create", "lab", "one")
    config = cluster.write_config(experiment("explained", "true", workspace="lab", project="one"))

    def explained(*flags: str) -> dict[str, tuple[object, str]]:
        rows = cluster.run_det("config", "explain", config, "--json", *flags).json()
        return {row["path"]: (row["value"], row["origin"]["layer"]) for row in rows}

    alone = cluster.run_det("config", "explain", config, "--json")
    assert "--ask-master" in alone.err and "s3:1" not in alone.out
    [project] = cluster.run_det("project", "list", "lab", "--json").json()
    for flags in (["--ask-master"], ["--workspace", "lab"], ["--project_id", str(project["id"])]):
        keys = explained(*flags)
        assert keys["resources.resource_pool"] == ("gpu", "workspace"), flags
        assert keys["checkpoint_storage.endpoint_url"] == ("http://********@s3:1", "workspace")
        assert keys["max_restarts"] == (2, "policy")
    assert explained("--workspace", "Uncategorized")["max_restarts"][1] != "policy"
    assert explained("--ask-master", "--pool", "default")["resources.resource_pool"][0] == "default"
    for flags in (["--workspace", "none"], ["--workspace", "lab", "--project", "none"], ["--project_id", "999"]):
        refused(cluster.run_det("config", "explain", config, *flags, check=False), flags[-1])
    shell = cluster.root / "work" / "shell.yaml"
    shell.write_text("resources: {slots: 1}\n")
    rows = cluster.run_det("config", "explain", shell, "--kind", "shell", "--workspace", "lab", "--json").json()
    [pool] = [row for row in rows if row["path"] == "resources.resource_pool"]
    assert (pool["value"], pool["origin"]) == ("gpu", {"layer": "workspace", "name": "lab"})


def test_refusals_name_the_flags_that_were_given(cluster: Cluster) -> None:
    for flags, expected in (
        (["--default-compute-pool", "none"], "--default-compute-pool: pool \"none\" does not exist"),
        (["--agent-uid", "7"], "--agent-uid, --agent-user, --agent-gid, --agent-group: must have a number with every"),
        (["--checkpoint-storage-config", "{type: s3}"], "--checkpoint-storage-config: bucket: is required"),
    ):
        result = cluster.run_det("workspace", "create", "wrong", *flags, check=False, env=ADMIN)
        refused(result, expected)
        assert "Storage" not in result.err and "agentU" not in result.err, result.err
    refused(cluster.run_det("workspace", "create", "a\tb", check=False, env=ADMIN), "NAME: must be one line")


def test_a_trial_that_is_moved_to_another_pool_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    shared = cluster.shared_dir()
    hparams = {"steps": 3, "hold_at": 1, "checkpoint_every": 3}
    moved = cluster.submit(experiment("moved", hyperparameters=hparams, max_restarts=0, **share(shared)), "train")
    trial = cluster.only_trial(moved)["id"]
    cluster.wait_log(trial, "holding")
    assert {record["agentId"] for record in cluster.logs(trial, "sources=task")} == {"agent-1"}
    job = cluster.experiment(moved)["jobId"]
    cluster.client("job", "update", job, "--resource-pool", "gpu")
    cluster.wait_log(trial, "asked to stop after step 1")
    cluster.wait_log(trial, "run 2 starts after step 1", within=60)
    (shared / "go").touch()
    assert cluster.wait_experiment(moved, "COMPLETED", within=60)["resourcePool"] == "gpu"
    assert {record["agentId"] for record in cluster.logs(trial, "sources=task")} == {"agent-1", "agent-2"}
    assert cluster.trial(trial)["restarts"] == 0
