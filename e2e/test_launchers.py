"""Launchers that start processes over SSH, from the chief's container in those of the others: those of both packages, between
hosts of their own, as processes and in containers of Docker and Podman."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import harness
from configs import experiment
from conftest import equipment, lane
from harness import Agent, Cluster, Missing
from hosts import Host, Network, forwarded, hosts
from processes import docker_client, podman_socket, tail
from waiting import wait_for


@dataclass(frozen=True)
class Gang:
    """A cluster of two agents of two slots each, on hosts of their own, and which package its tasks have."""

    cluster: Cluster
    ours: bool
    runtime: str


def need_ssh(runtime: str) -> None:
    if runtime == "process" and (not pathlib.Path("/usr/sbin/sshd").exists() or shutil.which("ssh") is None):
        raise Missing("there is no openssh-server and openssh-client")


@contextlib.contextmanager
def engine_on(host: Host, runtime: str, image: str) -> Iterator[list[str]]:
    """A Docker engine or service of Podman of its own on a host, with an image of the usual one; gives the variables by which an
    agent finds it."""
    client = str(docker_client())
    root = pathlib.Path(tempfile.mkdtemp(prefix="det-e2e-engine-", dir="/var/tmp"))
    log = root / "log"
    if runtime == "docker":
        socket, found_by = root / "docker.sock", f"DOCKER_HOST=unix://{root}/docker.sock"
        argv = ["dockerd", "--storage-driver=overlay2", f"--data-root={root}/data", f"--exec-root={root}/exec"]
        argv += ["--bridge=none", "--iptables=false", "--ip6tables=false", f"--pidfile={root}/pid"]
        argv += ["-H", f"unix://{socket}"]
    else:
        socket, found_by = root / "podman" / "podman.sock", f"XDG_RUNTIME_DIR={root}"
        socket.parent.mkdir()
        # As scripts/test-podman has it.
        settings = '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
        (root / "conf").write_text(settings + '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n')
        argv = ["env", f"CONTAINERS_CONF={root}/conf", "podman", f"--root={root}/data", f"--runroot={root}/run"]
        # It reads the images of the usual one where they are.
        ask = [client, "-H", f"unix://{podman_socket('podman')}", "info", "--format", "{{.DockerRootDir}}"]
        usual = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
        argv += [f"--storage-opt=overlay.imagestore={usual}", "system", "service", "--time=0", f"unix://{socket}"]
    with log.open("wb") as out:
        argv = [*host.prefix, *argv]
        engine = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def answers() -> bool:
        return subprocess.run([client, "-H", f"unix://{socket}", "version"], capture_output=True).returncode == 0

    try:
        wait_for("the engine of the other host", answers, within=30, seen=lambda: tail(log))
        if runtime == "docker":
            with subprocess.Popen([client, "save", image], stdout=subprocess.PIPE) as saved:
                load = [client, "-H", f"unix://{socket}", "load"]
                subprocess.run(load, stdin=saved.stdout, check=True, capture_output=True)
            assert saved.returncode == 0
        yield ["env", found_by]
    finally:
        engine.terminate()
        engine.wait(timeout=30)
        # Docker leaves the host's network mounted, Podman its storage.
        for left in (root / "exec" / "netns" / "default", root / "data" / "overlay"):
            subprocess.run(["umount", left], capture_output=True)
        shutil.rmtree(root, ignore_errors=True)


def agents_of(network: Network, runtime: str, master: tuple[str, int], image: str | None, stack: Any) -> list[Agent]:
    """One agent on each of two hosts. The first one of an engine uses the usual one, on this host."""
    first, second = network.hosts
    if image is None:
        prefixes = [first.prefix, second.prefix]
    else:
        prefixes = [[], [*second.prefix, *stack.enter_context(engine_on(second, runtime, image))]]
    names = ("agent-1", "agent-2")
    return [Agent(name, 2, runtime, prefix=prefix, master=master) for name, prefix in zip(names, prefixes)]


@pytest.fixture(
    scope="module",
    params=[
        lane("core", ("process", True)),
        lane("client", ("process", False)),
        lane("docker", ("docker", True)),
        pytest.param(("docker", False), marks=pytest.mark.docker, id="docker-client"),
    ],
)
def gang(request: pytest.FixtureRequest) -> Iterator[Gang]:
    """The gang of the tests of a lane."""
    runtime, ours = request.param
    with gang_of(runtime, ours) as made:
        yield made


@contextlib.contextmanager
def gang_of(runtime: str, ours: bool) -> Iterator[Gang]:
    """Two hosts, whose containers share no ports."""
    with contextlib.ExitStack() as stack:
        with equipment():
            need_ssh(runtime)
            options: dict[str, Any] = {}
            if runtime == "docker":
                options["image"] = harness.docker_image() if ours else harness.wheel_image()
            elif runtime == "podman":
                options["image"] = harness.podman_image()
            else:
                options["python"] = harness.task_python() if ours else harness.wheel_python()
            network = stack.enter_context(hosts(2))
        config = {"security": {"host_names": [network.gateway]}}
        cluster = Cluster(agents=[], master_config=config, **options)
        port = stack.enter_context(forwarded(network.gateway, cluster.port))
        master = (network.gateway, port)
        cluster.add_agents(*agents_of(network, runtime, master, options.get("image"), stack))
        yield Gang(stack.enter_context(cluster), ours, runtime)


def launched(name: str, launcher: str, **more: Any) -> dict[str, Any]:
    entry = f'PATH="$PWD/bin:$PATH" exec python3 -m determined.launch.{launcher} '
    entry += "-- python3 rank.py" if launcher == "horovod" else "python3 rank.py"
    return experiment(name, entry, resources={"slots_per_trial": 4}, **more)


def all_gone(gang: Gang, trial: int) -> bool:
    return not gang.cluster.task_processes(trial)


@pytest.mark.parametrize("launcher", ["horovod", "deepspeed"])
def test_ranks_are_started_over_ssh_and_helpers_end_with_the_last(gang: Gang, launcher: str) -> None:
    if launcher == "deepspeed" and gang.runtime == "process" and shutil.which("pdsh") is None:
        pytest.skip("there is no pdsh")
    meet(gang, launcher)


@pytest.mark.podman
def test_launchers_reach_the_containers_of_podman() -> None:
    # Of the launchers this one starts every process over SSH.
    with gang_of("podman", True) as gang:
        meet(gang, "deepspeed")


def meet(gang: Gang, launcher: str) -> None:
    """Four ranks are started by a launcher, and know of each other."""
    cluster = gang.cluster
    trial = cluster.run(launched(f"over-{launcher}", launcher), "overssh", within=120)["id"]
    met = [(rank, rank // 2, rank % 2) for rank in range(4)]
    for rank in range(4):
        line = f"rank {rank} of 4 in container {rank // 2} has met "
        assert line + str(met) in cluster.printed(trial), cluster.log_lines(trial)
    # The lines of a rank are those of its own container.
    records = cluster.logs(trial, "sources=task&stdtypes=stdout")
    places = {record["rankId"]: record["agentId"] for record in records if "has met" in record["log"]}
    assert places[0] == places[1] != places[2] == places[3]
    wait_for("the SSH servers to be gone", lambda: all_gone(gang, trial), within=15)


@pytest.mark.parametrize("launcher", ["horovod", "deepspeed"])
def test_a_rank_that_fails_behind_ssh_ends_the_trial(gang: Gang, launcher: str) -> None:
    if launcher == "deepspeed" and gang.runtime == "process" and shutil.which("pdsh") is None:
        pytest.skip("there is no pdsh")
    cluster = gang.cluster
    config = launched(f"{launcher}-fails", launcher, hyperparameters={"fail_rank": 3})
    failed = cluster.submit(config, "overssh")
    trial = cluster.only_trial(failed)["id"]
    cluster.wait_log(trial, "rank 3 of 4", within=60)
    cluster.wait_experiment(failed, "ERROR", within=40)
    if gang.ours:
        assert any("the process of rank 3 ended with exit code 9" in line for line in cluster.log_lines(trial))
    wait_for("all to be gone", lambda: all_gone(gang, trial), within=15)


def test_launchers_talk_to_no_server_with_another_key(gang: Gang) -> None:
    config = experiment("stranger", "python3 meet.py", resources={"slots_per_trial": 4})
    printed = gang.cluster.printed(gang.cluster.run(config, "stranger")["id"])
    assert "the server with the trial's key: 0 inside" in printed, printed
    assert any(line.strip() == "the server with another key: 255" for line in printed), printed
