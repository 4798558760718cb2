"""Services of tasks through a Gateway and at ports of nodes, over a real API server: what it accepts of the objects
that are made for them, with the rights of the chart. The test is the controller of the Gateway, and what listens at
its address."""

from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import shutil
import socket
import subprocess
import threading
import urllib.error
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import equipment
from harness import Cluster, Missing
from kubernetes import Kubernetes
from test_kubernetes import life, managing
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

# Has ListenerSet and TCPRoute in its standard channel, and builds with the Go of the testbed.
GATEWAY_API = "sigs.k8s.io/gateway-api@v1.6.1"
KINDS = ("gateways", "listenersets", "tcproutes")
GROUP = "gateway.networking.k8s.io"
PORT = 28103


def definitions() -> list[pathlib.Path]:
    """The files that define the kinds of the Gateway API, from its Go module."""
    go = shutil.which("go")
    if go is None:
        raise Missing("there is no go on PATH to get the definitions of the Gateway API with")
    done = subprocess.run([go, "mod", "download", "-json", GATEWAY_API], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise Missing(f"go does not get {GATEWAY_API}: {(done.stdout + done.stderr).strip()}")
    directory = pathlib.Path(json.loads(done.stdout)["Dir"], "config", "crd", "standard")
    return [directory / f"{GROUP}_{kind}.yaml" for kind in KINDS]


@pytest.fixture(scope="module")
def gateways(control_plane: Kubernetes) -> Iterator[str]:
    """A namespace for Gateways, in a cluster that has them."""
    with equipment():
        files = definitions()
    for file in files:
        control_plane.run("apply", "--server-side", "--filename", str(file))
    names = [f"crd/{kind}.{GROUP}" for kind in KINDS]
    control_plane.run("wait", "--for=condition=Established", "--timeout=60s", *names)
    name = f"gateways-{uuid.uuid4().hex[:8]}"
    control_plane.run("create", "namespace", name)
    yield name
    control_plane.run("delete", "namespace", name, "--wait=false")
    control_plane.run("delete", "--wait=false", *names)


def two_free_ports() -> int:
    """The first of two ports next to each other on which nothing listens."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port
    raise Missing("no two ports next to each other are free")


@contextlib.contextmanager
def listening(port: int) -> Iterator[None]:
    """A service behind the Gateway."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"from the service"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def command(master: Cluster) -> str:
    """A command with a service, whose pod runs until it is deleted."""
    config = {
        "entrypoint": ["true"],
        "resources": {"slots": 0},
        "environment": {
            "proxy_ports": [{"proxy_port": PORT, "default_service_id": True}],
            "pod_spec": life(scenario="forever"),
        },
    }
    return str(master.api("POST", "/api/v1/commands", {"config": config})["command"]["id"])


def program(control_plane: Kubernetes, kind: str, holder: dict[str, Any]) -> None:
    """Does what the controller of a Gateway does for its listeners."""
    now = "2026-01-01T00:00:00Z"

    def condition(name: str) -> dict[str, Any]:
        words = {"type": name, "status": "True", "reason": name, "message": "", "lastTransitionTime": now}
        return {**words, "observedGeneration": holder["metadata"]["generation"]}

    listeners = [
        {
            "name": it["name"],
            "attachedRoutes": 1,
            "supportedKinds": [{"group": GROUP, "kind": "TCPRoute"}],
            "conditions": [condition("Accepted"), condition("Programmed")],
        }
        for it in holder["spec"]["listeners"]
    ]
    control_plane.run(
        *("patch", kind, holder["metadata"]["name"], "--namespace", holder["metadata"]["namespace"]),
        *("--subresource", "status", "--type", "merge", "--patch", json.dumps({"status": {"listeners": listeners}})),
    )


@pytest.mark.parametrize("admits", ["sets", "listeners"])
def test_a_service_is_reached_through_a_gateway(
    control_plane: Kubernetes, namespace: str, gateways: str, admits: str
) -> None:
    own = {"name": "own", "port": 80, "protocol": "HTTP"}
    spec: dict[str, Any] = {"gatewayClassName": "e2e", "listeners": [own]}
    if admits == "sets":
        spec["allowedListeners"] = {"namespaces": {"from": "All"}}
    name = f"for-{admits}"
    metadata = {"name": name, "namespace": gateways}
    control_plane.apply({"apiVersion": f"{GROUP}/v1", "kind": "Gateway", "metadata": metadata, "spec": spec})
    first = two_free_ports()
    values = {"gatewayName": name, "gatewayNamespace": gateways, "gatewayIP": "127.0.0.1"}
    kubeconfig = control_plane.masters_kubeconfig(
        namespace, *(f"internalTaskGateway.{key}={value}" for key, value in values.items())
    )
    gateway = {
        "gateway_name": name,
        "gateway_namespace": gateways,
        "gateway_ip": "127.0.0.1",
        "gateway_port_range_start": first,
        "gateway_port_range_end": first + 1,
    }

    def holders() -> list[tuple[str, dict[str, Any]]]:
        """The Gateway, or the set, with its listeners."""
        if admits == "sets":
            return [("listenersets", it) for it in control_plane.items("listenersets", "--namespace", namespace)]
        (found,) = control_plane.items("gateways", "--namespace", gateways, "--field-selector", f"metadata.name={name}")
        return [("gateways", found)]

    def ports() -> list[int]:
        listeners = [it for _, holder in holders() for it in holder["spec"]["listeners"]]
        return [it["port"] for it in listeners if it["protocol"] == "TCP"]

    def routes() -> list[dict[str, Any]]:
        return control_plane.items("tcproutes", "--namespace", namespace)

    with managing(control_plane, namespace, kubeconfig_path=kubeconfig, internal_task_gateway=gateway) as master:
        task = command(master)
        wait_for("its route", routes, within=60, seen=master.describe)
        (port,) = ports()
        assert first <= port <= first + 1
        (route,) = routes()
        (parent,) = route["spec"]["parentRefs"]
        listeners = [it["name"] for _, holder in holders() for it in holder["spec"]["listeners"] if it["port"] == port]
        assert parent["kind"] == ("ListenerSet" if admits == "sets" else "Gateway")
        assert [parent["sectionName"]] == listeners
        for kind, holder in holders():
            program(control_plane, kind, holder)

        def answer() -> str:
            try:
                return master.raw("GET", f"/proxy/{task}/").decode()
            except urllib.error.HTTPError as error:
                return error.read().decode()

        with listening(port):
            wait_for("the service", lambda: answer() == "from the service", within=60, seen=answer)
        master.run_det("command", "kill", task)
        wait_for("the end of its listener", lambda: not ports(), within=60, seen=ports)
        wait_for("the end of its route", lambda: not routes(), within=60, seen=routes)


def test_a_service_has_a_port_of_nodes(control_plane: Kubernetes, namespace: str) -> None:
    kubeconfig = control_plane.masters_kubeconfig(namespace, "taskExposure=node_port")
    with managing(control_plane, namespace, kubeconfig_path=kubeconfig, task_exposure="node_port") as master:
        task = command(master)

        def services() -> list[dict[str, Any]]:
            return control_plane.items("services", "--namespace", namespace)

        (service,) = wait_for("its Service", services, within=60, seen=master.describe)
        assert service["spec"]["externalTrafficPolicy"] == "Local"
        (port,) = service["spec"]["ports"]
        assert port["port"] == PORT and port["nodePort"] >= 30000
        master.run_det("command", "kill", task)
        wait_for("the end of its Service", lambda: not services(), within=60, seen=services)
