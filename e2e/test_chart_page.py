"""The commands of docs/kubernetes.md, run as they are printed there on a control plane with fake nodes.

Each block of commands is run by some test, or has a reason here why it is not.
"""

from __future__ import annotations

import base64
import contextlib
import json
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator

import pytest
import yaml

import page
from conftest import equipment
from harness import HERE
from helm import Helm, helm, volume
from kubernetes import Kubernetes
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

# As the page calls them.
NAMESPACE, TASKS = "determined", "determined-det-tasks"
NOT_RUN = {
    ("Images", 0): "pushes to a registry",
    ("GPUs", 0): "asks NVIDIA's repository of charts",
    ("GPUs", 1): "needs a GPU",
    ("RKE2", 0): "changes hosts with GPUs",
    ("RKE2", 1): "needs RKE2",
    ("RKE2", 2): "needs RKE2",
    ("RKE2", 3): "needs RKE2",
    ("Clouds and autoscaling", 0): "needs Google's cloud",
    ("Clouds and autoscaling", 1): "needs Amazon's cloud",
    ("Node groups that grow", 0): "needs Google's cloud",
    ("Node groups that grow", 1): "needs Amazon's cloud",
}
RUN = {
    "test_a_release_by_the_page": [
        ("Installing", 0),
        ("Installing", 1),
        ("The database", 0),
        ("Upgrading", 0),
        ("Uninstalling", 0),
        ("Uninstalling", 1),
        ("Uninstalling", 2),
        ("Pools and namespaces", 0),
        ("Private registries", 0),
        ("Private registries", 1),
        ("Agents on nodes", 0),
        ("What tasks may do in the cluster", 0),
    ],
    "test_namespaces.py": [
        ("Workspaces and namespaces", 0),
        ("Workspaces and namespaces", 1),
        ("What users may set", 0),
    ],
    "test_real_node.py": [("Troubleshooting", 0)],
}


def test_every_block_of_commands_is_run_or_has_a_reason() -> None:
    found = {(it.heading, it.number) for it in page.blocks() if it.language == "sh"}
    run = {it for blocks in RUN.values() for it in blocks}
    assert run & set(NOT_RUN) == set()
    assert found == run | set(NOT_RUN)


@pytest.fixture
def cluster() -> Kubernetes:
    with equipment():
        return Kubernetes()


@pytest.fixture
def charts(cluster: Kubernetes, tmp_path: pathlib.Path) -> Iterator[Helm]:
    with equipment(), helm(cluster, tmp_path) as found:
        found.namespaces |= {NAMESPACE, TASKS, "ml-a100"}
        taken = {it["metadata"]["name"] for it in cluster.items("namespaces")} & found.namespaces
        assert not taken, f"these are not the test's own: {taken}"
        yield found


@pytest.fixture
def run(cluster: Kubernetes, charts: Helm, tmp_path: pathlib.Path) -> Callable[..., str]:
    """Runs a block of the page, in a directory with what it names."""
    programs = tmp_path / "programs"
    programs.mkdir()
    # Fake nodes end pods after a moment, unless they are to stay.
    wrapper = programs / "helm"
    renderer = f"--post-renderer {charts.renderer}"
    wrapper.write_text(
        f'#!/bin/sh\ncase $1 in install | upgrade) set -- "$@" {renderer} ;; esac\nexec {charts.program} "$@"\n'
    )
    wrapper.chmod(0o755)
    (tmp_path / "deploy").symlink_to(HERE.parent / "deploy")
    (tmp_path / "password").write_text("Abcdefg1")
    values = yaml.safe_load(page.text("Installing", "yaml"))
    # Fake nodes have no load balancers.
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({**values, "service": {"type": "ClusterIP"}}))
    (tmp_path / "volume.yaml").write_text(yaml.safe_dump(volume("page-own", "my-claim", NAMESPACE, "/tmp/none")))
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "my-claim"}, "spec": claim}
    (tmp_path / "claim.yaml").write_text(yaml.safe_dump(claim))

    def run(heading: str, number: int = 0, **replaced: str) -> str:
        script = page.text(heading, number=number, **replaced)
        return page.run(script, tmp_path, {"KUBECONFIG": cluster.kubeconfig}, [programs])

    return run


@contextlib.contextmanager
def marked(cluster: Kubernetes, node: str) -> Iterator[None]:
    """A node that gets back the labels and taints that it has now."""
    try:
        yield
    finally:
        labels = ("gpu-", "determined.ai/agent-", "determined.ai/resource-pool-")
        cluster.run("label", "node", node, *labels)
        cluster.run("taint", "node", node, "gpu-", "determined.ai/agent-")


def test_a_release_by_the_page(cluster: Kubernetes, charts: Helm, run: Callable[..., str]) -> None:
    assert shutil.which("bash")
    cluster.apply(volume("page-db", "determined-db-pvc-det", NAMESPACE, "/tmp/none"))
    run("Installing", FILE="password")
    printed = run("Installing", 1)
    assert "STATUS: deployed" in printed and "Phase:          Succeeded" in printed
    assert "REVISION: 2" in run("Upgrading")
    run("Private registries", USER="u", PASSWORD="p")
    (pull,) = cluster.items("secrets", "--namespace", NAMESPACE, "--field-selector", "metadata.name=pull")
    assert pull["type"] == "kubernetes.io/dockerconfigjson"
    cluster.run("delete", "secret", "pull", "--namespace", NAMESPACE)
    run("Private registries", 1, KEY="k")
    (pull,) = cluster.items("secrets", "--namespace", NAMESPACE, "--field-selector", "metadata.name=pull")
    (login,) = json.loads(base64.b64decode(pull["data"][".dockerconfigjson"]))["auths"].values()
    assert login["username"] == "$oauthtoken"
    node = sorted(cluster.nodes())[-1]
    with marked(cluster, node):
        run("Pools and namespaces", NODE=node)
        run("Agents on nodes", NODE=node, POOL="default")
        (found,) = cluster.items("nodes", "--field-selector", f"metadata.name={node}")
        assert found["metadata"]["labels"]["gpu"] == "a100"
        assert found["metadata"]["labels"]["determined.ai/resource-pool"] == "default"
        assert {"gpu", "determined.ai/agent"} <= {it["key"] for it in found["spec"]["taints"]}
    run("What tasks may do in the cluster", NAMESPACE=TASKS)
    # A pod that a directory of its node is mounted into is refused there from now on.
    container = {"name": "c", "image": "i"}
    host = {"containers": [container], "volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host", "namespace": TASKS}, "spec": host}
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        cluster.apply(pod)

    # What the hook left, as of a master that did not answer.
    labels = {"determined": "x", "determined.ai/cluster_id": "5c654233"}
    template = {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "left", "namespace": TASKS, "labels": labels}}
    cluster.apply({**job, "spec": {"template": template, "suspend": True}})
    printed = run("Uninstalling", 1, NAMESPACE=TASKS, ID="5c654233")
    assert "determined.ai/cluster_id=5c654233" in printed and 'job.batch "left" deleted' in printed
    assert 'release "det" uninstalled' in run("Uninstalling")
    removed = run("Uninstalling", 2)
    for kept in ("determined-db-pvc-det", "determined-db-det", TASKS):
        assert re.search(rf'"{kept}" deleted', removed), removed

    wait_for("no namespace of tasks", lambda: not exists(cluster, TASKS), within=60)
    run("The database")
    assert "Bound" in cluster.run("get", "pvc", "--namespace", NAMESPACE)
    assert "my-claim" in cluster.run("get", "deployment", "determined-db-deployment-det", "-n", NAMESPACE, "-o", "yaml")


def exists(cluster: Kubernetes, namespace: str) -> bool:
    return bool(cluster.items("namespaces", "--field-selector", f"metadata.name={namespace}"))
