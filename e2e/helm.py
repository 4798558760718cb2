"""Releases of the chart on a real control plane, installed by the real Helm."""

from __future__ import annotations

import base64
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import yaml

from harness import Missing
from kubernetes import CHART, Kubernetes

# Pods of fake nodes end after a moment unless they are to stay.
STAY = """#!{python}
import sys
import yaml

objects = [found for found in yaml.safe_load_all(sys.stdin) if found]
for found in objects:
    if found["kind"] in ("Deployment", "DaemonSet"):
        metadata = found["spec"]["template"]["metadata"]
        metadata.setdefault("annotations", {{}})["k8s-testbed/scenario"] = "forever"
print(yaml.safe_dump_all(objects))
"""


class Helm:
    """Helm, for one control plane. What it installs is uninstalled at the end, and its namespaces are deleted."""

    def __init__(self, kubernetes: Kubernetes, directory: pathlib.Path, *, nodes: str = "fake") -> None:
        program = shutil.which("helm")
        if program is None:
            raise Missing("helm is not on PATH")
        self.program = program
        self.kubernetes = kubernetes
        self.directory = directory
        self.renderer = directory / "stay"
        self.renderer.write_text(STAY.format(python=sys.executable))
        self.renderer.chmod(0o755)
        self.on_fake_nodes = nodes == "fake"
        self.namespaces: set[str] = set()

    def run(self, *words: str, fails: bool = False, timeout: float = 300) -> str:
        """Runs Helm; gives its output, or its errors where it is to fail."""
        env = {**os.environ, "KUBECONFIG": self.kubernetes.kubeconfig}
        done = subprocess.run(
            [self.program, *words], capture_output=True, text=True, env=env, timeout=timeout, check=False
        )
        assert (done.returncode != 0) == fails, f"{words}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout

    def namespace(self) -> str:
        """A namespace of a test's own."""
        name = f"chart-{uuid.uuid4().hex[:8]}"
        self.kubernetes.run("create", "namespace", name)
        self.namespaces |= {name}
        return name

    def apply(
        self,
        verb: str,
        release: str,
        namespace: str,
        values: dict[str, Any],
        *words: str,
        fails: bool = False,
        chart: pathlib.Path = CHART,
    ) -> str:
        """`helm install` or `helm upgrade`, until the pods are ready."""
        file = self.directory / f"{uuid.uuid4().hex}.yaml"
        file.write_text(yaml.safe_dump(values))
        more = [] if fails else ["--wait", "--timeout", "180s"]
        if self.on_fake_nodes:
            more += ["--post-renderer", str(self.renderer)]
        self.namespaces |= {f"{namespace}-{release}-tasks", f"{namespace}-tasks"}
        return self.run(
            verb, release, str(chart), "--namespace", namespace, "--values", str(file), *more, *words, fails=fails
        )

    def uninstall(self, release: str, namespace: str) -> str:
        return self.run("uninstall", release, "--namespace", namespace, "--wait")

    def clean_up(self) -> None:
        for line in self.run("list", "--all-namespaces", "--all", "--output", "yaml").split("- app_version")[1:]:
            found = yaml.safe_load(f"app_version{line}".replace("\n  ", "\n"))
            if found["namespace"] in self.namespaces:
                self.run("uninstall", found["name"], "--namespace", found["namespace"], "--no-hooks")
        names = sorted(self.namespaces)
        # Pods of tasks wait for their master for minutes, and hold their slots.
        if not self.on_fake_nodes:
            for name in names:
                self.kubernetes.run("delete", "pods", "--all", "--namespace", name, "--grace-period=1", "--wait=false")
        self.kubernetes.run("delete", "namespace", "--ignore-not-found", "--wait=false", *names)
        # What a release keeps, and belongs to no namespace.
        for found in self.kubernetes.items("persistentvolumes,priorityclasses"):
            claim = found.get("spec", {}).get("claimRef", {})
            release = found["metadata"].get("annotations", {}).get("meta.helm.sh/release-namespace")
            if claim.get("namespace") in self.namespaces or release in self.namespaces:
                self.kubernetes.run("delete", found["kind"].lower(), found["metadata"]["name"], "--wait=false")


@contextlib.contextmanager
def helm(kubernetes: Kubernetes, directory: pathlib.Path, *, nodes: str = "fake") -> Iterator[Helm]:
    found = Helm(kubernetes, directory, nodes=nodes)
    try:
        yield found
    finally:
        found.clean_up()


def secret_text(kubernetes: Kubernetes, namespace: str, name: str, key: str) -> str:
    """The value of a Secret's key."""
    found = kubernetes.run("get", "secret", name, "--namespace", namespace, "--output", f"jsonpath={{.data.{key}}}")
    return base64.b64decode(found).decode()


def may(kubernetes: Kubernetes, account: str, verb: str, what: str, namespace: str | None) -> bool:
    """Whether a ServiceAccount (NAMESPACE:NAME) has a right in a namespace; in all of them where that is `None`."""
    where = ["--all-namespaces"] if namespace is None else ["--namespace", namespace]
    argv = [kubernetes.client, "--kubeconfig", kubernetes.kubeconfig, "auth", "can-i", verb, what, *where]
    argv += ["--as", f"system:serviceaccount:{account}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() == "yes"


def volume(name: str, claim: str, namespace: str, path: str) -> dict[str, Any]:
    """A volume over a directory of the node, for one claim."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"name": claim, "namespace": namespace},
            "hostPath": {"path": path},
        },
    }
