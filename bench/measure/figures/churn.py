"""Many starts and ends on one agent: whether any is lost, what is left of them, and whether the agent grows."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from measure.cluster import Cluster, Failed, wait_for
from measure.facts import Watch, memory_kb
from measure.figures import Figure, Plan
from measure.results import Outcome, Skipped, Value
from measure.stores import own

# Tasks that are launched at once.
BATCH = 50
SLOTS = 8
# Label that the agent puts on every container of an engine.
CLUSTER_LABEL = "ai.determined.container.cluster"
# By how much the agent may have grown from its second batch to the last: caches are full by then.
MOST_MB = 16.0
MOST_DESCRIPTORS = 8


@dataclass
class _Agent:
    """What the agent has between two batches, when nothing runs."""

    pid: int
    memory_mb: list[float] = field(default_factory=list)
    descriptors: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)

    def look(self) -> None:
        proc = pathlib.Path(f"/proc/{self.pid}")
        self.memory_mb.append(memory_kb(self.pid)["Anonymous"] / 1024)
        self.descriptors.append(len(list((proc / "fd").iterdir())))
        self.threads.append(len(list((proc / "task").iterdir())))

    def check(self) -> None:
        """Fails where it has grown."""
        first = min(1, len(self.memory_mb) - 1)
        for what, samples, most in (
            ("MB of memory", self.memory_mb, MOST_MB),
            ("descriptors", self.descriptors, MOST_DESCRIPTORS),
        ):
            if samples[-1] - samples[first] > most:
                raise Failed(f"the agent's {what} have grown from {samples[first]:.1f} to {samples[-1]:.1f}: {samples}")


def churn_of_processes(plan: Plan, store_kind: str) -> Outcome:
    """As processes."""
    return _churn(plan, store_kind, "task-churn", "process", None)


def churn_of_containers(plan: Plan, store_kind: str) -> Outcome:
    """In containers of the engine that DOCKER_HOST names, Docker or Podman."""
    if plan.image is None:
        raise Skipped("DET_BENCH_IMAGE names no image with a shell")
    if shutil.which("docker") is None:
        raise Skipped("there is no docker on PATH")
    done = subprocess.run(["docker", "image", "inspect", plan.image], capture_output=True, text=True)
    if done.returncode != 0:
        raise Skipped(f'the engine has no image "{plan.image}": {done.stderr.strip()}')
    return _churn(plan, store_kind, "task-churn-containers", "docker", plan.image)


def _churn(plan: Plan, store_kind: str, name: str, runtime: str, image: str | None) -> Outcome:
    count = 100 if plan.quick else 1000
    taken: list[float] = []
    seen: dict[str, str] = {}
    with (
        own(store_kind) as store,
        Cluster(plan.det, plan.work, store, slots=SLOTS, runtime=runtime, image=image) as cluster,
    ):
        kinds = _kinds(image)
        agent = _Agent(cluster.pids()["agent"][0])
        files: set[str] = set()
        with Watch(cluster.pids()) as watch:
            for first in range(0, count, BATCH):
                began = time.perf_counter()
                ended = _batch(cluster, range(first, min(first + BATCH, count)), kinds)
                taken.append((time.perf_counter() - began) / len(ended))
                if again := seen.keys() & ended.keys():
                    raise Failed(f"containers ran twice: {sorted(again)}")
                seen.update(ended)
                agent.look()
                if first == 0:
                    files = _files(cluster)
                plan.say(
                    f"{len(seen)} of {count} have ended; agent: {agent.memory_mb[-1]:.1f} MB, "
                    f"{agent.descriptors[-1]} descriptors"
                )
        if left := _left(cluster, set(seen)) + sorted(_files(cluster) - files):
            raise Failed(f"{len(left)} things are left behind: {left[:20]}")
        agent.check()
        label = store.label
    kind = "process" if image is None else "container"
    return Outcome(
        name,
        f"{count:,} tasks that start and end, each a {kind}",
        label,
        "Commands and generic tasks that print a line and end, and commands and shells that are killed once they run; "
        f"{BATCH} launched at once on {SLOTS} slots of one agent, until all have ended. The figure fails if one ends "
        "otherwise, if its line is not once in its log, if two ran in one container, or if anything is left: processes,"
        " containers, mounts, control groups, files of the agent. The agent is looked at between batches, when nothing "
        "runs; MB are MiB of Anonymous in /proc/PID/smaps_rollup.",
        [
            Value("a task", "ms", [seconds * 1e3 for seconds in taken], "time of a batch by its number of tasks"),
            Value("memory of the agent", "MB", agent.memory_mb, "after each batch"),
            Value("descriptors of the agent", "", agent.descriptors, "after each batch"),
            Value("threads of the agent", "", agent.threads, "after each batch"),
        ],
        {
            "tasks": count,
            "batch": BATCH,
            "slots": SLOTS,
            "runtime": runtime,
            "image": image,
            "kinds": [f"{kind.member}{', killed' if kind.killed else ''}" for kind in kinds],
        },
        watch.cores(),
    )


def _line(number: int) -> str:
    return f"bench: task {number} was here"


@dataclass(frozen=True)
class _Kind:
    """How a task is launched and how it ends."""

    launch: str
    # The member of answers that has the task.
    member: str
    # Ended by us once it runs, or by itself.
    killed: bool

    def config(self, number: int, image: str | None) -> dict[str, Any]:
        config: dict[str, Any] = {"resources": {"slots": 1}}
        if self.member != "shell":
            then = "; exec sleep 600" if self.killed else ""
            config["entrypoint"] = ["sh", "-c", f"echo '{_line(number)}'{then}"]
        if image is not None:
            config["environment"] = {"image": image}
        return config


COMMAND = _Kind("commands", "command", killed=False)
GENERIC = _Kind("generic-tasks", "task", killed=False)
KILLED = _Kind("commands", "command", killed=True)
SHELL = _Kind("shells", "shell", killed=True)


def _kinds(image: str | None) -> list[_Kind]:
    """What is launched in turn; shells where there is an SSH server."""
    kinds = [COMMAND, COMMAND, GENERIC, KILLED]
    looked = ["test", "-x", "/usr/sbin/sshd"]
    if image is not None:
        looked = ["docker", "run", "--rm", "--entrypoint", looked[0], image, *looked[1:]]
    return [*kinds, SHELL] if subprocess.run(looked, capture_output=True).returncode == 0 else kinds


def _batch(cluster: Cluster, numbers: range, kinds: list[_Kind]) -> dict[str, str]:
    """Launches tasks, ends those that do not end by themselves, and waits; gives the task of each container."""
    launched = []
    for number in numbers:
        kind = kinds[number % len(kinds)]
        config: Any = kind.config(number, cluster.image)
        if kind is GENERIC:
            answer = cluster.api("POST", f"/api/v1/{kind.launch}", {"config": json.dumps(config)})
            launched.append((number, kind, str(answer["taskId"])))
        else:
            answer = cluster.api("POST", f"/api/v1/{kind.launch}", {"config": config})
            launched.append((number, kind, str(answer[kind.member]["id"])))
    ran = {}
    # In the order of the queue: what is to be ended by us has a slot then.
    for number, kind, task in launched:
        if kind.killed:
            _wait_running(cluster, number, kind, task)
            cluster.api("POST", f"/api/v1/{kind.launch}/{task}/kill")
        ran[_end(cluster, number, kind, task)] = task
    cluster.wait_idle()
    # Where the agent puts what it removes.
    trash = cluster.root / "agent" / "trash"
    wait_for("the agent to remove files", lambda: not trash.is_dir() or not any(trash.iterdir()), within=60)
    return ran


def _wait_running(cluster: Cluster, number: int, kind: _Kind, task: str) -> None:
    if kind is SHELL:

        def ready() -> bool:
            shown = cluster.api("GET", f"/api/v1/tasks/{task}")["task"]
            if shown["endTime"] is not None:
                raise Failed(f"shell {task} has ended: {shown['allocations'][0]['exitReason']}")
            return bool(shown["allocations"][0]["isReady"])

        wait_for(f"shell {task} to be ready", ready, within=120, look_every=0.02)
        return
    with cluster.follow(f"/api/v1/tasks/{task}/logs?follow=true") as messages:
        if not any(_line(number) in record["log"] for _, record in messages):
            raise Failed(f"task {task} ended without its line")


def _end(cluster: Cluster, number: int, kind: _Kind, task: str) -> str:
    """Waits for the end of a task, and checks it; gives the container that it ran in."""

    def ended() -> dict[str, Any] | None:
        shown = cluster.api("GET", f"/api/v1/tasks/{task}")["task"]
        return shown if shown["endTime"] is not None else None

    shown = wait_for(f"the end of task {task}", ended, within=300, look_every=0.02)
    [attempt] = shown["allocations"]
    if not kind.killed and attempt["statusCode"] != 0:
        raise Failed(f"task {task} ended with {attempt['statusCode']}: {attempt['exitReason']}")
    if kind.killed and "killed" not in attempt["exitReason"]:
        raise Failed(f"task {task} was killed, and has ended otherwise: {attempt['exitReason']}")
    with cluster.follow(f"/api/v1/tasks/{task}/logs") as messages:
        own_lines = [record for _, record in messages if record["source"] == "task"]
    times = sum(_line(number) in record["log"] for record in own_lines)
    if kind is not SHELL and times != 1:
        raise Failed(f"the log of task {task} has its line {times} times")
    containers = {str(record["containerId"]) for record in own_lines}
    if len(containers) != 1:
        raise Failed(f"the log of task {task} is of {len(containers)} containers")
    return containers.pop()


def _files(cluster: Cluster) -> set[str]:
    """Everything in the agent's directory."""
    root = cluster.root / "agent"
    return {
        str(pathlib.Path(directory, name).relative_to(root))
        for directory, directories, names in os.walk(root)
        for name in (*directories, *names)
    }


def _left(cluster: Cluster, containers: set[str]) -> list[str]:
    """What is left of tasks that have ended: processes, containers of the engine, mounts and control groups."""
    root = str(cluster.root)
    parts = {pid for pids in cluster.pids().values() for pid in pids}
    left = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in parts or int(entry.name) == os.getpid():
            continue
        try:
            traces = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"{root}/".encode() in traces:
            left.append(f"process {entry.name}")
    mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    left += [f"mount {line.split(' ')[4]}" for line in mounts if line.split(" ")[4].startswith(f"{root}/")]
    for directory, directories, _ in os.walk("/sys/fs/cgroup"):
        left += [f"control group {directory}/{name}" for name in directories if name in containers]
    if cluster.image is not None:
        id_of_cluster = cluster.api("GET", "/api/v1/master")["clusterId"]
        command = ["docker", "ps", "--all", "--quiet", "--filter", f"label={CLUSTER_LABEL}={id_of_cluster}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        left += [f"container {container}" for container in shown]
    return left


FIGURES = (
    Figure("task-churn", "1,000 tasks start and end, as processes", ("sqlite",), churn_of_processes),
    Figure("task-churn-containers", "1,000 tasks start and end, in containers", ("sqlite",), churn_of_containers),
)
