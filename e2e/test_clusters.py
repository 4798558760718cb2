"""A master of two Kubernetes clusters, one of which is away for a while: the other is as if nothing were."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pytest
import yaml

from harness import ApiError, Cluster
from kubernetes import Kubernetes
from test_kubernetes import agents, experiment, life, reaches, state
from waiting import stays_true, wait_for

pytestmark = pytest.mark.kubernetes


class Relay:
    """Passes connections on to an address, unless it is away: then all are closed, and new ones are refused."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.open: set[socket.socket] = set()
        self.lock = threading.Lock()
        self.is_away = False
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # `accept` ends by it.
        self.listening.shutdown(socket.SHUT_RDWR)
        self._close_all()
        for thread in self.threads:
            thread.join()
        self.listening.close()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        self._close_all()
        yield
        self.is_away = False

    def _close_all(self) -> None:
        with self.lock:
            self.is_away = True
            for connection in self.open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listening.accept()
            except OSError:
                return
            with self.lock:
                if self.is_away:
                    client.close()
                    continue
                server = socket.create_connection(self.target)
                self.open |= {client, server}
            # Each is closed when both directions have ended.
            left = [client, server]
            for ends in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pass, args=(*ends, left))
                self.threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, to: socket.socket, left: list[socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                to.sendall(data)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self.lock:
            left.pop()
            if not left:
                for end in (source, to):
                    self.open.discard(end)
                    end.close()


@pytest.fixture
def namespaces(control_plane: Kubernetes) -> Iterator[tuple[str, str]]:
    names = (f"near-{uuid.uuid4().hex[:8]}", f"west-{uuid.uuid4().hex[:8]}")
    for name in names:
        control_plane.run("create", "namespace", name)
    yield names
    control_plane.run("delete", "namespace", "--wait=false", *names)


@pytest.fixture
def west(control_plane: Kubernetes, tmp_path: pathlib.Path) -> Iterator[tuple[Relay, pathlib.Path]]:
    """The way to the second cluster, which is the first one by another address, and the access to it."""
    access = yaml.safe_load(pathlib.Path(control_plane.kubeconfig).read_text())
    (cluster,) = access["clusters"]
    address = urllib.parse.urlsplit(cluster["cluster"]["server"])
    assert address.hostname and address.port
    with Relay(address.hostname, address.port) as relay:
        cluster["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
        file = tmp_path / "west.kubeconfig"
        file.write_text(yaml.safe_dump(access))
        yield relay, file


def reasons(master: Cluster) -> str:
    """The health of the master, with the problems of its managers."""
    try:
        return json.dumps(master.api("GET", "/health", user=None))
    except ApiError as error:
        return error.text


def test_a_cluster_that_is_away_leaves_the_work_of_the_other_alone(
    control_plane: Kubernetes, namespaces: tuple[str, str], west: tuple[Relay, pathlib.Path]
) -> None:
    relay, access = west
    common: dict[str, Any] = {
        "type": "kubernetes",
        "max_slots_per_pod": max(control_plane.nodes().values()),
        "determined_master_host": "master.invalid",
        "helper_image": "helper.invalid/det:1",
    }
    near = {"cluster_name": "near", "default_namespace": namespaces[0], "kubeconfig_path": control_plane.kubeconfig}
    far = {"cluster_name": "west", "default_namespace": namespaces[1], "kubeconfig_path": str(access)}
    config = {
        "resource_manager": {**common, **near},
        "additional_resource_managers": [
            {"resource_manager": {**common, **far}, "resource_pools": [{"pool_name": "west"}]}
        ],
    }

    def submitted(pool: str, run_for: str) -> int:
        return experiment(master, life(run_for), resources={"slots_per_trial": 1, "resource_pool": pool})

    def pods(number: int) -> list[str]:
        selector = f"determined.ai/experiment_id={number}"
        found = control_plane.items("pods", "--all-namespaces", "--selector", selector)
        return [pod["metadata"]["namespace"] for pod in found]

    with Cluster(agents=[], master_config=config) as master:
        nodes = 2 * len(control_plane.nodes())
        wait_for("the nodes of both", lambda: len(agents(master)) == nodes, within=30, seen=master.describe)
        for pool, namespace in zip(("default", "west"), namespaces):
            number = submitted(pool, "1s")
            wait_for("its pod", lambda number=number: pods(number), within=30, seen=master.describe)
            assert pods(number) == [namespace]
            reaches(master, number, "COMPLETED")
        master.expect_alarm("kube_client|a watch of a Kubernetes cluster|objects of a Kubernetes cluster|cannot be created or deleted yet")
        master.expect_alarm("a resource manager is not well|a request to Kubernetes failed")
        running = submitted("west", "8s")
        wait_for("its pod", lambda: pods(running), within=30, seen=master.describe)
        with relay.away():
            wait_for("west is down", lambda: "down" in reasons(master), within=60, seen=lambda: reasons(master))
            assert "west" in reasons(master), reasons(master)
            waiting = submitted("west", "1s")
            reaches(master, submitted("default", "1s"), "COMPLETED")
            stays_true("it is no failure", lambda: state(master, running) != "ERROR", throughout=2)
        for number in (running, waiting):
            reaches(master, number, "COMPLETED", within=90)
            assert master.trials(number)[0]["restarts"] == 0
        wait_for("both are up", lambda: "down" not in reasons(master), within=60, seen=lambda: reasons(master))
