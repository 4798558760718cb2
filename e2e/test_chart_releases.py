"""The Helm chart by real Helm on a real control plane: installed, tested, upgraded, rolled back and uninstalled.

Its nodes are fake: pods are created and counted, and run nothing.
"""

from __future__ import annotations

import pathlib
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from conftest import equipment
from helm import Helm, helm, may, secret_text, volume
from kubernetes import CHART, Kubernetes
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

VALUES: dict[str, Any] = {
    "maxSlotsPerPod": 4,
    "initialUserPassword": "Abcdefg1",
    "checkpointStorage": {"type": "s3", "bucket": "b"},
    # Fake nodes have no load balancers and no volumes.
    "service": {"type": "ClusterIP"},
    "db": {"disablePVC": True},
}
KEPT: dict[str, Any] = {**VALUES, "db": {}}


@pytest.fixture(scope="module")
def cluster() -> Kubernetes:
    with equipment():
        return Kubernetes()


@pytest.fixture
def charts(cluster: Kubernetes, tmp_path: pathlib.Path) -> Iterator[Helm]:
    with equipment(), helm(cluster, tmp_path) as found:
        yield found


def objects(cluster: Kubernetes, release: str, *where: str) -> set[str]:
    """What a release has, by its label."""
    kinds = (
        "deployments,services,secrets,configmaps,serviceaccounts,roles,rolebindings,jobs,pods,persistentvolumeclaims"
    )
    found = cluster.items(kinds, *where, "--selector", f"release={release}")
    found += cluster.items("clusterroles,clusterrolebindings,namespaces", "--selector", f"release={release}")
    return {f"{it['kind']}/{it['metadata']['name']}" for it in found if it["kind"] != "Pod"}


def configuration(cluster: Kubernetes, release: str, namespace: str) -> dict[str, Any]:
    """The plain part of the master's configuration."""
    name = f"determined-master-config-{release}"
    (found,) = cluster.items("configmaps", "--namespace", namespace, "--field-selector", f"metadata.name={name}")
    return yaml.safe_load(found["data"]["master.yaml"])


def exists(cluster: Kubernetes, namespace: str) -> bool:
    return bool(cluster.items("namespaces", "--field-selector", f"metadata.name={namespace}"))


def with_volume(cluster: Kubernetes, release: str, namespace: str) -> None:
    cluster.apply(volume(f"{namespace}-db", f"determined-db-pvc-{release}", namespace, "/tmp/none"))


def test_a_release_is_installed_tested_and_uninstalled(charts: Helm, cluster: Kubernetes) -> None:
    namespace = charts.namespace()
    with_volume(cluster, "det", namespace)
    printed = charts.apply("install", "det", namespace, KEPT)
    assert f"kubectl get pods --namespace {namespace}-det-tasks -l=determined" in printed
    assert "WARNING" not in printed
    assert "Phase:          Succeeded" in charts.run("test", "det", "--namespace", namespace)
    assert not cluster.items("pods", "--namespace", namespace, "--selector", "determined"), "that label is of task pods"
    password = secret_text(cluster, namespace, "determined-db-det", "password")
    assert len(password) == 40
    # Of the pods with the label of the master, the Service leads to that of the Deployment alone.
    stranger = {"app": "determined-master-det", "release": "det"}
    container = {"name": "c", "image": "stranger"}
    metadata = {"name": "stranger", "namespace": namespace, "labels": stranger}
    metadata["annotations"] = {"k8s-testbed/scenario": "forever"}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})

    def runs() -> bool:
        (pod,) = cluster.items("pods", "--namespace", namespace, "--field-selector", "metadata.name=stranger")
        return pod["status"].get("phase") == "Running"

    wait_for("the pod of a stranger runs", runs, within=30)
    slices = cluster.items(
        "endpointslices",
        "--namespace",
        namespace,
        "--selector",
        "kubernetes.io/service-name=determined-master-service-det",
    )
    targets = [it["targetRef"]["name"] for found in slices for it in found["endpoints"] or []]
    assert len(targets) == 1 and targets[0].startswith("determined-master-deployment-det-"), targets

    charts.uninstall("det", namespace)
    left = objects(cluster, "det", "--namespace", namespace)
    kept = {
        "PersistentVolumeClaim/determined-db-pvc-det",
        "Secret/determined-db-det",
        f"Namespace/{namespace}-det-tasks",
    }
    assert left == kept
    # The same release finds its volume, its password and its namespace again.
    charts.apply("install", "det", namespace, KEPT)
    assert secret_text(cluster, namespace, "determined-db-det", "password") == password
    assert configuration(cluster, "det", namespace)["resource_manager"]["default_namespace"] == f"{namespace}-det-tasks"
    charts.uninstall("det", namespace)
    # A volume without its password is not started with another one.
    cluster.run("delete", "secret", "determined-db-det", "--namespace", namespace)
    assert "the volume of the claim" in charts.apply("install", "det", namespace, KEPT, fails=True)
    charts.apply("install", "det", namespace, {**KEPT, "db": {"password": "known"}})
    assert secret_text(cluster, namespace, "determined-db-det", "password") == "known"


def test_an_upgrade_keeps_password_and_namespace_and_a_rollback_returns(charts: Helm, cluster: Kubernetes) -> None:
    namespace = charts.namespace()
    charts.apply("install", "det", namespace, VALUES)
    password = secret_text(cluster, namespace, "determined-db-det", "password")

    def template() -> dict[str, Any]:
        name = "metadata.name=determined-master-deployment-det"
        (found,) = cluster.items("deployments", "--namespace", namespace, "--field-selector", name)
        return found["spec"]["template"]["metadata"]["annotations"]

    before = template()
    charts.apply("upgrade", "det", namespace, VALUES)
    assert template() == before, "the same values restart nothing"
    charts.apply("upgrade", "det", namespace, {**VALUES, "logLevel": "debug", "clusterName": "renamed"})
    assert configuration(cluster, "det", namespace)["log"]["level"] == "debug"
    assert template() != before, "another configuration restarts the master"
    assert secret_text(cluster, namespace, "determined-db-det", "password") == password
    charts.run("rollback", "det", "2", "--namespace", namespace, "--wait")
    assert template() == before
    assert configuration(cluster, "det", namespace)["log"]["level"] == "info"
    assert secret_text(cluster, namespace, "determined-db-det", "password") == password
    history = yaml.safe_load(charts.run("history", "det", "--namespace", namespace, "--output", "yaml"))
    assert [it["status"] for it in history] == ["superseded", "superseded", "superseded", "deployed"]


def test_a_release_with_the_earlier_defaults_keeps_what_it_has(charts: Helm, cluster: Kubernetes) -> None:
    namespace = charts.namespace()
    earlier = {"db": {"disablePVC": True, "password": "postgres"}, "rbac": {"profile": "cluster"}}
    earlier["resourceManager"] = {"defaultNamespace": namespace}
    printed = charts.apply("install", "det", namespace, {**VALUES, **earlier})
    assert "tasks are in the namespace of the master" in printed
    assert 'db.password is "postgres"' in printed
    printed = charts.apply("upgrade", "det", namespace, VALUES)
    assert "tasks are in the namespace of the master" in printed
    assert 'the password of the database is "postgres"' in printed
    assert secret_text(cluster, namespace, "determined-db-det", "password") == "postgres"
    assert configuration(cluster, "det", namespace)["resource_manager"]["default_namespace"] == namespace
    assert not exists(cluster, f"{namespace}-det-tasks")
    account = f"{namespace}:determined-master-det"
    assert may(cluster, account, "create", "jobs.batch", namespace)
    # It moves when that is asked for.
    given = {"resourceManager": {"defaultNamespace": "default"}}
    printed = charts.apply("upgrade", "det", namespace, {**VALUES, **given})
    assert "tasks are in the namespace of the master" not in printed
    assert not may(cluster, account, "create", "jobs.batch", namespace)


def test_the_account_of_the_master_may_do_what_it_does_and_no_more(charts: Helm, cluster: Kubernetes) -> None:
    namespace = charts.namespace()
    charts.apply("install", "det", namespace, VALUES)
    account, tasks = f"{namespace}:determined-master-det", f"{namespace}-det-tasks"
    for verb in ("get", "list", "watch"):
        for what in ("nodes", "pods", "jobs.batch"):
            assert may(cluster, account, verb, what, None), (verb, what)
    for verb, what in (("create", "jobs.batch"), ("delete", "jobs.batch"), ("patch", "pods"), ("create", "secrets")):
        assert may(cluster, account, verb, what, tasks), (verb, what)
        assert not may(cluster, account, verb, what, namespace), (verb, what)
        assert not may(cluster, account, verb, what, None), (verb, what)
    for verb, what in (
        ("get", "secrets"),
        ("create", "pods"),
        ("create", "rolebindings"),
        ("patch", "deployments.apps"),
    ):
        assert not may(cluster, account, verb, what, namespace), (verb, what)
    for verb in ("list", "watch"):
        assert not may(cluster, account, verb, "secrets", tasks), verb
    assert not may(cluster, f"{tasks}:default", "get", "secrets", tasks), "tasks have no rights"
    charts.apply("upgrade", "det", namespace, {**VALUES, "rbac": {"profile": "cluster"}})
    assert may(cluster, account, "create", "jobs.batch", None)


def test_a_namespace_that_is_named_is_used_as_it_is(charts: Helm, cluster: Kubernetes) -> None:
    namespace, tasks, pool = charts.namespace(), charts.namespace(), charts.namespace()
    pools = [{"pool_name": "default"}, {"pool_name": "big", "kubernetes_namespace": pool}]
    values = {**VALUES, "resourceManager": {"defaultNamespace": tasks}, "resourcePools": pools}
    charts.apply("install", "det", namespace, values)
    assert not exists(cluster, f"{namespace}-det-tasks")
    account = f"{namespace}:determined-master-det"
    assert all(may(cluster, account, "create", "jobs.batch", it) for it in (tasks, pool))
    charts.uninstall("det", namespace)
    assert exists(cluster, tasks) and exists(cluster, pool)
    assert not may(cluster, account, "create", "jobs.batch", tasks)
    # One that does not exist ends the installation, not the first task.
    missing = [{"pool_name": "default", "kubernetes_namespace": f"{pool}-missing"}]
    assert "not found" in charts.apply("install", "bad", namespace, {**VALUES, "resourcePools": missing}, fails=True)


def test_the_namespace_of_tasks_may_have_been_made_before(charts: Helm, cluster: Kubernetes) -> None:
    namespace = charts.namespace()
    cluster.run("create", "namespace", f"{namespace}-tasks")
    # Of a release with the name of its namespace.
    printed = charts.apply("install", namespace, namespace, {**VALUES, "imagePullSecretName": "pull"})
    for where in (namespace, f"{namespace}-tasks"):
        assert f"there is no Secret pull (imagePullSecretName) in the namespace {where}" in printed
    charts.uninstall(namespace, namespace)
    assert exists(cluster, f"{namespace}-tasks")


def test_two_releases_live_side_by_side(charts: Helm, cluster: Kubernetes) -> None:
    first, second = charts.namespace(), charts.namespace()
    charts.apply("install", "one", first, VALUES)
    charts.apply("install", "two", first, VALUES)
    # The same name in another namespace.
    charts.apply("install", "one", second, {**VALUES, "clusterScopedSuffix": second})
    accounts = {"one": f"{first}:determined-master-one", "two": f"{first}:determined-master-two"}
    assert may(cluster, accounts["two"], "create", "jobs.batch", f"{first}-two-tasks")
    assert not may(cluster, accounts["two"], "create", "jobs.batch", f"{first}-one-tasks")
    passwords = {
        secret_text(cluster, where, f"determined-db-{release}", "password")
        for where, release in ((first, "one"), (first, "two"), (second, "one"))
    }
    assert len(passwords) == 3
    charts.uninstall("one", first)
    found = {it["metadata"]["name"] for it in cluster.items("priorityclasses")}
    assert {"determined-system-priority", "determined-medium-priority"} <= found, "the others use them"
    assert may(cluster, accounts["two"], "create", "jobs.batch", f"{first}-two-tasks")
    assert may(cluster, f"{second}:determined-master-one", "list", "pods", None)
    assert "deployed" in charts.run("status", "two", "--namespace", first)
    # The class of the third, which is its own, was made without preemption, and Kubernetes does not change that.
    values = {**VALUES, "clusterScopedSuffix": second, "defaultScheduler": "preemption"}
    assert "delete the class and upgrade again" in charts.apply("upgrade", "one", second, values)
    charts.apply("upgrade", "two", first, {**VALUES, "logLevel": "debug"})


def test_a_cluster_without_gpus_has_slots_of_processors(charts: Helm, cluster: Kubernetes) -> None:
    namespace = charts.namespace()
    values = {**VALUES, "slotType": "cpu", "slotResourceRequests": {"cpu": 7.5}}
    charts.apply("install", "det", namespace, values)
    manager = configuration(cluster, "det", namespace)["resource_manager"]
    assert manager["slot_type"] == "cpu" and manager["slot_resource_requests"] == {"cpu": 7.5}
    assert "Succeeded" in charts.run("test", "det", "--namespace", namespace)


def test_a_claim_that_exists_is_used_and_stays(charts: Helm, cluster: Kubernetes) -> None:
    namespace = charts.namespace()
    cluster.apply(volume(f"{namespace}-own", "own", namespace, "/tmp/none"))
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "own", "namespace": namespace}}
    cluster.apply({**claim, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    values = {**KEPT, "postgresql": {"persistence": {"existingClaim": "own"}}}
    charts.apply("install", "det", namespace, values)
    claims = {it["metadata"]["name"]: it["status"]["phase"] for it in cluster.items("pvc", "--namespace", namespace)}
    assert claims == {"own": "Bound"}
    (pod,) = cluster.items("pods", "--namespace", namespace, "--selector", "determined-system=db")
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "own"}
    charts.uninstall("det", namespace)
    assert cluster.items("pvc", "--namespace", namespace)


@pytest.mark.parametrize("label", ["determined.ai/agent", "determined.ai/pedl-agent"])
def test_a_label_adds_an_agent_to_a_node_and_removes_it(charts: Helm, cluster: Kubernetes, label: str) -> None:
    namespace = charts.namespace()
    values = {**VALUES, "resourceManager": {"type": "agent"}}
    charts.apply("install", "det", namespace, values)

    def agents() -> list[str]:
        pods = cluster.items("pods", "--namespace", namespace, "--selector", "determined-system=agent")
        return [it["spec"].get("nodeName", "") for it in pods if "deletionTimestamp" not in it["metadata"]]

    assert agents() == [], "no node has the label"
    node = sorted(cluster.nodes())[0]
    cluster.run("taint", "node", node, f"{label}=present:NoSchedule")
    try:
        cluster.run("label", "node", node, f"{label}=present")
        wait_for("an agent on the node", lambda: agents() == [node], within=30)
        cluster.run("label", "node", node, f"{label}-")
        wait_for("no agent on the node", lambda: agents() == [], within=30)
    finally:
        cluster.run("label", "node", node, f"{label}-")
        cluster.run("taint", "node", node, f"{label}-")
    assert not exists(cluster, f"{namespace}-det-tasks")


def test_the_chart_is_packed_and_installed_from_its_archive(
    charts: Helm, cluster: Kubernetes, tmp_path: pathlib.Path
) -> None:
    namespace = charts.namespace()
    printed = charts.run("package", str(CHART), "--destination", str(tmp_path))
    (archive,) = tmp_path.glob("determined-*.tgz")
    assert str(archive) in printed
    with tarfile.open(archive) as opened:
        packed = set(opened.getnames())
    files = {str(path.relative_to(CHART.parent)) for path in CHART.rglob("*") if path.is_file()}
    assert packed == files, "nothing is left out or added"
    # The rendering of the archive is that of the directory.
    charts.apply("install", "det", namespace, VALUES, chart=archive)
    assert "Succeeded" in charts.run("test", "det", "--namespace", namespace)
    (listed,) = yaml.safe_load(charts.run("list", "--namespace", namespace, "--output", "yaml"))
    assert (listed["name"], f"{listed['chart']}.tgz", listed["status"]) == ("det", archive.name, "deployed")
    assert "det" not in charts.run("list", "--namespace", f"{namespace}-det-tasks", "--short").split()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_ingress_leads_to_the_service_of_the_master(charts: Helm, cluster: Kubernetes, scheme: str) -> None:
    namespace = charts.namespace()
    host = f"{namespace}.example.com"
    tls = [{"secretName": "front", "hosts": [host]}]
    ingress = {"enabled": True, "className": "nginx", "hosts": [host], "tls": tls}
    values = {**VALUES, "service": {}, "useNodePortForMaster": True, "ingress": ingress}
    if scheme == "https":
        keys = ("--from-literal=tls.crt=c", "--from-literal=tls.key=k")
        cluster.run("create", "secret", "generic", "back", "--namespace", namespace, *keys)
        values |= {"tlsSecret": "back", "ingress": {**ingress, "sslPassthrough": True}}
    charts.apply("install", "det", namespace, values)
    (found,) = cluster.items("ingresses", "--namespace", namespace)
    spec = found["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert spec["tls"] == tls
    (rule,) = spec["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"], path["pathType"]) == (host, "/", "Prefix")
    backend = path["backend"]["service"]
    name = f"metadata.name={backend['name']}"
    (service,) = cluster.items("services", "--namespace", namespace, "--field-selector", name)
    assert service["spec"]["type"] == "NodePort"
    assert backend["port"]["number"] in {it["port"] for it in service["spec"]["ports"]}
    annotations = found["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io"
    assert annotations.get(f"{prefix}/backend-protocol") == ("HTTPS" if scheme == "https" else None)
    assert annotations.get(f"{prefix}/ssl-passthrough") == ("true" if scheme == "https" else None)
