"""System metrics: what supervisors measure, read with both clients, beside code that measures itself."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import harness
from configs import experiment, merged
from conftest import equipment, flavoured
from harness import Cluster, Missing, share
from waiting import wait_for

pytestmark = pytest.mark.client

PROFILED = {"profiling": {"enabled": True}}

# Reads with the PyPI package what its pages and scripts read; prints it as JSON.
READ = """
import json, os, sys
from determined.common.api import authentication, bindings
from determined.experimental import client

client.login(master=os.environ["DET_MASTER"], user="determined", password="")
trial = client.get_trial(int(sys.argv[1]))
groups = ("cpu", "memory", "disk", "network", "gpu")
session = trial._session
series = list(bindings.get_GetTrialProfilerAvailableSeries(session, trialId=trial.id, follow=True))
values = list(bindings.get_GetTrialProfilerMetrics(session, labels_trialId=trial.id, labels_name="cpu_util_simple"))
print(json.dumps({
    "groups": {group: [report.metrics for report in trial.iter_metrics(group=group)] for group in groups},
    "series": sorted((one.agentId, one.gpuUuid, one.name) for one in series[-1].labels),
    "values": [value for message in values for value in message.batch.values],
}))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose tasks run with the PyPI package."""
    with equipment():
        harness.wheel_det()
        python = harness.wheel_python()
    with flavoured("core", python=python) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def services() -> Iterator[Cluster]:
    """A cluster whose tasks have what services need."""
    with equipment():
        harness.wheel_det()
        if not pathlib.Path("/usr/sbin/sshd").is_file():
            raise Missing("there is no SSH server: install openssh-server")
    with flavoured("core") as cluster:
        yield cluster


def read(cluster: Cluster, trial: int) -> Any:
    return cluster._run([str(harness.wheel_python()), "-c", READ, str(trial)], "wheel-home", True).json()


def reports(cluster: Cluster, trial: int, group: str) -> list[Any]:
    return [report["metrics"]["avg_metrics"] for report in cluster.metrics(trial, group)]


def with_gpu(*variables: str) -> dict[str, Any]:
    """The context directory has a stand-in for the driver's tool; the task may use one of the GPUs that it prints."""
    found = ["PATH=/run/determined/workdir:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES=GPU-e2e-1"]
    return {"environment": {"environment_variables": [*found, *variables]}}


def test_a_task_without_python_is_measured_and_both_clients_show_it(cluster: Cluster) -> None:
    # A task that ended at once could end before the stand-in has printed anything.
    waits = "until [ -e printed ]; do sleep 0.1; done; echo done"
    config = experiment("measured", waits, **with_gpu(), **PROFILED)
    trial = cluster.run(config, "profiled")["id"]
    agent = cluster.agents[0].name
    found = read(cluster, trial)
    groups = found["groups"]
    assert 0 <= groups["cpu"][-1][agent]["cpu_util_simple"] <= 100
    assert groups["memory"][-1][agent]["memory_free"] > 0
    disk = groups["disk"][-1][agent]
    assert {"disk_iops", "disk_throughput_read", "disk_throughput_write"} <= disk.keys()
    assert 0 <= disk["/"]["disk_util"] <= 100
    assert groups["network"][-1][agent].keys() == {"net_throughput_sent", "net_throughput_recv"}
    assert groups["gpu"] == [{agent: {"GPU-e2e-1": {"gpu_util": 75, "gpu_free_memory": 2000 * 1024 * 1024}}}]
    assert [agent, "GPU-e2e-1", "gpu_util"] in found["series"]
    assert [agent, "/", "disk_util"] in found["series"]
    assert found["values"] == [report[agent]["cpu_util_simple"] for report in groups["cpu"]]

    table = cluster.run_det("trial", "metrics", trial).out
    assert "memory_free" in table and "GB" in table, table
    gpu = cluster.run_det("trial", "metrics", trial, "--group", "gpu", "--json").json()
    utilisation = next(row for row in gpu if row["metric"] == "gpu_util")
    assert (utilisation["of"], utilisation["last"]) == (f"{agent} GPU-e2e-1", 75)
    values = cluster.run_det("trial", "metrics", trial, "--metric", "cpu_util_simple", "--values", "--csv").out
    assert len(values.splitlines()) == 1 + len(groups["cpu"])


def test_tasks_of_other_kinds_are_measured_too(cluster: Cluster) -> None:
    profiled = ("--config", "profiling.enabled=true", "--config", "resources.slots=0")
    command = cluster.run_det("cmd", "run", "-d", *profiled, "echo done").out.split()[-1]
    generic = {"entrypoint": ["sh", "-c", "echo done"], "resources": {"slots": 0}, **PROFILED}
    created = cluster.run_det("task", "create", cluster.write_config(generic)).out.split()[-1]
    agent = cluster.agents[0].name
    for task in (command, created):

        def measured(task: str = task) -> Any:
            rows = cluster.run_det("task", "metrics", task, "--json").json()
            return {row["metric"]: row for row in rows} or None

        rows = wait_for(f"what is measured of task {task}", measured, within=60, seen=cluster.describe)
        assert rows["memory_free"]["of"] == agent and rows["memory_free"]["last"] > 0
        assert {"cpu_util_simple", "disk_util", "net_throughput_sent"} <= rows.keys()
        table = cluster.run_det("task", "metrics", task, "--group", "memory").out
        assert "memory_free" in table and "GB" in table and "cpu_util" not in table, table
    plain = cluster.run_det("cmd", "run", "-d", "--config", "resources.slots=0", "echo done").out.split()[-1]
    nothing = cluster.run_det("task", "metrics", plain, check=False)
    assert nothing.code == 1 and "profiling: {enabled: true}" in nothing.err, nothing


@pytest.mark.parametrize("kind", ["notebook", "shell", "tensorboard"])
def test_services_are_measured_while_they_run(services: Cluster, kind: str) -> None:
    about = [services.run(experiment("measured", "true"))["experimentId"]] if kind == "tensorboard" else []
    flags = ("--config", "profiling.enabled=true", "--config", "resources.slots=0")
    service = services.client(kind, "start", "-d", *about, *flags).out.split()[-1]

    def measured() -> Any:
        rows = services.run_det("task", "metrics", service, "--json").json()
        return {row["metric"]: row for row in rows} or None

    rows = wait_for(f"what is measured of the {kind}", measured, within=60, seen=services.describe)
    agent = services.api("GET", "/api/v1/agents")["agents"][0]["id"]
    assert rows["memory_free"]["of"] == agent and rows["memory_free"]["last"] > 0
    assert {"cpu_util_simple", "disk_util", "net_throughput_sent"} <= rows.keys()
    services.client(kind, "kill", service)


def test_nothing_is_measured_unless_the_configuration_asks_for_it(cluster: Cluster) -> None:
    trial = cluster.run(experiment("plain", "echo done"))["id"]
    assert reports(cluster, trial, "cpu") == []
    nothing = cluster.run_det("trial", "metrics", trial, check=False)
    assert nothing.code == 1 and "profiling: {enabled: true}" in nothing.err, nothing


def test_code_that_measures_itself_takes_the_place_of_the_supervisor(cluster: Cluster) -> None:
    shared = cluster.shared_dir()
    config = experiment("own", "python3 profiled.py", **share(shared), **PROFILED)
    submitted = cluster.submit(merged(config, with_gpu("E2E_DIR=/e2e-shared")), "profiled", wheel=True)
    trial = cluster.only_trial(submitted)["id"]
    # The package reports every second here, the supervisor after ten seconds and at the end.
    wait_for("reports of the code", lambda: len(reports(cluster, trial, "cpu")) >= 2, within=60, seen=cluster.describe)
    (shared / "go").touch()
    cluster.wait_experiment(submitted, "COMPLETED")
    assert reports(cluster, trial, "memory") != []
    assert reports(cluster, trial, "gpu") == [], "only the supervisor knows the stand-in's GPUs"
