"""Slots that are devices which pods claim, over a real control plane: its scheduler allocates what the test publishes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from harness import Cluster
from kubernetes import Kubernetes
from test_kubernetes import (
    experiment,
    life,
    managing,
    pods_of,
    reaches,
    state,
    usable,
    why,
)
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

DEVICES = 4
API = "resource.k8s.io/v1"


@pytest.fixture(scope="module")
def devices(control_plane: Kubernetes) -> Iterator[str]:
    """The name of a class, and of its driver, of which each node has some devices."""
    name = f"gpu-{uuid.uuid4().hex[:6]}.example.com"
    expression = f"device.driver == '{name}' && device.attributes['{name}'].type == 'gpu'"
    selectors = [{"cel": {"expression": expression}}]
    made: list[dict[str, Any]] = [
        {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}
    ]
    for node in control_plane.nodes():
        found = [{"name": f"gpu-{number}", "attributes": {"type": {"string": "gpu"}}} for number in range(DEVICES)]
        found.append({"name": "part-0", "attributes": {"type": {"string": "part"}}})
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": name, "nodeName": node, "pool": pool, "devices": found}
        metadata = {"name": f"{node}-{name}"}
        made.append({"apiVersion": API, "kind": "ResourceSlice", "metadata": metadata, "spec": spec})
    control_plane.apply(*made)
    yield name
    for one in made:
        control_plane.run("delete", one["kind"].lower(), one["metadata"]["name"], "--wait=false")


@pytest.fixture(scope="module")
def master(control_plane: Kubernetes, namespace: str, devices: str) -> Iterator[Cluster]:
    """A master with the rights that the chart gives it for that."""
    more = {
        "settings": ("slotType=dra", f"deviceClass={devices}"),
        "slot_type": "dra",
        "device_class": devices,
        "max_slots_per_pod": DEVICES,
    }
    with managing(control_plane, namespace, **more) as master:
        all_free = [DEVICES] * len(control_plane.nodes())
        wait_for("the devices", lambda: usable(master) == all_free, within=30, seen=lambda: usable(master))
        yield master


def claims(control_plane: Kubernetes, namespace: str) -> list[dict[str, Any]]:
    return control_plane.items("resourceclaims", "--namespace", namespace)


def allocated(claim: dict[str, Any]) -> list[str]:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return sorted(result["device"] for result in results)


def are_free(master: Cluster, control_plane: Kubernetes, namespace: str) -> None:
    """Nothing of any task is left."""
    for kind in ("resourceclaims", "resourceclaimtemplates", "secrets"):
        left = lambda kind=kind: control_plane.items(kind, "--namespace", namespace)  # noqa: E731
        wait_for(f"no {kind} are left", lambda left=left: not left(), within=60, seen=left)
    all_free = [DEVICES] * len(control_plane.nodes())
    wait_for("all devices are free", lambda: usable(master) == all_free, within=30, seen=lambda: usable(master))


def test_a_task_of_a_whole_node_claims_its_devices(
    master: Cluster, control_plane: Kubernetes, namespace: str, devices: str
) -> None:
    number = experiment(master, life(run_for="8s"), slots=DEVICES)
    wait_for(
        "its claim",
        lambda: [it for it in claims(control_plane, namespace) if allocated(it)],
        within=60,
        seen=lambda: (why(master, number), claims(control_plane, namespace)),
    )
    (claim,) = claims(control_plane, namespace)
    assert allocated(claim) == [f"gpu-{number}" for number in range(DEVICES)]
    (pod,) = pods_of(control_plane, namespace, number)
    assert claim["status"]["reservedFor"][0]["uid"] == pod["metadata"]["uid"]
    (template,) = control_plane.items("resourceclaimtemplates", "--namespace", namespace)
    (owner,) = template["metadata"]["ownerReferences"]
    assert owner["name"] == pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
    reaches(master, number, "COMPLETED")
    are_free(master, control_plane, namespace)


def test_a_gang_of_two_sizes_fits(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    number = experiment(master, life(run_for="8s"), slots=2 * DEVICES - 1)

    def sizes() -> list[int]:
        return sorted(len(allocated(claim)) for claim in claims(control_plane, namespace))

    wait_for("its claims", lambda: sizes() == [DEVICES - 1, DEVICES], within=60, seen=lambda: (why(master, number), sizes()))
    reaches(master, number, "COMPLETED")
    are_free(master, control_plane, namespace)


def test_a_task_waits_for_devices_that_others_claim(
    master: Cluster, control_plane: Kubernetes, namespace: str, devices: str
) -> None:
    request = {"name": "r", "exactly": {"deviceClassName": devices, "count": 1}}
    template = {"name": "strangers", "namespace": namespace}
    spec = {"spec": {"devices": {"requests": [request]}}}
    strangers: list[dict[str, Any]] = [
        {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": template, "spec": spec}
    ]
    for node in control_plane.nodes():
        pod = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"operator": "Exists"}],
            "resourceClaims": [{"name": "d", "resourceClaimTemplateName": "strangers"}],
            "containers": [{"name": "c", "image": "stranger", "resources": {"claims": [{"name": "d"}]}}],
        }
        metadata = {"name": f"claims-{node}", "namespace": namespace, **life(scenario="forever")["metadata"]}
        strangers.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
    control_plane.apply(*strangers)
    left = [DEVICES - 1] * len(control_plane.nodes())
    try:
        wait_for("pods of others", lambda: usable(master) == left, within=30, seen=lambda: usable(master))
        number = experiment(master, life(run_for="1s"), slots=DEVICES)
        wait_for("the reason", lambda: "slot" in why(master, number), within=30, seen=lambda: why(master, number))
        assert state(master, number) == "QUEUED"
    finally:
        where = ("--namespace", namespace, "--grace-period=0", "--force", "--ignore-not-found")
        for stranger in strangers[1:]:
            control_plane.run("delete", "pod", stranger["metadata"]["name"], *where)
        control_plane.run("delete", "resourceclaimtemplate", "strangers", "--namespace", namespace)
    reaches(master, number, "COMPLETED", within=90)
    are_free(master, control_plane, namespace)


def test_a_task_that_no_devices_are_enough_for_is_refused(master: Cluster) -> None:
    config = master.write_config({"resources": {"slots": DEVICES + 1}})
    refused = master.run_det("command", "run", "--config-file", config, "true", check=False)
    assert refused.code != 0 and str(DEVICES) in refused.err, refused
