"""A registry that wants a login: where agents find one, and what a wrong one leads to."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from configs import experiment
from conftest import equipment, flavoured
from harness import Cluster, Missing, Tls
from hosts import bridge_address
from processes import docker, docker_client, free_port, tail
from test_docker import busybox, import_image  # noqa: F401
from test_tls import KEY, openssl
from waiting import wait_for

pytestmark = pytest.mark.docker

USER, PASSWORD = "puller", "of the registry"


@dataclass(frozen=True)
class Registry:
    """A registry on loopback with one image, which the engine has not got."""

    host: str
    image: str
    cluster: Cluster
    # Where the agent's account keeps its logins.
    logins: pathlib.Path


@contextlib.contextmanager
def registry_at(port: int, address: str = "127.0.0.1", tls: Tls | None = None) -> Iterator[None]:
    """Debian's registry, for one user; with TLS if it has a certificate."""
    if shutil.which("docker-registry") is None or shutil.which("htpasswd") is None:
        raise Missing("there is no docker-registry and htpasswd (Debian: docker-registry, apache2-utils)")
    with tempfile.TemporaryDirectory(prefix="det-e2e-registry-") as name:
        root = pathlib.Path(name)
        users = subprocess.run(["htpasswd", "-nbB", USER, PASSWORD], check=True, capture_output=True, text=True).stdout
        (root / "users").write_text(users)
        config: dict[str, Any] = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": f"{root}/data"}},
            "http": {"addr": f"{address}:{port}"},
            "auth": {"htpasswd": {"realm": "e2e", "path": f"{root}/users"}},
        }
        url, trust = f"http://{address}:{port}/v2/", None
        if tls is not None:
            config["http"]["tls"] = {"certificate": str(tls.certificate), "key": str(tls.key)}
            url, trust = f"https://{address}:{port}/v2/", ssl.create_default_context(cafile=str(tls.authority))
        (root / "config.yml").write_text(json.dumps(config))
        with (root / "log").open("wb") as log:
            argv = ["docker-registry", "serve", str(root / "config.yml")]
            server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def wants_login() -> bool:
            try:
                urllib.request.urlopen(url, timeout=5, context=trust).close()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code == 401
            return False

        try:
            wait_for("the registry", wants_login, within=20, seen=lambda: tail(root / "log"))
            yield
        finally:
            server.terminate()
            server.wait(timeout=20)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A cluster on Docker beside a registry; its account has a credential helper on PATH."""
    programs = tmp_path_factory.mktemp("programs")
    helper = programs / "docker-credential-e2e"
    answer = json.dumps({"Username": USER, "Secret": PASSWORD})
    helper.write_text(f"#!/bin/sh\n[ \"$1\" = get ] || exit 1\ncat >/dev/null\necho '{answer}'\n")
    helper.chmod(0o755)
    with contextlib.ExitStack() as stack:
        with equipment():
            port = free_port()
            stack.enter_context(registry_at(port))
        path = ["env", f"PATH={programs}:{os.environ['PATH']}"]
        cluster = stack.enter_context(flavoured("docker", shape="up", up_prefix=path))
        host = f"127.0.0.1:{port}"
        yield Registry(host, f"{host}/lab/small:1", cluster, cluster.root / "home" / ".docker" / "config.json")


@pytest.fixture
def small(busybox: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:  # noqa: F811
    """The files of an image."""
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for applet in ("sh", "echo"):
        (root / "bin" / applet).symlink_to("busybox")
    return root


def push(cluster: Cluster, host: str, image: str, root: pathlib.Path) -> None:
    """Makes the image of files and puts it into a registry; the engine has it then, too."""
    import_image(cluster, image, root)
    own = [str(docker_client()), "--config", str(root.with_suffix(".pushes"))]
    login = [*own, "login", "--username", USER, "--password-stdin", host]
    subprocess.run(login, input=PASSWORD, text=True, check=True, capture_output=True)
    subprocess.run([*own, "push", image], check=True, capture_output=True)


@pytest.fixture
def image(registry: Registry, small: pathlib.Path) -> Iterator[str]:
    """The image in the registry, and there alone; the agent's account has no login."""
    push(registry.cluster, registry.host, registry.image, small)
    docker("image", "rm", "--force", registry.image)
    registry.logins.unlink(missing_ok=True)
    yield registry.image
    docker("image", "rm", "--force", registry.image, check=False)


def log_in(registry: Registry, logins: Any) -> None:
    registry.logins.parent.mkdir(exist_ok=True)
    registry.logins.write_text(json.dumps(logins))


def pulls(registry: Registry, image: str, **environment: Any) -> None:
    """A task whose image is pulled runs."""
    config = experiment("pulls", "echo it was pulled", environment={"image": image, **environment})
    trial = registry.cluster.run(config)
    assert registry.cluster.printed(trial["id"]) == ["it was pulled"]
    # Once in five seconds at most: of an image that is this small, the first.
    progress = re.compile(rf'pulling image "{re.escape(image)}": [01] of 1 layers')
    lines = registry.cluster.log_lines(trial["id"])
    assert any(progress.match(line) for line in lines), lines


def test_a_login_of_the_configuration(registry: Registry, image: str) -> None:
    pulls(registry, image, registry_auth={"username": USER, "password": PASSWORD})


def test_a_newer_image_of_the_same_name_is_pulled_where_that_is_forced(
    registry: Registry, image: str, small: pathlib.Path
) -> None:
    def which(**environment: Any) -> list[str]:
        login = {"registry_auth": {"username": USER, "password": PASSWORD}}
        script = "read which < /which || which='the first one'; echo $which"
        config = experiment("which", script, environment={"image": image, **login, **environment})
        printed = registry.cluster.printed(registry.cluster.run(config)["id"])
        return [line for line in printed if line.startswith("the ")]

    assert which() == ["the first one"]
    first = docker("images", "--quiet", "--no-trunc", image).strip()
    (small / "which").write_text("the newer one\n")
    push(registry.cluster, registry.host, image, small)
    docker("tag", first, image)
    assert which() == ["the first one"], "the engine has an image of the name"
    assert which(force_pull_image=True) == ["the newer one"]
    assert which() == ["the newer one"], "it is what the engine has now"


def test_a_login_of_the_account_that_the_agent_runs_under(registry: Registry, image: str) -> None:
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    log_in(registry, {"auths": {registry.host: {"auth": auth}}})
    pulls(registry, image)


def test_a_login_of_a_credential_helper(registry: Registry, image: str) -> None:
    log_in(registry, {"auths": {registry.host: {}}, "credHelpers": {registry.host: "e2e"}})
    pulls(registry, image)


@pytest.mark.parametrize(
    "auth", [None, {"username": USER, "password": "not the password"}], ids=["without a login", "with a wrong password"]
)
def test_a_refused_pull_has_its_reason(registry: Registry, image: str, auth: Any) -> None:
    cluster = registry.cluster
    environment = {"image": image} | ({"registry_auth": auth} if auth else {})
    refused = cluster.submit(experiment("refused", "true", environment=environment))
    cluster.wait_experiment(refused, "ERROR", within=60)
    cluster.expect_alarm(r"image")
    trial = cluster.only_trial(refused)
    [allocation] = cluster.task(trial["taskId"])["allocations"]
    reason = allocation["exitReason"]
    expected = 'with the login of "environment.registry_auth"' if auth else "without a login"
    assert f'cannot pull image "{image}" {expected}' in reason, reason
    assert any(reason in line for line in cluster.log_lines(trial["id"])), cluster.log_lines(trial["id"])
    assert "not the password" not in reason, "it is in no message"


def test_a_registry_with_tls_is_used_once_the_engine_has_its_authority(
    registry: Registry, small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    auth = {"registry_auth": {"username": USER, "password": PASSWORD}}
    with contextlib.ExitStack() as stack:
        with equipment():
            # At a loopback address the engine checks no certificate.
            address, port = bridge_address(), free_port()
            names = ["-subj", "/CN=registry", "-addext", f"subjectAltName=IP:{address}"]
            openssl(tmp_path, "req", "-x509", *KEY, "-keyout", "key", "-out", "certificate", "-days", "2", *names)
            certificate = tmp_path / "certificate"
            stack.enter_context(registry_at(port, address, Tls(certificate, certificate, tmp_path / "key")))
        host, cluster = f"{address}:{port}", registry.cluster
        image = f"{host}/lab/small:1"
        trusted = pathlib.Path("/etc/docker/certs.d", host)
        trusted.mkdir(parents=True)
        stack.callback(shutil.rmtree, trusted)
        shutil.copy(certificate, trusted / "ca.crt")
        push(cluster, host, image, small)
        docker("image", "rm", "--force", image)
        stack.callback(docker, "image", "rm", "--force", image, check=False)
        (trusted / "ca.crt").rename(tmp_path / "ca.crt")
        refused = cluster.submit(experiment("untrusted", "true", environment={"image": image, **auth}))
        cluster.wait_experiment(refused, "ERROR", within=60)
        cluster.expect_alarm(r"image")
        [allocation] = cluster.task(cluster.only_trial(refused)["taskId"])["allocations"]
        assert "x509: certificate" in allocation["exitReason"], allocation
        shutil.copy(tmp_path / "ca.crt", trusted / "ca.crt")
        pulls(registry, image, **auth)
