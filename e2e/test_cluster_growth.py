"""A cluster that grows for tasks that wait, over a real control plane. The test is the autoscaler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness import Cluster
from kubernetes import Kubernetes
from test_kubernetes import experiment, life, pods_of, reaches, why
from waiting import wait_for

pytestmark = pytest.mark.kubernetes


def placeholders(cluster: Kubernetes, within: str) -> list[dict[str, Any]]:
    return cluster.items("pods", "--namespace", within, "--selector", "determined.ai/placeholder")


def is_unschedulable(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(it["type"] == "PodScheduled" and it.get("reason") == "Unschedulable" for it in conditions)


def test_a_gang_makes_the_cluster_grow_by_the_nodes_that_it_lacks(
    control_plane: Kubernetes,
    namespace: str,
) -> None:
    # Not like a name of an object of the system.
    label = f"grown-{namespace}"
    present = control_plane.items("nodes")[0]
    slots = int(present["status"]["allocatable"]["nvidia.com/gpu"])
    selects = {"apiVersion": "v1", "kind": "Pod", "spec": {"nodeSelector": {"e2e/grown": label}}}
    pool = {
        "pool_name": "default",
        "task_container_defaults": {"gpu_pod_spec": selects},
        "autoscaling": {"slots_per_node": slots, "max_nodes": 2},
    }
    manager = {
        "type": "kubernetes",
        "kubeconfig_path": control_plane.masters_kubeconfig(namespace),
        "default_namespace": namespace,
        "max_slots_per_pod": slots,
        "determined_master_host": "master.invalid",
        "helper_image": "helper.invalid/det:1",
    }
    with Cluster(agents=[], master_config={"resource_manager": manager, "resource_pools": [pool]}) as master:
        number = experiment(master, life(), slots=2 * slots)

        def asking() -> list[dict[str, Any]]:
            found = [pod for pod in placeholders(control_plane, namespace) if is_unschedulable(pod)]
            return found if len(found) == 2 else []

        pending = wait_for("two placeholders that fit no node", asking, within=30, seen=master.describe)
        expected = f"waits for the cluster to grow: asked for 2 nodes with {slots} free slots"
        wait_for("the reason", lambda: expected in why(master, number), within=30, seen=lambda: why(master, number))
        names = [pod["metadata"]["name"] for pod in pending]
        # Pods of fake nodes end after a moment unless they are to stay.
        control_plane.run("annotate", "pods", "--namespace", namespace, *names, "k8s-testbed/scenario=forever")
        size = {key: present["status"]["allocatable"][key] for key in ("cpu", "memory", "pods", "nvidia.com/gpu")}
        labels = {**present["metadata"]["labels"], "e2e/grown": label}
        nodes = [f"{label}-{index}" for index in range(len(pending))]
        try:
            for node in nodes:
                metadata = {"name": node, "labels": {**labels, "kubernetes.io/hostname": node}}
                status = {"capacity": size, "allocatable": size, "nodeInfo": present["status"]["nodeInfo"]}
                added = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
                control_plane.run("create", "--filename", "-", text=json.dumps(added))

            def pods() -> list[Any]:
                return pods_of(control_plane, namespace, number)

            pod = wait_for("its pods", pods, within=60, seen=master.describe)[0]
            assert pod["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
            reaches(master, number, "COMPLETED")
            wait_for("no placeholder is left", lambda: not placeholders(control_plane, namespace), within=30)
        finally:
            control_plane.run("delete", "node", "--ignore-not-found", *nodes)
