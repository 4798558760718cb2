"""The Helm chart: what it renders and refuses, and that the master accepts the configuration that it writes.

`helm` is all that is needed; no cluster is asked. DET_UPDATE=1 writes the lists of objects below `e2e/chart` anew.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import pathlib
import shutil
import stat
import subprocess
from typing import Any

import pytest
import yaml

import harness

pytestmark = pytest.mark.kubernetes

CHART = harness.HERE.parent / "deploy" / "helm" / "determined"
CASES = harness.HERE / "chart"
# Values files of each case, the weakest first.
FILES = {
    "defaults": ["defaults"],
    "everything": ["everything"],
    "pedl": ["../../deploy/helm/determined/pedl-values", "pedl"],
    "seeds": ["seeds"],
    "volume": ["volume"],
}
# The least that a rendering needs.
LEAST = ("--set", "maxSlotsPerPod=8", "--set", "checkpointStorage.type=s3", "--set", "checkpointStorage.bucket=b")


@pytest.fixture(scope="module", autouse=True)
def helm() -> str:
    """Skips where there is no Helm."""
    found = shutil.which("helm")
    if found is None:
        pytest.skip("SKIPPED: helm is not on PATH")
    return found


def ran(*words: str, chart: pathlib.Path = CHART) -> subprocess.CompletedProcess[str]:
    """Runs Helm over the chart, out of reach of any cluster."""
    env = {**os.environ, "KUBECONFIG": os.devnull}
    command = ["helm", words[0], *([] if words[0] == "lint" else ["release"]), str(chart), *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)


def rendered(*words: str, release: str = "r", chart: pathlib.Path = CHART) -> str:
    """What `helm template` prints."""
    command = ["helm", "template", release, str(chart), "--namespace", "ns", *words]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def objects(*words: str, release: str = "r") -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(rendered(*words, release=release)) if document]


def named(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one object of a kind and name."""
    matching = [one for one in found if one["kind"] == kind and one["metadata"]["name"] == name]
    assert len(matching) == 1, f"{kind} {name}: {len(matching)}"
    return matching[0]


def files_of(case: str) -> list[str]:
    words: list[str] = []
    for name in FILES[case]:
        words += ["--values", str((CASES / f"{name}.yaml").resolve())]
    return words


@functools.cache
def of_case(case: str) -> list[dict[str, Any]]:
    return objects(*files_of(case))


def parts(found: list[dict[str, Any]], prefix: str = "determined") -> tuple[dict[str, str], dict[str, str]]:
    """The master's files: those of the ConfigMap, those of the Secret."""
    plain = named(found, "ConfigMap", f"{prefix}-master-config-r")["data"]
    secret = named(found, "Secret", f"{prefix}-master-config-r")["data"]
    return plain, {name: base64.b64decode(text).decode() for name, text in secret.items()}


def merged(weaker: Any, stronger: Any) -> Any:
    """As the master merges its files: maps key by key, everything else whole."""
    if not (isinstance(weaker, dict) and isinstance(stronger, dict)):
        return stronger
    result = dict(weaker)
    for key, value in stronger.items():
        result[key] = merged(result[key], value) if key in result else value
    return result


def configuration(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The configuration of the master: all of its files, in the order of their names."""
    plain, secret = parts(found)
    files = {**plain, **secret}
    assert len(files) == len(plain) + len(secret), "files of one name would hide each other in the directory"
    whole: Any = {}
    for name in sorted(files):
        if name.endswith(".yaml"):
            whole = merged(whole, yaml.safe_load(files[name]))
    return whole


def refused(*words: str) -> str:
    """The error of a rendering that must fail."""
    run = ran("template", *words)
    assert run.returncode != 0, "was rendered"
    return run.stderr


def notes(tmp_path: pathlib.Path, *words: str) -> str:
    """What Helm prints after an installation, which needs no cluster this way."""
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    shutil.copy(copy / "templates" / "NOTES.txt", copy / "notes.txt")
    (copy / "templates" / "zz-notes.yaml").write_text('notes: {{ tpl (.Files.Get "notes.txt") . | toJson }}\n')
    shown = rendered(*words, "--show-only", "templates/zz-notes.yaml", chart=copy)
    return yaml.safe_load(shown)["notes"]


def test_the_chart_has_no_findings_of_helm_lint() -> None:
    for words in [(), LEAST, files_of("seeds"), files_of("pedl")]:
        run = ran("lint", "--strict", *words)
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("case", FILES)
def test_the_objects_are_as_listed(case: str) -> None:
    lines = []
    for one in of_case(case):
        hook = one["metadata"].get("annotations", {}).get("helm.sh/hook")
        where = one["metadata"].get("namespace", "-")
        lines.append(f"{one['kind']} {where}/{one['metadata']['name']}{f' ({hook})' if hook else ''}")
    text = "\n".join(sorted(lines)) + "\n"
    listed = CASES / f"{case}.objects"
    if os.environ.get("DET_UPDATE"):
        listed.write_text(text)
    assert text == listed.read_text()


@pytest.mark.parametrize("case", FILES)
def test_the_master_accepts_the_configuration(case: str, tmp_path: pathlib.Path) -> None:
    det = str(harness.det_executable())
    file = tmp_path / "master.yaml"
    file.write_text(yaml.safe_dump(configuration(of_case(case))))
    run = subprocess.run(
        [det, "config", "check", "--kind", "master", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for one in of_case(case):
        if one["kind"] == "ConfigMap" and "agent.yaml" in one["data"]:
            file.write_text(one["data"]["agent.yaml"])
            words = [det, "config", "check", "--kind", "agent", "--partial", str(file)]
            run = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
            assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("case", [case for case in FILES if case not in ("pedl", "everything")])
def test_a_rendering_is_the_same_each_time(case: str) -> None:
    assert rendered(*files_of(case)) == rendered(*files_of(case))


def test_older_and_newer_kubernetes_get_the_same() -> None:
    oldest, newest = (rendered(*LEAST, "--kube-version", version) for version in ("1.21.0", "1.37.0"))
    assert oldest == newest


def test_secrets_are_in_the_secret_alone() -> None:
    texts = ["secret1", "secret2", "scimpw", "epw", "SK", "AK", "scimuser"]
    plain, secret = parts(of_case("everything"))
    for text in texts:
        assert text in "".join(secret.values()), text
        assert f": {text}\n" not in "".join(plain.values()), text
    # A list is replaced as a whole, so that one with a password in it is all in the Secret.
    assert "resource_pools" not in yaml.safe_load(plain["master.yaml"])
    whole = configuration(of_case("everything"))
    assert [pool["pool_name"] for pool in whole["resource_pools"]] == ["default", "big"]
    assert whole["checkpoint_storage"]["save_trial_latest"] == 0, "a zero is not the default"
    assert whole["log"]["color"] is False
    assert whole["retention_policy"]["log_retention_days"] == 0
    assert whole["enable_cors"] is True, "masterConfig is laid over the rest"
    # Further keys are laid over those of the chart, secret ones too.
    changed = objects(*LEAST, "--set", "masterSecretConfig.db.password=other", "--set", "masterConfig.log.level=trace")
    assert configuration(changed)["db"]["password"] == "other"
    assert configuration(changed)["log"]["level"] == "trace"


def test_passwords_may_come_from_secrets_that_exist() -> None:
    master = named(of_case("everything"), "Deployment", "determined-master-deployment-r")
    env = {one["name"]: one for one in master["spec"]["template"]["spec"]["containers"][0]["env"]}
    from_secret = {name: env[name]["valueFrom"].get("secretKeyRef") for name in env if "valueFrom" in env[name]}
    assert from_secret["DET_DB_PASSWORD"] == {"name": "dbpw", "key": "pw"}
    assert from_secret["DET_SECURITY_INITIAL_USER_PASSWORD"] == {"name": "pw", "key": "password"}
    assert from_secret["DET_OIDC_CLIENT_SECRET"] == {"name": "oidc", "key": "k"}
    _, secret = parts(of_case("everything"))
    assert "password" not in yaml.safe_load(secret["secrets.yaml"]).get("db", {})


def test_the_master_is_one_pod_that_restarts_with_its_configuration() -> None:
    found = of_case("defaults")
    master = named(found, "Deployment", "determined-master-deployment-r")["spec"]
    assert master["replicas"] == 1
    assert master["strategy"] == {"type": "Recreate"}
    assert master["selector"]["matchLabels"] == {"app": "determined-master-r"}
    pod = master["template"]
    assert pod["metadata"]["labels"]["determined-system"] == "master"
    assert "determined" not in pod["metadata"]["labels"], "that label is of task pods alone"
    changed = objects(*files_of("defaults"), "--set", "initialUserPassword=Abcdefg2")
    other = named(changed, "Deployment", "determined-master-deployment-r")["spec"]["template"]
    assert other["metadata"]["annotations"] != pod["metadata"]["annotations"]
    container = pod["spec"]["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    service = named(found, "Service", "determined-master-service-r")
    assert service["spec"]["ports"][0]["port"] == 8080 and service["spec"]["ports"][0]["targetPort"] == 8081
    manager = configuration(found)["resource_manager"]
    assert manager["helper_image"] == container["image"] == "determinedai/determined-master:0.1.0"
    assert manager["max_slots_per_pod"] == 8 and manager["determined_master_port"] == 8080


def rights(found: list[dict[str, Any]], kind: str, name: str) -> set[tuple[str, str]]:
    return {
        (resource, verb)
        for one in found
        if one["kind"] == kind and one["metadata"]["name"] == name
        for rule in one["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_rights_are_those_that_are_used() -> None:
    reads = {(kind, verb) for kind in ("nodes", "pods", "events", "jobs") for verb in ("get", "list", "watch")}
    reads |= {("namespaces", verb) for verb in ("get", "list", "watch")}
    reads |= {("resourcequotas", "list"), ("resourcequotas", "watch")}
    reads |= {("priorityclasses", "get"), ("priorityclasses", "create")}
    writes = {("pods", "delete"), ("pods", "patch"), ("jobs", "create"), ("jobs", "delete")}
    writes |= {(kind, verb) for kind in ("secrets", "services") for verb in ("create", "get", "patch", "delete")}
    assert rights(of_case("defaults"), "ClusterRole", "determined-master-r") == reads
    assert rights(of_case("defaults"), "Role", "determined-master-r") == writes
    places = [
        it["metadata"]["namespace"]
        for it in of_case("defaults")
        if it["metadata"]["name"] == "determined-master-r" and it["kind"] == "Role"
    ]
    assert places == ["ns-r-tasks"], "nothing is changed in the namespace of the release"
    everywhere = objects(*LEAST, "--set", "rbac.profile=cluster")
    assert rights(everywhere, "ClusterRole", "determined-master-r") == reads | writes
    # The hook works with the same account, and may stop the master.
    assert rights(of_case("defaults"), "Role", "determined-uninstall-r") == {
        ("deployments/scale", "get"),
        ("deployments/scale", "patch"),
    }
    # In named namespaces only. A release without PriorityClasses of its own uses the common ones.
    master = named(of_case("volume"), "Deployment", "determined-master-deployment-r")["spec"]["template"]["spec"]
    assert master["priorityClassName"] == "determined-system-priority"
    # One that makes nothing outside of namespaces makes no classes either.
    only_reads = reads - {("priorityclasses", "create")}
    assert rights(of_case("volume"), "ClusterRole", "determined-master-r-second") == only_reads
    assert rights(of_case("volume"), "Role", "determined-master-r") == writes
    # Namespaces for workspaces are made and deleted only where that is asked for.
    makes = {("namespaces", verb) for verb in ("create", "delete")}
    makes |= {("resourcequotas", verb) for verb in ("get", "create", "patch", "delete")}
    assert rights(of_case("everything"), "ClusterRole", "determined-master-r") == reads | makes
    assert not [one for one in of_case("pedl") if "Role" in one["kind"]], "agents need no rights"


def test_ports_of_pods_may_be_forwarded_only_where_a_manager_of_this_cluster_does_so() -> None:
    def more(**own: str) -> tuple[str, str]:
        manager = {"type": "kubernetes", "cluster_name": "o", "determined_master_host": "h", **own}
        manager["task_exposure"] = "port_forward"
        managers = [{"resource_manager": manager, "resource_pools": [{"pool_name": "o"}]}]
        return "--set-json", f"additional_resource_managers={json.dumps(managers)}"

    def forwards(*words: str) -> bool:
        found = rights(objects(*LEAST, *words), "Role", "determined-master-r")
        verbs = {verb for resource, verb in found if resource == "pods/portforward"}
        assert verbs in (set(), {"get", "create"})
        return bool(verbs)

    assert forwards("--set", "taskExposure=port_forward")
    assert forwards("--set", "masterConfig.resource_manager.task_exposure=port_forward")
    assert forwards(*more())
    assert not forwards(*more(kubeconfig_secret_name="kc", kubeconfig_secret_value="config"))
    assert not forwards("--set", "taskExposure=pod_ip")


# A Gateway through which services of tasks are reached.
GATEWAY = (
    "internalTaskGateway.gatewayName=shared",
    "internalTaskGateway.gatewayNamespace=infra",
    "internalTaskGateway.gatewayIP=10.0.0.1",
)


def test_a_gateway_may_be_changed_only_where_a_manager_of_this_cluster_uses_it() -> None:
    def of_gateways(found: list[dict[str, Any]], kind: str, name: str) -> set[tuple[str, str]]:
        resources = ("gateways", "listenersets", "tcproutes")
        return {(resource, verb) for resource, verb in rights(found, kind, name) if resource in resources}

    words = [word for value in GATEWAY for word in ("--set", value)]
    for found in (objects(*LEAST, *words), objects(*LEAST, *words, "--set", "taskExposure=gateway")):
        assert configuration(found)["resource_manager"]["internal_task_gateway"] == {
            "gateway_name": "shared",
            "gateway_namespace": "infra",
            "gateway_ip": "10.0.0.1",
        }
        role = named(found, "Role", "determined-gateway-0-r")
        assert role["metadata"]["namespace"] == "infra"
        assert role["rules"][0]["resourceNames"] == ["shared"], "no other Gateway of that namespace"
        assert of_gateways(found, "Role", "determined-gateway-0-r") == {("gateways", "get"), ("gateways", "patch")}
        assert of_gateways(found, "ClusterRole", "determined-master-r") == {("listenersets", "list")}
        made = {(kind, verb) for kind in ("tcproutes", "listenersets") for verb in ("create", "get", "delete")}
        made |= {("tcproutes", "patch")}
        assert of_gateways(found, "Role", "determined-master-r") == made
    for other in ("pod_ip", "node_port"):
        found = objects(*LEAST, "--set", f"taskExposure={other}")
        for one in found:
            if "rules" in one and "Role" in one["kind"]:
                assert not of_gateways(found, one["kind"], one["metadata"]["name"])
    gateway = {"gateway_name": "far", "gateway_namespace": "there", "gateway_ip": "h"}
    manager: dict[str, Any] = {"type": "kubernetes", "cluster_name": "o", "determined_master_host": "h"}
    manager["internal_task_gateway"] = gateway

    def more(**own: str) -> list[dict[str, Any]]:
        managers = [{"resource_manager": {**manager, **own}, "resource_pools": [{"pool_name": "o"}]}]
        return objects(*LEAST, "--set-json", f"additional_resource_managers={json.dumps(managers)}")

    assert named(more(), "Role", "determined-gateway-0-r")["metadata"]["namespace"] == "there"
    elsewhere = more(kubeconfig_secret_name="kc", kubeconfig_secret_value="config")
    assert not rights(elsewhere, "Role", "determined-gateway-0-r"), "that Gateway is in another cluster"


def test_devices_may_be_claimed_only_where_a_manager_of_this_cluster_does_so() -> None:
    claims = ("--set", "slotType=dra", "--set", "deviceClass=gpu.example.com", "--set", "deviceDriver=d.example.com")
    found = objects(*LEAST, *claims)
    manager = configuration(found)["resource_manager"]
    assert (manager["slot_type"], manager["device_class"]) == ("dra", "gpu.example.com")
    assert manager["device_driver"] == "d.example.com"
    of_claims = ("deviceclasses", "resourceslices", "resourceclaims", "resourceclaimtemplates")

    def claimed(found: list[dict[str, Any]], kind: str) -> set[tuple[str, str]]:
        return {one for one in rights(found, kind, "determined-master-r") if one[0] in of_claims}

    reads = {(kind, verb) for kind in ("resourceslices", "resourceclaims") for verb in ("list", "watch")}
    assert claimed(found, "ClusterRole") == reads | {("deviceclasses", "get")}
    writes = {("resourceclaimtemplates", verb) for verb in ("create", "get", "patch", "delete")}
    assert claimed(found, "Role") == writes
    for kind in ("ClusterRole", "Role"):
        assert not claimed(of_case("defaults"), kind)


def test_pools_may_have_slots_of_their_own() -> None:
    small = {"pool_name": "small", "slot_resource_name": "nvidia.com/mig-1g.10gb"}
    pools = [{"pool_name": "default"}, small]
    kept = ("--set", "defaultAuxResourcePool=default", "--set", "defaultComputeResourcePool=default")
    found = objects(*LEAST, *kept, "--set-json", f"resourcePools={json.dumps(pools)}")
    assert configuration(found)["resource_pools"][1] == small
    small = {"pool_name": "small", "device_class": "mig.nvidia.com", "device_driver": "gpu.nvidia.com"}
    pools = [{"pool_name": "default"}, small]
    claims = ("--set", "slotType=dra", "--set", "deviceClass=gpu.nvidia.com")
    found = objects(*LEAST, *kept, *claims, "--set-json", f"resourcePools={json.dumps(pools)}")
    assert configuration(found)["resource_pools"][1] == small


def test_the_class_of_devices_may_be_in_the_configuration_of_the_master() -> None:
    in_config = ("--set", "masterConfig.resource_manager.device_class=gpu.example.com")
    manager = configuration(objects(*LEAST, "--set", "slotType=dra", *in_config))["resource_manager"]
    assert (manager["slot_type"], manager["device_class"]) == ("dra", "gpu.example.com")
    claimed = ("--set", "masterConfig.resource_manager.slot_type=dra", "--set", "deviceClass=gpu.example.com")
    manager = configuration(objects(*LEAST, *claimed))["resource_manager"]
    assert (manager["slot_type"], manager["device_class"]) == ("dra", "gpu.example.com")


def test_two_releases_share_no_name() -> None:
    def names(release: str, *words: str) -> set[tuple[str, str]]:
        found = objects(*LEAST, *words, release=release)
        return {(one["kind"], one["metadata"]["name"]) for one in found}

    # The second one uses the classes of the first: with a cluster at hand the chart sees that by itself.
    shared = names("a") & names("b")
    assert shared == {("PriorityClass", f"determined-{name}-priority") for name in ("system", "medium")}
    assert not names("a") & names("b", "--set", "createNonNamespacedObjects=false")
    # Releases of one name in two namespaces differ in what belongs to no namespace.
    cluster_scoped = {"PriorityClass", "ClusterRole", "ClusterRoleBinding"}
    common = names("a") & names("a", "--set", "clusterScopedSuffix=two")
    assert not [one for one in common if one[0] in cluster_scoped]


def test_a_volume_of_checkpoints_is_mounted_by_task_pods() -> None:
    tasks = configuration(of_case("volume"))["task_container_defaults"]
    for kind in ("cpu_pod_spec", "gpu_pod_spec"):
        spec = tasks[kind]["spec"]
        assert spec["imagePullSecrets"] == [{"name": "pull"}]
        assert spec["volumes"] == [
            {"name": "determined-checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}
        ]
        container = [one for one in spec["containers"] if one["name"] == "determined-container"]
        assert container[0]["volumeMounts"] == [
            {"name": "determined-checkpoints", "mountPath": "/determined_shared_fs"}
        ]
    assert [one["name"] for one in tasks["gpu_pod_spec"]["spec"]["containers"]] == ["side", "determined-container"]
    storage = configuration(of_case("volume"))["checkpoint_storage"]
    assert storage["type"] == "directory" and storage["container_path"] == "/determined_shared_fs"


def test_older_names_are_translated() -> None:
    found = of_case("pedl")
    whole = configuration(found)
    assert whole["resource_manager"] == {"type": "agent"}
    assert whole["task_container_defaults"]["network_mode"] == "host"
    assert whole["security"]["default_task"] == {"uid": 1000, "gid": 1000}
    assert whole["db"]["name"] == "pedl"
    master = named(found, "Deployment", "determined-master-deployment-r")["spec"]["template"]["spec"]
    assert master["containers"][0]["image"] == "determinedai/pedl-master:0.1.0"
    assert master["containers"][0]["resources"]["limits"] == {"cpu": "8", "memory": "16Gi"}
    assert master["nodeSelector"] == {"kind": "master"} and master["tolerations"] == [
        {"key": "a", "operator": "Exists"}
    ]
    assert master["imagePullSecrets"] == [{"name": "determined-registry-r"}]
    service = named(found, "Service", "determined-master-service-r")["spec"]
    assert service["type"] == "NodePort" and service["ports"][0]["nodePort"] == 30080
    database = named(found, "Deployment", "determined-db-deployment-r")["spec"]["template"]["spec"]
    assert database["containers"][0]["image"] == "docker.io/bitnami/postgresql:10.8.0"
    assert database["containers"][0]["resources"]["limits"]["memory"] == "32Gi"
    claim = named(found, "PersistentVolumeClaim", "determined-db-pvc-r")["spec"]
    assert claim["storageClassName"] == "" and claim["resources"]["requests"]["storage"] == "100Gi"
    agents = named(found, "DaemonSet", "determined-agent-r")["spec"]["template"]["spec"]
    assert {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"} in agents["tolerations"]
    taints = {one["key"] for one in agents["tolerations"]}
    assert {"determined.ai/agent", "determined.ai/pedl-agent"} <= taints
    config = yaml.safe_load(named(found, "ConfigMap", "determined-agent-config-r")["data"]["agent.yaml"])
    assert config["slot_type"] == "auto"


def matching(daemons: list[dict[str, Any]], labels: dict[str, str]) -> list[str]:
    """Names of the DaemonSets that a node with these labels gets a pod of."""
    names = []
    for one in daemons:
        affinity = one["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        holds = {
            "In": lambda rule: labels.get(rule["key"]) in rule["values"],
            "DoesNotExist": lambda rule: rule["key"] not in labels,
        }
        if any(all(holds[rule["operator"]](rule) for rule in term["matchExpressions"]) for term in terms):
            names.append(one["metadata"]["name"])
    return names


def test_a_labelled_node_gets_one_agent_of_its_pool() -> None:
    words = ["--set", "resourceManager.type=agent"]
    words += ["--set", "resourcePools[0].pool_name=default", "--set", "resourcePools[1].pool_name=Big_GPUs"]
    daemons = [one for one in objects(*words) if one["kind"] == "DaemonSet"]
    assert [one["metadata"]["name"] for one in daemons] == ["determined-agent-r", "determined-agent-r-big-gpus"]
    both = {"determined.ai/agent": "present", "determined.ai/pedl-agent": "present"}
    assert matching(daemons, {}) == []
    for label in both:
        assert matching(daemons, {label: "present"}) == ["determined-agent-r"]
    assert matching(daemons, {**both, "determined.ai/resource-pool": "Big_GPUs"}) == ["determined-agent-r-big-gpus"]
    assert matching(daemons, {**both, "determined.ai/resource-pool": "unknown"}) == []


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("checkpointStorage.type=s3", "checkpointStorage.bucket=b"), "maxSlotsPerPod is required"),
        (("maxSlotsPerPod=8",), "checkpointStorage.allowHostPath"),
        (("maxSlotsPerPod=8", "checkpointStorage.type=s3"), "checkpointStorage.bucket is required"),
        (("slotType=cpu",), "slotResourceRequests.cpu"),
        (("slotType=tpu",), "/slotType"),
        (("slotType=dra",), "slotType dra needs deviceClass"),
        (("slotType=dra", "deviceClass=c", "slotResourceName=example.com/gpu"), "slotResourceName is"),
        (("slotType=cpu", "slotResourceRequests.cpu=1", "slotResourceName=example.com/gpu"), "slotResourceName is"),
        (("deviceClass=gpu.example.com",), "deviceClass is"),
        (("deviceDriver=d.example.com",), "deviceDriver is"),
        (("defaultScheduler=priority",), "/defaultScheduler"),
        (("taskExposure=ingress",), "/taskExposure"),
        (("taskExposure=gateway",), "needs internalTaskGateway"),
        (("taskExposure=pod_ip", *GATEWAY), "remove one of them"),
        (("internalTaskGateway.gatewayName=g",), "gatewayNamespace"),
        (("unknown=1",), "additional properties 'unknown' not allowed"),
        (("db.hostAdress=h",), "additional properties 'hostAdress' not allowed"),
        (("masterPort=0",), "/masterPort"),
        (("masterReplicas=2",), "/masterReplicas"),
        (("db.memRequest=lots",), "/db/memRequest"),
        (("initialUserPassword=weak",), "8 characters"),
        (("masterPort=9001", "service.port=9000"), "masterPort is 9001 and service.port, its older name, is 9000"),
        (("db.name=a", "postgresql.postgresqlDatabase=b"), "db.name is"),
        (("imageRegistry=a", "masterImage=b"), "imageRegistry is"),
        (("imagePullSecretName=a", "registry.user=u", "registry.password=p"), "imagePullSecretName is"),
        (("ingress.enabled=true", "ingress.sslPassthrough=true"), "tlsSecret"),
        (("defaultAuxResourcePool=none",), "no pool of resourcePools"),
        (("resourcePools[0].pool_name=a", "resourcePools[1].pool_name=b"), "defaultAuxResourcePool is required"),
        (("resourcePools[0].pool_name=a", "resourcePools[1].pool_name=a"), "two pools of the name"),
        (("resourcePools[0].pool_names=a",), "pool_name"),
        (("checkpointStorage.type=pvc", "resourcePools[0].kubernetes_namespace=x"), "existingClaim"),
        (("checkpointStorage.type=pvc", "checkpointStorage.mountToServer=true"), "checkpointStorage.mountToServer"),
        (("db.sslRootCert=ca.crt",), "db.certResourceName"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_values_that_cannot_work_are_refused(words: tuple[str, ...], part: str) -> None:
    given = [word for value in words for word in ("--set", value)]
    needed = any(value.startswith("maxSlots") or value.startswith("checkpointStorage.bucket") for value in words)
    pools = any(value.startswith("resourcePools") for value in words)
    least = [] if needed else list(LEAST)
    if pools and "resourcePools[0].pool_name" not in " ".join(words):
        least += ["--set", "resourcePools[0].pool_name=default"] if "names" not in words[0] else []
    assert part in refused(*least, *given)


def test_notes_name_the_address_and_what_was_translated(tmp_path: pathlib.Path) -> None:
    shown = notes(tmp_path / "a", *files_of("defaults"))
    assert "kubectl get service --namespace ns determined-master-service-r" in shown
    assert "export DET_MASTER=http://" in shown
    assert "kubectl get pods --namespace ns-r-tasks -l=determined" in shown
    assert "WARNING" not in shown and "workspace_id" not in shown
    shown = notes(tmp_path / "d", *files_of("defaults"), "--set", "rbac.workspaceBindings=true")
    assert "kubectl get namespaces --selector determined.ai/workspace_id" in shown
    shown = notes(tmp_path / "b", *files_of("seeds"))
    assert "export DET_MASTER=https://determined.example.com" in shown
    assert "which this chart does not deploy" in shown
    assert "telemetry.enabled is ignored" in shown
    assert "no initial password was given" in shown
    shown = notes(tmp_path / "c", *files_of("pedl"))
    for part in (
        'db.password is "postgres"',
        "masterImage is the older way",
        '"32GB" is no quantity of Kubernetes and counts as "32Gi"',
        "postgresql.postgresqlDatabase is the older name of db.name",
        "is older than PostgreSQL 14",
        "fluent is ignored",
        "kubectl label node NODE determined.ai/agent=present",
    ):
        assert part in shown, part
    assert "not-a-real-token" not in shown


def test_tasks_have_a_namespace_of_their_own() -> None:
    manager = configuration(of_case("defaults"))["resource_manager"]
    assert manager["default_namespace"] == "ns-r-tasks"
    assert named(of_case("defaults"), "Namespace", "ns-r-tasks")["metadata"]["annotations"] == {
        "helm.sh/resource-policy": "keep"
    }
    # A release that is called as its namespace.
    names = [it["metadata"]["name"] for it in objects(*LEAST, release="ns") if it["kind"] == "Namespace"]
    assert names == ["ns-tasks"]
    # One that is given is the administrator's, and agents need none.
    for words in (("resourceManager.defaultNamespace=given",), ("resourceManager.type=agent",)):
        found = objects(*LEAST, *(word for value in words for word in ("--set", value)))
        assert not [it for it in found if it["kind"] == "Namespace"], words
    # The claim of checkpoints is where the pods are that mount it.
    pvc = ["--set", "maxSlotsPerPod=8", "--set", "checkpointStorage.type=pvc"]
    assert (
        named(objects(*pvc), "PersistentVolumeClaim", "determined-checkpoints-r")["metadata"]["namespace"]
        == "ns-r-tasks"
    )
    further = ["--set", "additional_resource_managers[0].resource_manager.type=kubernetes"]
    further += ["--set", "additional_resource_managers[0].resource_manager.cluster_name=again"]
    further += ["--set", "additional_resource_managers[0].resource_manager.default_namespace=more"]
    further += ["--set", "additional_resource_managers[0].resource_pools[0].pool_name=more"]
    places = {
        it["metadata"]["namespace"]
        for it in objects(*LEAST, *further)
        if it["kind"] == "Role" and it["metadata"]["name"] == "determined-master-r"
    }
    assert places == {"ns-r-tasks", "more"}, "further managers of the same cluster"


# A curl that answers as the master and Kubernetes, and records what it is asked.
CURL = """#!/bin/sh
for word; do url=$word; case $word in DELETE | PATCH) verb=$word ;; esac; done
for word; do case $word in http*) url=$word ;; esac; done
echo "${verb:-GET} $url" >>"$ASKED"
case $url in
*/api/v1/master) printf '%s' "$ANSWER" ;;
*/scale) printf '{"spec":{"replicas":0},"status":{"replicas":0,"selector":"x"}}' ;;
*/jobs\\?*) printf '%s' "$JOBS" ;;
*/pods\\?*) printf '%s' "$PODS" ;;
esac
"""


@pytest.mark.parametrize("known", [True, False], ids=["master-answers", "master-is-away"])
def test_jobs_are_deleted_after_the_master_was_stopped(known: bool, tmp_path: pathlib.Path) -> None:
    found = of_case("defaults")
    hook = named(found, "Job", "determined-uninstall-r")["spec"]["template"]["spec"]["containers"][0]
    fake = tmp_path / "curl"
    fake.write_text(CURL)
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    asked = tmp_path / "asked"
    env = {one["name"]: one["value"] for one in hook["env"]}
    # As the API server prints it for curl.
    found_jobs = [
        {"name": "det-0a1b-exp-1", "namespace": "ns-r-tasks"},
        {"name": "det-0a1b-cmd-2", "namespace": "other"},
    ]
    found_pods = [{"name": "det-0a1b-exp-1-0-xyz", "generateName": "det-0a1b-exp-1-0-", "namespace": "ns-r-tasks"}]

    def listed(found: list[dict[str, str]]) -> str:
        items = [{"kind": "PartialObjectMetadata", "metadata": {**it, "labels": {"name": "x"}}} for it in found]
        metadata = {"resourceVersion": "1"}
        return json.dumps({"kind": "PartialObjectMetadataList", "metadata": metadata, "items": items}, indent=2)

    env |= {
        "JOBS": listed(found_jobs),
        "PODS": listed(found_pods),
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
    }
    env["ANSWER"] = json.dumps({"version": "0.38.1", "clusterId": "0a1b-2c"}) if known else ""
    env |= {"ASKED": str(asked), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run(
        [*hook["command"], *hook["args"]], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    lines = asked.read_text().splitlines()
    assert lines[0] == "GET http://determined-master-service-r:8080/api/v1/master"
    if not known:
        assert len(lines) == 1 and "kubectl get jobs" in run.stderr
        return
    scale = "https://10.96.0.1:443/apis/apps/v1/namespaces/ns/deployments/determined-master-deployment-r/scale"
    batch, core = "https://10.96.0.1:443/apis/batch/v1", "https://10.96.0.1:443/api/v1"
    assert lines[1:] == [
        f"PATCH {scale}",
        f"GET {scale}",
        f"GET {batch}/jobs?labelSelector=determined.ai%2Fcluster_id%3D0a1b-2c",
        f"GET {core}/pods?labelSelector=determined.ai%2Fcluster_id%3D0a1b-2c",
        # They would wait for the master, which is stopped.
        f"DELETE {core}/namespaces/ns-r-tasks/pods/det-0a1b-exp-1-0-xyz?gracePeriodSeconds=30",
        f"DELETE {batch}/namespaces/ns-r-tasks/jobs/det-0a1b-exp-1?propagationPolicy=Background",
        f"DELETE {batch}/namespaces/other/jobs/det-0a1b-cmd-2?propagationPolicy=Background",
    ]
    assert run.stdout.endswith("Jobs of cluster 0a1b-2c: 2\n")
