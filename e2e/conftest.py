"""Fixtures: clusters for the lanes, each shared by the tests of a module, and what is printed when a test fails."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import harness
from harness import Agent, Cluster, Missing
from kubernetes import Kubernetes
from processes import docker, podman_socket


def lane(name: str, *values: Any) -> Any:
    """A parameter of a fixture that belongs to a lane."""
    return pytest.param(*(values or (name,)), marks=getattr(pytest.mark, name), id=name)


@contextlib.contextmanager
def equipment() -> Iterator[None]:
    """Skips, with the reason, where equipment is missing."""
    try:
        yield
    except Missing as missing:
        pytest.skip(str(missing))


@contextlib.contextmanager
def own_database() -> Iterator[str]:
    """A database of its own on the server that DET_TEST_POSTGRES_URL names, with a user who may create one."""
    url = os.environ.get("DET_TEST_POSTGRES_URL")
    if not url:
        raise Missing("DET_TEST_POSTGRES_URL names no PostgreSQL server")
    name = f"det_e2e_{uuid.uuid4().hex[:12]}"
    base, _, options = url.partition("?")
    server, _, _ = base.rpartition("/")

    def sql(text: str) -> None:
        done = subprocess.run(["psql", url, "-qc", text], capture_output=True, text=True)
        if done.returncode != 0:
            raise Missing(f"PostgreSQL at DET_TEST_POSTGRES_URL: {done.stderr.strip()}")

    try:
        sql(f"create database {name}")
    except FileNotFoundError:
        raise Missing("there is no psql to make a database with") from None
    try:
        yield f"{server}/{name}{'?' + options if options else ''}"
    finally:
        subprocess.run(["psql", url, "-qc", f"drop database {name} with (force)"], capture_output=True)


@contextlib.contextmanager
def flavoured(flavour: str, **options: Any) -> Iterator[Cluster]:
    """A cluster on the store and the runtime of a lane."""
    with contextlib.ExitStack() as stack:
        with equipment():
            if flavour in ("docker", "podman", "rootless"):
                options["image"] = harness.docker_image() if flavour == "docker" else harness.podman_image(flavour)
                agents = options.get("agents") or [Agent()]
                runtime = "docker" if flavour == "docker" else "podman"
                options["agents"] = [dataclasses.replace(agent, runtime=runtime) for agent in agents]
                if flavour == "rootless":
                    # Its user runs the cluster, and finds the service as Podman's users do.
                    socket = pathlib.Path(podman_socket(flavour))
                    options.update(shape="up", account=socket.stat().st_uid)
                    options["up_prefix"] = ["env", f"XDG_RUNTIME_DIR={socket.parent.parent}"]
            else:
                options.setdefault("python", harness.task_python())
            if flavour == "postgres":
                options["database_url"] = stack.enter_context(own_database())
        yield stack.enter_context(Cluster(**options))


@pytest.fixture(scope="module", params=[lane("core"), lane("docker"), lane("podman"), lane("postgres")])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A master and one agent with two slots; in each of four lanes."""
    with flavoured(request.param) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def up() -> Iterator[Cluster]:
    """`det up` with one agent of two slots, processes and SQLite."""
    with flavoured("core", shape="up") as cluster:
        yield cluster


ENGINES = [lane("docker"), lane("podman"), pytest.param("rootless", marks=pytest.mark.podman, id="rootless")]


@pytest.fixture(scope="module", params=ENGINES)
def boxed(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of `det up` on an engine."""
    with flavoured(request.param, shape="up") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def linked_users(boxed: Cluster) -> None:
    """Skips where tasks of users with a link to an account are refused."""
    if boxed.engine == "rootless":
        pytest.skip("rootless Podman refuses tasks of linked users: test_containers.py")


def engine(boxed: Cluster, *args: str, check: bool = True) -> str:
    """Runs the Docker client with the engine of the cluster; gives its output."""
    return docker(*args, check=check, engine=boxed.engine)


@pytest.fixture(scope="session", autouse=True)
def det_is_built() -> None:
    """Without the program under test nothing can be tested: that is no skip."""
    try:
        harness.det_executable()
    except Missing as missing:
        pytest.exit(str(missing), returncode=3)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Adds what the live clusters look like to the report of a failed test."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        for cluster in harness.LIVE:
            report.sections.append((f"cluster at {cluster.url}", _described(cluster)))


def _described(cluster: Cluster) -> str | None:
    try:
        return cluster.describe()
    except Exception as error:
        return f"(cannot be described: {error!r})"


@pytest.fixture(scope="module")
def control_plane() -> Kubernetes:
    """The control plane that `KUBECONFIG` names."""
    with equipment():
        return Kubernetes()


@pytest.fixture(scope="module")
def namespace(control_plane: Kubernetes) -> Iterator[str]:
    """A namespace of the module's own on it."""
    name = f"det-{uuid.uuid4().hex[:8]}"
    control_plane.run("create", "namespace", name)
    yield name
    control_plane.run("delete", "namespace", name, "--wait=false")
