"""NVIDIA GPUs: what is found of them, who sees them, what is measured on them, and that they are free afterwards.

What is measured depends on the card; each test prints it, and compares it with what the driver's tool shows meanwhile.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pathlib
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import harness
from configs import experiment
from conftest import equipment, flavoured
from harness import Agent, Cluster
from processes import processes_with
from waiting import Hopeless, wait_for

pytestmark = pytest.mark.gpu

PROGRAMS = harness.TRIALS / "gpu"
MIB = 1 << 20
# What `holds.py` keeps, in both of its processes.
HELD = 8192 * MIB
# Between a program's start and the agent's next look there may be an import of torch and 15 seconds.
LOOK = 90


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One agent, whose slots are the GPUs that it finds by itself."""
    with equipment():
        python = harness.gpu_python()
        found = len(harness.listed_gpus())
    with flavoured("core", python=python, agents=[Agent("agent-1", found, detects=True)]) as cluster:
        yield cluster


@pytest.fixture
def note(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Prints what was measured, also where the test passes."""

    def write(*lines: object) -> None:
        with capsys.disabled():
            print("", *lines, sep="\n  ")

    return write


def slots(cluster: Cluster) -> list[Any]:
    """The slots of the agent as the API has them, in their order."""
    [agent] = cluster.api("GET", "/api/v1/agents")["agents"]
    return [agent["slots"][key] for key in sorted(agent["slots"], key=int)]


def watched(cluster: Cluster, what: str, is_it: Callable[[Any], bool]) -> Any:
    """The first slot, once the agent has seen so much of its GPU."""

    def seen() -> Any:
        slot = slots(cluster)[0]
        return slot if slot.get("usage") and is_it(slot["usage"]) else None

    return wait_for(what, seen, within=LOOK, seen=lambda: f"{slots(cluster)}\n{cluster.describe()}")


def on_gpus() -> dict[int, int]:
    """The processes with memory of a GPU, and how much that is, in MiB."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    out = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(out)) if len(row) == 2]
    return {int(pid): int(used) if used.isdigit() else 0 for pid, used in rows}


def used_mib() -> int:
    return int(harness.listed_gpus()[0]["memory.used"])


def command(cluster: Cluster, program: str, slots: int = 1, *flags: str, check: bool = True) -> Any:
    """Runs a program of `trials/gpu` as a command."""
    words = ("-c", PROGRAMS, "--config", f"resources.slots={slots}", *flags)
    return cluster.run_det("cmd", "run", *words, "python3", program, check=check, within=180)


def behind(out: str, word: str) -> list[Any]:
    """What a program printed behind a word."""
    return [json.loads(found) for found in re.findall(rf"\b{word} (\{{.*\}})$", out, re.M)]


def held(cluster: Cluster) -> str:
    """A command whose two processes keep memory of the GPU; gives its id."""
    words = ("-d", "-c", PROGRAMS, "--config", "resources.slots=1", "python3", "holds.py")
    [task] = cluster.run_det("cmd", "run", *words).out.split()
    cluster.wait_task_printed(task, "holding", within=120, times=2)
    return task


def training(name: str, hparams: dict[str, Any], **more: Any) -> dict[str, Any]:
    return experiment(name, "python3 train.py", hyperparameters=hparams, **more)


def trained(cluster: Cluster, submitted: int, times: int = 1) -> int:
    """The trial of an experiment, once so many of its runs have trained a step."""
    trial = cluster.only_trial(submitted)["id"]

    def has_trained() -> bool:
        if cluster.experiment(submitted)["state"] in harness.TERMINAL:
            raise Hopeless(f"experiment {submitted} has ended")
        return len(printed(cluster, trial, "trains")) >= times

    wait_for(f"run {times} of trial {trial} to train", has_trained, within=120, seen=cluster.describe)
    return trial


def printed(cluster: Cluster, trial: int, word: str) -> list[Any]:
    return behind("\n".join(cluster.printed(trial)), word)


def test_the_agent_offers_what_the_driver_lists(cluster: Cluster, note: Callable[..., None]) -> None:
    watched(cluster, "the agent's first look", lambda usage: usage.get("memoryBytes"))
    gpus, found = harness.listed_gpus(), slots(cluster)
    assert [(slot["device"]["uuid"], slot["device"]["brand"]) for slot in found] == [
        (gpu["uuid"], gpu["name"]) for gpu in gpus
    ]
    for slot, gpu in zip(found, gpus):
        assert slot["device"]["type"] == "TYPE_CUDA", slot
        assert int(slot["usage"]["memoryBytes"]) == int(gpu["memory.total"]) * MIB, (slot, gpu)
        assert abs(int(slot["usage"]["celsius"]) - int(gpu["temperature.gpu"])) < 15, (slot, gpu)
        assert (slot["enabled"], slot.get("fault", "")) == (True, ""), slot
    [agent] = cluster.run_det("agent", "list", "--json").json()
    assert agent["num_slots"] == len(gpus), agent
    table = cluster.run_det("slot", "list").out
    assert gpus[0]["name"] in table and "cuda" in table, table
    note(table, cluster.run_det("agent", "list").out, cluster.run_det("slot", "list", "--json").out, found, gpus)


def test_a_command_sees_the_gpus_of_its_slots_and_no_others(cluster: Cluster, note: Callable[..., None]) -> None:
    gpu = harness.listed_gpus()[0]
    [one] = behind(command(cluster, "sees.py").out, "sees")
    note(one)
    assert one["visible"] == gpu["uuid"]
    assert one["tool"][0] == 0 and gpu["uuid"] in "".join(one["tool"][1]), one
    assert "/dev/nvidiactl" in one["files"] and "/dev/nvidia-uvm" in one["files"], one
    assert one["torch"] == "1 262144.0"
    [none] = behind(command(cluster, "sees.py", 0).out, "sees")
    note(none)
    assert (none["visible"], none["files"], none["makes"]) == ("", [], False), none
    assert gpu["uuid"] not in "".join(none["tool"][1]), none
    # Neither the variable nor its absence opens what is not there.
    assert none["torch"].startswith("0 ") and none["torch without the variable"].startswith("0 "), none


def test_a_trial_on_a_gpu_is_measured(cluster: Cluster, note: Callable[..., None]) -> None:
    gpu = harness.listed_gpus()[0]
    hparams = {"model": "wide", "batches": 50, "seconds": 28}
    submitted = cluster.submit(training("measured", hparams, profiling={"enabled": True}), "gpu")
    trial = trained(cluster, submitted)
    busy = watched(cluster, "a busy GPU", lambda usage: usage.get("utilizationPercent", 0) > 20)
    samples = []

    def ended() -> bool:
        samples.append(harness.listed_gpus()[0])
        return cluster.experiment(submitted)["state"] == "COMPLETED"

    table = cluster.run_det("slot", "list").out
    wait_for("the end of the trial", ended, within=120, seen=cluster.describe, look_every=1)
    reports = [report["metrics"]["avg_metrics"]["agent-1"] for report in cluster.metrics(trial, "gpu")]
    assert reports and all(list(report) == [gpu["uuid"]] for report in reports), reports
    used = [report[gpu["uuid"]]["gpu_util"] for report in reports]
    free = [report[gpu["uuid"]]["gpu_free_memory"] / MIB for report in reports]
    shown = [(int(one["utilization.gpu"]), int(one["memory.free"])) for one in samples]
    note(table, busy["usage"], f"per cent {used}, free MiB {free}", f"meanwhile nvidia-smi: {shown}")
    # Averages of ten seconds beside single looks.
    assert abs(max(used) - max(percent for percent, _ in shown)) < 25
    assert abs(min(free) - min(mib for _, mib in shown)) < 1024
    path = f"/api/v1/trials/{trial}/profiler/available_series"
    labels = {(one["gpuUuid"], one["name"]) for one in cluster.stream(path)[-1]["labels"]}
    assert {(gpu["uuid"], "gpu_util"), (gpu["uuid"], "gpu_free_memory")} <= labels, labels
    note(cluster.run_det("trial", "metrics", trial).out)
    assert printed(cluster, trial, "trains")[0]["device"] == "cuda:0"
    losses = [report["metrics"]["avg_metrics"]["loss"] for report in cluster.metrics(trial, "training")]
    assert losses[-1] < losses[0], losses
    [checkpoint] = cluster.checkpoints(submitted)
    assert checkpoint["state"] == "COMPLETED" and "state.pt" in checkpoint["resources"], checkpoint
    task = cluster.trial(trial)["taskId"]
    [accelerators] = cluster.api("GET", f"/api/v1/tasks/{task}/acceleratorData")["acceleratorData"]
    assert accelerators["acceleratorUuids"] == [gpu["uuid"]], accelerators


def test_more_slots_than_gpus_are_refused_with_the_reason(cluster: Cluster, note: Callable[..., None]) -> None:
    found = len(harness.listed_gpus())
    config = cluster.write_config(experiment("wide", "true", resources={"slots_per_trial": found + 1}))
    refused = cluster.run_det("experiment", "create", config, cluster.empty_context(), check=False)
    note(refused)
    assert refused.code == 1 and re.search(rf"slots_per_trial.*fit: {found}\b", refused.err), str(refused)
    refused = command(cluster, "sees.py", found + 1, check=False)
    note(refused)
    assert refused.code == 1 and "slots" in refused.err, str(refused)


def test_a_killed_task_frees_its_gpu(cluster: Cluster, note: Callable[..., None]) -> None:
    before = used_mib()
    task = held(cluster)
    own = {found.pid for found in processes_with(f"DET_TASK_ID={task}")}
    apps = on_gpus()
    note(f"MiB used before {before}, now {used_mib()}; of processes {apps}; the task's {sorted(own)}")
    assert len(own & apps.keys()) == 2 and used_mib() - before > HELD / MIB
    slot = watched(cluster, "the memory held", lambda usage: int(usage["memoryUsedBytes"]) > HELD)
    assert slot["container"]["id"], slot
    cluster.run_det("cmd", "kill", task)

    def is_free() -> bool:
        return not own & on_gpus().keys() and used_mib() - before < 64

    wait_for("the GPU to be free", is_free, within=30, seen=on_gpus)
    wait_for("the slot to be free", lambda: not slots(cluster)[0].get("container"), within=30, seen=cluster.describe)
    note(f"MiB used after {used_mib()}; of processes {on_gpus()}", cluster.run_det("slot", "list").out)
    # What comes next has all of it.
    [one] = behind(command(cluster, "sees.py").out, "sees")
    assert one["torch"] == "1 262144.0"


def test_a_paused_trial_leaves_the_gpu_and_goes_on_from_its_checkpoint(
    cluster: Cluster, note: Callable[..., None]
) -> None:
    before = used_mib()
    submitted = cluster.submit(training("paused", {"model": "wide", "batches": 20, "seconds": 600}), "gpu")
    trial = trained(cluster, submitted)
    cluster.run_det("experiment", "pause", submitted)
    cluster.wait_experiment(submitted, "PAUSED", within=60)
    cluster.wait_log(trial, "saved {", within=60)
    wait_for("the GPU to be free", lambda: used_mib() - before < 64, within=60, seen=on_gpus)
    cluster.run_det("experiment", "activate", submitted)
    trained(cluster, submitted, times=2)
    [saved], [restored] = printed(cluster, trial, "saved"), printed(cluster, trial, "restored")
    note(saved, restored, printed(cluster, trial, "trains"))
    assert restored == saved
    assert printed(cluster, trial, "trains")[1]["steps"] == saved["steps"] + 1
    cluster.run_det("experiment", "kill", submitted)
    cluster.wait_experiment(submitted, "CANCELED", within=60)
    assert cluster.trial(trial)["restarts"] == 0


def test_an_error_of_a_program_is_no_fault_of_its_gpu(cluster: Cluster, note: Callable[..., None]) -> None:
    strayed = command(cluster, "strays.py", check=False)
    note(*[line for line in strayed.out.splitlines() if "Error" in line or "error" in line], kernel_log("NVRM: Xid"))
    assert strayed.code != 0 and "illegal memory access" in strayed.out, str(strayed)
    # The agent has looked since, and the GPU works.
    task = held(cluster)
    slot = watched(cluster, "the memory held", lambda usage: int(usage["memoryUsedBytes"]) > HELD)
    cluster.run_det("cmd", "kill", task)
    assert (slot["enabled"], slot.get("draining", False), slot.get("fault", "")) == (True, False, ""), slot
    events = cluster.api("GET", "/api/v1/events?subjectKind=agent&subjectId=agent-1", user="admin")["events"]
    assert not [event for event in events if event["kind"] == "draining"], events


def kernel_log(text: str) -> list[str]:
    """Lines of the kernel's log with `text`, or why there are none."""
    done = subprocess.run(["dmesg"], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if text in line]
    return lines or [f'(nothing with "{text}" in {len(done.stdout.splitlines())} lines) {done.stderr.strip()}']


def test_nccl_starts_in_a_task(cluster: Cluster) -> None:
    assert "collected 1024.0" in command(cluster, "collects.py").out


@pytest.mark.parametrize(("model", "count"), [("wide", 200), ("narrow", 600)])
def test_a_task_trains_beside_the_same_program_outside(
    cluster: Cluster, note: Callable[..., None], model: str, count: int
) -> None:
    hparams = {"model": model, "measure": count}
    package = pathlib.Path(harness.HERE.parent, "python", "src")
    argv = [str(cluster.python), str(PROGRAMS / "train.py"), json.dumps(hparams)]
    env = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=180, cwd=cluster.root / "work")
    [outside] = behind(done.stdout, "rates") or [pytest.fail(done.stderr)]
    profiled = training(f"rates-{model}", hparams, profiling={"enabled": True})
    [inside] = printed(cluster, cluster.run(profiled, "gpu", within=180)["id"], "rates")
    ratio = max(inside["rates"]) / max(outside["rates"])
    # To be compared by hand: how fast a machine is at a moment passes or fails no test.
    note(f"batches a second of {model}: in a task {inside}, outside {outside}: ratio {ratio:.3f}")


def test_the_profiler_of_the_pypi_package_measures_the_gpu(note: Callable[..., None]) -> None:
    with equipment():
        python = harness.gpu_python(wheel=True)
    gpus = harness.listed_gpus()
    agent = Agent("agent-1", len(gpus), detects=True)
    with flavoured("core", python=python, agents=[agent]) as cluster:
        hparams = {"model": "wide", "batches": 50, "seconds": 20, "profiler": True}
        trial = cluster.run(training("pypi", hparams), "gpu", within=180)["id"]
        reports = [report["metrics"]["avg_metrics"]["agent-1"] for report in cluster.metrics(trial, "gpu")]
        note(reports)
        # The supervisor was not asked to measure.
        assert reports and all(gpus[0]["uuid"] in report for report in reports), reports
        assert max(report[gpus[0]["uuid"]]["gpu_util"] for report in reports) > 20, reports
        assert cluster.checkpoints(cluster.trial(trial)["experimentId"])[0]["state"] == "COMPLETED"
