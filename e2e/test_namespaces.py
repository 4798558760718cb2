"""Workspaces bound to namespaces of a real control plane, through the PyPI client, unmodified, and through ours."""

from __future__ import annotations

import concurrent.futures
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import harness
import page
from conftest import equipment
from harness import Cluster
from kubernetes import Kubernetes
from test_kubernetes import agents, experiment, life, reaches, why
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

ADMIN = {"DET_USER": "admin", "DET_PASS": ""}


@pytest.fixture(scope="module")
def control_plane() -> Kubernetes:
    with equipment():
        harness.wheel_det()
        return Kubernetes()


@pytest.fixture(scope="module")
def namespaces(control_plane: Kubernetes) -> Iterator[tuple[str, str]]:
    """Two namespaces of the module's own: the default one of the master, and another."""
    names = (f"det-{uuid.uuid4().hex[:8]}", f"research-{uuid.uuid4().hex[:8]}")
    for name in names:
        control_plane.run("create", "namespace", name)
    yield names
    for name in names:
        control_plane.run("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def master(control_plane: Kubernetes, namespaces: tuple[str, str]) -> Iterator[Cluster]:
    manager = {
        "type": "kubernetes",
        "cluster_name": "lab",
        "kubeconfig_path": control_plane.masters_kubeconfig(namespaces[0], "rbac.profile=cluster"),
        "default_namespace": namespaces[0],
        "max_slots_per_pod": max(control_plane.nodes().values()),
        "determined_master_host": "master.invalid",
        "helper_image": "helper.invalid/det:1",
    }
    with Cluster(agents=[], master_config={"resource_manager": manager}) as master:
        nodes = len(control_plane.nodes())
        wait_for("the nodes", lambda: len(agents(master)) == nodes, within=30, seen=master.describe)
        yield master


def jobs(control_plane: Kubernetes, number: int) -> list[dict[str, Any]]:
    selector = f"determined.ai/experiment_id={number}"
    return control_plane.items("jobs", "--all-namespaces", "--selector", selector)


def in_namespace(control_plane: Kubernetes, number: int, namespace: str) -> None:
    def seen() -> bool:
        return [job["metadata"]["namespace"] for job in jobs(control_plane, number)] == [namespace]

    wait_for(f"experiment {number} is in {namespace}", seen, within=60)


def names(control_plane: Kubernetes) -> set[str]:
    found = control_plane.items("namespaces")
    return {it["metadata"]["name"] for it in found if "deletionTimestamp" not in it["metadata"]}


def refused(result: harness.Result, word: str) -> None:
    assert result.code != 0 and word in result.err + result.out and "Traceback" not in result.err, str(result)


def test_work_follows_the_binding_of_its_workspace(
    master: Cluster, control_plane: Kubernetes, namespaces: tuple[str, str]
) -> None:
    default, research = namespaces
    master.client("workspace", "create", "vision")
    missing = master.client("w", "bindings", "set", "vision", "--namespace", "no-such", env=ADMIN, check=False)
    refused(missing, "does not exist")
    mine = master.client("w", "bindings", "set", "vision", "--namespace", research, check=False)
    refused(mine, "bind workspaces to namespaces")
    bound = master.client("w", "bindings", "set", "vision", "--namespace", research, env=ADMIN)
    assert f"is bound to namespace {research}" in bound.out
    assert research in master.client("w", "bindings", "list", "vision").out
    master.client("project", "create", "vision", "all")
    first = experiment(master, life("1000s"), workspace="vision", project="all")
    in_namespace(control_plane, first, research)
    # The master finds it there again, whatever its workspace is bound to by now.
    master.client("w", "bindings", "delete", "vision", env=ADMIN)
    master.restart("master")
    second = experiment(master, life("1s"), workspace="vision", project="all")
    in_namespace(control_plane, second, default)
    reaches(master, second, "COMPLETED")
    in_namespace(control_plane, first, research)
    master.run_det("experiment", "kill", first)
    reaches(master, first, "CANCELED")
    wait_for("no Job is left", lambda: not jobs(control_plane, first), within=60)


def test_a_namespace_is_made_for_a_workspace_with_its_quota(master: Cluster, control_plane: Kubernetes) -> None:
    if control_plane.has_rights():
        made = master.client("w", "create", "refused", "--auto-create-namespace", env=ADMIN, check=False)
        refused(made, "may not create namespaces")
    control_plane.masters_kubeconfig("default", "rbac.profile=cluster", "rbac.workspaceBindings=true")
    words = ("w", "create", "oceans", "--auto-create-namespace", "--resource-quota", "2")
    made = master.client(*words, env=ADMIN).out
    name = made.rsplit("is bound to namespace ", 1)[1].split()[0]
    assert name.startswith("oceans-") and name in names(control_plane)
    [quota] = control_plane.items("resourcequotas", "--namespace", name)
    assert quota["metadata"]["name"] == f"{name}-quota"
    assert quota["spec"]["hard"] == {"requests.nvidia.com/gpu": "2"}

    master.client("project", "create", "oceans", "all", env=ADMIN)

    # The third slot waits, with the reason, and goes on when the limit is raised.
    first = experiment(master, life("1000s"), slots=2, workspace="oceans", project="all")
    in_namespace(control_plane, first, name)
    second = experiment(master, life("1s"), workspace="oceans", project="all")

    job = master.api("GET", f"/api/v1/experiments/{second}", user="admin")["experiment"]["jobId"]

    def why() -> bool:
        return "2 slots" in master.run_det("job", "why", job).out

    wait_for("the reason is the limit", why, within=30, seen=lambda: master.run_det("job", "why", job).out)
    master.client("w", "resource-quota", "set", "oceans", "3", env=ADMIN)
    reaches(master, second, "COMPLETED")
    control_plane.run("delete", "resourcequota", f"{name}-quota", "--namespace", name)
    wait_for("the quota is set again", lambda: control_plane.items("resourcequotas", "--namespace", name), within=30)
    listed = master.run_det("workspace", "resource-quota", "list", "oceans", "--csv").out
    assert listed.splitlines()[-1] == "lab,3", listed

    # One of another owner that is lower counts.
    control_plane.run("create", "quota", "institute", "--hard=requests.nvidia.com/gpu=1", "--namespace", name)
    lower = master.client("w", "resource-quota", "set", "oceans", "3", env=ADMIN, check=False)
    refused(lower, "another owner")
    master.run_det("experiment", "kill", first)
    reaches(master, first, "CANCELED")
    master.client("experiment", "delete", first, "--yes", env=ADMIN)
    master.client("workspace", "delete", "oceans", "--yes", env=ADMIN)
    wait_for("the namespace goes with its workspace", lambda: name not in names(control_plane), within=60)


def test_a_task_that_another_quota_does_not_admit_starts_once_it_is_gone(
    master: Cluster, control_plane: Kubernetes, namespaces: tuple[str, str]
) -> None:
    _, research = namespaces
    master.client("workspace", "create", "crowded")
    control_plane.run("create", "quota", "no-pods", "--hard=pods=0", "--namespace", research)
    bound = master.run_det("workspace", "bindings", "set", "crowded", "--namespace", research, env=ADMIN).out
    assert research in bound
    master.client("project", "create", "crowded", "all")
    number = experiment(master, life("1s"), workspace="crowded", project="all")
    expected = f'quota "no-pods" of namespace "{research}"'
    wait_for("the reason", lambda: expected in why(master, number), within=60, seen=master.describe)
    control_plane.run("delete", "quota", "no-pods", "--namespace", research)
    reaches(master, number, "COMPLETED", within=120)


def test_bindings_that_are_made_at_once_leave_one_and_what_runs_alone(
    master: Cluster, control_plane: Kubernetes, namespaces: tuple[str, str]
) -> None:
    master.client("workspace", "create", "busy", env=ADMIN)
    master.client("project", "create", "busy", "all", env=ADMIN)
    running = experiment(master, life("6s"), workspace="busy", project="all")
    in_namespace(control_plane, running, namespaces[0])

    def bound(namespace: str) -> int:
        words = ("workspace", "bindings", "set", "busy", "--namespace", namespace)
        return master.run_det(*words, env=ADMIN, check=False).code

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(bound, namespaces * 4))
    assert codes == [0] * 8
    listed = master.run_det("workspace", "bindings", "list", "busy", "--csv").out
    (last,) = [namespace for namespace in namespaces if namespace in listed]
    reaches(master, running, "COMPLETED")
    assert master.trials(running)[0]["restarts"] == 0
    after = experiment(master, life("1s"), workspace="busy", project="all")
    in_namespace(control_plane, after, last)
    reaches(master, after, "COMPLETED")


def test_the_commands_of_the_documentation(
    master: Cluster, control_plane: Kubernetes, namespaces: tuple[str, str]
) -> None:
    control_plane.masters_kubeconfig("default", "rbac.profile=cluster", "rbac.workspaceBindings=true")
    names_there = {"vision": "by-the-page", "research": namespaces[1], "west": "lab", "NAME": "by-the-page"}
    heading = "Workspaces and namespaces"

    def done(words: list[str]) -> str:
        assert words[0] == "det", words
        return master.run_det(*words[1:], env=ADMIN, cwd=directory).out

    directory = master.root / "page"
    directory.mkdir()
    (directory / "pods.yaml").write_text(page.text("What users may set", "yaml"))
    # The last one makes the workspace that the others are about.
    *bindings, creation = page.commands(page.text(heading, **names_there))
    made = done(creation)
    assert "is bound to namespace by-the-page-" in made
    shown = [done(words) for words in bindings]
    [listed] = [out for words, out in zip(bindings, shown) if "list" in words]
    assert "by-the-page-" in listed and "lab" in listed
    done(["det", "workspace", "bindings", "set", "by-the-page", "--auto-create-namespace"])
    quotas = [done(words) for words in page.commands(page.text(heading, number=1, **names_there))]
    assert "8" in quotas[-1]
    for words in page.commands(page.text("What users may set", **names_there)):
        done(words)
    kept = master.run_det("config-policies", "describe", "tasks", "--workspace-name", "by-the-page", env=ADMIN).out
    assert "spec.volumes.hostPath" in kept
    master.client("workspace", "delete", "by-the-page", "--yes", env=ADMIN)
