"""TLS with an authority of our own, and with a self-signed certificate: master, agent, tasks, both clients."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest

import harness
from configs import experiment
from conftest import equipment, flavoured
from harness import Cluster, Missing, Tls

pytestmark = pytest.mark.client


KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def openssl(directory: pathlib.Path, *args: str) -> None:
    if shutil.which("openssl") is None:
        raise Missing("there is no openssl on PATH")
    done = subprocess.run(["openssl", *args], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def self_signed(directory: pathlib.Path) -> Tls:
    """What `openssl req -x509` makes: a certificate that vouches for itself and calls itself an authority."""
    names = ["-subj", "/CN=master", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    openssl(directory, "req", "-x509", *KEY, "-keyout", "master.key", "-out", "master.crt", "-days", "2", *names)
    return Tls(directory / "master.crt", directory / "master.crt", directory / "master.key")


def make_certificates(directory: pathlib.Path) -> Tls:
    """A new authority, and a certificate of it for this machine's loopback address."""
    (directory / "san.cnf").write_text(
        "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n"
    )
    name = ["-subj", "/CN=e2e authority"]
    openssl(directory, "req", "-x509", *KEY, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", *name)
    openssl(directory, "req", *KEY, "-keyout", "master.key", "-out", "master.csr", "-subj", "/CN=master")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san.cnf"]
    openssl(directory, "x509", "-req", "-in", "master.csr", *signed, "-out", "master.crt")
    return Tls(directory / "ca.crt", directory / "master.crt", directory / "master.key")


@pytest.fixture(scope="module", params=["ours", "wheel", "self-signed"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Clusters with TLS: tasks with our package, tasks with the PyPI package, a self-signed certificate."""
    with equipment():
        make = self_signed if request.param == "self-signed" else make_certificates
        tls = make(tmp_path_factory.mktemp("tls"))
        python = harness.wheel_python() if request.param == "wheel" else harness.task_python()
    with flavoured("core", tls=tls, python=python) as cluster:
        yield cluster


def test_a_trial_reports_over_tls(cluster: Cluster) -> None:
    trial = cluster.run(experiment("train", hyperparameters={"steps": 3}), "train", within=90)
    assert len(cluster.metrics(trial["id"], "validation")) == 3
    assert any("is done" in line for line in cluster.printed(trial["id"]))


def test_our_client_trusts_only_the_authority(cluster: Cluster) -> None:
    assert cluster.run_det("experiment", "list").code == 0
    env = cluster.client_environment()
    del env["DET_MASTER_CERT_FILE"]
    done = subprocess.run([str(cluster.det), "experiment", "list"], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 3 and "DET_MASTER_CERT_FILE" in done.stderr, done.stderr
    plain = cluster.run_det("experiment", "list", check=False, env={"DET_MASTER": f"http://127.0.0.1:{cluster.port}"})
    assert plain.code in (1, 3) and "panicked" not in plain.err


def test_the_pypi_client_trusts_only_the_authority(cluster: Cluster) -> None:
    with equipment():
        harness.wheel_det()
    assert cluster.client("experiment", "list").code == 0
    followed = cluster.write_config(experiment("followed", "echo over TLS"))
    out = cluster.client("experiment", "create", followed, cluster.empty_context(), "-f").out
    assert "over TLS" in out
    env = cluster.client_environment("wheel-home")
    del env["DET_MASTER_CERT_FILE"]
    words = [str(harness.wheel_det()), "experiment", "list"]
    done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
