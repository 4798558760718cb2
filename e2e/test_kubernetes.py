"""Tasks as pods, over a real control plane: API server, scheduler and controllers, with nodes on which pods only seem to run."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from conftest import equipment
from harness import HERE, Cluster, Missing
from kubernetes import Kubernetes
from waiting import stays_true, wait_for

pytestmark = pytest.mark.kubernetes
EXAMPLES = HERE.parent / "testdata" / "pods"


@contextlib.contextmanager
def managing(control_plane: Kubernetes, namespace: str, **more: Any) -> Iterator[Cluster]:
    """A master whose only resource manager is the control plane; `pools` are its resource pools, `settings` those of the
    chart by which it has its rights (`KEY=VALUE`)."""
    pools = more.pop("pools", None)
    settings = more.pop("settings", ())
    access = more.pop("kubeconfig_path", None) or control_plane.masters_kubeconfig(namespace, *settings)
    manager = {
        "type": "kubernetes",
        "kubeconfig_path": access,
        "default_namespace": namespace,
        "max_slots_per_pod": max(control_plane.nodes().values()),
        "determined_master_host": "master.invalid",
        "helper_image": "helper.invalid/det:1",
        **more,
    }
    config = {"resource_manager": manager, **({"resource_pools": pools} if pools else {})}
    with Cluster(agents=[], master_config=config) as master:
        # A node is a place of each pool.
        places = len(control_plane.nodes()) * len(pools or ["default"])
        wait_for("the nodes", lambda: len(agents(master)) == places, within=30, seen=master.describe)
        yield master


@pytest.fixture(scope="module")
def master(control_plane: Kubernetes, namespace: str) -> Iterator[Cluster]:
    with managing(control_plane, namespace) as master:
        yield master


@pytest.fixture(scope="module")
def processors(control_plane: Kubernetes, namespace: str) -> Iterator[Cluster]:
    """A master whose slots are eight processors each."""
    more = {"slot_type": "cpu", "slot_resource_requests": {"cpu": 8}, "max_slots_per_pod": 4}
    with managing(control_plane, namespace, **more) as master:
        yield master


def agents(master: Cluster) -> list[dict[str, Any]]:
    return master.api("GET", "/api/v1/agents", user="admin")["agents"]


def life(run_for: str = "2s", scenario: str = "succeed", **more: str) -> dict[str, Any]:
    """A pod spec with the annotations by which fake nodes let a pod live."""
    annotations = {"run-for": run_for, "scenario": scenario, **more}
    return {"metadata": {"annotations": {f"k8s-testbed/{key}": value for key, value in annotations.items()}}}


def experiment(master: Cluster, pod_spec: dict[str, Any], *, slots: int = 1, **more: Any) -> int:
    config = {
        "name": "pods",
        "entrypoint": "true",
        "searcher": {"name": "single", "metric": "m"},
        "max_restarts": 0,
        "resources": {"slots_per_trial": slots},
        "environment": {"pod_spec": pod_spec},
        **more,
    }
    path = master.root / f"{uuid.uuid4().hex}.yaml"
    path.write_text(yaml.safe_dump(config))
    created = master.run_det("experiment", "create", path)
    return max(int(word) for word in created.out.replace(".", " ").split() if word.isdigit())


def state(master: Cluster, number: int) -> str:
    return master.api("GET", f"/api/v1/experiments/{number}", user="admin")["experiment"]["state"].removeprefix("STATE_")


def reaches(master: Cluster, number: int, wanted: str, within: float = 60) -> None:
    wait_for(f"experiment {number} is {wanted}", lambda: state(master, number) == wanted, within=within, seen=master.describe)


def of_experiment(control_plane: Kubernetes, namespace: str, kind: str, number: int) -> list[dict[str, Any]]:
    return control_plane.items(kind, "--namespace", namespace, "--selector", f"determined.ai/experiment_id={number}")


def pods_of(control_plane: Kubernetes, namespace: str, number: int) -> list[dict[str, Any]]:
    return of_experiment(control_plane, namespace, "pods", number)


def secrets(control_plane: Kubernetes, namespace: str) -> set[str]:
    return {secret["metadata"]["name"] for secret in control_plane.items("secrets", "--namespace", namespace)}


def test_nodes_are_listed_with_their_slots(master: Cluster, control_plane: Kubernetes) -> None:
    shown = {agent["id"]: len(agent["slots"]) for agent in agents(master)}
    assert shown == control_plane.nodes()


def test_a_trial_is_a_job_that_users_of_kubectl_find(master: Cluster, control_plane: Kubernetes, namespace: str) -> None:
    number = experiment(master, life(run_for="20s"), slots=2)
    wait_for("its pod", lambda: pods_of(control_plane, namespace, number), within=30, seen=master.describe)
    (job,) = of_experiment(control_plane, namespace, "jobs", number)
    name = job["metadata"]["name"]
    assert name == f"det-{master.cluster_id[:8]}-exp-{number}-trial-{number}-attempt-1"
    (pod,) = control_plane.items("pods", "--namespace", namespace, "--selector", f"batch.kubernetes.io/job-name={name}")
    labels = pod["metadata"]["labels"]
    assert labels["determined"] == labels["determined.ai/allocation_id"]
    assert labels["determined.ai/task_type"] == "TRIAL"
    assert pod["spec"]["containers"][-1]["name"] == "determined-container"
    assert pod["spec"]["initContainers"][-1]["name"] == "determined-init-container"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert name in secrets(control_plane, namespace)
    assert "DET_SESSION_TOKEN" not in str(pod["spec"])
    assert pod["spec"]["priority"] == 50, pod["spec"].get("priorityClassName")
    reaches(master, number, "COMPLETED")
    wait_for("its Job is deleted", lambda: not of_experiment(control_plane, namespace, "jobs", number), within=30)
    wait_for("its Secret is deleted", lambda: name not in secrets(control_plane, namespace), within=30)


def test_pods_have_a_class_by_their_priority_or_the_one_that_they_name(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    name = f"e2e-{namespace}"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    control_plane.apply({**kind, "metadata": {"name": name}, "value": 1234, "preemptionPolicy": "Never"})
    try:
        own = {**life(), "spec": {"priorityClassName": name}}
        for pod_spec, expected in ((life(), ("determined-p61", 61)), (own, (name, 1234))):
            number = experiment(master, pod_spec, resources={"slots_per_trial": 1, "priority": 61})

            def pods(number: int = number) -> list[Any]:
                return pods_of(control_plane, namespace, number)

            # It is gone soon after its end.
            (pod,) = wait_for("its pod", pods, within=30, seen=master.describe)
            spec = pod["spec"]
            assert (spec["priorityClassName"], spec["priority"]) == expected
            assert spec["preemptionPolicy"] == "Never"
            reaches(master, number, "COMPLETED")
    finally:
        control_plane.run("delete", "priorityclass", name)


@contextlib.contextmanager
def scheduled_by(control_plane: Kubernetes, namespace: str, scheduler: str) -> Iterator[Cluster]:
    """A master whose gangs something else than the master starts."""
    manager = {
        "type": "kubernetes",
        "kubeconfig_path": control_plane.masters_kubeconfig(namespace, f"defaultScheduler={scheduler}"),
        "default_namespace": namespace,
        "default_scheduler": scheduler,
        "max_slots_per_pod": max(control_plane.nodes().values()),
        "determined_master_host": "master.invalid",
        "helper_image": "helper.invalid/det:1",
    }
    with Cluster(agents=[], master_config={"resource_manager": manager}) as master:
        yield master


def test_a_gang_is_a_pod_group_of_kubernetes(control_plane: Kubernetes, namespace: str) -> None:
    found = control_plane.run("api-resources", "--api-group", "scheduling.k8s.io", "--output", "name").split()
    with equipment():
        if "podgroups.scheduling.k8s.io" not in found:
            raise Missing("the control plane has no gang scheduling (k8s-testbed up --gang)")
    with scheduled_by(control_plane, namespace, "podgroup") as master:
        nodes = len(control_plane.nodes())
        wait_for("the nodes", lambda: len(agents(master)) == nodes, within=30, seen=master.describe)
        slots = sum(control_plane.nodes().values())
        numbers = [experiment(master, life(run_for="4s"), slots=slots) for _ in range(2)]
        groups: list[dict[str, Any]] = []

        def grouped() -> bool:
            groups[:] = control_plane.items("podgroups.scheduling.k8s.io", "--namespace", namespace)
            return bool(groups)

        wait_for("a group", grouped, within=60, seen=master.describe)
        assert groups[0]["spec"]["schedulingPolicy"]["gang"]["minCount"] == nodes
        for number in numbers:
            reaches(master, number, "COMPLETED", within=120)
        wait_for("no group is left", lambda: not grouped(), within=30)


def test_a_scheduler_that_the_cluster_lacks_is_the_reason(control_plane: Kubernetes, namespace: str) -> None:
    with scheduled_by(control_plane, namespace, "volcano") as master:
        wait_for("the reason", lambda: "install Volcano" in master.describe(), within=30, seen=master.describe)
        master.expect_alarm("install Volcano")


def test_a_failure_is_the_experiments(master: Cluster) -> None:
    number = experiment(master, life(scenario="fail", **{"exit-code": "7"}))
    reaches(master, number, "ERROR")
    trial = master.trials(number)[0]["id"]
    assert any("exit code 7" in line for line in master.log_lines(trial)), master.log_lines(trial)


def usable(master: Cluster) -> list[int]:
    """Slots that nothing holds, node by node."""
    return [sum(not slot["container"] for slot in found["slots"].values()) for found in agents(master)]


@contextlib.contextmanager
def occupied(control_plane: Kubernetes, namespace: str, resource: str, amounts: dict[str, int]) -> Iterator[None]:
    """Pods of others on nodes, with so much of a resource each."""
    strangers = []
    for node, amount in amounts.items():
        container = {"name": "c", "image": "stranger", "resources": {"limits": {resource: amount}}}
        annotations = life(scenario="forever")["metadata"]["annotations"]
        metadata = {"name": f"stranger-{node}", "namespace": namespace, "annotations": annotations}
        spec = {"nodeName": node, "containers": [container]}
        strangers.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    try:
        for stranger in strangers:
            control_plane.apply(stranger)
        yield
    finally:
        where = ("--namespace", namespace, "--grace-period=0", "--force", "--ignore-not-found")
        for stranger in strangers:
            control_plane.run("delete", "pod", stranger["metadata"]["name"], *where)


@pytest.mark.parametrize(
    ("slots", "resource", "of_others", "left"),
    [
        pytest.param("master", "nvidia.com/gpu", (), (8, 8, 8, 8), id="gpus"),
        pytest.param("master", "nvidia.com/gpu", (8,), (0, 8, 8, 8), id="gpus beside pods of others"),
        pytest.param("processors", "cpu", (32,), (0, 4, 4, 4), id="processors beside pods of others"),
    ],
)
def test_two_gangs_of_the_whole_cluster_both_finish(
    slots: str,
    resource: str,
    of_others: tuple[int, ...],
    left: tuple[int, ...],
    request: pytest.FixtureRequest,
    control_plane: Kubernetes,
    namespace: str,
) -> None:
    master = request.getfixturevalue(slots)
    with occupied(control_plane, namespace, resource, dict(zip(sorted(control_plane.nodes()), of_others))):
        wait_for("pods of others", lambda: usable(master) == list(left), within=20, seen=lambda: usable(master))
        numbers = [experiment(master, life(run_for="3s"), slots=sum(left)) for _ in range(2)]
        for number in numbers:
            reaches(master, number, "COMPLETED", within=120)


@pytest.mark.parametrize("spare", [0, 1], ids=["whole nodes", "parts of nodes"])
def test_pods_of_a_gang_are_ranks_on_their_nodes(
    master: Cluster, control_plane: Kubernetes, namespace: str, spare: int
) -> None:
    largest = max(control_plane.nodes().values())
    number = experiment(master, life(run_for="5s" if spare else "15s"), slots=2 * largest - spare)

    def placed() -> bool:
        pods = pods_of(control_plane, namespace, number)
        return len(pods) == 2 and all(pod["spec"].get("nodeName") for pod in pods)

    wait_for("two pods on nodes", placed, within=60, seen=master.describe)
    pods = pods_of(control_plane, namespace, number)
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    assert not any(pod["spec"].get("schedulingGates") for pod in pods)
    gpus = sorted(int(pod["spec"]["containers"][-1]["resources"]["limits"]["nvidia.com/gpu"]) for pod in pods)
    assert gpus == [largest - spare, largest]
    reaches(master, number, "COMPLETED")


def test_a_kill_ends_the_pods(master: Cluster, control_plane: Kubernetes, namespace: str) -> None:
    number = experiment(master, life(scenario="forever"))
    wait_for("its pod", lambda: pods_of(control_plane, namespace, number), within=30, seen=master.describe)
    master.api("POST", f"/api/v1/experiments/{number}/kill", user="admin")
    reaches(master, number, "CANCELED")
    wait_for("the end of its pod", lambda: not pods_of(control_plane, namespace, number), within=60)


def test_a_master_that_starts_again_finds_its_pods(master: Cluster, control_plane: Kubernetes, namespace: str) -> None:
    number = experiment(master, life(run_for="12s"))

    def running() -> list[str]:
        return [pod["metadata"]["uid"] for pod in pods_of(control_plane, namespace, number)]

    wait_for("its pod", running, within=30, seen=master.describe)
    before = running()
    master.restart("master")
    assert running() == before
    reaches(master, number, "COMPLETED")
    assert master.trials(number)[0]["restarts"] == 0


def test_a_pod_that_is_deleted_by_hand_is_started_again_without_a_charge(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    number = experiment(master, life(run_for="8s"))
    wait_for("its pod", lambda: pods_of(control_plane, namespace, number), within=30, seen=master.describe)
    (pod,) = pods_of(control_plane, namespace, number)
    control_plane.run("delete", "pod", pod["metadata"]["name"], "--namespace", namespace, "--wait=false")
    reaches(master, number, "COMPLETED", within=90)
    assert master.trials(number)[0]["restarts"] == 0


def test_what_others_occupy_is_not_given_out(master: Cluster, control_plane: Kubernetes, namespace: str) -> None:
    def are_taken() -> bool:
        slots = [slot for agent in agents(master) for slot in agent["slots"].values()]
        return all((slot.get("container") or {}).get("id") == "unknown" for slot in slots)

    with occupied(control_plane, namespace, "nvidia.com/gpu", control_plane.nodes()):
        wait_for("all slots are others'", are_taken, within=30, seen=master.describe)
        number = experiment(master, life(run_for="1s"))
        why = master.run_det("job", "why", _job_of(master, number), check=False)
        assert "slot" in why.out, why
    reaches(master, number, "COMPLETED", within=90)


def _job_of(master: Cluster, number: int) -> str:
    return master.api("GET", f"/api/v1/experiments/{number}", user="admin")["experiment"]["jobId"]


def test_an_image_that_cannot_be_pulled_is_the_reason(master: Cluster) -> None:
    number = experiment(master, life(scenario="image-pull-error"))
    reaches(master, number, "ERROR", within=90)
    trial = master.trials(number)[0]["id"]
    assert any("ErrImagePull" in line or "ImagePullBackOff" in line for line in master.log_lines(trial))


def why(master: Cluster, number: int) -> str:
    return master.run_det("job", "why", _job_of(master, number), check=False).out


def log(master: Cluster, number: int) -> list[str]:
    return master.log_lines(master.trials(number)[0]["id"])


def test_a_task_goes_to_the_nodes_that_it_selects_and_waits_for_them_with_the_reason(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    pod_spec = {**life(run_for="3s"), "spec": {"nodeSelector": {"e2e/disk": "fast"}}}
    number = experiment(master, pod_spec, slots=2)
    wait_for("the reason", lambda: 'label "e2e/disk" is not "fast"' in why(master, number), within=30, seen=master.describe)
    assert f"{len(control_plane.nodes())} places do not fit" in why(master, number).replace("nodes do not", "places do not")
    assert not pods_of(control_plane, namespace, number)
    node = sorted(control_plane.nodes())[-1]
    control_plane.run("label", "node", node, "e2e/disk=fast")
    try:
        wait_for("its pod", lambda: pods_of(control_plane, namespace, number), within=30, seen=master.describe)
        reaches(master, number, "COMPLETED")
    finally:
        control_plane.run("label", "node", node, "e2e/disk-")
    assert any(f"to {node}" in line for line in log(master, number)), log(master, number)


def test_memory_that_no_node_has_is_the_reason_for_waiting(master: Cluster) -> None:
    container = {"name": "determined-container", "resources": {"requests": {"memory": "9000Gi"}}}
    number = experiment(master, {**life(), "spec": {"containers": [container]}})
    expected = "a pod needs 9000 GiB of memory, and less exists there"
    wait_for("the reason", lambda: expected in why(master, number), within=30, seen=master.describe)
    master.api("POST", f"/api/v1/experiments/{number}/kill", user="admin")
    reaches(master, number, "CANCELED")


def test_tasks_share_the_memory_of_a_node(master: Cluster, control_plane: Kubernetes, namespace: str) -> None:
    node = sorted(control_plane.nodes())[0]

    def task(run_for: str) -> int:
        container = {"name": "determined-container", "resources": {"requests": {"memory": "150Gi"}}}
        spec = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container]}
        return experiment(master, {**life(run_for=run_for), "spec": spec})

    first = task("6s")
    wait_for("its pod", lambda: pods_of(control_plane, namespace, first), within=30, seen=master.describe)
    second = task("1s")
    expected = "a pod needs 150 GiB of memory, and less is free"
    wait_for("the reason", lambda: expected in why(master, second), within=5, seen=master.describe)
    for number in (first, second):
        reaches(master, number, "COMPLETED")


def test_events_of_kubernetes_are_in_the_tasks_log(master: Cluster) -> None:
    number = experiment(master, life(run_for="2s"))
    reaches(master, number, "COMPLETED")
    lines = log(master, number)
    for kind, text in (("Job", "Created pod"), ("Pod", "Successfully assigned")):
        assert any(line.startswith(kind) and text in line for line in lines), lines


def test_a_quota_of_the_namespace_is_the_reason(master: Cluster, control_plane: Kubernetes, namespace: str) -> None:
    metadata = {"name": "none", "namespace": namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": "0"}}}
    control_plane.apply(quota)
    number = experiment(master, life(run_for="1s"))
    try:
        expected = f'quota "none" of namespace "{namespace}" has pods 0 used of 0, and the task needs 1'
        wait_for("the reason", lambda: expected in why(master, number), within=60, seen=master.describe)
    finally:
        control_plane.run("delete", "resourcequota", "none", "--namespace", namespace)
    reaches(master, number, "COMPLETED", within=150)
    assert master.trials(number)[0]["restarts"] == 0


ADMIN = {"DET_USER": "admin", "DET_PASS": ""}


def agent(master: Cluster, name: str) -> dict[str, Any]:
    return next(found for found in agents(master) if found["id"] == name)


def nodes_of(control_plane: Kubernetes, namespace: str, number: int) -> list[str]:
    """The nodes of an experiment's pods that have one and are not being deleted."""
    pods = [pod for pod in pods_of(control_plane, namespace, number) if "deletionTimestamp" not in pod["metadata"]]
    return [pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")]


def node_of(master: Cluster, control_plane: Kubernetes, namespace: str, number: int) -> str:
    """The node of an experiment's only pod, once it has one."""
    found = wait_for("its node", lambda: nodes_of(control_plane, namespace, number), within=30, seen=master.describe)
    return found[0]


def test_a_node_that_is_disabled_gives_up_its_pods_without_a_charge(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    number = experiment(master, life(run_for="8s"))
    first = node_of(master, control_plane, namespace, number)
    master.run_det("agent", "disable", first, env=ADMIN)
    try:
        assert not agent(master, first)["enabled"]

        def has_moved() -> bool:
            nodes = nodes_of(control_plane, namespace, number)
            return bool(nodes) and first not in nodes

        wait_for("its pod on another node", has_moved, within=60, seen=master.describe)
        there = {**life(run_for="1s"), "spec": {"nodeSelector": {"kubernetes.io/hostname": first}}}
        waiting = experiment(master, there)
        wait_for("the reason", lambda: "disabled" in why(master, waiting), within=30, seen=master.describe)
        assert not pods_of(control_plane, namespace, waiting)
    finally:
        master.run_det("agent", "enable", first, env=ADMIN)
    for one in (number, waiting):
        reaches(master, one, "COMPLETED")
        assert master.trials(one)[0]["restarts"] == 0
    assert agent(master, first)["enabled"]


def test_a_node_that_is_drained_lets_its_pods_end_and_takes_no_others(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    number = experiment(master, life(run_for="10s"))
    node = node_of(master, control_plane, namespace, number)
    (before,) = pods_of(control_plane, namespace, number)
    shown = master.run_det("agent", "disable", "--drain", node, env=ADMIN)
    try:
        assert master.trials(number)[0]["taskId"] in shown.out
        there = {**life(run_for="1s"), "spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}
        waiting = experiment(master, there)
        wait_for("the reason", lambda: "draining" in why(master, waiting), within=30, seen=master.describe)
        (after,) = pods_of(control_plane, namespace, number)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        reaches(master, number, "COMPLETED")
        assert not pods_of(control_plane, namespace, waiting)
    finally:
        master.run_det("agent", "enable", node, env=ADMIN)
    reaches(master, waiting, "COMPLETED")
    assert [master.trials(one)[0]["restarts"] for one in (number, waiting)] == [0, 0]


def test_a_node_whose_log_matched_a_policy_is_avoided(master: Cluster, control_plane: Kubernetes, namespace: str) -> None:
    policy = {"name": "broken", "pattern": "bus error", "action": "exclude_node"}
    number = experiment(master, life(run_for="6s", scenario="fail"), max_restarts=1, log_policies=[policy])
    node = node_of(master, control_plane, namespace, number)
    # The code of a fake pod prints nothing: its line is sent as its supervisor sends it, with the token of its Secret.
    (job,) = of_experiment(control_plane, namespace, "jobs", number)
    variables = variables_of(control_plane, namespace, job["metadata"]["name"])
    record = {
        "taskId": variables["DET_TASK_ID"],
        "allocationId": variables["DET_ALLOCATION_ID"],
        "agentId": node,
        "containerId": variables["DET_CONTAINER_ID"],
        "log": "bus error at 0x7f",
    }
    token = variables["DET_SESSION_TOKEN"]
    master.api("POST", "/api/v1/task/logs", {"logs": [record]}, token=token)
    reaches(master, number, "ERROR", within=90)
    assert master.trials(number)[0]["restarts"] == 1
    lines = log(master, number)
    assert any(f"will not schedule on {node}" in line for line in lines), lines
    nodes = [found for line in lines for found in re.findall(r"Successfully assigned \S+ to (\S+)", line)]
    assert len(nodes) == 2 and nodes[0] == node != nodes[1], lines


def variables_of(control_plane: Kubernetes, namespace: str, secret: str) -> dict[str, str]:
    """The variables that the platform gives a container, from the Secret of its pod."""
    found = json.loads(control_plane.run("get", "secret", secret, "--namespace", namespace, "--output", "json"))
    (script,) = [json.loads(base64.b64decode(text)) for text in found["data"].values()]
    return dict(script["env"])


@contextlib.contextmanager
def silent(master: Cluster, control_plane: Kubernetes) -> Iterator[None]:
    """The API server answers nothing."""
    master.expect_alarm("a watch of a Kubernetes cluster was broken off")
    master.expect_alarm("cannot be created or deleted yet|a request to Kubernetes failed")
    with contextlib.ExitStack() as stack:
        with equipment():
            stack.enter_context(control_plane.paused())
        yield


def created(control_plane: Kubernetes, namespace: str, number: int) -> list[str]:
    """The Job of each pod that was ever created for an experiment, by the events of Jobs."""
    found = control_plane.items("events", "--namespace", namespace, "--field-selector", "reason=SuccessfulCreate")
    jobs = [event["involvedObject"]["name"] for event in found for _ in range(event.get("count") or 1)]
    return [job for job in jobs if f"-exp-{number}-trial-" in job]


def gang(master: Cluster, run_for: str = "5s") -> int:
    """An experiment of two pods that each take a whole node."""
    return experiment(master, life(run_for=run_for), slots=2 * max(len(found["slots"]) for found in agents(master)))


def test_work_goes_on_after_an_api_server_that_was_silent(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    running = experiment(master, life(run_for="12s"))
    reaches(master, running, "RUNNING")
    with silent(master, control_plane):
        waiting = gang(master)
        stays_true("it runs", lambda: state(master, running) == "RUNNING", throughout=10)
        assert state(master, waiting) != "ERROR"
    for number, pods in ((running, 1), (waiting, 2)):
        reaches(master, number, "COMPLETED", within=120)
        assert len(created(control_plane, namespace, number)) == pods
        assert master.trials(number)[0]["restarts"] == 0


def test_a_master_that_starts_before_the_api_server_answers_makes_nothing_twice(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    running = experiment(master, life(run_for="15s"))
    reaches(master, running, "RUNNING")
    with silent(master, control_plane):
        # Its objects are asked for, and the answers are lost.
        waiting = gang(master)
        master.restart("master")
        assert state(master, running) != "ERROR"
    for number, pods in ((running, 1), (waiting, 2)):
        reaches(master, number, "COMPLETED", within=120)
        assert len(created(control_plane, namespace, number)) == pods
        assert master.trials(number)[0]["restarts"] == 0


def test_a_master_that_was_away_finds_what_ended_and_what_runs(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    ends, runs = experiment(master, life(run_for="6s")), gang(master, run_for="14s")
    wait_for("all on nodes", lambda: len(nodes_of(control_plane, namespace, runs)) == 2, within=60, seen=master.describe)
    (name,) = {pod["metadata"]["name"] for pod in pods_of(control_plane, namespace, ends)}
    before = {pod["metadata"]["uid"] for pod in pods_of(control_plane, namespace, runs)}
    master.part("master").send(signal.SIGKILL)
    master.part("master").wait(within=30)

    def has_ended() -> bool:
        found = control_plane.items("pods", "--namespace", namespace, "--field-selector", f"metadata.name={name}")
        return [pod["status"]["phase"] for pod in found] == ["Succeeded"]

    wait_for("the end of a pod without a master", has_ended, within=60)
    master.start()
    assert {pod["metadata"]["uid"] for pod in pods_of(control_plane, namespace, runs)} == before
    for number, pods in ((ends, 1), (runs, 2)):
        reaches(master, number, "COMPLETED")
        assert len(created(control_plane, namespace, number)) == pods
        assert master.trials(number)[0]["restarts"] == 0


def test_tasks_of_every_kind_outlive_a_restart_of_the_master(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    number = experiment(master, life(run_for="1s"))
    reaches(master, number, "COMPLETED")
    config = master.write_config({"environment": {"pod_spec": life(scenario="forever")}, "resources": {"slots": 0}})
    words = ("--detach", "--config-file", config)
    tasks = {
        "COMMAND": master.run_det("command", "run", *words, "true").out.split()[-1],
        "NOTEBOOK": master.run_det("notebook", "start", *words).out.split()[-1],
        "SHELL": master.run_det("shell", "start", *words).out.split()[-1],
        "TENSORBOARD": master.run_det("tensorboard", "start", *words, number).out.split()[-1],
    }

    def pods() -> dict[str, str]:
        """The pod of each kind that is on a node."""
        found = control_plane.items("pods", "--namespace", namespace, "--selector", "determined.ai/task_id")
        mine = [pod for pod in found if pod["metadata"]["labels"]["determined.ai/task_id"] in tasks.values()]
        on_nodes = [pod["metadata"] for pod in mine if pod["spec"].get("nodeName")]
        return {it["labels"]["determined.ai/task_type"]: it["uid"] for it in on_nodes}

    wait_for("a pod of each kind", lambda: set(pods()) == set(tasks), within=60, seen=pods)
    before = pods()
    master.restart("master")
    assert {task["taskId"] for task in master.live_tasks()} >= set(tasks.values())
    assert pods() == before
    for kind, task in tasks.items():
        master.run_det(kind.lower(), "kill", task)
    wait_for("the end of their pods", lambda: not pods(), within=60, seen=pods)


@pytest.fixture(scope="module")
def pools(control_plane: Kubernetes, namespace: str) -> Iterator[Cluster]:
    """A master with the pools of `testdata/pods`, on whose nodes pods run until they are deleted."""
    described = yaml.safe_load((EXAMPLES / "secret-volume-pools.yaml").read_text())
    for pool in described:
        defaults = pool.setdefault("task_container_defaults", {})
        defaults["gpu_pod_spec"] = {**defaults.get("gpu_pod_spec", {}), **life(scenario="forever")}
    login = ("--docker-server", "nvcr.io", "--docker-username", "$oauthtoken", "--docker-password", "KEY")
    control_plane.run("create", "secret", "docker-registry", "ngc", "--namespace", namespace, *login)
    with managing(control_plane, namespace, pools=described) as master:
        yield master


def pod_of_task(control_plane: Kubernetes, namespace: str, task: str) -> dict[str, Any]:
    selector = f"determined.ai/task_id={task}"
    find = ("pods", "--namespace", namespace, "--selector", selector)
    (pod,) = wait_for("its pod", lambda: control_plane.items(*find), within=30)
    return pod["spec"]


@pytest.mark.parametrize("wheel", [False, True], ids=["ours", "pypi"])
def test_pod_specs_of_the_documentation_become_the_pods_that_it_describes(
    pools: Cluster, control_plane: Kubernetes, namespace: str, wheel: bool
) -> None:
    run = pools.client if wheel else pools.run_det

    def shell(file: str, check: bool = True) -> Any:
        return run("shell", "start", "--detach", "--config-file", EXAMPLES / file, check=check)

    def started(file: str) -> dict[str, Any]:
        (task,) = re.findall(r"[0-9a-f-]{36}", shell(file).out)[:1]
        return pod_of_task(control_plane, namespace, task)

    def mounts(container: dict[str, Any]) -> dict[str, str]:
        return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}

    # The task's empty directory is where the pool would mount a secret.
    pod = started("empty-dir.yaml")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["empty-dir"]["emptyDir"] == {"sizeLimit": "100Mi"}
    (main,) = [one for one in pod["containers"] if one["name"] == "determined-container"]
    assert mounts(main)["/etc/secret-volume"] == "empty-dir"

    pod = started("vendor-shell.yaml")
    beside, main = pod["containers"]
    assert (beside["name"], main["name"]) == ("nvcertjob", "determined-container")
    assert mounts(beside)["/dev/shm"] == "shared"
    assert beside["resources"].get("limits", {}).get("nvidia.com/gpu", "0") == "0"
    assert main["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert main["image"] == "nvcr.io/nvidia/tensorflow:23.03-tf2-py3"
    assert {"name": "ngc"} in pod["imagePullSecrets"]
    assert pod["restartPolicy"] == "Never"

    refused = shell("vendor-shell-as-printed.yaml", check=False)
    assert refused.code != 0
    assert 'did you mean "environment.pod_spec"?' in refused.err + refused.out
    for line in pools.api("GET", "/api/v1/shells", user="admin")["shells"]:
        pools.run_det("shell", "kill", line["id"])


def test_many_tasks_that_are_killed_while_they_are_made_leave_nothing(
    master: Cluster, control_plane: Kubernetes, namespace: str
) -> None:
    config = {"entrypoint": ["true"], "resources": {"slots": 0}, "environment": {"pod_spec": life(scenario="forever")}}

    def launched() -> str:
        return master.api("POST", "/api/v1/commands", {"config": config}, user="admin")["command"]["id"]

    # More of them by hand: a control plane makes and deletes a few in a second.
    tasks = [launched() for _ in range(int(os.environ.get("DET_KUBERNETES_TASKS", "40")))]

    def left(kind: str) -> set[str]:
        found = control_plane.items(kind, "--namespace", namespace)
        return {it["metadata"]["name"] for it in found for task in tasks if task in it["metadata"]["name"]}

    wait_for("the first pods", lambda: left("pods"), within=60, seen=master.describe)
    for task in tasks:
        master.api("POST", f"/api/v1/commands/{task}/kill", user="admin")
    wait_for("no task is left", lambda: not master.live_tasks(), within=120, seen=lambda: len(master.live_tasks()))
    for kind in ("jobs", "pods", "secrets"):
        wait_for(f"no {kind} are left", lambda kind=kind: not left(kind), within=60, seen=lambda kind=kind: left(kind))


def test_the_first_slots_of_a_node_are_taken_and_shown_first(control_plane: Kubernetes, namespace: str) -> None:
    more = {"slot_type": "cpu", "slot_resource_requests": {"cpu": 2}, "max_slots_per_pod": 16}
    with managing(control_plane, namespace, **more) as master:
        number = experiment(master, life(run_for="4s"), slots=11)
        node = node_of(master, control_plane, namespace, number)
        listed = json.loads(master.run_det("slot", "list", "--json").out)
        shown = [(int(it["slot_id"]), it["task_name"]) for it in listed if it["agent_id"] == node]
        assert [slot for slot, _ in shown] == list(range(16))
        assert [slot for slot, task in shown if task.startswith("Trial")] == list(range(11))
        reaches(master, number, "COMPLETED")


def test_the_login_of_a_task_pulls_its_image(master: Cluster, control_plane: Kubernetes, namespace: str) -> None:
    login = {"username": "u", "password": "not-in-the-pod"}
    environment = {"image": "registry.example.com/team/image:1", "registry_auth": login}
    environment["pod_spec"] = life(scenario="forever")
    config = master.write_config({"environment": environment})
    task = master.run_det("command", "run", "--detach", "--config-file", config, "true").out.split()[-1]
    of_task = ("--namespace", namespace, "--selector", f"determined.ai/task_id={task}")
    (pod,) = wait_for("its pod", lambda: control_plane.items("pods", *of_task), within=30, seen=master.describe)
    name = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
    (secret,) = control_plane.items("secrets", "--namespace", namespace, "--field-selector", f"metadata.name={name}")
    # The API server refuses such a Secret where the login is not one.
    assert secret["type"] == "kubernetes.io/dockerconfigjson"
    stored = json.loads(base64.b64decode(secret["data"][".dockerconfigjson"]))
    assert stored == {"auths": {"registry.example.com": login}}
    assert pod["spec"]["imagePullSecrets"] == [{"name": name}]
    assert "not-in-the-pod" not in str(pod)
    (volume,) = [it["secret"] for it in pod["spec"]["volumes"] if it.get("secret", {}).get("secretName") == name]
    assert ".dockerconfigjson" not in {item["key"] for item in volume["items"]}
    master.run_det("command", "kill", task)
    wait_for("the end of its Secret", lambda: name not in secrets(control_plane, namespace), within=30)
